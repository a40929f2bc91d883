//! Any device with limited memory for KV pages, or with a step that fails.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use device::{
    Arithmetic, BackgroundProgress, Chosen, CommandInfo, CommittedPages, Device, Error, FusedKind, KvType,
    Limits, MemoryPlan, Peaks, Plan, Program, Result, Step, Ticket, Timing, ValueId, Want, Weight,
};

/// A device that refuses commits of pages, and counts them. Clones share the counts.
#[derive(Clone)]
pub struct Scarce {
    inner: Arc<dyn Device>,
    counts: Arc<Counts>,
}

/// Counts over all programs of a device.
struct Counts {
    /// Maximum number of pages that may be committed at once.
    most: AtomicUsize,
    /// Index of the commit to refuse, from 0.
    refused: AtomicUsize,
    /// Index of the step to fail after it ran, from 0.
    failed: AtomicUsize,
    n_waits: AtomicUsize,
    n_commits: AtomicUsize,
    n_decommits: AtomicUsize,
    n_committed: AtomicUsize,
}

const ORDER: Ordering = Ordering::Relaxed;

impl Scarce {
    /// A device that refuses nothing yet.
    pub fn new(inner: Arc<dyn Device>) -> Scarce {
        let count = |n| AtomicUsize::new(n);
        let counts = Counts {
            most: count(usize::MAX),
            refused: count(usize::MAX),
            failed: count(usize::MAX),
            n_waits: count(0),
            n_commits: count(0),
            n_decommits: count(0),
            n_committed: count(0),
        };
        Scarce { inner, counts: Arc::new(counts) }
    }

    /// From now on, limits the committed pages of all groups together.
    pub fn allow(&self, n_pages: usize) {
        self.counts.most.store(n_pages, ORDER);
    }

    /// Refuses the commit with this index, from 0, and no other.
    pub fn refuse(&self, commit: usize) {
        self.counts.refused.store(commit, ORDER);
    }

    /// Reports the step with this index, from 0, as failed after it ran, and no other.
    pub fn fail(&self, step: usize) {
        self.counts.failed.store(step, ORDER);
    }

    /// Number of calls of [`Program::commit`], including refused ones.
    pub fn n_commits(&self) -> usize {
        self.counts.n_commits.load(ORDER)
    }

    /// Number of decommitted ranges.
    pub fn n_decommits(&self) -> usize {
        self.counts.n_decommits.load(ORDER)
    }

    /// Number of pages committed now.
    pub fn n_committed(&self) -> usize {
        self.counts.n_committed.load(ORDER)
    }
}

impl Device for Scarce {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn n_threads(&self) -> usize {
        self.inner.n_threads()
    }

    fn memory(&self) -> platform::SystemMemory {
        self.inner.memory()
    }

    fn memory_source(&self) -> Option<Box<dyn platform::MemorySource>> {
        self.inner.memory_source()
    }

    fn fusion(&self) -> &[FusedKind] {
        self.inner.fusion()
    }

    fn kv_types(&self) -> &[KvType] {
        self.inner.kv_types()
    }

    fn page_len(&self) -> usize {
        self.inner.page_len()
    }

    fn background_rows(&self) -> usize {
        self.inner.background_rows()
    }

    fn memory_plan(&self, plans: &[Plan], limits: &Limits) -> Result<MemoryPlan> {
        self.inner.memory_plan(plans, limits)
    }

    fn compile(&self, plans: &[Plan], limits: &Limits) -> Result<Box<dyn Program>> {
        let inner = self.inner.compile(plans, limits)?;
        Ok(Box::new(ScarceProgram { device: self.inner.name(), inner, counts: self.counts.clone() }))
    }

    fn arithmetic(&self, weight: &Weight) -> Arithmetic {
        self.inner.arithmetic(weight)
    }

    fn peaks(&self) -> Peaks {
        self.inner.peaks()
    }
}

struct ScarceProgram {
    device: &'static str,
    inner: Box<dyn Program>,
    counts: Arc<Counts>,
}

