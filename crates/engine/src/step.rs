//! One step being built: rows of one or more sequences, in buffers allocated once.

use device::{Limits, Span, Step, Want};

use crate::kv::KvCache;

/// Which rows of a span give logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outputs {
    /// None: a chunk of a prompt that goes on.
    None,
    /// The last row: what follows the sequence so far.
    Last,
    /// The last `n` rows, for scoring.
    LastRows(usize),
}

/// Buffers of the largest step that the limits allow.
#[derive(Debug)]
pub(crate) struct StepBuffers {
    /// Capacity `max_rows`.
    tokens: Vec<u32>,
    /// Capacity `max_spans`.
    spans: Vec<Span>,
    /// Capacity `max_outputs`: rows.
    outputs: Vec<u32>,
    max_rows: usize,
    max_outputs: usize,
    want: Want,
}

impl StepBuffers {
    pub(crate) fn new(limits: &Limits) -> StepBuffers {
        StepBuffers {
            tokens: Vec::with_capacity(limits.max_rows),
            spans: Vec::with_capacity(limits.max_spans),
            outputs: Vec::with_capacity(limits.max_outputs),
            max_rows: limits.max_rows,
            max_outputs: limits.max_outputs,
            want: Want::Logits,
        }
    }

    pub(crate) fn clear(&mut self) {
        self.tokens.clear();
        self.spans.clear();
        self.outputs.clear();
        self.want = Want::Logits;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Rows that still have room.
    pub(crate) fn rows_left(&self) -> usize {
        self.max_rows - self.tokens.len()
    }

    /// Rows so far.
    pub(crate) fn n_rows(&self) -> usize {
        self.tokens.len()
    }

    /// The spans so far.
    pub(crate) fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Whether the last row of a span gives logits.
    pub(crate) fn has_output(&self, span: &Span) -> bool {
        self.outputs.binary_search(&(span.first_row + span.n_rows - 1)).is_ok()
    }

    /// Also ask for the device's argmax.
    pub(crate) fn want_argmax(&mut self) {
        self.want = Want::Argmax;
    }

    /// Whether the device's argmax was asked for.
    pub(crate) fn wants_argmax(&self) -> bool {
        self.want == Want::Argmax
    }

    /// Append rows of a sequence; there must be room for them and their outputs.
    pub(crate) fn push(&mut self, slot: usize, first_position: usize, tokens: &[u32], outputs: Outputs) {
        debug_assert!(tokens.len() <= self.rows_left());
        let first_row = self.tokens.len();
        self.tokens.extend_from_slice(tokens);
        self.spans.push(Span {
            slot: slot as u32,
            first_row: first_row as u32,
            n_rows: tokens.len() as u32,
            first_position: first_position as u32,
        });
        let n_outputs = match outputs {
            Outputs::None => 0,
            Outputs::Last => 1,
            Outputs::LastRows(n) => n.min(tokens.len()),
        };
        let end = self.tokens.len();
        self.outputs.extend((end - n_outputs..end).map(|row| row as u32));
        debug_assert!(self.outputs.len() <= self.max_outputs);
    }

    /// Append guessed tokens to the last span, whose last row has an output; each of them has one too.
    pub(crate) fn push_draft(&mut self, draft: &[u32]) {
        debug_assert!(draft.len() <= self.rows_left());
        let Some(span) = self.spans.last_mut() else { return };
        let first_row = self.tokens.len();
        self.tokens.extend_from_slice(draft);
        span.n_rows += draft.len() as u32;
        self.outputs.extend((first_row..self.tokens.len()).map(|row| row as u32));
        debug_assert!(self.outputs.len() <= self.max_outputs);
    }

    /// What a program runs.
    pub(crate) fn step<'a>(&'a self, kv: &'a KvCache) -> Step<'a> {
        Step {
            plan: 0,
            input: &[],
            tokens: &self.tokens,
            spans: &self.spans,
            page_tables: kv.tables(),
            pages_per_table: kv.pages_per_table(),
            outputs: &self.outputs,
            want: self.want,
        }
    }
}
