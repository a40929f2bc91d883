//! The scheduler: which rows of which sequences a step computes, and what becomes of what it chose.
//!
//! Four verbs: [`Scheduler::add`] queues a sequence; [`Scheduler::schedule`] fills the next step, for which it lets sequences
//! begin, parks them and resumes them; the engine runs it; [`Scheduler::postprocess`] takes the tokens that it chose. What they
//! decide depends on what they are given and nothing else: times are arguments, and of the program they ask for pages and choices.
//!
//! There is one path. A sequence has tokens, of which the first `n_computed` are in the KV cache; a step computes some of the
//! others; when none is left, the last row's logits choose one more. So a prompt, a chunk of it, a decode step, the tail after
//! a slide, what was parked and a batch of all of these are the same thing in different shapes.
//!
//! This file is longer than 600 lines because admission, parking and the choice of rows read and change the same queue and slots.

mod background;
mod chunk;
mod cost;
mod figures;
mod flight;
mod margin;
mod masks;
mod postprocess;
mod queue;
mod step;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use device::{Limits, Numerics, OutputRef, Program, Ticket, Want};

pub(crate) use figures::Totals;
pub(crate) use flight::Flight;
use flight::FlightSpan;
pub(crate) use step::{History, OutputRows, StepBuffers};

use crate::constraint::{MaskJob, MaskWorker};
use crate::kv::{KvCache, common_len};
use crate::output::TextStream;
use crate::sequence::Sequence;
use crate::speculate::{Speculator, Target};
use crate::vision::{Images, Vision};
use crate::{Error, Event, FinishReason, LoadOptions, Prefill, Proposer, Result, SequenceId};
use background::Background;
use chunk::ChunkModel;
use cost::{CostModel, Load};
use queue::Queue;

/// A prompt waits for another one, or takes a part of a page from a running sequence, only for so many tokens.
const LEAST_SHARED: usize = 16;

/// Rows of a prompt in a step, whatever they cost the answers beside it: so prompts always go on, and not by single rows, which keep a
/// prompt of 3,000 words waiting 3.6 times as long for the sake of a third of the slowest steps (docs/server.md). Whoever names a time
/// that answers may take has chosen otherwise ([`Scheduler::least_prompt_rows`]).
const LEAST_PROMPT_ROWS: usize = 8;

/// A prompt of `n` tokens lets others go first until so many times `n` rows of prompts have been computed: short prompts need not wait
/// for long ones, and none waits for ever.
const PATIENCE: u64 = 2;

/// Time of a step while the machine is short of memory.
const PRESSED_LATENCY: Duration = Duration::from_millis(100);

/// Until a sequence that waits for memory looks again.
const STARVED: Duration = Duration::from_millis(5);

/// How much one step moves the rate of rows.
const RATE_WEIGHT: f64 = 1.0 / 16.0;

/// Steps of answers alone, of late: means.
#[derive(Clone, Copy, Debug)]
struct AnswerStep {
    seconds: f64,
    n_rows: f64,
    /// Bytes of weights, keys and values that such a step reads.
    bytes: f64,
}

