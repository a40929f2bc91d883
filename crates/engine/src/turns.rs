//! Turns of engines that share processors: one step at a time, in the order of arrival.
//!
//! Two pools of workers, each as large as the machine, slow one another down by far more than half.
//! At every barrier one pool waits for a worker that the other has displaced. Alternating steps
//! cost each of them only half.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A fair lock, shared by the engines of a process that compute on the same processors.
#[derive(Debug, Default)]
pub struct Turns {
    state: Mutex<Tickets>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Tickets {
    /// Number of tickets issued.
    n_asked: u64,
    /// Number of turns that have ended.
    n_ended: u64,
}

impl Turns {
    /// Wait for a turn, which lasts until the returned guard is dropped. Callers get their turns in
    /// the order of their calls.
    pub fn take(&self) -> Turn<'_> {
        let mut state = self.lock();
        let ticket = state.n_asked;
        state.n_asked += 1;
        while state.n_ended != ticket {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Turn(self)
    }

    fn lock(&self) -> MutexGuard<'_, Tickets> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Guard of a turn; see [`Turns::take`].
#[derive(Debug)]
pub struct Turn<'a>(&'a Turns);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.lock().n_ended += 1;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn one_computes_at_a_time_and_nobody_comes_twice_before_another() {
        let (turns, is_taken, n_overtaken) = (Turns::default(), AtomicBool::new(false), AtomicUsize::new(0));
        let counts = [AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0)];
        std::thread::scope(|scope| {
            for (index, count) in counts.iter().enumerate() {
                let (turns, is_taken, counts, n_overtaken) = (&turns, &is_taken, &counts, &n_overtaken);
                scope.spawn(move || {
                    while count.load(Ordering::Relaxed) < 200 {
                        let _turn = turns.take();
                        assert!(!is_taken.swap(true, Ordering::Relaxed), "two turns at once");
                        // The steps of the first thread take longer.
                        std::thread::sleep(std::time::Duration::from_micros(if index == 0 {
                            200
                        } else {
                            20
                        }));
                        count.fetch_add(1, Ordering::Relaxed);
                        let all = counts.each_ref().map(|count| count.load(Ordering::Relaxed));
                        let spread = all.iter().max().unwrap_or(&0) - all.iter().min().unwrap_or(&0);
                        n_overtaken.fetch_add(usize::from(spread > 20), Ordering::Relaxed);
                        is_taken.store(false, Ordering::Relaxed);
                    }
                });
            }
        });
        // Threads start one after the other, so the first may be some turns ahead.
        assert!(n_overtaken.load(Ordering::Relaxed) < 200, "{n_overtaken:?} turns were out of balance");
    }

    #[test]
    fn a_panic_ends_its_turn() {
        let turns = Turns::default();
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _turn = turns.take();
            panic!("as asked");
        }));
        assert!(panicked.is_err());
        drop(turns.take());
    }
}
