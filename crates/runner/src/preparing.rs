//! Work that grows with a request: parsing bodies, rendering and tokenising prompts, compiling
//! grammars, decoding pictures. It runs on a bounded number of threads of its own, for a bounded
//! time.
//!
//! Clients get turns in rotation, however many requests each has. A client is an API key, or an
//! address on a server without keys. A request whose client disconnects leaves the queue. Running
//! work checks from time to time whether a client still waits for it.

use std::collections::VecDeque;
use std::future::Future;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::error::{ErrorKind, RequestError, Result};
use crate::warnings::Warnings;

/// Longest wait in the queue.
const WAIT: Duration = Duration::from_secs(60);

/// Longest time of one piece of work. Work that cannot be stopped keeps its thread until it ends,
/// and the client gets an error.
const TIME: Duration = Duration::from_secs(60);

/// Maximum number of pieces of work in the queue.
const MAX_WAITING: usize = 1024;

tokio::task_local! {
    /// The client whose work this task does; all its work shares one turn.
    static WHO: u64;
}

/// Answers a request of client `who`.
pub async fn on_behalf_of<T>(who: u64, answer: impl Future<Output = T>) -> T {
    WHO.scope(who, answer).await
}

/// The client that the current task serves.
pub fn who() -> u64 {
    WHO.try_with(|who| *who).unwrap_or(0)
}

/// Threads for such work, and the queue for them. Cheap to clone.
#[derive(Clone)]
pub struct Preparing(Arc<Mutex<Turns>>);

struct Turns {
    n_free: usize,
    /// Waiting requests by client; the client whose turn it is comes first.
    waiting: VecDeque<(u64, VecDeque<oneshot::Sender<Turn>>)>,
}

/// A free thread. Dropping it passes the thread to the next request.
struct Turn(Option<Preparing>);

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(preparing) = self.0.take() {
            preparing.give_back();
        }
    }
}

/// State that a piece of work shares with the request that waits for it.
pub struct Work {
    unwanted: Arc<AtomicBool>,
    end: Instant,
}

impl Work {
    /// Checks whether the work should continue. Long work calls it from time to time.
    ///
    /// # Errors
    /// No client wants the result any more, or the work took too long.
    pub fn goes_on(&self) -> Result<()> {
        if self.unwanted.load(Ordering::Relaxed) {
            return Err(RequestError::internal("the client has disconnected"));
        }
        if Instant::now() > self.end { Err(too_long()) } else { Ok(()) }
    }
}

fn too_long() -> RequestError {
    let message = format!(
        "preparing the request took longer than {} s, expected less; send a shorter prompt or a smaller grammar",
        TIME.as_secs()
    );
    RequestError::new(ErrorKind::Invalid, message)
}

fn overloaded() -> RequestError {
    RequestError {
        retry_after: Some(Duration::from_secs(1)),
        ..RequestError::new(ErrorKind::Overloaded, "too many requests wait to be prepared; try again later")
    }
}

fn n_processors() -> usize {
    std::thread::available_parallelism().map_or(2, NonZero::get).max(2)
}

/// Marks the work as unwanted on drop.
struct Unwanted(Arc<AtomicBool>);

impl Drop for Unwanted {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Preparing {
    /// One thread for each processor, at least two, so that one long piece of work does not block
    /// all others.
    pub(crate) fn new() -> Preparing {
        Preparing::with(n_processors())
    }

    /// Half as many threads as [`Self::new`].
    pub(crate) fn of_half() -> Preparing {
        Preparing::with(n_processors().div_ceil(2))
    }

    fn with(n_threads: usize) -> Preparing {
        Preparing(Arc::new(Mutex::new(Turns { n_free: n_threads, waiting: VecDeque::new() })))
    }

