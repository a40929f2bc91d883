//! Compiled plans as the host runs them: steps, their results, and pages.

use crate::NAME;
use crate::background::{self, Background};
use crate::compile::Table;
use crate::isa::Isa;
use crate::layout::LaidOut;
use crate::memory::{Buffer, PagePool};
use crate::pool::{Interrupted, Pool};
use crate::stored::{Ran, Stored};
use crate::tables::{Kept, Tables};
use crate::weights::InterleavedWeights;
use device::{
    BackgroundProgress, Choose, CommandInfo, DType, Error, Limits, Plan, Result, Step, Timing, ValueId,
};
use device_lower::hosted::HostProgram;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

fn failed(reason: String) -> Error {
    Error::Failed { device: NAME, reason }
}

/// Compiled plans.
pub struct CpuProgram {
    pool: Arc<Pool>,
    isa: Isa,
    limits: Limits,
    /// Tables of the plans, which point into `kept`.
    tables: Tables,
    /// Tables of a background step, if the limits allow one.
    background: Option<Background>,
    /// Plan of the last step.
    current: usize,
    /// Progress of the last step.
    ran: Ran,
    kept: Kept,
}

impl From<Interrupted> for Error {
    fn from(interrupted: Interrupted) -> Error {
        match interrupted {
            Interrupted::Ended => Error::Stopped { device: NAME },
            Interrupted::Panicked(reason) => failed(reason),
        }
    }
}

impl CpuProgram {
    /// Allocates the memory and writes the tables. There is at least one plan, and all have the
    /// same KV layout.
    ///
    /// # Errors
    /// Memory allocation failed.
    pub fn new(
        plans: &[Plan],
        laid_out: &LaidOut<'_>,
        limits: &Limits,
        kept: Kept,
        isa: Isa,
        pool: Arc<Pool>,
    ) -> Result<CpuProgram> {
        let mut program = CpuProgram {
            tables: Tables::new(laid_out, limits, &kept, kept.weights.clone(), isa)?,
            background: None,
            pool,
            isa,
            limits: limits.clone(),
            current: 0,
            ran: Ran::default(),
            kept,
        };
        program.background = program.make_background(plans, program.kept.weights.clone())?;
        Ok(program)
    }

    /// Tables for background steps of these plans, if the limits allow them.
    fn make_background(
        &self,
        plans: &[Plan],
        weights: Arc<InterleavedWeights>,
    ) -> Result<Option<Background>> {
        let Some(limits) = background::limits(&self.limits) else { return Ok(None) };
        let n_workers = self.pool.n_workers();
        Background::new(plans, &limits, &self.kept, weights, self.isa, n_workers).map(Some)
    }

    /// Runs the commands of a step, up to the node `until` if given, with marks as in
    /// [`Tables::run`].
    fn replay(&mut self, step: &Step, until: Option<usize>, marks: Option<&mut [Instant]>) -> Result<()> {
        let (n_nodes, argmax) = match until {
            None => {
                let wants_best = step.wants.iter().any(|w| w.choose == Choose::Best && w.is_plain());
                (self.tables.plans[step.plan].n_nodes, wants_best)
            }
            Some(last) => (last + 1, true),
        };
        self.current = step.plan;
        let n_rows = step.tokens.len();
        // No value may be read before the commands have run.
        self.ran = Ran { n_rows, n_outputs: step.outputs.len(), n_nodes: 0, argmax };
        self.tables.prepare(step, &self.kept, self.pool.n_workers());
        let Table { commands, infos } = self.tables.plans[step.plan].table(n_rows);
        let n_commands = match until {
            None => commands.len(),
            Some(last) => infos.iter().take_while(|info| info.node <= last).count(),
        };
        self.tables.run(step, 0..n_commands, argmax, marks, &self.kept, &self.pool)?;
        self.ran.n_nodes = n_nodes;
        Ok(())
    }
}

/// Rows of a value after a step; empty if the value is not stored.
fn rows_of<'a, T: Copy>(arena: &'a Buffer, stored: Option<&Stored>, ran: &Ran) -> &'a [T] {
    const { assert!(size_of::<T>() == 4) };
    let Some(stored) = stored else { return &[] };
    let n = stored.rows.count(ran.n_rows, ran.n_outputs) * stored.cols;
    // SAFETY: `layout` reserved `stored.offset` with room for the largest number of rows, which the
    // step's check bounds. The address is aligned to 64, the arena was zeroed, and all bits are a
    // valid `T` (f32 or u32, 4 bytes). Workers write the arena only within `Pool::run`, which needs
    // `&mut CpuProgram`.
    unsafe { std::slice::from_raw_parts(arena.start().add(stored.offset).cast(), n) }
}