impl Program for ScarceProgram {
    fn max_in_flight(&self) -> usize {
        self.inner.max_in_flight()
    }

    fn steps_ahead(&self, n_sequences: usize) -> usize {
        self.inner.steps_ahead(n_sequences)
    }

    fn chooses_in_flight(&self, want: &Want) -> bool {
        self.inner.chooses_in_flight(want)
    }

    fn submit(&mut self, step: &Step) -> Result<Ticket> {
        self.inner.submit(step)
    }

    fn wait(&mut self, ticket: Ticket) -> Result<()> {
        self.inner.wait(ticket)?;
        if self.counts.n_waits.fetch_add(1, ORDER) == self.counts.failed.load(ORDER) {
            return Err(Error::Failed { device: self.device, reason: "as asked".into() });
        }
        Ok(())
    }

    fn chosen(&self) -> &[Chosen] {
        self.inner.chosen()
    }

    fn best(&self, output: usize) -> &[(u32, f32)] {
        self.inner.best(output)
    }

    fn logits(&self) -> &[f32] {
        self.inner.logits()
    }

    fn kept(&self, index: usize) -> &[f32] {
        self.inner.kept(index)
    }

    fn run(&mut self, step: &Step) -> Result<()> {
        self.inner.run(step)
    }

    fn begin_background(&mut self, step: &Step) -> Result<()> {
        self.inner.begin_background(step)
    }

    fn advance_background(&mut self, until: Option<Instant>) -> Result<BackgroundProgress> {
        self.inner.advance_background(until)
    }

    fn abandon_background(&mut self) {
        self.inner.abandon_background();
    }

    fn run_until(&mut self, step: &Step, last: usize) -> Result<()> {
        self.inner.run_until(step, last)
    }

    fn read(&self, value: ValueId) -> Option<Vec<f32>> {
        self.inner.read(value)
    }

    fn committed(&self) -> &CommittedPages {
        self.inner.committed()
    }

    fn commit(&mut self, group: usize, pages: Range<u32>) -> Result<()> {
        let (n_pages, counts) = (pages.len(), &self.counts);
        let commit = counts.n_commits.fetch_add(1, ORDER);
        let too_many = counts.n_committed.load(ORDER) + n_pages > counts.most.load(ORDER);
        if too_many || commit == counts.refused.load(ORDER) {
            return Err(Error::Shortage { device: self.device, group, n_pages, bytes: 0 });
        }
        self.inner.commit(group, pages)?;
        counts.n_committed.fetch_add(n_pages, ORDER);
        Ok(())
    }

    fn decommit(&mut self, group: usize, pages: Range<u32>) -> Result<()> {
        let n_pages = pages.len();
        self.inner.decommit(group, pages)?;
        self.counts.n_decommits.fetch_add(1, ORDER);
        self.counts.n_committed.fetch_sub(n_pages, ORDER);
        Ok(())
    }

    fn copy_page(&mut self, group: usize, from: u32, to: u32) -> Result<()> {
        self.inner.copy_page(group, from, to)
    }

    fn read_page(&self, group: usize, page: u32, bytes: &mut [u8]) -> Result<()> {
        self.inner.read_page(group, page, bytes)
    }

    fn write_page(&mut self, group: usize, page: u32, bytes: &[u8]) -> Result<()> {
        self.inner.write_page(group, page, bytes)
    }

    fn replace_plans(&mut self, plans: &[Plan]) -> Result<()> {
        self.inner.replace_plans(plans)
    }

    fn commands(&self, plan: usize, n_rows: usize) -> Vec<CommandInfo> {
        self.inner.commands(plan, n_rows)
    }

    fn run_timed(&mut self, step: &Step, timings: &mut Vec<Timing>) -> Result<()> {
        self.inner.run_timed(step, timings)
    }
}

impl Drop for ScarceProgram {
    fn drop(&mut self) {
        let committed = self.inner.committed();
        let n_pages = (0..committed.n_groups()).map(|group| committed.n_committed(group)).sum();
        self.counts.n_committed.fetch_sub(n_pages, ORDER);
    }
}
