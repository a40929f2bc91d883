//! Compiled plans: the memory that they share, two tables each, and the replay.

use crate::NAME;
use crate::background::{self, Background};
use crate::command::{Command, StepState, Worker};
use crate::compile::{Addresses, Compiler, RowsOfStep, Table};
use crate::isa::Isa;
use crate::kernels::attention::schedule::{self, Schedule, ScheduleShape, Sizes};
use crate::kernels::expert_groups::Groups;
use crate::layout::{Layout, Shared};
use crate::lower::{NodeUnit, lower};
use crate::memory::{Buffer, PagePool};
use crate::pool::{Barrier, Interrupted, Pool};
use crate::stored::{Ran, Stored, StoredValues};
use crate::weights::{Interleaved, matrices};
use device::key_bias::{self, KnownKeys};
use device::{
    BackgroundProgress, Choose, CommandInfo, DType, Error, Limits, Plan, Result, Step, Timing, ValueId,
    Weight,
};
use device_lower::hosted::HostProgram;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;
use weights::Bytes;

/// A plan that was lowered.
pub struct LoweredPlan<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// Its units.
    pub units: Vec<NodeUnit>,
    /// Their sizes.
    pub layout: Layout,
}

/// Plans that were lowered together.
pub struct Lowered<'a> {
    /// Each of them.
    pub plans: Vec<LoweredPlan<'a>>,
    /// What they share.
    pub shared: Shared,
}

