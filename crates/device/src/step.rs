//! One step: rows of tokens of one or more sequences, run through a program together.

use std::sync::atomic::AtomicBool;

use crate::Masks;
use crate::{Chain, Penalties, Sampling, Stage};

/// The number of a submitted step of one program: 0 for the first, one more for each later one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// An output of an earlier step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputRef {
    /// The step.
    pub ticket: Ticket,
    /// Index into its [`Step::outputs`].
    pub output: u32,
}

/// A row whose token is the one that an earlier output chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The row; its entry of [`Step::tokens`] is ignored.
    pub row: u32,
    /// The output, of a step that is in flight or was the last to be waited for.
    pub from: OutputRef,
}

/// Consecutive rows of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Which page tables: an index into the first dimension of [`Step::page_tables`].
    pub slot: u32,
    /// First row in the step.
    pub first_row: u32,
    /// Number of rows.
    pub n_rows: u32,
    /// Position of the first row in its sequence; the others follow.
    pub first_position: u32,
}

/// Which states a span reads and writes. A state is written whole by one step and not changed after, so that it can be shared,
/// kept, and gone back to: a step that failed, or that nobody wants, has harmed none that was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateUse {
    /// What the sequence had before the span's first row; [`crate::STATE_NONE`] at position 0.
    pub from: u32,
    /// Where what it has after the last row is written.
    pub to: u32,
}

/// A range of one of a step's lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    /// Index of the first element.
    pub start: u32,
    /// Number of elements.
    pub len: u32,
}

impl Slice {
    /// The elements; empty if the list is too short, which [`Step::check`] refuses.
    pub fn of<T>(self, list: &[T]) -> &[T] {
        let start = self.start as usize;
        list.get(start..start + self.len as usize).unwrap_or_default()
    }
}

/// How an output's token is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Choose {
    /// Not at all: only the logits are wanted.
    #[default]
    Nothing,
    /// The best token, the lowest id of equals.
    Best,
    /// At random.
    Sample(Sampling),
    /// At random, by stages that the caller puts in order.
    Chain(Chain),
}

/// What the caller wants of an output row. Biases, penalties and the mask change what is chosen, never [`crate::Program::logits`]
/// or log-probabilities, which are the model's own unless [`Want::drawn`] says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Want {
    /// How its token is chosen.
    pub choose: Choose,
    /// Read its logits with [`crate::Program::logits`].
    pub logits: bool,
    /// Compute the log-probability of the chosen token.
    pub logprob: bool,
    /// Compute the log-probabilities of so many best tokens.
    pub n_best: u32,
    /// All log-probabilities are those with which the token was drawn: among the tokens that biases, mask, penalties and stages
    /// left, whose probabilities sum to 1. Otherwise they are the model's own.
    pub drawn: bool,
    /// What tokens of `recent` and `pending` lose; `None`: nothing.
    pub penalties: Option<Penalties>,
    /// Of [`Step::recent`]: tokens that the penalties count.
    pub recent: Slice,
    /// Of [`Step::pending`]: more of them, chosen by steps that may still be in flight.
    pub pending: Slice,
    /// Of [`Step::biases`]: added to the logits first.
    pub biases: Slice,
    /// Of [`Step::masks`]: `n_vocab.div_ceil(32)` words, bit `t % 32` of word `t / 32` says whether token `t` is allowed.
    /// `None`: all are.
    pub mask: Option<Slice>,
}

impl Want {
    /// The logits alone.
    pub const LOGITS: Want = Want { logits: true, ..Want::NOTHING };
    /// The best token.
    pub const BEST: Want = Want { choose: Choose::Best, ..Want::NOTHING };
    const EMPTY: Slice = Slice { start: 0, len: 0 };
    const NOTHING: Want = Want {
        choose: Choose::Nothing,
        logits: false,
        logprob: false,
        n_best: 0,
        drawn: false,
        penalties: None,
        recent: Want::EMPTY,
        pending: Want::EMPTY,
        biases: Want::EMPTY,
        mask: None,
    };

