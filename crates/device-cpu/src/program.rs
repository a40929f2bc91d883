//! A compiled plan: its memory, its two tables, and the replay.

use crate::NAME;
use crate::command::{StepState, Worker};
use crate::compile::{Addresses, Compiler, RowsOfStep, Table};
use crate::isa::Isa;
use crate::kernels::attention;
use crate::kernels::expert_groups::Groups;
use crate::kernels::linear::WeightRows;
use crate::layout::{Layout, max_rows};
use crate::lower::Lowered;
use crate::memory::{Buffer, PagePool};
use crate::pool::{Barrier, Panicked, Pool};
use device::{
    CommandInfo, Error, KvLayout, Limits, Op, Plan, Program, Result, Rows, Step, Timing, Want, Weight,
};
use formats::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// A plan made ready to run.
pub struct CpuProgram {
    pool: Arc<Pool>,
    one: Table,
    many: Table,
    /// `(commands, workers)` units handed out in this step.
    taken: Box<[AtomicUsize]>,
    /// Partials finished of split attention.
    arrived: Box<[AtomicUsize]>,
    scratch: Buffer,
    scratch_bytes: usize,
    arena: Buffer,
    /// Positions and slots of the rows; as many as the limits allow.
    positions: Vec<u32>,
    slots: Vec<u32>,
    pages: Vec<PagePool>,
    logits: Output,
    argmax: Output,
    kv: KvLayout,
    limits: Limits,
    /// Rows of the smallest embedding table: token ids are below it.
    n_vocab: usize,
    n_outputs: usize,
    /// What the tables point to, kept alive.
    _buffers: Vec<Buffer>,
    _weights: Vec<Bytes>,
}

/// A value that the caller reads.
struct Output {
    offset: usize,
    cols: usize,
}

impl CpuProgram {
    /// Take the memory and write the tables.
    ///
    /// # Errors
    /// Memory was refused.
    pub fn new(
        plan: &Plan,
        lowered: &[Lowered],
        layout: &Layout,
        limits: &Limits,
        isa: Isa,
        pool: Arc<Pool>,
    ) -> Result<CpuProgram> {
        let mut buffers = Vec::new();
        let mut take = |what: &str, bytes: usize| -> Result<*mut u8> {
            let buffer = Buffer::zeroed(what, bytes)?;
            let start = buffer.start();
            buffers.push(buffer);
            Ok(start)
        };
        let arena = Buffer::zeroed("activations", layout.arena.total)?;
        let scratch = Buffer::zeroed("scratch of the workers", layout.all_scratch_bytes())?;
        let pages = (0..plan.kv.groups.len())
            .map(|g| {
                PagePool::reserve(limits.n_pages[g], plan.kv.page_bytes(g, limits.kv_type, limits.page_len))
            })
            .collect::<Result<Vec<_>>>()?;
        let counters = |n: usize| (0..n).map(|_| AtomicUsize::new(0)).collect::<Box<[AtomicUsize]>>();
        let arrived = counters(attention::max_split(layout.n_workers));
        let addresses = Addresses {
            arena: arena.start(),
            f32_rows: take("normalised activations", layout.f32_rows_bytes)?.cast(),
            q8_rows: take("quantised activations", layout.q8_rows_bytes)?,
            rope_tables: layout
                .rope_tables
                .iter()
                .map(|(_, bytes)| Ok(take("rope tables", *bytes)?.cast()))
                .collect::<Result<Vec<_>>>()?,
            partials: take("attention partials", layout.partial_bytes)?.cast(),
            arrived: arrived.as_ptr(),
            found: take("argmax", layout.found_bytes)?.cast(),
            groups: {
                let order: *mut u32 = take("expert tables", layout.expert_bytes().0)?.cast();
                Groups { order, ends: order.wrapping_add(layout.grouped.0) }
            },
            experts: {
                let start: *mut WeightRows = take("expert tables", layout.expert_bytes().1)?.cast();
                let stacks = layout.experts.iter().map(|(id, _)| plan.weight(*id));
                let parts = stacks.flat_map(|stack| stack.parts.iter().map(move |part| (stack, part)));
                for (index, (stack, part)) in parts.enumerate() {
                    let (block, n_cols) = (stack.block, stack.n_cols());
                    let rows = WeightRows::new(block, n_cols, &part.data, part.planes.as_slices());
                    // SAFETY: the buffer has room for the matrix of every expert of the layout.
                    unsafe { start.add(index).write(rows) }
                }
                start
            },
            pools: pages.iter().map(PagePool::start).collect(),
        };
        let compiler = Compiler { plan, limits, layout, at: &addresses, isa };
        let (one, many) =
            (compiler.table(lowered, RowsOfStep::One), compiler.table(lowered, RowsOfStep::Many));
        let output = |id: device::ValueId| Output {
            offset: layout.arena.offset[id.0 as usize],
            cols: plan.value(id).cols,
        };
        let tables = plan.primitives().filter_map(|op| match op {
            Op::Embed { table, .. } => Some(plan.weight(*table).n_rows()),
            _ => None,
        });
        let n_rows = max_rows(limits, Rows::Tokens);
        Ok(CpuProgram {
            pool,
            taken: counters(one.commands.len().max(many.commands.len()) * layout.n_workers),
            one,
            many,
            arrived,
            scratch,
            scratch_bytes: layout.scratch_bytes,
            arena,
            positions: vec![0; n_rows],
            slots: vec![0; n_rows],
            pages,
            logits: output(plan.logits),
            argmax: output(plan.argmax),
            kv: plan.kv.clone(),
            limits: limits.clone(),
            n_vocab: tables.min().unwrap_or(usize::MAX),
            n_outputs: 0,
            _buffers: buffers,
            _weights: plan.weights.iter().flat_map(Weight::views).cloned().collect(),
        })
    }

