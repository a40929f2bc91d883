//! [`MetalProgram`]: the memory, the tables, and the steps that are written, encoded and waited for.
//!
//! Each step in flight has a region of the step buffer; tables bind that buffer at offsets in a
//! region. The GPU runs steps in order, so that they share the arena. The tokens that outputs choose
//! go to a buffer of their own, where embeddings and penalties of later steps find them. KV pages are
//! found by the addresses in the page tables (`pools`).

mod in_flight;
mod inputs;
mod pools;

use crate::compile::{Buffers, Compiler, Pipelines, Request};
use crate::device_impl::MetalDevice;
use crate::gpu::{Buffer, Dispatch, Encoder, Gpu, Residency, Window, for_each_at_once};
use crate::layout::{ALIGN, Scratch, StepLayout};
use crate::profile::Profile;
use crate::weights::{LookupTables, WeightPlan};
use device::{
    Chosen, CommandInfo, CommittedPages, Error, KvLayout, Limits, Needs, Plan, Program, Result, Step, Ticket,
    Timing, ValueId, Want,
};
use device_lower::ahead::{Ahead, Done, InFlight};
use device_lower::arena::NO_PLACE;
use device_lower::placed::{LoweredPlan, PlacedValue};
use device_lower::sampling::Chooser;
use device_lower::table::{Location, Region, RowClass, StepSizes, Table};
use inputs::Begun;
use pools::Pools;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use weights::Bytes;

/// The table of a class of rows.
struct ClassTable {
    table: Table,
    /// Set once all kernels that it names are compiled.
    is_ready: OnceLock<()>,
}

/// A plan ready to run.
struct Compiled {
    /// By class of tokens, then of outputs, which are no more.
    tables: Vec<Vec<ClassTable>>,
    /// By id.
    values: Vec<PlacedValue>,
    output: ValueId,
    kept: Vec<ValueId>,
    /// Whether its tables choose tokens.
    chooses: bool,
}

impl Compiled {
    fn table(&self, sizes: &StepSizes) -> &Table {
        &self.class(sizes).table
    }

    fn class(&self, sizes: &StepSizes) -> &ClassTable {
        let tokens = RowClass::of(sizes.n_rows) as usize;
        let outputs = (RowClass::of(sizes.n_outputs) as usize).min(tokens);
        &self.tables[tokens][outputs]
    }
}

/// Compiled plans and their memory.
pub struct MetalProgram<G: Gpu> {
    gpu: Arc<G>,
    profile: Profile,
    plans: Vec<Compiled>,
    /// The kernels that commands name by number, compiled when a step first needs them.
    pipelines: Vec<OnceLock<G::Pipeline>>,
    /// What they are.
    requests: Vec<Request>,
    needs: Vec<Needs>,
    pools: Pools<G>,
    kv: KvLayout,
    limits: Limits,
    /// The arena, the steps, scratch, tables, chosen tokens, states, weights.
    buffers: Vec<G::Buffer>,
    step: StepLayout,
    ahead: Ahead<G::Ticket>,
    /// Chooses what has no kernel.
    chooser: Chooser,
    /// Keeps buffers and chunks in memory.
    residency: G::Residency,
    /// The files' maps, kept while the GPU reads them.
    _files: Vec<Bytes>,
}

/// The arena's place among the buffers.
const ARENA: usize = 0;
/// The step's.
const STEP: usize = 1;
/// That of scratch.
const SCRATCH: usize = 2;
/// That of the tables.
const TABLES: usize = 3;
/// That of the chosen tokens.
const CHOSEN: usize = 4;
/// That of the states.
const STATES: usize = 5;

