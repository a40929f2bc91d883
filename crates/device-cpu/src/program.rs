//! Compiled plans: the memory that they share, two tables each, and the replay.

use crate::NAME;
use crate::command::{StepState, Worker};
use crate::compile::{Addresses, Compiler, RowsOfStep, Table};
use crate::isa::Isa;
use crate::kernels::expert_groups::Groups;
use crate::layout::{Layout, Shared};
use crate::lower::Lowered;
use crate::memory::{Buffer, PagePool};
use crate::pool::{Barrier, Panicked, Pool};
use crate::weights::{Interleaved, matrices};
use device::{
    CommandInfo, Error, GroupUse, Limits, Needs, Plan, Program, Result, Rows, Span, Step, Timing, ValueId,
    Want, Weight,
};
use formats::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// A plan that was lowered.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// Its units.
    pub units: &'a [Lowered],
    /// Their sizes.
    pub layout: &'a Layout,
}

/// Plans made ready to run.
pub struct CpuProgram {
    pool: Arc<Pool>,
    plans: Vec<Compiled>,
    /// By plan.
    needs: Vec<Needs>,
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
    limits: Limits,
    /// Plan, rows and outputs of the last step.
    current: usize,
    n_rows: usize,
    n_outputs: usize,
    /// What the tables point to, kept alive.
    _buffers: Vec<Buffer>,
    _files: Vec<Bytes>,
    _weights: PagePool,
}

/// One of a program's plans.
struct Compiled {
    one: Table,
    many: Table,
    logits: Output,
    argmax: Output,
    kept: Vec<Output>,
}

impl Compiled {
    fn table(&self, n_rows: usize) -> &Table {
        if n_rows == 1 { &self.one } else { &self.many }
    }
}

/// A value that the caller reads.
#[derive(Clone, Copy)]
struct Output {
    offset: usize,
    rows: Rows,
    cols: usize,
}

impl CpuProgram {
    /// Take the memory and write the tables. There is one part at least, and all have the same KV layout.
    ///
    /// # Errors
    /// Memory was refused.
    pub fn new(
        parts: &[Part<'_>],
        shared: &Shared,
        limits: &Limits,
        isa: Isa,
        pool: Arc<Pool>,
        weights: Interleaved,
    ) -> Result<CpuProgram> {
        let mut buffers = Vec::new();
        let mut take = |what: &str, bytes: usize| -> Result<*mut u8> {
            let buffer = Buffer::zeroed(what, bytes)?;
            let start = buffer.start();
            buffers.push(buffer);
            Ok(start)
        };
        let arena = Buffer::zeroed("activations", shared.arena_bytes)?;
        let scratch = Buffer::zeroed("scratch of the workers", shared.all_scratch_bytes())?;
        let kv = parts.first().map(|part| part.plan.kv.clone()).unwrap_or_default();
        let pages = (0..kv.groups.len())
            .map(|g| PagePool::reserve(limits.n_pages[g], kv.page_bytes(g, limits.kv_type, limits.page_len)))
            .collect::<Result<Vec<_>>>()?;
        let counters = |n: usize| (0..n).map(|_| AtomicUsize::new(0)).collect::<Box<[AtomicUsize]>>();
        let arrived = counters(shared.max_split);
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
            experts: take("expert tables", shared.expert_bytes().1)?.cast_const().cast(),
            pools: pages.iter().map(PagePool::start).collect(),
        };
        let mut experts = addresses.experts;
        let mut plans = Vec::with_capacity(parts.len());
        for Part { plan, units, layout } in parts {
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
            let output = |id: &ValueId| {
                let (value, offset) = (plan.value(*id), layout.arena.offset[id.0 as usize]);
                Output { offset, rows: value.rows, cols: value.cols }
            };
            plans.push(Compiled {
                one: compiler.table(units, RowsOfStep::One),
                many: compiler.table(units, RowsOfStep::Many),
                logits: output(&plan.logits),
                argmax: output(&plan.argmax),
                kept: plan.kept.iter().map(output).collect(),
            });
        }
        let n_commands = plans.iter().flat_map(|p| [p.one.commands.len(), p.many.commands.len()]).max();
        let files = parts.iter().flat_map(|part| &part.plan.weights);
        Ok(CpuProgram {
            pool,
            plans,
            needs: parts.iter().map(|part| Needs::new(part.plan, limits)).collect(),
            taken: counters(n_commands.unwrap_or(0) * shared.n_workers),
            arrived,
            scratch,
            scratch_bytes: shared.scratch_bytes,
            arena,
            positions: vec![0; limits.max_rows],
            slots: vec![0; limits.max_rows],
            pages,
            limits: limits.clone(),
            current: 0,
            n_rows: 0,
            n_outputs: 0,
            _buffers: buffers,
            _files: files.flat_map(Weight::views).cloned().collect(),
            _weights: weights.into_memory(),
        })
    }