    /// Whether nothing but the logits decides which token is the best.
    pub fn is_plain(&self) -> bool {
        self.penalties.is_none() && self.biases.len == 0 && self.mask.is_none()
    }
}

/// What an output chose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chosen {
    /// The token. `None`: nothing could be chosen, since every logit is NaN, minus infinity or masked; or nothing was wanted.
    pub token: Option<u32>,
    /// Natural logarithm of the probability that the model itself gave it; NaN if it was not wanted.
    pub logprob: f32,
    /// `-log2` of its probability among the tokens that the stages of a [`Chain`] left; NaN unless there was one.
    pub surprise: f32,
}

/// The input of [`crate::Program::submit`]. [`Step::check`] says what it must keep.
#[derive(Clone, Copy, Debug, Default)]
pub struct Step<'a> {
    /// Which of the program's plans.
    pub plan: usize,
    /// `(n_rows)` token ids, each below the vocabulary's size. A plan without Embed ignores their values.
    pub tokens: &'a [u32],
    /// Rows whose token is chosen by an earlier output, in row order.
    pub links: &'a [Link],
    /// What the plan's [`crate::Op::Input`] gives, row by row; empty without one.
    pub input: &'a [f32],
    /// Every row belongs to exactly one span; spans are in row order.
    pub spans: &'a [Span],
    /// `(n_spans)` their states; empty for a plan without recurrent layers.
    pub states: &'a [StateUse],
    /// `(n_spans)` the adapter of each, 0 for none; empty for a plan without [`crate::Op::Adapters`].
    pub adapters: &'a [u32],
    /// `(n_slots, n_groups, pages_per_table)` page numbers. Position `p` lies in entry `p / page_len`. They are read while
    /// the step is submitted, not later.
    pub page_tables: &'a [u32],
    /// Indices of the entries of `page_tables` that may differ from those of the step that was submitted before; `None`: any may.
    /// A device with memory of its own keeps the tables there and copies these.
    pub table_changes: Option<&'a [u32]>,
    /// Entries of one table.
    pub pages_per_table: usize,
    /// `(n_outputs)` rows of which something is wanted, ascending; may be empty.
    pub outputs: &'a [u32],
    /// `(n_outputs)` what is wanted of them.
    pub wants: &'a [Want],
    /// Tokens that penalties count; see [`Want::recent`].
    pub recent: &'a [u32],
    /// Tokens that penalties count and that are not known yet; see [`Want::pending`].
    pub pending: &'a [OutputRef],
    /// Tokens and what is added to their logits; see [`Want::biases`].
    pub biases: &'a [(u32, f32)],
    /// Stages of sampling; see [`Chain::stages`].
    pub stages: &'a [Stage],
    /// Bits of allowed tokens; see [`Want::mask`].
    pub masks: Masks<'a>,
    /// Set by another thread to stop the step. A device looks at it between commands where it can, and then
    /// gives [`crate::Error::Stopped`]; the step's KV positions must be written again.
    pub stop: Option<&'a AtomicBool>,
}

impl<'a> Step<'a> {
    /// The page table of a slot for a KV group.
    pub fn page_table(&self, slot: u32, group: usize, n_groups: usize) -> &'a [u32] {
        let start = (slot as usize * n_groups + group) * self.pages_per_table;
        &self.page_tables[start..start + self.pages_per_table]
    }

    /// Whether somebody set [`Self::stop`].
    pub fn is_stopped(&self) -> bool {
        self.stop.is_some_and(|stop| stop.load(std::sync::atomic::Ordering::Relaxed))
    }
}

impl Span {
    /// The position after the last row's.
    pub fn end(&self) -> usize {
        self.first_position as usize + self.n_rows as usize
    }
}

