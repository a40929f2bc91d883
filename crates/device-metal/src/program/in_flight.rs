//! Steps between submitting and waiting, and what they chose.

use super::inputs::Begun;
use super::{ARENA, CHOSEN, MetalProgram, Replay, write};
use crate::gpu::{Buffer, Gpu};
use device::{Chosen, Error, Result, Step};
use device_lower::ahead::{Done, NO_TOKEN, Outputs};
use std::ops::Range;

/// Command buffers of a step that somebody may stop.
const PARTS: usize = 8;

impl<G: Gpu> MetalProgram<G> {
    /// What a step is encoded from.
    pub(super) fn replay(&self, begun: &Begun) -> Replay<'_, G> {
        Replay {
            table: self.plans[begun.plan].table(&begun.sizes),
            pipelines: &self.pipelines,
            buffers: &self.buffers,
            pools: &self.pools,
            window: self.window(begun.ticket),
        }
    }

    /// Submit a step's commands, of a range of its table, as one command buffer.
    pub(super) fn encode(&self, begun: &Begun, range: Range<usize>) -> Result<G::Ticket> {
        let replay = self.replay(begun);
        self.gpu.submit(&mut |encoder| replay.encode(&begun.sizes, &range, encoder))
    }

    /// Submit all of a step's commands: as one command buffer; or as several where somebody may stop it, who is asked between
    /// them. While the GPU runs one of them, the next is submitted.
    pub(super) fn encode_whole(&mut self, step: &Step, begun: &Begun) -> Result<G::Ticket> {
        if step.stop.is_none() || begun.sizes.n_rows == 1 {
            return self.encode(begun, 0..usize::MAX);
        }
        // What an earlier step left in the arena is written over, even if this one stops.
        self.ahead.done.is_fresh = false;
        let n = self.plans[begun.plan].table(&begun.sizes).commands().len();
        let mut running: Option<G::Ticket> = None;
        for part in 0..PARTS - 1 {
            let next = self.encode(begun, part * n / PARTS..(part + 1) * n / PARTS)?;
            // Dropping a ticket waits for it.
            if let Some(before) = running.replace(next) {
                self.gpu.wait(&before)?;
            }
            if step.is_stopped() {
                return Err(Error::Stopped { device: G::NAME });
            }
        }
        let last = self.encode(begun, (PARTS - 1) * n / PARTS..usize::MAX)?;
        running.map_or(Ok(0.0), |before| self.gpu.wait(&before))?;
        Ok(last)
    }

    /// Wait until the GPU is done with all that was submitted.
    pub(super) fn settle(&self) -> Result<()> {
        for work in self.ahead.in_flight.iter().filter_map(|step| step.work.as_ref()) {
            self.gpu.wait(work)?;
        }
        Ok(())
    }

    /// An error if a step is in flight.
    pub(super) fn refuse_company(&self) -> Result<()> {
        self.ahead.refuse_company().or_else(|reason| self.failed(reason))
    }

    /// Waits for a step as [`device::Program::wait`] does.
    pub(super) fn wait_for(&mut self, ticket: u64) -> Result<()> {
        let step = self.ahead.take(ticket).or_else(|reason| self.failed(reason))?;
        if let Some(Err(error)) = step.work.as_ref().map(|work| self.gpu.wait(work)) {
            self.ahead.failed_below = self.ahead.next;
            return Err(error);
        }
        if !self.ahead.outputs_of(ticket).is_chosen {
            for output in 0..self.ahead.outputs_of(ticket).n as u32 {
                let token = chosen_token(&self.buffers[CHOSEN], self.step.chosen_at(ticket, output));
                self.ahead.outputs_of_mut(ticket).chosen.push(Chosen {
                    token,
                    logprob: f32::NAN,
                    surprise: f32::NAN,
                });
            }
        }
        let is_fresh = self.ahead.in_flight.is_empty();
        self.ahead.done =
            Done { ticket: Some(ticket), plan: step.plan, sizes: step.sizes, is_fresh, until: None };
        Ok(())
    }

    /// Choose what has no kernel from the logits of the step that was submitted last, with which the
    /// GPU is done, and take over what the GPU chose.
    pub(super) fn choose_on_host(&mut self, step: &Step, begun: &Begun) {
        let at = self.step;
        let MetalProgram { plans, buffers, ahead, chooser, .. } = self;
        let (plan, tokens) = (&plans[begun.plan], &buffers[CHOSEN]);
        let logits = plan.values[plan.output.0 as usize];
        let Outputs { chosen, best, best_ends, is_chosen, .. } = ahead.outputs_of_mut(begun.ticket);
        for (output, want) in (0u32..).zip(step.wants) {
            let token_at = at.chosen_at(begun.ticket, output);
            if begun.by_host(want) {
                let offset = logits.offset + output as usize * logits.cols * 4;
                // SAFETY: the logits have a place in the arena with room for the limits' outputs, of
                // which the step has no more, at a multiple of 256 bytes; every bit pattern is an f32;
                // the GPU is done with all that was submitted.
                let row = unsafe {
                    std::slice::from_raw_parts(buffers[ARENA].start().add(offset).cast::<f32>(), logits.cols)
                };
                let pending = want.pending.of(step.pending).iter();
                let pending =
                    pending.filter_map(|from| chosen_token(tokens, at.chosen_at(from.ticket.0, from.output)));
                let choice = chooser.choose(row, want, step, pending);
                write(tokens, token_at as usize * 4, &[choice.token.unwrap_or(NO_TOKEN)]);
                chosen.push(choice);
                best.extend(chooser.best(row, want));
            } else {
                let token = chosen_token(tokens, token_at);
                chosen.push(Chosen { token, logprob: f32::NAN, surprise: f32::NAN });
            }
            best_ends.push(best.len());
        }
        *is_chosen = true;
    }
}

/// A token of the chosen ones, whose step is done.
///
/// # Panics
/// It is not within the buffer, which the layout sees to.
fn chosen_token(tokens: &impl Buffer, place: u32) -> Option<u32> {
    let offset = place as usize * 4;
    assert!(offset + 4 <= tokens.len(), "chosen token {place} of {}", tokens.len() / 4);
    // SAFETY: it lies within the buffer, as was just checked, at a multiple of 4 bytes; the GPU is
    // done with the step that writes it.
    let token = unsafe { tokens.start().add(offset).cast::<u32>().read_volatile() };
    (token != NO_TOKEN).then_some(token)
}