impl<G: Gpu> MetalProgram<G> {
    /// Take the memory and write the tables.
    ///
    /// # Errors
    /// Memory was refused, a shader does not compile, or something has no kernel.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        gpu: Arc<G>,
        profile: &Profile,
        plans: &[Plan],
        parts: &[LoweredPlan],
        limits: &Limits,
        step: StepLayout,
        scratch: Scratch,
        tables: &LookupTables,
        arena_bytes: usize,
    ) -> Result<MetalProgram<G>> {
        let kv = plans.first().map(|plan| plan.kv.clone()).unwrap_or_default();
        let mut buffers = vec![
            gpu.allocate("activations", arena_bytes)?,
            gpu.allocate("steps", step.total())?,
            gpu.allocate("scratch", scratch.total().max(ALIGN))?,
            gpu.allocate("tables", tables.n_bytes().max(ALIGN))?,
            gpu.allocate("chosen tokens", step.chosen_bytes().max(ALIGN))?,
            gpu.allocate("states of recurrent layers", (4 * limits.n_states * kv.state_len()).max(ALIGN))?,
        ];
        let pools = Pools::new(&kv, limits, gpu.facts().max_buffer_bytes)?;
        let weights = WeightPlan::new(plans, gpu.as_ref()).make(gpu.as_ref(), &mut buffers)?;
        write(&buffers[TABLES], 0, &tables.entries(plans, &weights));
        let which = Buffers {
            arena: ARENA as u16,
            step: STEP as u16,
            chosen: CHOSEN as u16,
            scratch: SCRATCH as u16,
            tables: TABLES as u16,
            states: STATES as u16,
        };
        let (mut compiled, mut pipelines) = (Vec::with_capacity(parts.len()), Pipelines::default());
        for (index, part) in parts.iter().enumerate() {
            let compiler = Compiler {
                gpu: gpu.as_ref(),
                profile,
                index,
                plan: part.plan,
                units: part.units,
                arena: part.arena,
                limits,
                step,
                scratch,
                buffers: &which,
                weights: &weights,
                tables,
            };
            let most = RowClass::of(limits.max_rows);
            let classes = RowClass::ALL.into_iter().filter(|class| *class <= most);
            let of_classes = classes
                .map(|tokens| {
                    let outputs = RowClass::ALL.into_iter().filter(|class| *class <= tokens);
                    let class = |outputs| {
                        let table = compiler.table(tokens, outputs, &mut pipelines)?;
                        Ok(ClassTable { table, is_ready: OnceLock::new() })
                    };
                    outputs.map(class).collect()
                })
                .collect::<Result<Vec<Vec<_>>>>()?;
            compiled.push(Compiled {
                tables: of_classes,
                values: part.values(limits),
                output: part.plan.output,
                kept: part.plan.kept.clone(),
                chooses: part.chooses(),
            });
        }
        let requests = pipelines.into_list();
        let residency = gpu.reside(&buffers);
        let files = plans.iter().flat_map(|plan| &plan.weights).flat_map(device::Weight::views);
        let n_logits = plans.iter().map(|plan| plan.value(plan.output).cols).max().unwrap_or(0);
        let program = MetalProgram {
            needs: plans.iter().map(|plan| Needs::new(plan, limits)).collect(),
            gpu,
            profile: profile.clone(),
            plans: compiled,
            pipelines: requests.iter().map(|_| OnceLock::new()).collect(),
            requests,
            pools,
            kv,
            limits: limits.clone(),
            buffers,
            step,
            ahead: Ahead::new(step.n_kept(), limits.max_outputs),
            chooser: Chooser::new(n_logits),
            residency,
            _files: files.cloned().collect(),
        };
        // The step that every sequence spends its life in. Others when they are first used.
        let one = StepSizes { n_rows: 1, n_outputs: 1, ..StepSizes::default() };
        program.plans.iter().try_for_each(|plan| program.ready(plan.class(&one)))?;
        program.gpu.keep_pipelines();
        Ok(program)
    }

    /// Compile the kernels that a table names and that are not compiled, several at a time.
    fn ready(&self, class: &ClassTable) -> Result<()> {
        if class.is_ready.get().is_some() {
            return Ok(());
        }
        let mut missing: Vec<usize> = class.table.commands().iter().map(|c| c.kernel as usize).collect();
        missing.sort_unstable();
        missing.dedup();
        let (gpu, pipelines, requests) = (&self.gpu, &self.pipelines, &self.requests);
        missing.retain(|index| pipelines[*index].get().is_none());
        let files: Vec<&'static str> = missing.iter().map(|index| requests[*index].kernel.file).collect();
        gpu.prepare(&files);
        let failure = OnceLock::new();
        for_each_at_once(&missing, &|index| {
            let Request { kernel, constants, threads } = &requests[*index];
            match gpu.pipeline(kernel, constants, *threads) {
                Ok(pipeline) => {
                    pipelines[*index].get_or_init(|| pipeline);
                }
                // Of several failures the first is told.
                Err(error) => drop(failure.set(error)),
            }
        });
        if let Some(error) = failure.into_inner() {
            return Err(error);
        }
        class.is_ready.get_or_init(|| ());
        Ok(())
    }

    /// Seconds of a command of a step, the mean of many runs in one command buffer, each after the one
    /// before.
    pub(crate) fn time_command(&mut self, step: &Step, command: usize, repetitions: usize) -> Result<f64> {
        self.refuse_company()?;
        let begun = self.begin(step, false)?;
        self.ahead.done = Done::default();
        let replay = self.replay(&begun);
        let Some(threadgroups) = replay.table.threadgroups(command, &begun.sizes) else { return Ok(0.0) };
        let n = repetitions.max(1);
        let mut seconds = f64::INFINITY;
        // The first run finds cold caches and pages.
        for _ in 0..2 {
            let work = self.gpu.submit(&mut |encoder| {
                replay.pools.encode(encoder);
                for _ in 0..n {
                    replay.encode_command(command, threadgroups, encoder);
                    encoder.barrier();
                }
            })?;
            seconds = seconds.min(self.gpu.wait(&work)? / n as f64);
        }
        Ok(seconds)
    }

    /// What a value of the last step's plan holds.
    fn output(&self, id: ValueId) -> &[f32] {
        // A later step may be writing there.
        if !self.ahead.done.is_fresh || self.ahead.done.until.is_some() {
            return &[];
        }
        let value = self.plans[self.ahead.done.plan].values[id.0 as usize];
        let n = value.n_words(&self.ahead.done.sizes);
        // SAFETY: `values` has places in the arena with room for the limits' rows, which the step
        // keeps; every bit pattern is an f32; nothing is in flight, so that the GPU writes nothing.
        unsafe { std::slice::from_raw_parts(self.buffers[ARENA].start().add(value.offset).cast(), n) }
    }

    fn failed<T>(&self, reason: String) -> Result<T> {
        failed::<G, T>(reason)
    }

    /// A step's region of the step buffer.
    fn window(&self, ticket: u64) -> Window {
        let len = self.step.region as u64;
        Window { buffer: STEP as u16, start: ticket % self.step.in_flight as u64 * len, len }
    }

    /// The bytes of a committed page.
    fn page(&self, group: usize, page: u32) -> Result<(*mut u8, usize)> {
        self.pools.page(group, page).or_else(failed::<G, _>)
    }

    fn page_of(&self, group: usize, page: u32, given: usize) -> Result<*mut u8> {
        let (start, bytes) = self.page(group, page)?;
        match given == bytes {
            true => Ok(start),
            false => self.failed(format!("{given} bytes for a KV page of {bytes} bytes")),
        }
    }
}

