//! [`GpuProgram`]: compiled plans on a [`Machine`], whose steps are written, launched and waited
//! for.

use crate::ahead::{self, Ahead, Done, InFlight, NO_TOKEN};
use crate::compiled::HasTable;
use crate::inputs::{self, Begun};
use crate::layout::StepLayout;
use crate::machine::{HostPart, Machine, ResultPart};
use device::{
    Chosen, CommandInfo, CommittedPages, Error, KvLayout, Limits, Needs, Plan, Program, Result, Step, Ticket,
    Timing, ValueId, Want,
};
use device_lower::arena::NO_PLACE;
use device_lower::placed::PlacedValue;
use device_lower::sampling::Chooser;
use device_lower::table::{Location, Region, RowClass, StepSizes, Table};
use std::ops::Range;

/// Compiled plans, their memory, and their steps.
pub struct GpuProgram<M: Machine> {
    machine: M,
    needs: Vec<Needs>,
    kv: KvLayout,
    limits: Limits,
    step: StepLayout,
    ahead: Ahead<M::Work>,
    /// Chooses tokens whose choice has no kernel.
    chooser: Chooser,
    /// Results of the last step that was waited for: the output, then the kept values of its plan.
    results: Vec<ResultPart>,
}

impl<M: Machine> GpuProgram<M> {
    /// A program of plans that a machine has compiled.
    pub fn new(machine: M, plans: &[Plan], limits: &Limits, step: StepLayout) -> GpuProgram<M> {
        let n_logits = plans.iter().map(|plan| plan.value(plan.output).cols).max().unwrap_or(0);
        let n_kept = plans.iter().map(|plan| plan.kept.len()).max().unwrap_or(0);
        GpuProgram {
            machine,
            needs: plans.iter().map(|plan| Needs::new(plan, limits)).collect(),
            kv: plans.first().map(|plan| plan.kv.clone()).unwrap_or_default(),
            limits: limits.clone(),
            step,
            ahead: Ahead::new(step.n_kept(), limits.max_outputs),
            chooser: Chooser::new(n_logits),
            results: Vec::with_capacity(1 + n_kept),
        }
    }

    /// The machine.
    pub fn machine(&self) -> &M {
        &self.machine
    }

    fn failed<T>(&self, reason: String) -> Result<T> {
        Err(Error::Failed { device: M::NAME, reason })
    }

    /// An error if a step is in flight.
    fn refuse_company(&self) -> Result<()> {
        self.ahead.refuse_company().or_else(|reason| self.failed(reason))
    }

    /// Prepares a step that runs alone and chooses nothing, for [`Self::machine`] to time.
    ///
    /// # Errors
    /// A step is in flight, or this one is not valid.
    pub fn begin_alone(&mut self, step: &Step) -> Result<Begun> {
        self.refuse_company()?;
        let begun = self.begin(step, false)?;
        self.ahead.done = Done::default();
        Ok(begun)
    }

    /// Checks a step, and writes it into the region that is its own if it is submitted next.
    /// Without `choose`, nothing is chosen.
    fn begin(&mut self, step: &Step, choose: bool) -> Result<Begun> {
        self.machine.enter()?;
        if let Err(reason) = step.check(&self.needs, &self.limits, self.machine.committed()) {
            return self.failed(reason);
        }
        let n_in_flight = self.ahead.in_flight.len();
        if n_in_flight >= self.step.in_flight {
            return self.failed(format!("{n_in_flight} steps are in flight, expected a wait first"));
        }
        if step.is_stopped() {
            return Err(Error::Stopped { device: M::NAME });
        }
        let Needs { n_vocab, n_logits, .. } = self.needs[step.plan];
        let links = step.links.iter().map(|link| (link.from, n_vocab));
        let pending = step.pending.iter().map(|from| (*from, n_logits));
        for (from, n) in links.chain(pending) {
            self.ahead.check_link(from, n).or_else(|reason| self.failed(reason))?;
        }
        let chooses = choose && self.machine.plans()[step.plan].chooses;
        let mut begun = Begun::new(step, self.ahead.next, chooses, &self.step).with_choices(step);
        let long = self.machine.long();
        begun.sizes.long = step.spans.iter().any(|span| span.end() > long);
        begun.sizes.whole = choose && self.machine.takes_whole(step);
        begun.sizes.n_spans = if M::COUNTS_SPANS { step.spans.len() } else { 0 };
        self.machine.begin(step, &begun)?;
        let GpuProgram { machine, needs, limits, step: at, .. } = self;
        inputs::write_rows(machine, at, limits, &needs[step.plan], step, begun.ticket);
        inputs::write_choices(machine, at, step, &begun);
        machine.written(step, &begun);
        let outputs = self.ahead.outputs_of_mut(begun.ticket);
        outputs.begin(step.wants.len(), n_logits);
        outputs.wants_logits = step.wants.iter().any(|want| want.logits);
        Ok(begun)
    }

