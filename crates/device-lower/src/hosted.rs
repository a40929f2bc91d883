//! Programs that compute on the host: [`Hosted`] does their common work.
//!
//! It checks steps, nodes and pages, resolves links, chooses tokens and stores the choices. A
//! device implements the rest as a [`HostProgram`].

use std::ops::Range;
use std::time::Instant;

use device::{
    BackgroundProgress, Chosen, CommandInfo, CommittedPages, Error, KvLayout, Limits, Needs, Plan, Program,
    Result, Step, Ticket, Timing, ValueId, Want,
};

use crate::outputs::HostOutputs;

/// The device's part of a program that computes a step during its submission. [`Hosted`] calls it
/// with checked arguments.
pub trait HostProgram: Send {
    /// The device's name, for errors.
    fn name(&self) -> &'static str;

    /// Computes a step that passed [`Step::check`] and whose links are resolved, to its end or up
    /// to and including the node `until`, which exists. Appends the time of each command to
    /// `timings`, if present.
    ///
    /// # Errors
    /// The device failed, or [`Error::Stopped`].
    fn compute(&mut self, step: &Step, until: Option<usize>, timings: Option<&mut Vec<Timing>>)
    -> Result<()>;

    /// Implements [`Program::begin_background`] for a step that passed [`Step::check_background`],
    /// while there is no other.
    ///
    /// # Errors
    /// As [`Program::begin_background`].
    fn begin_background(&mut self, _step: &Step) -> Result<()> {
        Err(device::no_background(self.name()))
    }

    /// Implements [`Program::advance_background`] for the background step. It is not called again
    /// after an error.
    ///
    /// # Errors
    /// As [`Program::advance_background`].
    fn advance_background(&mut self, _until: Option<Instant>) -> Result<BackgroundProgress> {
        Err(device::no_background(self.name()))
    }

    /// Implements [`Program::logits`] for the step that was computed last.
    fn logits(&self) -> &[f32];

    /// `(n_outputs)` token of the largest logit of each output of the last computed step, ties to
    /// the lowest id. Empty unless the step wanted a best token and the device searched for it. Any
    /// token if all logits are NaN or minus infinity.
    fn largest(&self) -> &[u32] {
        &[]
    }

    /// Calls `work(worker)` once on each of [`Hosted::new`]'s workers, and returns when all are
    /// done.
    ///
    /// # Errors
    /// A worker failed.
    fn on_workers(&self, work: &(dyn Fn(usize) + Sync)) -> Result<()> {
        work(0);
        Ok(())
    }

    /// Implements [`Program::chooses_in_flight`].
    fn chooses_in_flight(&self, _want: &Want) -> bool {
        false
    }

    /// Implements [`Program::kept`].
    fn kept(&self, index: usize) -> &[f32];

    /// Implements [`Program::read`].
    fn read(&self, value: ValueId) -> Option<Vec<f32>>;

    /// Copies a page; both pages are committed.
    fn copy_page(&mut self, group: usize, from: u32, to: u32);

    /// Copies the bytes of a committed page to `bytes`, which has their length.
    ///
    /// # Errors
    /// The device cannot export its pages.
    fn read_page(&self, _group: usize, _page: u32, _bytes: &mut [u8]) -> Result<()> {
        Err(self.keeps_pages())
    }

    /// Fills a committed page from `bytes`, which has its length.
    ///
    /// # Errors
    /// As [`Self::read_page`].
    fn write_page(&mut self, _group: usize, _page: u32, _bytes: &[u8]) -> Result<()> {
        Err(self.keeps_pages())
    }

    /// The error of a device that cannot export its pages.
    fn keeps_pages(&self) -> Error {
        Error::Unsupported {
            device: self.name(),
            what: "reading and writing KV pages".to_owned(),
            hint: "do not use prompt caches on disk".to_owned(),
        }
    }

    /// Pages of a group that are committed and decommitted together, at least 1.
    fn granule(&self, group: usize) -> usize;

    /// Commits whole granules, none of which is committed. Returns false if the system refuses, and
    /// then nothing has changed.
    #[must_use]
    fn commit(&mut self, _group: usize, _pages: Range<u32>) -> bool {
        true
    }

    /// Decommits whole granules, all of which are committed.
    fn decommit(&mut self, group: usize, pages: Range<u32>);

    /// Implements [`Program::replace_plans`] for plans of the same KV layout.
    ///
    /// # Errors
    /// As [`Program::replace_plans`].
    fn replace_plans(&mut self, _plans: &[Plan]) -> Result<()> {
        Err(device::plans_stay(self.name()))
    }

    /// Implements [`Program::commands`].
    fn commands(&self, plan: usize, n_rows: usize) -> Vec<CommandInfo>;
}

/// Largest number of logits of an output.
fn n_logits<'a>(plans: impl Iterator<Item = &'a Plan>) -> usize {
    plans.map(|plan| plan.value(plan.output).cols).max().unwrap_or(0)
}

