//! The interpreter's program: plans, the buffers that they share, and the loop over Ops.

use std::ops::Range;
use std::time::Instant;

use super::kv_pages::{Half, KvPages};
use super::{
    Reference, attention, cross, element_wise, embed, encoder, experts, input, linear, norm, rope, select,
};
use device::{
    Chosen, CommandInfo, CommittedPages, DType, Device, Error, Item, KvLayerId, Limits, MemoryPlan, Needs,
    Op, Plan, Program, Residence, Result, Step, Ticket, Timing, Value, ValueId, WeightId,
};
use device_lower::outputs::HostOutputs;
use device_lower::{arena, fusion};

const NAME: &str = "reference";

/// Pages that are committed together.
const GRANULE: usize = 2;

/// What the interpreter takes: weights as they are, f32 copies of its vectors, buffers, pages.
pub fn memory_plan(device: &Reference, plans: &[Plan], limits: &Limits) -> Result<MemoryPlan> {
    limits.check(device, plans)?;
    let flat: Vec<Plan> = plans.iter().map(fusion::flatten).collect();
    let buffers: usize = shared_sizes(&flat, limits).iter().sum();
    let vectors: usize =
        flat.iter().flat_map(|plan| vector_ids(plan).map(|id| plan.weight(id).n_cols())).sum();
    let floats = buffers + vectors + transposed_len(&flat, limits);
    let bytes = 4 * (floats + limits.max_rows + limits.max_outputs) as u64;
    let mut memory = MemoryPlan::of_weights_and_kv(plans, limits, |_| true);
    let sampling = HostOutputs::bytes(n_logits(&flat), limits, 1);
    for (what, bytes) in [("activations", bytes), ("sampling", sampling)] {
        memory.items.push(Item { what: what.to_owned(), bytes, residence: Residence::Committed });
    }
    Ok(memory)
}

/// Values in the largest Linear's output.
fn transposed_len(plans: &[Plan], limits: &Limits) -> usize {
    let len = |plan: &Plan, op: &Op| match op {
        Op::Linear { out, .. } => max_len(plan.value(*out), limits),
        _ => 0,
    };
    plans.iter().flat_map(|plan| plan.primitives().map(move |op| len(plan, op))).max().unwrap_or(0)
}

fn max_len(value: &Value, limits: &Limits) -> usize {
    value.rows.count(limits.max_rows, limits.max_outputs) * value.cols
}

/// Values that each buffer holds, of the plan that needs most of it.
fn shared_sizes(flat: &[Plan], limits: &Limits) -> Vec<usize> {
    let mut shared = vec![];
    for plan in flat {
        let sizes = Buffers::plan(plan, limits).sizes;
        shared.resize(shared.len().max(sizes.len()), 0);
        shared.iter_mut().zip(sizes).for_each(|(shared, size)| *shared = size.max(*shared));
    }
    shared
}

/// Norm weights, biases, frequencies and sinks: what is decoded once.
fn vector_ids(plan: &Plan) -> impl Iterator<Item = WeightId> {
    let ids = plan.primitives().flat_map(|op| match op {
        Op::Embed { .. } | Op::EmbedPositions { .. } | Op::ExpertLinear { .. } => vec![],
        Op::Linear { bias, .. } => bias.iter().copied().collect(),
        op => op.weights(),
    });
    let mut ids: Vec<WeightId> = ids.collect();
    ids.sort();
    ids.dedup();
    ids.into_iter()
}

/// Which buffer holds a value. A buffer is used again once its value is not needed any more, so that a long plan takes the
/// memory of its widest part.
struct Buffers {
    /// By value; `usize::MAX`: none (it is never written, or is the argmax). Ids are held as the bits of floats.
    of_value: Vec<usize>,
    /// Values that each must hold.
    sizes: Vec<usize>,
}

