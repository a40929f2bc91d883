//! Steps in flight: what the scheduler must know of a step until it is done.

use std::time::Instant;

use device::Ticket;

use super::cost::Load;
use crate::SequenceId;
use crate::sequence::Sequence;

/// A step, while it is filled and after it was submitted.
#[derive(Debug)]
pub(crate) struct Flight {
    /// `None`: it was waited for already.
    pub(crate) ticket: Option<Ticket>,
    pub(super) submitted: Instant,
    /// Whether every sequence is answering and no other step was in flight, so that its time says what such a step costs.
    pub(super) all_answer: bool,
    /// Rows and what they look at.
    pub(super) load: Load,
    /// Rows of prompts among them.
    pub(super) n_prompt_rows: usize,
    /// Seconds that its answers are expected to take alone, and with the rows of prompts so far.
    pub(super) alone: f64,
    pub(super) planned: f64,
    /// Whether its answers, or a shortage of memory, limit its rows of prompts.
    pub(super) is_limited: bool,
    /// Capacity `max_spans`.
    pub(super) spans: Vec<FlightSpan>,
}

/// Rows of a sequence in a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlightSpan {
    pub(super) id: SequenceId,
    /// As the sequence's when it was submitted.
    pub(super) n_restarts: u32,
    pub(super) slot: usize,
    /// Guesses included.
    pub(super) n_rows: usize,
    pub(super) n_draft: usize,
    /// Of its first row; set by [`Flight::add`].
    pub(super) position: usize,
    pub(super) is_prompt: bool,
    /// The first of its masks, one for each of its outputs.
    pub(super) first_mask: Option<usize>,
    /// Its first output and the number of those that only tell log-probabilities of the prompt.
    pub(super) scored: (usize, usize),
    /// The output of its last row before the guesses, if that is one.
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
    /// With room for this many spans.
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

    /// Rows of a sequence, the first at `position`.
    pub(super) fn add(&mut self, mut span: FlightSpan, position: usize) {
        span.position = position;
        self.load = self.load.and(span.n_rows, position);
        self.n_prompt_rows += if span.is_prompt { span.n_rows } else { 0 };
        self.spans.push(span);
    }

    /// Its rows of prompts: how many of each, and the position of the first.
    pub(super) fn chunks(&self) -> impl Iterator<Item = (usize, usize)> + Clone + '_ {
        self.spans.iter().filter(|span| span.is_prompt).map(|span| (span.n_rows, span.position))
    }
}
