//! [`Replayer`]: the machine of GPUs whose driver writes a table into a command buffer.
//!
//! Each step in flight has a region of the step buffer; tables bind that buffer at offsets in a
//! region. The GPU runs steps in order, so that they share the arena. The tokens that outputs
//! choose go to a buffer of their own, where embeddings and penalties of later steps find them.
//! Page tables hold addresses of pages ([`crate::pools`]).

use crate::arguments;
use crate::at_once::for_each_at_once;
use crate::compiled::{CompiledPlan, HasTable};
use crate::gpu::{Buffer, Dispatch, Encoder, Gpu, Memory, Residency, Window, write};
use crate::inputs::{self, Begun};
use crate::layout::{ALIGN, StepLayout};
use crate::machine::{HostPart, Machine, ResultPart, masks_at};
use crate::pools::Pools;
use crate::program::GpuProgram;
use crate::step_cost::StepCost;
use device::{CommittedPages, Error, KvLayout, Limits, Plan, Result, Step, Timing};
use device_lower::table::{StepSizes, Table};
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use weights::Bytes;

/// Index of the activations among a program's buffers.
pub const ARENA: u16 = 0;
/// Index of the regions of steps.
pub const STEP: u16 = 1;
/// Index of scratch, for data that belongs to no value.
pub const SCRATCH: u16 = 2;
/// Index of the numbers that kernels look up.
pub const TABLES: u16 = 3;
/// Index of the tokens that outputs chose.
pub const CHOSEN: u16 = 4;
/// Index of the states of recurrent layers.
pub const STATES: u16 = 5;
/// Index of the masks of outputs.
pub const MASKS: u16 = 6;

/// Command buffers of a step that its caller may stop.
const PARTS: usize = 8;

/// The table of a class of rows.
pub struct ClassTable {
    table: Table,
    /// Set once all kernels that it names are compiled.
    is_ready: OnceLock<()>,
}

impl ClassTable {
    /// A table whose kernels are compiled when a step first needs them.
    pub fn new(table: Table) -> ClassTable {
        ClassTable { table, is_ready: OnceLock::new() }
    }
}

impl HasTable for ClassTable {
    fn table(&self) -> &Table {
        &self.table
    }
}

/// Seconds of a part of a step.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    /// On the GPU.
    pub gpu: f64,
    /// From the first call of the driver to the end of the wait.
    pub wall: f64,
    /// On the CPU, until the command buffer was submitted.
    pub encode: f64,
}

/// Bytes of a program's buffers.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Activations.
    pub arena: usize,
    /// The layout of a step.
    pub step: StepLayout,
    /// Scratch.
    pub scratch: usize,
    /// Numbers that kernels look up.
    pub tables: usize,
}

/// Compiles a program of other plans for the same GPU.
pub type Compile<G> = Arc<dyn Fn(&[Plan], &Limits) -> Result<GpuProgram<Replayer<G>>> + Send + Sync>;

/// A GPU with one program's memory and tables.
pub struct Replayer<G: Gpu> {
    gpu: Arc<G>,
    plans: Vec<CompiledPlan<ClassTable>>,
    /// Estimated work of the steps of each plan.
    costs: Vec<StepCost>,
    /// The kernels that commands name by number.
    kernels: Vec<G::Kernel>,
    /// Pipelines of `kernels`, compiled when a step first needs them.
    pipelines: Vec<OnceLock<G::Pipeline>>,
    pools: Pools<G>,
    /// All buffers, in the order of [`ARENA`] and its siblings, then the weights.
    buffers: Vec<G::Buffer>,
    step: StepLayout,
    long: usize,
    /// Keeps buffers and chunks in memory.
    residency: G::Residency,
    compile: Compile<G>,
    /// The files' maps, kept while the GPU reads them.
    _files: Vec<Bytes>,
}