impl Buffers {
    /// Walk the primitives; give each written value the free buffer nearest to its size, or a new one.
    fn plan(flat: &Plan, limits: &Limits) -> Buffers {
        let lifetimes = arena::lifetimes(flat);
        let mut buffers = Buffers { of_value: vec![usize::MAX; flat.values.len()], sizes: vec![] };
        let mut free: Vec<usize> = vec![];
        for (index, node) in flat.nodes.iter().enumerate() {
            for id in node.op.writes() {
                let value = flat.value(id);
                if value.dtype != DType::F32 && id == flat.argmax {
                    continue;
                }
                let size = max_len(value, limits);
                let nearest = (0..free.len()).min_by_key(|at| buffers.sizes[free[*at]].abs_diff(size));
                let buffer = match nearest {
                    Some(at) => free.swap_remove(at),
                    None => {
                        buffers.sizes.push(0);
                        buffers.sizes.len() - 1
                    }
                };
                buffers.sizes[buffer] = buffers.sizes[buffer].max(size);
                buffers.of_value[id.0 as usize] = buffer;
            }
            let dying = |value: &usize| lifetimes[*value].is_some_and(|lifetime| lifetime.last == index);
            let dead = (0..flat.values.len()).filter(dying).map(|value| buffers.of_value[value]);
            free.extend(dead.filter(|buffer| *buffer != usize::MAX));
        }
        buffers
    }
}

/// One primitive, and the node of the compiled plan that it belongs to.
struct Command {
    op: Op,
    node: usize,
    layer: Option<u32>,
}

/// One of a program's plans.
struct Compiled {
    /// Flattened: no fused Ops.
    plan: Plan,
    needs: Needs,
    commands: Vec<Command>,
    /// By value, an index into the program's buffers.
    buffer_of: Vec<usize>,
    /// By value, the primitives between which its buffer is its own.
    lifetimes: Vec<Option<arena::Lifetime>>,
    /// By weight; empty for matrices.
    vectors: Vec<Vec<f32>>,
}

impl Compiled {
    fn new(plan: &Plan, limits: &Limits) -> Compiled {
        let flat = fusion::flatten(plan);
        let commands = plan.nodes.iter().enumerate().flat_map(|(node, n)| {
            n.op.primitives().iter().map(move |op| Command { op: op.clone(), node, layer: n.layer })
        });
        let mut vectors = vec![vec![]; flat.weights.len()];
        for id in vector_ids(&flat) {
            let weight = flat.weight(id);
            let mut vector = vec![0.0; weight.n_cols()];
            weight.decode_rows(0..1, &mut vector);
            vectors[id.0 as usize] = vector;
        }
        Compiled {
            needs: Needs::new(&flat, limits),
            commands: commands.collect(),
            buffer_of: Buffers::plan(&flat, limits).of_value,
            lifetimes: arena::lifetimes(&flat),
            vectors,
            plan: flat,
        }
    }
}

/// Compiled plans.
pub struct ReferenceProgram {
    plans: Vec<Compiled>,
    /// By plan, for the check of a step.
    needs: Vec<Needs>,
    /// Of the last step.
    current: usize,
    limits: Limits,
    n_threads: usize,
    buffers: Vec<Vec<f32>>,
    /// Scratch of Linear.
    transposed: Vec<f32>,
    argmax: Vec<u32>,
    pages: KvPages,
    committed: CommittedPages,
    /// By row of the step.
    positions: Vec<u32>,
    slots: Vec<u32>,
    /// Of the last step.
    n_outputs: usize,
    outputs: HostOutputs,
    /// The primitive that ran last, of the current plan.
    last: Option<usize>,
}

impl ReferenceProgram {
    /// Take the memory.
    pub fn new(device: &Reference, plans: &[Plan], limits: &Limits) -> Result<ReferenceProgram> {
        limits.check(device, plans)?;
        let plans: Vec<Compiled> = plans.iter().map(|plan| Compiled::new(plan, limits)).collect();
        let flat: Vec<Plan> = plans.iter().map(|compiled| compiled.plan.clone()).collect();
        let kv = flat.first().map(|plan| plan.kv.clone()).unwrap_or_default();
        let refused = |what: &str, bytes: usize| Error::OutOfMemory {
            device: NAME,
            what: what.to_owned(),
            bytes: bytes as u64,
        };
        let zeros = |len: usize| {
            let mut buffer = Vec::new();
            buffer.try_reserve_exact(len).map_err(|_| refused("activations", len * 4))?;
            buffer.resize(len, 0.0);
            Ok(buffer)
        };
        let pages = KvPages::new(&kv, limits.kv_type, limits.page_len, &limits.n_pages).map_err(|_| {
            let groups = limits.n_pages.iter().enumerate();
            let bytes = groups.map(|(g, n)| n * kv.page_bytes(g, limits.kv_type, limits.page_len)).sum();
            refused("KV pages", bytes)
        })?;
        Ok(ReferenceProgram {
            needs: plans.iter().map(|compiled| compiled.needs.clone()).collect(),
            plans,
            current: 0,
            limits: limits.clone(),
            n_threads: device.n_threads(),
            buffers: shared_sizes(&flat, limits).into_iter().map(zeros).collect::<Result<_>>()?,
            transposed: zeros(transposed_len(&flat, limits))?,
            argmax: vec![0; limits.max_outputs],
            pages,
            committed: CommittedPages::new(limits, |_| GRANULE),
            positions: Vec::with_capacity(limits.max_rows),
            slots: Vec::with_capacity(limits.max_rows),
            n_outputs: 0,
            outputs: HostOutputs::new(n_logits(&flat), limits, 1),
            last: None,
        })
    }