/// A [`HostProgram`] as a [`Program`].
#[derive(Debug)]
pub struct Hosted<P> {
    program: P,
    /// Needs of each plan.
    needs: Vec<Needs>,
    kv: KvLayout,
    limits: Limits,
    /// Largest number of logits of an output.
    n_logits: usize,
    committed: CommittedPages,
    outputs: HostOutputs,
    max_in_flight: usize,
    /// True while there is a background step.
    has_background: bool,
    /// Pages of the background step: KV group, page, and true if the page is written.
    background_pages: Vec<(usize, u32, bool)>,
}

impl<P: HostProgram> Hosted<P> {
    /// A program that was compiled from `plans`, all of one KV layout. Steps are computed during
    /// submission. Up to `max_in_flight` may be submitted before the first is waited for.
    /// `n_workers` workers choose tokens together.
    pub fn new<'a>(
        program: P,
        plans: impl Iterator<Item = &'a Plan> + Clone,
        limits: &Limits,
        max_in_flight: usize,
        n_workers: usize,
    ) -> Hosted<P> {
        let n_logits = n_logits(plans.clone());
        Hosted {
            n_logits,
            committed: CommittedPages::new(limits, |group| program.granule(group)),
            program,
            needs: plans.clone().map(|plan| Needs::new(plan, limits)).collect(),
            kv: plans.clone().next().map(|plan| plan.kv.clone()).unwrap_or_default(),
            limits: limits.clone(),
            outputs: HostOutputs::new(n_logits, limits, max_in_flight, n_workers),
            max_in_flight,
            has_background: false,
            background_pages: Vec::new(),
        }
    }

    fn failed(&self, reason: String) -> Error {
        Error::Failed { device: self.program.name(), reason }
    }

    /// Checks a step and computes it. Returns its tokens, with those of its links; the caller
    /// returns them to the outputs.
    fn compute(
        &mut self,
        step: &Step,
        until: Option<usize>,
        timings: Option<&mut Vec<Timing>>,
    ) -> Result<Vec<u32>> {
        step.check(&self.needs, &self.limits, &self.committed).map_err(|reason| self.failed(reason))?;
        self.check_beside_background(step)?;
        let n_vocab = self.needs.get(step.plan).map_or(0, |needs| needs.n_vocab);
        let tokens = self.outputs.begin(step, n_vocab).map_err(|reason| self.failed(reason))?;
        match self.program.compute(&Step { tokens: &tokens, ..*step }, until, timings) {
            Ok(()) => Ok(tokens),
            Err(error) => {
                self.outputs.abandon(tokens);
                Err(error)
            }
        }
    }

    /// Chooses tokens from the logits of a computed step.
    fn choose(&mut self, step: &Step, tokens: Vec<u32>) -> Result<Ticket> {
        let Hosted { program, outputs, .. } = self;
        let (logits, largest) = (program.logits(), program.largest());
        let n_vocab = logits.len().checked_div(step.outputs.len()).unwrap_or(0);
        let is_possible = |output: usize, token: u32| {
            logits.get(output * n_vocab + token as usize).is_some_and(|logit| *logit > f32::NEG_INFINITY)
        };
        let best = |output: usize| largest.get(output).copied().filter(|token| is_possible(output, *token));
        outputs.finish(step, tokens, logits, best, |work| program.on_workers(work))
    }

    /// Checks that a step uses no page that the background step writes. Only a defect of the
    /// scheduler can break this, so it is checked with debug assertions only.
    fn check_beside_background(&self, step: &Step) -> Result<()> {
        if !cfg!(debug_assertions) || !self.has_background {
            return Ok(());
        }
        let written =
            |(group, page, _): &(usize, u32, bool)| self.background_pages.contains(&(*group, *page, true));
        match step.pages(&self.needs[step.plan], self.limits.page_len).find(written) {
            Some((group, page, _)) => Err(self.failed(format!(
                "the step uses page {page} of KV group {group}, which the step in the background writes"
            ))),
            None => Ok(()),
        }
    }

    fn check_page(&self, group: usize, page: u32) -> Result<()> {
        self.committed.check_page(group, page).map_err(|reason| self.failed(reason))
    }

    fn page_bytes(&self, group: usize) -> usize {
        self.kv.page_bytes(group, self.limits.kv_type, self.limits.page_len)
    }

    fn check_page_bytes(&self, group: usize, page: u32, n_bytes: usize) -> Result<()> {
        self.check_page(group, page)?;
        let expected = self.page_bytes(group);
        if n_bytes == expected {
            return Ok(());
        }
        Err(self.failed(format!("{n_bytes} bytes for a KV page of {expected} bytes")))
    }
}

impl<P: HostProgram> Program for Hosted<P> {
    fn max_in_flight(&self) -> usize {
        self.max_in_flight
    }

    fn chooses_in_flight(&self, want: &Want) -> bool {
        self.program.chooses_in_flight(want)
    }

    fn submit(&mut self, step: &Step) -> Result<Ticket> {
        let tokens = self.compute(step, None, None)?;
        self.choose(step, tokens)
    }

