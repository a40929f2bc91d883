//! A pool of workers that start together within a microsecond and cost nothing while idle.
//!
//! The calling thread is worker 0. A job is one closure, run by every worker; inside it they meet at the [`Barrier`].
//! Between jobs a worker spins on a generation counter for about 50 microseconds, the length of a sampling step, so
//! that the next step of a running sequence finds it awake; then it parks. ([`Pool::stay_awake`] sets another time.)
//! Starting a job allocates nothing.
//!
//! Waiting gives the processor away: at once where there are more workers than processors, otherwise after some 3
//! microseconds, since another process, or the awaited worker itself, may need this one. After some 200 microseconds it
//! sleeps. A worker that only yields keeps its processor busy in the scheduler's eyes, and an awaited worker that shares
//! the other processor with another process stays there until that process has had its slice, 3 milliseconds of it; beside
//! a sleeping worker it is moved at once.
//!
//! A panic in one worker poisons the barrier, so that the others leave too, and becomes the job's error. A worker that ends
//! the job ([`Barrier::end`]) does the same without a panic.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long an idle worker stays awake, unless [`Pool::stay_awake`] sets another time.
const IDLE_SPIN: Duration = Duration::from_micros(50);
/// Polls before a waiting worker gives the processor away (some 3 microseconds).
const POLLS: u32 = 200;
/// The same where workers outnumber processors.
const POLLS_OVERSUBSCRIBED: u32 = 8;
/// How often a waiting worker gives the processor away before it sleeps (some 200 microseconds where nobody takes it). With a
/// quarter of it workers slept several times a token on a quiet machine, which cost a small model 3 % (means of ten runs in turns
/// with a pool that never sleeps); with this 1 %, no more than runs differ. Beside a busy process both are as fast.
const YIELDS: u32 = 400;
/// How long it sleeps before it looks again: what a wake that was missed costs.
const NAP: Duration = Duration::from_micros(500);

/// Its own cache line, so that polling one counter does not slow the others.
#[repr(align(128))]
struct Line<T>(T);

/// Waits until something holds that another worker brings about.
struct Waiting {
    polls: u32,
    /// Workers that sleep or are about to.
    n_asleep: Line<AtomicUsize>,
    bed: Mutex<()>,
    changed: Condvar,
}

impl Waiting {
    fn new(polls: u32) -> Waiting {
        Waiting { polls, n_asleep: Line(AtomicUsize::new(0)), bed: Mutex::new(()), changed: Condvar::new() }
    }

    /// Wait until it holds. Whoever makes it hold calls [`Self::wake`].
    #[inline]
    fn until(&self, done: impl Fn() -> bool) {
        for _ in 0..self.polls {
            if done() {
                return;
            }
            std::hint::spin_loop();
        }
        self.yield_until(&done);
    }

    #[cold]
    fn yield_until(&self, done: &dyn Fn() -> bool) {
        for _ in 0..YIELDS {
            if done() {
                return;
            }
            std::thread::yield_now();
        }
        let mut guard = self.bed.lock().unwrap_or_else(PoisonError::into_inner);
        self.n_asleep.0.fetch_add(1, Ordering::SeqCst);
        while !done() {
            let woken = self.changed.wait_timeout(guard, NAP);
            guard = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        self.n_asleep.0.fetch_sub(1, Ordering::SeqCst);
    }

    /// Wake whoever sleeps, after a change for which somebody may wait. It may miss one that falls asleep at this moment, who then
    /// looks after a [`NAP`]: to miss none, the change would have to be visible before this load, and waiting for that cost every
    /// barrier 0.4 microseconds, 4 % of a small model's rate.
    #[inline]
    fn wake(&self) {
        if self.n_asleep.0.load(Ordering::Relaxed) > 0 {
            drop(self.bed.lock().unwrap_or_else(PoisonError::into_inner));
            self.changed.notify_all();
        }
    }
}

/// Where the workers of a job meet.
pub struct Barrier {
    n: usize,
    arrived: Line<AtomicUsize>,
    generation: Line<AtomicUsize>,
    poisoned: Line<AtomicBool>,
    waiting: Waiting,
}

impl Barrier {
    fn new(n: usize, polls: u32) -> Barrier {
        Barrier {
            n,
            arrived: Line(AtomicUsize::new(0)),
            generation: Line(AtomicUsize::new(0)),
            poisoned: Line(AtomicBool::new(false)),
            waiting: Waiting::new(polls),
        }
    }

