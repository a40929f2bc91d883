//! The engine: sequences through steps of one program. Four verbs: add, schedule, run, postprocess.
//!
//! There is one path. A sequence has tokens, of which the first `n_computed` are in the KV cache; a step computes some
//! of the others; when none is left, the last row's logits choose one more. So a prompt, a chunk of it, a decode step,
//! the tail after a slide and a batch of all of these are the same thing in different shapes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use device::{CommandInfo, Device, Limits, OutputKind, OutputRef, Plan, Program, Timing, Want};

use crate::flight::{Flight, FlightSpan};
use crate::kv::{KvCache, bytes_of_sequence};
use crate::memory::{self, MemoryReport};
use crate::output::TextStream;
use crate::sampling::Sampler;
use crate::sequence::{Sequence, slide};
use crate::speculate::{Acceptance, Speculator};
use crate::step::{History, OutputRows, StepBuffers};
use crate::{
    Error, FinishReason, LoadOptions, Model, Overflow, Prefill, Proposer, Request, Result, SequenceId,
    Timings, load,
};

/// What happens to a sequence. Texts are borrowed for the time of the call.
#[derive(Clone, Debug, PartialEq)]
pub enum Event<'a> {
    /// A token was chosen (not the one that ends the answer).
    Token {
        /// Whose.
        sequence: SequenceId,
        /// Token id.
        id: u32,
        /// Text that is certain now; empty while a character or a stop string may still be incomplete.
        text: &'a str,
        /// Log-probability by the model itself, if asked for.
        logprob: Option<f32>,
    },
    /// It ended; nothing follows.
    Done {
        /// Whose.
        sequence: SequenceId,
        /// Text that was held back and belongs to the answer after all.
        text: &'a str,
        /// Why.
        reason: &'a FinishReason,
        /// How long it took.
        timings: Timings,
        /// The seed that was used: with it, the same request gives the same answer.
        seed: u64,
    },
}

impl<'a> Event<'a> {
    /// The sequence that it concerns.
    pub fn sequence(&self) -> SequenceId {
        match self {
            Event::Token { sequence, .. } | Event::Done { sequence, .. } => *sequence,
        }
    }

    /// The text that it adds to the answer.
    pub fn text(&self) -> &'a str {
        match self {
            Event::Token { text, .. } | Event::Done { text, .. } => text,
        }
    }
}

/// The times of one step, for profiles.
#[derive(Clone, Debug, PartialEq)]
pub struct StepTimings {
    /// Rows of the step; [`Engine::commands`] of it names the commands.
    pub n_rows: usize,
    /// One for each command that ran.
    pub timings: Vec<Timing>,
}

/// A model on a device, and the sequences that it runs.
///
/// `Send`, not `Sync`: a server gives it to one thread, which calls [`Self::add`] for what arrives and [`Self::step`]
/// while there is work; the events go where the sequence's owner waits.
pub struct Engine {
    pub(crate) model: Arc<Model>,
    device: Arc<dyn Device>,
    plan: Plan,
    pub(crate) limits: Limits,
    memory: MemoryReport,
    pub(crate) program: Box<dyn Program>,
    pub(crate) kv: KvCache,
    pub(crate) buffers: StepBuffers,
    /// Steps in flight, the oldest first.
    in_flight: VecDeque<Flight>,
    /// For steps to come; one at least, besides those in flight.
    spare: Vec<Flight>,
    /// `(n_slots)`; a slot has a row of page tables.
    pub(crate) slots: Vec<Option<Sequence>>,
    waiting: VecDeque<Sequence>,
    /// Slots in the order in which a step looks at them; a buffer.
    order: Vec<usize>,
    /// None: nothing is guessed.
    speculator: Option<Speculator>,
    next_id: u64,
    /// Since a sequence was parked, none has ended: nothing is admitted.
    is_short: bool,
    /// Sequences parked so far.
    n_parked: u64,
    recorded: Option<Vec<StepTimings>>,
}

