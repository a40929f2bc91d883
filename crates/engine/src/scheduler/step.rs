//! One step being built: rows of one or more sequences, in buffers allocated once.

use std::sync::atomic::AtomicBool;

use device::{Choose, Limits, Link, Masks, Numerics, OutputRef, Slice, Span, Stage, StateUse, Step, Want};

use crate::kv::KvCache;
use crate::sampling::{DryBuffers, Sampler};
use crate::sequence::Sequence;
use crate::vision::IMAGE_IDS;

/// Rows of a span that give logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputRows {
    /// No row: a chunk of a prompt that goes on.
    None,
    /// The last `n` rows; the very last one predicts the next token of the sequence.
    Last(usize),
}

/// The plan of the program that computes a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepPlan {
    /// The model's own plan, or the one with adapters if a span has one.
    Text,
    /// The plan whose input is embeddings of tokens and rows of images.
    Given,
    /// The plan of the layer that predicts one token more.
    Next,
}

/// Buffers of the largest step that the limits allow.
#[derive(Debug)]
pub(crate) struct StepBuffers {
    /// Plan of the step.
    pub(crate) plan: StepPlan,
    /// True if the program has a plan of given rows.
    has_given: bool,
    /// Input of the plan of given rows.
    pub(crate) input: Vec<f32>,
    /// Tokens of the rows; capacity `max_rows`.
    tokens: Vec<u32>,
    /// Rows whose token an earlier output chooses; capacity `max_spans`.
    links: Vec<Link>,
    /// Spans of the step; capacity `max_spans`.
    spans: Vec<Span>,
    /// States of the spans, with recurrent layers; capacity `max_spans`.
    states: Vec<StateUse>,
    /// Adapter of each span; capacity `max_spans`.
    adapters: Vec<u32>,
    /// `Some` if the program has a plan with adapters; true if it runs even if no span has one.
    adapted: Option<bool>,
    /// Rows that are outputs; capacity `max_outputs`.
    outputs: Vec<u32>,
    /// Wants of the outputs; capacity `max_outputs`.
    wants: Vec<Want>,
    /// Tokens that penalties count. It grows when a sequence with a longer window is added
    /// ([`Self::reserve_for`]).
    recent: Vec<u32>,
    /// Outputs in flight that choose further tokens for penalties.
    pending: Vec<OutputRef>,
    /// Logit biases of all outputs; grows as `recent` does.
    biases: Vec<(u32, f32)>,
    /// Stages of all outputs that have any.
    stages: Vec<Stage>,
    dry: DryBuffers,
    /// Number of masks of all outputs.
    n_masks: usize,
    words_per_mask: usize,
    max_rows: usize,
    max_outputs: usize,
}

/// Tokens before an output: known ones, then those that steps in flight choose, or draft tokens.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct History<'a> {
    /// Known tokens.
    pub(crate) tokens: &'a [u32],
    /// Outputs of steps in flight.
    pub(crate) pending: &'a [OutputRef],
    /// Draft tokens; never together with outputs in flight.
    pub(crate) draft: &'a [u32],
}

impl StepBuffers {
    /// Empty buffers for a program with the model's own plan, and a plan of given rows if
    /// `has_given`.
    pub(crate) fn new(limits: &Limits, n_vocab: usize, max_in_flight: usize, has_given: bool) -> StepBuffers {
        StepBuffers {
            plan: StepPlan::Text,
            has_given,
            input: Vec::new(),
            tokens: Vec::with_capacity(limits.max_rows),
            links: Vec::with_capacity(limits.max_spans),
            spans: Vec::with_capacity(limits.max_spans),
            states: Vec::with_capacity(limits.max_spans),
            adapters: Vec::with_capacity(limits.max_spans),
            adapted: None,
            outputs: Vec::with_capacity(limits.max_outputs),
            wants: Vec::with_capacity(limits.max_outputs),
            recent: Vec::new(),
            pending: Vec::with_capacity(limits.max_spans * max_in_flight),
            biases: Vec::new(),
            stages: Vec::new(),
            dry: DryBuffers::default(),
            n_masks: 0,
            words_per_mask: n_vocab.div_ceil(32),
            max_rows: limits.max_rows,
            max_outputs: limits.max_outputs,
        }
    }