    /// Wait until all workers are here. What each wrote before is visible to all after.
    ///
    /// `false`: another worker panicked or ended the job; leave it.
    #[must_use]
    #[inline]
    pub fn wait(&self) -> bool {
        if self.n == 1 {
            return true;
        }
        let generation = self.generation.0.load(Ordering::Relaxed);
        if self.arrived.0.fetch_add(1, Ordering::AcqRel) + 1 == self.n {
            self.arrived.0.store(0, Ordering::Relaxed);
            self.generation.0.store(generation.wrapping_add(1), Ordering::Release);
            self.waiting.wake();
        } else {
            self.waiting.until(|| {
                self.generation.0.load(Ordering::Acquire) != generation
                    || self.poisoned.0.load(Ordering::Relaxed)
            });
        }
        !self.poisoned.0.load(Ordering::Acquire)
    }

    /// End the job: the others leave it at their next [`Self::wait`]. The caller returns from the job after this.
    pub fn end(&self) {
        self.poisoned.0.store(true, Ordering::Release);
        self.waiting.wake();
    }

    fn reset(&self) {
        self.arrived.0.store(0, Ordering::Relaxed);
        self.poisoned.0.store(false, Ordering::Release);
    }
}

/// What every worker runs: `job(index, barrier)`.
type Job<'a> = dyn Fn(usize, &Barrier) + Sync + 'a;

/// Why a job did not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum Interrupted {
    /// A worker panicked; what it said.
    #[error("a worker panicked: {0}")]
    Panicked(String),
    /// A worker called [`Barrier::end`].
    #[error("a worker ended the job")]
    Ended,
}

struct Shared {
    /// Counts jobs; odd-even does not matter, only that it changed.
    generation: Line<AtomicU64>,
    /// Valid from the change of `generation` until `running` is zero.
    job: UnsafeCell<Option<*const Job<'static>>>,
    /// Workers, without the calling thread, that have not finished the job.
    running: Line<AtomicUsize>,
    /// By worker - 1: whether it is parked or about to.
    parked: Box<[Line<AtomicBool>]>,
    stop: AtomicBool,
    barrier: Barrier,
    panic: Mutex<Option<String>>,
    /// How long an idle worker stays awake, in microseconds.
    idle: AtomicU64,
}

// SAFETY: `job` is written only while no worker reads it (`running` is zero, before `generation` changes); the closure
// behind it is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

/// Threads that run jobs together.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<(Thread, Option<JoinHandle<()>>)>,
    /// One job at a time, whoever calls.
    turn: Mutex<()>,
}

impl Pool {
    /// A pool of `n` workers, the calling thread included; `cpus[i]`, if there, is where worker `i > 0` is pinned.
    ///
    /// # Errors
    /// The system refuses threads.
    pub fn new(n: usize, cpus: &[usize], oversubscribed: bool) -> std::io::Result<Pool> {
        let n = n.max(1);
        let polls = if oversubscribed { POLLS_OVERSUBSCRIBED } else { POLLS };
        let shared = Arc::new(Shared {
            generation: Line(AtomicU64::new(0)),
            job: UnsafeCell::new(None),
            running: Line(AtomicUsize::new(0)),
            parked: (1..n).map(|_| Line(AtomicBool::new(false))).collect(),
            stop: AtomicBool::new(false),
            barrier: Barrier::new(n, polls),
            panic: Mutex::new(None),
            idle: AtomicU64::new(IDLE_SPIN.as_micros() as u64),
        });
        let mut pool = Pool { shared, threads: Vec::with_capacity(n - 1), turn: Mutex::new(()) };
        for index in 1..n {
            let (shared, cpu) = (pool.shared.clone(), cpus.get(index).copied());
            let handle =
                std::thread::Builder::new().name(format!("cpu-worker-{index}")).spawn(move || {
                    if let Some(cpu) = cpu {
                        crate::cpu::pin(cpu);
                    }
                    work(&shared, index, oversubscribed);
                })?;
            pool.threads.push((handle.thread().clone(), Some(handle)));
        }
        Ok(pool)
    }

