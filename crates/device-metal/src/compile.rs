//! From units to tables: which kernel runs each unit for how many rows, with which arguments and buffers.
//!
//! This file has what units share and the kernels of single Ops; `linear` has the projections, `attention` what reads KV pages,
//! `merged` the projection that joins what attention made in parts, `join` what a branch adds behind its norm, `experts` the mixtures.

pub mod attention;
pub mod experts;
mod join;
pub mod linear;
mod merged;

use crate::arguments::{
    ArgmaxArguments, ColumnsArguments, ElementArguments, NormArguments, PagesArguments, RopeArguments,
    TurnArguments, UnfoldArguments,
};
use crate::gpu::{Binding, Constant, Gpu, MAX_ARGUMENT_BYTES, Place};
use crate::kernels::{self, Kernel, constant};
use crate::layout::{Scratch, StepLayout, selections, value_bytes};
use crate::lower::{Join, Lowered, Unit};
use crate::profile::Profile;
use crate::table::{Command, Extent, Region, RowClass, Space, Table, When, region};
use crate::weights::{Tables, Weights};
use device::arena::{Arena, NO_PLACE};
use device::lower::Norm;
use device::{CommandInfo, Error, KvLayerId, Limits, Numerics, Op, Plan, Result, Rows, ValueId, WeightId};
use formats::Bytes;
use std::collections::HashMap;

/// Which of a program's buffers is which.
#[derive(Clone, Debug)]
pub struct Buffers {
    /// Activations.
    pub arena: u16,
    /// The step.
    pub step: u16,
    /// What no value has.
    pub scratch: u16,
    /// Numbers that kernels look up.
    pub tables: u16,
    /// By KV group.
    pub pools: Vec<u16>,
}

/// Writes the tables of a plan.
pub struct Compiler<'a, G: Gpu> {
    /// The GPU.
    pub gpu: &'a G,
    /// Its profile.
    pub profile: &'a Profile,
    /// Index of the plan.
    pub index: usize,
    /// The plan that was lowered.
    pub plan: &'a Plan,
    /// Its units.
    pub lowered: &'a [Lowered],
    /// Where its values lie.
    pub arena: &'a Arena,
    /// The limits.
    pub limits: &'a Limits,
    /// Where the parts of a step lie.
    pub step: StepLayout,
    /// Sizes of scratch.
    pub scratch: Scratch,
    /// The program's buffers.
    pub buffers: &'a Buffers,
    /// Where weights lie.
    pub weights: &'a Weights,
    /// What kernels look up.
    pub tables: &'a Tables,
}

/// Commands as they are made.
struct Draft<'a, G: Gpu> {
    /// Classes of rows of tokens and of outputs.
    tokens: RowClass,
    outputs: RowClass,
    commands: Vec<Command<G>>,
    infos: Vec<CommandInfo>,
    /// Values that are read where another lies.
    alias: HashMap<ValueId, ValueId>,
    /// The ids by which pairs were put in order last.
    ordered: Option<ValueId>,
    /// Index of the node, for the information.
    node: usize,
    /// The units behind the one that is made.
    rest: &'a [Lowered],
    /// Of these, how many the one that is made does too.
    n_done: usize,
    /// Where the head left the largest of each of its parts, and of how many.
    bests: Option<(Place, usize)>,
    /// What an attention left for the unit behind it to join.
    parts: Option<merged::Parts>,
    /// What a branch left for the projection behind it to add.
    join: Option<Join>,
    /// Norms that were made already, with the sum that they are of or for an earlier reader: where they are.
    normed: Vec<ValueId>,
    /// What experts left for the sum behind them to weigh and add: the parts, and how much each counts.
    expert_parts: Option<(ValueId, ValueId)>,
    compiler: &'a Compiler<'a, G>,
}

/// A dispatch as it is made.
struct Call {
    kernel: Kernel,
    constants: Vec<(u16, Constant)>,
    arguments: Vec<u8>,
    bindings: Vec<Binding>,
    reads: Vec<Region>,
    writes: Vec<Region>,
    threadgroup_bytes: u32,
    grid: [Extent; 3],
    threads: u32,
    /// Whether fewer threads do as well.
    any_threads: bool,
    weight_bytes: u64,
    when: When,
    name: Option<String>,
}