fn failed<G: Gpu, T>(reason: String) -> Result<T> {
    Err(Error::Failed { device: G::NAME, reason })
}

impl<G: Gpu> Drop for MetalProgram<G> {
    /// Command buffers do not keep what they use, so nothing may go before they are done.
    fn drop(&mut self) {
        self.ahead.in_flight.clear();
        // With what was compiled since it was loaded.
        self.gpu.keep_pipelines();
    }
}

/// Write numbers into a buffer.
///
/// # Panics
/// They do not fit, which the layouts see to.
fn write<T: bytemuck::Pod>(buffer: &impl Buffer, offset: usize, values: &[T]) {
    let bytes: &[u8] = bytemuck::cast_slice(values);
    assert!(offset + bytes.len() <= buffer.len(), "{} bytes at {offset} of {}", bytes.len(), buffer.len());
    // SAFETY: they fit, as was just checked. The GPU does not touch these bytes: they are of a
    // step's region or chosen tokens, and the step that had them before was waited for; or it has not
    // run yet.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.start().add(offset), bytes.len()) }
}

/// What commands are encoded from.
struct Replay<'a, G: Gpu> {
    table: &'a Table,
    pipelines: &'a [OnceLock<G::Pipeline>],
    buffers: &'a [G::Buffer],
    pools: &'a Pools<G>,
    window: Window,
}

