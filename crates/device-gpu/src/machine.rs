//! [`Machine`]: the operations of a GPU that a [`GpuProgram`] needs.

use crate::compiled::{CompiledPlan, HasTable};
use crate::inputs::Begun;
use crate::program::GpuProgram;
use device::{CommittedPages, Limits, Plan, Result, Step, Timing};
use device_lower::table::{Command, StepSizes, Table, When};
use std::ops::Range;

/// Memory that the host writes before a step is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostPart {
    /// The regions of steps ([`crate::layout::StepLayout`]).
    Steps,
    /// The chosen tokens, as the host reads them.
    Chosen,
    /// The masks of outputs.
    Masks,
}

/// Rows of a value of a step that the host reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResultPart {
    /// The rows' offset in the arena, in bytes.
    pub offset: usize,
    /// Number of the rows' bytes.
    pub bytes: usize,
    /// The rows' offset among the results, if the machine copies them.
    pub at: usize,
}

/// A GPU with the memory and the compiled tables of one program.
pub trait Machine: Sized + Send {
    /// A compiled table.
    type Table: HasTable;
    /// A step that was launched.
    type Work: Send;

    /// The device's name on the command line.
    const NAME: &'static str;

    /// True if copies of pages run in the order of steps, so that they need not wait for steps in
    /// flight.
    const COPIES_IN_ORDER: bool;

    /// True if grids depend on the sequences of a step.
    const COUNTS_SPANS: bool;

    /// The compiled plans.
    fn plans(&self) -> &[CompiledPlan<Self::Table>];

    /// Positions of a sequence after which they are split over threadgroups.
    fn long(&self) -> usize;

    /// The table of steps of `n_rows` rows that one launch computes, if there are such steps.
    fn whole(&self, _plan: usize, _n_rows: usize) -> Option<&Self::Table> {
        None
    }

    /// Returns true if one launch computes this step.
    fn takes_whole(&self, _step: &Step) -> bool {
        false
    }

    /// Number of steps worth submitting ahead for `n_sequences` sequences; `None`: the most in
    /// flight.
    fn steps_ahead(&self, n_sequences: usize) -> Option<usize>;

    /// Makes this GPU current for driver calls of the calling thread.
    ///
    /// # Errors
    /// The driver refused.
    fn enter(&self) -> Result<()> {
        Ok(())
    }

    /// Writes bytes, which fit.
    fn write(&mut self, part: HostPart, offset: usize, bytes: &[u8]);

    /// Writes the entries of a page table into the regions of steps.
    fn write_pages(&mut self, offset: usize, group: usize, pages: &[u32]);

    /// Prepares for a step before its region is written.
    ///
    /// # Errors
    /// A kernel of its table does not compile.
    fn begin(&mut self, step: &Step, begun: &Begun) -> Result<()>;

    /// Called after a step's region was written.
    fn written(&mut self, _step: &Step, _begun: &Begun) {}

    /// Returns true if the steps that [`Self::launch`] holds back may share a launch with this one.
    fn follows(&self, _begun: &Begun) -> bool {
        true
    }

    /// Launches a step, or holds it back for [`Self::flush`] if other work is in flight. Before
    /// commands that need masks it calls [`crate::inputs::write_masks`].
    ///
    /// # Errors
    /// The driver refused, or the step's caller stopped it: nothing of it runs any more.
    fn launch(&mut self, step: &Step, begun: &Begun, is_busy: bool) -> Result<Self::Work>;

    /// Launches the steps that were held back.
    ///
    /// # Errors
    /// The driver refused: none of the steps in flight can be trusted then.
    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    /// Returns true if the held steps of a plan fill one launch.
    fn is_full(&self, _plan: usize) -> bool {
        false
    }

    /// Returns true if work was launched, and not held back.
    fn is_launched(&self, _work: &Self::Work) -> bool {
        true
    }

    /// Runs a range of a step's commands, and waits for them.
    ///
    /// # Errors
    /// The device failed.
    fn run(&mut self, begun: &Begun, range: Range<usize>) -> Result<()>;

