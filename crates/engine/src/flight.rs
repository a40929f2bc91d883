//! Steps in flight: what the engine must know of a step until it is done.

use std::time::Instant;

use device::Ticket;

use crate::SequenceId;

/// A submitted step.
#[derive(Debug)]
pub(crate) struct Flight {
    /// `None`: it was waited for already.
    pub(crate) ticket: Option<Ticket>,
    pub(crate) begun: Instant,
    pub(crate) n_rows: usize,
    /// Whether every sequence was answering, so that its time says what such a step costs.
    pub(crate) all_answer: bool,
    /// Capacity `max_spans`.
    pub(crate) spans: Vec<FlightSpan>,
}

/// Rows of a sequence in a submitted step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlightSpan {
    pub(crate) id: SequenceId,
    /// As the sequence's when it was submitted.
    pub(crate) n_restarts: u32,
    pub(crate) slot: usize,
    /// Guesses included.
    pub(crate) n_rows: usize,
    pub(crate) n_draft: usize,
    /// The output of its last row before the guesses, if that is one.
    pub(crate) output: Option<usize>,
}

impl Flight {
    /// With room for this many spans.
    pub(crate) fn new(max_spans: usize) -> Flight {
        Flight {
            ticket: None,
            begun: Instant::now(),
            n_rows: 0,
            all_answer: false,
            spans: Vec::with_capacity(max_spans),
        }
    }
}