impl Call {
    /// A kernel with its arguments.
    fn new<A: bytemuck::Pod>(kernel: Kernel, arguments: &A) -> Call {
        let bytes = bytemuck::bytes_of(arguments).to_vec();
        debug_assert!(bytes.len() <= MAX_ARGUMENT_BYTES && bytes.len().is_multiple_of(16));
        Call {
            kernel,
            constants: vec![],
            arguments: bytes,
            bindings: vec![],
            reads: vec![],
            writes: vec![],
            threadgroup_bytes: 0,
            grid: [Extent::Fixed(1); 3],
            threads: 32,
            any_threads: false,
            weight_bytes: 0,
            when: When::Always,
            name: None,
        }
    }

    fn constant(mut self, index: u16, value: Constant) -> Call {
        self.constants.push((index, value));
        self
    }

    fn bool(self, index: u16, value: bool) -> Call {
        self.constant(index, Constant::Bool(value))
    }

    fn uint(self, index: u16, value: u32) -> Call {
        self.constant(index, Constant::UInt(value))
    }

    /// Bind what kernels never write: weights, and the step.
    fn bind(mut self, index: u8, place: Place) -> Call {
        self.bindings.push(Binding { index, place, len: 0 });
        self
    }

    fn read(mut self, index: u8, (place, bytes): (Place, usize)) -> Call {
        self.reads.push(region(place, bytes));
        self.bindings.push(Binding { index, place, len: bytes as u64 });
        self
    }

    /// Read a value, or bind anything where there is none.
    fn read_or_any(self, index: u8, value: Option<(Place, usize)>, anything: Place) -> Call {
        match value {
            Some(value) => self.read(index, value),
            None => self.bind(index, anything),
        }
    }

    fn write(mut self, index: u8, (place, bytes): (Place, usize)) -> Call {
        self.writes.push(region(place, bytes));
        self.bindings.push(Binding { index, place, len: bytes as u64 });
        self
    }

    /// Write a value, or bind anything where there is none.
    fn write_or_any(self, index: u8, value: Option<(Place, usize)>, anything: Place) -> Call {
        match value {
            Some(value) => self.write(index, value),
            None => self.bind(index, anything),
        }
    }

    fn grid(mut self, grid: [Extent; 3], threads: u32) -> Call {
        (self.grid, self.threads) = (grid, threads);
        self
    }

    /// A grid whose threadgroups may as well have fewer threads.
    fn flexible(mut self, grid: [Extent; 3], threads: u32) -> Call {
        self.any_threads = true;
        self.grid(grid, threads)
    }

    /// A thread for each of `per_row` numbers of a row.
    fn elements(self, rows: Rows, per_row: usize) -> Call {
        let extent = Extent::PerRow { rows, multiple: per_row as u32, divisor: ELEMENT_THREADS };
        self.grid([extent, Extent::Fixed(1), Extent::Fixed(1)], ELEMENT_THREADS)
    }
}

/// Threads of the threadgroups of element-wise kernels.
const ELEMENT_THREADS: u32 = 256;

/// Rows for each token as kernels want them; 0: for each output.
fn per_token(rows: Rows) -> u32 {
    rows.per_token().unwrap_or(0) as u32
}

/// One of a dimension.
const ONE: Extent = Extent::Fixed(1);

/// A threadgroup for each row.
fn each(rows: Rows) -> Extent {
    Extent::PerRow { rows, multiple: 1, divisor: 1 }
}

impl<'a, G: Gpu> Compiler<'a, G> {
    /// The table for steps of these classes.
    ///
    /// # Errors
    /// A shader does not compile, or something has no kernel.
    pub fn table(&self, tokens: RowClass, outputs: RowClass) -> Result<Table<G>> {
        let mut draft = Draft {
            tokens,
            outputs,
            commands: vec![],
            infos: vec![],
            alias: HashMap::new(),
            ordered: None,
            node: 0,
            rest: &[],
            n_done: 0,
            bests: None,
            parts: None,
            join: None,
            normed: vec![],
            expert_parts: None,
            compiler: self,
        };
        if tokens == RowClass::One {
            draft.alias = selections(self.plan).into_iter().map(|(x, out)| (out, x)).collect();
        }
        for (index, Lowered { node, unit, .. }) in self.lowered.iter().enumerate() {
            if draft.n_done > 0 {
                draft.n_done -= 1;
                continue;
            }
            draft.node = *node;
            draft.rest = &self.lowered[index + 1..];
            draft.unit(unit)?;
        }
        Ok(Table::new(draft.commands, draft.infos, draft.bests))
    }

    /// Whether a row's sums must not depend on what shares its step.
    fn is_deterministic(&self) -> bool {
        self.limits.numerics == Numerics::Deterministic
    }

    fn unsupported(&self, what: String, hint: &str) -> Error {
        Error::Unsupported { device: G::NAME, what, hint: hint.to_owned() }
    }

