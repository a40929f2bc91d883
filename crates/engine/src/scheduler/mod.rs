//! The scheduler: which rows of which sequences a step computes, and what becomes of what it chose.
//!
//! Four verbs: [`Scheduler::add`] queues a sequence; [`Scheduler::schedule`] fills the next step, for which it lets sequences
//! begin, parks them and resumes them; the engine runs it; [`Scheduler::postprocess`] takes the tokens that it chose. What they
//! decide depends on what they are given and nothing else: times are arguments, and of the program they ask for pages and choices.
//!
//! There is one path. A sequence has tokens, of which the first `n_computed` are in the KV cache; a step computes some of the
//! others; when none is left, the last row's logits choose one more. So a prompt, a chunk of it, a decode step, the tail after
//! a slide, what was parked and a batch of all of these are the same thing in different shapes.

mod admission;
mod background;
mod chunk;
mod cost;
mod figures;
mod fill;
mod flight;
mod latency;
mod margin;
mod masks;
mod postprocess;
mod queue;
mod share;
mod step;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

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
use background::Background;
use chunk::ChunkModel;
use cost::CostModel;
use latency::AnswerStep;
use queue::Queue;

/// Rows of a prompt in a step, whatever they cost the answers beside it: so prompts always go on, and not by single rows, which keep a
/// prompt of 3,000 words waiting 3.6 times as long for the sake of a third of the slowest steps (docs/server.md). Whoever names a time
/// that answers may take has chosen otherwise ([`Scheduler::least_prompt_rows`]).
const LEAST_PROMPT_ROWS: usize = 8;

/// A prompt of `n` tokens lets others go first until so many times `n` rows of prompts have been computed: short prompts need not wait
/// for long ones, and none waits for ever.
const PATIENCE: u64 = 2;

/// Sequences that wait and run, and the KV cache that they share.
pub(crate) struct Scheduler {
    limits: Limits,
    n_vocab: usize,
    pub(crate) kv: KvCache,
    pub(crate) buffers: StepBuffers,
    /// `(n_slots)`; a slot has a row of page tables.
    slots: Vec<Option<Sequence>>,
    queue: Queue,
    /// Steps in flight, the oldest first.
    in_flight: VecDeque<Flight>,
    /// When the last step was done.
    last_done: Option<Instant>,
    /// For steps to come; one at least, besides those in flight. The last is the step that is being filled.
    spare: Vec<Flight>,
    /// Slots in the order in which a step looks at them; a buffer.
    order: Vec<usize>,
    /// None: nothing is guessed.
    speculator: Option<Speculator>,
    /// Made for the first sequence with a constraint.
    masks: Option<MaskWorker>,
    /// Of the step that is submitted; a buffer.
    mask_jobs: Vec<MaskJob>,
    cost: CostModel,
    chunks: ChunkModel,
    background: Background,
    /// Most time between two tokens of an answer while prompts are computed, unless its request says otherwise.
    token_latency: Option<Duration>,
    /// Without it: so many times what a step of answers alone takes, for one prompt; each further one adds as much.
    latency_steps: Option<f64>,
    /// But not less than this.
    least_latency: Duration,
    /// Of such steps, of late; `None` until one was seen.
    answer_step: Option<AnswerStep>,
    /// Bytes of the model's weights.
    weight_bytes: u64,
    /// Since a sequence was parked for lack of memory, none has ended, and there is no more room: nothing is admitted.
    is_short: bool,
    /// The oldest sequence runs alone, and there is no page for it: it waits for memory.
    is_starved: bool,
    /// The sequence for which pages are committed.
    oldest: Option<SequenceId>,
    /// Rows of which keys and values are kept, a second, of late.
    rows_per_second: f64,
    /// Sequences parked so far.
    n_parked: u64,
    /// Sequences with rows in steps that failed, since somebody asked.
    failed: Vec<SequenceId>,
    /// What encodes images, if the model sees.
    pub(crate) vision: Option<Vision>,
    /// States of the rows of a step, for a proposer that reads them; a buffer.
    row_states: Vec<f32>,
    pub(crate) totals: Totals,
}

impl Scheduler {
    /// Nothing to do yet. `depth` steps may be in flight.
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
            cost: CostModel::new(),
            chunks: ChunkModel::new(),
            background: Background::new(),
            token_latency: options.token_latency,
            latency_steps: options.latency_steps,
            least_latency: options.least_latency,
            answer_step: None,
            weight_bytes: 0,
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

    /// The model's weights have so many bytes.
    pub(crate) fn set_weight_bytes(&mut self, n: u64) {
        self.weight_bytes = n;
    }

    /// Guess with this from now on. Without effect where nothing is guessed.
    pub(crate) fn set_proposer(&mut self, proposer: Box<dyn Proposer>) {
        if let Some(speculator) = &mut self.speculator {
            speculator.set_proposer(proposer);
        }
    }

    /// Most guesses of a sequence in a step.
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