    fn n_commands_of(&self, step: &Step) -> usize {
        self.plans.get(step.plan).map_or(0, |plan| plan.commands.len())
    }

    /// Run `n` commands of a step, and choose. `after` each command it is told which.
    fn replay(&mut self, step: &Step, n: usize, mut after: impl FnMut(usize)) -> Result<Ticket> {
        let tokens = self.begin(step)?;
        let resolved = Step { tokens: &tokens, ..*step };
        for index in 0..n {
            if step.is_stopped() {
                self.outputs.abandon(tokens);
                return Err(Error::Stopped { device: NAME });
            }
            self.execute(index, &resolved);
            after(index);
        }
        let logits = self.plan().logits;
        let (buffer, len) = (self.buffer_of(logits), self.len(logits));
        Ok(self.outputs.finish(step, tokens, &self.buffers[buffer][..len], |_| None))
    }

    fn begin(&mut self, step: &Step) -> Result<Vec<u32>> {
        if let Err(reason) = step.check(&self.needs, &self.limits, &self.committed) {
            return Err(Error::Failed { device: NAME, reason });
        }
        self.current = step.plan;
        self.positions.clear();
        self.slots.clear();
        for span in step.spans {
            self.positions.extend((0..span.n_rows).map(|row| span.first_position + row));
            self.slots.extend((0..span.n_rows).map(|_| span.slot));
        }
        self.n_outputs = step.outputs.len();
        self.last = None;
        self.outputs.begin(step, self.needs[step.plan].n_vocab).map_err(failed)
    }

    fn plan(&self) -> &Plan {
        &self.plans[self.current].plan
    }

    fn command(&self, index: usize) -> &Command {
        &self.plans[self.current].commands[index]
    }

    fn buffer_of(&self, id: ValueId) -> usize {
        self.plans[self.current].buffer_of[id.0 as usize]
    }

    /// Values in the rows of this step.
    fn len(&self, id: ValueId) -> usize {
        let value = self.plan().value(id);
        value.rows.count(self.positions.len(), self.n_outputs) * value.cols
    }

    /// The rows of this step of a value.
    fn read_value(&self, id: ValueId) -> &[f32] {
        &self.buffers[self.buffer_of(id)][..self.len(id)]
    }

    fn vector(&self, id: WeightId) -> &[f32] {
        &self.plans[self.current].vectors[id.0 as usize]
    }

