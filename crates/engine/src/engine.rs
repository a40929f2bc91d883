//! The engine: sequences through steps of one program. Four verbs: add, schedule, run, postprocess.
//!
//! There is one path. A sequence has tokens, of which the first `n_computed` are in the KV cache; a step computes some
//! of the others; when none is left, the last row's logits choose one more. So a prompt, a chunk of it, a decode step,
//! the tail after a slide and a batch of all of these are the same thing in different shapes.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use device::{CommandInfo, Device, Limits, Output, Plan, Program, Timing};
use formats::Access;

use crate::kv::KvCache;
use crate::memory::{self, MemoryReport};
use crate::output::TextStream;
use crate::sampling::{Sampler, Scratch};
use crate::sequence::{Sequence, slide};
use crate::speculate::{Acceptance, Speculator};
use crate::step::{Outputs, StepBuffers};
use crate::{
    Error, FinishReason, LoadOptions, Model, Overflow, Prefill, Proposer, Request, Result, SequenceId,
    Timings, TokenizerSource, load,
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
    pub(crate) scratch: Scratch,
    /// `(n_slots)`; a slot has a row of page tables.
    pub(crate) slots: Vec<Option<Sequence>>,
    waiting: VecDeque<Sequence>,
    /// Slots in the order in which a step looks at them; a buffer.
    order: Vec<usize>,
    /// None: nothing is guessed.
    speculator: Option<Speculator>,
    next_id: u64,
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
        if model.plan().output == Output::Hidden {
            return Err(Error::NoHead { file: model.path().to_owned() });
        }
        let limits = load::limits(&model, device.as_ref(), options)?;
        let plan = device::fusion::fuse(&model.plan_for_context(limits.n_ctx)?, device.fusion());
        let memory = memory::report(&model, &plan, device.as_ref(), options)?;
        if options.check_memory && !memory.fits {
            return Err(Error::DoesNotFit(Box::new(memory)));
        }
        let program = device.compile(std::slice::from_ref(&plan), &limits)?;
        model.tokenizer()?;
        Ok(Engine {
            device: device.clone(),
            kv: KvCache::new(&plan.kv, &limits),
            plan,
            memory,
            program,
            buffers: StepBuffers::new(&limits),
            scratch: Scratch::new(model.n_vocab()),
            slots: (0..limits.max_spans).map(|_| None).collect(),
            waiting: VecDeque::new(),
            order: Vec::with_capacity(limits.max_spans),
            speculator: Speculator::new(options.speculate, options.max_draft, limits.max_spans),
            next_id: 0,
            recorded: None,
            limits,
            model,
        })
    }

    /// [`Model::open`] with the model's own tokenizer, its file mapped, then [`Self::new`].
    ///
    /// # Errors
    /// As both.
    pub fn load(path: &Path, device: &Arc<dyn Device>, options: &LoadOptions) -> Result<Engine> {
        let model = Model::open(path, &TokenizerSource::Own, Access::Map)?;
        Engine::new(Arc::new(model), device, options)
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
        let id = SequenceId(self.next_id);
        self.next_id += 1;
        self.waiting.push_back(Sequence {
            id,
            n_prompt: tokens.len(),
            tokens,
            n_computed: 0,
            in_prompt: true,
            n_reused: 0,
            n_generated: 0,
            sampler: Sampler::new(&request.sampling, self.model.n_vocab())?,
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

    /// One step: as many rows of as many sequences as fit. True while there is more to do.
    ///
    /// # Errors
    /// The device failed. No token of this step was chosen; another call computes the same rows again.
    pub fn step(&mut self, on_event: &mut dyn FnMut(Event<'_>)) -> Result<bool> {
        self.drop_cancelled(on_event);
        self.admit()?;
        let all_answer = self.schedule(on_event)?;
        if !self.buffers.is_empty() {
            let begun = Instant::now();
            if self.run_chained(on_event)? {
                return Ok(!self.is_idle());
            }
            self.run()?;
            if let Some(speculator) = self.speculator.as_mut().filter(|_| all_answer) {
                speculator.observe(self.buffers.n_rows(), begun.elapsed().as_secs_f64());
            }
            self.postprocess(on_event);
        }
        let idle = self.is_idle();
        if idle && cfg!(debug_assertions) {
            self.kv.check()?;
        }
        Ok(!idle)
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

    /// Fill the step: first a row of every sequence that is decoding, so that a long prompt delays nobody by more than a
    /// chunk; then prompts in order of arrival. Where all are decoding, guesses come with their rows; returns whether.
    fn schedule(&mut self, on_event: &mut dyn FnMut(Event<'_>)) -> Result<bool> {
        self.buffers.clear();
        self.order.clear();
        self.order.extend((0..self.slots.len()).filter(|&slot| self.slots[slot].is_some()));
        let slots = &self.slots;
        self.order.sort_unstable_by_key(|&slot| slots[slot].as_ref().map(|s| (s.n_missing() > 1, s.id)));
        let all_answer = slots.iter().flatten().all(|s| !s.in_prompt);
        if let Some(speculator) = self.speculator.as_mut().filter(|_| all_answer) {
            speculator.begin_step(self.order.len());
        }
        for i in 0..self.order.len() {
            let slot = self.order[i];
            let Some(sequence) = &mut self.slots[slot] else { continue };
            let chunk = if sequence.prefill == Prefill::PerToken { 1 } else { usize::MAX };
            let n_rows = sequence.n_missing().min(self.buffers.rows_left()).min(chunk);
            if n_rows == 0 {
                break;
            }
            sequence.draft.clear();
            if let Some(speculator) = self.speculator.as_mut().filter(|_| all_answer && sequence.speculate) {
                let most = sequence.most_draft(self.limits.n_ctx);
                speculator.guess(slot, sequence, most, self.model.n_vocab())?;
            }
            let n_positions = n_rows + sequence.draft.len();
            if let Err(error) = self.kv.reserve(slot, sequence.n_computed, n_positions, self.program.as_mut())
            {
                // Cannot happen with pools of the planned sizes; if it does, this sequence ends and the others go on.
                self.finish(slot, FinishReason::Failed(error.to_string()), on_event);
                continue;
            }
            sequence.started.get_or_insert_with(Instant::now);
            let is_last = n_rows == sequence.n_missing();
            let rows = &sequence.tokens[sequence.n_computed..sequence.n_computed + n_rows];
            let outputs = if is_last { Outputs::Last } else { Outputs::None };
            self.buffers.push(slot, sequence.n_computed, rows, outputs);
            self.buffers.push_draft(&sequence.draft);
            if is_last && sequence.sampler.wants_argmax() {
                self.buffers.want_argmax();
            }
        }
        Ok(all_answer)
    }

    /// Whether a single sequence runs and nobody waits, guesses or measures.
    pub(crate) fn is_alone(&self) -> bool {
        let guesses = |s: &Sequence| self.speculator.is_some() && s.speculate;
        self.n_running() == 1
            && self.waiting.is_empty()
            && self.recorded.is_none()
            && !self.slots.iter().flatten().any(|s| s.in_prompt || guesses(s))
    }

    pub(crate) fn run(&mut self) -> Result<()> {
        let step = self.buffers.step(&self.kv);
        match &mut self.recorded {
            None => self.program.run(&step)?,
            Some(recorded) => {
                let mut timings = Vec::new();
                self.program.run_timed(&step, &mut timings)?;
                recorded.push(StepTimings { n_rows: self.buffers.n_rows(), timings });
            }
        }
        Ok(())
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

pub(crate) fn begin(
    kv: &mut KvCache,
    slot: usize,
    sequence: &mut Sequence,
    program: &mut dyn Program,
) -> Result<()> {
    sequence.n_computed = 0;
    if sequence.reuse {
        // The last token is always computed: its logits are what is wanted.
        let known = &sequence.tokens[..sequence.tokens.len() - 1];
        sequence.n_computed = kv.begin(slot, known, program)?;
    }
    Ok(())
}

pub(crate) fn emit_done(sequence: &mut Sequence, reason: &FinishReason, on_event: &mut dyn FnMut(Event<'_>)) {
    let (timings, seed) = (sequence.timings(), sequence.sampler.seed());
    let text = sequence.text.finish(matches!(reason, FinishReason::StopString(_)));
    on_event(Event::Done { sequence: sequence.id, text, reason, timings, seed });
}
