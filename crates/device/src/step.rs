//! One step: rows of tokens of one or more sequences, run through a program together.

use std::sync::atomic::AtomicBool;

use crate::Masks;
use crate::{Chain, Penalties, Sampling, Stage};

/// Number of a submitted step of one program: 0 for the first, then counting up.
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

/// A row whose token an earlier output chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The row; its entry of [`Step::tokens`] is ignored.
    pub row: u32,
    /// The output. Its step is in flight, or is the last that was waited for.
    pub from: OutputRef,
}

/// Consecutive rows of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Index of the span's page tables: the first dimension of [`Step::page_tables`].
    pub slot: u32,
    /// First row in the step.
    pub first_row: u32,
    /// Number of rows.
    pub n_rows: u32,
    /// Position of the first row in its sequence; the other rows follow.
    pub first_position: u32,
}

/// States that a span reads and writes. One step writes a state whole, and no step changes it
/// later. So a state can be shared, kept, and restored: a failed or unwanted step harms no older
/// state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateUse {
    /// State before the span's first row; [`crate::STATE_NONE`] at position 0.
    pub from: u32,
    /// State that receives the result after the last row.
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

/// Method by which an output's token is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Choose {
    /// No token: only the logits are wanted.
    #[default]
    Nothing,
    /// The best token, ties to the lowest id.
    Best,
    /// A random token.
    Sample(Sampling),
    /// A random token, after stages in the caller's order.
    Chain(Chain),
}

/// Results that the caller wants of an output row. Biases, penalties and the mask change the
/// choice, never [`crate::Program::logits`]. Nor do they change log-probabilities, which are the
/// model's own unless [`Want::drawn`] is set.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Want {
    /// Method by which its token is chosen.
    pub choose: Choose,
    /// True if the caller reads its logits with [`crate::Program::logits`].
    pub logits: bool,
    /// True to compute the log-probability of the chosen token.
    pub logprob: bool,
    /// Number of best tokens whose log-probabilities are computed.
    pub n_best: u32,
    /// True if all log-probabilities are those of the draw: among the tokens that biases, mask,
    /// penalties and stages left, where probabilities sum to 1. Otherwise they are the model's own.
    pub drawn: bool,
    /// Penalties of tokens in `recent` and `pending`, if any.
    pub penalties: Option<Penalties>,
    /// Slice of [`Step::recent`]: tokens that the penalties count.
    pub recent: Slice,
    /// Slice of [`Step::pending`]: more such tokens, chosen by steps that may still be in flight.
    pub pending: Slice,
    /// Slice of [`Step::biases`]: added to the logits first.
    pub biases: Slice,
    /// Slice of [`Step::masks`]: `n_vocab.div_ceil(32)` words; bit `t % 32` of word `t / 32` is set
    /// if token `t` is allowed. `None` allows all.
    pub mask: Option<Slice>,
}

impl Want {
    /// The caller wants the logits alone.
    pub const LOGITS: Want = Want { logits: true, ..Want::NOTHING };
    /// The caller wants the best token.
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

    /// Returns true if the logits alone decide which token is the best.
    pub fn is_plain(&self) -> bool {
        self.penalties.is_none() && self.biases.len == 0 && self.mask.is_none()
    }
}

/// The choice of an output.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chosen {
    /// The token. `None` if no token was wanted, or none could be chosen because every logit is
    /// NaN, minus infinity or masked.
    pub token: Option<u32>,
    /// Natural logarithm of the token's probability by the model alone; NaN unless it was wanted.
    pub logprob: f32,
    /// `-log2` of the token's probability among those that the stages of a [`Chain`] left; NaN
    /// without a chain.
    pub surprise: f32,
}

