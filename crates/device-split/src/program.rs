//! The program: a step runs all segments in order.

use std::ops::Range;

use device::{CommandInfo, Error, Limits, Masks, Plan, Program, Result, Step, Timing, ValueId, Want};
use device_lower::hosted::HostProgram;

use crate::NAME;
use crate::cut::{Cut, Segment, is_direct};

/// Programs of both devices, and the way of a step through them.
pub struct SplitProgram {
    programs: [Box<dyn Program>; 2],
    cuts: Vec<Cut>,
    /// For each device and KV group, true if the device has layers of the group.
    has_layers: [Vec<bool>; 2],
    /// Plan of the last step.
    plan: usize,
    /// True if all segments of the last step ran.
    is_through: bool,
    /// Last segment that each device ran in that step.
    last: [Option<usize>; 2],
    /// Values that segments exchange; each has capacity for the largest.
    slots: Vec<Vec<f32>>,
    /// `(tokens, cols)`: several values side by side.
    input: Vec<f32>,
    /// `(max_outputs)` wants of logits, and of nothing: the host chooses the tokens.
    wants: [Vec<Want>; 2],
    /// Devices that have not seen the latest changes of page tables.
    is_behind: [bool; 2],
    /// The reason why a page could not be copied; the next step reports it.
    broken: Option<Error>,
}

/// Largest length of each slot over several plans, and of the gathered Input.
fn sizes(cuts: &[Cut]) -> (Vec<usize>, usize) {
    let n = cuts.iter().map(|cut| cut.slots.len()).max().unwrap_or(0);
    let most = |slot: usize| cuts.iter().filter_map(|cut| cut.slots.get(slot)).max().copied().unwrap_or(0);
    ((0..n).map(most).collect(), cuts.iter().map(|cut| cut.input).max().unwrap_or(0))
}

/// Bytes of host memory for exchanged values.
pub fn exchanged(cuts: &[Cut]) -> u64 {
    let (slots, input) = sizes(cuts);
    4 * (slots.iter().sum::<usize>() + input) as u64
}

impl SplitProgram {
    /// A program of both devices' programs.
    pub fn new(
        programs: [Box<dyn Program>; 2],
        cuts: Vec<Cut>,
        plans: &[Vec<Plan>; 2],
        limits: &Limits,
    ) -> SplitProgram {
        let has_layers = plans.each_ref().map(|plans| {
            let groups = plans.first().map(|plan| &plan.kv.groups);
            groups.into_iter().flatten().map(|group| !group.layers.is_empty()).collect()
        });
        let (slots, input) = sizes(&cuts);
        SplitProgram {
            programs,
            cuts,
            has_layers,
            plan: 0,
            is_through: false,
            last: [None; 2],
            slots: slots.into_iter().map(Vec::with_capacity).collect(),
            input: Vec::with_capacity(input),
            wants: [Want::LOGITS, Want::default()].map(|want| vec![want; limits.max_outputs]),
            is_behind: [false; 2],
            broken: None,
        }
    }
}

/// Gathers the inputs of a segment side by side.
fn gather(segment: &Segment, step: &Step, slots: &[Vec<f32>], input: &mut Vec<f32>) {
    input.clear();
    for row in 0..step.tokens.len() {
        let output = step.outputs.binary_search(&(row as u32)).ok();
        for given in &segment.given {
            let row = if given.of_outputs { output } else { Some(row) };
            match row {
                Some(row) => input.extend_from_slice(&slots[given.slot][row * given.cols..][..given.cols]),
                None => input.resize(input.len() + given.cols, 0.0),
            }
        }
    }
}