    /// Launches steps that were held back.
    fn flush(&mut self) -> Result<()> {
        self.machine.flush().inspect_err(|_| self.ahead.failed_below = self.ahead.next)
    }

    /// Waits until the GPU is done with all that was submitted.
    fn settle(&self) -> Result<()> {
        self.machine.settle(self.ahead.in_flight.iter().filter_map(|step| step.work.as_ref()))
    }

    /// Forgets the step that was submitted last.
    fn take_back(&mut self, ticket: u64) {
        self.ahead.in_flight.pop_back();
        self.ahead.next = ticket;
    }

    /// Waits for a step as [`Program::wait`] does.
    fn wait_for(&mut self, ticket: u64) -> Result<()> {
        self.machine.enter()?;
        // Launches held steps before the GPU is idle.
        let later = self.ahead.in_flight.iter().filter(|step| step.ticket > ticket);
        if !later.filter_map(|step| step.work.as_ref()).any(|work| self.machine.is_launched(work)) {
            self.flush()?;
        }
        let step = self.ahead.take(ticket).or_else(|reason| self.failed(reason))?;
        if let Some(Err(error)) = step.work.map(|work| self.machine.wait(work)) {
            self.ahead.failed_below = self.ahead.next;
            return Err(error);
        }
        let (machine, at) = (&self.machine, &self.step);
        let outputs = self.ahead.outputs_of_mut(ticket);
        if !outputs.is_chosen {
            let tokens = (0..outputs.n as u32).map(|output| at.chosen_at(ticket, output));
            outputs.chosen.extend(tokens.map(|index| chosen_by_kernels(machine, index)));
        }
        let is_fresh = self.ahead.in_flight.is_empty();
        self.ahead.done =
            Done { ticket: Some(ticket), plan: step.plan, sizes: step.sizes, is_fresh, until: None };
        if is_fresh { self.fetch(ticket) } else { Ok(()) }
    }

    /// Copies the results of the step that was just waited for to the host: logits, if an output
    /// wants them, and the kept values of its plan.
    fn fetch(&mut self, ticket: u64) -> Result<()> {
        let Done { plan, sizes, .. } = self.ahead.done;
        self.results.clear();
        let mut at = self.logits_bytes();
        for (index, value) in self.machine.plans()[plan].results().enumerate() {
            let bytes = if value.offset == NO_PLACE { 0 } else { value.n_words(&sizes) * 4 };
            let start = if index == 0 { 0 } else { at };
            at += if index == 0 { 0 } else { bytes };
            self.results.push(ResultPart { offset: value.offset, bytes, at: start });
        }
        let first = usize::from(!self.ahead.outputs_of(ticket).wants_logits);
        self.machine.fetch(&self.results[first..])
    }

    /// Bytes of the largest logits of the plans.
    fn logits_bytes(&self) -> usize {
        let logits =
            |plan: &crate::compiled::CompiledPlan<M::Table>| plan.values[plan.output.0 as usize].bytes;
        self.machine.plans().iter().map(logits).max().unwrap_or(0)
    }

