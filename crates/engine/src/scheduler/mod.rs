//! The scheduler: it decides which rows of which sequences a step computes, and handles the chosen
//! tokens.
//!
//! It has four verbs. [`Scheduler::add`] queues a sequence. [`Scheduler::schedule`] fills the next
//! step, and admits, parks and resumes sequences for it. The engine runs the step.
//! [`Scheduler::postprocess`] receives the chosen tokens. Decisions depend on the arguments only:
//! times are arguments, and the program only provides pages and choices.
//!
//! There is one path. A sequence has tokens, of which the first `n_computed` are in the KV cache. A
//! step computes some of the others; when none is left, the last row's logits choose one more. So a
//! prompt, a chunk of it, a decode step, the tail after a slide, a parked sequence and any batch of
//! them have one representation.

mod admission;
mod background;
mod chunk;
mod figures;
mod fill;
mod flight;
mod margin;
mod masks;
mod pacing;
mod postprocess;
mod queue;
mod share;
mod step;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Instant;

use device::{Limits, Numerics, OutputRef, Program, Ticket};

pub(crate) use figures::Totals;
pub(crate) use flight::Flight;
pub(crate) use step::{History, OutputRows, StepBuffers, StepPlan};

use crate::constraint::{MaskJob, MaskWorker};
use crate::kv::KvCache;
use crate::output::TextStream;
use crate::sequence::Sequence;
use crate::speculate::Speculator;
use crate::vision::Vision;
use crate::{Error, Event, FinishReason, LoadOptions, Proposer, Result, SequenceId};
use pacing::Pacing;
use queue::Queue;

/// Prompt rows in each step, whatever they cost the answers beside them, so that prompts always go
/// on. Single rows would make a prompt of 3,000 words wait 3.6 times as long, to save a third of
/// the slowest steps. A named latency allows single rows ([`Scheduler::least_prompt_rows`]).
const LEAST_PROMPT_ROWS: usize = 8;

/// A prompt of `n` tokens lets shorter ones go first until this multiple of `n` prompt rows has
/// been computed. So short prompts need not wait for long ones, and none starves.
const PATIENCE: u64 = 2;

/// Waiting and running sequences, and their KV cache.
pub(crate) struct Scheduler {
    limits: Limits,
    n_vocab: usize,
    pub(crate) kv: KvCache,
    pub(crate) buffers: StepBuffers,
    /// `(n_slots)` running sequences; a slot has a row of page tables.
    slots: Vec<Option<Sequence>>,
    queue: Queue,
    /// Steps in flight, the oldest first.
    in_flight: VecDeque<Flight>,
    /// Time at which the last step was done.
    last_done: Option<Instant>,
    /// Flights for later steps, at least one beside those in flight. The last one is the step that
    /// is being filled.
    spare: Vec<Flight>,
    /// Slots in the order in which a step considers them; a buffer.
    order: Vec<usize>,
    /// Speculator; `None`: the engine does not speculate.
    speculator: Option<Speculator>,
    /// Mask worker; created for the first sequence with a constraint.
    masks: Option<MaskWorker>,
    /// Masks of the submitted step; a buffer.
    mask_jobs: Vec<MaskJob>,
    pacing: Pacing,
    /// True if a sequence was parked for lack of memory, none has ended since, and there is no more
    /// room: nothing is admitted.
    is_short: bool,
    /// True if the oldest sequence runs alone and waits for memory, because no page is free.
    is_starved: bool,
    /// Sequence for which pages are committed.
    oldest: Option<SequenceId>,
    /// Exponential mean of the rows computed in a second.
    rows_per_second: f64,
    /// Number of times that a sequence was parked.
    n_parked: u64,
    /// Sequences with rows in the steps that failed last.
    failed: Vec<SequenceId>,
    /// Encoder of images, if the model sees.
    pub(crate) vision: Option<Vision>,
    /// States of the rows of a step, for a proposer that reads them; a buffer.
    row_states: Vec<f32>,
    pub(crate) totals: Totals,
}

impl Scheduler {
    /// A scheduler without sequences. `depth` steps may be in flight.
    pub(crate) fn new(
        limits: &Limits,
        n_vocab: usize,
        depth: usize,
        kv: KvCache,
        options: &LoadOptions,
        vision: Option<Vision>,
    ) -> Scheduler {
        let (n, goes_back) = (limits.max_spans, kv.has_states());
        let speculator = Speculator::new(options.speculate, options.max_draft, n, goes_back);
        Scheduler {
            n_vocab,
            kv,
            buffers: StepBuffers::new(limits, n_vocab, depth, vision.is_some()),
            slots: (0..limits.max_spans).map(|_| None).collect(),
            queue: Queue::new(options.max_waiting.unwrap_or(usize::MAX)),
            in_flight: VecDeque::with_capacity(depth),
            last_done: None,
            spare: (0..=depth).map(|_| Flight::new(limits.max_spans)).collect(),
            order: Vec::with_capacity(limits.max_spans),
            speculator,
            masks: None,
            mask_jobs: Vec::with_capacity(limits.max_spans),
            pacing: Pacing::new(options),
            is_short: false,
            is_starved: false,
            oldest: None,
            rows_per_second: 0.0,
            n_parked: 0,
            failed: Vec::new(),
            vision,
            row_states: Vec::new(),
            totals: Totals::default(),
            limits: limits.clone(),
        }
    }

