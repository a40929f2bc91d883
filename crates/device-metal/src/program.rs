//! [`MetalProgram`]: the memory, the tables, and the step that is patched and encoded.

mod chain;

use crate::arguments;
use crate::compile::{Buffers, Compiler};
use crate::gpu::{Buffer, Gpu};
use crate::layout::{ALIGN, Scratch, StepLayout};
use crate::lower::Lowered;
use crate::profile::Profile;
use crate::table::{RowClass, Sizes, Table};
use crate::weights::{Tables, WeightPlan};
use chain::{Bindings, Chain, Kernels};
use device::arena::Arena;
use device::{
    CommandInfo, Error, GroupUse, KvLayout, Limits, Needs, Plan, Program, Result, Rows, Sampling, Step,
    Timing, Want,
};
use formats::Bytes;
use std::sync::Arc;
use std::time::Instant;

/// A plan on its way into a program.
pub struct Part<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// Its units.
    pub lowered: &'a [Lowered],
    /// Where its values lie.
    pub arena: &'a Arena,
}

/// What the caller reads of a plan.
#[derive(Clone, Copy)]
struct Output {
    offset: usize,
    rows: Rows,
    cols: usize,
}

/// A plan ready to run.
struct Compiled<G: Gpu> {
    /// What the kernels behind a step of a chain are bound to.
    bindings: Bindings,
    /// By class of tokens, then of outputs, which are no more.
    tables: Vec<Vec<Table<G>>>,
    logits: Output,
    argmax: Output,
    kept: Vec<Output>,
}

impl<G: Gpu> Compiled<G> {
    fn table(&self, sizes: &Sizes) -> &Table<G> {
        let tokens = RowClass::of(sizes.n_rows) as usize;
        let outputs = (RowClass::of(sizes.n_outputs) as usize).min(tokens);
        &self.tables[tokens][outputs]
    }
}