impl<G: Gpu> Replay<'_, G> {
    /// Encode the commands of a range of the table that run in a step.
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

    /// Encode one command.
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

impl<G: Gpu> Program for MetalProgram<G> {
    fn max_in_flight(&self) -> usize {
        self.step.in_flight
    }

    fn chooses_in_flight(&self, want: &Want) -> bool {
        // Logits are gone with the next step.
        inputs::has_kernels(want) && !want.logits
    }

    /// A step of which the host chooses something is computed before this returns.
    fn submit(&mut self, step: &Step) -> Result<Ticket> {
        let begun = self.begin(step, true)?;
        let Begun { ticket, sizes, plan, .. } = begun;
        let work = match sizes.n_rows {
            0 => None,
            _ => Some(self.encode_whole(step, &begun)?),
        };
        self.ahead.next += 1;
        self.ahead.done.is_fresh = false;
        self.ahead.in_flight.push_back(InFlight { ticket, plan, sizes, work });
        if step.wants.iter().any(|want| begun.by_host(want)) {
            if let Err(error) = self.settle() {
                self.ahead.in_flight.pop_back();
                self.ahead.next = ticket;
                return Err(error);
            }
            self.choose_on_host(step, &begun);
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
        self.plans.get(self.ahead.done.plan).map_or(&[], |plan| self.output(plan.output))
    }

    fn kept(&self, index: usize) -> &[f32] {
        let plan = self.plans.get(self.ahead.done.plan);
        plan.and_then(|plan| plan.kept.get(index)).map_or(&[], |id| self.output(*id))
    }

    fn run_until(&mut self, step: &Step, last: usize) -> Result<()> {
        self.refuse_company()?;
        if let Err(reason) = step.check_node(&self.needs, last) {
            return self.failed(reason);
        }
        let begun = self.begin(step, false)?;
        let n = self.plans[begun.plan].table(&begun.sizes).until(last);
        self.ahead.done = Done::default();
        if begun.sizes.n_rows > 0 {
            let work = self.encode(&begun, 0..n)?;
            self.gpu.wait(&work)?;
        }
        self.ahead.done =
            Done { ticket: None, plan: begun.plan, sizes: begun.sizes, is_fresh: true, until: Some(n) };
        Ok(())
    }

    fn read(&self, value: ValueId) -> Option<Vec<f32>> {
        let Done { plan, sizes, until, is_fresh, .. } = &self.ahead.done;
        let plan = self.plans.get(*plan).filter(|_| *is_fresh)?;
        let view = plan.values.get(value.0 as usize).filter(|view| view.offset != NO_PLACE)?;
        let n = view.n_words(sizes);
        let location = Location { buffer: ARENA as u16, offset: view.offset as u64 };
        let region = Region::of(location, view.bytes);
        if !plan.table(sizes).holds(value, &region, sizes, until.unwrap_or(usize::MAX)) {
            return None;
        }
        // SAFETY: the value has a place in the arena with room for the limits' rows, which the step
        // keeps; nothing is in flight, so that the GPU writes nothing; u32 and f32 have 4 bytes.
        let words = unsafe {
            std::slice::from_raw_parts(self.buffers[ARENA].start().add(view.offset).cast::<u32>(), n)
        };
        Some(view.numbers(words))
    }

    fn committed(&self) -> &CommittedPages {
        self.pools.committed()
    }

    fn commit(&mut self, group: usize, pages: Range<u32>) -> Result<()> {
        self.commit_chunks(group, pages)
    }

    fn decommit(&mut self, group: usize, pages: Range<u32>) -> Result<()> {
        self.decommit_chunks(group, pages)
    }

    fn copy_page(&mut self, group: usize, from: u32, to: u32) -> Result<()> {
        let ((from, bytes), (to, _)) = (self.page(group, from)?, self.page(group, to)?);
        self.settle()?;
        // SAFETY: both pages lie within their chunks; the same page is copied onto itself; no step runs.
        unsafe { std::ptr::copy(from, to, bytes) };
        Ok(())
    }

    fn read_page(&self, group: usize, page: u32, bytes: &mut [u8]) -> Result<()> {
        let start = self.page_of(group, page, bytes.len())?;
        self.settle()?;
        // SAFETY: the page has as many bytes, and no step runs.
        unsafe { std::ptr::copy_nonoverlapping(start, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn write_page(&mut self, group: usize, page: u32, bytes: &[u8]) -> Result<()> {
        let start = self.page_of(group, page, bytes.len())?;
        self.settle()?;
        // SAFETY: the page has as many bytes, and no step runs.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len()) };
        Ok(())
    }

    /// Compiled beside the plans from before, whose pages and states it takes over then.
    fn replace_plans(&mut self, plans: &[Plan]) -> Result<()> {
        self.refuse_company()?;
        let device = MetalDevice::sharing(self.gpu.clone(), self.profile.clone());
        let mut next = device.compile_program(plans, &self.limits)?;
        if next.kv != self.kv {
            return self.failed("plans of another KV layout".to_owned());
        }
        next.residency.remove(&next.buffers[STATES]);
        std::mem::swap(&mut next.buffers[STATES], &mut self.buffers[STATES]);
        std::mem::swap(&mut next.pools, &mut self.pools);
        next.residency.add(&next.buffers[STATES]);
        for buffer in next.pools.buffers() {
            self.residency.remove(buffer);
            next.residency.add(buffer);
        }
        (next.ahead.next, next.ahead.failed_below) = (self.ahead.next, self.ahead.failed_below);
        *self = next;
        Ok(())
    }

    fn commands(&self, plan: usize, n_rows: usize) -> Vec<CommandInfo> {
        // Of the last step, if it was such a one; else as a sequence has them that goes on.
        let same = plan == self.ahead.done.plan && n_rows == self.ahead.done.sizes.n_rows;
        let n_outputs = if same { self.ahead.done.sizes.n_outputs } else { 1 };
        let sizes = StepSizes { n_rows, n_outputs, ..StepSizes::default() };
        let most = RowClass::of(self.limits.max_rows) as usize;
        let plan = self.plans.get(plan).filter(|_| RowClass::of(n_rows) as usize <= most);
        plan.map_or(vec![], |plan| plan.table(&sizes).infos().to_vec())
    }

    /// Each command is submitted and waited for by itself.
    fn run_timed(&mut self, step: &Step, timings: &mut Vec<Timing>) -> Result<()> {
        self.refuse_company()?;
        let begun = self.begin(step, true)?;
        self.ahead.done = Done::default();
        let started = Instant::now();
        let sizes = &begun.sizes;
        let replay = self.replay(&begun);
        for command in 0..replay.table.commands().len() {
            let start = started.elapsed().as_secs_f64();
            let threadgroups = replay.table.threadgroups(command, sizes);
            let work = self.gpu.submit(&mut |encoder| {
                if let Some(n) = threadgroups {
                    replay.pools.encode(encoder);
                    replay.encode_command(command, n, encoder);
                }
            })?;
            let busy = self.gpu.wait(&work)?;
            let duration = if threadgroups.is_some() { busy } else { 0.0 };
            timings.push(Timing { command, start, duration });
        }
        let Begun { ticket, sizes, plan, .. } = begun;
        self.ahead.next += 1;
        self.ahead.in_flight.push_back(InFlight { ticket, plan, sizes, work: None });
        if step.wants.iter().any(|want| begun.by_host(want)) {
            self.choose_on_host(step, &begun);
        }
        self.wait_for(ticket)
    }
}
