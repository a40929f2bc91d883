//! The bounded queue of a model thread that computes whole requests. The model's metrics count it.
//!
//! A request whose client disconnects leaves the queue at once and is never computed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc;
use std::time::Instant;

use crate::error::{RequestError, Result};
use crate::stats::Stats;

/// Makes a queue for at most `max_waiting` requests, beside the running one.
pub(crate) fn queue<T>(max_waiting: usize, stats: &Arc<Stats>) -> (Sender<T>, Receiver<T>) {
    let (jobs, inbox) = mpsc::channel();
    (Sender { jobs, stats: stats.clone(), max_waiting }, Receiver(inbox))
}

/// The clients' end of the queue.
pub(crate) struct Sender<T> {
    jobs: mpsc::Sender<(T, Arc<Ticket>)>,
    stats: Arc<Stats>,
    max_waiting: usize,
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        Sender { jobs: self.jobs.clone(), stats: self.stats.clone(), max_waiting: self.max_waiting }
    }
}

impl<T> Sender<T> {
    /// Queues a job, for as long as the result is held.
    ///
    /// # Errors
    /// The queue is full, or the thread has died.
    pub(crate) fn send(&self, job: T) -> Result<Place> {
        // An idle thread starts the next job at once.
        let n_free = usize::from(self.stats.running.get() == 0);
        let most = self.max_waiting.saturating_add(n_free);
        self.stats
            .waiting
            .increment_below(most as u64)
            .map_err(|n| RequestError::overloaded(n as usize, self.max_waiting))?;
        let stage = AtomicU8::new(WAITING);
        let ticket = Arc::new(Ticket { stage, stats: self.stats.clone(), since: Instant::now() });
        let place = Place(ticket.clone());
        self.jobs.send((job, ticket)).map_err(|_| died())?;
        Ok(place)
    }
}

/// Error of a model whose thread has died.
pub(crate) fn died() -> RequestError {
    RequestError::internal("the model's thread has died; see the log")
}

/// The thread's end of the queue.
pub(crate) struct Receiver<T>(mpsc::Receiver<(T, Arc<Ticket>)>);

impl<T> Receiver<T> {
    /// Waits for the next request that a client still wants; `None` after all senders are dropped.
    pub(crate) fn recv(&self) -> Option<(T, Running)> {
        std::iter::from_fn(|| self.0.recv().ok()).find_map(begin)
    }

    /// Like [`Self::recv`], without waiting.
    pub(crate) fn try_recv(&self) -> Option<(T, Running)> {
        self.0.try_iter().find_map(begin)
    }
}

fn begin<T>((job, ticket): (T, Arc<Ticket>)) -> Option<(T, Running)> {
    ticket.advance(RUNNING).then(|| {
        ticket.stats.running.add(1);
        (job, Running(ticket))
    })
}

const WAITING: u8 = 0;
const RUNNING: u8 = 1;
const LEFT: u8 = 2;

struct Ticket {
    /// `WAITING`, then finally `RUNNING` or `LEFT`.
    stage: AtomicU8,
    stats: Arc<Stats>,
    since: Instant,
}

impl Ticket {
    /// Leaves the stage `WAITING`. Returns true if the request was waiting until now.
    fn advance(&self, to: u8) -> bool {
        let waited = self.stage.compare_exchange(WAITING, to, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if waited {
            self.stats.waiting.sub(1);
        }
        waited
    }
}

/// A place in the queue, freed on drop.
pub(crate) struct Place(Arc<Ticket>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.advance(LEFT);
    }
}

/// A running request, which ends when this is dropped.
pub(crate) struct Running(Arc<Ticket>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.stats.running.sub(1);
        self.0.stats.request.observe(self.0.since.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn the_queue_is_bounded() {
        let stats = Arc::new(Stats::default());
        let (sender, receiver) = queue(1, &stats);
        let figures = || (stats.waiting.get(), stats.running.get());
        // One job for the idle thread, and one that waits.
        let places = [sender.send('a').unwrap(), sender.send('b').unwrap()];
        let error = sender.send('c').err().unwrap();
        assert_eq!((error.kind, error.retry_after.is_some()), (ErrorKind::Overloaded, true));
        let (job, running) = receiver.recv().unwrap();
        assert_eq!((job, figures()), ('a', (1, 1)));
        assert!(sender.send('c').is_err());
        drop(places);
        assert_eq!(figures(), (0, 1));
        // A job whose place is dropped is never computed, and its place is free.
        let place = sender.send('d').unwrap();
        assert!(sender.send('e').is_err());
        drop(running);
        let (job, running) = receiver.try_recv().unwrap();
        assert_eq!((job, figures()), ('d', (0, 1)));
        drop((place, running));
        assert_eq!((figures(), stats.request.count()), ((0, 0), 2));
        assert!(receiver.try_recv().is_none());
        drop(receiver);
        assert_eq!(sender.send('f').err().unwrap().kind, ErrorKind::Internal);
        assert_eq!(figures(), (0, 0));
    }
}
