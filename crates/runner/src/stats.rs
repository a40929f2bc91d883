//! Metrics of a model's thread: counters that can be read at any time without waiting for the
//! engine.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Upper bounds of the histograms' buckets in seconds.
pub(crate) const SECONDS: [f64; 16] =
    [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 300.0];

/// Metrics of one model.
#[derive(Debug, Default)]
pub struct Stats {
    /// Sequences in slots.
    pub running: Gauge,
    /// Sequences that wait for a slot.
    pub waiting: Gauge,
    /// Sequences that lost their slot for lack of memory and wait to continue.
    pub parked: Gauge,
    /// Predicted milliseconds until a short prompt that arrives now has its first token.
    pub predicted_wait_ms: Gauge,
    /// Bytes of KV pages that sequences and cached prefixes occupy.
    pub kv_bytes_used: Gauge,
    /// Maximum number of bytes of KV pages.
    pub kv_bytes_budget: Gauge,
    /// Successive failed steps; a success resets it to 0.
    pub failing: Gauge,
    /// Shows whether the thread makes progress.
    pub pulse: Pulse,
    /// Prompt tokens computed in prefill.
    pub tokens_computed: Gauge,
    /// Prompt tokens found in the prefix cache.
    pub tokens_cached: Gauge,
    /// Tokens generated.
    pub tokens_generated: Gauge,
    /// Seconds from a request to its first token.
    pub first_token: Histogram,
    /// Seconds between two tokens.
    pub token: Histogram,
    /// Seconds of a whole request.
    pub request: Histogram,
}

impl Stats {
    /// Resets the gauges of a thread that has ended.
    pub(crate) fn clear(&self) {
        for gauge in [&self.running, &self.waiting, &self.parked, &self.predicted_wait_ms, &self.failing] {
            gauge.set(0);
        }
    }
}

/// Progress of a thread: the current step or request. Each is bounded, since a step has at most the
/// program's compiled rows, and work that grows with a request is done before.
#[derive(Debug)]
pub struct Pulse {
    start: Instant,
    /// Milliseconds from `start` to the start of the current work, plus 1; 0 if idle.
    since: AtomicU64,
    /// Milliseconds of the longest work so far.
    longest: AtomicU64,
    /// Largest step in multiples of [`Self::ROWS`].
    times: AtomicU64,
    /// True if a panic ended the work, which also ends the thread.
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
    /// Work of this length has failed, unless earlier work took nearly as long: a slow machine is
    /// not a broken one.
    const STUCK: Duration = Duration::from_secs(60);

    /// Rows of a step that are expected to be computed within [`Self::STUCK`].
    const ROWS: usize = 512;

    /// Sets the largest number of rows of a step; more rows may take longer.
    pub(crate) fn expect_rows(&self, n_rows: usize) {
        self.times.store(n_rows.div_ceil(Self::ROWS).max(1) as u64, Ordering::Relaxed);
    }

    /// Starts work, which ends when the result is dropped.
    pub(crate) fn begin(&self) -> Beat<'_> {
        self.since.store(self.now() + 1, Ordering::Relaxed);
        Beat(self)
    }

    /// Ends the current work and starts the next. No effect on an idle thread.
    pub(crate) fn again(&self) {
        let now = self.now() + 1;
        let renew = |since: u64| (since != 0).then_some(now);
        if let Ok(since) = self.since.fetch_update(Ordering::Relaxed, Ordering::Relaxed, renew) {
            self.longest.fetch_max(now.saturating_sub(since), Ordering::Relaxed);
        }
    }

    /// Returns true if a panic ended the thread's work. The thread ends as soon as its memory is
    /// free.
    pub(crate) fn has_died(&self) -> bool {
        self.has_died.load(Ordering::Acquire)
    }

    /// Time that the current work has taken, if that is too long.
    pub fn stuck(&self) -> Option<Duration> {
        self.stuck_after(Self::STUCK)
    }

    /// Like [`Self::stuck`], with another limit.
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

/// Marks the thread as busy until it is dropped.
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

/// A number that threads set and read.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// The current value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets the value.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Adds to the value.
    pub fn add(&self, value: u64) {
        self.0.fetch_add(value, Ordering::Relaxed);
    }

    pub(crate) fn sub(&self, value: u64) {
        self.0.fetch_sub(value, Ordering::Relaxed);
    }

    /// Increments the number if it is below `most`.
    ///
    /// # Errors
    /// The number is not below `most`; the error holds it.
    pub(crate) fn increment_below(&self, most: u64) -> Result<(), u64> {
        let next = |value| (value < most).then(|| value + 1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).map(drop)
    }
}

/// A histogram of times.
#[derive(Debug, Default)]
pub struct Histogram {
    /// Counts by upper bound; the last for times above all bounds.
    buckets: [AtomicU64; SECONDS.len() + 1],
    sum_micros: AtomicU64,
}

impl Histogram {
    /// Counts a time.
    pub fn observe(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let bucket = SECONDS.partition_point(|bound| *bound < seconds);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_micros.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
    }

    /// Upper bounds in seconds with the count of each bucket alone; the last bound is infinite.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let bounds = SECONDS.into_iter().chain([f64::INFINITY]);
        bounds.zip(self.buckets.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    /// Sum of all observations, in seconds.
    pub fn sum(&self) -> f64 {
        self.sum_micros.load(Ordering::Relaxed) as f64 / 1e6
    }

    /// Number of observations.
    pub fn count(&self) -> u64 {
        self.buckets().map(|(_, count)| count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_takes_far_longer_than_before_is_stuck() {
        let pulse = Pulse::default();
        let most = Duration::from_millis(20);
        assert_eq!(pulse.stuck_after(most), None);
        let beat = pulse.begin();
        std::thread::sleep(Duration::from_millis(40));
        assert!(pulse.stuck_after(most).is_some_and(|busy| busy >= most) && pulse.stuck().is_none());
        drop(beat);
        assert_eq!(pulse.stuck_after(most), None);
        // Work that continues in parts is not stuck.
        let parts = pulse.begin();
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(10));
            pulse.again();
        }
        assert_eq!(pulse.stuck_after(most), None);
        drop(parts);
        pulse.again();
        assert_eq!(pulse.stuck_after(Duration::ZERO), None);
        // Later work may take as long, and somewhat longer.
        let _beat = pulse.begin();
        std::thread::sleep(Duration::from_millis(40));
        assert_eq!(pulse.stuck_after(most), None);
        // A thread that panicked is not stuck either.
        assert!(!pulse.has_died());
        let panics = std::panic::AssertUnwindSafe(|| {
            let _beat = pulse.begin();
            std::panic::resume_unwind(Box::new("as asked"))
        });
        std::panic::catch_unwind(panics).unwrap_err();
        assert!(pulse.has_died() && pulse.stuck_after(Duration::ZERO).is_none());
    }
}