    /// The page table of a row's slot for a layer.
    fn table<'a>(&self, step: &Step<'a>, layer: KvLayerId, row: usize) -> &'a [u32] {
        step.page_table(self.slots[row], self.pages.group(layer), self.plan().kv.groups.len())
    }

    fn execute(&mut self, index: usize, step: &Step) {
        self.last = Some(index);
        match &self.command(index).op {
            Op::KvWrite { .. } => self.kv_write(index, step),
            Op::Argmax { x, out } => {
                if *out == self.plan().argmax {
                    let (x, cols) = (*x, self.plan().value(*x).cols);
                    let mut out = std::mem::take(&mut self.argmax);
                    select::argmax(self.read_value(x), cols, &mut out);
                    self.argmax = out;
                }
            }
            Op::Route { x, normalise, factor, scales, ids, weights } => {
                let route = experts::Route {
                    n_experts: self.plan().value(*x).cols,
                    normalise: *normalise,
                    factor: *factor,
                    scales: scales.map(|s| self.vector(s)),
                };
                let (k, n, m) = (self.plan().value(*ids).cols, self.len(*ids), self.len(*weights));
                let (x, at_ids, at_weights) = (*x, self.buffer_of(*ids), self.buffer_of(*weights));
                let mut ids = vec![0.0; n];
                let mut weights = vec![0.0; m];
                route.run(self.read_value(x), k, &mut ids, &mut weights);
                self.buffers[at_ids][..n].copy_from_slice(&ids);
                self.buffers[at_weights][..m].copy_from_slice(&weights);
            }
            op => {
                // What an Op writes is never in the buffer of what it reads, so its buffer can be taken out.
                let Some(id) = op.writes().first().copied() else { return };
                let (buffer, len) = (self.buffer_of(id), self.len(id));
                let mut out = std::mem::take(&mut self.buffers[buffer]);
                let mut transposed = std::mem::take(&mut self.transposed);
                self.compute(&self.command(index).op, step, &mut transposed, &mut out[..len]);
                self.transposed = transposed;
                self.buffers[buffer] = out;
            }
        }
    }

    /// Every Op that writes one f32 value.
    fn compute(&self, op: &Op, step: &Step, transposed: &mut [f32], out: &mut [f32]) {
        match op {
            Op::Embed { table, scale, .. } => {
                embed::embed(self.plan().weight(*table), step.tokens, *scale, out)
            }
            Op::RmsNorm { x, weight, eps, group, .. } => {
                norm::rms_norm(self.read_value(*x), weight.map(|w| self.vector(w)), *eps, *group, out);
            }
            Op::Linear { x, weight, bias, .. } => {
                let bias = bias.map(|b| self.vector(b));
                let transposed = &mut transposed[..out.len()];
                linear::linear(
                    self.n_threads,
                    self.read_value(*x),
                    self.plan().weight(*weight),
                    bias,
                    transposed,
                    out,
                );
            }
            Op::Rope { x, head_dim, n_dims, style, frequencies, scale, .. } => {
                let frequencies = self.vector(*frequencies);
                rope::rope(
                    self.read_value(*x),
                    &self.positions,
                    *head_dim,
                    *n_dims,
                    *style,
                    frequencies,
                    *scale,
                    out,
                );
            }
            Op::Attention { q, layer, n_heads, scale, softcap, window, sinks, .. } => {
                let op = attention::Attention {
                    layer: *layer,
                    kv: *self.plan().kv.layer(*layer),
                    n_heads: *n_heads,
                    scale: *scale,
                    softcap: *softcap,
                    window: *window,
                    sinks: sinks.map(|s| self.vector(s)),
                };
                let table = |row: usize| self.table(step, *layer, row);
                let q = self.read_value(*q);
                attention::attention(self.n_threads, &op, &self.pages, q, &self.positions, table, out);
            }
            Op::Activate { x, kind, .. } => element_wise::activation(*kind, self.read_value(*x), out),
            Op::Gate { gate, up, kind, .. } => {
                element_wise::gate(*kind, self.read_value(*gate), self.read_value(*up), out)
            }
            Op::Add { a, b, .. } => element_wise::add(self.read_value(*a), self.read_value(*b), out),
            Op::Scale { x, factor, .. } => element_wise::scale(*factor, self.read_value(*x), out),
            Op::Softcap { x, cap, .. } => element_wise::softcap(*cap, self.read_value(*x), out),
            Op::Columns { x, first, out: to } => {
                let (from, to) = (self.plan().value(*x).cols, self.plan().value(*to).cols);
                select::columns(self.read_value(*x), from, *first, to, out);
            }
            Op::ExpertLinear { x, ids, weight, .. } => {
                let k = self.plan().value(*ids).cols;
                experts::linear(
                    self.read_value(*x),
                    self.read_value(*ids),
                    k,
                    self.plan().weight(*weight),
                    out,
                );
            }
            Op::ExpertSum { x, weights, .. } => {
                experts::sum(
                    self.read_value(*x),
                    self.read_value(*weights),
                    self.plan().value(*weights).cols,
                    out,
                );
            }
            Op::SelectRows { x, .. } => {
                select::select_rows(self.read_value(*x), step.outputs, self.plan().value(*x).cols, out);
            }
            Op::LayerNorm { x, weight, bias, eps, .. } => {
                let bias = bias.map(|b| self.vector(b));
                encoder::layer_norm(self.read_value(*x), self.vector(*weight), bias, *eps, out);
            }
            Op::EmbedPositions { table, .. } => {
                embed::embed(self.plan().weight(*table), &self.positions, 1.0, out);
            }
            Op::SelfAttention { q, k, v, n_heads, scale, .. } => {
                let cols = self.plan().value(*q).cols;
                let shape = encoder::Heads { n_heads: *n_heads, head_dim: cols / n_heads, scale: *scale };
                let (q, k, v) = (self.read_value(*q), self.read_value(*k), self.read_value(*v));
                encoder::self_attention(self.n_threads, shape, q, k, v, step.spans, out);
            }
            Op::Pool { x, kind, .. } => {
                let cols = self.plan().value(*x).cols;
                encoder::pool(*kind, self.read_value(*x), cols, step.spans, step.outputs, out);
            }
            Op::Input { .. } => out.copy_from_slice(step.input),
            Op::Unfold { x, size, stride, out: to } => {
                let per_token = self.plan().value(*to).rows.count(1, 0);
                let cols = self.plan().value(*x).cols;
                input::unfold(self.read_value(*x), cols, *size, *stride, per_token, step.spans, out);
            }
            Op::CrossAttention { q, layer, n_heads, scale, .. } => {
                let op = self.cross(*layer, *n_heads, *scale);
                let table = |row: usize| self.table(step, *layer, row);
                cross::attention(self.n_threads, &op, &self.pages, self.read_value(*q), table, out);
            }
            Op::CrossScores { q, layer, n_heads, heads, scale, .. } => {
                let op = self.cross(*layer, *n_heads, *scale);
                let table = |row: usize| self.table(step, *layer, row);
                cross::scores(self.n_threads, &op, heads, &self.pages, self.read_value(*q), table, out);
            }
            Op::KvWrite { .. } | Op::Route { .. } | Op::Argmax { .. } | Op::Fused { .. } => {}
        }
    }

    fn cross(&self, layer: KvLayerId, n_heads: usize, scale: f32) -> cross::Cross {
        let kv = *self.plan().kv.layer(layer);
        cross::Cross { layer, kv, memory: kv.memory.unwrap_or(0), n_heads, scale }
    }

    fn kv_write(&mut self, index: usize, step: &Step) {
        let Op::KvWrite { k, v, layer } = self.command(index).op else { return };
        for (id, half) in [(k, Half::Keys), (v, Half::Values)] {
            let cols = self.plan().value(id).cols;
            for row in 0..self.slots.len() {
                let table = self.table(step, layer, row);
                let heads = &self.buffers[self.buffer_of(id)][row * cols..(row + 1) * cols];
                self.pages.write(layer, half, table, self.positions[row] as usize, heads);
            }
        }
    }
}

