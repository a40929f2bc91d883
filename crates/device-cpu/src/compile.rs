//! From units to the two command tables, all pointers resolved.
//!
//! Past 600 lines: every Op is an arm of one match that fills its kernel's parameters.

use crate::command::Command;
use crate::isa::Isa;
use crate::kernels::attention::pages::LayerPages;
use crate::kernels::attention::tile::Shape;
use crate::kernels::linear::{ActivationKind, LinearKernel, WeightRows, linear_kernel};
use crate::kernels::projection::{Epilogue, Matrix};
use crate::kernels::rope::Turn;
use crate::kernels::{
    activate, activation_rows, adapters, add, argmax, attention, clamped, columns, cross_attention,
    cross_scores, elementwise, embed, embed_positions, expert_bias, expert_groups, expert_linear, expert_sum,
    gate, gate_clamped, input, join, kv_write, layer_norm, ordinals, pool, projection, qk_rope_kv,
    recurrence, rms_norm, rope, route, scale, select_rows, self_attention, short_conv, softcap, unfold,
};
use crate::layout::{ExpertSizes, Layout, ProjectionSizes, schedule_shape};
use crate::lower::{NodeUnit, RopeKey, Unit, out_of};
use crate::weights::Interleaved;
use device::key_bias::KnownKeys;
use device::{CommandInfo, KvLayerId, Limits, Numerics, Op, Plan, ValueId, WeightId, WeightPart};
use device_lower::arena::NO_PLACE;
use device_lower::lower::{HeadChain, Norm, NormAdd, Projection, QkRopeKv, RopeOf, Tail};
use std::ptr::{null, null_mut};
use std::sync::atomic::AtomicUsize;
use weights::BlockType;

/// Where the buffers of a program lie.
#[derive(Clone)]
pub struct Addresses {
    /// Activations.
    pub arena: *mut u8,
    /// Prepared rows, by [`ActivationKind`].
    pub rows: [*mut u8; 3],
    /// The tables of Rope, in the layout's order.
    pub rope_tables: Vec<*mut f32>,
    /// Partials of split attention.
    pub partials: *mut f32,
    /// [`Layout::arrived`] counters.
    pub arrived: *const AtomicUsize,
    /// What each worker found for argmax.
    pub found: *mut argmax::Found,
    /// Rows and experts in the order of the experts.
    pub groups: expert_groups::Groups,
    /// The matrices of all experts of the plan, in the layout's order.
    pub experts: *const WeightRows,
    /// `(n_states, state_len)`
    pub states: *mut f32,
    /// By KV group.
    pub pools: Vec<*mut u8>,
    /// By layer: what its keys are stored without; null, or no layers: nothing.
    pub known: Vec<*const KnownKeys>,
}

/// A table and what its commands are.
#[derive(Default)]
pub struct Table {
    /// Replayed in order.
    pub commands: Vec<Command>,
    /// Of each command.
    pub infos: Vec<CommandInfo>,
}

/// For which steps a table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowsOfStep {
    /// Steps of one row.
    One,
    /// All others.
    Many,
}

/// The fields of an ExpertLinear.
#[derive(Clone, Copy)]
struct Experts {
    x: ValueId,
    ids: ValueId,
    weight: WeightId,
    out: ValueId,
}

/// What stands in the buffers that experts share when a command begins.
#[derive(Default)]
struct Ordered {
    /// The ids by which pairs are ordered.
    by: Option<ValueId>,
    /// Whose rows were brought into that order, in parts of how many columns, and in which form.
    gathered: Option<(ValueId, usize, ActivationKind)>,
}

/// Writes tables.
pub struct Compiler<'a> {
    /// The plan that was lowered.
    pub plan: &'a Plan,
    /// The limits.
    pub limits: &'a Limits,
    /// The sizes.
    pub layout: &'a Layout,
    /// The buffers.
    pub at: &'a Addresses,
    /// What is not read where it lies in the file.
    pub weights: &'a Interleaved,
    /// For which instruction set.
    pub isa: Isa,
}

