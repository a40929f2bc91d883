//! What comes out of a step: its values, the tokens that it chose; and where pages lie.

use super::CudaProgram;
use super::inputs::Begun;
use device::{Chosen, Result, Step, ValueId};
use device_lower::ahead::{Done, NO_TOKEN};
use device_lower::arena::NO_PLACE;
use std::ops::Range;

impl CudaProgram {
    /// Where a value's rows of the last step lie in the arena: offset and bytes. `None`: nowhere.
    pub(super) fn rows_of(&self, id: ValueId) -> Option<(usize, usize)> {
        let done = &self.ahead.done;
        let view =
            self.plans.get(done.plan)?.values.get(id.0 as usize).filter(|view| view.offset != NO_PLACE)?;
        Some((view.offset, view.n_words(&done.sizes) * 4))
    }

    /// Copy what the caller may read of the step that was just waited for: its logits and what its plan keeps.
    fn fetch_results(&mut self, ticket: u64) -> Result<()> {
        let Some(plan) = self.plans.get(self.ahead.done.plan) else { return Ok(()) };
        let output = Some(plan.output).filter(|_| self.wanted_logits(ticket));
        let n_kept = plan.kept.len();
        let mut at = self.logits_bytes;
        self.downloads.clear();
        for index in 0..=n_kept {
            let plan = &self.plans[self.ahead.done.plan];
            let id = if index < n_kept { Some(plan.kept[index]) } else { output };
            let Some((offset, bytes)) = id.and_then(|id| self.rows_of(id)) else { continue };
            let to = if index < n_kept { at } else { 0 };
            if bytes > 0 {
                self.downloads.push((self.arena.start() + offset as u64, to..to + bytes));
            }
            at += if index < n_kept { bytes } else { 0 };
        }
        if self.downloads.is_empty() {
            return Ok(());
        }
        let end = self.downloads.iter().map(|(_, range)| range.end).max().unwrap_or(0);
        self.context.download_all(&self.downloads, self.results.bytes_mut(0, end))
    }

    pub(super) fn page_bytes(&self, group: usize) -> usize {
        self.kv.page_bytes(group, self.limits.kv_type, self.limits.page_len)
    }

    /// The address of a committed page, and its bytes.
    pub(super) fn page(&self, group: usize, page: u32) -> Result<(u64, usize)> {
        self.committed.check_page(group, page).or_else(|reason| self.failed(reason))?;
        let bytes = self.page_bytes(group);
        Ok((self.pools[group].start() + page as u64 * bytes as u64, bytes))
    }

    pub(super) fn page_of(&self, group: usize, page: u32, given: usize) -> Result<u64> {
        let (start, bytes) = self.page(group, page)?;
        match given == bytes {
            true => Ok(start),
            false => self.failed(format!("{given} bytes for a KV page of {bytes} bytes")),
        }
    }

    /// The chunks that some pages lie in.
    pub(super) fn chunks(&self, group: usize, pages: &Range<u32>) -> Range<usize> {
        let (bytes, chunk) = (self.page_bytes(group), self.pools[group].chunk());
        let (start, end) = (pages.start as usize * bytes, pages.end as usize * bytes);
        start / chunk..end.div_ceil(chunk)
    }

    /// Write one more (or one less) user into the chunks of some pages, and give the memory of those without users back.
    pub(super) fn release(&mut self, group: usize, chunks: Range<usize>) -> Result<()> {
        for chunk in chunks {
            let users = &mut self.users[group][chunk];
            *users = users.saturating_sub(1);
            if *users == 0 {
                self.pools[group].unmap(chunk)?;
            }
        }
        Ok(())
    }

    /// Choose what has no kernel from the logits of the step that was submitted last, with which the GPU is done, and take
    /// over what the GPU chose.
    pub(super) fn choose_on_host(&mut self, step: &Step, begun: &Begun) -> Result<()> {
        let plan = &self.plans[begun.plan];
        let logits = plan.values[plan.output.0 as usize];
        let bytes = logits.cols * 4;
        let at = self.step;
        let mut changed = false;
        let first = at.chosen_at(begun.ticket, 0);
        for (output, want) in (0u32..).zip(step.wants) {
            let place = at.chosen_at(begun.ticket, output);
            if begun.by_host(want) {
                let from = self.arena.start() + (logits.offset + output as usize * bytes) as u64;
                let to = output as usize * bytes;
                self.context.download(from, self.results.bytes_mut(to, bytes))?;
                let row: &[f32] = bytemuck::cast_slice(self.results.bytes(to, bytes));
                let tokens = &self.host_chosen;
                let pending = want.pending.of(step.pending).iter();
                let pending = pending.filter_map(|from| {
                    let token = tokens.word(at.chosen_at(from.ticket.0, from.output) as usize);
                    (token != NO_TOKEN).then_some(token)
                });
                let choice = self.chooser.choose(row, want, step, pending);
                let outputs = self.ahead.outputs_of_mut(begun.ticket);
                outputs.chosen.push(choice);
                outputs.best.extend(self.chooser.best(row, want));
                self.host_chosen.write(place as usize * 4, &[choice.token.unwrap_or(NO_TOKEN)]);
                changed = true;
            } else {
                let token = self.host_chosen.word(place as usize);
                let token = (token != NO_TOKEN).then_some(token);
                let chosen = Chosen { token, logprob: f32::NAN, surprise: f32::NAN };
                self.ahead.outputs_of_mut(begun.ticket).chosen.push(chosen);
            }
            let outputs = self.ahead.outputs_of_mut(begun.ticket);
            outputs.best_ends.push(outputs.best.len());
        }
        if changed {
            let bytes = self.host_chosen.bytes(first as usize * 4, step.wants.len() * 4);
            self.context.upload(self.chosen.start() + u64::from(first) * 4, bytes)?;
        }
        self.ahead.outputs_of_mut(begun.ticket).is_chosen = true;
        Ok(())
    }

    pub(super) fn wait_for(&mut self, ticket: u64) -> Result<()> {
        self.context.enter()?;
        // Before the GPU has nothing to do.
        if !self.ahead.in_flight.iter().any(|step| step.ticket > ticket && step.work.is_some()) {
            self.launch_held()?;
        }
        let step = self.ahead.take(ticket).or_else(|reason| self.failed(reason))?;
        if let Some(event) = step.work {
            let result = event.wait();
            self.events.push(event);
            if let Err(error) = result {
                self.ahead.failed_below = self.ahead.next;
                return Err(error);
            }
        }
        if !self.ahead.outputs_of(ticket).is_chosen {
            for output in 0..self.ahead.outputs_of(ticket).n as u32 {
                let token = self.host_chosen.word(self.step.chosen_at(ticket, output) as usize);
                let token = (token != NO_TOKEN).then_some(token);
                let chosen = Chosen { token, logprob: f32::NAN, surprise: f32::NAN };
                self.ahead.outputs_of_mut(ticket).chosen.push(chosen);
            }
        }
        let is_fresh = self.ahead.in_flight.is_empty();
        let (plan, sizes) = (step.plan, step.sizes);
        self.ahead.done = Done { ticket: Some(ticket), plan, sizes, is_fresh, until: None };
        if is_fresh { self.fetch_results(ticket) } else { Ok(()) }
    }
}