impl ReferenceProgram {
    fn check_page(&self, group: usize, page: u32) -> Result<()> {
        self.committed.check_page(group, page).map_err(failed)
    }
}

fn page_length(given: usize, expected: usize) -> Error {
    Error::Failed { device: NAME, reason: format!("{given} bytes for a KV page of {expected} bytes") }
}

impl Program for ReferenceProgram {
    fn submit(&mut self, step: &Step) -> Result<Ticket> {
        self.replay(step, self.n_commands_of(step), |_| ())
    }

    fn wait(&mut self, ticket: Ticket) -> Result<()> {
        self.outputs.wait(ticket).map_err(failed)
    }

    fn chosen(&self) -> &[Chosen] {
        self.outputs.chosen()
    }

    fn best(&self, output: usize) -> &[(u32, f32)] {
        self.outputs.best(output)
    }

    fn run_until(&mut self, step: &Step, last: usize) -> Result<()> {
        let commands = self.plans.get(step.plan).map_or(&[][..], |plan| &plan.commands);
        let n = commands.iter().take_while(|command| command.node <= last).count();
        if commands.last().is_none_or(|command| command.node < last) {
            return Err(failed(format!("node {last} of plan {}, which has fewer", step.plan)));
        }
        let tokens = self.begin(step)?;
        let resolved = Step { tokens: &tokens, ..*step };
        (0..n).for_each(|index| self.execute(index, &resolved));
        self.outputs.abandon(tokens);
        Ok(())
    }