    fn table(&self, n_rows: usize) -> &Table {
        if n_rows == 1 { &self.one } else { &self.many }
    }

    /// Whether the step is one that the kernels can run without leaving their buffers. Costs a few comparisons for each
    /// row and page; the engine has checked more, and with words.
    fn check(&self, step: &Step) -> Result<()> {
        let failed = |reason: String| Err(Error::Failed { device: NAME, reason });
        if cfg!(debug_assertions)
            && let Err(reason) = step.check(&self.kv, &self.limits)
        {
            return failed(reason);
        }
        let (n_rows, n_groups) = (step.tokens.len(), self.kv.groups.len());
        if n_rows > self.limits.max_rows || step.outputs.len() > self.limits.max_outputs {
            let (rows, outputs) = (self.limits.max_rows, self.limits.max_outputs);
            return failed(format!(
                "a step of {n_rows} rows and {} outputs, expected at most {rows} and {outputs}",
                step.outputs.len()
            ));
        }
        if let Some(token) = step.tokens.iter().find(|t| **t as usize >= self.n_vocab) {
            return failed(format!("token {token}, expected one below {}", self.n_vocab));
        }
        if let Some(row) = step.outputs.iter().find(|r| **r as usize >= n_rows) {
            return failed(format!("output row {row} of a step of {n_rows} rows"));
        }
        let mut next = 0;
        for span in step.spans {
            let tables_end = (span.slot as usize + 1) * n_groups * step.pages_per_table;
            let fits = span.first_row as usize == next
                && span.n_rows > 0
                && span.end() <= self.limits.n_ctx
                && span.end().div_ceil(self.limits.page_len) <= step.pages_per_table
                && tables_end <= step.page_tables.len();
            if !fits {
                return failed(format!("{span:?} does not fit the step or the limits"));
            }
            next += span.n_rows as usize;
            for group in 0..n_groups {
                // Entries without a page are caught where one is needed.
                let n_pages = self.limits.n_pages[group];
                let entries =
                    &step.page_table(span.slot, group, n_groups)[..span.end().div_ceil(self.limits.page_len)];
                if let Some(page) =
                    entries.iter().find(|p| **p != device::PAGE_NONE && **p as usize >= n_pages)
                {
                    return failed(format!("KV page {page} of group {group}, expected one below {n_pages}"));
                }
            }
        }
        if next != n_rows {
            return failed(format!("spans of {next} rows in a step of {n_rows} rows"));
        }
        Ok(())
    }

