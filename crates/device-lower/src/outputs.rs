//! Tickets, links and choices of a device that computes a step while it is submitted.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use device::{Choose, Chosen, Limits, MAX_BEST, OutputRef, Step, Ticket, Want};

use crate::sampling::{Chooser, logprob};

/// What the steps of one program chose, until later steps need it no more.
#[derive(Debug)]
pub struct HostOutputs {
    /// The next step's ticket.
    next: u64,
    /// The next step to be waited for.
    waited: u64,
    /// Steps that may be submitted before the first is waited for.
    max_in_flight: usize,
    /// `(max_in_flight + 1)` of the last steps, each at its ticket modulo their number.
    steps: Vec<Outputs>,
    /// One for each worker that chooses.
    choosers: Vec<Mutex<Chooser>>,
    /// `(max_outputs)` where workers leave what they chose.
    slots: Vec<Mutex<Slot>>,
    /// Tokens of the step with its links resolved; capacity `max_rows`.
    tokens: Vec<u32>,
}

/// What one step chose.
#[derive(Debug)]
struct Outputs {
    /// Capacity `max_outputs`.
    chosen: Vec<Chosen>,
    /// Best tokens of all outputs, one output after the other; capacity `max_outputs * MAX_BEST`.
    best: Vec<(u32, f32)>,
    /// `(n_outputs)` where each output's best tokens end.
    best_ends: Vec<usize>,
}

/// What one output chose.
#[derive(Debug)]
struct Slot {
    chosen: Chosen,
    /// Capacity [`MAX_BEST`].
    best: Vec<(u32, f32)>,
}

impl HostOutputs {
    /// For logits of at most `n_vocab` columns and `n_workers` that choose together.
    pub fn new(n_vocab: usize, limits: &Limits, max_in_flight: usize, n_workers: usize) -> HostOutputs {
        let n = limits.max_outputs;
        let outputs = || Outputs {
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

    /// What [`Self::new`] takes, in bytes.
    pub fn bytes(n_vocab: usize, limits: &Limits, max_in_flight: usize, n_workers: usize) -> u64 {
        let best = MAX_BEST * size_of::<(u32, f32)>();
        let of_step = size_of::<Chosen>() + size_of::<usize>() + best;
        let of_slot = size_of::<Mutex<Slot>>() + best;
        let of_output = (max_in_flight + 1) * of_step + of_slot;
        let n_choosers = n_choosers(limits, n_workers) as u64;
        n_choosers * Chooser::bytes(n_vocab) + (limits.max_outputs * of_output + limits.max_rows * 4) as u64
    }

    /// Whether a step was submitted and not waited for.
    pub fn is_in_flight(&self) -> bool {
        self.next > self.waited
    }

    /// The tokens of a step that is about to be computed, with those of its links, and whether it may be submitted at all.
    /// The tokens go back with [`Self::finish`]. Those of links are below `n_tokens` too, or the step is refused.
    ///
    /// # Errors
    /// What is wrong.
    pub fn begin(&mut self, step: &Step, n_tokens: usize) -> Result<Vec<u32>, String> {
        if (self.next - self.waited) as usize >= self.max_in_flight {
            return Err(format!("{} steps are in flight, expected a wait first", self.next - self.waited));
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

    /// The token that an output chose; 0 where it could choose nothing, since what follows is discarded.
    fn token_of(&self, from: OutputRef) -> Result<u32, String> {
        let (ticket, n) = (from.ticket.0, self.steps.len() as u64);
        if ticket >= self.next || ticket + n <= self.next {
            return Err(format!("a link to step {ticket}, which is not among the {} last ones", n - 1));
        }
        match self.steps[(ticket % n) as usize].chosen.get(from.output as usize) {
            Some(chosen) => Ok(chosen.token.unwrap_or(0)),
            None => Err(format!("a link to output {} of step {ticket}, which has fewer", from.output)),
        }
    }

    /// The step was not computed after all; gives back its tokens.
    pub fn abandon(&mut self, tokens: Vec<u32>) {
        self.tokens = tokens;
    }

    /// The step is computed: choose from its `logits`, `(n_outputs, n_vocab)`. `best` gives the best token of an output, if
    /// the device has found it already; it is asked only of outputs whose logits alone decide. `run` calls what it is given
    /// once on each worker, with the worker's number, and returns when all are done; it is asked only where at least two
    /// outputs have work.
    ///
    /// # Errors
    /// Those of `run`: nothing was chosen, and the step has no ticket.
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
            // What was left is known only where it was chosen here.
            let is_plain = want.choose == Choose::Best && want.is_plain() && !want.drawn;
            if is_plain { best(output) } else { None }
        };
        let next = AtomicUsize::new(0);
        let work = |worker: usize| {
            // Without a chooser of its own it leaves the outputs to the others.
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
                        // `begin` has looked at each of them. One that another plan's wider logits gave has no logit here.
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
        let Outputs { chosen, best, best_ends } = &mut self.steps[(ticket % n) as usize];
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

    /// Wait for a step, which is computed already.
    ///
    /// # Errors
    /// It is another's turn.
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

    /// Of the last step that was waited for.
    fn last(&self) -> Option<&Outputs> {
        let ticket = self.waited.checked_sub(1)?;
        self.steps.get((ticket % self.steps.len() as u64) as usize)
    }

    /// As [`device::Program::chosen`].
    pub fn chosen(&self) -> &[Chosen] {
        self.last().map_or(&[], |outputs| &outputs.chosen)
    }

    /// As [`device::Program::best`].
    pub fn best(&self, output: usize) -> &[(u32, f32)] {
        let Some(outputs) = self.last() else { return &[] };
        let Some(end) = outputs.best_ends.get(output) else { return &[] };
        let start = if output == 0 { 0 } else { outputs.best_ends[output - 1] };
        &outputs.best[start..*end]
    }
}

fn token_at(steps: &[Outputs], from: OutputRef) -> u32 {
    let outputs = &steps[(from.ticket.0 % steps.len() as u64) as usize];
    outputs.chosen.get(from.output as usize).and_then(|chosen| chosen.token).unwrap_or(0)
}

/// More than there are outputs would have nothing to do.
fn n_choosers(limits: &Limits, n_workers: usize) -> usize {
    n_workers.min(limits.max_outputs).max(1)
}

/// Some systems allocate a mutex when it is locked for the first time.
fn mutex<T>(value: T) -> Mutex<T> {
    let mutex = Mutex::new(value);
    drop(lock(&mutex));
    mutex
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
