//! Computation of masks. A thread computes them while a device computes a step. If a mask is
//! missing, the thread that chooses the token computes it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::{self, JoinHandle};

use device::{MaskSource, Slice};

use super::{Constraint, ConstraintResult};
use crate::FinishReason;

/// The masks of one sequence's outputs in a step.
pub(crate) struct MaskJob {
    pub(crate) slot: usize,
    /// The constraint, lent by the sequence.
    pub(crate) constraint: Box<dyn Constraint>,
    /// Draft tokens, which have an output each. They are lent by the sequence too.
    pub(crate) draft: Vec<u32>,
    /// Index of its first mask among those of the step; its others follow.
    pub(crate) first: usize,
    /// Reason for which its sequence ends, if the constraint fails.
    pub(crate) error: Option<FinishReason>,
}

/// A job, and room for its masks. The holder of the lock computes them.
struct Part {
    /// The job; `None` if the step has fewer jobs.
    job: Option<MaskJob>,
    is_done: bool,
    /// Masks, `(1 + max_draft, words_per_mask)`.
    words: Vec<u32>,
}

/// Messages to the thread.
#[derive(Default)]
struct Orders {
    /// Number of steps started.
    n_steps: u64,
    quit: bool,
    /// True once the thread has started.
    is_running: bool,
}

/// State that the engine's thread, the mask thread and the device's threads share.
struct Shared {
    /// Jobs and their masks, `(max_jobs)`.
    parts: Box<[Mutex<Part>]>,
    /// For each mask of the step: its part, and the row in that part.
    owners: RwLock<Vec<(usize, usize)>>,
    asked: Mutex<Orders>,
    changed: Condvar,
    words_per_mask: usize,
}

/// Computes the masks of one step at a time. Its thread ends when it is dropped.
pub(crate) struct MaskWorker {
    shared: Arc<Shared>,
    /// The mask thread; without it, the threads that choose tokens compute all masks.
    thread: Option<JoinHandle<()>>,
}

impl MaskWorker {
    /// A worker for steps of at most `max_jobs` sequences with `max_draft` draft tokens each.
    /// `has_core`: a processor is free while the device computes, so a thread of its own computes
    /// masks. Otherwise that thread would interrupt one of the device's threads, for which all
    /// others would wait.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub(crate) fn new(
        n_vocab: usize,
        max_jobs: usize,
        max_draft: usize,
        has_core: bool,
    ) -> std::io::Result<MaskWorker> {
        let words_per_mask = n_vocab.div_ceil(32);
        let part = || Part { job: None, is_done: false, words: vec![0; (1 + max_draft) * words_per_mask] };
        let shared = Arc::new(Shared {
            parts: (0..max_jobs).map(|_| Mutex::new(part())).collect(),
            owners: RwLock::new(Vec::with_capacity(max_jobs * (1 + max_draft))),
            asked: Mutex::default(),
            changed: Condvar::new(),
            words_per_mask,
        });
        // Some systems allocate a mutex when it is locked for the first time.
        shared.parts.iter().for_each(|part| drop(lock(part)));
        let thread = match has_core {
            false => None,
            true => {
                let of_thread = shared.clone();
                let thread = thread::Builder::new().name("masks".into()).spawn(move || of_thread.run())?;
                // Starting allocates, and on a busy machine it can happen many steps later.
                let is_starting = |asked: &mut Orders| !asked.is_running;
                drop(shared.changed.wait_while(lock(&shared.asked), is_starting));
                Some(thread)
            }
        };
        Ok(MaskWorker { shared, thread })
    }

    /// Start the masks of a step. `jobs` holds at most `max_jobs`, and is empty afterwards.
    /// [`Self::finish`] must follow.
    pub(crate) fn start(&self, jobs: &mut Vec<MaskJob>) {
        let mut owners = self.shared.owners.write().unwrap_or_else(PoisonError::into_inner);
        owners.clear();
        for ((index, part), job) in self.shared.parts.iter().enumerate().zip(jobs.drain(..)) {
            let n_masks = owners.len().max(job.first + 1 + job.draft.len());
            owners.resize(n_masks, (usize::MAX, 0));
            for row in 0..=job.draft.len() {
                owners[job.first + row] = (index, row);
            }
            let mut part = lock(part);
            (part.job, part.is_done) = (Some(job), false);
        }
        drop(owners);
        if self.thread.is_some() {
            lock(&self.shared.asked).n_steps += 1;
            self.shared.changed.notify_all();
        }
    }

    /// End the masks of a step and return its jobs, after a job that is being computed.
    pub(crate) fn finish(&self, jobs: &mut Vec<MaskJob>) {
        for part in &self.shared.parts {
            let Some(job) = lock(part).job.take() else { break };
            jobs.push(job);
        }
        self.shared.owners.write().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Masks of the started step, for [`device::Step::masks`].
    pub(crate) fn source(&self) -> &dyn MaskSource {
        self.shared.as_ref()
    }
}