    fn wait(&mut self, ticket: Ticket) -> Result<()> {
        self.outputs.wait(ticket).map_err(|reason| self.failed(reason))
    }

    fn chosen(&self) -> &[Chosen] {
        self.outputs.chosen()
    }

    fn best(&self, output: usize) -> &[(u32, f32)] {
        self.outputs.best(output)
    }

    fn begin_background(&mut self, step: &Step) -> Result<()> {
        if self.has_background {
            return Err(self.failed("a step is in the background, expected none".to_owned()));
        }
        let checked = step.check_background(&self.needs, &self.limits, &self.committed);
        checked.map_err(|reason| self.failed(reason))?;
        self.program.begin_background(step)?;
        self.background_pages.clear();
        self.background_pages.extend(step.pages(&self.needs[step.plan], self.limits.page_len));
        self.has_background = true;
        Ok(())
    }

    fn advance_background(&mut self, until: Option<Instant>) -> Result<BackgroundProgress> {
        // A background step that panicked must not continue either.
        if !std::mem::take(&mut self.has_background) {
            return Err(self.failed("no step is in the background".to_owned()));
        }
        let progress = self.program.advance_background(until)?;
        self.has_background = !progress.is_done;
        Ok(progress)
    }

    fn abandon_background(&mut self) {
        self.has_background = false;
    }

    fn run_until(&mut self, step: &Step, last: usize) -> Result<()> {
        step.check_node(&self.needs, last).map_err(|reason| self.failed(reason))?;
        let tokens = self.compute(step, Some(last), None)?;
        self.outputs.abandon(tokens);
        Ok(())
    }

    fn read(&self, value: ValueId) -> Option<Vec<f32>> {
        self.program.read(value)
    }

    fn logits(&self) -> &[f32] {
        self.program.logits()
    }

    fn kept(&self, index: usize) -> &[f32] {
        self.program.kept(index)
    }

    fn copy_page(&mut self, group: usize, from: u32, to: u32) -> Result<()> {
        self.check_page(group, from)?;
        self.check_page(group, to)?;
        self.program.copy_page(group, from, to);
        Ok(())
    }

    fn read_page(&self, group: usize, page: u32, bytes: &mut [u8]) -> Result<()> {
        self.check_page_bytes(group, page, bytes.len())?;
        self.program.read_page(group, page, bytes)
    }

    fn write_page(&mut self, group: usize, page: u32, bytes: &[u8]) -> Result<()> {
        self.check_page_bytes(group, page, bytes.len())?;
        self.program.write_page(group, page, bytes)
    }

    fn committed(&self) -> &CommittedPages {
        &self.committed
    }

    fn commit(&mut self, group: usize, pages: Range<u32>) -> Result<()> {
        self.committed.check_range(group, &pages, false).map_err(|reason| self.failed(reason))?;
        if !self.program.commit(group, pages.clone()) {
            let (device, n_pages) = (self.program.name(), pages.len());
            let bytes = (n_pages * self.page_bytes(group)) as u64;
            return Err(Error::Shortage { device, group, n_pages, bytes });
        }
        self.committed.set(group, pages, true);
        Ok(())
    }

    fn decommit(&mut self, group: usize, pages: Range<u32>) -> Result<()> {
        self.committed.check_range(group, &pages, true).map_err(|reason| self.failed(reason))?;
        let is_used = |(of, page, _): &(usize, u32, bool)| *of == group && pages.contains(page);
        if self.has_background && self.background_pages.iter().any(is_used) {
            return Err(self.failed(format!(
                "pages {pages:?} of KV group {group} are in use by the step in the background"
            )));
        }
        self.committed.set(group, pages.clone(), false);
        self.program.decommit(group, pages);
        Ok(())
    }

    fn replace_plans(&mut self, plans: &[Plan]) -> Result<()> {
        if self.outputs.is_in_flight() || self.has_background {
            return Err(self.failed("a step is in flight or in the background, expected none".to_owned()));
        }
        if plans.is_empty() || plans.iter().any(|plan| plan.kv != self.kv) {
            return Err(self.failed("no plans, or plans of another KV layout".to_owned()));
        }
        let n_logits = n_logits(plans.iter());
        if n_logits > self.n_logits {
            return Err(
                self.failed(format!("plans of {n_logits} logits, expected {} at most", self.n_logits))
            );
        }
        self.program.replace_plans(plans)?;
        self.needs = plans.iter().map(|plan| Needs::new(plan, &self.limits)).collect();
        Ok(())
    }

    fn commands(&self, plan: usize, n_rows: usize) -> Vec<CommandInfo> {
        self.program.commands(plan, n_rows)
    }

    fn run_timed(&mut self, step: &Step, timings: &mut Vec<Timing>) -> Result<()> {
        let tokens = self.compute(step, None, Some(timings))?;
        let ticket = self.choose(step, tokens)?;
        self.wait(ticket)
    }
}
