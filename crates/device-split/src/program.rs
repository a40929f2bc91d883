//! The program: a step through both parts, one after the other.

use std::ops::Range;

use device::{CommandInfo, Error, Limits, Masks, Program, Result, Step, Timing, ValueId, Want};
use device_lower::hosted::HostProgram;

use crate::NAME;
use crate::cut::Cut;

/// Both parts of every plan.
pub struct SplitProgram {
    parts: [Box<dyn Program>; 2],
    cuts: Vec<Cut>,
    /// Values of the plans that were cut; those beyond are the cut's own.
    n_values: Vec<usize>,
    /// By part and KV group: whether it has layers of it.
    has_layers: [Vec<bool>; 2],
    /// The plan of the last step.
    plan: usize,
    /// Whether the second part ran in the last step.
    is_through: bool,
    /// `(tokens, cols)` what both parts exchange where that is several values; room for the most.
    input: Vec<f32>,
    /// `(max_outputs)` logits: tokens are chosen from them on the host.
    wants: Vec<Want>,
    /// The second part has not seen what changed in page tables.
    is_behind: bool,
    /// Why a page could not be copied, which the next step reports.
    broken: Option<Error>,
}

impl SplitProgram {
    /// Of the programs of both parts. `n_values` are those of each plan that was cut.
    pub fn new(
        parts: [Box<dyn Program>; 2],
        cuts: Vec<Cut>,
        n_values: Vec<usize>,
        limits: &Limits,
    ) -> SplitProgram {
        let has_layers = [0, 1].map(|part| {
            let groups = cuts.first().map(|cut| &cut.parts[part].kv.groups);
            groups.into_iter().flatten().map(|group| !group.layers.is_empty()).collect()
        });
        SplitProgram {
            parts,
            n_values,
            has_layers,
            plan: 0,
            is_through: false,
            input: Vec::with_capacity(exchanged(&cuts, limits)),
            cuts,
            wants: vec![Want::LOGITS; limits.max_outputs],
            is_behind: false,
            broken: None,
        }
    }

    /// A step of the second part, with what the first gave.
    fn second<R>(
        &mut self,
        step: &Step,
        run: impl FnOnce(&mut dyn Program, &Step) -> Result<R>,
    ) -> Result<R> {
        let [first, second] = &mut self.parts;
        let cols = &self.cuts[step.plan].cols;
        self.input.clear();
        if cols.len() > 1 {
            for row in 0..step.tokens.len() {
                for (index, cols) in cols.iter().enumerate() {
                    self.input.extend_from_slice(&first.kept(index)[row * cols..][..*cols]);
                }
            }
        }
        let step = Step {
            input: if cols.len() > 1 { &self.input } else { first.kept(0) },
            wants: &self.wants[..step.outputs.len()],
            table_changes: step.table_changes.filter(|_| !self.is_behind),
            ..plain(step)
        };
        self.is_behind = true;
        let result = run(second.as_mut(), &step)?;
        (self.is_behind, self.is_through) = (false, true);
        Ok(result)
    }
}

/// Numbers that both parts exchange at most, where they are several values.
pub fn exchanged(cuts: &[Cut], limits: &Limits) -> usize {
    let cols = cuts.iter().filter(|cut| cut.cols.len() > 1).map(|cut| cut.cols.iter().sum());
    limits.max_rows * cols.max().unwrap_or(0)
}

/// A step without choices; its links are resolved.
fn plain<'a>(step: &Step<'a>) -> Step<'a> {
    Step { links: &[], recent: &[], pending: &[], biases: &[], stages: &[], masks: Masks::default(), ..*step }
}

impl HostProgram for SplitProgram {
    fn name(&self) -> &'static str {
        NAME
    }

    fn compute(
        &mut self,
        step: &Step,
        until: Option<usize>,
        timings: Option<&mut Vec<Timing>>,
    ) -> Result<()> {
        if let Some(error) = self.broken.take() {
            return Err(error);
        }
        (self.plan, self.is_through) = (step.plan, false);
        let first = Step { outputs: &[], wants: &[], ..plain(step) };
        let end = until.and_then(|node| self.cuts[step.plan].ends.get(node).copied());
        // Until the second part has run, it has not seen what changed.
        let was_behind = std::mem::replace(&mut self.is_behind, true);
        if let Some((0, node)) = end {
            return self.parts[0].run_until(&first, node);
        }
        let Some(timings) = timings else {
            self.parts[0].run(&first)?;
            self.is_behind = was_behind;
            return self.second(step, |program, step| match end {
                Some((_, node)) => program.run_until(step, node),
                None => program.run(step),
            });
        };
        let first_timing = timings.len();
        self.parts[0].run_timed(&first, timings)?;
        self.is_behind = was_behind;
        let n_commands = self.parts[0].commands(step.plan, step.tokens.len()).len();
        let begun = timings[first_timing..].iter().map(|t| t.start + t.duration).fold(0.0, f64::max);
        let n_before = timings.len();
        self.second(step, |program, step| program.run_timed(step, timings))?;
        for timing in &mut timings[n_before..] {
            timing.command += n_commands;
            timing.start += begun;
        }
        Ok(())
    }

    fn logits(&self) -> &[f32] {
        if self.is_through { self.parts[1].logits() } else { &[] }
    }

    fn kept(&self, index: usize) -> &[f32] {
        let found = self.cuts[self.plan].kept.get(index).filter(|_| self.is_through);
        found.map_or(&[], |(part, index)| self.parts[*part].kept(*index))
    }

    fn read(&self, value: ValueId) -> Option<Vec<f32>> {
        if value.0 as usize >= self.n_values[self.plan] {
            return None;
        }
        let second = self.parts[1].read(value).filter(|_| self.is_through);
        second.or_else(|| self.parts[0].read(value))
    }

    fn copy_page(&mut self, group: usize, from: u32, to: u32) {
        for (part, has_layers) in self.parts.iter_mut().zip(&self.has_layers) {
            if has_layers[group] {
                self.broken = part.copy_page(group, from, to).err().or(self.broken.take());
            }
        }
    }

    /// A multiple of both parts'.
    fn granule(&self, group: usize) -> usize {
        let [a, b] = [0, 1].map(|part| match self.has_layers[part][group] {
            true => self.parts[part].committed().granule(group),
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
        for part in 0..2 {
            if self.has_layers[part][group]
                && commit(self.parts[part].as_mut(), group, pages.clone()).is_err()
            {
                if part == 1 && self.has_layers[0][group] {
                    decommit(self.parts[0].as_mut(), group, pages);
                }
                return false;
            }
        }
        true
    }

    fn decommit(&mut self, group: usize, pages: Range<u32>) {
        for part in (0..2).filter(|part| self.has_layers[*part][group]) {
            decommit(self.parts[part].as_mut(), group, pages.clone());
        }
    }

    fn commands(&self, plan: usize, n_rows: usize) -> Vec<CommandInfo> {
        let Some(cut) = self.cuts.get(plan) else { return Vec::new() };
        let of = |part: usize| {
            let commands = self.parts[part].commands(plan, n_rows).into_iter();
            commands.map(move |info| CommandInfo { node: cut.plan_node(part, info.node), ..info })
        };
        of(0).chain(of(1)).collect()
    }
}

/// Commit a range of several of a part's granules, all of it or nothing.
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

/// Give them back. A part that cannot keeps their memory, and they can be committed again only with it.
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