/// Allocates a program's buffers, but for weights and pages.
///
/// # Errors
/// Memory was refused.
pub fn allocate<G: Gpu>(gpu: &G, kv: &KvLayout, limits: &Limits, sizes: &Sizes) -> Result<Vec<G::Buffer>> {
    let Sizes { arena, step, scratch, tables } = *sizes;
    let states = 4 * limits.n_states * kv.state_len();
    let buffers = [
        (Memory::Device, "activations", arena),
        (Memory::Shared, "steps", step.total()),
        (Memory::Device, "scratch", scratch),
        (Memory::Device, "tables", tables),
        (Memory::Readback, "chosen tokens", step.chosen_bytes()),
        (Memory::Device, "states of recurrent layers", states),
        (Memory::Shared, "masks of tokens", step.mask_bytes()),
    ];
    buffers.into_iter().map(|(memory, what, bytes)| gpu.allocate(memory, what, bytes.max(ALIGN))).collect()
}

impl<G: Gpu> Replayer<G> {
    /// A machine with compiled plans, whose commands name `kernels` by number. It compiles the
    /// kernels of one-row steps, which decode uses most; others are compiled when a step first
    /// needs them.
    ///
    /// # Errors
    /// A kernel does not compile, or a page is too long.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        gpu: Arc<G>,
        plans: &[Plan],
        limits: &Limits,
        compiled: Vec<CompiledPlan<ClassTable>>,
        kernels: Vec<G::Kernel>,
        buffers: Vec<G::Buffer>,
        (step, long): (StepLayout, usize),
        compile: Compile<G>,
    ) -> Result<Replayer<G>> {
        let kv = plans.first().map(|plan| plan.kv.clone()).unwrap_or_default();
        let files = plans.iter().flat_map(|plan| &plan.weights).flat_map(device::Weight::views);
        let machine = Replayer {
            pools: Pools::new(&kv, limits, gpu.facts().max_buffer_bytes)?,
            residency: gpu.reside(&buffers),
            plans: compiled,
            costs: plans.iter().map(StepCost::new).collect(),
            pipelines: kernels.iter().map(|_| OnceLock::new()).collect(),
            kernels,
            buffers,
            step,
            long,
            compile,
            _files: files.cloned().collect(),
            gpu,
        };
        let one = StepSizes { n_rows: 1, n_outputs: 1, ..StepSizes::default() };
        machine.plans.iter().try_for_each(|plan| machine.compile_kernels(plan.table(&one)))?;
        Ok(machine)
    }

    /// Compiles the kernels that a table names and that are not compiled, several at a time.
    fn compile_kernels(&self, class: &ClassTable) -> Result<()> {
        if class.is_ready.get().is_some() {
            return Ok(());
        }
        let mut missing: Vec<usize> = class.table.commands().iter().map(|c| c.kernel as usize).collect();
        missing.sort_unstable();
        missing.dedup();
        let (gpu, pipelines, kernels) = (&self.gpu, &self.pipelines, &self.kernels);
        missing.retain(|index| pipelines[*index].get().is_none());
        let named: Vec<&G::Kernel> = missing.iter().map(|index| &kernels[*index]).collect();
        gpu.prepare(&named);
        let failure = OnceLock::new();
        for_each_at_once(&missing, &|index| match gpu.pipeline(&kernels[*index]) {
            Ok(pipeline) => {
                pipelines[*index].get_or_init(|| pipeline);
            }
            // The first of several failures is reported.
            Err(error) => drop(failure.set(error)),
        });
        if let Some(error) = failure.into_inner() {
            return Err(error);
        }
        class.is_ready.get_or_init(|| ());
        Ok(())
    }

    /// Times of some of a step's commands, in ascending order: means of `repetitions` runs in one
    /// command buffer. Commands that follow each other in the table wait for each other where they
    /// must, and others always.
    ///
    /// # Errors
    /// The device failed.
    pub fn time_commands(&self, begun: &Begun, commands: &[usize], repetitions: usize) -> Result<Times> {
        let replay = self.replay(begun);
        let started = Instant::now();
        let work = self.gpu.submit(&mut |encoder| {
            self.pools.encode(encoder);
            for _ in 0..repetitions {
                let mut due = false;
                for run in replay.table.runs(&begun.sizes) {
                    due |= run.barrier;
                    if commands.binary_search(&run.index).is_err() {
                        due = true;
                        continue;
                    }
                    if std::mem::take(&mut due) {
                        encoder.barrier();
                    }
                    replay.encode_command(run.index, run.threadgroups, encoder);
                }
                encoder.barrier();
            }
        })?;
        let encode = started.elapsed().as_secs_f64();
        let gpu = self.gpu.wait(&work)?;
        let mean = |seconds: f64| seconds / repetitions.max(1) as f64;
        Ok(Times { gpu: mean(gpu), wall: mean(started.elapsed().as_secs_f64()), encode: mean(encode) })
    }

    fn replay(&self, begun: &Begun) -> Replay<'_, G> {
        let (start, len) = (self.step.region_at(begun.ticket) as u64, self.step.region as u64);
        Replay {
            table: self.plans[begun.plan].table(&begun.sizes).table(),
            pipelines: &self.pipelines,
            buffers: &self.buffers,
            pools: &self.pools,
            window: Window { buffer: STEP, start, len },
        }
    }

    /// Submits a range of a step's commands as one command buffer.
    fn encode(&self, begun: &Begun, range: Range<usize>) -> Result<G::Ticket> {
        let replay = self.replay(begun);
        self.gpu.submit(&mut |encoder| replay.encode(&begun.sizes, &range, encoder))
    }

    /// Keeps the last two submissions of a step, and waits for the one before them.
    fn keep(&self, work: &mut [Option<G::Ticket>; 2], next: G::Ticket) -> Result<()> {
        let oldest = work[0].take();
        *work = [work[1].take(), Some(next)];
        oldest.map_or(Ok(()), |oldest| self.gpu.wait(&oldest).map(drop))
    }

    /// The first byte and the length of a committed page.
    fn page(&self, group: usize, page: u32) -> Result<(*mut u8, usize)> {
        self.pools.page(group, page).map_err(|reason| Error::Failed { device: G::NAME, reason })
    }
}