    /// A result of the last step that was waited for; empty if a later one was submitted since.
    fn result(&self, index: usize) -> &[f32] {
        let done = &self.ahead.done;
        let is_there = done.is_fresh && done.until.is_none() && done.ticket.is_some();
        self.results.get(index).filter(|_| is_there).map_or(&[], |part| self.machine.result(part))
    }

    /// Chooses tokens of the last submitted step on the host, for outputs whose choice has no
    /// kernel. The GPU has finished the step. Tokens that kernels chose are copied.
    fn choose_on_host(&mut self, step: &Step, begun: &Begun) -> Result<()> {
        let GpuProgram { machine, ahead, chooser, step: at, .. } = self;
        let plan = &machine.plans()[begun.plan];
        let logits: PlacedValue = plan.values[plan.output.0 as usize];
        let bytes = logits.cols * 4;
        let outputs = ahead.outputs_of_mut(begun.ticket);
        let mut changed = false;
        for (output, want) in (0u32..).zip(step.wants) {
            let index = at.chosen_at(begun.ticket, output);
            if begun.by_host(want) {
                let at_row = output as usize * bytes;
                let part = ResultPart { offset: logits.offset + at_row, bytes, at: at_row };
                machine.fetch(&[part])?;
                let row = machine.result(&part);
                let pending = want.pending.of(step.pending).iter();
                let pending = pending
                    .filter_map(|from| token(machine.chosen(at.chosen_at(from.ticket.0, from.output))));
                let choice = chooser.choose(row, want, step, pending);
                outputs.chosen.push(choice);
                outputs.best.extend(chooser.best(row, want));
                let word = choice.token.unwrap_or(NO_TOKEN);
                machine.write(HostPart::Chosen, index as usize * 4, bytemuck::bytes_of(&word));
                changed = true;
            } else {
                outputs.chosen.push(chosen_by_kernels(machine, index));
            }
            outputs.best_ends.push(outputs.best.len());
        }
        outputs.is_chosen = true;
        let first = at.chosen_at(begun.ticket, 0);
        if changed { machine.publish_chosen(first, step.wants.len()) } else { Ok(()) }
    }

    fn table(&self, plan: usize, sizes: &StepSizes) -> &Table {
        self.machine.table(plan, sizes).table()
    }
}

/// A word of the chosen tokens as a token.
fn token(word: u32) -> Option<u32> {
    (word != NO_TOKEN).then_some(word)
}

/// A token that kernels chose. They report no probability.
fn chosen_by_kernels<M: Machine>(machine: &M, index: u32) -> Chosen {
    Chosen { token: token(machine.chosen(index)), logprob: f32::NAN, surprise: f32::NAN }
}

impl<M: Machine> Drop for GpuProgram<M> {
    /// Memory may not be freed before the work that uses it is done.
    fn drop(&mut self) {
        self.ahead.in_flight.clear();
        self.machine.close();
    }
}

impl<M: Machine> Program for GpuProgram<M> {
    fn max_in_flight(&self) -> usize {
        self.step.in_flight
    }

    fn steps_ahead(&self, n_sequences: usize) -> usize {
        let ahead = self.machine.steps_ahead(n_sequences);
        ahead.map_or(self.step.in_flight, |ahead| ahead.min(self.step.in_flight))
    }

    fn chooses_in_flight(&self, want: &Want) -> bool {
        // Logits are gone with the next step.
        ahead::has_kernels(want) && !want.logits
    }