    /// Run a step; worker 0 notes in `marks`, if there, when each command began and, last, when all ended.
    fn replay(&mut self, step: &Step, marks: Option<&mut [Instant]>) -> Result<()> {
        self.check(step)?;
        self.n_outputs = step.outputs.len();
        for span in step.spans {
            for i in 0..span.n_rows {
                let row = (span.first_row + i) as usize;
                self.positions[row] = span.first_position + i;
                self.slots[row] = span.slot;
            }
        }
        let n_rows = step.tokens.len();
        self.taken.iter().chain(&self.arrived).for_each(|c| c.store(0, Ordering::Relaxed));
        let state = StepState {
            tokens: step.tokens,
            spans: step.spans,
            positions: &self.positions[..n_rows],
            slots: &self.slots[..n_rows],
            page_tables: step.page_tables,
            pages_per_table: step.pages_per_table,
            n_groups: self.kv.groups.len(),
            outputs: step.outputs,
            argmax: step.want == Want::Argmax,
        };
        let replay = Replay {
            table: self.table(n_rows),
            taken: &self.taken,
            scratch: self.scratch.start(),
            scratch_bytes: self.scratch_bytes,
            n_workers: self.pool.n_workers(),
            state: &state,
            marks: marks.map_or(std::ptr::null_mut(), <[Instant]>::as_mut_ptr),
        };
        self.pool
            .run(&|index, barrier| replay.work(index, barrier))
            .map_err(|Panicked(reason)| Error::Failed { device: NAME, reason })
    }

    fn output<T>(&self, output: &Output) -> &[T] {
        // SAFETY: the value has a place of `max_outputs` rows, whose every bit pattern is a `T` (f32 or u32); nobody
        // writes it between steps.
        unsafe {
            std::slice::from_raw_parts(
                self.arena.start().add(output.offset).cast(),
                self.n_outputs * output.cols,
            )
        }
    }
}

/// What the workers share during a step.
struct Replay<'a> {
    table: &'a Table,
    taken: &'a [AtomicUsize],
    scratch: *mut u8,
    scratch_bytes: usize,
    n_workers: usize,
    state: &'a StepState<'a>,
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
            self.table.commands.iter().zip(self.taken.chunks(self.n_workers)).enumerate()
        {
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
        mark(self.table.commands.len());
    }
}

impl Program for CpuProgram {
    fn run(&mut self, step: &Step) -> Result<()> {
        self.replay(step, None)
    }

    fn logits(&self) -> &[f32] {
        self.output(&self.logits)
    }

    fn logits_mut(&mut self) -> &mut [f32] {
        let logits = self.logits();
        let (start, len) = (logits.as_ptr().cast_mut(), logits.len());
        // SAFETY: the arena is this program's own, and `self` is borrowed mutably as long as the slice.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }

    fn argmax(&self) -> &[u32] {
        self.output(&self.argmax)
    }

    fn copy_page(&mut self, group: usize, from: u32, to: u32) -> Result<()> {
        let n = self.limits.n_pages.get(group).copied().unwrap_or(0);
        if from as usize >= n || to as usize >= n {
            let reason = format!("copy of KV page {from} to {to} of group {group}, which has {n} pages");
            return Err(Error::Failed { device: NAME, reason });
        }
        self.pages[group].copy(from, to);
        Ok(())
    }

    fn release_page(&mut self, group: usize, page: u32) {
        if (page as usize) < self.limits.n_pages.get(group).copied().unwrap_or(0) {
            self.pages[group].release(page);
        }
    }

    fn commands(&self, n_rows: usize) -> Vec<CommandInfo> {
        self.table(n_rows).infos.clone()
    }

    fn run_timed(&mut self, step: &Step, timings: &mut Vec<Timing>) -> Result<()> {
        let n = self.table(step.tokens.len()).commands.len();
        let begin = Instant::now();
        let mut marks = vec![begin; n + 1];
        self.replay(step, Some(&mut marks))?;
        timings.extend(marks.windows(2).enumerate().map(|(command, pair)| Timing {
            command,
            start: (pair[0] - begin).as_secs_f64(),
            duration: (pair[1] - pair[0]).as_secs_f64(),
        }));
        Ok(())
    }
}