    /// Runs a piece of work in its turn.
    ///
    /// # Errors
    /// Those of the work; the queue is full; the work takes too long.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Work) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let turn = timeout(WAIT, self.turn(who())).await.map_err(|_| overloaded())??;
        let unwanted = Arc::new(AtomicBool::new(false));
        let of_work = Work { unwanted: unwanted.clone(), end: Instant::now() + TIME };
        let _unwanted = Unwanted(unwanted);
        let warnings = Warnings::current();
        let task = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            warnings.within(|| work(&of_work))
        });
        let done = timeout(TIME, task).await.map_err(|_| too_long())?;
        done.map_err(|error| RequestError::internal(format!("preparing the request failed: {error}")))?
    }

    async fn turn(&self, who: u64) -> Result<Turn> {
        let waits = {
            let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if turns.n_free > 0 {
                turns.n_free -= 1;
                return Ok(Turn(Some(self.clone())));
            }
            turns.make_room()?;
            let (send, waits) = oneshot::channel();
            match turns.waiting.iter_mut().find(|(other, _)| *other == who) {
                Some((_, own)) => own.push_back(send),
                None => turns.waiting.push_back((who, VecDeque::from([send]))),
            }
            waits
        };
        waits.await.map_err(|_| RequestError::internal("a turn was lost"))
    }

    /// Passes a free thread to the next request in turn.
    fn give_back(self) {
        loop {
            let next = {
                let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                match turns.next() {
                    Some(next) => next,
                    None => {
                        turns.n_free += 1;
                        return;
                    }
                }
            };
            match next.send(Turn(Some(self.clone()))) {
                Ok(()) => return,
                // The client has disconnected, so its turn passes to the next.
                Err(mut turn) => turn.0 = None,
            }
        }
    }
}

impl Turns {
    fn next(&mut self) -> Option<oneshot::Sender<Turn>> {
        let (who, mut own) = self.waiting.pop_front()?;
        let next = own.pop_front();
        if !own.is_empty() {
            self.waiting.push_back((who, own));
        }
        next
    }

    /// Makes room in the queue.
    ///
    /// # Errors
    /// The queue is full.
    fn make_room(&mut self) -> Result<()> {
        let n_waiting = |turns: &Turns| turns.waiting.iter().map(|(_, own)| own.len()).sum::<usize>();
        if n_waiting(self) >= MAX_WAITING {
            self.waiting.iter_mut().for_each(|(_, own)| own.retain(|waits| !waits.is_closed()));
            self.waiting.retain(|(_, own)| !own.is_empty());
        }
        if n_waiting(self) >= MAX_WAITING { Err(overloaded()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn turns_go_round_among_those_who_wait() {
        let preparing = Preparing::with(1);
        let order = Arc::new(Mutex::new(Vec::new()));
        let first = preparing.turn(0).await.unwrap();
        let mut tasks = Vec::new();
        // Three requests of the first client, then one of each of two others.
        for (n, who) in [1, 1, 1, 2, 3].into_iter().enumerate() {
            let (pool, order) = (preparing.clone(), order.clone());
            tasks.push(tokio::spawn(on_behalf_of(who, async move {
                pool.run(move |_| {
                    order.lock().unwrap().push((who, n));
                    Ok(())
                })
                .await
            })));
            tokio::task::yield_now().await;
        }
        // A disconnected client gets no turn, and others lose none.
        let hung_up = tokio::spawn(on_behalf_of(4, {
            let pool = preparing.clone();
            async move { pool.run(|_| Ok(())).await }
        }));
        tokio::task::yield_now().await;
        hung_up.abort();
        let _ = hung_up.await;
        drop(first);
        for task in tasks {
            task.await.unwrap().unwrap();
        }
        assert_eq!(*order.lock().unwrap(), [(1, 0), (2, 3), (3, 4), (1, 1), (1, 2)]);
        assert_eq!(preparing.0.lock().unwrap().n_free, 1);
    }

    #[tokio::test]
    async fn the_queue_is_bounded_and_work_learns_that_it_is_unwanted() {
        let preparing = Preparing::with(1);
        let turn = preparing.turn(0).await.unwrap();
        let mut waiting: Vec<_> = (0..MAX_WAITING).map(|_| Box::pin(preparing.turn(1))).collect();
        for waits in &mut waiting {
            let is_pending =
                std::future::poll_fn(|cx| std::task::Poll::Ready(waits.as_mut().poll(cx).is_pending()));
            assert!(is_pending.await);
        }
        assert_eq!(preparing.turn(2).await.err().unwrap().kind, ErrorKind::Overloaded);
        waiting.clear();
        drop(turn);
        let (told, tells) = std::sync::mpsc::channel();
        let pool = preparing.clone();
        let task = tokio::spawn(async move {
            pool.run(move |work| {
                while work.goes_on().is_ok() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                told.send(()).unwrap();
                Ok(())
            })
            .await
        });
        tokio::time::sleep(Duration::from_millis(20)).await;
        task.abort();
        let heard = tokio::task::spawn_blocking(move || tells.recv_timeout(Duration::from_secs(30)));
        heard.await.unwrap().unwrap();
    }
}