    /// Whether one Op reads a value, and nobody else.
    fn is_read_once(&self, id: ValueId) -> bool {
        let n_readers = self.plan.primitives().flat_map(Op::reads).filter(|read| *read == id).count();
        n_readers == 1 && self.plan.results().all(|result| result != id)
    }

    /// The place of bytes of a weight.
    fn bytes_of(&self, bytes: &Bytes) -> Result<Place> {
        self.weights.place(bytes).ok_or_else(|| Error::Failed {
            device: G::NAME,
            reason: format!("a weight of {} bytes has no place", bytes.len()),
        })
    }

    /// The place of a weight that is no stack.
    fn weight(&self, id: WeightId) -> Result<Place> {
        self.bytes_of(&self.plan.weight(id).data)
    }

    /// A weight's place, or anything if there is none.
    fn weight_or_any(&self, id: Option<WeightId>) -> Result<Place> {
        id.map_or(Ok(self.anything()), |id| self.weight(id))
    }

    /// What is bound where a kernel's constants leave a parameter out.
    fn anything(&self) -> Place {
        Place { buffer: self.buffers.step, offset: 0 }
    }

    fn step_place(&self, offset: usize) -> Place {
        Place { buffer: self.buffers.step, offset: offset as u64 }
    }

    fn pages(&self, layer: KvLayerId) -> PagesArguments {
        let (kv, limits) = (&self.plan.kv, self.limits);
        let (group, place) = kv.group_of(layer);
        let bytes = |id: &KvLayerId| kv.layer_page_bytes(*id, limits.kv_type, limits.page_len);
        let offset = kv.groups[group].layers[..place].iter().map(bytes).sum();
        let page_bytes = kv.page_bytes(group, limits.kv_type, limits.page_len);
        PagesArguments::new(page_bytes, offset, group, limits.page_len, kv.layer(layer))
    }

    fn pool(&self, layer: KvLayerId) -> Place {
        Place { buffer: self.buffers.pools[self.plan.kv.group_of(layer).0], offset: 0 }
    }

    fn cols(&self, id: ValueId) -> usize {
        self.plan.value(id).cols
    }

    fn rows(&self, id: ValueId) -> Rows {
        self.plan.value(id).rows
    }
}

/// All pages of a layer.
fn kv_region(layer: KvLayerId) -> Region {
    Region { space: Space::Kv(layer.0), bytes: 0..u64::MAX }
}

