//! A pool of workers that start within a microsecond of one another and use no CPU time while idle.
//!
//! The calling thread is worker 0. A job is one closure that every worker runs, with a [`Barrier`]
//! between phases. Between jobs a worker spins on a generation counter for about 50 microseconds,
//! the length of a sampling step, and then parks. The next step of a running sequence thus finds it
//! awake. ([`Pool::stay_awake`] sets another time.) Starting a job allocates nothing.
//!
//! A waiting worker yields its processor: at once if workers outnumber processors, otherwise after
//! about 3 microseconds. Another process, or the awaited worker itself, may need the processor.
//! After about 200 microseconds the worker sleeps. To the scheduler, a worker that only yields
//! keeps its processor busy. An awaited worker that shares a processor with another process then
//! waits for that process's whole slice of 3 milliseconds. With a sleeping worker, the scheduler
//! moves the awaited one at once.
//!
//! A panic in one worker poisons the barrier, so that the others leave the job too, and becomes the
//! job's error. A worker can also end the job without a panic ([`Barrier::end`]).

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// Time that an idle worker spins before it parks, unless [`Pool::stay_awake`] sets another.
const IDLE_SPIN: Duration = Duration::from_micros(50);
/// Polls before a waiting worker yields its processor (about 3 microseconds).
const POLLS: u32 = 200;
/// Like [`POLLS`], if workers outnumber processors.
const POLLS_OVERSUBSCRIBED: u32 = 8;
/// Yields before a waiting worker sleeps (about 200 microseconds on a free processor). With a
/// quarter of them, workers slept several times a token on a quiet machine. This cost a small model
/// 3 % (mean of ten alternating runs against a pool that never sleeps). With this number the cost
/// is 1 %, within noise. Beside a busy process both are equally fast.
const YIELDS: u32 = 400;
/// Longest sleep, and so the cost of a missed wake-up.
const NAP: Duration = Duration::from_micros(500);

/// A value in its own cache line, so that polling one counter does not slow the others.
#[repr(align(128))]
struct Line<T>(T);

/// A wait for a condition that another worker fulfils.
struct Waiting {
    polls: u32,
    /// Number of workers that sleep or are about to.
    n_asleep: Line<AtomicUsize>,
    bed: Mutex<()>,
    changed: Condvar,
}

impl Waiting {
    fn new(polls: u32) -> Waiting {
        Waiting { polls, n_asleep: Line(AtomicUsize::new(0)), bed: Mutex::new(()), changed: Condvar::new() }
    }

    /// Waits until `done` is true. The worker that makes it true calls [`Self::wake`].
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

    /// Wakes sleeping workers after a change that they may wait for. It can miss a worker that
    /// falls asleep at this moment, which then checks again after a [`NAP`]. To miss none, the
    /// change would have to be visible before this load. Waiting for that cost every barrier 0.4
    /// microseconds, 4 % of a small model's rate.
    #[inline]
    fn wake(&self) {
        if self.n_asleep.0.load(Ordering::Relaxed) > 0 {
            drop(self.bed.lock().unwrap_or_else(PoisonError::into_inner));
            self.changed.notify_all();
        }
    }
}

/// A barrier for the workers of a job.
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

    /// Waits until all workers have arrived. Writes before the barrier are visible to all workers
    /// after it.
    ///
    /// Returns false if a worker panicked or ended the job; the caller must then leave the job.
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

    /// Ends the job: the other workers leave at their next [`Self::wait`]. The caller returns from
    /// the job after this call.
    pub fn end(&self) {
        self.poisoned.0.store(true, Ordering::Release);
        self.waiting.wake();
    }

    fn reset(&self) {
        self.arrived.0.store(0, Ordering::Relaxed);
        self.poisoned.0.store(false, Ordering::Release);
    }
}

/// A job; every worker runs `job(index, barrier)`.
type Job<'a> = dyn Fn(usize, &Barrier) + Sync + 'a;