    /// Whether the step is one that the kernels can run without leaving their buffers. Costs a few comparisons for each
    /// row and page; the engine has checked more, and with words.
    fn check(&self, step: &Step) -> Result<()> {
        let failed = |reason: String| Err(Error::Failed { device: NAME, reason });
        let Some(needs) = self.needs.get(step.plan) else {
            return failed(format!("plan {} of a program of {}", step.plan, self.needs.len()));
        };
        let (n_rows, n_outputs) = (step.tokens.len(), step.outputs.len());
        if n_rows > self.limits.max_rows || n_outputs > self.limits.max_outputs {
            let (rows, outputs) = (self.limits.max_rows, self.limits.max_outputs);
            return failed(format!(
                "a step of {n_rows} rows and {n_outputs} outputs, expected at most {rows} and {outputs}"
            ));
        }
        let n_input = needs.input_len(n_rows, n_outputs);
        if step.input.len() != n_input {
            return failed(format!("an input of {} numbers, expected {n_input}", step.input.len()));
        }
        if let Some(token) = step.tokens.iter().find(|t| **t as usize >= needs.n_vocab) {
            return failed(format!("token {token}, expected one below {}", needs.n_vocab));
        }
        if let Some(row) = step.outputs.iter().find(|r| **r as usize >= n_rows) {
            return failed(format!("output row {row} of a step of {n_rows} rows"));
        }
        let mut next = 0;
        for span in step.spans {
            if span.first_row as usize != next || span.n_rows == 0 || span.end() > needs.n_positions {
                return failed(format!("{span:?} does not fit the step or the limits"));
            }
            next += span.n_rows as usize;
            self.check_pages(step, needs, span)?;
        }
        if next != n_rows {
            return failed(format!("spans of {next} rows in a step of {n_rows} rows"));
        }
        Ok(())
    }

    /// Whether the pages that a span needs are pages, where it has them.
    fn check_pages(&self, step: &Step, needs: &Needs, span: &Span) -> Result<()> {
        let failed = |reason: String| Err(Error::Failed { device: NAME, reason });
        let n_groups = needs.groups.len();
        let tables_end = (span.slot as usize + 1) * n_groups * step.pages_per_table;
        for (group, (usage, n_pages)) in needs.groups.iter().zip(&self.limits.n_pages).enumerate() {
            let n_positions = match usage {
                GroupUse::Unused => continue,
                GroupUse::Sequence { .. } => span.end(),
                GroupUse::Memory { n, written } => {
                    if *written && span.end() > *n {
                        return failed(format!("{span:?} of a memory of {n} positions"));
                    }
                    *n
                }
            };
            let n_entries = n_positions.div_ceil(self.limits.page_len);
            if n_entries > step.pages_per_table || tables_end > step.page_tables.len() {
                return failed(format!("page tables too short for {span:?}"));
            }
            // Entries without a page are caught where one is needed.
            let entries = &step.page_table(span.slot, group, n_groups)[..n_entries];
            let beyond = entries.iter().find(|p| **p != device::PAGE_NONE && **p as usize >= *n_pages);
            if let Some(page) = beyond {
                return failed(format!("KV page {page} of group {group}, expected one below {n_pages}"));
            }
        }
        Ok(())
    }

