//! The thread that computes masks while a device computes a step.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::{self, JoinHandle};

use device::MaskSource;

use super::{Constraint, ConstraintResult};

/// The masks of one sequence's outputs in a step.
pub(crate) struct MaskJob {
    pub(crate) slot: usize,
    /// Lent by the sequence.
    pub(crate) constraint: Box<dyn Constraint>,
    /// Guesses: each has an output too. Taken from the sequence, and given back.
    pub(crate) draft: Vec<u32>,
    /// Its first mask among those of the step.
    pub(crate) first: usize,
    /// Why it cannot go on.
    pub(crate) error: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    Asked,
    Done,
    Quit,
}

struct State {
    phase: Phase,
    jobs: Vec<MaskJob>,
    n_masks: usize,
}

/// What the engine's thread, the mask thread and the device's threads share.
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// `(most_masks, words_per_mask)`.
    words: RwLock<Vec<u32>>,
    words_per_mask: usize,
}

/// The thread. It ends when this is dropped.
pub(crate) struct MaskWorker {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl MaskWorker {
    /// For steps of at most `most_masks` masks and `most_jobs` sequences.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(crate) fn new(n_vocab: usize, most_masks: usize, most_jobs: usize) -> std::io::Result<MaskWorker> {
        let words_per_mask = n_vocab.div_ceil(32);
        let state = State { phase: Phase::Idle, jobs: Vec::with_capacity(most_jobs), n_masks: 0 };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
            words: RwLock::new(vec![0; most_masks * words_per_mask]),
            words_per_mask,
        });
        let of_thread = shared.clone();
        let run = move || of_thread.run(Vec::with_capacity(most_jobs));
        let thread = thread::Builder::new().name("masks".into()).spawn(run)?;
        Ok(MaskWorker { shared, thread: Some(thread) })
    }

    /// Compute these masks from now on; `jobs` is empty afterwards. [`Self::finish`] must follow.
    pub(crate) fn start(&self, jobs: &mut Vec<MaskJob>, n_masks: usize) {
        let mut state = self.shared.lock();
        std::mem::swap(&mut state.jobs, jobs);
        (state.phase, state.n_masks) = (Phase::Asked, n_masks);
        self.shared.changed.notify_all();
    }

    /// Wait until the masks are computed, and take the jobs back.
    pub(crate) fn finish(&self, jobs: &mut Vec<MaskJob>) {
        let mut state = self.shared.wait_until(|phase| phase != Phase::Asked);
        std::mem::swap(&mut state.jobs, jobs);
        (state.phase, state.n_masks) = (Phase::Idle, 0);
    }

    /// The masks of the step that was started, for [`device::Step::masks`].
    pub(crate) fn source(&self) -> &dyn MaskSource {
        self.shared.as_ref()
    }
}

impl Drop for MaskWorker {
    fn drop(&mut self) {
        self.shared.lock().phase = Phase::Quit;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // It catches the panics of constraints, and has none of its own.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_until(&self, is_so: impl Fn(Phase) -> bool) -> MutexGuard<'_, State> {
        let state = self.lock();
        let waited = self.changed.wait_while(state, |state| !is_so(state.phase));
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, mut jobs: Vec<MaskJob>) {
        loop {
            let mut state = self.wait_until(|phase| matches!(phase, Phase::Asked | Phase::Quit));
            if state.phase == Phase::Quit {
                return;
            }
            std::mem::swap(&mut state.jobs, &mut jobs);
            drop(state);
            let mut words = self.words.write().unwrap_or_else(PoisonError::into_inner);
            for job in &mut jobs {
                let start = job.first * self.words_per_mask;
                let end = start + (1 + job.draft.len()) * self.words_per_mask;
                let Some(words) = words.get_mut(start..end) else {
                    job.error = Some(format!("no room for mask {}", job.first));
                    continue;
                };
                let masked = catch_unwind(AssertUnwindSafe(|| job.compute(words, self.words_per_mask)));
                let error = match masked {
                    Ok(masked) => masked.err().map(|error| error.to_string()),
                    Err(panic) => Some(format!("the constraint panicked: {}", panic_message(panic.as_ref()))),
                };
                if let Some(error) = error {
                    // Nothing is chosen; the sequence ends with the error.
                    words.fill(0);
                    job.error = Some(error);
                }
            }
            drop(words);
            let mut state = self.lock();
            std::mem::swap(&mut state.jobs, &mut jobs);
            if state.phase == Phase::Asked {
                state.phase = Phase::Done;
            }
            self.changed.notify_all();
        }
    }
}

impl MaskJob {
    /// `words` `(1 + n_draft, words_per_mask)`.
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
        self.lock().n_masks * self.words_per_mask
    }

    fn with(&self, look: &mut dyn FnMut(&[u32])) {
        let state = self.wait_until(|phase| phase != Phase::Asked);
        let n_words = state.n_masks * self.words_per_mask;
        drop(state);
        let words = self.words.read().unwrap_or_else(PoisonError::into_inner);
        look(words.get(..n_words).unwrap_or_default());
    }
}

/// What a panic said.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}
