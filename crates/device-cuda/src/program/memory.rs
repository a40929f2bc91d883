//! A program's memory other than weights and pages.

use super::Sizes;
use crate::driver::{Buffer, Context, Pinned};
use device::{KvLayout, Limits, Result};
use std::sync::Arc;

/// Memory of the GPU, and pinned memory of the host.
pub(super) struct Memory {
    pub arena: Buffer,
    /// The regions of the steps of one launch.
    pub step_buffer: Buffer,
    pub scratch: Buffer,
    pub chosen: Buffer,
    /// States of recurrent layers; `None`: those of another program are used.
    pub states: Option<Buffer>,
    /// A region for each step that may be in flight.
    pub steps: Pinned,
    /// The copy of the chosen tokens that the GPU writes for the host.
    pub host_chosen: Pinned,
    /// Results of the last step that was waited for: logits, then the kept values of its plan.
    pub results: Pinned,
    /// The masks of each step that may be in flight; `None`: no plan chooses tokens.
    pub masks: Option<Pinned>,
}

impl Memory {
    /// Allocates the memory, with states only if `has_states`.
    ///
    /// # Errors
    /// Memory was refused.
    pub fn new(
        context: &Arc<Context>,
        kv: &KvLayout,
        limits: &Limits,
        sizes: &Sizes,
        chained_steps: usize,
        has_states: bool,
    ) -> Result<Memory> {
        let step = sizes.step;
        let take = |what: &str, bytes: usize| Buffer::new(context, what, bytes);
        let pin = |what: &str, bytes: usize| Pinned::new(context, what, bytes);
        let states = || take("states of recurrent layers", 4 * limits.n_states * kv.state_len());
        Ok(Memory {
            arena: take("activations", sizes.arena)?,
            step_buffer: take("steps", step.buffer_bytes(chained_steps))?,
            scratch: take("scratch", sizes.scratch.total())?,
            chosen: take("chosen tokens", step.chosen_bytes())?,
            states: if has_states { Some(states()?) } else { None },
            steps: pin("steps", step.total())?,
            host_chosen: pin("chosen tokens", step.chosen_bytes())?,
            results: pin("results", sizes.logits + sizes.kept)?,
            masks: match step.mask_bytes() {
                0 => None,
                bytes => Some(pin("masks", bytes)?),
            },
        })
    }
}