impl HostProgram for CpuProgram {
    fn name(&self) -> &'static str {
        NAME
    }

    fn compute(
        &mut self,
        step: &Step,
        until: Option<usize>,
        timings: Option<&mut Vec<Timing>>,
    ) -> Result<()> {
        let Some(timings) = timings else { return self.replay(step, until, None) };
        let begin = Instant::now();
        let n = self.tables.plans[step.plan].table(step.tokens.len()).commands.len();
        let mut marks = vec![begin; n + 1];
        self.replay(step, until, Some(&mut marks))?;
        timings.extend(marks.windows(2).enumerate().map(|(command, pair)| Timing {
            command,
            start: (pair[0] - begin).as_secs_f64(),
            duration: (pair[1] - pair[0]).as_secs_f64(),
        }));
        Ok(())
    }

    fn begin_background(&mut self, step: &Step) -> Result<()> {
        let Some(background) = &mut self.background else { return Err(device::no_background(NAME)) };
        background.begin(step, &self.kept, self.pool.n_workers());
        Ok(())
    }

    fn advance_background(&mut self, until: Option<Instant>) -> Result<BackgroundProgress> {
        let Some(background) = &mut self.background else { return Err(device::no_background(NAME)) };
        Ok(background.advance(until, &self.kept, &self.pool)?)
    }

    fn logits(&self) -> &[f32] {
        let plan = &self.tables.plans[self.current];
        rows_of(&self.tables.arena, plan.stored.get(plan.output), &self.ran)
    }

    fn largest(&self) -> &[u32] {
        let plan = &self.tables.plans[self.current];
        if !self.ran.argmax {
            return &[];
        }
        rows_of(&self.tables.arena, plan.stored.get(plan.argmax), &self.ran)
    }

    fn on_workers(&self, work: &(dyn Fn(usize) + Sync)) -> Result<()> {
        self.pool.run(&|index, _| work(index)).map_err(|interrupted| failed(interrupted.to_string()))
    }

    fn kept(&self, index: usize) -> &[f32] {
        let plan = &self.tables.plans[self.current];
        let stored = plan.kept.get(index).and_then(|id| plan.stored.get(*id));
        rows_of(&self.tables.arena, stored, &self.ran)
    }

    fn read(&self, value: ValueId) -> Option<Vec<f32>> {
        let plan = &self.tables.plans[self.current];
        if value == plan.argmax && !self.ran.argmax {
            return None;
        }
        let stored = Some(plan.stored.intact(value, &self.ran)?);
        Some(match stored?.dtype {
            DType::F32 => rows_of(&self.tables.arena, stored, &self.ran).to_vec(),
            DType::U32 => {
                rows_of::<u32>(&self.tables.arena, stored, &self.ran).iter().map(|n| *n as f32).collect()
            }
        })
    }

    fn copy_page(&mut self, group: usize, from: u32, to: u32) {
        self.kept.pages[group].copy(from, to);
    }

    fn read_page(&self, group: usize, page: u32, bytes: &mut [u8]) -> Result<()> {
        bytes.copy_from_slice(self.kept.pages[group].bytes(page));
        Ok(())
    }

    fn write_page(&mut self, group: usize, page: u32, bytes: &[u8]) -> Result<()> {
        self.kept.pages[group].bytes_mut(page).copy_from_slice(bytes);
        Ok(())
    }

    fn granule(&self, group: usize) -> usize {
        self.kept.pages.get(group).map_or(1, |pool| PagePool::granule(pool.page_bytes()))
    }

    fn commit(&mut self, group: usize, pages: Range<u32>) -> bool {
        self.kept.pages[group].commit(pages)
    }

    fn decommit(&mut self, group: usize, pages: Range<u32>) {
        self.kept.pages[group].decommit(pages);
    }

    fn replace_plans(&mut self, plans: &[Plan]) -> Result<()> {
        let laid_out = LaidOut::new(plans, &self.limits, self.isa, self.pool.n_workers());
        let weights = Arc::new(InterleavedWeights::beside(&self.kept.weights, plans, self.isa, &self.pool)?);
        let background = self.make_background(plans, weights.clone())?;
        self.tables = Tables::new(&laid_out, &self.limits, &self.kept, weights, self.isa)?;
        self.background = background;
        (self.current, self.ran) = (0, Ran::default());
        Ok(())
    }

    fn commands(&self, plan: usize, n_rows: usize) -> Vec<CommandInfo> {
        self.tables.plans.get(plan).map_or(vec![], |plan| plan.table(n_rows).infos.clone())
    }
}
