//! What a model's thread tells of itself: plain numbers that anybody may read at any time, without waiting for the engine.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Upper bounds of the histograms' buckets in seconds.
pub(crate) const SECONDS: [f64; 16] =
    [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 300.0];

/// Figures of one model.
#[derive(Debug, Default)]
pub struct Stats {
    /// Sequences in slots.
    pub running: Gauge,
    /// Sequences that wait for one.
    pub waiting: Gauge,
    /// Sequences that gave their slot back for lack of memory and wait to go on.
    pub parked: Gauge,
    /// Milliseconds until a short prompt that came now would give its first token, as predicted.
    pub predicted_wait_ms: Gauge,
    /// Bytes of KV pages that sequences and cached prefixes hold.
    pub kv_bytes_used: Gauge,
    /// Most bytes that they may hold.
    pub kv_bytes_budget: Gauge,
    /// Steps that failed one after the other; 0 when one succeeds.
    pub failing: Gauge,
    /// Whether the thread comes to an end with what it does.
    pub pulse: Pulse,
    /// Tokens of prompts that were computed.
    pub tokens_computed: Gauge,
    /// Tokens of prompts that were found computed.
    pub tokens_cached: Gauge,
    /// Tokens chosen.
    pub tokens_generated: Gauge,
    /// Seconds from a request to its first token.
    pub first_token: Histogram,
    /// Seconds between two tokens.
    pub token: Histogram,
    /// Seconds of a whole request.
    pub request: Histogram,
}

impl Stats {
    /// Nothing runs, waits, or fails any more.
    pub(crate) fn clear(&self) {
        for gauge in [&self.running, &self.waiting, &self.parked, &self.predicted_wait_ms, &self.failing] {
            gauge.set(0);
        }
    }
}

/// What a thread does at once: a step, or taking a request. Each is bounded: a step has at most as many rows as the program was
/// compiled for, and what grows with a request was done before.
#[derive(Debug)]
pub struct Pulse {
    start: Instant,
    /// Milliseconds from `start` to when it began what it does now, and 1; 0: nothing.
    since: AtomicU64,
    /// Milliseconds of what took longest so far.
    longest: AtomicU64,
    /// How many times as many rows as [`Self::ROWS`] a step may have.
    times: AtomicU64,
    /// A panic ended what it did, and ends the thread.
    has_died: AtomicBool,
}

impl Default for Pulse {
    fn default() -> Pulse {
        Pulse {
            start: Instant::now(),
            since: AtomicU64::new(0),
            longest: AtomicU64::new(0),
            times: AtomicU64::new(1),
            has_died: AtomicBool::new(false),
        }
    }
}

impl Pulse {
    /// What takes so long has failed, unless something before took nearly as long: a slow machine is no broken one.
    const STUCK: Duration = Duration::from_secs(60);

    /// So many rows of a step are expected to be computed in that time.
    const ROWS: usize = 512;

    /// Steps have up to so many rows: what has more of them may take longer.
    pub(crate) fn expect_rows(&self, n_rows: usize) {
        self.times.store(n_rows.div_ceil(Self::ROWS).max(1) as u64, Ordering::Relaxed);
    }