impl HostProgram for SplitProgram {
    fn name(&self) -> &'static str {
        NAME
    }

    fn compute(
        &mut self,
        step: &Step,
        until: Option<usize>,
        mut timings: Option<&mut Vec<Timing>>,
    ) -> Result<()> {
        if let Some(error) = self.broken.take() {
            return Err(error);
        }
        (self.plan, self.is_through, self.last) = (step.plan, false, [None; 2]);
        let SplitProgram { programs, cuts, slots, input, wants: [logits, nothing], .. } = self;
        let cut = &cuts[step.plan];
        let end = until.and_then(|node| cut.ends.get(node).copied());
        // A device sees the changes of page tables only when it runs a segment.
        let was_behind = std::mem::replace(&mut self.is_behind, [true; 2]);
        let (mut n_commands, mut begun) = (0, 0.0);
        for (index, segment) in cut.segments.iter().enumerate() {
            let (device, is_final) = (segment.device, index + 1 == cut.segments.len());
            let takes = &segment.takes;
            if !is_direct(&segment.given) {
                gather(segment, step, slots, input);
            }
            let wants = if is_final { &*logits } else { &*nothing };
            let n_outputs = if takes.outputs { step.outputs.len() } else { 0 };
            // Links are resolved already, and the host chooses the tokens.
            let part = Step {
                plan: segment.plan,
                links: &[],
                input: match &segment.given[..] {
                    [] if takes.input => step.input,
                    [] => &[],
                    [only] if is_direct(&segment.given) => &slots[only.slot],
                    [..] => input,
                },
                states: if takes.states { step.states } else { &[] },
                adapters: if takes.adapters { step.adapters } else { &[] },
                table_changes: match self.last[device] {
                    Some(_) => Some(&[]),
                    None => step.table_changes.filter(|_| !was_behind[device]),
                },
                outputs: &step.outputs[..n_outputs],
                wants: &wants[..n_outputs],
                recent: &[],
                pending: &[],
                biases: &[],
                stages: &[],
                masks: Masks::default(),
                ..*step
            };
            let program = &mut programs[device];
            let last_node = end.filter(|(segment, _)| *segment == index).map(|(_, node)| node);
            match (last_node, timings.as_deref_mut()) {
                (Some(node), _) => program.run_until(&part, node)?,
                (None, None) => program.run(&part)?,
                (None, Some(timings)) => {
                    let n_before = timings.len();
                    program.run_timed(&part, timings)?;
                    let mut ended: f64 = begun;
                    for timing in &mut timings[n_before..] {
                        timing.command += n_commands;
                        timing.start += begun;
                        ended = ended.max(timing.start + timing.duration);
                    }
                    n_commands += program.commands(segment.plan, step.tokens.len()).len();
                    begun = ended;
                }
            }
            (self.is_behind[device], self.last[device]) = (false, Some(index));
            if last_node.is_some() {
                return Ok(());
            }
            for (kept, slot) in segment.slots.iter().enumerate() {
                slots[*slot].clear();
                slots[*slot].extend_from_slice(program.kept(kept));
            }
        }
        self.is_through = true;
        Ok(())
    }

    fn logits(&self) -> &[f32] {
        let last = self.cuts[self.plan].segments.last().filter(|_| self.is_through);
        last.map_or(&[], |segment| self.programs[segment.device].logits())
    }

    fn kept(&self, index: usize) -> &[f32] {
        let slot = self.cuts[self.plan].kept.get(index).filter(|_| self.is_through);
        slot.and_then(|slot| self.slots.get(*slot)).map_or(&[], |slot| slot)
    }

    fn read(&self, value: ValueId) -> Option<Vec<f32>> {
        if value.0 as usize >= self.cuts[self.plan].n_values {
            return None;
        }
        // The device that ran the later segment first.
        let order = if self.last[1] >= self.last[0] { [1, 0] } else { [0, 1] };
        let has_run = |device: &usize| self.last[*device].is_some();
        order.into_iter().filter(has_run).find_map(|device| self.programs[device].read(value))
    }

    fn copy_page(&mut self, group: usize, from: u32, to: u32) {
        for (program, has_layers) in self.programs.iter_mut().zip(&self.has_layers) {
            if has_layers[group] {
                self.broken = program.copy_page(group, from, to).err().or(self.broken.take());
            }
        }
    }

    /// A common multiple of both devices' granules.
    fn granule(&self, group: usize) -> usize {
        let [a, b] = [0, 1].map(|device| match self.has_layers[device][group] {
            true => self.programs[device].committed().granule(group),
            false => 1,
        });
        let divisor = |mut a: usize, mut b: usize| {
            while b > 0 {
                (a, b) = (b, a % b);
            }
            a
        };
        a / divisor(a, b) * b
    }

    fn commit(&mut self, group: usize, pages: Range<u32>) -> bool {
        for device in 0..2 {
            if self.has_layers[device][group]
                && commit(self.programs[device].as_mut(), group, pages.clone()).is_err()
            {
                if device == 1 && self.has_layers[0][group] {
                    decommit(self.programs[0].as_mut(), group, pages);
                }
                return false;
            }
        }
        true
    }

    fn decommit(&mut self, group: usize, pages: Range<u32>) {
        for device in (0..2).filter(|device| self.has_layers[*device][group]) {
            decommit(self.programs[device].as_mut(), group, pages.clone());
        }
    }

    fn commands(&self, plan: usize, n_rows: usize) -> Vec<CommandInfo> {
        let Some(cut) = self.cuts.get(plan) else { return Vec::new() };
        let of = |segment: &Segment| {
            let commands = self.programs[segment.device].commands(segment.plan, n_rows).into_iter();
            let of_plan = |info: CommandInfo| CommandInfo { node: segment.plan_node(info.node), ..info };
            commands.map(of_plan).collect::<Vec<_>>()
        };
        cut.segments.iter().flat_map(of).collect()
    }
}

/// Commits a range of several granules of a device, either all of it or nothing.
fn commit(program: &mut dyn Program, group: usize, pages: Range<u32>) -> Result<()> {
    let mut at = pages.start;
    while at < pages.end {
        let granule = program.committed().granule_of(group, at);
        if let Err(error) = program.commit(group, granule.clone()) {
            decommit(program, group, pages.start..at);
            return Err(error);
        }
        at = granule.end.max(at + 1);
    }
    Ok(())
}

/// Decommits pages. A device that cannot do so keeps their memory, and they can be committed again
/// only with it.
fn decommit(program: &mut dyn Program, group: usize, pages: Range<u32>) {
    let mut at = pages.start;
    while at < pages.end {
        let granule = program.committed().granule_of(group, at);
        at = granule.end.max(at + 1);
        if program.committed().contains(group, granule.start) {
            let _ = program.decommit(group, granule);
        }
    }
}