/// A table with the pipelines and buffers that its commands name by number.
struct Replay<'a, G: Gpu> {
    table: &'a Table,
    pipelines: &'a [OnceLock<G::Pipeline>],
    buffers: &'a [G::Buffer],
    pools: &'a Pools<G>,
    window: Window,
}

impl<G: Gpu> Replay<'_, G> {
    /// Encodes the commands of a range of the table that run in a step.
    fn encode(&self, sizes: &StepSizes, range: &Range<usize>, encoder: &mut G::Encoder) {
        self.pools.encode(encoder);
        let runs = self.table.runs(sizes).skip_while(|run| run.index < range.start);
        for run in runs.take_while(|run| run.index < range.end) {
            if run.barrier {
                encoder.barrier();
            }
            self.encode_command(run.index, run.threadgroups, encoder);
        }
    }

    /// Encodes one command.
    fn encode_command(&self, index: usize, threadgroups: [u32; 3], encoder: &mut G::Encoder) {
        let command = &self.table.commands()[index];
        // All are compiled before a step is encoded.
        let Some(pipeline) = self.pipelines[command.kernel as usize].get() else { return };
        let dispatch = Dispatch {
            pipeline,
            operands: self.table.operands(command),
            window: self.window,
            arguments: self.table.parameters(command),
            threadgroup_bytes: command.threadgroup_bytes,
            threadgroups,
            threads: [command.threads, 1, 1],
        };
        encoder.dispatch(&dispatch, self.buffers);
    }
}

impl<G: Gpu> Machine for Replayer<G> {
    type Table = ClassTable;
    /// The last command buffers of a step: one, or two where masks came between.
    type Work = [Option<G::Ticket>; 2];

    const NAME: &'static str = G::NAME;
    const COPIES_IN_ORDER: bool = false;
    const COUNTS_SPANS: bool = true;

    fn plans(&self) -> &[CompiledPlan<ClassTable>] {
        &self.plans
    }