    /// Returns only after the step was computed, if the host chooses one of its tokens.
    fn submit(&mut self, step: &Step) -> Result<Ticket> {
        let begun = self.begin(step, true)?;
        let Begun { ticket, sizes, plan, .. } = begun;
        if !self.machine.follows(&begun) {
            self.flush()?;
        }
        let is_busy = !self.ahead.in_flight.is_empty();
        let work = match sizes.n_rows {
            0 => None,
            _ => {
                // An earlier step's values are written over, even if this one stops.
                self.ahead.done.is_fresh &= step.stop.is_none();
                Some(self.machine.launch(step, &begun, is_busy)?)
            }
        };
        self.ahead.next += 1;
        self.ahead.done.is_fresh = false;
        self.ahead.in_flight.push_back(InFlight { ticket, plan, sizes, work });
        if step.wants.iter().any(|want| begun.by_host(want))
            && let Err(error) = self.settle().and_then(|()| self.choose_on_host(step, &begun))
        {
            self.take_back(ticket);
            return Err(error);
        }
        if self.machine.is_full(plan)
            && let Err(error) = self.flush()
        {
            self.take_back(ticket);
            self.ahead.failed_below = ticket;
            return Err(error);
        }
        Ok(Ticket(ticket))
    }

    fn wait(&mut self, ticket: Ticket) -> Result<()> {
        self.wait_for(ticket.0)
    }

    fn chosen(&self) -> &[Chosen] {
        self.ahead.done.ticket.map_or(&[], |ticket| &self.ahead.outputs_of(ticket).chosen)
    }

    fn best(&self, output: usize) -> &[(u32, f32)] {
        self.ahead.done.ticket.map_or(&[], |ticket| self.ahead.outputs_of(ticket).best(output))
    }

    fn logits(&self) -> &[f32] {
        self.result(0)
    }

    fn kept(&self, index: usize) -> &[f32] {
        self.result(1 + index)
    }

    fn run_until(&mut self, step: &Step, last: usize) -> Result<()> {
        self.refuse_company()?;
        if let Err(reason) = step.check_node(&self.needs, last) {
            return self.failed(reason);
        }
        let begun = self.begin_alone(step)?;
        let n = self.table(begun.plan, &begun.sizes).until(last);
        if begun.sizes.n_rows > 0 {
            self.machine.run(&begun, 0..n)?;
        }
        let (plan, sizes) = (begun.plan, begun.sizes);
        self.ahead.done = Done { ticket: None, plan, sizes, is_fresh: true, until: Some(n) };
        Ok(())
    }

    fn read(&self, value: ValueId) -> Option<Vec<f32>> {
        let Done { plan, sizes, until, is_fresh, .. } = &self.ahead.done;
        let compiled = self.machine.plans().get(*plan).filter(|_| *is_fresh)?;
        let view = compiled.values.get(value.0 as usize).filter(|view| view.offset != NO_PLACE)?;
        let location = Location { buffer: 0, offset: view.offset as u64 };
        let region = Region::of(location, view.bytes);
        let table = self.table(*plan, sizes);
        if !table.holds(value, &region, sizes, until.unwrap_or(usize::MAX)) {
            return None;
        }
        let mut words = vec![0u32; view.n_words(sizes)];
        if !words.is_empty() {
            self.machine.enter().ok()?;
            self.machine.read(view.offset, &mut words)?;
        }
        Some(view.numbers(&words))
    }

    fn committed(&self) -> &CommittedPages {
        self.machine.committed()
    }

    fn commit(&mut self, group: usize, pages: Range<u32>) -> Result<()> {
        let check = self.machine.committed().check_range(group, &pages, false);
        check.or_else(|reason| self.failed(reason))?;
        self.machine.commit(group, pages)
    }

    fn decommit(&mut self, group: usize, pages: Range<u32>) -> Result<()> {
        let check = self.machine.committed().check_range(group, &pages, true);
        check.or_else(|reason| self.failed(reason))?;
        self.flush()?;
        self.machine.enter()?;
        // Steps that were submitted before may still read the pages.
        self.settle()?;
        self.machine.decommit(group, pages)
    }

    fn copy_page(&mut self, group: usize, from: u32, to: u32) -> Result<()> {
        for page in [from, to] {
            self.machine.committed().check_page(group, page).or_else(|reason| self.failed(reason))?;
        }
        self.flush()?;
        self.machine.enter()?;
        if !M::COPIES_IN_ORDER {
            self.settle()?;
        }
        if from == to { Ok(()) } else { self.machine.copy_page(group, from, to) }
    }