    /// Those that run, then those that wait.
    pub(crate) fn sequences(&self) -> impl Iterator<Item = &Sequence> {
        self.slots.iter().flatten().chain(self.queue.iter())
    }

    /// The same.
    pub(crate) fn sequences_mut(&mut self) -> impl Iterator<Item = &mut Sequence> {
        self.slots.iter_mut().flatten().chain(self.queue.iter_mut())
    }

    /// Set whether the program has a plan with adapters.
    pub(crate) fn set_adapted(&mut self, is_adapted: bool, numerics: Numerics) {
        self.buffers.set_adapted(is_adapted, numerics);
    }

    /// That one more sequence may wait.
    ///
    /// # Errors
    /// [`Error::QueueFull`].
    pub(crate) fn check_room(&self) -> Result<()> {
        self.queue.check_room()
    }

    /// A new sequence waits for a slot.
    pub(crate) fn add(&mut self, mut sequence: Sequence) {
        sequence.due = self.totals.n_computed + PATIENCE * sequence.tokens.len() as u64;
        let n_outputs = 1 + self.max_draft();
        self.buffers.reserve_for(&sequence, self.limits.n_ctx, n_outputs, self.slots.len());
        self.queue.add(sequence);
    }

    /// Fill the next step: first a row of every sequence that is answering, then rows of prompts, as many as the answers'
    /// latency allows. Where all are answering, guesses come with their rows. False: there is nothing to submit before a step
    /// in flight is done. `may_run_ahead`: steps may be submitted whose tokens are not known yet.
    ///
    /// # Errors
    /// A page could not be copied, or a proposer failed. Nothing is lost: another call fills the step anew.
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
                // Run out of pages ahead of time: let the steps in flight end first.
                Err(Error::PagesExhausted { .. }) if is_ahead => return Ok(false),
                Err(Error::PagesExhausted { .. }) if self.n_running() > 1 => self.park_last(),
                // Others of the machine hold the memory that it needs: it keeps what it has, and goes on when there is more.
                Err(Error::PagesExhausted { .. }) => {
                    self.is_starved = true;
                    return Ok(false);
                }
                filled => return filled,
            }
        }
    }

    /// End what was cancelled, what is past its deadline, and what cannot go on.
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

    /// Whether steps may be submitted whose tokens are not known yet: every sequence is answering, does not guess, has no
    /// constraint or sampler that must see a token before it says what may follow, and has its tokens chosen by the device.
    fn can_run_ahead(&self, program: &dyn Program) -> bool {
        let guesses = |s: &Sequence| self.speculator.is_some() && s.speculate;
        let chooses = |s: &Sequence| program.chooses_in_flight(&s.sampler.want(0));
        self.slots.iter().flatten().all(|s| {
            !s.in_prompt && !guesses(s) && s.constraint.is_none() && !s.sampler.sees_tokens() && chooses(s)
        })
    }

    /// A flag that ends the step that was filled between two commands: of the request whose prompt alone makes it long.
    pub(crate) fn stop_flag(&self) -> Option<&std::sync::atomic::AtomicBool> {
        let mut prompts = self.spare.last()?.spans.iter().filter(|span| span.is_prompt && span.n_rows > 1);
        let prompt = prompts.next().filter(|_| prompts.next().is_none())?;
        self.slots[prompt.slot].as_ref().map(|s| s.cancel.as_atomic())
    }

    /// The step that was filled was submitted; `ticket` is `None` if it is done already.
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

    /// The oldest step in flight, to be waited for.
    pub(crate) fn oldest_in_flight(&self) -> Option<&Flight> {
        self.in_flight.front()
    }

    /// A step failed, of those in flight or the one that was filled: forget them all, and remember whose rows they had.
    pub(crate) fn forget_failed(&mut self, program: &mut dyn Program) {
        self.failed.clear();
        let flights = self.in_flight.iter().chain(self.spare.last());
        self.failed.extend(flights.flat_map(|flight| &flight.spans).map(|span| span.id));
        self.forget_in_flight(program);
    }

    /// The sequences that the steps concerned which failed last end with this reason. What they computed is not learnt.
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

    /// Wait for all steps in flight and take nothing of them: their rows will be submitted again.
    pub(crate) fn forget_in_flight(&mut self, program: &mut dyn Program) {
        self.forget_background(program);
        while let Some(flight) = self.in_flight.pop_front() {
            // A step that failed is as good as one that nobody looks at, and so is one whose device panics.
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

/// A sequence is over: its owner is told.
fn emit_done(sequence: &mut Sequence, reason: &FinishReason, on_event: &mut dyn FnMut(Event<'_>)) {
    let (timings, seed) = (sequence.timings(), sequence.sampler.seed());
    let text: &str = TextStream::finish(&mut sequence.text, matches!(reason, FinishReason::StopString(_)));
    on_event(Event::Done { sequence: sequence.id, text, reason, timings, seed });
}