/// A [`Step`] that owns its parts, for tests and recordings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OwnedStep {
    /// As [`Step::plan`].
    pub plan: usize,
    /// As [`Step::tokens`].
    pub tokens: Vec<u32>,
    /// As [`Step::links`].
    pub links: Vec<Link>,
    /// As [`Step::input`].
    pub input: Vec<f32>,
    /// As [`Step::spans`].
    pub spans: Vec<Span>,
    /// As [`Step::states`].
    pub states: Vec<StateUse>,
    /// As [`Step::adapters`].
    pub adapters: Vec<u32>,
    /// As [`Step::page_tables`].
    pub page_tables: Vec<u32>,
    /// As [`Step::table_changes`].
    pub table_changes: Option<Vec<u32>>,
    /// As [`Step::pages_per_table`].
    pub pages_per_table: usize,
    /// As [`Step::outputs`].
    pub outputs: Vec<u32>,
    /// As [`Step::wants`].
    pub wants: Vec<Want>,
    /// As [`Step::recent`].
    pub recent: Vec<u32>,
    /// As [`Step::pending`].
    pub pending: Vec<OutputRef>,
    /// As [`Step::biases`].
    pub biases: Vec<(u32, f32)>,
    /// As [`Step::stages`].
    pub stages: Vec<Stage>,
    /// As [`Step::masks`].
    pub masks: Vec<u32>,
}

impl OwnedStep {
    /// The step.
    pub fn borrow(&self) -> Step<'_> {
        Step {
            plan: self.plan,
            tokens: &self.tokens,
            links: &self.links,
            input: &self.input,
            spans: &self.spans,
            states: &self.states,
            adapters: &self.adapters,
            page_tables: &self.page_tables,
            table_changes: self.table_changes.as_deref(),
            pages_per_table: self.pages_per_table,
            outputs: &self.outputs,
            wants: &self.wants,
            recent: &self.recent,
            pending: &self.pending,
            biases: &self.biases,
            stages: &self.stages,
            masks: Masks::Ready(&self.masks),
            stop: None,
        }
    }

    /// The same step with these output rows, the same wanted of each.
    pub fn with_outputs(self, outputs: Vec<u32>, want: Want) -> OwnedStep {
        OwnedStep { wants: vec![want; outputs.len()], outputs, ..self }
    }

    /// Become a copy of a step, in the memory of the one before. Waits for whoever computes its masks.
    pub fn assign(&mut self, step: &Step) {
        fn copy<T: Copy>(to: &mut Vec<T>, from: &[T]) {
            to.clear();
            to.extend_from_slice(from);
        }
        (self.plan, self.pages_per_table) = (step.plan, step.pages_per_table);
        copy(&mut self.tokens, step.tokens);
        copy(&mut self.links, step.links);
        copy(&mut self.input, step.input);
        copy(&mut self.spans, step.spans);
        copy(&mut self.states, step.states);
        copy(&mut self.adapters, step.adapters);
        copy(&mut self.page_tables, step.page_tables);
        match step.table_changes {
            Some(changes) => copy(self.table_changes.get_or_insert_default(), changes),
            None => self.table_changes = None,
        }
        copy(&mut self.outputs, step.outputs);
        copy(&mut self.wants, step.wants);
        copy(&mut self.recent, step.recent);
        copy(&mut self.pending, step.pending);
        copy(&mut self.biases, step.biases);
        copy(&mut self.stages, step.stages);
        self.masks.clear();
        self.masks.resize(step.masks.len(), 0);
        for mask in step.wants.iter().filter_map(|want| want.mask) {
            let start = mask.start as usize;
            step.masks.with(mask, &mut |words| {
                if let Some(room) = self.masks.get_mut(start..start + words.len()) {
                    room.copy_from_slice(words);
                }
            });
        }
    }
}

impl From<&Step<'_>> for OwnedStep {
    fn from(step: &Step) -> OwnedStep {
        let mut owned = OwnedStep::default();
        owned.assign(step);
        owned
    }
}