/// How much one such step moves the mean; an interruption counts for little.
const ANSWER_STEP_WEIGHT: f64 = 0.1;

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
            buffers: StepBuffers::new(limits, n_vocab, depth),
            slots: (0..limits.max_spans).map(|_| None).collect(),
            queue: Queue::new(options.max_waiting.unwrap_or(usize::MAX)),
            in_flight: VecDeque::with_capacity(depth),
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

    /// Whether the program has a plan with adapters after the model's own, from now on. That of given rows comes after both, and the
    /// one that predicts one token more after all of these.
    pub(crate) fn set_adapted(&mut self, is_adapted: bool, numerics: Numerics) {
        self.buffers.set_adapted(is_adapted, numerics);
        self.buffers.given_plan = 1 + usize::from(is_adapted);
        self.buffers.next_plan = self.buffers.given_plan + usize::from(self.vision.is_some());
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
        if self.in_flight.len() >= program.max_in_flight()
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

    /// Give back what the governor of the machine's memory asks for: free pages, cached prefixes, and then the pages of the
    /// youngest sequences of the lowest priority, which are parked. False: steps in flight must end first.
    ///
    /// # Errors
    /// The device failed.
    pub(crate) fn follow_memory(&mut self, program: &mut dyn Program) -> Result<bool> {
        self.kv.tell_governor();
        while !self.kv.shrink(program)? && self.n_running() > 1 {
            if !self.in_flight.is_empty() {
                return Ok(false);
            }
            self.park_last();
        }
        Ok(true)
    }

    /// Pages for all that the oldest sequence may become are committed before it goes on, as far as they can be had without
    /// parking anybody.
    ///
    /// # Errors
    /// The device failed.
    fn commit_for_oldest(&mut self, program: &mut dyn Program) -> Result<()> {
        let n_running = self.n_running();
        let running = self.slots.iter().enumerate().filter_map(|(slot, s)| Some((slot, s.as_ref()?)));
        let Some((slot, oldest)) = running.min_by_key(|(_, s)| (Reverse(s.priority), s.id)) else {
            self.oldest = None;
            self.kv.forget_oldest();
            return Ok(());
        };
        if self.oldest != Some(oldest.id) {
            self.oldest = Some(oldest.id);
            let n_tokens = oldest.most_tokens(self.limits.n_ctx);
            self.kv.commit_for_oldest(n_tokens, program)?;
        }
        self.kv.set_alone((n_running == 1).then_some(slot));
        Ok(())
    }

    /// Whether nothing can go on before the machine has more memory.
    pub(crate) fn is_starved(&self) -> bool {
        self.is_starved
    }

    /// Wait a moment for memory that only others can give back, and follow what the machine says then.
    ///
    /// # Errors
    /// The device failed.
    pub(crate) fn wait_for_memory(&mut self, program: &mut dyn Program) -> Result<()> {
        std::thread::sleep(STARVED);
        self.follow_memory(program)?;
        Ok(())
    }

    /// Whether what waits may begin: not where sequences were parked and there is no more room than then, nor where the system is
    /// short.
    fn may_admit(&mut self) -> bool {
        if self.n_running() == 0 {
            return true;
        }
        if self.is_short && self.kv.is_governed() {
            let longest = self.queue.iter().map(|s| s.tokens.len()).max().unwrap_or(0);
            // Room to grow, for it and for those that run.
            let n_tokens = longest + self.limits.page_len * (1 + self.n_running());
            self.is_short = self.kv.room_bytes() < self.kv.bytes_for(n_tokens);
        }
        !self.is_short && !self.kv.is_pressed()
    }

    /// End what was cancelled, what is past its deadline, and what cannot go on.
    pub(crate) fn end_unwanted(&mut self, now: Instant, on_event: &mut dyn FnMut(Event<'_>)) {
        let why = |sequence: &Sequence| match sequence.deadline {
            _ if sequence.failed.is_some() => sequence.failed.clone().map(FinishReason::Failed),
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

    /// Waiting sequences take free slots, or those of sequences of a lower priority, which are parked.
    fn admit(&mut self) {
        let may_admit = !self.queue.is_empty() && self.may_admit();
        while let Some(top) = self.queue.top_priority() {
            let free = self.free_slot().filter(|_| may_admit && !self.is_short || self.n_running() == 0);
            let slot = match free {
                Some(slot) => slot,
                None => match self.last_in_rank() {
                    Some((slot, priority)) if priority < top => {
                        self.park(slot);
                        slot
                    }
                    _ => return,
                },
            };
            let Some(mut sequence) = self.queue.pick() else { return };
            // From here on its steps allocate nothing.
            sequence.tokens.reserve_exact(self.limits.n_ctx - sequence.tokens.len());
            if sequence.started.is_none() {
                self.queue.charge(sequence.tenant, sequence.tokens.len() as i64);
            }
            self.slots[slot] = Some(sequence);
        }
    }

    /// The youngest running sequence of the lowest priority: its slot and priority.
    fn last_in_rank(&self) -> Option<(usize, i32)> {
        let running = self.slots.iter().enumerate().filter_map(|(slot, s)| Some((slot, s.as_ref()?)));
        let last = running.max_by_key(|(_, s)| (Reverse(s.priority), s.id));
        last.map(|(slot, s)| (slot, s.priority))
    }

    /// There is no room for a page: the youngest sequence of the lowest priority gives its pages back and waits. The oldest of
    /// the highest is never parked while there is another, and pages are committed for all that it may become.
    fn park_last(&mut self) {
        if let Some((slot, _)) = self.last_in_rank() {
            self.park(slot);
            self.is_short = true;
            self.n_parked += 1;
        }
    }

    /// A running sequence gives its slot back. Its pages stay in the prefix cache as long as they can; what is missing is
    /// computed again when it resumes. Its sampler and text stay whole.
    fn park(&mut self, slot: usize) {
        let Some(mut sequence) = self.slots[slot].take() else { return };
        self.let_go(slot, &sequence);
        sequence.begin_anew();
        self.queue.put_back(sequence);
    }

    /// A slot's pages go: into the prefix cache, or back to the pool.
    fn let_go(&mut self, slot: usize, sequence: &Sequence) {
        if sequence.reuse {
            // Where layers are recurrent, what is behind the state is of no use. An answer may end among guesses.
            let n = self.kv.state_position(slot).unwrap_or(sequence.n_computed);
            self.kv.remember(slot, sequence.salt, &sequence.tokens[..n], true);
        }
        self.kv.end(slot);
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

    /// Fill the buffers and the last of [`Self::spare`]; whether there is a row.
    ///
    /// # Errors
    /// As [`Self::schedule`], and [`Error::PagesExhausted`].
    fn fill(&mut self, is_ahead: bool, now: Instant, program: &mut dyn Program) -> Result<bool> {
        self.end_lost_background(program);
        self.background.begin_step();
        self.buffers.clear();
        self.order.clear();
        self.order.extend((0..self.slots.len()).filter(|&slot| self.slots[slot].is_some()));
        let (slots, queue) = (&self.slots, &self.queue);
        let rank = |slot: &usize| slots[*slot].as_ref().map(|s| (s.in_prompt, queue.rank(s)));
        self.order.sort_unstable_by_key(rank);
        let all_answer = slots.iter().flatten().all(|s| !s.in_prompt);
        if let Some(speculator) = self.speculator.as_mut().filter(|_| all_answer && !is_ahead) {
            let n_rows = slots.iter().flatten().map(|s| s.n_missing().max(1)).sum();
            speculator.begin_step(self.order.len(), n_rows);
        }
        self.buffers.plan = usize::from(self.is_given_next());
        let Some(mut flight) = self.spare.pop() else { return Ok(false) };
        flight.clear();
        flight.all_answer = all_answer && !is_ahead;
        flight.alone = self.alone();
        flight.planned = flight.alone;
        let mut filled = Ok(());
        for i in 0..self.order.len() {
            let slot = self.order[i];
            if self.buffers.rows_left() == 0 {
                break;
            }
            let is_prompt = self.slots[slot].as_ref().is_some_and(|s| s.in_prompt);
            filled = match is_prompt {
                true => self.fill_prompt(slot, &mut flight, now, program),
                false => self.fill_answer(slot, &mut flight, program),
            };
            if filled.is_err() {
                break;
            }
        }
        self.spare.push(flight);
        filled?;
        self.background.end_step();
        self.fill_input();
        Ok(!self.buffers.is_empty())
    }

    /// Whether a prompt goes on with rows of an image, so that the step that is being filled runs the plan of given rows.
    fn is_given_next(&mut self) -> bool {
        for i in 0..self.order.len() {
            let slot = self.order[i];
            let sees = |s: &Sequence| s.in_prompt && s.images.is_some();
            if !self.slots[slot].as_ref().is_some_and(sees) {
                continue;
            }
            self.take_over(slot);
            let next = |s: &Sequence| s.images.as_ref().is_some_and(|images| images.is_given(s.n_submitted));
            if self.slots[slot].as_ref().is_some_and(next) {
                return true;
            }
        }
        false
    }

    /// The rows in the buffers, all of one sequence outside the slots, are of the plan of given rows.
    pub(crate) fn give_input(&mut self, images: Option<&Images>) {
        let Some(vision) = &self.vision else { return };
        let mut input = std::mem::take(&mut self.buffers.input);
        self.buffers
            .rows()
            .for_each(|(_, position, token)| vision.push_row(images, position, token, &mut input));
        self.buffers.name_image_rows(vision.layer_input());
        (self.buffers.input, self.buffers.plan) = (input, 1);
    }

    /// What the plan of given rows reads of the rows of the step, if it is that plan's.
    fn fill_input(&mut self) {
        let Scheduler { buffers, slots, vision, .. } = self;
        let Some(vision) = vision.as_ref().filter(|_| buffers.plan == 1) else { return };
        let mut input = std::mem::take(&mut buffers.input);
        for (slot, position, token) in buffers.rows() {
            let images = slots.get(slot).and_then(Option::as_ref).and_then(|s| s.images.as_deref());
            vision.push_row(images, position, token, &mut input);
        }
        buffers.name_image_rows(vision.layer_input());
        buffers.input = input;
    }

    /// Append the row of a sequence that is answering, and guesses; and before it the rows that a wrong guess has taken out of
    /// the state of its recurrent layers.
    ///
    /// # Errors
    /// No page is free ([`Error::PagesExhausted`]), or a proposer failed; nothing was appended.
    fn fill_answer(&mut self, slot: usize, flight: &mut Flight, program: &mut dyn Program) -> Result<()> {
        let Some(sequence) = &mut self.slots[slot] else { return Ok(()) };
        let position = sequence.n_submitted;
        let n_ahead = sequence.pending.len();
        sequence.draft.clear();
        let n_missing = sequence.n_missing();
        let mut span = FlightSpan::new(slot, sequence, n_missing.max(1), Some(self.buffers.n_outputs()));
        if n_missing == 0 {
            // Its next token is chosen by a step in flight.
            let Some(&from) = sequence.pending.last() else { return Ok(()) };
            if sequence.may_be_over(self.limits.n_ctx) {
                return Ok(());
            }
            self.kv.reserve(slot, position, 1, program)?;
            let history = History { tokens: &sequence.tokens, pending: &sequence.pending, draft: &[] };
            let want = self.buffers.want_of(sequence, &history, n_ahead);
            self.buffers.push_linked(slot, position, from, want);
            self.buffers.push_state(self.kv.state_use(slot));
            self.buffers.set_adapter(sequence.adapter);
            flight.add(span, position);
            return Ok(());
        }
        let may_guess = |speculator: &Speculator| n_missing <= 1 + speculator.max_draft();
        let speculates = flight.all_answer && sequence.speculate;
        if let Some(speculator) = self.speculator.as_mut().filter(|s| speculates && may_guess(s)) {
            let most = sequence.most_draft(self.limits.n_ctx);
            let mut target =
                Target { program: &mut *program, kv: &mut self.kv, plan: self.buffers.next_plan };
            speculator.guess(slot, sequence, most, self.n_vocab, &mut target)?;
        }
        if let Some(constraint) = &mut sequence.constraint
            && !sequence.draft.is_empty()
        {
            let n_valid = constraint.n_valid(&sequence.draft);
            sequence.draft.truncate(n_valid);
        }
        span.n_draft = sequence.draft.len();
        span.n_rows += span.n_draft;
        span.first_mask = sequence.constraint.is_some().then_some(self.buffers.n_masks());
        self.kv.reserve(slot, position, span.n_rows, program)?;
        let history = History { tokens: &sequence.tokens, ..History::default() };
        let want = self.buffers.want_of(sequence, &history, n_ahead);
        let rows = &sequence.tokens[position..];
        self.buffers.push(slot, position, rows, OutputRows::Last(1), want);
        for (index, guess) in sequence.draft.iter().enumerate() {
            let history = History { draft: &sequence.draft[..=index], ..history };
            let want = self.buffers.want_of(sequence, &history, n_ahead + index + 1);
            self.buffers.push_guess(*guess, want);
        }
        self.buffers.push_state(self.kv.state_use(slot));
        self.buffers.set_adapter(sequence.adapter);
        flight.add(span, position);
        Ok(())
    }

    /// Append rows of a prompt: all that are missing, or a chunk, or none while another one's rows in this step are what it
    /// needs; or begin a chunk in the background.
    ///
    /// # Errors
    /// No page is free, or the device failed; nothing was appended.
    fn fill_prompt(
        &mut self,
        slot: usize,
        flight: &mut Flight,
        now: Instant,
        program: &mut dyn Program,
    ) -> Result<()> {
        if self.background.has(slot) {
            return Ok(());
        }
        self.take_over(slot);
        if self.is_computed_by_another(slot, flight) {
            return Ok(());
        }
        let in_background = self.goes_into_background(slot, flight);
        if in_background && self.background.is_busy() {
            self.background.note_waiting();
            return Ok(());
        }
        let mut most = match in_background {
            true => self.background_rows(slot),
            false => self.prompt_rows(slot, flight),
        };
        let whole = match self.rows_of_plan(slot) {
            None => return Ok(()),
            Some((n, true)) => {
                // An image whose rows see each other is whole, or waits for the next step.
                if n > self.buffers.rows_left() {
                    return Ok(());
                }
                most = n;
                true
            }
            Some((n, false)) => {
                most = most.min(n);
                false
            }
        };
        let n_prompts = self.slots.iter().flatten().filter(|s| s.in_prompt).count();
        let Some(sequence) = &mut self.slots[slot] else { return Ok(()) };
        let position = sequence.n_submitted;
        let missing = sequence.n_missing();
        let mut n_rows = missing.min(most);
        let scored = sequence.rows_to_score();
        if !scored.is_empty() {
            // Every other prompt may end in this step, and needs an output.
            let room = self.buffers.outputs_left().saturating_sub(n_prompts.saturating_sub(1)).max(1);
            n_rows = n_rows.min(scored.start.saturating_sub(position) + room);
        }
        if n_rows == 0 {
            return Ok(());
        }
        if self.kv.has_states() {
            // A state can be taken over where its pages end: what others may share of the prompt ends with a step.
            let page_len = self.limits.page_len;
            let last_full = (position + n_rows - usize::from(n_rows == missing)) / page_len * page_len;
            n_rows = if last_full > position { last_full - position } else { n_rows };
        }
        // On a shortage a smaller chunk may still find its pages.
        while let Err(error) = self.kv.reserve(slot, position, n_rows, program) {
            if !matches!(error, Error::PagesExhausted { .. }) || whole || n_rows <= self.limits.page_len {
                return Err(error);
            }
            n_rows = n_rows.div_ceil(2);
        }
        if in_background {
            return self.begin_background(slot, n_rows, now, program);
        }
        sequence.draft.clear();
        let rows = &sequence.tokens[position..position + n_rows];
        let mut span = FlightSpan::new(slot, sequence, n_rows, None);
        self.buffers.push(slot, position, rows, OutputRows::None, Want::default());
        let scored = sequence.rows_to_score();
        let scored = scored.start.max(position)..scored.end.min(position + n_rows);
        if !scored.is_empty() {
            span.scored = (self.buffers.n_outputs(), scored.len());
            let n_best = sequence.prompt_logprobs.unwrap_or(0) as u32;
            let rows = scored.start - position..scored.end - position;
            self.buffers.push_outputs(rows, Want { n_best, ..Want::LOGITS });
        }
        if n_rows == missing {
            span.output = Some(self.buffers.n_outputs());
            span.first_mask = sequence.constraint.is_some().then_some(self.buffers.n_masks());
            let history = History { tokens: &sequence.tokens, ..History::default() };
            let want = self.buffers.want_of(sequence, &history, 0);
            self.buffers.push_last_output(want);
        }
        self.buffers.push_state(self.kv.state_use(slot));
        self.buffers.set_adapter(sequence.adapter);
        flight.planned += self.chunks.seconds(n_rows, position).unwrap_or(0.0);
        flight.add(span, position);
        Ok(())
    }

    /// Rows that a slot's prompt may have in the step for the plan that it runs, and whether these must be all; `None`: it waits for
    /// a step of the other plan.
    fn rows_of_plan(&self, slot: usize) -> Option<(usize, bool)> {
        let sequence = self.slots[slot].as_ref()?;
        let given = self.buffers.plan == 1;
        let both_ways = self.vision.as_ref().is_some_and(Vision::both_ways);
        let Some(images) = &sequence.images else {
            // Rows of a prompt would see what comes after them.
            return (!(given && both_ways)).then_some((usize::MAX, false));
        };
        let position = sequence.n_submitted;
        if both_ways && images.is_given(position) != given {
            return None;
        }
        let (end, whole) = images.end_of_step(position);
        Some((end.saturating_sub(position), whole))
    }

    /// Seconds that a step of the answers that run would take alone; 0: none runs, or nothing is known.
    fn alone(&self) -> f64 {
        let answers = self.slots.iter().flatten().filter(|s| !s.in_prompt);
        let load = answers.fold(Load::default(), |load, s| load.and(1, s.tokens.len()));
        // While a long prompt is computed no such step is seen, and answers grow.
        let seconds = |step: AnswerStep| match step.bytes {
            bytes if bytes > 0.0 => step.seconds * (self.bytes_read(load) / bytes),
            _ => step.seconds,
        };
        match self.answer_step {
            _ if load.n_rows == 0 => 0.0,
            Some(step) if load.n_rows as f64 <= step.n_rows + 0.5 => seconds(step),
            // Where prompts are always there, steps of answers alone are seldom seen, and were of fewer answers.
            step => step.map_or(0.0, seconds).max(self.cost.seconds(load).unwrap_or(0.0)),
        }
    }

    /// Bytes that a step of answers reads, whose time is that of reading them: weights, and the keys and values that the rows look
    /// at. Windows read about the same in each step, and are not counted. 0: not known.
    fn bytes_read(&self, load: Load) -> f64 {
        if self.weight_bytes == 0 {
            return 0.0;
        }
        self.weight_bytes as f64 + self.kv.bytes_per_token() as f64 * load.n_attended as f64
    }

    /// Seconds that the answers that run may wait for their next token; `None`: any time.
    fn latency(&self) -> Option<f64> {
        let running = || self.slots.iter().flatten();
        let of_steps = || {
            // Each prompt may take as much as one alone: otherwise all of them wait while few answer.
            let seconds = self.alone() * (1.0 + (self.latency_steps? - 1.0) * self.n_prompts() as f64);
            // Until a step was seen, what everybody gets who asks for nothing.
            let seconds = if seconds > 0.0 { seconds } else { crate::DEFAULT_TOKEN_LATENCY.as_secs_f64() };
            Some(seconds.max(self.least_latency.as_secs_f64()))
        };
        let of_answer = |s: &Sequence| {
            let latency = s.token_latency.or(self.token_latency);
            latency.map(|latency| latency.as_secs_f64()).or_else(of_steps)
        };
        let answers = running().filter(|s| !s.in_prompt);
        answers.filter_map(of_answer).min_by(f64::total_cmp)
    }

    /// A step of answers alone took so long.
    fn observe_answer_step(&mut self, load: Load, seconds: f64) {
        let (n_rows, bytes) = (load.n_rows as f64, self.bytes_read(load));
        self.answer_step = Some(match self.answer_step {
            None => AnswerStep { seconds, n_rows, bytes },
            Some(known) => {
                let growth = if known.bytes > 0.0 { bytes / known.bytes } else { 1.0 };
                let most = 2.0 * known.seconds * growth.max(1.0);
                let mean = |known: f64, now: f64| known + ANSWER_STEP_WEIGHT * (now - known);
                AnswerStep {
                    seconds: mean(known.seconds, seconds.min(most)),
                    n_rows: mean(known.n_rows, n_rows),
                    bytes: mean(known.bytes, bytes),
                }
            }
        });
    }

    /// Most rows of a slot's prompt that the step has room for, and the answers in it time.
    fn prompt_rows(&self, slot: usize, flight: &mut Flight) -> usize {
        let Some(sequence) = &self.slots[slot] else { return 0 };
        let chunk = if sequence.prefill == Prefill::PerToken { 1 } else { usize::MAX };
        let most = self.buffers.rows_left().min(chunk).min(sequence.n_missing());
        // Where memory is short, the next look at it is never far.
        let pressed = self.kv.is_pressed().then_some(PRESSED_LATENCY.as_secs_f64());
        let latency =
            [self.prompt_latency(flight.alone), pressed].into_iter().flatten().min_by(f64::total_cmp);
        let Some(seconds) = latency else { return most };
        flight.is_limited = true;
        let (planned, n_before) = (flight.planned, flight.n_prompt_rows);
        let fits = self.chunks.rows_within(seconds, planned, n_before, sequence.n_submitted, most);
        let least = if n_before == 0 { self.least_prompt_rows(seconds, planned) } else { 0 };
        fits.max(least).min(most)
    }

    /// Rows of a prompt that a step has however long it then takes, where its answers are allowed `allowed` seconds and take `alone`
    /// without them: a single one where somebody named that time and the answers alone keep it.
    fn least_prompt_rows(&self, allowed: f64, alone: f64) -> usize {
        let is_named = |s: &Sequence| s.token_latency.or(self.token_latency).is_some();
        let answers = self.slots.iter().flatten().filter(|s| !s.in_prompt);
        if alone < allowed && answers.into_iter().any(is_named) { 1 } else { LEAST_PROMPT_ROWS }
    }

    /// A prompt takes what others have computed of it: from the prefix cache, or from a running sequence with the same tokens.
    fn take_over(&mut self, slot: usize) {
        let Some(sequence) = &self.slots[slot] else { return };
        if !sequence.reuse
            || !sequence.rows_to_score().is_empty()
            || sequence.n_submitted != sequence.n_computed
        {
            return;
        }
        // The last token is always computed: its logits are what is wanted.
        let known = &sequence.tokens[..sequence.tokens.len() - 1];
        // What ends within an image that must be whole ends before it.
        let whole = |n: usize| sequence.images.as_ref().map_or(n, |images| images.whole(n));
        // The cache is asked for as many tokens below as here: of fewer it may find another branch, which has less.
        let mut n_asked = known.len();
        let mut n_found = self.kv.n_cached(sequence.salt, known);
        while whole(n_found) < n_found {
            n_asked = whole(n_found);
            n_found = self.kv.n_cached(sequence.salt, &known[..n_asked]);
        }
        let n_cached = n_found.max(sequence.n_computed);
        let others = self.slots.iter().enumerate();
        let shared = others.filter_map(|(other, o)| {
            let o = o.as_ref().filter(|o| o.reuse && o.salt == sequence.salt)?;
            let n = whole(common_len(known, &o.tokens[..o.n_computed]));
            // Half a page costs a copy of a page.
            let is_worth_it =
                n >= n_cached + LEAST_SHARED || n > n_cached && n.is_multiple_of(self.limits.page_len);
            (is_worth_it && self.kv.can_fork(other, n)).then_some((n, other))
        });
        let best = shared.max();
        let n_before = sequence.n_computed;
        let n_computed = match best {
            Some((n, other)) => {
                self.kv.end(slot);
                self.kv.fork(other, slot, n);
                n
            }
            None if n_cached > n_before => {
                self.kv.end(slot);
                self.kv.begin(slot, sequence.salt, &known[..n_asked])
            }
            None => return,
        };
        let Some(sequence) = &mut self.slots[slot] else { return };
        (sequence.n_computed, sequence.n_submitted) = (n_computed, n_computed);
        self.totals.n_cached += (n_computed - n_before) as u64;
        if sequence.n_restarts == 0 {
            let n_gained = n_computed - n_before;
            sequence.n_reused += n_gained;
            // What is cached costs a tenant nothing.
            self.queue.charge(sequence.tenant, -(n_gained as i64));
        }
    }

    /// Whether another prompt with rows in this step, or in the background, computes what this one would compute next: it waits then, and takes it
    /// over. Nothing is remembered of that: it is decided anew for each step, so that whoever waits goes on by itself when the
    /// other one ends. The first prompt of a step waits for nobody.
    fn is_computed_by_another(&self, slot: usize, flight: &Flight) -> bool {
        let sequence = self.slots[slot].as_ref().filter(|s| s.reuse && s.rows_to_score().is_empty());
        let Some(sequence) = sequence else { return false };
        let known = &sequence.tokens[..sequence.tokens.len() - 1];
        let rows = flight.spans.iter().map(|span| (span.slot, span.n_rows)).chain(self.background.rows());
        rows.into_iter().any(|(slot, n_rows)| {
            let Some(other) = &self.slots[slot] else { return false };
            other.in_prompt && other.reuse && other.salt == sequence.salt && {
                let n_shared = common_len(known, &other.tokens);
                // It is ahead after this step, and did not have all before.
                n_shared >= sequence.n_computed + LEAST_SHARED
                    && other.n_computed < n_shared
                    && other.n_computed + n_rows > sequence.n_computed
            }
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
        (flight.begun, flight.ticket) = (now, ticket);
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