    /// Run a step; worker 0 notes in `marks`, if there, when each command began and, last, when all ended.
    fn replay(&mut self, step: &Step, marks: Option<&mut [Instant]>) -> Result<()> {
        self.check(step)?;
        (self.current, self.n_rows, self.n_outputs) = (step.plan, step.tokens.len(), step.outputs.len());
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
            input: step.input,
            spans: step.spans,
            positions: &self.positions[..n_rows],
            slots: &self.slots[..n_rows],
            page_tables: step.page_tables,
            pages_per_table: step.pages_per_table,
            n_groups: self.pages.len(),
            outputs: step.outputs,
            argmax: step.want == Want::Argmax,
        };
        let replay = Replay {
            table: self.plans[step.plan].table(n_rows),
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

    /// Whether a group has such a page.
    fn check_page(&self, group: usize, page: u32) -> Result<()> {
        let n = self.limits.n_pages.get(group).copied().unwrap_or(0);
        if page as usize >= n {
            let reason = format!("KV page {page} of group {group}, which has {n} pages");
            return Err(Error::Failed { device: NAME, reason });
        }
        Ok(())
    }

    fn output<T>(&self, output: Output) -> &[T] {
        let n = output.rows.count(self.n_rows, self.n_outputs) * output.cols;
        // SAFETY: the value has a place for the limits' rows, whose every bit pattern is a `T` (f32 or u32); nobody writes
        // it between steps.
        unsafe { std::slice::from_raw_parts(self.arena.start().add(output.offset).cast(), n) }
    }
}

fn check_page_length(given: usize, expected: usize) -> Result<()> {
    if given == expected {
        return Ok(());
    }
    Err(Error::Failed { device: NAME, reason: format!("{given} bytes for a KV page of {expected} bytes") })
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
        self.output(self.plans[self.current].logits)
    }

    fn logits_mut(&mut self) -> &mut [f32] {
        let logits = self.logits();
        let (start, len) = (logits.as_ptr().cast_mut(), logits.len());
        // SAFETY: the arena is this program's own, and `self` is borrowed mutably as long as the slice.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }

    fn argmax(&self) -> &[u32] {
        self.output(self.plans[self.current].argmax)
    }

    fn kept(&self, index: usize) -> &[f32] {
        self.plans[self.current].kept.get(index).map_or(&[], |output| self.output(*output))
    }

    fn copy_page(&mut self, group: usize, from: u32, to: u32) -> Result<()> {
        self.check_page(group, from)?;
        self.check_page(group, to)?;
        self.pages[group].copy(from, to);
        Ok(())
    }

    fn read_page(&self, group: usize, page: u32, bytes: &mut [u8]) -> Result<()> {
        self.check_page(group, page)?;
        let found = self.pages[group].bytes(page);
        check_page_length(bytes.len(), found.len())?;
        bytes.copy_from_slice(found);
        Ok(())
    }

    fn write_page(&mut self, group: usize, page: u32, bytes: &[u8]) -> Result<()> {
        self.check_page(group, page)?;
        let found = self.pages[group].bytes_mut(page);
        check_page_length(bytes.len(), found.len())?;
        found.copy_from_slice(bytes);
        Ok(())
    }

    fn release_page(&mut self, group: usize, page: u32) {
        if (page as usize) < self.limits.n_pages.get(group).copied().unwrap_or(0) {
            self.pages[group].release(page);
        }
    }

    fn commands(&self, plan: usize, n_rows: usize) -> Vec<CommandInfo> {
        self.plans.get(plan).map_or(vec![], |plan| plan.table(n_rows).infos.clone())
    }

    fn run_timed(&mut self, step: &Step, timings: &mut Vec<Timing>) -> Result<()> {
        let plan = self.plans.get(step.plan);
        let n = plan.map_or(0, |plan| plan.table(step.tokens.len()).commands.len());
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