/// Reasons why a job did not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum Interrupted {
    /// A worker panicked with this message.
    #[error("a worker panicked: {0}")]
    Panicked(String),
    /// A worker called [`Barrier::end`].
    #[error("a worker ended the job")]
    Ended,
}

struct PoolState {
    /// Counter of jobs; a change starts the next one.
    generation: Line<AtomicU64>,
    /// The job; valid from the change of `generation` until `running` is zero.
    job: UnsafeCell<Option<*const Job<'static>>>,
    /// Workers other than the calling thread that have not finished the job.
    running: Line<AtomicUsize>,
    /// True for each worker (index - 1) that is parked or about to park.
    parked: Box<[Line<AtomicBool>]>,
    stop: AtomicBool,
    barrier: Barrier,
    panic: Mutex<Option<String>>,
    /// Time that an idle worker stays awake, in microseconds.
    idle: AtomicU64,
}

// SAFETY: `job` is written only while no worker reads it: `running` is zero, and `generation`
// changes afterwards. The closure that it points to is `Sync`.
unsafe impl Sync for PoolState {}
// SAFETY: the only field that is not `Send` is `job`, a pointer to a `Sync` closure.
unsafe impl Send for PoolState {}

/// Threads that run jobs together.
pub struct Pool {
    shared: Arc<PoolState>,
    threads: Vec<(Thread, Option<JoinHandle<()>>)>,
    /// Lock that serialises the jobs of several callers.
    turn: Mutex<()>,
}

impl Pool {
    /// Starts a pool of `n` workers, including the calling thread. Worker `i > 0` is pinned to
    /// `cpus[i]`, if present.
    ///
    /// # Errors
    /// The system cannot start the threads.
    pub fn new(n: usize, cpus: &[usize], oversubscribed: bool) -> std::io::Result<Pool> {
        let n = n.max(1);
        let polls = if oversubscribed { POLLS_OVERSUBSCRIBED } else { POLLS };
        let shared = Arc::new(PoolState {
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

    /// Sets the time that idle workers stay awake, from the next job on.
    pub fn stay_awake(&self, time: Duration) {
        self.shared.idle.store(time.as_micros() as u64, Ordering::Relaxed);
    }

    /// Number of workers, including the calling thread.
    pub fn n_workers(&self) -> usize {
        self.threads.len() + 1
    }

    /// Runs `job` on every worker and waits for all. Allocates nothing unless a worker panics.
    ///
    /// # Errors
    /// A worker panicked or ended the job. The pool can be used again.
    pub fn run(&self, job: &Job<'_>) -> Result<(), Interrupted> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes; no worker uses the pointer after this call, which
        // waits for all of them.
        let erased = unsafe { std::mem::transmute::<*const Job<'_>, *const Job<'static>>(job) };
        // SAFETY: no worker reads `job` now: the last job has ended, and `generation` has not
        // changed yet.
        unsafe { *shared.job.get() = Some(erased) };
        shared.running.0.store(self.threads.len(), Ordering::Relaxed);
        // Sequentially consistent with `work`: either the worker sees the new generation, or this
        // thread sees that it parks.
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
                // A worker catches its panics, so `join` has no error to report.
                let _ = handle.join();
            }
        }
    }
}

/// Runs one worker's part of a job.
fn call(shared: &PoolState, job: &Job<'_>, index: usize) {
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

/// Main loop of a worker.
fn work(shared: &PoolState, index: usize, oversubscribed: bool) {
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
        // SAFETY: `generation` changed, so `job` is set and is not written until `running` is zero.
        if let Some(job) = unsafe { *shared.job.get() } {
            // SAFETY: the closure outlives the job, since `run` waits until `running` is zero.
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

    /// One worker is late enough that the others fall asleep, first at the barrier, then at the
    /// job's end.
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
                // The other workers may have started the fourth phase.
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