impl<'a> Lowered<'a> {
    /// Of checked plans of one KV layout.
    pub fn new(plans: &'a [Plan], limits: &Limits, isa: Isa, n_workers: usize) -> Lowered<'a> {
        let n_terms = key_bias::n_terms(plans, limits);
        let of_plan = |plan| {
            let units = lower(plan);
            let layout = Layout::new(plan, &units, limits, &n_terms, isa, n_workers);
            LoweredPlan { plan, units, layout }
        };
        let plans: Vec<_> = plans.iter().map(of_plan).collect();
        let layouts: Vec<Layout> = plans.iter().map(|plan| plan.layout.clone()).collect();
        Lowered { shared: Shared::new(&layouts, limits, n_workers), plans }
    }
}

/// What stays when a program's plans are replaced.
pub struct Kept {
    /// By KV group.
    pages: Vec<PagePool>,
    /// `(n_states, state_len)` of recurrent layers.
    states: Buffer,
    /// By layer.
    known: Vec<Option<KnownKeys>>,
    /// The matrices of the plans that were there first.
    weights: Arc<Interleaved>,
}

impl Kept {
    /// Take what is taken at once; of the pages, address space.
    ///
    /// # Errors
    /// Memory was refused.
    pub fn new(
        lowered: &Lowered<'_>,
        limits: &Limits,
        known: Vec<Option<KnownKeys>>,
        weights: Interleaved,
    ) -> Result<Kept> {
        let kv = lowered.plans.first().map(|lowered| lowered.plan.kv.clone()).unwrap_or_default();
        let pages = (0..kv.groups.len())
            .map(|g| PagePool::reserve(limits.n_pages[g], kv.page_bytes(g, limits.kv_type, limits.page_len)))
            .collect::<Result<Vec<_>>>()?;
        let states = Buffer::zeroed("states of recurrent layers", 4 * limits.n_states * kv.state_len())?;
        Ok(Kept { pages, states, known, weights: Arc::new(weights) })
    }
}

/// Plans made ready to run.
pub struct CpuProgram {
    pool: Arc<Pool>,
    isa: Isa,
    limits: Limits,
    /// What belongs to the plans; it points into what is kept.
    tables: Tables,
    /// The same for a step in the background, if there are such.
    background: Option<Background>,
    /// The plan of the last step.
    current: usize,
    /// Of the last step.
    ran: Ran,
    kept: Kept,
}

/// The plans of a program, and the memory that they share: what one step at a time is computed with.
pub struct Tables {
    plans: Vec<Compiled>,
    /// `(commands, workers)` units handed out in this step.
    taken: Box<[AtomicUsize]>,
    /// Chunks finished of the rows that attention splits; zero between commands.
    arrived: Box<[AtomicUsize]>,
    /// The units of work of attention, by the current plan's [`Compiled::attention`].
    schedules: Vec<Schedule>,
    scratch: Buffer,
    scratch_bytes: usize,
    arena: Buffer,
    /// Positions and slots of the rows; as many as the limits allow.
    positions: Vec<u32>,
    slots: Vec<u32>,
    /// What the tables point to, kept alive.
    _buffers: Vec<Buffer>,
    _files: Vec<Bytes>,
    _weights: Arc<Interleaved>,
}

/// One of a program's plans.
struct Compiled {
    one: Table,
    many: Table,
    n_nodes: usize,
    stored: StoredValues,
    output: ValueId,
    argmax: ValueId,
    kept: Vec<ValueId>,
    /// What its schedules depend on.
    attention: Vec<ScheduleShape>,
}

impl Compiled {
    fn table(&self, n_rows: usize) -> &Table {
        if n_rows == 1 { &self.one } else { &self.many }
    }
}

fn failed(reason: String) -> Error {
    Error::Failed { device: NAME, reason }
}

impl Tables {
    /// Take the memory and write the tables. There is one plan at least, and all have the same KV layout.
    ///
    /// # Errors
    /// Memory was refused.
    pub fn new(
        lowered: &Lowered<'_>,
        limits: &Limits,
        kept: &Kept,
        weights: Arc<Interleaved>,
        isa: Isa,
    ) -> Result<Tables> {
        let Lowered { plans: lowered, shared } = lowered;
        let mut buffers = Vec::new();
        let mut take = |what: &str, bytes: usize| -> Result<*mut u8> {
            let buffer = Buffer::zeroed(what, bytes)?;
            let start = buffer.start();
            buffers.push(buffer);
            Ok(start)
        };
        let arena = Buffer::zeroed("activations", shared.arena_bytes)?;
        let scratch = Buffer::zeroed("scratch of the workers", shared.all_scratch_bytes())?;
        let counters = |n: usize| (0..n).map(|_| AtomicUsize::new(0)).collect::<Box<[AtomicUsize]>>();
        let arrived = counters(shared.arrived);
        let schedule = |_| Schedule::new(Sizes::new(limits), shared.schedule_units);
        let addresses = Addresses {
            arena: arena.start(),
            rows: {
                let [f32, q8, bf16] = shared.prepared_bytes;
                [
                    take("normalised activations", f32)?,
                    take("quantised activations", q8)?,
                    take("rounded activations", bf16)?,
                ]
            },
            rope_tables: shared
                .rope_bytes
                .iter()
                .map(|bytes| Ok(take("rope tables", *bytes)?.cast()))
                .collect::<Result<Vec<_>>>()?,
            partials: take("attention partials", shared.partial_bytes)?.cast(),
            arrived: arrived.as_ptr(),
            found: take("argmax", shared.found_bytes)?.cast(),
            groups: {
                let order: *mut u32 = take("expert tables", shared.expert_bytes().0)?.cast();
                Groups { order, ends: order.wrapping_add(shared.grouped.0) }
            },
            states: kept.states.start().cast(),
            experts: take("expert tables", shared.expert_bytes().1)?.cast_const().cast(),
            pools: kept.pages.iter().map(PagePool::start).collect(),
            known: kept
                .known
                .iter()
                .map(|known| known.as_ref().map_or(std::ptr::null(), std::ptr::from_ref))
                .collect(),
        };
        let mut experts = addresses.experts;
        let mut plans = Vec::with_capacity(lowered.len());
        for LoweredPlan { plan, units, layout } in lowered {
            let stacks = layout.experts.iter().map(|(id, _)| plan.weight(*id));
            let matrices = stacks.flat_map(|stack| matrices(stack).map(move |part| (stack, part)));
            for (index, (stack, (data, planes, n_rows))) in matrices.enumerate() {
                let rows = weights.rows(stack, data, planes, n_rows);
                // SAFETY: the buffer has room for the matrix of every expert of all plans.
                unsafe { experts.cast_mut().add(index).write(rows) }
            }
            let at = Addresses { experts, ..addresses.clone() };
            experts = experts.wrapping_add(layout.n_experts());
            let compiler = Compiler { plan, limits, layout, at: &at, weights: &weights, isa };
            plans.push(Compiled {
                one: compiler.table(units, RowsOfStep::One),
                many: compiler.table(units, RowsOfStep::Many),
                n_nodes: plan.nodes.len(),
                stored: StoredValues::new(plan, &layout.arena, limits, |id| {
                    crate::layout::is_only_selected_from(plan, id)
                }),
                output: plan.output,
                argmax: plan.argmax,
                kept: plan.kept.clone(),
                attention: layout.attention.clone(),
            });
        }
        let n_commands = plans.iter().flat_map(|p| [p.one.commands.len(), p.many.commands.len()]).max();
        let files = lowered.iter().flat_map(|lowered| &lowered.plan.weights);
        Ok(Tables {
            plans,
            taken: counters(n_commands.unwrap_or(0) * shared.n_workers),
            arrived,
            schedules: (0..shared.n_schedules).map(schedule).collect(),
            scratch,
            scratch_bytes: shared.scratch_bytes,
            arena,
            positions: vec![0; limits.max_rows],
            slots: vec![0; limits.max_rows],
            _buffers: buffers,
            _files: files.flat_map(Weight::views).cloned().collect(),
            _weights: weights,
        })
    }