impl Drop for MaskWorker {
    fn drop(&mut self) {
        lock(&self.shared.asked).quit = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // The thread catches the panics of constraints, and has none of its own.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self) {
        lock(&self.asked).is_running = true;
        self.changed.notify_all();
        let mut n_seen = 0;
        loop {
            let asked = lock(&self.asked);
            let is_old = |asked: &mut Orders| asked.n_steps == n_seen && !asked.quit;
            let waited = self.changed.wait_while(asked, is_old);
            let asked = waited.unwrap_or_else(PoisonError::into_inner);
            if asked.quit {
                return;
            }
            n_seen = asked.n_steps;
            drop(asked);
            for part in &self.parts {
                let mut part = lock(part);
                if part.job.is_none() {
                    break;
                }
                part.compute(self.words_per_mask);
            }
        }
    }
}

impl Part {
    /// Compute the masks, unless that is done.
    fn compute(&mut self, words_per_mask: usize) {
        let Part { job: Some(job), is_done: false, words } = self else { return };
        let n_words = (1 + job.draft.len()) * words_per_mask;
        let error = match words.get_mut(..n_words) {
            None => {
                let reason = format!("no room for the masks of {} draft tokens", job.draft.len());
                Some(FinishReason::Failed(reason))
            }
            Some(words) => match catch_unwind(AssertUnwindSafe(|| job.compute(words, words_per_mask))) {
                Ok(masked) => masked.err().map(|error| FinishReason::ConstraintFailed(error.to_string())),
                Err(panic) => {
                    let reason = format!("the constraint panicked: {}", panic_message(panic.as_ref()));
                    Some(FinishReason::Failed(reason))
                }
            },
        };
        if let Some(error) = error {
            // With empty masks no token is chosen; the sequence ends with the error.
            words.fill(0);
            job.error = Some(error);
        }
        self.is_done = true;
    }
}

impl MaskJob {
    /// Compute the masks of the job into `words` `(1 + n_draft, words_per_mask)`.
    fn compute(&mut self, words: &mut [u32], words_per_mask: usize) -> ConstraintResult<()> {
        let n_draft = self.draft.len();
        for (row, words) in words.chunks_exact_mut(words_per_mask).enumerate() {
            words.fill(0);
            if !self.constraint.mask(words)? {
                words.fill(u32::MAX);
            }
            if let Some(guess) = self.draft.get(row) {
                self.constraint.accept(*guess)?;
            }
        }
        if n_draft > 0 {
            self.constraint.roll_back(n_draft)?;
        }
        Ok(())
    }
}

impl MaskSource for Shared {
    fn n_words(&self) -> usize {
        self.owners.read().unwrap_or_else(PoisonError::into_inner).len() * self.words_per_mask
    }