    /// Set the size of the model's weights in bytes.
    pub(crate) fn set_weight_bytes(&mut self, n: u64) {
        self.pacing.weight_bytes = n;
    }

    /// Replace the proposer of draft tokens. No effect if the engine does not speculate.
    pub(crate) fn set_proposer(&mut self, proposer: Box<dyn Proposer>) {
        if let Some(speculator) = &mut self.speculator {
            speculator.set_proposer(proposer);
        }
    }

    /// Maximum number of draft tokens of a sequence in a step.
    pub(crate) fn max_draft(&self) -> usize {
        self.speculator.as_ref().map_or(0, Speculator::max_draft)
    }

    pub(crate) fn n_slots(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn n_waiting(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn n_running(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    pub(crate) fn n_parked(&self) -> u64 {
        self.n_parked
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.n_running() == 0 && self.queue.is_empty()
    }

    /// A slot without a sequence.
    pub(crate) fn free_slot(&self) -> Option<usize> {
        self.slots.iter().position(Option::is_none)
    }

    /// Running sequences, then waiting ones.
    pub(crate) fn sequences(&self) -> impl Iterator<Item = &Sequence> {
        self.slots.iter().flatten().chain(self.queue.iter())
    }

    /// Running sequences, then waiting ones.
    pub(crate) fn sequences_mut(&mut self) -> impl Iterator<Item = &mut Sequence> {
        self.slots.iter_mut().flatten().chain(self.queue.iter_mut())
    }

    /// Set whether the program has a plan with adapters.
    pub(crate) fn set_adapted(&mut self, is_adapted: bool, numerics: Numerics) {
        self.buffers.set_adapted(is_adapted, numerics);
    }

    /// Check that one more sequence may wait.
    ///
    /// # Errors
    /// [`Error::QueueFull`].
    pub(crate) fn check_room(&self) -> Result<()> {
        self.queue.check_room()
    }

    /// Queue a new sequence.
    pub(crate) fn add(&mut self, mut sequence: Sequence) {
        sequence.due = self.totals.n_computed + PATIENCE * sequence.tokens.len() as u64;
        let n_outputs = 1 + self.max_draft();
        self.buffers.reserve_for(&sequence, self.limits.n_ctx, n_outputs, self.slots.len());
        self.queue.add(sequence);
    }

    /// Fill the next step: one row of every sequence that is answering, then the prompt rows that
    /// the answers' latency allows. If all are answering, draft tokens are added. Returns false if
    /// nothing can be submitted before a step in flight is done. With `may_run_ahead`, rows may
    /// depend on tokens that are not chosen yet.
    ///
    /// # Errors
    /// A page could not be copied, or a proposer failed. Nothing is lost: another call fills the
    /// step anew.
    pub(crate) fn schedule(
        &mut self,
        now: Instant,
        may_run_ahead: bool,
        program: &mut dyn Program,
        on_event: &mut dyn FnMut(Event<'_>),
    ) -> Result<bool> {
        self.end_unwanted(now, on_event);
        let is_ahead = !self.in_flight.is_empty();
        if !self.follow_memory(program)? {
            return Ok(false);
        }
        self.admit();
        self.is_starved = false;
        if self.in_flight.len() >= program.steps_ahead(self.n_running())
            || is_ahead && !(may_run_ahead && self.can_run_ahead(program))
        {
            return Ok(false);
        }
        loop {
            self.commit_for_oldest(program)?;
            match self.fill(is_ahead, now, program) {
                // If pages run out ahead of time, steps in flight must end first.
                Err(Error::PagesExhausted { .. }) if is_ahead => return Ok(false),
                Err(Error::PagesExhausted { .. }) if self.n_running() > 1 => self.park_last(),
                // Other processes hold the memory: the sequence keeps its pages, and goes on when
                // there is more.
                Err(Error::PagesExhausted { .. }) => {
                    self.is_starved = true;
                    return Ok(false);
                }
                filled => return filled,
            }
        }
    }

    /// End sequences that were cancelled, are past their deadline, or cannot go on.
    pub(crate) fn end_unwanted(&mut self, now: Instant, on_event: &mut dyn FnMut(Event<'_>)) {
        let why = |sequence: &Sequence| match sequence.deadline {
            _ if sequence.failed.is_some() => sequence.failed.clone(),
            _ if sequence.cancel.is_cancelled() => Some(FinishReason::Cancelled),
            Some(deadline) if deadline <= now => Some(FinishReason::DeadlineExceeded),
            _ => None,
        };
        for slot in 0..self.slots.len() {
            if let Some(reason) = self.slots[slot].as_ref().and_then(why) {
                self.finish(slot, reason, on_event);
            }
        }
        self.queue.remove_where(|sequence| {
            let reason = why(sequence);
            if let Some(reason) = &reason {
                emit_done(sequence, reason, on_event);
            }
            reason.is_some()
        });
    }

    /// Returns true if a step may depend on tokens that are not chosen yet. Every sequence must be
    /// answering without draft tokens, and the device must choose its tokens. No constraint or
    /// sampler may need a token before the next.
    fn can_run_ahead(&self, program: &dyn Program) -> bool {
        let guesses = |s: &Sequence| self.speculator.is_some() && s.speculate;
        let chooses = |s: &Sequence| program.chooses_in_flight(&s.sampler.want(0));
        self.slots.iter().flatten().all(|s| {
            !s.in_prompt && !guesses(s) && s.constraint.is_none() && !s.sampler.sees_tokens() && chooses(s)
        })
    }

    /// Flag that stops the filled step between two commands: the cancel flag of a request whose
    /// prompt alone makes the step long.
    pub(crate) fn stop_flag(&self) -> Option<&std::sync::atomic::AtomicBool> {
        let mut prompts = self.spare.last()?.spans.iter().filter(|span| span.is_prompt && span.n_rows > 1);
        let prompt = prompts.next().filter(|_| prompts.next().is_none())?;
        self.slots[prompt.slot].as_ref().map(|s| s.cancel.as_atomic())
    }

    /// Note that the filled step was submitted; `ticket` is `None` if it is done already.
    pub(crate) fn note_submitted(&mut self, now: Instant, ticket: Option<Ticket>) {
        let Some(mut flight) = self.spare.pop() else { return };
        (flight.submitted, flight.ticket) = (now, ticket);
        for span in &flight.spans {
            let Some(sequence) = &mut self.slots[span.slot] else { continue };
            sequence.started.get_or_insert(now);
            sequence.n_submitted += span.n_rows;
            self.kv.note_rows_submitted(span.slot);
            if let (Some(ticket), Some(output)) = (flight.ticket, span.output) {
                sequence.pending.push(OutputRef { ticket, output: output as u32 });
            }
        }
        self.in_flight.push_back(flight);
    }

    /// The oldest step in flight.
    pub(crate) fn oldest_in_flight(&self) -> Option<&Flight> {
        self.in_flight.front()
    }

    /// Forget all steps after one of them failed, in flight or filled, and remember the sequences
    /// of their rows.
    pub(crate) fn forget_failed(&mut self, program: &mut dyn Program) {
        self.failed.clear();
        let flights = self.in_flight.iter().chain(self.spare.last());
        self.failed.extend(flights.flat_map(|flight| &flight.spans).map(|span| span.id));
        self.forget_in_flight(program);
    }

    /// End the sequences of the steps that failed last with this reason. Their rows do not enter
    /// the prefix cache.
    pub(crate) fn end_failed(&mut self, reason: &str, on_event: &mut dyn FnMut(Event<'_>)) {
        for slot in 0..self.slots.len() {
            let Some(sequence) = &mut self.slots[slot] else { continue };
            if self.failed.contains(&sequence.id) {
                sequence.reuse = false;
                self.finish(slot, FinishReason::Failed(reason.to_owned()), on_event);
            }
        }
        self.failed.clear();
    }

    /// Wait for all steps in flight and discard their results: their rows will be submitted again.
    pub(crate) fn forget_in_flight(&mut self, program: &mut dyn Program) {
        self.forget_background(program);
        while let Some(flight) = self.in_flight.pop_front() {
            // A step that fails, or whose device panics, is discarded as well.
            let wait = || flight.ticket.map(|ticket| program.wait(ticket));
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(wait));
            self.spare.push(flight);
        }
        for (slot, sequence) in self.slots.iter_mut().enumerate() {
            let Some(sequence) = sequence else { continue };
            sequence.forget_in_flight();
            self.kv.forget_in_flight(slot);
        }
    }
}

/// Emit the last event of a sequence.
fn emit_done(sequence: &mut Sequence, reason: &FinishReason, on_event: &mut dyn FnMut(Event<'_>)) {
    let (timings, seed) = (sequence.timings(), sequence.sampler.seed());
    let text: &str = TextStream::finish(&mut sequence.text, matches!(reason, FinishReason::StopString(_)));
    on_event(Event::Done { sequence: sequence.id, text, reason, timings, seed });
}