impl Engine {
    /// Fuse, plan the memory, compare it with what is free now, compile.
    ///
    /// # Errors
    /// An option outside its limits; [`Error::DoesNotFit`]; the model writes no text, or only down what it hears; the
    /// device cannot run the plan; or the vocabulary is broken.
    pub fn new(model: Arc<Model>, device: &Arc<dyn Device>, options: &LoadOptions) -> Result<Engine> {
        model.need_text()?;
        if model.plan().output_kind == OutputKind::Hidden {
            return Err(Error::NoHead { file: model.path().to_owned() });
        }
        let limits = load::limits(&model, device.as_ref(), options)?;
        let plan = device_lower::fusion::fuse(&model.plan_for_context(limits.n_ctx)?, device.fusion());
        let memory = memory::report(&model, &plan, device.as_ref(), options)?;
        if options.check_memory && !memory.fits {
            return Err(Error::DoesNotFit(Box::new(memory)));
        }
        let program = device.compile(std::slice::from_ref(&plan), &limits)?;
        model.tokenizer()?;
        let depth = program.max_in_flight();
        let mut kv = KvCache::new(&plan.kv, &limits);
        kv.set_budget(kv_budget(&plan, &limits, &memory, device.as_ref(), options)?);
        Ok(Engine {
            device: device.clone(),
            kv,
            plan,
            memory,
            program,
            buffers: StepBuffers::new(&limits, depth),
            in_flight: VecDeque::with_capacity(depth),
            spare: (0..=depth).map(|_| Flight::new(limits.max_spans)).collect(),
            slots: (0..limits.max_spans).map(|_| None).collect(),
            waiting: VecDeque::new(),
            order: Vec::with_capacity(limits.max_spans),
            speculator: Speculator::new(options.speculate, options.max_draft, limits.max_spans),
            next_id: 0,
            is_short: false,
            n_parked: 0,
            recorded: None,
            limits,
            model,
        })
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// The plan as it runs: fused by the device's rules.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The sizes that the program was compiled for.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// What was planned at load.
    pub fn memory(&self) -> &MemoryReport {
        &self.memory
    }

    /// The KV cache's bookkeeping, for statistics and checks.
    pub fn kv(&self) -> &KvCache {
        &self.kv
    }

    /// The command table for a step of `n_rows` rows.
    pub fn commands(&self, n_rows: usize) -> Vec<CommandInfo> {
        self.program.commands(0, n_rows)
    }

    /// From now on, keep the times of every step (`true`), or stop keeping them.
    pub fn record_timings(&mut self, on: bool) {
        self.recorded = on.then(Vec::new);
    }

    /// The times recorded since the last call.
    pub fn take_timings(&mut self) -> Vec<StepTimings> {
        self.recorded.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Guess with this from now on, instead of looking into the text. Without effect with [`Speculate::Off`].
    pub fn set_proposer(&mut self, proposer: Box<dyn Proposer>) {
        if let Some(speculator) = &mut self.speculator {
            speculator.set_proposer(proposer);
        }
    }

    /// Forget all cached prefixes and give their memory back. Running sequences keep theirs.
    pub fn clear_prefix_cache(&mut self) {
        self.kv.clear_prefixes(self.program.as_mut());
    }

    /// Sequences that wait for a slot.
    pub fn n_waiting(&self) -> usize {
        self.waiting.len()
    }

    /// How often a sequence was parked for lack of memory, to be resumed when another had ended.
    pub fn n_parked(&self) -> u64 {
        self.n_parked
    }

    /// Sequences in slots.
    pub fn n_running(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    /// Whether nothing runs or waits.
    pub fn is_idle(&self) -> bool {
        self.n_running() == 0 && self.waiting.is_empty()
    }

    /// Check a request and queue it. It starts at the next [`Self::step`] that has a slot free, in order of arrival.
    ///
    /// # Errors
    /// The prompt is empty, too long, or has ids that are not in the vocabulary; a parameter is outside its limits; or
    /// stop strings are given and there is no tokenizer.
    pub fn add(&mut self, request: Request) -> Result<SequenceId> {
        let n_ctx = self.limits.n_ctx;
        let mut tokens = request.tokens;
        self.check_tokens(&tokens)?;
        match request.overflow {
            Overflow::Slide { keep } if keep > n_ctx / 2 => {
                return Err(Error::Option {
                    name: "keep",
                    value: keep.to_string(),
                    expected: format!("at most {}, half the context", n_ctx / 2),
                });
            }
            Overflow::Slide { keep } if tokens.len() >= n_ctx => slide(&mut tokens, keep, n_ctx),
            Overflow::Stop if tokens.len() >= n_ctx => {
                return Err(Error::PromptTooLong { n_tokens: tokens.len(), n_ctx });
            }
            _ => {}
        }
        if !request.stop.is_empty() {
            self.model.need_tokenizer()?;
        }
        tokens.reserve_exact(n_ctx - tokens.len());
        let sampler = Sampler::new(&request.sampling, self.model.n_vocab())?;
        let n_outputs = 1 + self.speculator.as_ref().map_or(0, Speculator::max_draft);
        self.buffers.reserve_for(&sampler, n_ctx, n_outputs, self.slots.len());
        let id = SequenceId(self.next_id);
        self.next_id += 1;
        self.waiting.push_back(Sequence {
            id,
            n_prompt: tokens.len(),
            tokens,
            n_computed: 0,
            n_submitted: 0,
            pending: Vec::with_capacity(self.program.max_in_flight()),
            n_restarts: 0,
            in_prompt: true,
            n_reused: 0,
            n_generated: 0,
            sampler,
            text: TextStream::new(self.model.tokenizer()?.cloned(), request.stop, request.show_special),
            max_tokens: request.max_tokens.unwrap_or(usize::MAX),
            ignore_end: request.ignore_end,
            overflow: request.overflow,
            prefill: request.prefill,
            reuse: request.reuse,
            speculate: request.speculate,
            cancel: request.cancel,
            draft: Vec::with_capacity(self.speculator.as_ref().map_or(0, Speculator::max_draft)),
            acceptance: Acceptance::new(),
            added: Instant::now(),
            started: None,
            first_token: None,
            last_token: None,
        });
        Ok(id)
    }

    pub(crate) fn check_tokens(&self, tokens: &[u32]) -> Result<()> {
        let n_vocab = self.model.n_vocab();
        match tokens.iter().position(|t| *t as usize >= n_vocab) {
            Some(position) => Err(Error::TokenOutOfRange { token: tokens[position], position, n_vocab }),
            None if tokens.is_empty() => Err(Error::EmptyPrompt),
            None => Ok(()),
        }
    }

    /// End a sequence before its next step, with [`FinishReason::Cancelled`]. One that is not here any more is ignored.
    pub fn cancel(&mut self, id: SequenceId) {
        if let Some(s) = self.slots.iter().flatten().chain(&self.waiting).find(|s| s.id == id) {
            s.cancel.cancel();
        }
    }

    /// Submit steps, as many as the device takes ahead, of as many rows of as many sequences as fit; wait for the oldest, and
    /// give the tokens that it chose. True while there is more to do.
    ///
    /// # Errors
    /// The device failed. No token of the steps in flight was chosen; another call computes the same rows again.
    pub fn step(&mut self, on_event: &mut dyn FnMut(Event<'_>)) -> Result<bool> {
        self.drop_cancelled(on_event);
        self.admit()?;
        while self.in_flight.len() < self.program.max_in_flight() && self.schedule(on_event)? {
            if let Err(error) = self.submit() {
                self.forget_in_flight();
                return match error {
                    // Its sequence was cancelled; the others' rows are submitted again.
                    Error::Device(device::Error::Stopped { .. }) => Ok(true),
                    error => Err(error),
                };
            }
        }
        if let Some(flight) = self.in_flight.pop_front() {
            if let Some(ticket) = flight.ticket
                && let Err(error) = self.program.wait(ticket)
            {
                self.spare.push(flight);
                self.forget_in_flight();
                return Err(error.into());
            }
            if let Some(speculator) = self.speculator.as_mut().filter(|_| flight.all_answer) {
                speculator.observe(flight.n_rows, flight.begun.elapsed().as_secs_f64());
            }
            self.postprocess(&flight, on_event);
            self.spare.push(flight);
        }
        let idle = self.is_idle();
        if idle {
            // What is still in flight was computed for answers that have ended.
            self.forget_in_flight();
            if cfg!(debug_assertions) {
                self.kv.check()?;
            }
        }
        Ok(!idle)
    }

    /// Wait for all steps in flight and take nothing of them: their rows will be submitted again.
    pub(crate) fn forget_in_flight(&mut self) {
        while let Some(flight) = self.in_flight.pop_front() {
            // A step that failed is as good as one that nobody looks at.
            let _ = flight.ticket.map(|ticket| self.program.wait(ticket));
            self.spare.push(flight);
        }
        self.slots.iter_mut().flatten().for_each(Sequence::forget_in_flight);
    }

    pub(crate) fn drop_cancelled(&mut self, on_event: &mut dyn FnMut(Event<'_>)) {
        for slot in 0..self.slots.len() {
            if self.slots[slot].as_ref().is_some_and(|s| s.cancel.is_cancelled()) {
                self.finish(slot, FinishReason::Cancelled, on_event);
            }
        }
        self.waiting.retain_mut(|sequence| {
            let keep = !sequence.cancel.is_cancelled();
            if !keep {
                emit_done(sequence, &FinishReason::Cancelled, on_event);
            }
            keep
        });
    }

    /// Waiting sequences take free slots, each with what the prefix cache has of its prompt.
    fn admit(&mut self) -> Result<()> {
        for slot in 0..self.slots.len() {
            if self.slots[slot].is_some() {
                continue;
            }
            if self.is_short && self.n_running() > 0 {
                break;
            }
            let Some(mut sequence) = self.waiting.pop_front() else { break };
            match begin(&mut self.kv, slot, &mut sequence, self.program.as_mut()) {
                Ok(()) => {
                    sequence.n_reused = sequence.n_computed;
                    self.slots[slot] = Some(sequence);
                }
                Err(error) => {
                    self.waiting.push_front(sequence);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Fill the step: first a row of every sequence that is answering, so that a long prompt delays nobody by more than a
    /// chunk; then prompts in order of arrival. Where all are answering, guesses come with their rows. False: there is nothing
    /// to submit before a step in flight is done.
    fn schedule(&mut self, on_event: &mut dyn FnMut(Event<'_>)) -> Result<bool> {
        let is_ahead = !self.in_flight.is_empty();
        if is_ahead && !self.may_run_ahead() {
            return Ok(false);
        }
        self.buffers.clear();
        self.order.clear();
        self.order.extend((0..self.slots.len()).filter(|&slot| self.slots[slot].is_some()));
        let slots = &self.slots;
        self.order.sort_unstable_by_key(|&slot| slots[slot].as_ref().map(|s| (s.n_missing() > 1, s.id)));
        let all_answer = slots.iter().flatten().all(|s| !s.in_prompt);
        if let Some(speculator) = self.speculator.as_mut().filter(|_| all_answer && !is_ahead) {
            speculator.begin_step(self.order.len());
        }
        let Some(mut flight) = self.spare.pop() else { return Ok(false) };
        flight.spans.clear();
        for i in 0..self.order.len() {
            let slot = self.order[i];
            if self.buffers.rows_left() == 0 {
                break;
            }
            if let Err(error) = self.schedule_one(slot, all_answer && !is_ahead, &mut flight) {
                match error {
                    // Run out of pages ahead of time: let the steps in flight end first.
                    Error::PagesExhausted { .. } if is_ahead => {
                        self.spare.push(flight);
                        return Ok(false);
                    }
                    Error::PagesExhausted { .. } => {
                        self.spare.push(flight);
                        self.park_youngest(on_event, &error);
                        return self.schedule(on_event);
                    }
                    error => {
                        self.spare.push(flight);
                        return Err(error);
                    }
                }
            }
        }
        let is_empty = self.buffers.is_empty();
        (flight.n_rows, flight.all_answer) = (self.buffers.n_rows(), all_answer && !is_ahead);
        self.spare.push(flight);
        Ok(!is_empty)
    }

    /// There is no room for a page: the youngest sequence gives its slot back and waits before all that never ran. Its pages
    /// stay in the prefix cache as long as they can; what is missing is computed again when it resumes. The oldest is never
    /// parked while there is another, and alone it has the whole budget, so it always finishes.
    fn park_youngest(&mut self, on_event: &mut dyn FnMut(Event<'_>), error: &Error) {
        let slots = self.slots.iter().enumerate();
        let youngest = slots.filter_map(|(slot, s)| Some((s.as_ref()?.id, slot))).max();
        let Some((_, slot)) = youngest else { return };
        if self.n_running() == 1 {
            // Cannot happen: a budget holds one whole sequence at least.
            self.finish(slot, FinishReason::Failed(error.to_string()), on_event);
            return;
        }
        let Some(mut sequence) = self.slots[slot].take() else { return };
        if sequence.reuse {
            self.kv.remember(slot, &sequence.tokens[..sequence.n_computed], true, self.program.as_mut());
        }
        self.kv.end(slot, self.program.as_mut());
        sequence.n_computed = 0;
        sequence.forget_in_flight();
        sequence.in_prompt = true;
        sequence.n_restarts += 1;
        // Those that were parked before are younger.
        self.waiting.push_front(sequence);
        self.is_short = true;
        self.n_parked += 1;
    }

    /// A sequence ended: what it held is free for others.
    pub(crate) fn note_end(&mut self) {
        self.is_short = false;
    }

    /// Whether steps may be submitted whose tokens are not known yet: every sequence is answering, does not guess, and has its
    /// tokens chosen by the device.
    fn may_run_ahead(&self) -> bool {
        let guesses = |s: &Sequence| self.speculator.is_some() && s.speculate;
        let chooses = |s: &Sequence| self.program.chooses_in_flight(&s.sampler.want(0));
        self.recorded.is_none()
            && self.waiting.is_empty()
            && self.slots.iter().flatten().all(|s| !s.in_prompt && !guesses(s) && chooses(s))
    }

    /// Append the rows of one sequence to the step.
    ///
    /// # Errors
    /// No page is free ([`Error::PagesExhausted`]), or a proposer failed; nothing was appended.
    fn schedule_one(&mut self, slot: usize, may_guess: bool, flight: &mut Flight) -> Result<()> {
        let Some(sequence) = &mut self.slots[slot] else { return Ok(()) };
        let position = sequence.n_submitted;
        let n_ahead = sequence.pending.len();
        let missing = sequence.n_missing();
        sequence.draft.clear();
        let output = self.buffers.n_outputs();
        let mut span = FlightSpan {
            id: sequence.id,
            n_restarts: sequence.n_restarts,
            slot,
            n_rows: 1,
            n_draft: 0,
            output: Some(output),
        };
        if missing == 0 {
            // Its next token is chosen by a step in flight.
            let Some(&from) = sequence.pending.last() else { return Ok(()) };
            if sequence.may_be_over(self.limits.n_ctx) {
                return Ok(());
            }
            self.kv.reserve(slot, position, 1, self.program.as_mut())?;
            let history = History { tokens: &sequence.tokens, pending: &sequence.pending, draft: &[] };
            let want = self.buffers.want(&sequence.sampler, &history, n_ahead);
            self.buffers.push_linked(slot, position, from, want);
            flight.spans.push(span);
            return Ok(());
        }
        let chunk = if sequence.prefill == Prefill::PerToken { 1 } else { usize::MAX };
        let n_rows = missing.min(self.buffers.rows_left()).min(chunk);
        if let Some(speculator) = self.speculator.as_mut().filter(|_| may_guess && sequence.speculate) {
            let most = sequence.most_draft(self.limits.n_ctx);
            speculator.guess(slot, sequence, most, self.model.n_vocab())?;
        }
        span.n_draft = sequence.draft.len();
        span.n_rows = n_rows + span.n_draft;
        self.kv.reserve(slot, position, span.n_rows, self.program.as_mut())?;
        sequence.started.get_or_insert_with(Instant::now);
        let rows = &sequence.tokens[position..position + n_rows];
        if n_rows < missing {
            span.output = None;
            self.buffers.push(slot, position, rows, OutputRows::None, Want::default());
        } else {
            let history = History { tokens: &sequence.tokens, ..History::default() };
            let want = self.buffers.want(&sequence.sampler, &history, n_ahead);
            self.buffers.push(slot, position, rows, OutputRows::Last(1), want);
            for (index, guess) in sequence.draft.iter().enumerate() {
                let history = History { draft: &sequence.draft[..=index], ..history };
                let want = self.buffers.want(&sequence.sampler, &history, n_ahead + index + 1);
                self.buffers.push_guess(*guess, want);
            }
        }
        flight.spans.push(span);
        Ok(())
    }

    /// Submit what [`Self::schedule`] filled.
    fn submit(&mut self) -> Result<()> {
        let Some(flight) = self.spare.last_mut() else { return Ok(()) };
        // A device may end a step between two commands when its only prompt is cancelled.
        let mut prompts = flight.spans.iter().filter(|span| span.n_rows > 1 + span.n_draft);
        let prompt = prompts.next().filter(|_| prompts.next().is_none());
        let stop = prompt.and_then(|span| self.slots[span.slot].as_ref()).map(|s| s.cancel.as_atomic());
        let step = self.buffers.step(&self.kv, stop);
        flight.begun = Instant::now();
        flight.ticket = match &mut self.recorded {
            None => Some(self.program.submit(&step)?),
            Some(recorded) => {
                let mut timings = Vec::new();
                self.program.run_timed(&step, &mut timings)?;
                recorded.push(StepTimings { n_rows: self.buffers.n_rows(), timings });
                None
            }
        };
        let Some(flight) = self.spare.pop() else { return Ok(()) };
        for span in &flight.spans {
            let Some(sequence) = &mut self.slots[span.slot] else { continue };
            sequence.n_submitted += span.n_rows;
            if let (Some(ticket), Some(output)) = (flight.ticket, span.output) {
                sequence.pending.push(OutputRef { ticket, output: output as u32 });
            }
        }
        self.in_flight.push_back(flight);
        Ok(())
    }

    /// Run what the buffers hold, by itself.
    pub(crate) fn run(&mut self) -> Result<()> {
        self.forget_in_flight();
        Ok(self.program.run(&self.buffers.step(&self.kv, None))?)
    }

    /// The id that the next sequence gets.
    pub(crate) fn next_id(&self) -> u64 {
        self.next_id
    }

    /// A slot without a sequence, for scoring.
    pub(crate) fn free_slot(&self, what: &'static str) -> Result<usize> {
        let busy = Error::Busy { what, n_sequences: self.slots.len() };
        self.slots.iter().position(Option::is_none).ok_or(busy)
    }
}

/// Most bytes of KV pages: what was asked for; or what is free now beside everything else that the model takes, and no less than
/// one sequence needs.
fn kv_budget(
    plan: &Plan,
    limits: &Limits,
    memory: &MemoryReport,
    device: &dyn Device,
    options: &LoadOptions,
) -> Result<u64> {
    let least = bytes_of_sequence(&plan.kv, limits, limits.n_ctx);
    match options.kv_budget {
        Some(bytes) if bytes < least => Err(Error::Option {
            name: "KV budget",
            value: format!("{bytes} bytes"),
            expected: format!("at least {least}, what one sequence of {} tokens needs", limits.n_ctx),
        }),
        Some(bytes) => Ok(bytes),
        None if !options.check_memory || memory.installed == 0 || !device.takes_pages_on_use() => {
            Ok(u64::MAX)
        }
        None => Ok(memory.free.saturating_sub(memory.mapped + memory.committed).max(least)),
    }
}

pub(crate) fn begin(
    kv: &mut KvCache,
    slot: usize,
    sequence: &mut Sequence,
    program: &mut dyn Program,
) -> Result<()> {
    sequence.n_computed = 0;
    sequence.forget_in_flight();
    if sequence.reuse {
        // The last token is always computed: its logits are what is wanted.
        let known = &sequence.tokens[..sequence.tokens.len() - 1];
        sequence.n_computed = match kv.begin(slot, known, program) {
            // No room for the copy of a page that is shared in part: everything is computed.
            Err(Error::PagesExhausted { .. }) => 0,
            found => found?,
        };
        sequence.n_submitted = sequence.n_computed;
    }
    Ok(())
}

pub(crate) fn emit_done(sequence: &mut Sequence, reason: &FinishReason, on_event: &mut dyn FnMut(Event<'_>)) {
    let (timings, seed) = (sequence.timings(), sequence.sampler.seed());
    let text = sequence.text.finish(matches!(reason, FinishReason::StopString(_)));
    on_event(Event::Done { sequence: sequence.id, text, reason, timings, seed });
}