    /// Runs each of a step's commands by itself. Commands are counted from `first`.
    ///
    /// # Errors
    /// The device failed.
    fn run_timed(&mut self, begun: &Begun, first: usize, timings: &mut Vec<Timing>) -> Result<()>;

    /// Waits for the oldest step.
    ///
    /// # Errors
    /// The device failed.
    fn wait(&mut self, work: Self::Work) -> Result<()>;

    /// Waits for all submitted work; `works` are the steps in flight.
    ///
    /// # Errors
    /// The device failed.
    fn settle<'a>(&'a self, works: impl Iterator<Item = &'a Self::Work>) -> Result<()>;

    /// A chosen token by its index, of a step that is done.
    fn chosen(&self, index: u32) -> u32;

    /// Copies chosen tokens that the host wrote to memory that kernels read.
    ///
    /// # Errors
    /// The device failed.
    fn publish_chosen(&mut self, _first: u32, _n: usize) -> Result<()> {
        Ok(())
    }

    /// Copies rows to memory that [`Self::result`] reads. Nothing is in flight.
    ///
    /// # Errors
    /// The device failed.
    fn fetch(&mut self, _parts: &[ResultPart]) -> Result<()> {
        Ok(())
    }

    /// Rows that were fetched. Nothing is in flight.
    fn result(&self, part: &ResultPart) -> &[f32];

    /// Reads words of the arena. Nothing is in flight.
    fn read(&self, offset: usize, words: &mut [u32]) -> Option<()>;

    /// Pages that have memory.
    fn committed(&self) -> &CommittedPages;

    /// Commits pages, as [`device::Program::commit`] does.
    ///
    /// # Errors
    /// Those of the method of `Program`.
    fn commit(&mut self, group: usize, pages: Range<u32>) -> Result<()>;

    /// Decommits pages, as [`device::Program::decommit`] does, while nothing runs.
    ///
    /// # Errors
    /// Those of the method of `Program`.
    fn decommit(&mut self, group: usize, pages: Range<u32>) -> Result<()>;

    /// Copies a page, as [`device::Program::copy_page`] does.
    ///
    /// # Errors
    /// Those of the method of `Program`.
    fn copy_page(&mut self, group: usize, from: u32, to: u32) -> Result<()>;

    /// Reads a page, as [`device::Program::read_page`] does.
    ///
    /// # Errors
    /// Those of the method of `Program`.
    fn read_page(&self, group: usize, page: u32, bytes: &mut [u8]) -> Result<()>;

    /// Writes a page, as [`device::Program::write_page`] does.
    ///
    /// # Errors
    /// Those of the method of `Program`.
    fn write_page(&mut self, group: usize, page: u32, bytes: &[u8]) -> Result<()>;

    /// Compiles a program of other plans while this one exists. The new program will adopt the
    /// pages and states of this one.
    ///
    /// # Errors
    /// As [`device::Device::compile`].
    fn beside(&self, plans: &[Plan], limits: &Limits) -> Result<GpuProgram<Self>>;

    /// Takes over pages and states of the program that this one replaces. Nothing runs.
    fn adopt(&mut self, before: &mut Self);

    /// Waits for everything, before memory is freed; steps in flight were dropped.
    fn close(&mut self);

    /// The table that a step runs.
    fn table(&self, plan: usize, sizes: &StepSizes) -> &Self::Table {
        let whole = self.whole(plan, sizes.n_rows).filter(|_| sizes.whole);
        whole.unwrap_or_else(|| self.plans()[plan].table(sizes))
    }
}

/// Index of the first command of a table that needs the masks of a step; past all commands if the
/// step has none.
pub fn masks_at(table: &Table, sizes: &StepSizes) -> usize {
    let needs = |command: &Command| command.when == When::Masks;
    let at = table.commands().iter().position(needs).filter(|_| sizes.masks);
    at.unwrap_or(usize::MAX)
}
