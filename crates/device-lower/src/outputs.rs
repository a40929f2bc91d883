//! Tickets, links and choices of a device that computes a step during its submission.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use device::{Choose, Chosen, Limits, MAX_BEST, OutputRef, Step, Ticket, Want};

use crate::sampling::{Chooser, logprob};

/// Choices of the steps of one program, kept until no later step needs them.
#[derive(Debug)]
pub struct HostOutputs {
    /// The next step's ticket.
    next: u64,
    /// The next step to wait for.
    waited: u64,
    /// Maximum number of steps that may be submitted before the first is waited for.
    max_in_flight: usize,
    /// Choices of the last `max_in_flight + 1` steps, each at its ticket modulo their number.
    steps: Vec<StepChoices>,
    /// A chooser for each worker.
    choosers: Vec<Mutex<Chooser>>,
    /// `(max_outputs)`: slots for the workers' choices.
    slots: Vec<Mutex<Slot>>,
    /// Tokens of the step with its links resolved; capacity `max_rows`.
    tokens: Vec<u32>,
}

/// Choices of one step.
#[derive(Debug)]
struct StepChoices {
    /// Choices of its outputs; capacity `max_outputs`.
    chosen: Vec<Chosen>,
    /// Best tokens of all outputs, one output after the other; capacity `max_outputs * MAX_BEST`.
    best: Vec<(u32, f32)>,
    /// `(n_outputs)`: the end of each output's best tokens in `best`.
    best_ends: Vec<usize>,
}

/// Choice of one output.
#[derive(Debug)]
struct Slot {
    chosen: Chosen,
    /// Best tokens; capacity [`MAX_BEST`].
    best: Vec<(u32, f32)>,
}

impl HostOutputs {
    /// Bookkeeping for logits of at most `n_vocab` columns and `n_workers` workers.
    pub fn new(n_vocab: usize, limits: &Limits, max_in_flight: usize, n_workers: usize) -> HostOutputs {
        let n = limits.max_outputs;
        let outputs = || StepChoices {
            chosen: Vec::with_capacity(n),
            best: Vec::with_capacity(n * MAX_BEST),
            best_ends: Vec::with_capacity(n),
        };
        let nothing = Chosen { token: None, logprob: f32::NAN, surprise: f32::NAN };
        let slot = || Slot { chosen: nothing, best: Vec::with_capacity(MAX_BEST) };
        HostOutputs {
            next: 0,
            waited: 0,
            max_in_flight,
            steps: (0..=max_in_flight).map(|_| outputs()).collect(),
            choosers: (0..n_choosers(limits, n_workers)).map(|_| mutex(Chooser::new(n_vocab))).collect(),
            slots: (0..n).map(|_| mutex(slot())).collect(),
            tokens: Vec::with_capacity(limits.max_rows),
        }
    }

    /// Bytes that [`Self::new`] allocates.
    pub fn bytes(n_vocab: usize, limits: &Limits, max_in_flight: usize, n_workers: usize) -> u64 {
        let best = MAX_BEST * size_of::<(u32, f32)>();
        let of_step = size_of::<Chosen>() + size_of::<usize>() + best;
        let of_slot = size_of::<Mutex<Slot>>() + best;
        let of_output = (max_in_flight + 1) * of_step + of_slot;
        let n_choosers = n_choosers(limits, n_workers) as u64;
        n_choosers * Chooser::bytes(n_vocab) + (limits.max_outputs * of_output + limits.max_rows * 4) as u64
    }

    /// Returns true if a step was submitted and not waited for.
    pub fn is_in_flight(&self) -> bool {
        self.next > self.waited
    }

    /// Checks that a step may be submitted, and returns its tokens, with those of its links.
    /// [`Self::finish`] takes the tokens back. A step with a linked token of `n_tokens` or more is
    /// refused.
    ///
    /// # Errors
    /// The link or limit that the step breaks.
    pub fn begin(&mut self, step: &Step, n_tokens: usize) -> Result<Vec<u32>, String> {
        if (self.next - self.waited) as usize >= self.max_in_flight {
            return Err(format!(
                "{} steps are in flight; wait for the oldest first",
                self.next - self.waited
            ));
        }
        let mut tokens = std::mem::take(&mut self.tokens);
        tokens.clear();
        tokens.extend_from_slice(step.tokens);
        for link in step.links {
            match self.token_of(link.from) {
                Ok(token) if (token as usize) < n_tokens => tokens[link.row as usize] = token,
                Ok(token) => {
                    self.tokens = tokens;
                    return Err(format!("a link to token {token}, expected one below {n_tokens}"));
                }
                Err(reason) => {
                    self.tokens = tokens;
                    return Err(reason);
                }
            }
        }
        match step.pending.iter().find_map(|from| self.token_of(*from).err()) {
            None => Ok(tokens),
            Some(reason) => {
                self.tokens = tokens;
                Err(reason)
            }
        }
    }

    /// The token that an output chose; 0 if it could choose none, since the caller discards what
    /// follows.
    fn token_of(&self, from: OutputRef) -> Result<u32, String> {
        let (ticket, n) = (from.ticket.0, self.steps.len() as u64);
        if ticket >= self.next || ticket + n <= self.next {
            return Err(format!("a link to step {ticket}, which is not among the {} last ones", n - 1));
        }
        match self.steps[(ticket % n) as usize].chosen.get(from.output as usize) {
            Some(chosen) => Ok(chosen.token.unwrap_or(0)),
            None => {
                Err(format!("a link to output {} of step {ticket}, which has fewer outputs", from.output))
            }
        }
    }

