//! Data of a step in flight that only CUDA launches need.

use super::CudaMachine;
use super::chain::Chained;
use crate::arguments::{Choice, Copy, Span};
use crate::persistent::MOST_IN_TURN;
use device::Step;
use device_gpu::arguments::Bias;
use device_gpu::inputs::Begun;

/// Maximum number of ranges of a region that are copied to the GPU.
pub(super) const N_COPIES: usize = 8;

/// Launch data of a step in flight.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Noted {
    /// Ranges of its region that the GPU needs, in words.
    pub copies: [Copy; N_COPIES],
    /// The step's place in its sequence, if the step may share a launch with other steps.
    pub chained: Option<Chained>,
    /// Steps that follow in the same launch.
    pub more_steps: u32,
    /// The sequences of its first rows, by their place in the step.
    pub sequences: [u32; MOST_IN_TURN],
}

/// The sequences of a step's first rows, by their place in the step.
fn sequences_of_rows(step: &Step) -> [u32; MOST_IN_TURN] {
    std::array::from_fn(|row| {
        let has_row =
            |span: &device::Span| (span.first_row..span.first_row + span.n_rows).contains(&(row as u32));
        step.spans.iter().position(has_row).unwrap_or(0) as u32
    })
}

impl CudaMachine {
    /// The notes on a step in flight.
    pub(super) fn noted(&self, begun: &Begun) -> &Noted {
        &self.noted[self.place(begun.ticket)]
    }

    /// The notes on a step whose region was just written.
    pub(super) fn note(&self, step: &Step, begun: &Begun) -> Noted {
        Noted {
            copies: self.copies(step, begun),
            chained: self.chained(step, begun),
            more_steps: 0,
            sequences: sequences_of_rows(step),
        }
    }

    /// Ranges of the region that the GPU needs. With small limits neighbouring parts are close, so
    /// that one range covers several of them and the bytes between.
    fn copies(&self, step: &Step, begun: &Begun) -> [Copy; N_COPIES] {
        let at = self.step;
        let n_rows = step.tokens.len() * 4;
        let n_spans = step.spans.len().max(step.tokens.len().min(self.limits.max_spans));
        let penalties = begun.sizes.penalties;
        let parts = [
            (at.tokens, n_rows),
            (at.positions, n_rows),
            (at.row_spans, n_rows),
            (at.spans, n_spans * size_of::<Span>()),
            (at.outputs, step.outputs.len() * 4),
            (at.choices, step.wants.len() * size_of::<Choice>()),
            (at.page_tables, step.spans.len() * at.n_groups * at.pages_per_table * 4),
            (at.input, step.input.len() * 4),
            (at.recent, if penalties { step.recent.len() * 4 } else { 0 }),
            (at.pending, if penalties { step.pending.len() * 4 } else { 0 }),
            (at.biases, if penalties { step.biases.len() * size_of::<Bias>() } else { 0 }),
        ];
        let mut copies = [Copy::default(); N_COPIES];
        let mut n = 0usize;
        for (start, len) in parts.into_iter().filter(|(_, len)| *len > 0) {
            let (first_word, end) = ((start / 4) as u32, (start + len).div_ceil(4) as u32);
            let joins = |last: Copy| n == N_COPIES || first_word - (last.first_word + last.n_words) <= GAP;
            if n > 0 && joins(copies[n - 1]) {
                // The last range covers all remaining parts.
                copies[n - 1].n_words = end - copies[n - 1].first_word;
            } else {
                copies[n] = Copy { first_word, n_words: end - first_word };
                n += 1;
            }
        }
        copies
    }
}

/// Parts with at most this many words between them are copied as one range.
const GAP: u32 = 1024;