    fn long(&self) -> usize {
        self.long
    }

    fn steps_ahead(&self, _n_sequences: usize) -> Option<usize> {
        None
    }

    fn write(&mut self, part: HostPart, offset: usize, bytes: &[u8]) {
        let buffer = match part {
            HostPart::Steps => STEP,
            HostPart::Chosen => CHOSEN,
            HostPart::Masks => MASKS,
        };
        write(&self.buffers[usize::from(buffer)], offset, bytes);
    }

    fn write_pages(&mut self, offset: usize, group: usize, pages: &[u32]) {
        let buffer = &self.buffers[usize::from(STEP)];
        for (entry, page) in pages.iter().enumerate() {
            write(buffer, offset + entry * self.step.entry_bytes, &[self.pools.reach(group, *page)]);
        }
    }

    fn begin(&mut self, step: &Step, begun: &Begun) -> Result<()> {
        self.compile_kernels(self.plans[begun.plan].table(&begun.sizes))?;
        self.pools.begin();
        let header = arguments::Step {
            n_rows: step.tokens.len() as u32,
            n_outputs: step.outputs.len() as u32,
            n_spans: step.spans.len() as u32,
            n_groups: self.step.n_groups as u32,
            pages_per_table: self.step.pages_per_table as u32,
            first_chosen: self.step.chosen_at(begun.ticket, 0),
            ..Default::default()
        };
        write(&self.buffers[usize::from(STEP)], self.step.region_at(begun.ticket), &[header]);
        Ok(())
    }

    /// Submits a step as one command buffer, or as several if it has much work or its caller may
    /// stop it. The caller is polled between them. While the GPU runs one, the next is submitted.
    fn launch(&mut self, step: &Step, begun: &Begun, _is_busy: bool) -> Result<Self::Work> {
        let table = self.plans[begun.plan].table(&begun.sizes).table();
        let (n, masks_at) = (table.commands().len(), masks_at(table, &begun.sizes));
        let polled = if step.stop.is_some() && begun.sizes.n_rows > 1 { PARTS } else { 1 };
        let by_work = self.costs[begun.plan].n_parts(step, self.gpu.most_ops());
        let n_parts = by_work.min(n).max(polled);
        let mut work: Self::Work = [None, None];
        for part in 0..n_parts {
            let (mut start, end) = (part * n / n_parts, (part + 1) * n / n_parts);
            if (start..end).contains(&masks_at) {
                let before = self.encode(begun, start..masks_at)?;
                self.keep(&mut work, before)?;
                inputs::write_masks(self, &self.step.clone(), step, begun);
                start = masks_at;
            }
            let next = self.encode(begun, start..end)?;
            self.keep(&mut work, next)?;
            if n_parts > 1
                && let Some(before) = work[0].take()
            {
                self.gpu.wait(&before)?;
            }
            if part + 1 < n_parts && step.is_stopped() {
                return Err(Error::Stopped { device: G::NAME });
            }
        }
        Ok(work)
    }

    fn run(&mut self, begun: &Begun, range: Range<usize>) -> Result<()> {
        let work = self.encode(begun, range)?;
        self.gpu.wait(&work).map(drop)
    }

    fn run_timed(&mut self, begun: &Begun, first: usize, timings: &mut Vec<Timing>) -> Result<()> {
        let (started, replay) = (Instant::now(), self.replay(begun));
        for command in 0..replay.table.commands().len() {
            let start = started.elapsed().as_secs_f64();
            let threadgroups = replay.table.threadgroups(command, &begun.sizes);
            let work = self.gpu.submit(&mut |encoder| {
                if let Some(n) = threadgroups {
                    self.pools.encode(encoder);
                    replay.encode_command(command, n, encoder);
                }
            })?;
            let busy = self.gpu.wait(&work)?;
            let duration = if threadgroups.is_some() { busy } else { 0.0 };
            timings.push(Timing { command: first + command, start, duration });
        }
        Ok(())
    }