/// Compiled plans and their memory.
pub struct MetalProgram<G: Gpu> {
    gpu: Arc<G>,
    plans: Vec<Compiled<G>>,
    needs: Vec<Needs>,
    kv: KvLayout,
    limits: Limits,
    /// The arena, the step, scratch, tables, pools, weights.
    buffers: Vec<G::Buffer>,
    step: StepLayout,
    /// Positions from which a sequence is long.
    long: usize,
    /// Of the last step.
    current: usize,
    sizes: Sizes,
    /// What runs behind a step of a chain.
    kernels: Kernels<G>,
    /// Steps of a command buffer.
    chain_tokens: usize,
    chain: Chain<G::Ticket>,
    /// Raised after each step of a chain.
    signal: G::Signal,
    /// Its value when the chain, or the next one, begins.
    n_signalled: u64,
    /// Keeps the buffers in memory.
    _residency: G::Residency,
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
/// The first pool's.
const POOLS: usize = 4;

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
        parts: &[Part],
        limits: &Limits,
        step: StepLayout,
        scratch: Scratch,
        tables: &Tables,
        arena_bytes: usize,
    ) -> Result<MetalProgram<G>> {
        let kv = plans.first().map(|plan| plan.kv.clone()).unwrap_or_default();
        let mut buffers = vec![
            gpu.allocate("activations", arena_bytes)?,
            gpu.allocate("steps", step.total)?,
            gpu.allocate("scratch", scratch.total().max(ALIGN))?,
            gpu.allocate("tables", tables.n_bytes().max(ALIGN))?,
        ];
        for (group, n_pages) in limits.n_pages.iter().enumerate() {
            let bytes = n_pages * kv.page_bytes(group, limits.kv_type, limits.page_len);
            let most = gpu.facts().max_buffer_bytes;
            if bytes as u64 > most {
                return Err(Error::Unsupported {
                    device: G::NAME,
                    what: format!("a KV cache of {bytes} bytes in one buffer, which may have {most}"),
                    hint: "use a smaller context (--ctx) or a smaller KV type (--kv-type)".to_owned(),
                });
            }
            buffers.push(gpu.allocate("KV pages", bytes.max(ALIGN))?);
        }
        let weights = WeightPlan::new(plans, gpu.as_ref()).make(gpu.as_ref(), &mut buffers)?;
        write(&buffers[TABLES], 0, &tables.entries(plans, &weights));
        let which = Buffers {
            arena: ARENA as u16,
            step: STEP as u16,
            scratch: SCRATCH as u16,
            tables: TABLES as u16,
            pools: (POOLS..POOLS + kv.groups.len()).map(|index| index as u16).collect(),
        };
        let mut compiled = Vec::with_capacity(parts.len());
        for (index, part) in parts.iter().enumerate() {
            let compiler = Compiler {
                gpu: gpu.as_ref(),
                profile,
                index,
                plan: part.plan,
                lowered: part.lowered,
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
                    outputs.map(|outputs| compiler.table(tokens, outputs)).collect()
                })
                .collect::<Result<Vec<Vec<_>>>>()?;
            let output = |id: &device::ValueId| {
                let (value, offset) = (part.plan.value(*id), part.arena.offset[id.0 as usize]);
                Output { offset, rows: value.rows, cols: value.cols }
            };
            let (logits, argmax) = (output(&part.plan.logits), output(&part.plan.argmax));
            compiled.push(Compiled {
                bindings: Bindings::new(&step, logits, argmax, of_classes[0][0].bests),
                tables: of_classes,
                logits,
                argmax,
                kept: part.plan.kept.iter().map(output).collect(),
            });
        }
        let (kernels, signal) = (Kernels::new(gpu.as_ref(), profile)?, gpu.new_signal()?);
        gpu.keep_pipelines();
        let residency = gpu.reside(&buffers);
        let files = plans.iter().flat_map(|plan| &plan.weights).flat_map(device::Weight::views);
        Ok(MetalProgram {
            needs: plans.iter().map(|plan| Needs::new(plan, limits)).collect(),
            gpu,
            plans: compiled,
            kv,
            limits: limits.clone(),
            buffers,
            step,
            long: profile.split_positions,
            current: 0,
            sizes: Sizes::default(),
            kernels,
            chain_tokens: profile.chain_tokens.max(1),
            chain: Chain::default(),
            signal,
            n_signalled: 0,
            _residency: residency,
            _files: files.cloned().collect(),
        })
    }

    /// Check a step and write it into the step buffer; its sequences may go on for `n_more` positions.
    fn begin(&mut self, step: &Step, n_more: usize) -> Result<()> {
        self.end_chain()?;
        if let Err(reason) = step.check(&self.needs, &self.limits) {
            return Err(Error::Failed { device: G::NAME, reason });
        }
        self.current = step.plan;
        self.sizes = Sizes {
            n_rows: step.tokens.len(),
            n_outputs: step.outputs.len(),
            argmax: step.want == Want::Argmax,
            chained: false,
            long: step.spans.iter().any(|span| span.end() > self.long),
        };
        let (at, buffer) = (self.step, &self.buffers[STEP]);
        let header = arguments::Step {
            n_rows: step.tokens.len() as u32,
            n_outputs: step.outputs.len() as u32,
            n_spans: step.spans.len() as u32,
            n_groups: at.n_groups as u32,
            pages_per_table: at.pages_per_table as u32,
            ..Default::default()
        };
        write(buffer, 0, &[header]);
        write(buffer, at.tokens, step.tokens);
        write(buffer, at.outputs, step.outputs);
        write(buffer, at.input, step.input);
        for (index, span) in step.spans.iter().enumerate() {
            let first = span.first_row as usize;
            for row in 0..span.n_rows {
                let offset = (first + row as usize) * 4;
                write(buffer, at.positions + offset, &[span.first_position + row]);
                write(buffer, at.row_spans + offset, &[index as u32]);
            }
            let (first_row, n_rows, first_position) = (span.first_row, span.n_rows, span.first_position);
            let mine = arguments::Span { first_row, n_rows, first_position, reserved: 0 };
            write(buffer, at.spans + index * size_of::<arguments::Span>(), &[mine]);
            for (group, usage) in self.needs[step.plan].groups.iter().enumerate() {
                let n_positions = match usage {
                    GroupUse::Unused => continue,
                    GroupUse::Sequence { .. } => span.end() + n_more,
                    GroupUse::Memory { n, .. } => *n,
                };
                let table = step.page_table(span.slot, group, at.n_groups);
                let n = n_positions.div_ceil(self.limits.page_len).min(at.pages_per_table);
                let first_new = span.end() / self.limits.page_len;
                let n_pages = self.limits.n_pages[group];
                if let Some(page) = table.iter().take(n).skip(first_new).find(|p| **p as usize >= n_pages) {
                    let reason =
                        format!("KV page {page} of group {group} for a chain, expected one below {n_pages}");
                    return Err(Error::Failed { device: G::NAME, reason });
                }
                let first = (index * at.n_groups + group) * at.pages_per_table;
                write(buffer, at.page_tables + first * 4, &table[..n]);
            }
        }
        Ok(())
    }

    fn output<T: bytemuck::Pod>(&self, output: Output) -> &[T] {
        let n = output.rows.count(self.sizes.n_rows, self.sizes.n_outputs) * output.cols;
        // SAFETY: the value has a place for the limits' rows; every bit pattern is a `T`; the GPU is done with the step.
        unsafe { std::slice::from_raw_parts(self.buffers[ARENA].start().add(output.offset).cast(), n) }
    }

    /// The bytes of a page.
    fn page(&self, group: usize, page: u32) -> Result<(*mut u8, usize)> {
        let n = self.limits.n_pages.get(group).copied().unwrap_or(0);
        if page as usize >= n || group >= self.kv.groups.len() {
            let reason = format!("KV page {page} of group {group}, which has {n} pages");
            return Err(Error::Failed { device: G::NAME, reason });
        }
        let bytes = self.kv.page_bytes(group, self.limits.kv_type, self.limits.page_len);
        Ok((self.buffers[POOLS + group].start().wrapping_add(page as usize * bytes), bytes))
    }

    fn page_of(&self, group: usize, page: u32, given: usize) -> Result<*mut u8> {
        let (start, bytes) = self.page(group, page)?;
        if given != bytes {
            let reason = format!("{given} bytes for a KV page of {bytes} bytes");
            return Err(Error::Failed { device: G::NAME, reason });
        }
        Ok(start)
    }
}