    /// The commands of a plan for a step of so many rows.
    pub fn commands(&self, plan: usize, n_rows: usize) -> &[Command] {
        &self.plans[plan].table(n_rows).commands
    }

    /// Write down what the commands of a step read besides the step itself.
    pub fn prepare(&mut self, step: &Step, kept: &Kept, n_workers: usize) {
        for span in step.spans {
            for i in 0..span.n_rows {
                let row = (span.first_row + i) as usize;
                self.positions[row] = span.first_position + i;
                self.slots[row] = span.slot;
            }
        }
        self.taken.iter().for_each(|c| c.store(0, Ordering::Relaxed));
        let rows = schedule::StepRows {
            spans: step.spans,
            outputs: step.outputs,
            page_tables: step.page_tables,
            pages_per_table: step.pages_per_table,
            n_groups: kept.pages.len(),
        };
        for (schedule, shape) in self.schedules.iter_mut().zip(&self.plans[step.plan].attention) {
            schedule.write(shape, &rows, n_workers);
        }
    }

    /// Run some of the commands of a step that was prepared, after those before them. Worker 0 notes in `marks`, if there, when each
    /// command began and, last, when all ended.
    ///
    /// # Errors
    /// The step was stopped, or a worker panicked; the commands after these are not to be run then.
    pub fn run(
        &self,
        step: &Step,
        commands: Range<usize>,
        argmax: bool,
        marks: Option<&mut [Instant]>,
        kept: &Kept,
        pool: &Pool,
    ) -> std::result::Result<(), Interrupted> {
        let n_rows = step.tokens.len();
        let state = StepState {
            tokens: step.tokens,
            input: step.input,
            spans: step.spans,
            states: step.states,
            adapters: step.adapters,
            positions: &self.positions[..n_rows],
            slots: &self.slots[..n_rows],
            page_tables: step.page_tables,
            pages_per_table: step.pages_per_table,
            n_groups: kept.pages.len(),
            outputs: step.outputs,
            argmax,
            attention: &self.schedules,
        };
        let n_workers = pool.n_workers();
        let replay = Replay {
            commands: &self.commands(step.plan, n_rows)[commands.clone()],
            taken: &self.taken[commands.start * n_workers..commands.end * n_workers],
            scratch: self.scratch.start(),
            scratch_bytes: self.scratch_bytes,
            n_workers,
            state: &state,
            stop: step.stop,
            marks: marks.map_or(std::ptr::null_mut(), <[Instant]>::as_mut_ptr),
        };
        pool.run(&|index, barrier| replay.work(index, barrier)).inspect_err(|_| {
            // A command that was left in its middle has not put its counters back.
            self.arrived.iter().for_each(|c| c.store(0, Ordering::Relaxed));
        })
    }
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
    /// Take the memory and write the tables. There is one plan at least, and all have the same KV layout.
    ///
    /// # Errors
    /// Memory was refused.
    pub fn new(
        plans: &[Plan],
        lowered: &Lowered<'_>,
        limits: &Limits,
        kept: Kept,
        isa: Isa,
        pool: Arc<Pool>,
    ) -> Result<CpuProgram> {
        let mut program = CpuProgram {
            tables: Tables::new(lowered, limits, &kept, kept.weights.clone(), isa)?,
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

    /// What a step in the background of these plans is computed with, if there are such steps.
    fn make_background(&self, plans: &[Plan], weights: Arc<Interleaved>) -> Result<Option<Background>> {
        let Some(limits) = background::limits(&self.limits) else { return Ok(None) };
        let n_workers = self.pool.n_workers();
        Background::new(plans, &limits, &self.kept, weights, self.isa, n_workers).map(Some)
    }

    /// Run the commands of a step, to the node `until` where given, with marks as [`Tables::run`].
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
        // Until the commands have run, no value is there to be read.
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

/// Steps that may be in flight: a step is computed while it is submitted.
pub const IN_FLIGHT: usize = 1;

/// The rows of a value in a step that ran; empty if it has no place.
fn rows_of<'a, T: Copy>(arena: &'a Buffer, stored: Option<&Stored>, ran: &Ran) -> &'a [T] {
    const { assert!(size_of::<T>() == 4) };
    let Some(stored) = stored else { return &[] };
    let n = stored.rows.count(ran.n_rows, ran.n_outputs) * stored.cols;
    // SAFETY: the layout gave the value room for as many rows as the limits allow, and the step passed the check against
    // these. It is aligned to 64, zeroed when it was taken, and any bits are a `T` (f32 or u32). Workers write it only
    // within `Pool::run`, which `&mut CpuProgram` excludes while this borrow of its arena lives.
    unsafe { std::slice::from_raw_parts(arena.start().add(stored.offset).cast(), n) }
}

/// What the workers share during a step.
struct Replay<'a> {
    commands: &'a [Command],
    taken: &'a [AtomicUsize],
    scratch: *mut u8,
    scratch_bytes: usize,
    n_workers: usize,
    state: &'a StepState<'a>,
    /// Worker 0 looks at it between commands.
    stop: Option<&'a AtomicBool>,
    /// One more than commands, or null.
    marks: *mut Instant,
}

// SAFETY: each worker uses its own part of the scratch; the marks are worker 0's.
unsafe impl Sync for Replay<'_> {}

impl Replay<'_> {
    /// One worker's walk through the table.
    fn work(&self, index: usize, barrier: &Barrier) {
        let mark = |command: usize| {
            if index == 0 && !self.marks.is_null() {
                // SAFETY: there is one mark for each command and one for the end; only worker 0 writes them.
                unsafe { self.marks.add(command).write(Instant::now()) }
            }
        };
        for (number, (command, taken)) in
            self.commands.iter().zip(self.taken.chunks(self.n_workers)).enumerate()
        {
            if index == 0 && self.stop.is_some_and(|stop| stop.load(Ordering::Relaxed)) {
                barrier.end();
                return;
            }
            mark(number);
            // SAFETY: the layout gives each worker its part; the table's pointers are valid for every step that passed
            // the check, and commands that depend on each other are apart by a barrier.
            unsafe {
                let scratch = self.scratch.add(index * self.scratch_bytes);
                command.run(&Worker { index, n: self.n_workers, scratch, taken, step: self.state });
            }
            if command.sync && !barrier.wait() {
                return;
            }
        }
        mark(self.commands.len());
    }
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
        let lowered = Lowered::new(plans, &self.limits, self.isa, self.pool.n_workers());
        let weights = Arc::new(Interleaved::beside(&self.kept.weights, plans, self.isa, &self.pool)?);
        let background = self.make_background(plans, weights.clone())?;
        self.tables = Tables::new(&lowered, &self.limits, &self.kept, weights, self.isa)?;
        self.background = background;
        (self.current, self.ran) = (0, Ran::default());
        Ok(())
    }

    fn commands(&self, plan: usize, n_rows: usize) -> Vec<CommandInfo> {
        self.tables.plans.get(plan).map_or(vec![], |plan| plan.table(n_rows).infos.clone())
    }
}