    fn with(&self, mask: Slice, look: &mut dyn FnMut(&[u32])) {
        let index = (mask.start as usize).checked_div(self.words_per_mask).unwrap_or(0);
        let owners = self.owners.read().unwrap_or_else(PoisonError::into_inner);
        let owner = owners.get(index).copied();
        drop(owners);
        let part = owner.and_then(|(part, row)| Some((self.parts.get(part)?, row)));
        // A mask without an owner allows nothing.
        let Some((part, row)) = part else { return look(&[]) };
        let mut part = lock(part);
        part.compute(self.words_per_mask);
        let start = row * self.words_per_mask;
        look(part.words.get(start..start + self.words_per_mask).unwrap_or_default());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Message of a panic.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Allows only the token whose id is the number of tokens so far. Panics at the third.
    #[derive(Clone)]
    struct InTurn(u32);

    impl Constraint for InTurn {
        fn mask(&mut self, words: &mut [u32]) -> ConstraintResult<bool> {
            assert!(self.0 < 3, "as asked");
            words[0] = 1 << self.0;
            Ok(true)
        }

        fn accept(&mut self, token: u32) -> ConstraintResult<()> {
            assert_eq!(token, self.0);
            self.0 += 1;
            Ok(())
        }

        fn roll_back(&mut self, n_tokens: usize) -> ConstraintResult<()> {
            self.0 -= n_tokens as u32;
            Ok(())
        }

        fn n_valid(&mut self, tokens: &[u32]) -> usize {
            tokens.len()
        }

        fn is_over(&self) -> bool {
            false
        }

        fn fork(&self) -> Box<dyn Constraint> {
            Box::new(self.clone())
        }
    }

    /// Masks of a step with these sequences (number of tokens so far, draft tokens), read from the
    /// last to the first.
    fn masks_of(worker: &MaskWorker, sequences: &[(u32, &[u32])]) -> (Vec<Vec<u32>>, Vec<MaskJob>) {
        let mut first = 0;
        let mut jobs = Vec::new();
        for (slot, (n, draft)) in sequences.iter().enumerate() {
            let constraint = Box::new(InTurn(*n));
            jobs.push(MaskJob { slot, constraint, draft: draft.to_vec(), first, error: None });
            first += 1 + draft.len();
        }
        worker.start(&mut jobs);
        assert!(jobs.is_empty());
        let n_words = worker.source().n_words();
        assert_eq!(n_words, 2 * first);
        let mut masks = vec![Vec::new(); first];
        for (index, mask) in masks.iter_mut().enumerate().rev() {
            let slice = Slice { start: 2 * index as u32, len: 2 };
            worker.source().with(slice, &mut |words| mask.extend_from_slice(words));
        }
        worker.finish(&mut jobs);
        assert_eq!(worker.source().n_words(), 0);
        (masks, jobs)
    }

    #[test]
    fn masks_are_the_same_with_a_thread_for_them_and_without() {
        for has_core in [false, true] {
            let worker = MaskWorker::new(40, 4, 2, has_core).unwrap();
            for _ in 0..200 {
                let (masks, jobs) = masks_of(&worker, &[(1, &[1]), (0, &[]), (0, &[0, 1])]);
                let bits = [2, 4, 1, 1, 2, 4].map(|bits| vec![bits, 0]);
                assert_eq!(masks, bits);
                assert!(jobs.iter().all(|job| job.error.is_none()));
                assert_eq!(jobs.iter().map(|job| job.slot).collect::<Vec<_>>(), [0, 1, 2]);
            }
        }
    }

    #[test]
    fn a_panic_of_one_constraint_leaves_the_masks_of_others() {
        for has_core in [false, true] {
            let worker = MaskWorker::new(40, 4, 2, has_core).unwrap();
            let (masks, jobs) = masks_of(&worker, &[(2, &[2]), (2, &[])]);
            assert_eq!(masks, [0, 0, 4].map(|bits| vec![bits, 0]));
            assert!(
                jobs[0].error.as_ref().is_some_and(|error| error.to_string().ends_with("as asked")),
                "{:?}",
                jobs[0].error
            );
            assert!(jobs[1].error.is_none());
            // More draft tokens than there is room for.
            let (masks, jobs) = masks_of(&worker, &[(0, &[0, 1, 2, 3])]);
            assert!(masks.iter().flatten().all(|word| *word == 0));
            assert!(jobs[0].error.is_some());
        }
    }

    #[test]
    fn masks_that_nobody_asked_for_are_given_back() {
        let worker = MaskWorker::new(40, 4, 2, false).unwrap();
        let constraint = Box::new(InTurn(0));
        let mut jobs = vec![MaskJob { slot: 7, constraint, draft: Vec::new(), first: 0, error: None }];
        worker.start(&mut jobs);
        worker.finish(&mut jobs);
        assert_eq!((jobs.len(), jobs[0].slot), (1, 7));
    }
}