    /// The thread begins something, which ends when the result is dropped.
    pub(crate) fn begin(&self) -> Beat<'_> {
        self.since.store(self.now() + 1, Ordering::Relaxed);
        Beat(self)
    }

    /// What the thread began has ended, and something else begins. Nothing happens where it has begun nothing.
    pub(crate) fn again(&self) {
        let now = self.now() + 1;
        let renew = |since: u64| (since != 0).then_some(now);
        if let Ok(since) = self.since.fetch_update(Ordering::Relaxed, Ordering::Relaxed, renew) {
            self.longest.fetch_max(now.saturating_sub(since), Ordering::Relaxed);
        }
    }

    /// Whether a panic has ended what the thread did. The thread ends as well, as soon as its memory is free.
    pub(crate) fn has_died(&self) -> bool {
        self.has_died.load(Ordering::Acquire)
    }

    /// For how long the thread has been busy with one thing, if that is longer than it should be.
    pub fn stuck(&self) -> Option<Duration> {
        self.stuck_after(Self::STUCK)
    }

    /// The same, with another time instead of a minute.
    pub fn stuck_after(&self, most: Duration) -> Option<Duration> {
        let since = self.since.load(Ordering::Relaxed).checked_sub(1)?;
        let busy = Duration::from_millis(self.now().saturating_sub(since));
        let longest = Duration::from_millis(self.longest.load(Ordering::Relaxed));
        let most = most.saturating_mul(self.times.load(Ordering::Relaxed) as u32);
        (busy > most.max(longest.saturating_mul(4))).then_some(busy)
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }
}

/// The thread is busy.
pub(crate) struct Beat<'a>(&'a Pulse);

impl Drop for Beat<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.has_died.store(true, Ordering::Release);
        }
        let since = self.0.since.swap(0, Ordering::Relaxed);
        let took = (self.0.now() + 1).saturating_sub(since);
        self.0.longest.fetch_max(took, Ordering::Relaxed);
    }
}

/// A number that is set now and then.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// The number.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub(crate) fn add(&self, value: u64) {
        self.0.fetch_add(value, Ordering::Relaxed);
    }

    pub(crate) fn sub(&self, value: u64) {
        self.0.fetch_sub(value, Ordering::Relaxed);
    }

    /// Add one if the number is below `most`.
    ///
    /// # Errors
    /// It is not; the number.
    pub(crate) fn increment_below(&self, most: u64) -> Result<(), u64> {
        let next = |value| (value < most).then(|| value + 1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).map(drop)
    }
}

/// How often something took how long.
#[derive(Debug, Default)]
pub struct Histogram {
    /// By upper bound; the last for what is longer than all.
    buckets: [AtomicU64; SECONDS.len() + 1],
    sum_micros: AtomicU64,
}

impl Histogram {
    pub(crate) fn observe(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let bucket = SECONDS.partition_point(|bound| *bound < seconds);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_micros.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
    }

    /// Upper bounds in seconds and how many are in each bucket alone; the last bound is infinite.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let bounds = SECONDS.into_iter().chain([f64::INFINITY]);
        bounds.zip(self.buckets.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    /// Of all observations, in seconds.
    pub fn sum(&self) -> f64 {
        self.sum_micros.load(Ordering::Relaxed) as f64 / 1e6
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.buckets().map(|(_, count)| count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_stuck_that_takes_far_longer_than_before() {
        let pulse = Pulse::default();
        let most = Duration::from_millis(20);
        assert_eq!(pulse.stuck_after(most), None);
        let beat = pulse.begin();
        std::thread::sleep(Duration::from_millis(40));
        assert!(pulse.stuck_after(most).is_some_and(|busy| busy >= most) && pulse.stuck().is_none());
        drop(beat);
        assert_eq!(pulse.stuck_after(most), None);
        // What goes on in parts is not stuck.
        let parts = pulse.begin();
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(10));
            pulse.again();
        }
        assert_eq!(pulse.stuck_after(most), None);
        drop(parts);
        pulse.again();
        assert_eq!(pulse.stuck_after(Duration::ZERO), None);
        // As long as that it may take again, and somewhat longer.
        let _beat = pulse.begin();
        std::thread::sleep(Duration::from_millis(40));
        assert_eq!(pulse.stuck_after(most), None);
        // Nor what a panic has ended.
        assert!(!pulse.has_died());
        let panics = std::panic::AssertUnwindSafe(|| {
            let _beat = pulse.begin();
            std::panic::resume_unwind(Box::new("as asked"))
        });
        std::panic::catch_unwind(panics).unwrap_err();
        assert!(pulse.has_died() && pulse.stuck_after(Duration::ZERO).is_none());
    }
}