    fn wait(&mut self, work: Self::Work) -> Result<()> {
        work.iter().flatten().try_for_each(|ticket| self.gpu.wait(ticket).map(drop))
    }

    fn settle<'a>(&'a self, mut works: impl Iterator<Item = &'a Self::Work>) -> Result<()> {
        works
            .try_for_each(|work| work.iter().flatten().try_for_each(|ticket| self.gpu.wait(ticket).map(drop)))
    }

    fn chosen(&self, index: u32) -> u32 {
        let (tokens, offset) = (&self.buffers[usize::from(CHOSEN)], index as usize * 4);
        assert!(offset + 4 <= tokens.len(), "chosen token {index} of {}", tokens.len() / 4);
        // SAFETY: the assertion holds the word within `tokens`, at a multiple of 4 bytes; the GPU
        // is done with the step that writes it.
        unsafe { tokens.start().add(offset).cast::<u32>().read_volatile() }
    }

    fn result(&self, part: &ResultPart) -> &[f32] {
        let arena = &self.buffers[usize::from(ARENA)];
        if part.bytes == 0 {
            return &[];
        }
        assert!(part.offset + part.bytes <= arena.len(), "{part:?} of {} bytes", arena.len());
        // SAFETY: the assertion holds the bytes within `arena`; offsets of values are multiples of
        // 256 bytes and rows of 4. Every bit pattern is an f32. Nothing is in flight, so the GPU
        // writes nothing.
        unsafe { std::slice::from_raw_parts(arena.start().add(part.offset).cast(), part.bytes / 4) }
    }

    fn read(&self, offset: usize, words: &mut [u32]) -> Option<()> {
        let part = ResultPart { offset, bytes: words.len() * 4, at: 0 };
        words.copy_from_slice(bytemuck::cast_slice(self.result(&part)));
        Some(())
    }

    fn committed(&self) -> &CommittedPages {
        self.pools.committed()
    }

    fn commit(&mut self, group: usize, pages: Range<u32>) -> Result<()> {
        self.pools.commit(self.gpu.as_ref(), &mut self.residency, group, pages)
    }

    fn decommit(&mut self, group: usize, pages: Range<u32>) -> Result<()> {
        self.pools.decommit(&mut self.residency, group, pages);
        Ok(())
    }

    fn copy_page(&mut self, group: usize, from: u32, to: u32) -> Result<()> {
        let ((from, bytes), (to, _)) = (self.page(group, from)?, self.page(group, to)?);
        // SAFETY: both pages are within their chunks and have `bytes` bytes; no step runs.
        unsafe { std::ptr::copy(from, to, bytes) };
        Ok(())
    }

    fn read_page(&self, group: usize, page: u32, bytes: &mut [u8]) -> Result<()> {
        let (start, n) = self.page(group, page)?;
        // SAFETY: the page has `n` bytes, and `bytes` at least the copied ones; no step runs.
        unsafe { std::ptr::copy_nonoverlapping(start, bytes.as_mut_ptr(), n.min(bytes.len())) };
        Ok(())
    }

    fn write_page(&mut self, group: usize, page: u32, bytes: &[u8]) -> Result<()> {
        let (start, n) = self.page(group, page)?;
        // SAFETY: the page has `n` bytes, and `bytes` at least the copied ones; no step runs.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start, n.min(bytes.len())) };
        Ok(())
    }

    fn beside(&self, plans: &[Plan], limits: &Limits) -> Result<GpuProgram<Self>> {
        (self.compile)(plans, limits)
    }

    fn adopt(&mut self, before: &mut Self) {
        let states = usize::from(STATES);
        self.residency.remove(&self.buffers[states]);
        std::mem::swap(&mut self.buffers[states], &mut before.buffers[states]);
        std::mem::swap(&mut self.pools, &mut before.pools);
        self.residency.add(&self.buffers[states]);
        for buffer in self.pools.buffers() {
            before.residency.remove(buffer);
            self.residency.add(buffer);
        }
    }

    fn close(&mut self) {}
}