    fn read_page(&self, group: usize, page: u32, bytes: &mut [u8]) -> Result<()> {
        self.check_page(group, page, bytes.len())?;
        self.machine.enter()?;
        if !M::COPIES_IN_ORDER {
            self.settle()?;
        }
        self.machine.read_page(group, page, bytes)
    }

    fn write_page(&mut self, group: usize, page: u32, bytes: &[u8]) -> Result<()> {
        self.check_page(group, page, bytes.len())?;
        self.flush()?;
        self.machine.enter()?;
        if !M::COPIES_IN_ORDER {
            self.settle()?;
        }
        self.machine.write_page(group, page, bytes)
    }

    /// Compiles the new plans while the old ones exist, then moves pages and states to them.
    fn replace_plans(&mut self, plans: &[Plan]) -> Result<()> {
        self.refuse_company()?;
        if plans.is_empty() || plans.iter().any(|plan| plan.kv != self.kv) {
            return self.failed("plans of another KV layout, or none".to_owned());
        }
        self.machine.enter()?;
        self.settle()?;
        let mut next = self.machine.beside(plans, &self.limits)?;
        next.machine.adopt(&mut self.machine);
        (next.ahead.next, next.ahead.failed_below) = (self.ahead.next, self.ahead.failed_below);
        *self = next;
        Ok(())
    }

    /// The commands of the usual table, then those of the table of steps in one launch, if it has
    /// steps of `n_rows` rows.
    fn commands(&self, plan: usize, n_rows: usize) -> Vec<CommandInfo> {
        // The outputs of the last step, if it had these rows; else one, as in decode.
        let done = &self.ahead.done;
        let same = plan == done.plan && n_rows == done.sizes.n_rows;
        let n_outputs = if same { done.sizes.n_outputs } else { 1 };
        let sizes = StepSizes { n_rows, n_outputs, ..StepSizes::default() };
        let most = RowClass::of(self.limits.max_rows) as usize;
        if plan >= self.machine.plans().len() || RowClass::of(n_rows) as usize > most {
            return Vec::new();
        }
        let whole = self.machine.whole(plan, n_rows).map(|whole| whole.table().infos());
        self.table(plan, &sizes).infos().iter().chain(whole.unwrap_or_default()).cloned().collect()
    }

    /// Each command is launched and waited for by itself.
    fn run_timed(&mut self, step: &Step, timings: &mut Vec<Timing>) -> Result<()> {
        self.refuse_company()?;
        let begun = self.begin(step, true)?;
        self.ahead.done = Done::default();
        inputs::write_masks(&mut self.machine, &self.step, step, &begun);
        let Begun { ticket, sizes, plan, .. } = begun;
        // As `commands` lists them.
        let usual = StepSizes { whole: false, ..sizes };
        let first = if sizes.whole { self.table(plan, &usual).commands().len() } else { 0 };
        self.machine.run_timed(&begun, first, timings)?;
        self.ahead.next += 1;
        self.ahead.in_flight.push_back(InFlight { ticket, plan, sizes, work: None });
        if step.wants.iter().any(|want| begun.by_host(want)) {
            self.choose_on_host(step, &begun)?;
        }
        self.wait_for(ticket)
    }
}

impl<M: Machine> GpuProgram<M> {
    /// An error if a page has no memory, or `given` is not its length in bytes.
    fn check_page(&self, group: usize, page: u32, given: usize) -> Result<()> {
        self.machine.committed().check_page(group, page).or_else(|reason| self.failed(reason))?;
        match self.kv.page_bytes(group, self.limits.kv_type, self.limits.page_len) {
            bytes if bytes == given => Ok(()),
            bytes => self.failed(format!("{given} bytes for a KV page of {bytes} bytes")),
        }
    }
}
