//! Waiting for a future on a plain thread, with a deadline, until another thread cancels.

use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

/// A signal to the thread that waits for an answer.
#[derive(Default)]
pub(crate) struct Signal {
    flags: Mutex<Flags>,
    changed: Condvar,
}

#[derive(Default)]
struct Flags {
    /// True if the future can go on.
    is_woken: bool,
    is_cancelled: bool,
}

/// The end of a wait.
pub(crate) enum Waited<T> {
    Ready(T),
    TimedOut,
    Cancelled,
}

impl Signal {
    fn flags(&self) -> MutexGuard<'_, Flags> {
        self.flags.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.flags().is_cancelled
    }

    /// Ends the wait, and every later one.
    pub(crate) fn cancel(&self) {
        self.flags().is_cancelled = true;
        self.changed.notify_all();
    }

    /// Waits for the future, until the deadline if there is one.
    pub(crate) fn wait<F: Future>(
        self: &Arc<Signal>,
        deadline: Option<Instant>,
        future: F,
    ) -> Waited<F::Output> {
        let waker = Waker::from(self.clone());
        let mut context = Context::from_waker(&waker);
        let mut future = pin!(future);
        loop {
            if self.is_cancelled() {
                return Waited::Cancelled;
            }
            if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
                return Waited::Ready(value);
            }
            let mut flags = self.flags();
            while !flags.is_woken && !flags.is_cancelled {
                let Some(deadline) = deadline else {
                    flags = self.changed.wait(flags).unwrap_or_else(PoisonError::into_inner);
                    continue;
                };
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Waited::TimedOut;
                }
                flags = self.changed.wait_timeout(flags, left).unwrap_or_else(PoisonError::into_inner).0;
            }
            flags.is_woken = false;
        }
    }
}

impl Wake for Signal {
    fn wake(self: Arc<Signal>) {
        self.flags().is_woken = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test that cannot go on fails.
mod tests {
    use super::*;
    use std::future::pending;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn a_thread_that_waits_is_cancelled_at_once() {
        let signal: Arc<Signal> = Arc::default();
        let begun = Instant::now();
        let deadline = Some(begun + Duration::from_secs(8));
        let waiting = thread::spawn({
            let signal = signal.clone();
            move || matches!(signal.wait(deadline, pending::<()>()), Waited::Cancelled)
        });
        // Nothing else wakes the thread, which waits by now.
        thread::sleep(Duration::from_millis(100));
        signal.cancel();
        assert!(waiting.join().unwrap() && begun.elapsed() < Duration::from_secs(6));
        assert!(matches!(signal.wait(None, pending::<()>()), Waited::Cancelled));
    }

    #[test]
    fn a_deadline_ends_the_wait() {
        let signal: Arc<Signal> = Arc::default();
        let deadline = Some(Instant::now() + Duration::from_millis(5));
        assert!(matches!(signal.wait(deadline, pending::<()>()), Waited::TimedOut));
        assert!(matches!(signal.wait(deadline, async { 7 }), Waited::Ready(7)));
    }
}
