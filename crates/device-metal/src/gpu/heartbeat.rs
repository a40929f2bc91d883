//! A thread that repeats an action while a GPU is in use, and for a while afterwards.
//!
//! The system releases the memory of a residency set soon after the GPU becomes idle. Others
//! measured that the first tokens after a second of idleness then took five times as long. So sets
//! are requested again while nothing runs, until the owner is likely to be gone.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time between two beats.
pub const PERIOD: Duration = Duration::from_millis(400);

/// Time after the last use during which the thread calls `beat`.
pub const PATIENCE: Duration = Duration::from_secs(180);

struct State {
    last_used: Instant,
    ended: bool,
}

/// The thread, which ends when this is dropped.
pub struct Heartbeat {
    shared: Arc<(Mutex<State>, Condvar)>,
    thread: Option<std::thread::JoinHandle<()>>,
}

fn lock(state: &Mutex<State>) -> std::sync::MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Heartbeat {
    /// Calls `beat` every `period` with the time since the last [`Self::used`], until that time is
    /// longer than `patience`; then again from the next use on. If no thread can be started, `beat`
    /// is never called.
    pub fn new(
        period: Duration,
        patience: Duration,
        mut beat: impl FnMut(Duration) + Send + 'static,
    ) -> Heartbeat {
        let shared =
            Arc::new((Mutex::new(State { last_used: Instant::now(), ended: false }), Condvar::new()));
        let seen = shared.clone();
        let run = move || {
            let (state, changed) = &*seen;
            let mut guard = lock(state);
            while !guard.ended {
                let is_patient = guard.last_used.elapsed() < patience;
                guard = if is_patient {
                    let (after, timeout) =
                        changed.wait_timeout(guard, period).unwrap_or_else(PoisonError::into_inner);
                    if timeout.timed_out() && !after.ended {
                        let idle = after.last_used.elapsed();
                        drop(after);
                        beat(idle);
                        lock(state)
                    } else {
                        after
                    }
                } else {
                    changed.wait(guard).unwrap_or_else(PoisonError::into_inner)
                };
            }
        };
        let thread = std::thread::Builder::new().name("metal-residency".to_owned()).spawn(run).ok();
        Heartbeat { shared, thread }
    }

    /// The GPU was used now.
    pub fn used(&self) {
        let (state, changed) = &*self.shared;
        let mut state = lock(state);
        let was_asleep = state.last_used.elapsed() > PERIOD;
        state.last_used = Instant::now();
        drop(state);
        if was_asleep {
            changed.notify_all();
        }
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        let (state, changed) = &*self.shared;
        lock(state).ended = true;
        changed.notify_all();
        // The thread does nothing that can panic, so the result of `join` is ignored.
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn it_beats_while_idle_stops_and_goes_on() {
        let (n, longest) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Duration::ZERO)));
        let (count, seen) = (n.clone(), longest.clone());
        let beats = move |idle: Duration| {
            count.fetch_add(1, Ordering::SeqCst);
            let mut longest = seen.lock().unwrap();
            *longest = idle.max(*longest);
        };
        let heartbeat = Heartbeat::new(Duration::from_millis(2), Duration::from_millis(120), beats);
        let wait_for = |condition: &dyn Fn(usize) -> bool| {
            let begun = Instant::now();
            while !condition(n.load(Ordering::SeqCst)) {
                assert!(begun.elapsed() < Duration::from_secs(20), "{}", n.load(Ordering::SeqCst));
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        wait_for(&|n| n >= 3);
        std::thread::sleep(Duration::from_millis(600));
        let asleep = n.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(60));
        assert_eq!(n.load(Ordering::SeqCst), asleep, "patience is over");
        let longest = *longest.lock().unwrap();
        assert!(longest > Duration::from_millis(10), "idle for {longest:?}");
        heartbeat.used();
        wait_for(&|n| n > asleep);
        drop(heartbeat);
        let ended = n.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(n.load(Ordering::SeqCst), ended);
    }
}