    /// From the next job on, idle workers stay awake so long.
    pub fn stay_awake(&self, time: Duration) {
        self.shared.idle.store(time.as_micros() as u64, Ordering::Relaxed);
    }

    /// Workers, the calling thread included.
    pub fn n_workers(&self) -> usize {
        self.threads.len() + 1
    }

    /// Run `job` on every worker and wait for all. Allocates nothing (unless one panics).
    ///
    /// # Errors
    /// A worker panicked or ended the job. The pool can be used again.
    pub fn run(&self, job: &Job<'_>) -> Result<(), Interrupted> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes; the pointer is not used after this call, which waits for every worker.
        let erased = unsafe { std::mem::transmute::<*const Job<'_>, *const Job<'static>>(job) };
        // SAFETY: no worker reads it now: the last job has ended and the generation has not changed.
        unsafe { *shared.job.get() = Some(erased) };
        shared.running.0.store(self.threads.len(), Ordering::Relaxed);
        // Sequentially consistent with `work`: either the worker sees the new generation, or we see that it parks.
        shared.generation.0.fetch_add(1, Ordering::SeqCst);
        for (parked, (thread, _)) in shared.parked.iter().zip(&self.threads) {
            if parked.0.load(Ordering::SeqCst) {
                thread.unpark();
            }
        }
        call(shared, job, 0);
        shared.barrier.waiting.until(|| shared.running.0.load(Ordering::Acquire) == 0);
        if !shared.barrier.poisoned.0.load(Ordering::Acquire) {
            return Ok(());
        }
        shared.barrier.reset();
        let said = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        Err(said.map_or(Interrupted::Ended, Interrupted::Panicked))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.generation.0.fetch_add(1, Ordering::SeqCst);
        for (thread, handle) in &mut self.threads {
            thread.unpark();
            if let Some(handle) = handle.take() {
                // A worker catches its panics, so joining gives nothing to report.
                let _ = handle.join();
            }
        }
    }
}

/// One worker's part of a job.
fn call(shared: &Shared, job: &Job<'_>, index: usize) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| job(index, &shared.barrier))) {
        let mut panic = shared.panic.lock().unwrap_or_else(PoisonError::into_inner);
        panic.get_or_insert_with(|| message(&*payload));
        shared.barrier.end();
    }
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|s| s.to_string());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}