    fn read(&self, value: ValueId) -> Option<Vec<f32>> {
        let last = self.last?;
        let plan = self.plan();
        let lifetime = self.plans[self.current].lifetimes.get(value.0 as usize).copied().flatten()?;
        // Its buffer is another value's before it is written and after it was read for the last time.
        if last < lifetime.first || last > lifetime.last {
            return None;
        }
        Some(match plan.value(value).dtype {
            DType::F32 => self.read_value(value).to_vec(),
            DType::U32 if value == plan.argmax => {
                self.argmax[..self.n_outputs].iter().map(|token| *token as f32).collect()
            }
            DType::U32 => self.read_value(value).iter().map(|id| id.to_bits() as f32).collect(),
        })
    }

    fn logits(&self) -> &[f32] {
        self.read_value(self.plan().logits)
    }

    fn kept(&self, index: usize) -> &[f32] {
        self.plan().kept.get(index).map_or(&[], |id| self.read_value(*id))
    }

    fn committed(&self) -> &CommittedPages {
        &self.committed
    }

    fn commit(&mut self, group: usize, pages: Range<u32>) -> Result<()> {
        self.committed.check_range(group, &pages, false).map_err(failed)?;
        self.committed.set(group, pages, true);
        Ok(())
    }

    /// The memory stays, filled with NaN: what reads a page that was given up shows, even once it is committed again.
    fn decommit(&mut self, group: usize, pages: Range<u32>) -> Result<()> {
        self.committed.check_range(group, &pages, true).map_err(failed)?;
        pages.clone().for_each(|page| self.pages.poison(group, page));
        self.committed.set(group, pages, false);
        Ok(())
    }

    fn copy_page(&mut self, group: usize, from: u32, to: u32) -> Result<()> {
        self.check_page(group, from)?;
        self.check_page(group, to)?;
        self.pages.copy(group, from, to);
        Ok(())
    }

    fn read_page(&self, group: usize, page: u32, bytes: &mut [u8]) -> Result<()> {
        self.check_page(group, page)?;
        match self.pages.page(group, page) {
            Some(found) if found.len() == bytes.len() => bytes.copy_from_slice(found),
            found => return Err(page_length(bytes.len(), found.map_or(0, <[u8]>::len))),
        }
        Ok(())
    }

    fn write_page(&mut self, group: usize, page: u32, bytes: &[u8]) -> Result<()> {
        self.check_page(group, page)?;
        match self.pages.page_mut(group, page) {
            Some(found) if found.len() == bytes.len() => found.copy_from_slice(bytes),
            found => return Err(page_length(bytes.len(), found.map_or(0, |page| page.len()))),
        }
        Ok(())
    }

    fn commands(&self, plan: usize, _n_rows: usize) -> Vec<CommandInfo> {
        let Some(Compiled { plan, commands, .. }) = self.plans.get(plan) else { return vec![] };
        let info = |Command { op, node, layer }: &Command| {
            let kernel = match op {
                Op::Linear { weight, .. } => {
                    format!("linear_{}", plan.weight(*weight).block.name().to_lowercase())
                }
                op => op.kind().to_string(),
            };
            CommandInfo { kernel, node: *node, layer: *layer, weight_bytes: plan.weight_bytes_of(op) }
        };
        commands.iter().map(info).collect()
    }

    fn run_timed(&mut self, step: &Step, timings: &mut Vec<Timing>) -> Result<()> {
        let begun = Instant::now();
        let mut start = 0.0;
        let ticket = self.replay(step, self.n_commands_of(step), |command| {
            let end = begun.elapsed().as_secs_f64();
            timings.push(Timing { command, start, duration: end - start });
            start = end;
        })?;
        self.wait(ticket)
    }
}

fn failed(reason: String) -> Error {
    Error::Failed { device: NAME, reason }
}

/// Columns of the widest logits.
fn n_logits(plans: &[Plan]) -> usize {
    plans.iter().map(|plan| plan.value(plan.logits).cols).max().unwrap_or(0)
}
