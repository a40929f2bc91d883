//! Steps in flight: the record of a step until it is done.

use std::time::Instant;

use device::Ticket;

use crate::SequenceId;
use crate::sequence::Sequence;

/// Rows of a step, and the positions that they attend to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Load {
    pub(crate) n_rows: usize,
    /// Positions that the rows attend to, together. Windows are not counted: their groups look like
    /// full ones.
    pub(crate) n_attended: u64,
}

impl Load {
    /// The load with `n_rows` more rows, the first of them at `position`.
    pub(crate) fn and(self, n_rows: usize, position: usize) -> Load {
        let (n, first) = (n_rows as u64, position as u64);
        Load {
            n_rows: self.n_rows + n_rows,
            n_attended: self.n_attended + n * (first + 1) + n * n.saturating_sub(1) / 2,
        }
    }
}

/// A step that is being filled or was submitted.
#[derive(Debug)]
pub(crate) struct Flight {
    /// Ticket of the step; `None`: it was waited for already.
    pub(crate) ticket: Option<Ticket>,
    pub(super) submitted: Instant,
    /// True if every sequence is answering and no other step was in flight, so that the time of the
    /// step is typical.
    pub(super) all_answer: bool,
    /// Rows and the positions that they attend to.
    pub(super) load: Load,
    /// Number of prompt rows among them.
    pub(super) n_prompt_rows: usize,
    /// Expected seconds of its answers alone, and with the prompt rows so far.
    pub(super) alone: f64,
    pub(super) planned: f64,
    /// True if its answers, or a shortage of memory, limit its prompt rows.
    pub(super) is_limited: bool,
    /// Spans of the step; capacity `max_spans`.
    pub(super) spans: Vec<FlightSpan>,
}

/// Rows of a sequence in a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlightSpan {
    pub(super) id: SequenceId,
    /// The sequence's number of restarts when the step was filled.
    pub(super) n_restarts: u32,
    pub(super) slot: usize,
    /// Number of rows, including draft tokens.
    pub(super) n_rows: usize,
    pub(super) n_draft: usize,
    /// Position of the first row; set by [`Flight::add`].
    pub(super) position: usize,
    pub(super) is_prompt: bool,
    /// Index of its first mask; it has one for each of its outputs.
    pub(super) first_mask: Option<usize>,
    /// First output, and number, of those that only report log-probabilities of the prompt.
    pub(super) scored: (usize, usize),
    /// Output of its last row before the draft tokens, if that row is an output.
    pub(super) output: Option<usize>,
}

impl FlightSpan {
    pub(super) fn new(slot: usize, sequence: &Sequence, n_rows: usize, output: Option<usize>) -> FlightSpan {
        let (id, n_restarts, is_prompt) = (sequence.id, sequence.n_restarts, sequence.in_prompt);
        FlightSpan {
            id,
            n_restarts,
            slot,
            n_rows,
            n_draft: 0,
            position: 0,
            is_prompt,
            first_mask: None,
            scored: (0, 0),
            output,
        }
    }
}

impl Flight {
    /// A flight with room for `max_spans` spans.
    pub(super) fn new(max_spans: usize) -> Flight {
        Flight {
            ticket: None,
            submitted: Instant::now(),
            all_answer: false,
            load: Load::default(),
            n_prompt_rows: 0,
            alone: 0.0,
            planned: 0.0,
            is_limited: false,
            spans: Vec::with_capacity(max_spans),
        }
    }

    pub(super) fn clear(&mut self) {
        self.spans.clear();
        (self.load, self.n_prompt_rows, self.ticket) = (Load::default(), 0, None);
        (self.alone, self.planned, self.is_limited) = (0.0, 0.0, false);
    }

    /// Add rows of a sequence, the first at `position`.
    pub(super) fn add(&mut self, mut span: FlightSpan, position: usize) {
        span.position = position;
        self.load = self.load.and(span.n_rows, position);
        self.n_prompt_rows += if span.is_prompt { span.n_rows } else { 0 };
        self.spans.push(span);
    }

    /// Number and first position of the rows of each prompt.
    pub(super) fn chunks(&self) -> impl Iterator<Item = (usize, usize)> + Clone + '_ {
        self.spans.iter().filter(|span| span.is_prompt).map(|span| (span.n_rows, span.position))
    }
}