    /// Slot, position and token of each row, span by span.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (usize, usize, u32)> {
        self.spans.iter().flat_map(|span| {
            let tokens = self.tokens.iter().skip(span.first_row as usize).take(span.n_rows as usize);
            let first = span.first_position as usize;
            tokens.enumerate().map(move |(i, token)| (span.slot as usize, first + i, *token))
        })
    }

    /// Replace the ids of image rows by a token, for plans that read tokens beside the input.
    pub(crate) fn name_image_rows(&mut self, token: Option<u32>) {
        let Some(token) = token else { return };
        self.tokens.iter_mut().filter(|id| **id >= IMAGE_IDS).for_each(|id| *id = token);
    }

    pub(crate) fn clear(&mut self) {
        self.plan = StepPlan::Text;
        self.input.clear();
        self.tokens.clear();
        self.links.clear();
        self.spans.clear();
        self.states.clear();
        self.adapters.clear();
        self.outputs.clear();
        self.wants.clear();
        self.recent.clear();
        self.pending.clear();
        self.biases.clear();
        self.stages.clear();
        self.n_masks = 0;
    }

    /// Reserve room for the outputs of `n_sequences` sequences like this one, so that steps
    /// allocate nothing.
    pub(crate) fn reserve_for(
        &mut self,
        sequence: &Sequence,
        n_ctx: usize,
        n_outputs: usize,
        n_sequences: usize,
    ) {
        let n = n_outputs * n_sequences;
        let room = |len: usize, capacity: usize| len.saturating_sub(capacity);
        let sampler = &sequence.sampler;
        if let Some(window) = sampler.penalty_window() {
            let window = if window == 0 { n_ctx } else { window.min(n_ctx) };
            self.recent.reserve(room(n * window, self.recent.len()));
        }
        let mut n_biases = sampler.biases().len() + sequence.forbidden(0).len();
        if let Some(dry) = sampler.dry() {
            let window = if dry.window() == 0 { n_ctx } else { dry.window().min(n_ctx) };
            self.dry.reserve(window);
            n_biases += window;
        }
        self.stages.reserve(room(n * sampler.n_stages(), self.stages.len()));
        self.biases.reserve(room(n * n_biases, self.biases.len()));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Number of rows for which there is room.
    pub(crate) fn rows_left(&self) -> usize {
        self.max_rows - self.tokens.len()
    }

    /// Number of masks so far.
    pub(crate) fn n_masks(&self) -> usize {
        self.n_masks
    }

    /// Number of outputs so far.
    pub(crate) fn n_outputs(&self) -> usize {
        self.outputs.len()
    }

    /// Append rows of a sequence with their outputs, all of which get the same `want`. There must
    /// be room.
    pub(crate) fn push(
        &mut self,
        slot: usize,
        first_position: usize,
        tokens: &[u32],
        outputs: OutputRows,
        want: Want,
    ) {
        debug_assert!(tokens.len() <= self.rows_left());
        let first_row = self.tokens.len();
        self.tokens.extend_from_slice(tokens);
        self.adapters.push(0);
        self.spans.push(Span {
            slot: slot as u32,
            first_row: first_row as u32,
            n_rows: tokens.len() as u32,
            first_position: first_position as u32,
        });
        let n_outputs = match outputs {
            OutputRows::None => 0,
            OutputRows::Last(n) => n.min(tokens.len()),
        };
        let end = self.tokens.len();
        self.outputs.extend((end - n_outputs..end).map(|row| row as u32));
        self.wants.extend(std::iter::repeat_n(want, n_outputs));
        debug_assert!(self.outputs.len() <= self.max_outputs);
    }

    /// Set the states of the last span.
    pub(crate) fn push_state(&mut self, state: Option<StateUse>) {
        self.states.extend(state);
    }

    /// Set the adapter of the last span.
    pub(crate) fn set_adapter(&mut self, adapter: u32) {
        if let Some(last) = self.adapters.last_mut() {
            *last = adapter;
        }
    }

    /// Set whether the program has a plan with adapters. Deterministic numerics then always run it,
    /// since a row's result must not depend on the adapters of others.
    pub(crate) fn set_adapted(&mut self, is_adapted: bool, numerics: Numerics) {
        self.adapted = is_adapted.then_some(numerics == Numerics::Deterministic);
    }

    /// Index of a plan in the program, for a step in which spans use `adapters`. The program's
    /// plans are, in this order: the model's own; the one with adapters; the one of given rows; the
    /// one that predicts one token more.
    pub(crate) fn index_of(&self, plan: StepPlan, adapters: &[u32]) -> usize {
        let after_text = 1 + usize::from(self.adapted.is_some());
        match plan {
            StepPlan::Text => usize::from(self.reads_adapters(adapters)),
            StepPlan::Given => after_text,
            StepPlan::Next => after_text + usize::from(self.has_given),
        }
    }

    /// Returns true if a step of text in which spans use `adapters` runs the plan with adapters.
    pub(crate) fn reads_adapters(&self, adapters: &[u32]) -> bool {
        self.adapted.is_some_and(|always| always || adapters.iter().any(|adapter| *adapter != 0))
    }

    /// Number of outputs for which there is room.
    pub(crate) fn outputs_left(&self) -> usize {
        self.max_outputs - self.outputs.len()
    }

    /// Make the last row of the last span an output.
    pub(crate) fn push_last_output(&mut self, want: Want) {
        self.outputs.push(self.tokens.len().saturating_sub(1) as u32);
        self.wants.push(want);
    }

    /// Make these rows of the last span outputs. They must follow the outputs so far.
    pub(crate) fn push_outputs(&mut self, rows: std::ops::Range<usize>, want: Want) {
        let Some(span) = self.spans.last() else { return };
        let first = span.first_row as usize;
        self.outputs.extend(rows.clone().map(|row| (first + row) as u32));
        self.wants.extend(rows.map(|_| want));
    }

    /// Append a row whose token an earlier output chooses; it is an output too.
    pub(crate) fn push_linked(&mut self, slot: usize, position: usize, from: OutputRef, want: Want) {
        self.links.push(Link { row: self.tokens.len() as u32, from });
        self.push(slot, position, &[0], OutputRows::Last(1), want);
    }

    /// Append a draft token to the last span, whose last row is an output; the new row is one too.
    pub(crate) fn push_guess(&mut self, token: u32, want: Want) {
        debug_assert!(self.rows_left() > 0);
        let Some(span) = self.spans.last_mut() else { return };
        span.n_rows += 1;
        self.outputs.push(self.tokens.len() as u32);
        self.wants.push(want);
        self.tokens.push(token);
        debug_assert!(self.outputs.len() <= self.max_outputs);
    }

    /// Want of a sampler for an output after this history, with the random number that is `n_ahead`
    /// after its next.
    pub(crate) fn want(&mut self, sampler: &Sampler, history: &History<'_>, n_ahead: usize) -> Want {
        let mut want = sampler.want(n_ahead);
        if let Some(window) = sampler.penalty_window() {
            let window = if window == 0 { usize::MAX } else { window };
            let last = |len: usize, most: usize| len - len.min(most);
            let draft = &history.draft[last(history.draft.len(), window)..];
            let left = window - draft.len();
            let pending = &history.pending[last(history.pending.len(), left)..];
            let left = left - pending.len();
            let tokens = &history.tokens[last(history.tokens.len(), left)..];
            let start = self.recent.len();
            // Ids of image rows are no tokens.
            self.recent.extend(tokens.iter().chain(draft).filter(|token| **token < IMAGE_IDS));
            want.recent = Slice { start: start as u32, len: (self.recent.len() - start) as u32 };
            want.pending = Slice { start: self.pending.len() as u32, len: pending.len() as u32 };
            self.pending.extend_from_slice(pending);
        }
        let biases = sampler.biases();
        want.biases = Slice { start: self.biases.len() as u32, len: biases.len() as u32 };
        self.biases.extend_from_slice(biases);
        if let Some(dry) = sampler.dry() {
            let start = self.biases.len();
            dry.apply(history.tokens, history.draft, &mut self.dry, &mut self.biases);
            let mut at = start;
            while let Some((token, _)) = self.biases.get(at) {
                if *token < IMAGE_IDS {
                    at += 1;
                } else {
                    self.biases.swap_remove(at);
                }
            }
            want.biases.len = self.biases.len() as u32 - want.biases.start;
        }
        if let Choose::Chain(chain) = &mut want.choose {
            let start = self.stages.len();
            self.stages.extend(sampler.stages(n_ahead));
            chain.stages = Slice { start: start as u32, len: (self.stages.len() - start) as u32 };
        }
        want
    }

    /// Want of a sequence for an output: its sampler's, with end tokens that are still forbidden,
    /// and the next mask of the step.
    pub(crate) fn want_of(&mut self, sequence: &Sequence, history: &History<'_>, n_ahead: usize) -> Want {
        let mut want = self.want(&sequence.sampler, history, n_ahead);
        let forbidden = sequence.forbidden(n_ahead);
        want.biases.len += forbidden.len() as u32;
        self.biases.extend(forbidden.iter().map(|token| (*token, f32::NEG_INFINITY)));
        if sequence.constraint.is_some() {
            let start = self.n_masks * self.words_per_mask;
            want.mask = Some(Slice { start: start as u32, len: self.words_per_mask as u32 });
            self.n_masks += 1;
        }
        want
    }

    /// The lists that wants refer to.
    #[cfg(test)]
    pub(crate) fn lists(&self) -> Step<'_> {
        let StepBuffers { recent, pending, biases, stages, .. } = self;
        Step { recent, pending, biases, stages, ..Step::default() }
    }

    /// The step for the program.
    pub(crate) fn step<'a>(
        &'a self,
        kv: &'a KvCache,
        masks: Masks<'a>,
        stop: Option<&'a AtomicBool>,
    ) -> Step<'a> {
        let is_adapted = self.plan == StepPlan::Text && self.reads_adapters(&self.adapters);
        Step {
            plan: self.index_of(self.plan, &self.adapters),
            input: &self.input,
            adapters: if is_adapted { &self.adapters } else { &[] },
            tokens: &self.tokens,
            links: &self.links,
            spans: &self.spans,
            states: &self.states,
            page_tables: kv.tables(),
            table_changes: kv.table_changes(),
            pages_per_table: kv.pages_per_table(),
            outputs: &self.outputs,
            wants: &self.wants,
            recent: &self.recent,
            pending: &self.pending,
            biases: &self.biases,
            stages: &self.stages,
            masks,
            stop,
        }
    }
}