impl Compiler<'_> {
    /// The table for some steps.
    pub fn table(&self, lowered: &[NodeUnit], rows: RowsOfStep) -> Table {
        let mut table = Table::default();
        for (index, (key, _)) in self.layout.rope_tables.iter().enumerate() {
            let params = rope::TableParams {
                frequencies: self.weight_f32(key.frequencies),
                n_dims: key.n_dims,
                scale: f32::from_bits(key.scale),
                table: self.at.rope_tables[index],
            };
            // Nobody reads it before the first layer's projections have met.
            let command = Command::new(rope::table, params).without_sync();
            self.push(&mut table, 0, command, "rope_table".into(), 0);
        }
        let mut ordered = Ordered::default();
        for NodeUnit { node, unit } in lowered {
            match unit {
                Unit::Primitive(Op::ExpertLinear { x, ids, weight, out }) => {
                    let op = Experts { x: *x, ids: *ids, weight: *weight, out: *out };
                    self.experts(&mut table, *node, op, rows, &mut ordered);
                }
                Unit::Projection(p) => {
                    // It prepares rows of its own.
                    ordered.gathered = None;
                    self.projection(&mut table, *node, p, rows);
                }
                Unit::Primitive(op) => self.primitive(&mut table, *node, op),
                Unit::NormAdd(NormAdd { x, norm, residual, out }) => {
                    let params = rms_norm::Params {
                        x: self.value(*x),
                        weight: self.weight_or_null(norm.weight),
                        n_weights: 1,
                        eps: norm.eps,
                        group: self.plan.value(*x).cols,
                        cols: self.plan.value(*x).cols,
                        rows: self.plan.value(*x).rows,
                        residual: self.value(*residual),
                        out: self.value(*out),
                    };
                    let command = Command::new(rms_norm::rms_norm(self.isa), params);
                    self.push(&mut table, *node, command, "rms_norm + add".into(), 0);
                }
                Unit::QkRopeKv(unit) => self.qk_rope_kv(&mut table, *node, unit),
            }
        }
        table
    }

    fn push(&self, table: &mut Table, node: usize, command: Command, kernel: String, weight_bytes: u64) {
        let layer = self.plan.nodes.get(node).and_then(|n| n.layer);
        table.commands.push(command);
        table.infos.push(CommandInfo { kernel, node, layer, weight_bytes });
    }

    /// `(rows, cols)`; null for a value that is nowhere.
    fn value(&self, id: ValueId) -> *mut f32 {
        match self.layout.arena.offset[id.0 as usize] {
            NO_PLACE => null_mut(),
            offset => self.at.arena.wrapping_add(offset).cast(),
        }
    }

    /// An F32 vector.
    fn weight_f32(&self, id: WeightId) -> *const f32 {
        self.weights.bytes(&self.plan.weight(id).data).as_ptr().cast()
    }

    /// The rows of a matrix or a table as its kernel reads them.
    fn matrix(&self, id: WeightId) -> WeightRows {
        let weight = self.plan.weight(id);
        self.weights.rows(weight, &weight.data, &weight.planes, weight.n_rows())
    }

    /// The kernels of a matrix.
    fn linear_kernel(&self, block: BlockType, n_cols: usize) -> LinearKernel {
        linear_kernel(block, n_cols, self.isa).with(self.limits.numerics)
    }

    /// How many rows a value has in such steps: several, if it has several for each token.
    fn rows_of(&self, id: ValueId, rows: RowsOfStep) -> RowsOfStep {
        if self.plan.value(id).rows.count(1, 1) == 1 { rows } else { RowsOfStep::Many }
    }

    fn weight_or_null(&self, id: Option<WeightId>) -> *const f32 {
        id.map_or(null(), |id| self.weight_f32(id))
    }

    fn pages(&self, layer: KvLayerId) -> LayerPages {
        let (kv, limits) = (&self.plan.kv, self.limits);
        let (group, place) = kv.group_of(layer);
        let bytes = |id: &KvLayerId| kv.layer_page_bytes(*id, limits.kv_type, limits.page_len);
        LayerPages {
            pool: self.at.pools[group],
            page_bytes: kv.page_bytes(group, limits.kv_type, limits.page_len),
            offset: kv.groups[group].layers[..place].iter().map(bytes).sum(),
            group,
            n_kv_heads: kv.layer(layer).n_kv_heads,
            n_halves: kv.layer(layer).n_halves(limits.kv_type),
            head_dim: kv.layer(layer).head_dim,
            page_len: limits.page_len,
            kind: limits.kv_type,
            known: self.at.known.get(layer.0 as usize).copied().unwrap_or(null()),
        }
    }

    /// The shape of query heads over a memory.
    fn memory_shape(&self, layer: KvLayerId, n_heads: usize, scale: f32) -> Shape {
        let pages = self.pages(layer);
        Shape {
            pages,
            n_group: n_heads / pages.n_kv_heads,
            scale,
            softcap: 0.0,
            window: usize::MAX,
            chunked: false,
            cols: n_heads * pages.head_dim,
        }
    }

    fn turn(&self, rope: Option<RopeOf>) -> Turn {
        let table_of = |key: RopeKey| self.layout.rope_tables.iter().position(|(k, _)| *k == key);
        match rope.and_then(|r| Some((r, table_of(RopeKey::of(self.plan, r))?))) {
            Some((r, index)) => Turn { table: self.at.rope_tables[index], n_dims: r.n_dims, style: r.style },
            None => Turn { table: null(), n_dims: 0, style: device::RopeStyle::Half },
        }
    }

    fn chain(&self, chain: &HeadChain, head_dim: usize) -> qk_rope_kv::Chain {
        let norm = chain.norm.unwrap_or(Norm { weight: None, eps: 0.0 });
        qk_rope_kv::Chain {
            x: self.value(chain.x),
            n_heads: self.plan.value(chain.x).cols / head_dim,
            norm: chain.norm.is_some(),
            weight: self.weight_or_null(norm.weight),
            eps: norm.eps,
            turn: self.turn(chain.rope),
            out: out_of(chain).map_or(null_mut(), |id| self.value(id)),
        }
    }

    fn qk_rope_kv(&self, table: &mut Table, node: usize, unit: &QkRopeKv) {
        let QkRopeKv { q, k, v, layer, .. } = unit;
        let pages = self.pages(*layer);
        let k_chain = self.chain(k, pages.head_dim);
        let none = qk_rope_kv::Chain { n_heads: 0, norm: false, ..k_chain };
        let q_chain = q.as_ref().map_or(none, |q| self.chain(q, pages.head_dim));
        let params = qk_rope_kv::Params { q: q_chain, k: k_chain, v: self.value(*v), pages };
        let name = if k.norm.is_some() { "qk_norm + rope + kv_write" } else { "rope + kv_write" };
        self.push(table, node, Command::new(qk_rope_kv::qk_rope_kv(self.isa), params), name.into(), 0);
    }

    fn projection(&self, table: &mut Table, node: usize, p: &Projection, rows: RowsOfStep) {
        let rows = self.rows_of(p.x, rows);
        let sizes = ProjectionSizes::new(self.plan, p, self.limits, self.layout.n_workers);
        let norm = p.norm.map_or(Norm { weight: None, eps: 0.0 }, |(norm, _)| norm);
        let source = activation_rows::Source {
            x: self.value(p.x),
            cols: sizes.cols,
            rows: self.plan.value(p.x).rows,
            norm: p.norm.is_some(),
            weight: self.weight_or_null(norm.weight),
            eps: norm.eps,
            isa: self.isa,
        };
        let out_of = |index: usize| match p.tail {
            Tail::Store => p.matrices[index].out,
            Tail::Add { out, .. } | Tail::Gate { out, .. } => out,
        };
        let matrix = |index: usize| {
            let of = p.matrices[index];
            let weight = self.plan.weight(of.weight);
            Matrix {
                weight: self.matrix(of.weight),
                bias: self.weight_or_null(of.bias),
                out: self.value(out_of(index)),
                n_out: weight.n_rows(),
                multiply: self.linear_kernel(weight.block, sizes.cols).multiply(),
            }
        };
        let mut matrices = [matrix(0); 3];
        for (index, slot) in matrices.iter_mut().enumerate().take(p.matrices.len()) {
            *slot = matrix(index);
        }
        let epilogue = match p.tail {
            Tail::Store => Epilogue::Store,
            Tail::Add { residual, .. } => Epilogue::Add { residual: self.value(residual) },
            Tail::Gate { kind, .. } => Epilogue::Gate { kind },
        };
        // Where prepared rows go, if a matrix reads such; f32 rows that need no work are read where they are.
        let mut prepared = [null_mut(); 3];
        for m in &matrices[..p.matrices.len()] {
            let kind = m.multiply.activation;
            if kind != ActivationKind::F32 || p.norm.is_some() {
                prepared[kind as usize] = self.at.rows[kind as usize];
            }
        }
        let mut read = prepared.map(<*mut u8>::cast_const);
        if p.norm.is_none() {
            read[ActivationKind::F32 as usize] = source.x.cast();
        }
        let params = projection::Params {
            source,
            matrices,
            n_matrices: p.matrices.len(),
            epilogue,
            rows: read,
            block: if rows == RowsOfStep::One { sizes.piece_rows } else { sizes.row_block },
        };
        let (kernel, suffix) = match rows {
            RowsOfStep::One => (projection::one_row(self.isa), "1 row"),
            RowsOfStep::Many => {
                if prepared.iter().any(|rows| !rows.is_null()) {
                    let params = activation_rows::Params { source, rows: prepared };
                    let command = Command::new(activation_rows::activation_rows(self.isa), params);
                    let name = if p.norm.is_some() { "rms_norm + quantise" } else { "quantise" };
                    self.push(table, node, command, name.into(), 0);
                }
                (projection::many_rows(self.isa), "many rows")
            }
        };
        let bytes = p.matrices.iter().map(|m| self.plan.weight_bytes(m.weight)).sum();
        let name = format!("{} ({suffix})", self.projection_name(p, rows));
        self.push(table, node, Command::new(kernel, params), name, bytes);
    }

    fn experts(&self, table: &mut Table, node: usize, op: Experts, rows: RowsOfStep, ordered: &mut Ordered) {
        let rows = self.rows_of(op.x, rows);
        let (weight, k) = (self.plan.weight(op.weight), self.plan.value(op.ids).cols);
        let sizes = ExpertSizes::new(self.plan, op.x, op.ids, op.weight, self.limits, self.layout.n_workers);
        let kernel = self.linear_kernel(weight.block, sizes.n_in);
        let ids: *const u32 = self.value(op.ids).cast_const().cast();
        let (groups, of_rows, own) = (self.at.groups, self.plan.value(op.x).rows, sizes.own);
        let x = self.value(op.x);
        let kind = kernel.activation;
        let prepared = self.at.rows[kind as usize];
        let params = expert_linear::Params {
            x,
            own,
            ids,
            k,
            matrices: self.at.experts.wrapping_add(self.layout.experts_offset(op.weight)),
            n_experts: sizes.n_experts,
            n_in: sizes.n_in,
            n_out: sizes.n_out,
            out: self.value(op.out),
            rows: of_rows,
            multiply: kernel.multiply(),
            prepared,
            groups,
            block: if rows == RowsOfStep::One { sizes.piece_rows } else { sizes.row_block },
            isa: self.isa,
        };
        let part = weight.parts.first().map_or(0, WeightPart::n_bytes);
        if rows == RowsOfStep::One {
            let name = format!("expert_{} ({k} of {}, 1 row)", kernel.name, sizes.n_experts);
            self.push(table, node, Command::new(expert_linear::one_row, params), name, part * k as u64);
            return;
        }
        if ordered.by.replace(op.ids) != Some(op.ids) {
            ordered.gathered = None;
            let params = expert_groups::Params { ids, k, n_experts: sizes.n_experts, rows: of_rows, groups };
            self.push(table, node, Command::new(expert_groups::group, params), "group experts".into(), 0);
        }
        let rows = (op.x, sizes.n_in, kind);
        if ordered.gathered.replace(rows) != Some(rows) {
            let gather = expert_groups::GatherParams {
                x,
                n_in: sizes.n_in,
                k,
                own,
                rows: of_rows,
                groups,
                kind,
                out: prepared,
                isa: self.isa,
            };
            self.push(
                table,
                node,
                Command::new(expert_groups::gather, gather),
                "gather experts' rows".into(),
                0,
            );
        }
        let name = format!("expert_{} ({k} of {}, many rows)", kernel.name, sizes.n_experts);
        let bytes = part * sizes.n_experts as u64;
        self.push(table, node, Command::new(expert_linear::many_rows, params), name, bytes);
    }

    /// `rms_norm + linear_q4_1 x3`
    fn projection_name(&self, p: &Projection, rows: RowsOfStep) -> String {
        let mut names: Vec<&str> = Vec::new();
        for m in &p.matrices {
            let weight = self.plan.weight(m.weight);
            names.push(linear_kernel(weight.block, weight.n_cols(), self.isa).name);
        }
        let before = if p.norm.is_some() && rows == RowsOfStep::One { "rms_norm + " } else { "" };
        let after = match p.tail {
            Tail::Store => "",
            Tail::Add { .. } => " + add",
            Tail::Gate { .. } => " + gate",
        };
        let matrices = match names.as_slice() {
            [one] => (*one).to_owned(),
            [first, rest @ ..] if rest.iter().all(|n| n == first) => format!("{first} x{}", names.len()),
            _ => names.join(", "),
        };
        format!("{before}{matrices}{after}")
    }

    fn primitive(&self, table: &mut Table, node: usize, op: &Op) {
        let isa = self.isa;
        let element_wise = |a: ValueId, b: ValueId, out: ValueId, factor: f32| elementwise::Params {
            a: self.value(a),
            b: self.value(b),
            out: self.value(out),
            cols: self.plan.value(a).cols,
            rows: self.plan.value(a).rows,
            factor,
        };
        let mut bytes = 0;
        let (command, name) = match op {
            Op::Embed { table, scale, out } => {
                let weight = self.plan.weight(*table);
                bytes = weight.n_bytes_of_row() as u64;
                let params = embed::Params {
                    table: self.matrix(*table),
                    cols: weight.n_cols(),
                    scale: *scale,
                    out: self.value(*out),
                };
                (Command::new(embed::embed, params), "embed")
            }
            Op::RmsNorm { x, weight, eps, group, out } => {
                let params = rms_norm::Params {
                    x: self.value(*x),
                    weight: self.weight_or_null(*weight),
                    n_weights: weight.map_or(1, |weight| self.plan.weight(weight).n_cols() / group),
                    eps: *eps,
                    group: *group,
                    cols: self.plan.value(*x).cols,
                    rows: self.plan.value(*x).rows,
                    residual: null(),
                    out: self.value(*out),
                };
                (Command::new(rms_norm::rms_norm(isa), params), "rms_norm")
            }
            Op::Rope { x, head_dim, n_dims, style, frequencies, scale, out } => {
                let rope =
                    RopeOf { frequencies: *frequencies, n_dims: *n_dims, style: *style, scale: *scale };
                let params = rope::Params {
                    x: self.value(*x),
                    out: self.value(*out),
                    cols: self.plan.value(*x).cols,
                    head_dim: *head_dim,
                    turn: self.turn(Some(rope)),
                };
                (Command::new(rope::rope(isa), params), "rope")
            }
            Op::KvWrite { k, v, layer } => {
                let params =
                    kv_write::Params { k: self.value(*k), v: self.value(*v), pages: self.pages(*layer) };
                (Command::new(kv_write::kv_write(isa), params), "kv_write")
            }
            Op::Attention { q, layer, n_heads, scale, softcap, window, chunked, both_ways, sinks, out } => {
                let pages = self.pages(*layer);
                let schedule =
                    schedule_shape(self.plan, *layer, *n_heads, (*window, *chunked, *both_ways), *out);
                // The layout has the shape of every Attention of its plan.
                let schedule = self.layout.attention.iter().position(|shape| *shape == schedule).unwrap_or(0);
                let params = attention::Params {
                    q: self.value(*q),
                    out: self.value(*out),
                    sinks: self.weight_or_null(*sinks),
                    shape: Shape {
                        pages,
                        n_group: n_heads / pages.n_kv_heads,
                        scale: *scale,
                        softcap: softcap.unwrap_or(0.0),
                        window: window.unwrap_or(usize::MAX),
                        chunked: *chunked,
                        cols: n_heads * pages.head_dim,
                    },
                    schedule,
                    partials: self.at.partials,
                    arrived: self.at.arrived,
                };
                (Command::new(attention::attention(isa, self.limits.kv_type), params), "attention")
            }
            Op::Activate { x, kind, out } => {
                (Command::new(activate::activate(isa, *kind), element_wise(*x, *x, *out, 0.0)), "activate")
            }
            Op::Gate { gate, up, kind, out } => {
                (Command::new(gate::gate(isa, *kind), element_wise(*gate, *up, *out, 0.0)), "gate")
            }
            Op::Add { a, b, out } => (Command::new(add::add(isa), element_wise(*a, *b, *out, 0.0)), "add"),
            Op::Scale { x, factor, out } => {
                (Command::new(scale::scale(isa), element_wise(*x, *x, *out, *factor)), "scale")
            }
            Op::Softcap { x, cap, out } => {
                (Command::new(softcap::softcap(isa), element_wise(*x, *x, *out, *cap)), "softcap")
            }
            Op::Clamp { x, min, max, out } => {
                let params = clamped::Params { of: element_wise(*x, *x, *out, *min), max: *max };
                (Command::new(clamped::clamped(isa), params), "clamped")
            }
            Op::Columns { x, first, group, out } => {
                let n_groups = self.plan.value(*x).cols / group;
                let params = columns::Params {
                    x: self.value(*x),
                    n_groups,
                    group: *group,
                    first: *first,
                    out: self.value(*out),
                    taken: self.plan.value(*out).cols / n_groups,
                    rows: self.plan.value(*x).rows,
                };
                (Command::new(columns::columns, params), "columns")
            }
            Op::Route { x, normalise, factor, scores, bias, groups, scales, ids, weights } => {
                let params = route::Params {
                    x: self.value(*x),
                    n_experts: self.plan.value(*x).cols,
                    k: self.plan.value(*ids).cols,
                    normalise: *normalise,
                    factor: *factor,
                    scores: *scores,
                    bias: self.weight_or_null(*bias),
                    groups: *groups,
                    scales: self.weight_or_null(*scales),
                    ids: self.value(*ids).cast(),
                    weights: self.value(*weights),
                    rows: self.plan.value(*x).rows,
                };
                (Command::new(route::route, params), "route")
            }
            Op::ExpertBias { x, ids, bias, out } => {
                let k = self.plan.value(*ids).cols;
                let params = expert_bias::Params {
                    x: self.value(*x),
                    ids: self.value(*ids).cast_const().cast(),
                    bias: self.weight_f32(*bias),
                    k,
                    cols: self.plan.value(*x).cols / k,
                    out: self.value(*out),
                    rows: self.plan.value(*x).rows,
                };
                (Command::new(expert_bias::expert_bias(isa), params), "expert_bias")
            }
            Op::GateClamped { gate, up, alpha, limit, out } => {
                let params = gate_clamped::Params {
                    gate: self.value(*gate),
                    up: self.value(*up),
                    out: self.value(*out),
                    cols: self.plan.value(*gate).cols,
                    rows: self.plan.value(*gate).rows,
                    alpha: *alpha,
                    limit: *limit,
                };
                (Command::new(gate_clamped::gate_clamped(isa), params), "gate_clamped")
            }
            Op::Join { a, b, n_heads, out } => {
                let params = join::Params {
                    a: self.value(*a),
                    a_dim: self.plan.value(*a).cols / n_heads,
                    b: self.value(*b),
                    b_dim: self.plan.value(*b).cols / n_heads,
                    n_heads: *n_heads,
                    out: self.value(*out),
                    rows: self.plan.value(*a).rows,
                };
                (Command::new(join::join, params), "join")
            }
            Op::Ordinals { out } => {
                let value = self.plan.value(*out);
                let params =
                    ordinals::Params { out: self.value(*out).cast(), k: value.cols, rows: value.rows };
                (Command::new(ordinals::ordinals, params), "ordinals")
            }
            Op::Adapters { out, .. } => {
                let params =
                    adapters::Params { out: self.value(*out).cast(), rows: self.plan.value(*out).rows };
                (Command::new(adapters::adapters, params), "adapters")
            }
            Op::ExpertSum { x, weights, out } => {
                let params = expert_sum::Params {
                    x: self.value(*x),
                    weights: self.value(*weights),
                    k: self.plan.value(*weights).cols,
                    cols: self.plan.value(*out).cols,
                    out: self.value(*out),
                    rows: self.plan.value(*x).rows,
                };
                (Command::new(expert_sum::expert_sum(isa), params), "expert_sum")
            }
            Op::SelectRows { x, out } => {
                let cols = self.plan.value(*x).cols;
                let params = select_rows::Params { x: self.value(*x), out: self.value(*out), cols };
                (Command::new(select_rows::select_rows, params), "select_rows")
            }
            Op::Argmax { x, out } => {
                let params = argmax::Params {
                    x: self.value(*x),
                    n_vocab: self.plan.value(*x).cols,
                    found: self.at.found,
                    out: self.value(*out).cast(),
                };
                (Command::new(argmax::argmax(isa), params), "argmax")
            }
            Op::LayerNorm { x, weight, bias, eps, out } => {
                let params = layer_norm::Params {
                    x: self.value(*x),
                    weight: self.weight_f32(*weight),
                    bias: self.weight_or_null(*bias),
                    eps: *eps,
                    cols: self.plan.value(*x).cols,
                    rows: self.plan.value(*x).rows,
                    out: self.value(*out),
                };
                (Command::new(layer_norm::layer_norm(isa), params), "layer_norm")
            }
            Op::EmbedPositions { table, out } => {
                let weight = self.plan.weight(*table);
                bytes = weight.n_bytes_of_row() as u64;
                let params = embed_positions::Params {
                    table: self.matrix(*table),
                    cols: weight.n_cols(),
                    out: self.value(*out),
                };
                (Command::new(embed_positions::embed_positions, params), "embed_positions")
            }
            Op::SelfAttention { q, k, v, n_heads, scale, window, out } => {
                let cols = self.plan.value(*q).cols;
                let params = self_attention::Params {
                    q: self.value(*q),
                    k: self.value(*k),
                    v: self.value(*v),
                    out: self.value(*out),
                    n_heads: *n_heads,
                    n_kv_heads: self.plan.value(*k).cols / (cols / n_heads),
                    head_dim: cols / n_heads,
                    scale: *scale,
                    window: window.unwrap_or(usize::MAX),
                };
                (Command::new(self_attention::self_attention(isa), params), "self_attention")
            }
            Op::Pool { x, kind, out } => {
                let cols = self.plan.value(*x).cols;
                let params = pool::Params { x: self.value(*x), kind: *kind, cols, out: self.value(*out) };
                (Command::new(pool::pool(isa), params), "pool")
            }
            Op::Input { out } => {
                let (out, value) = (self.value(*out), self.plan.value(*out));
                (
                    Command::new(input::input, input::Params { out, cols: value.cols, rows: value.rows }),
                    "input",
                )
            }
            Op::Unfold { x, size, stride, out } => {
                let params = unfold::Params {
                    x: self.value(*x),
                    out: self.value(*out),
                    cols: self.plan.value(*x).cols,
                    size: *size,
                    stride: *stride,
                    rows: self.plan.value(*out).rows,
                };
                (Command::new(unfold::unfold, params), "unfold")
            }
            Op::ShortConv { x, weight, bias, state, out } => {
                let value = self.plan.value(*x);
                let range = self.plan.kv.state_range(*state);
                let params = short_conv::Params {
                    x: self.value(*x),
                    out: self.value(*out),
                    weight: self.weight_f32(*weight),
                    bias: self.weight_or_null(*bias),
                    states: self.at.states.wrapping_add(range.start),
                    state_len: self.plan.kv.state_len(),
                    cols: value.cols,
                    size: self.plan.weight(*weight).n_cols(),
                };
                (Command::new(short_conv::short_conv(isa), params), "short_conv")
            }
            Op::GatedDelta { q, k, v, step, beta, rate, n_key_heads, n_heads, tiled, scale, state, out } => {
                let params = recurrence::Params {
                    q: self.value(*q),
                    k: self.value(*k),
                    v: self.value(*v),
                    steps: self.value(*step),
                    beta: self.value(*beta),
                    rate: self.weight_f32(*rate),
                    skip: null(),
                    states: self.at.states.wrapping_add(self.plan.kv.state_range(*state).start),
                    state_len: self.plan.kv.state_len(),
                    n_heads: *n_heads,
                    n_shared: *n_key_heads,
                    tiled: *tiled,
                    per_row: self.plan.value(*step).cols != *n_heads,
                    rows: self.plan.value(*k).cols / n_key_heads,
                    cols: self.plan.value(*v).cols / n_heads,
                    scale: *scale,
                    chunked: self.limits.numerics == Numerics::Fast,
                    out: self.value(*out),
                };
                (Command::new(recurrence::recurrence(isa), params), "gated_delta")
            }
            Op::SelectiveScan { x, b, c, step, rate, skip, n_groups, n_heads, state, out } => {
                let params = recurrence::Params {
                    q: self.value(*c),
                    k: self.value(*b),
                    v: self.value(*x),
                    steps: self.value(*step),
                    beta: null(),
                    rate: self.weight_f32(*rate),
                    skip: self.weight_or_null(*skip),
                    states: self.at.states.wrapping_add(self.plan.kv.state_range(*state).start),
                    state_len: self.plan.kv.state_len(),
                    n_heads: *n_heads,
                    n_shared: *n_groups,
                    tiled: false,
                    per_row: false,
                    rows: self.plan.value(*b).cols / n_groups,
                    cols: self.plan.value(*x).cols / n_heads,
                    scale: 1.0,
                    chunked: self.limits.numerics == Numerics::Fast,
                    out: self.value(*out),
                };
                (Command::new(recurrence::recurrence(isa), params), "selective_scan")
            }
            Op::CrossAttention { q, layer, n_heads, scale, out } => {
                let params = cross_attention::Params {
                    q: self.value(*q),
                    out: self.value(*out),
                    shape: self.memory_shape(*layer, *n_heads, *scale),
                    n_states: self.plan.kv.layer(*layer).encoder_states.unwrap_or(0),
                };
                let kernel = cross_attention::cross_attention(isa, self.limits.kv_type);
                (Command::new(kernel, params), "cross_attention")
            }
            Op::CrossScores { q, layer, n_heads, heads, scale, out } => {
                let n_states = self.plan.kv.layer(*layer).encoder_states.unwrap_or(0);
                let kernel = cross_scores::cross_scores(isa, self.limits.kv_type);
                for (index, head) in heads.iter().enumerate() {
                    let params = cross_scores::Params {
                        q: self.value(*q),
                        out: self.value(*out),
                        out_cols: heads.len() * n_states,
                        first: index * n_states,
                        head: *head,
                        shape: self.memory_shape(*layer, *n_heads, *scale),
                        n_states,
                    };
                    let mut command = Command::new(kernel, params);
                    // Heads do not depend on each other.
                    command.sync = index + 1 == heads.len();
                    self.push(table, node, command, "cross_scores".into(), 0);
                }
                return;
            }
            // Lowering makes projections of Linears and takes fused Ops apart; experts were compiled before. A device that is no rank of
            // a group is given no collective.
            Op::Linear { .. } | Op::ExpertLinear { .. } | Op::Fused { .. } | Op::Collective { .. } => return,
        };
        self.push(table, node, command, name.into(), bytes);
    }
}