impl<G: Gpu> Draft<'_, G> {
    fn push(&mut self, call: Call) -> Result<()> {
        let pipeline = self.compiler.gpu.pipeline(&call.kernel, &call.constants)?;
        let most = self.compiler.gpu.max_threads(&pipeline) / 32 * 32;
        if call.threads > most && !call.any_threads {
            let what = format!("a threadgroup of {} threads for {}", call.threads, call.kernel.function);
            let hint =
                format!("this GPU runs at most {most} of them; please report it, and use --device cpu");
            return Err(self.compiler.unsupported(what, &hint));
        }
        let layer = self.compiler.plan.nodes.get(self.node).and_then(|n| n.layer);
        let kernel = call.name.unwrap_or(call.kernel.function);
        self.infos.push(CommandInfo { kernel, node: self.node, layer, weight_bytes: call.weight_bytes });
        self.commands.push(Command {
            pipeline,
            bindings: call.bindings.into(),
            arguments: call.arguments.into(),
            threadgroup_bytes: call.threadgroup_bytes.next_multiple_of(16),
            grid: call.grid,
            threads: [call.threads.min(most), 1, 1],
            when: call.when,
            reads: call.reads,
            writes: call.writes,
        });
        Ok(())
    }

    /// The class of the rows of a value.
    fn class(&self, id: ValueId) -> RowClass {
        match self.compiler.rows(id).per_token() {
            Some(k) => self.tokens.times(k),
            None => self.outputs,
        }
    }

    /// Where a value lies, and its bytes.
    fn value(&self, id: ValueId) -> (Place, usize) {
        let id = self.alias.get(&id).copied().unwrap_or(id);
        let offset = match self.compiler.arena.offset[id.0 as usize] {
            NO_PLACE => 0,
            offset => offset,
        };
        let place = Place { buffer: self.compiler.buffers.arena, offset: offset as u64 };
        (place, value_bytes(self.compiler.plan.value(id), self.compiler.limits))
    }

    /// Where a value lies from a column of its first row on, and its bytes from there.
    fn columns_from(&self, id: ValueId, first: usize) -> (Place, usize) {
        let (place, bytes) = self.value(id);
        (Place { offset: place.offset + 4 * first as u64, ..place }, bytes - 4 * first)
    }

    fn unit(&mut self, unit: &Unit) -> Result<()> {
        match unit {
            Unit::Projection(p) => self.projection(p),
            Unit::Gated { product, by } => self.gated(product, by),
            Unit::RowGated { product, by } => self.row_gated(product, by),
            Unit::Join(join) => self.join(join),
            Unit::QkRopeKv(heads) => self.qk_rope_kv(heads),
            Unit::QRope(queries) => self.q_rope(queries),
            Unit::ExpertGateUp { .. } | Unit::ExpertDownSum { .. } => self.expert_unit(unit),
            Unit::Primitive(op) => self.primitive(op),
        }
    }

    fn step_call<A: bytemuck::Pod>(&self, file: &'static str, arguments: &A) -> Call {
        Call::new(Kernel::of(file), arguments).bind(1, self.compiler.step_place(0))
    }

    fn element(&self, file: &'static str, x: ValueId, factor: f32) -> Call {
        let (rows, cols) = (self.compiler.rows(x), self.compiler.cols(x));
        let args = ElementArguments { per_token: per_token(rows), cols: cols as u32, factor, reserved: 0 };
        self.step_call(file, &args).elements(rows, cols)
    }

    fn rms_norm(&mut self, x: ValueId, norm: Norm, group: usize, out: ValueId) -> Result<()> {
        let c = self.compiler;
        let (rows, cols) = (c.rows(x), c.cols(x));
        let args = NormArguments {
            per_token: per_token(rows),
            cols: cols as u32,
            group: group as u32,
            eps: norm.eps,
        };
        let call = self
            .step_call("rms_norm.metal", &args)
            .bool(constant::HAS_WEIGHT, norm.weight.is_some())
            .read(2, self.value(x))
            .write(3, self.value(out))
            .bind(4, c.weight_or_any(norm.weight)?);
        let grid = [Extent::Fixed((cols / group.max(1)) as u32), each(rows), ONE];
        self.push(call.flexible(grid, c.profile.norm_threads(group)))
    }

    /// The norm of whole rows, unless it was made.
    fn norm_once(&mut self, x: ValueId, norm: Norm, out: ValueId) -> Result<()> {
        if self.normed.contains(&out) {
            return Ok(());
        }
        self.normed.push(out);
        self.rms_norm(x, norm, self.compiler.cols(x), out)
    }

    fn primitive(&mut self, op: &Op) -> Result<()> {
        let c = self.compiler;
        match op {
            Op::Embed { table, scale, out } => self.embed(*table, *scale, c.step.tokens, *out),
            Op::EmbedPositions { table, out } => self.embed(*table, 1.0, c.step.positions, *out),
            Op::RmsNorm { x, weight, eps, group, out } => {
                self.rms_norm(*x, Norm { weight: *weight, eps: *eps }, *group, *out)
            }
            Op::LayerNorm { x, weight, bias, eps, out } => {
                let (rows, cols) = (c.rows(*x), c.cols(*x));
                let (cols32, per_token) = (cols as u32, per_token(rows));
                let args = NormArguments { per_token, cols: cols32, group: cols32, eps: *eps };
                let call = self
                    .step_call("layer_norm.metal", &args)
                    .bool(constant::HAS_BIAS, bias.is_some())
                    .read(2, self.value(*x))
                    .write(3, self.value(*out))
                    .bind(4, c.weight(*weight)?)
                    .bind(5, c.weight_or_any(*bias)?);
                self.push(call.flexible([ONE, each(rows), ONE], c.profile.norm_threads(cols)))
            }
            Op::Rope { x, head_dim, n_dims, style, frequencies, scale, out } => {
                let n_heads = c.cols(*x) / head_dim;
                let turn = TurnArguments {
                    n_heads: n_heads as u32,
                    n_dims: *n_dims as u32,
                    scale: *scale,
                    eps: 0.0,
                };
                let args = RopeArguments { head_dim: *head_dim as u32, turn, ..Default::default() };
                let call = self
                    .step_call("rope.metal", &args)
                    .uint(constant::ROPE, kernels::rope(Some(*style)))
                    .read(2, self.value(*x))
                    .write(3, self.value(*out))
                    .bind(4, c.step_place(c.step.positions))
                    .bind(5, c.weight(*frequencies)?);
                self.push(call.elements(c.rows(*x), n_heads * head_dim.div_ceil(2)))
            }
            Op::Activate { x, kind, out } => {
                let call = self
                    .element("activate.metal", *x, 1.0)
                    .uint(constant::ACTIVATION, kernels::activation(*kind))
                    .read(2, self.value(*x))
                    .write(3, self.value(*out));
                self.push(call)
            }
            Op::Gate { gate, up, kind, out } => {
                let call = self
                    .element("gate.metal", *gate, 1.0)
                    .uint(constant::ACTIVATION, kernels::activation(*kind))
                    .read(2, self.value(*gate))
                    .read(3, self.value(*up))
                    .write(4, self.value(*out));
                self.push(call)
            }
            Op::Add { a, b, out } => {
                let call = self.element("add.metal", *a, 1.0);
                self.push(call.read(2, self.value(*a)).read(3, self.value(*b)).write(4, self.value(*out)))
            }
            Op::Scale { x, factor, out } => {
                let call = self.element("scale.metal", *x, *factor);
                self.push(call.read(2, self.value(*x)).write(3, self.value(*out)))
            }
            Op::Softcap { x, cap, out } => {
                let call = self.element("softcap.metal", *x, *cap);
                self.push(call.read(2, self.value(*x)).write(3, self.value(*out)))
            }
            Op::Columns { x, first, out } => {
                let (rows, from, to) = (c.rows(*x), c.cols(*x), c.cols(*out));
                let args = ColumnsArguments {
                    per_token: per_token(rows),
                    from: from as u32,
                    first: *first as u32,
                    to: to as u32,
                };
                let call = self.step_call("columns.metal", &args).elements(rows, to);
                self.push(call.read(2, self.value(*x)).write(3, self.value(*out)))
            }
            Op::Route { .. } => self.route(op),
            Op::SelectRows { out, .. } if self.alias.contains_key(out) => Ok(()),
            Op::SelectRows { x, out } => {
                let call = self
                    .element("select_rows.metal", *out, 1.0)
                    .read(2, self.value(*x))
                    .write(3, self.value(*out))
                    .bind(4, c.step_place(c.step.outputs));
                self.push(call)
            }
            Op::Pool { x, kind, out } => {
                let call = self
                    .element("pool.metal", *out, 1.0)
                    .uint(constant::POOLING, kernels::pooling(*kind))
                    .read(2, self.value(*x))
                    .write(3, self.value(*out))
                    .bind(4, c.step_place(c.step.outputs))
                    .bind(5, c.step_place(c.step.row_spans))
                    .bind(6, c.step_place(c.step.spans));
                self.push(call)
            }
            Op::Input { out } => {
                let call = self
                    .element("input.metal", *out, 1.0)
                    .bind(2, c.step_place(c.step.input))
                    .write(3, self.value(*out));
                self.push(call)
            }
            Op::Unfold { x, size, stride, out } => {
                let rows = c.rows(*out);
                let args = UnfoldArguments {
                    per_token: per_token(rows),
                    cols: c.cols(*x) as u32,
                    size: *size as u32,
                    stride: *stride as u32,
                };
                let call = self
                    .step_call("unfold.metal", &args)
                    .read(2, self.value(*x))
                    .write(3, self.value(*out))
                    .bind(4, c.step_place(c.step.row_spans))
                    .bind(5, c.step_place(c.step.spans))
                    .elements(rows, c.cols(*out));
                self.push(call)
            }
            Op::Argmax { x, out } => {
                let n = self.bests.map_or(c.cols(*x), |(_, n)| n);
                let args = ArgmaxArguments { cols: n as u32, ..Default::default() };
                let call = self
                    .step_call("argmax.metal", &args)
                    .bool(constant::BESTS, self.bests.is_some())
                    .bool(constant::CHAINED, false)
                    .read(2, self.value(*x))
                    .write(3, self.value(*out));
                let mut call = match self.bests {
                    Some((place, n)) => call.read(4, (place, n * linear::BEST_BYTES)),
                    None => call.bind(4, c.anything()),
                };
                for index in 5..10 {
                    call = call.bind(index, c.anything());
                }
                call.when = When::Argmax;
                let threads = c.profile.argmax_threads.min(n.next_multiple_of(32) as u32);
                self.push(call.flexible([each(Rows::Outputs), ONE, ONE], threads))
            }
            Op::KvWrite { k, v, layer } => self.kv_write(*k, *v, *layer),
            Op::Attention { .. }
            | Op::SelfAttention { .. }
            | Op::CrossAttention { .. }
            | Op::CrossScores { .. } => self.attention(op),
            Op::ExpertLinear { .. } | Op::ExpertSum { .. } => self.expert_op(op),
            Op::Linear { .. } | Op::Fused { .. } => {
                Err(Error::Failed { device: G::NAME, reason: format!("{} was not lowered", op.kind()) })
            }
        }
    }
}
