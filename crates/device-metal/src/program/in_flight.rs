//! Steps between submitting and waiting, and what they chose.

use super::inputs::{Begun, NO_TOKEN};
use super::{ARENA, CHOSEN, MetalProgram, Replay, write};
use crate::gpu::{Buffer, Gpu};
use device::{Chosen, Error, Result, Step};
use device_lower::table::StepSizes;
use std::ops::Range;

/// Command buffers of a step that somebody may stop.
const PARTS: usize = 8;

/// A step that was submitted and not waited for.
pub(super) struct InFlight<T> {
    pub ticket: u64,
    pub plan: usize,
    pub sizes: StepSizes,
    /// `None`: it has no rows, or was waited for command by command.
    pub work: Option<T>,
}

/// What the last step that was waited for, or the last [`device::Program::run_until`], left.
#[derive(Clone, Copy, Default)]
pub(super) struct Done {
    /// `None`: it chose nothing.
    pub ticket: Option<u64>,
    pub plan: usize,
    pub sizes: StepSizes,
    /// Whether no later step was submitted, which writes the same memory.
    pub is_fresh: bool,
    /// How many of the commands ran; `None`: all.
    pub until: Option<usize>,
}

/// What a step chose.
pub(super) struct Outputs {
    /// Outputs.
    pub n: usize,
    /// Logits of each.
    pub n_logits: usize,
    /// Whether the host has chosen.
    pub is_chosen: bool,
    /// Filled when the step is waited for, or when the host chooses; capacity `max_outputs`.
    pub chosen: Vec<Chosen>,
    /// Best tokens of all outputs, one output after the other; grows only where somebody wants them.
    best: Vec<(u32, f32)>,
    /// `(n)` where each output's best tokens end, where the host has chosen.
    best_ends: Vec<usize>,
}

impl Outputs {
    pub(super) fn new(max_outputs: usize) -> Outputs {
        Outputs {
            n: 0,
            n_logits: 0,
            is_chosen: false,
            chosen: Vec::with_capacity(max_outputs),
            best: Vec::new(),
            best_ends: Vec::with_capacity(max_outputs),
        }
    }

    /// For another step.
    pub(super) fn begin(&mut self, n: usize, n_logits: usize) {
        (self.n, self.n_logits, self.is_chosen) = (n, n_logits, false);
        self.chosen.clear();
        self.best.clear();
        self.best_ends.clear();
    }

    /// The best tokens of an output.
    pub(super) fn best(&self, output: usize) -> &[(u32, f32)] {
        let Some(end) = self.best_ends.get(output) else { return &[] };
        let start = if output == 0 { 0 } else { self.best_ends[output - 1] };
        &self.best[start..*end]
    }
}

impl<G: Gpu> MetalProgram<G> {
    fn place(&self, ticket: u64) -> usize {
        (ticket % self.outputs.len() as u64) as usize
    }

    /// What a step chose that is in flight or was the last to be waited for.
    pub(super) fn outputs_of(&self, ticket: u64) -> &Outputs {
        &self.outputs[self.place(ticket)]
    }

    pub(super) fn outputs_of_mut(&mut self, ticket: u64) -> &mut Outputs {
        let place = self.place(ticket);
        &mut self.outputs[place]
    }

    /// The oldest step whose tokens are kept: the last that was waited for.
    pub(super) fn oldest_kept(&self) -> u64 {
        (self.next - self.in_flight.len() as u64).saturating_sub(1)
    }

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
        self.done.is_fresh = false;
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
        for work in self.in_flight.iter().filter_map(|step| step.work.as_ref()) {
            self.gpu.wait(work)?;
        }
        Ok(())
    }

    /// An error if a step is in flight.
    pub(super) fn refuse_company(&self) -> Result<()> {
        match self.in_flight.len() {
            0 => Ok(()),
            n => self.failed(format!("{n} steps are in flight, expected none")),
        }
    }

    /// As [`device::Program::wait`].
    pub(super) fn wait_for(&mut self, ticket: u64) -> Result<()> {
        match self.in_flight.front().map(|step| step.ticket) {
            Some(first) if first == ticket => {}
            Some(first) => return self.failed(format!("step {ticket} is waited for before step {first}")),
            None => return self.failed(format!("step {ticket} is waited for, and none is in flight")),
        }
        let Some(step) = self.in_flight.pop_front() else { return Ok(()) };
        self.done = Done::default();
        if ticket < self.failed_below {
            return self.failed(format!("step {ticket} was submitted after a step that failed"));
        }
        if let Some(Err(error)) = step.work.as_ref().map(|work| self.gpu.wait(work)) {
            self.failed_below = self.next;
            return Err(error);
        }
        if !self.outputs_of(ticket).is_chosen {
            for output in 0..self.outputs_of(ticket).n as u32 {
                let token = chosen_token(&self.buffers[CHOSEN], self.step.chosen_at(ticket, output));
                self.outputs_of_mut(ticket).chosen.push(Chosen {
                    token,
                    logprob: f32::NAN,
                    surprise: f32::NAN,
                });
            }
        }
        let is_fresh = self.in_flight.is_empty();
        self.done = Done { ticket: Some(ticket), plan: step.plan, sizes: step.sizes, is_fresh, until: None };
        Ok(())
    }

    /// Choose what has no kernel from the logits of the step that was submitted last, with which the
    /// GPU is done, and take over what the GPU chose.
    pub(super) fn choose_on_host(&mut self, step: &Step, begun: &Begun) {
        let (place, at) = (self.place(begun.ticket), self.step);
        let MetalProgram { plans, buffers, outputs, chooser, .. } = self;
        let (plan, tokens) = (&plans[begun.plan], &buffers[CHOSEN]);
        let logits = plan.values[plan.output.0 as usize];
        let Outputs { chosen, best, best_ends, is_chosen, .. } = &mut outputs[place];
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
