//! Tables of commands, the memory that they point to, and their replay by the workers.

use crate::command::{Command, StepState, Worker};
use crate::compile::{Addresses, Compiler, RowsOfStep, Table};
use crate::isa::Isa;
use crate::kernels::attention::schedule::{self, Schedule, ScheduleShape, Sizes};
use crate::kernels::expert_groups::ExpertGroups;
use crate::layout::{LaidOut, LaidOutPlan, is_only_selected_from};
use crate::memory::{Buffer, PagePool};
use crate::pool::{Barrier, Interrupted, Pool};
use crate::stored::StoredValues;
use crate::weights::{InterleavedWeights, matrices};
use device::key_bias::KnownKeys;
use device::{Limits, Result, Step, ValueId, Weight};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;
use weights::Bytes;

/// State that survives the replacement of a program's plans.
pub struct Kept {
    /// Pages by KV group.
    pub pages: Vec<PagePool>,
    /// `(n_states, state_len)` of recurrent layers.
    states: Buffer,
    /// Constant terms of the keys, by layer.
    known: Vec<Option<KnownKeys>>,
    /// Matrices of the first plans.
    pub weights: Arc<InterleavedWeights>,
}

impl Kept {
    /// Allocates what is needed at once, and address space for the pages.
    ///
    /// # Errors
    /// Memory allocation failed.
    pub fn new(
        laid_out: &LaidOut<'_>,
        limits: &Limits,
        known: Vec<Option<KnownKeys>>,
        weights: InterleavedWeights,
    ) -> Result<Kept> {
        let kv = laid_out.plans.first().map(|plan| plan.plan.kv.clone()).unwrap_or_default();
        let pages = (0..kv.groups.len())
            .map(|g| PagePool::reserve(limits.n_pages[g], kv.page_bytes(g, limits.kv_type, limits.page_len)))
            .collect::<Result<Vec<_>>>()?;
        let states = Buffer::zeroed("states of recurrent layers", 4 * limits.n_states * kv.state_len())?;
        Ok(Kept { pages, states, known, weights: Arc::new(weights) })
    }
}

/// Tables of a program's plans, and the memory that they share. They compute one step at a time.
pub struct Tables {
    pub plans: Vec<PlanTables>,
    /// `(commands, workers)` units taken in this step.
    taken: Box<[AtomicUsize]>,
    /// Finished chunks of rows that attention splits; zero between commands.
    arrived: Box<[AtomicUsize]>,
    /// Work units of attention, in the order of the current plan's [`PlanTables::attention`].
    schedules: Vec<Schedule>,
    scratch: Buffer,
    scratch_bytes: usize,
    pub arena: Buffer,
    /// Positions of the rows; `slots` has their slots.
    positions: Vec<u32>,
    slots: Vec<u32>,
    /// Owners of the memory that the tables point to.
    _buffers: Vec<Buffer>,
    _files: Vec<Bytes>,
    _weights: Arc<InterleavedWeights>,
}

/// Tables of one plan.
pub struct PlanTables {
    pub one: Table,
    pub many: Table,
    pub n_nodes: usize,
    pub stored: StoredValues,
    pub output: ValueId,
    pub argmax: ValueId,
    pub kept: Vec<ValueId>,
    /// Shapes of its attention schedules.
    pub attention: Vec<ScheduleShape>,
}

impl PlanTables {
    pub fn table(&self, n_rows: usize) -> &Table {
        if n_rows == 1 { &self.one } else { &self.many }
    }
}

impl Tables {
    /// Allocates the memory and writes the tables. There is at least one plan, and all have the
    /// same KV layout.
    ///
    /// # Errors
    /// Memory allocation failed.
    pub fn new(
        laid_out: &LaidOut<'_>,
        limits: &Limits,
        kept: &Kept,
        weights: Arc<InterleavedWeights>,
        isa: Isa,
    ) -> Result<Tables> {
        let LaidOut { plans: laid_out, shared } = laid_out;
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
                ExpertGroups { order, ends: order.wrapping_add(shared.grouped.0) }
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
        let mut plans = Vec::with_capacity(laid_out.len());
        for LaidOutPlan { plan, units, layout } in laid_out {
            let stacks = layout.experts.iter().map(|(id, _)| plan.weight(*id));
            let matrices = stacks.flat_map(|stack| matrices(stack).map(move |part| (stack, part)));
            for (index, (stack, (data, planes, n_rows))) in matrices.enumerate() {
                let rows = weights.rows(stack, data, planes, n_rows);
                // SAFETY: `experts` points to room for the matrices of all plans' experts, by
                // `SharedLayout::n_experts`, and each `index` is below this plan's number of them.
                unsafe { experts.cast_mut().add(index).write(rows) }
            }
            let at = Addresses { experts, ..addresses.clone() };
            experts = experts.wrapping_add(layout.n_experts());
            let compiler = Compiler { plan, limits, layout, at: &at, weights: &weights, isa };
            plans.push(PlanTables {
                one: compiler.table(units, RowsOfStep::One),
                many: compiler.table(units, RowsOfStep::Many),
                n_nodes: plan.nodes.len(),
                stored: StoredValues::new(plan, &layout.arena, limits, |id| is_only_selected_from(plan, id)),
                output: plan.output,
                argmax: plan.argmax,
                kept: plan.kept.clone(),
                attention: layout.attention.clone(),
            });
        }
        let n_commands = plans.iter().flat_map(|p| [p.one.commands.len(), p.many.commands.len()]).max();
        let files = laid_out.iter().flat_map(|laid_out| &laid_out.plan.weights);
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

    /// Commands of a plan for a step of `n_rows`.
    pub fn commands(&self, plan: usize, n_rows: usize) -> &[Command] {
        &self.plans[plan].table(n_rows).commands
    }

    /// Writes the rows' positions and slots, the counters and the attention schedules of a step.
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

    /// Runs a range of commands of a prepared step; the commands before it have run. If `marks` is
    /// given, worker 0 stores the start time of each command, and the end time last.
    ///
    /// # Errors
    /// The step was stopped, or a worker panicked. The later commands must not be run then.
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
            // A command that was interrupted has not reset its counters.
            self.arrived.iter().for_each(|c| c.store(0, Ordering::Relaxed));
        })
    }
}

/// Data that the workers share during a step.
struct Replay<'a> {
    commands: &'a [Command],
    taken: &'a [AtomicUsize],
    scratch: *mut u8,
    scratch_bytes: usize,
    n_workers: usize,
    state: &'a StepState<'a>,
    /// Flag that worker 0 checks between commands.
    stop: Option<&'a AtomicBool>,
    /// One time for each command and one for the end, or null.
    marks: *mut Instant,
}

// SAFETY: each worker uses its own part of `scratch`, only worker 0 writes `marks`, and the other
// fields are only read.
unsafe impl Sync for Replay<'_> {}

impl Replay<'_> {
    /// Runs the table as worker `index`.
    fn work(&self, index: usize, barrier: &Barrier) {
        let mark = |command: usize| {
            if index == 0 && !self.marks.is_null() {
                // SAFETY: `marks` has `commands.len() + 1` entries, and only worker 0 writes them.
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
            // SAFETY: `scratch` has `scratch_bytes` for each of the workers. The table's pointers
            // are valid for every step that passed its check, and barriers separate dependent
            // commands. The device checked the instruction set.
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