/// Input of [`crate::Program::submit`]. [`Step::check`] lists its rules.
#[derive(Clone, Copy, Debug, Default)]
pub struct Step<'a> {
    /// Index of the plan in the program.
    pub plan: usize,
    /// `(n_rows)` token ids, each below the vocabulary's size. A plan without Embed ignores their
    /// values.
    pub tokens: &'a [u32],
    /// Rows whose token is chosen by an earlier output, in row order.
    pub links: &'a [Link],
    /// Rows of the plan's [`crate::Op::Input`]; empty without one.
    pub input: &'a [f32],
    /// Spans in row order; every row belongs to exactly one.
    pub spans: &'a [Span],
    /// `(n_spans)` state of each span; empty for a plan without recurrent layers.
    pub states: &'a [StateUse],
    /// `(n_spans)` adapter of each span, 0 for none; empty for a plan without
    /// [`crate::Op::Adapters`].
    pub adapters: &'a [u32],
    /// `(n_slots, n_groups, pages_per_table)` page numbers. Position `p` is in entry `p /
    /// page_len`. Devices read the tables during the submission of the step, not later.
    pub page_tables: &'a [u32],
    /// Indices of the entries of `page_tables` that may differ from those of the step submitted
    /// before; `None` if any may. A device with memory of its own keeps a copy of the tables and
    /// updates these entries.
    pub table_changes: Option<&'a [u32]>,
    /// Number of entries of one table.
    pub pages_per_table: usize,
    /// `(n_outputs)` rows with wanted results, ascending; may be empty.
    pub outputs: &'a [u32],
    /// `(n_outputs)` wanted results of these rows.
    pub wants: &'a [Want],
    /// Tokens that penalties count; see [`Want::recent`].
    pub recent: &'a [u32],
    /// References to tokens that penalties count and that are not known yet; see [`Want::pending`].
    pub pending: &'a [OutputRef],
    /// Tokens and the numbers added to their logits; see [`Want::biases`].
    pub biases: &'a [(u32, f32)],
    /// Stages of sampling; see [`Chain::stages`].
    pub stages: &'a [Stage],
    /// Bits of allowed tokens; see [`Want::mask`].
    pub masks: Masks<'a>,
    /// Flag that another thread sets to stop the step. A device reads it between commands, if it
    /// can, and then returns [`crate::Error::Stopped`]; the step's KV positions must be written
    /// again.
    pub stop: Option<&'a AtomicBool>,
}

impl<'a> Step<'a> {
    /// The page table of a slot for a KV group.
    pub fn page_table(&self, slot: u32, group: usize, n_groups: usize) -> &'a [u32] {
        let start = (slot as usize * n_groups + group) * self.pages_per_table;
        &self.page_tables[start..start + self.pages_per_table]
    }

    /// Returns true if [`Self::stop`] is set.
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
    /// Same as [`Step::plan`].
    pub plan: usize,
    /// Same as [`Step::tokens`].
    pub tokens: Vec<u32>,
    /// Same as [`Step::links`].
    pub links: Vec<Link>,
    /// Same as [`Step::input`].
    pub input: Vec<f32>,
    /// Same as [`Step::spans`].
    pub spans: Vec<Span>,
    /// Same as [`Step::states`].
    pub states: Vec<StateUse>,
    /// Same as [`Step::adapters`].
    pub adapters: Vec<u32>,
    /// Same as [`Step::page_tables`].
    pub page_tables: Vec<u32>,
    /// Same as [`Step::table_changes`].
    pub table_changes: Option<Vec<u32>>,
    /// Same as [`Step::pages_per_table`].
    pub pages_per_table: usize,
    /// Same as [`Step::outputs`].
    pub outputs: Vec<u32>,
    /// Same as [`Step::wants`].
    pub wants: Vec<Want>,
    /// Same as [`Step::recent`].
    pub recent: Vec<u32>,
    /// Same as [`Step::pending`].
    pub pending: Vec<OutputRef>,
    /// Same as [`Step::biases`].
    pub biases: Vec<(u32, f32)>,
    /// Same as [`Step::stages`].
    pub stages: Vec<Stage>,
    /// Same as [`Step::masks`].
    pub masks: Vec<u32>,
}

impl OwnedStep {
    /// A [`Step`] that borrows everything.
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

    /// The step with these output rows instead, and the same want for each.
    pub fn with_outputs(self, outputs: Vec<u32>, want: Want) -> OwnedStep {
        OwnedStep { wants: vec![want; outputs.len()], outputs, ..self }
    }

    /// Copies a step into this one, and reuses its memory. Waits for masks that are still being
    /// computed.
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
