//! The kernels after the head, which choose the tokens of outputs. A step runs those that one of
//! its outputs needs. Each kernel reads from an output's [`device_gpu::arguments::Choice`] whether
//! to work for that output.

use super::call::{Call, ONE, each};
use super::draft::Draft;
use crate::arguments::ChooseArguments;
use crate::geometry::BEST_BYTES;
use crate::gpu::MetalGpu;
use crate::kernels::constant;
use device::{Result, RowCount, ValueId};
use device_gpu::ahead::{MOST_BIASES, MOST_PENALISED};
use device_gpu::replayer::MASKS;
use device_lower::table::{Extent, Location, When};

/// Threads of a threadgroup of `masks` and `penalties`.
const CHANGE_THREADS: u32 = 256;

/// Threadgroups that apply a mask.
const MASK_GROUPS: u32 = 32;

/// Threads of a threadgroup that samples.
const SAMPLE_THREADS: u32 = 1024;

impl<G: MetalGpu> Draft<'_, G> {
    /// Masks, biases and penalties on the logits `x`, then the best token or a sampled one of each
    /// output.
    pub(super) fn choose(&mut self, x: ValueId) -> Result<()> {
        let c = self.compiler;
        let logits = self.value(x);
        let change = |file| self.choice_call(file, c.cols(x)).write(3, (logits.location, logits.bytes));
        let outputs = |n: u32| [Extent::Fixed(n), each(RowCount::Outputs), ONE];
        let masks = change("sampling/masks.metal").bind(4, Location { buffer: MASKS, offset: 0 });
        let n_changes = (MOST_PENALISED + MOST_BIASES) as u32;
        let penalties = change("sampling/penalties.metal")
            .bind(4, c.step_place(c.step.recent))
            .bind(5, c.step_place(c.step.pending))
            .bind(6, c.chosen_tokens())
            .bind(7, c.step_place(c.step.biases));
        self.push(when(masks.grid(outputs(MASK_GROUPS), CHANGE_THREADS), When::Masks))?;
        let grid = outputs(n_changes.div_ceil(CHANGE_THREADS));
        self.push(when(penalties.grid(grid, CHANGE_THREADS), When::Penalties))?;
        match self.bests {
            Some(bests) => {
                self.argmax(x, Some(bests), When::BestOfPlain)?;
                // The head's largest logits are stale, since masks and penalties changed the logits
                // afterwards.
                self.argmax(x, None, When::BestOfChanged)?;
            }
            None => self.argmax(x, None, When::Best)?,
        }
        let sample = self.chooser("sampling/sample.metal", x, c.cols(x));
        self.push(when(sample.flexible([each(RowCount::Outputs), ONE, ONE], SAMPLE_THREADS), When::Sample))
    }

    /// The best of the logits, or the best of the largest logits of parts of a row (`bests`).
    fn argmax(&mut self, x: ValueId, bests: Option<(Location, usize)>, in_steps: When) -> Result<()> {
        let c = self.compiler;
        let n = bests.map_or(c.cols(x), |(_, n)| n);
        let call = self.chooser("argmax.metal", x, n).bool(constant::BESTS, bests.is_some());
        let call = match bests {
            Some((place, n)) => call.read(5, (place, n * BEST_BYTES)),
            None => call.bind(5, c.anything()),
        };
        let threads = c.profile.argmax_threads.min(n.next_multiple_of(32) as u32);
        self.push(when(call.flexible([each(RowCount::Outputs), ONE, ONE], threads), in_steps))
    }

    /// A kernel that chooses tokens from rows of `cols` columns.
    fn chooser(&self, file: &'static str, x: ValueId, cols: usize) -> Call {
        let (tokens, bytes) = (self.compiler.chosen_tokens(), self.compiler.step.chosen_bytes());
        self.choice_call(file, cols).read(3, self.value(x)).write(4, (tokens, bytes))
    }

    fn choice_call(&self, file: &'static str, cols: usize) -> Call {
        let c = self.compiler;
        let arguments = ChooseArguments { cols: cols as u32, ..Default::default() };
        self.step_call(file, &arguments).bind(2, c.step_place(c.step.choices))
    }
}

fn when(mut call: Call, when: When) -> Call {
    call.when = when;
    call
}