impl<G: Gpu> Drop for MetalProgram<G> {
    /// Command buffers do not keep what they use, so nothing may go before they are done.
    fn drop(&mut self) {
        let _ = self.end_chain();
    }
}

/// Write numbers into a buffer.
///
/// # Panics
/// They do not fit, which the layouts see to.
fn write<T: bytemuck::Pod>(buffer: &impl Buffer, offset: usize, values: &[T]) {
    let bytes: &[u8] = bytemuck::cast_slice(values);
    assert!(offset + bytes.len() <= buffer.len(), "{} bytes at {offset} of {}", bytes.len(), buffer.len());
    // SAFETY: they fit, and the GPU does not run: a program waits for each step.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.start().add(offset), bytes.len()) }
}

impl<G: Gpu> Program for MetalProgram<G> {
    fn run(&mut self, step: &Step) -> Result<()> {
        self.begin(step, 0)?;
        if self.sizes.n_rows == 0 {
            return Ok(());
        }
        let (table, buffers, sizes) =
            (self.plans[self.current].table(&self.sizes), &self.buffers, &self.sizes);
        let ticket = self.gpu.submit(&mut |encoder| table.encode(encoder, buffers, sizes))?;
        self.gpu.wait(ticket)?;
        Ok(())
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
        match self.sizes.argmax {
            true => self.output(self.plans[self.current].argmax),
            false => &[],
        }
    }

    fn kept(&self, index: usize) -> &[f32] {
        self.plans[self.current].kept.get(index).map_or(&[], |output| self.output(*output))
    }

    fn most_chained(&self, sampling: Option<&Sampling>) -> usize {
        Self::most_in_chain(sampling)
    }

    fn start_chain(&mut self, step: &Step, n: usize, sampling: Option<&Sampling>) -> Result<()> {
        self.begin_chain(step, n, sampling)
    }

    fn next_chained(&mut self) -> Result<Option<u32>> {
        let token = self.next_in_chain();
        if token.is_err() {
            // What is on its way has failed too, or is of no use.
            let _ = self.end_chain();
        }
        token
    }

    fn stop_chain(&mut self) -> Result<()> {
        self.end_chain()
    }

    fn copy_page(&mut self, group: usize, from: u32, to: u32) -> Result<()> {
        let ((from, bytes), (to, _)) = (self.page(group, from)?, self.page(group, to)?);
        // SAFETY: both pages lie within the pool; the same page is copied onto itself.
        unsafe { std::ptr::copy(from, to, bytes) };
        Ok(())
    }

    fn read_page(&self, group: usize, page: u32, bytes: &mut [u8]) -> Result<()> {
        let start = self.page_of(group, page, bytes.len())?;
        // SAFETY: the page has as many bytes.
        unsafe { std::ptr::copy_nonoverlapping(start, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn write_page(&mut self, group: usize, page: u32, bytes: &[u8]) -> Result<()> {
        let start = self.page_of(group, page, bytes.len())?;
        // SAFETY: the page has as many bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len()) };
        Ok(())
    }

    /// Nothing: what a GPU uses stays in memory as a whole.
    fn release_page(&mut self, _group: usize, _page: u32) {}

    fn commands(&self, plan: usize, n_rows: usize) -> Vec<CommandInfo> {
        // Of the last step, if it was such a one; else as a sequence has them that goes on.
        let same = plan == self.current && n_rows == self.sizes.n_rows;
        let n_outputs = if same { self.sizes.n_outputs } else { 1 };
        let sizes = Sizes { n_rows, n_outputs, ..Sizes::default() };
        let most = RowClass::of(self.limits.max_rows) as usize;
        let plan = self.plans.get(plan).filter(|_| RowClass::of(n_rows) as usize <= most);
        plan.map_or(vec![], |plan| plan.table(&sizes).infos.clone())
    }

    /// Each command is submitted and waited for by itself.
    fn run_timed(&mut self, step: &Step, timings: &mut Vec<Timing>) -> Result<()> {
        self.begin(step, 0)?;
        let begin = Instant::now();
        let (buffers, sizes) = (&self.buffers, &self.sizes);
        let table = self.plans[self.current].table(sizes);
        for (command, what) in table.commands.iter().enumerate() {
            let start = begin.elapsed().as_secs_f64();
            let mut ran = false;
            let ticket = self.gpu.submit(&mut |encoder| ran = what.encode(encoder, buffers, sizes))?;
            let busy = self.gpu.wait(ticket)?;
            timings.push(Timing { command, start, duration: if ran { busy } else { 0.0 } });
        }
        Ok(())
    }
}