    /// Takes back the tokens of a step that was not computed.
    pub fn abandon(&mut self, tokens: Vec<u32>) {
        self.tokens = tokens;
    }

    /// Chooses from the `logits` `(n_outputs, n_vocab)` of a computed step.
    ///
    /// `best` returns the best token of an output, if the device has found it; it is called only
    /// for outputs whose logits alone decide. `run` calls its argument once on each worker, with
    /// the worker's number, and returns when all are done. It is called only if at least two
    /// outputs have work.
    ///
    /// # Errors
    /// As `run`: nothing was chosen, and the step has no ticket.
    pub fn finish<E>(
        &mut self,
        step: &Step,
        tokens: Vec<u32>,
        logits: &[f32],
        best: impl Fn(usize) -> Option<u32> + Sync,
        run: impl FnOnce(&(dyn Fn(usize) + Sync)) -> Result<(), E>,
    ) -> Result<Ticket, E> {
        self.tokens = tokens;
        let n_vocab = logits.len().checked_div(step.outputs.len()).unwrap_or(0);
        let known = |output: usize, want: &Want| {
            // Probabilities of the remaining tokens are known only if the token was chosen here.
            let is_plain = want.choose == Choose::Best && want.is_plain() && !want.drawn;
            if is_plain { best(output) } else { None }
        };
        let next = AtomicUsize::new(0);
        let work = |worker: usize| {
            // A worker without a chooser leaves the outputs to the others.
            let Some(chooser) = self.choosers.get(worker) else { return };
            let mut chooser = lock(chooser);
            loop {
                let output = next.fetch_add(1, Ordering::Relaxed);
                let (Some(want), Some(slot)) = (step.wants.get(output), self.slots.get(output)) else {
                    return;
                };
                let logits = &logits[output * n_vocab..(output + 1) * n_vocab];
                let mut slot = lock(slot);
                slot.chosen = match known(output, want) {
                    Some(token) => {
                        let logprob = if want.logprob { logprob(logits, token) } else { f32::NAN };
                        Chosen { token: Some(token), logprob, surprise: f32::NAN }
                    }
                    None => {
                        let pending = want.pending.of(step.pending);
                        // `begin` has checked each of them. A token of another plan with more
                        // logits has no logit here.
                        let pending = pending.iter().map(|from| token_at(&self.steps, *from));
                        let pending = pending.filter(|token| (*token as usize) < n_vocab);
                        chooser.choose(logits, want, step, pending)
                    }
                };
                slot.best.clear();
                slot.best.extend(chooser.best(logits, want));
            }
        };
        let has_work = |(output, want): &(usize, &Want)| {
            let chooses = want.choose != Choose::Nothing && known(*output, want).is_none();
            chooses || want.logprob || want.n_best > 0
        };
        let n_with_work = step.wants.iter().enumerate().filter(has_work).take(2).count();
        if n_with_work > 1 && self.choosers.len() > 1 {
            run(&work)?;
        } else {
            work(0);
        }
        let (ticket, n) = (self.next, self.steps.len() as u64);
        let StepChoices { chosen, best, best_ends } = &mut self.steps[(ticket % n) as usize];
        chosen.clear();
        best.clear();
        best_ends.clear();
        for slot in self.slots.iter().take(step.wants.len()) {
            let slot = lock(slot);
            chosen.push(slot.chosen);
            best.extend_from_slice(&slot.best);
            best_ends.push(best.len());
        }
        self.next += 1;
        Ok(Ticket(ticket))
    }

    /// Waits for a step, which is already computed.
    ///
    /// # Errors
    /// The step is not the oldest.
    pub fn wait(&mut self, ticket: Ticket) -> Result<(), String> {
        if self.waited == self.next {
            return Err(format!("step {} is waited for, and none is in flight", ticket.0));
        }
        if ticket.0 != self.waited {
            return Err(format!("step {} is waited for before step {}", ticket.0, self.waited));
        }
        self.waited += 1;
        Ok(())
    }

    /// Choices of the last step that was waited for.
    fn last(&self) -> Option<&StepChoices> {
        let ticket = self.waited.checked_sub(1)?;
        self.steps.get((ticket % self.steps.len() as u64) as usize)
    }

    /// Implements [`device::Program::chosen`].
    pub fn chosen(&self) -> &[Chosen] {
        self.last().map_or(&[], |outputs| &outputs.chosen)
    }

    /// Implements [`device::Program::best`].
    pub fn best(&self, output: usize) -> &[(u32, f32)] {
        let Some(outputs) = self.last() else { return &[] };
        let Some(end) = outputs.best_ends.get(output) else { return &[] };
        let start = if output == 0 { 0 } else { outputs.best_ends[output - 1] };
        &outputs.best[start..*end]
    }
}

fn token_at(steps: &[StepChoices], from: OutputRef) -> u32 {
    let outputs = &steps[(from.ticket.0 % steps.len() as u64) as usize];
    outputs.chosen.get(from.output as usize).and_then(|chosen| chosen.token).unwrap_or(0)
}

/// Number of choosers: more than there are outputs would be idle.
fn n_choosers(limits: &Limits, n_workers: usize) -> usize {
    n_workers.min(limits.max_outputs).max(1)
}

/// A mutex that is locked once here, because some systems allocate on the first lock.
fn mutex<T>(value: T) -> Mutex<T> {
    let mutex = Mutex::new(value);
    drop(lock(&mutex));
    mutex
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