/// A worker's life.
fn work(shared: &Shared, index: usize, oversubscribed: bool) {
    let parked = &shared.parked[index - 1].0;
    let mut seen = 0;
    loop {
        let changed = || shared.generation.0.load(Ordering::Acquire) != seen;
        if !oversubscribed {
            let (start, idle) = (Instant::now(), Duration::from_micros(shared.idle.load(Ordering::Relaxed)));
            while !changed() && start.elapsed() < idle {
                (0..32).for_each(|_| std::hint::spin_loop());
            }
        }
        while !changed() {
            parked.store(true, Ordering::SeqCst);
            if shared.generation.0.load(Ordering::SeqCst) == seen {
                std::thread::park();
            }
            parked.store(false, Ordering::SeqCst);
        }
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        seen = shared.generation.0.load(Ordering::Acquire);
        // SAFETY: the generation changed, so the job is there and stays until `running` is zero.
        if let Some(job) = unsafe { *shared.job.get() } {
            // SAFETY: as above.
            call(shared, unsafe { &*job }, index);
        }
        if shared.running.0.fetch_sub(1, Ordering::AcqRel) == 1 {
            shared.barrier.waiting.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(n: usize) -> Pool {
        Pool::new(n, &[], n > crate::cpu::available()).unwrap()
    }

    #[test]
    fn a_barrier_separates_phases_for_any_number_of_workers() {
        for n in [1, 2, 3, 5] {
            let pool = pool(n);
            let cells: Vec<AtomicUsize> = (0..n).map(|_| AtomicUsize::new(0)).collect();
            let wrong = AtomicUsize::new(0);
            for _ in 0..20 {
                cells.iter().for_each(|c| c.store(0, Ordering::Relaxed));
                pool.run(&|index, barrier| {
                    for phase in 1..=50 {
                        cells[index].store(phase, Ordering::Relaxed);
                        assert!(barrier.wait());
                        if cells.iter().any(|c| c.load(Ordering::Relaxed) != phase) {
                            wrong.fetch_add(1, Ordering::Relaxed);
                        }
                        assert!(barrier.wait());
                    }
                })
                .unwrap();
            }
            assert_eq!(wrong.load(Ordering::Relaxed), 0, "{n} workers");
        }
    }

    #[test]
    fn workers_wake_after_parking() {
        let pool = pool(3);
        let count = AtomicUsize::new(0);
        for round in 1..=5 {
            std::thread::sleep(Duration::from_millis(3)); // far longer than they stay awake
            pool.run(&|_, _| {
                count.fetch_add(1, Ordering::Relaxed);
            })
            .unwrap();
            assert_eq!(count.load(Ordering::Relaxed), 3 * round);
        }
    }

    /// One worker is so late that the others fall asleep: at the barrier, and at the job's end.
    #[test]
    fn late_workers_wake_those_that_sleep() {
        let late = || std::thread::sleep(Duration::from_millis(3));
        for n in [2, 5] {
            let pool = pool(n);
            for who in 0..n {
                let met = AtomicUsize::new(0);
                pool.run(&|index, barrier| {
                    (index == who).then(late);
                    met.fetch_add(usize::from(barrier.wait()), Ordering::Relaxed);
                    (index == who).then(late);
                })
                .unwrap();
                assert_eq!(met.load(Ordering::Relaxed), n);
                let ended = pool.run(&|index, barrier| {
                    if index == who {
                        late();
                        barrier.end();
                    } else {
                        assert!(!barrier.wait());
                    }
                });
                assert!(matches!(ended, Err(Interrupted::Ended)), "{ended:?}");
            }
        }
    }

    #[test]
    fn a_panic_is_an_error_and_the_pool_survives() {
        for n in [1, 2, 4] {
            let pool = pool(n);
            for who in 0..n {
                let result = pool.run(&|index, barrier| {
                    if index == who {
                        panic!("worker {who} fell");
                    }
                    while barrier.wait() {}
                });
                assert!(result.unwrap_err().to_string().contains(&format!("worker {who} fell")));
                let count = AtomicUsize::new(0);
                pool.run(&|_, barrier| {
                    assert!(barrier.wait());
                    count.fetch_add(1, Ordering::Relaxed);
                })
                .unwrap();
                assert_eq!(count.load(Ordering::Relaxed), n);
            }
        }
    }

    #[test]
    fn a_worker_can_end_the_job_for_all() {
        for n in [1, 2, 4] {
            let pool = pool(n);
            for who in 0..n {
                let phases = AtomicUsize::new(0);
                let result = pool.run(&|index, barrier| {
                    for phase in 0.. {
                        if index == who && phase == 3 {
                            barrier.end();
                            return;
                        }
                        phases.fetch_add(1, Ordering::Relaxed);
                        if !barrier.wait() {
                            return;
                        }
                    }
                });
                assert!(matches!(result, Err(Interrupted::Ended)), "{result:?}");
                // The others may have begun the fourth phase.
                assert!((3 * n..4 * n).contains(&phases.load(Ordering::Relaxed)));
                pool.run(&|_, barrier| assert!(barrier.wait())).unwrap();
            }
        }
    }

    #[test]
    fn callers_on_several_threads_take_turns() {
        let pool = pool(2);
        let total = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        pool.run(&|_, barrier| {
                            assert!(barrier.wait());
                            total.fetch_add(1, Ordering::Relaxed);
                        })
                        .unwrap();
                    }
                });
            }
        });
        assert_eq!(total.load(Ordering::Relaxed), 300);
    }
}
