//! Compilation of units into two command tables with resolved pointers.

mod primitives;

use crate::command::Command;
use crate::isa::Isa;
use crate::kernels::attention::pages::LayerPages;
use crate::kernels::attention::tile::Shape;
use crate::kernels::linear::{ActivationKind, LinearKernel, WeightRows, linear_kernel};
use crate::kernels::projection::{Epilogue, Matrix};
use crate::kernels::rope::Turn;
use crate::kernels::{
    activation_rows, argmax, expert_groups, expert_linear, projection, qk_rope_kv, rms_norm, rope,
};
use crate::layout::{ExpertSizes, Layout, ProjectionSizes};
use crate::rope_tables::RopeKey;
use crate::weights::InterleavedWeights;
use device::key_bias::KnownKeys;
use device::{CommandInfo, KvLayerId, Limits, Op, Plan, ValueId, WeightId, WeightPart};
use device_lower::arena::NO_PLACE;
use device_lower::fields::{Fields, HeadChain, Norm, NormAdd, Projection, QkRopeKv, RopeOf, Tail};
use std::ptr::{null, null_mut};
use std::sync::atomic::AtomicUsize;
use weights::BlockType;

/// Addresses of a program's buffers.
#[derive(Clone)]
pub struct Addresses {
    /// Activations.
    pub arena: *mut u8,
    /// Prepared rows, by [`ActivationKind`].
    pub rows: [*mut u8; 3],
    /// RoPE tables, in the layout's order.
    pub rope_tables: Vec<*mut f32>,
    /// Partial results of split attention.
    pub partials: *mut f32,
    /// [`Layout::arrived`] counters.
    pub arrived: *const AtomicUsize,
    /// Largest logit that each worker found for argmax.
    pub found: *mut argmax::Found,
    /// Rows and experts, sorted by expert.
    pub groups: expert_groups::ExpertGroups,
    /// The matrices of all experts of the plan, in the layout's order.
    pub experts: *const WeightRows,
    /// `(n_states, state_len)`
    pub states: *mut f32,
    /// Pages, by KV group.
    pub pools: Vec<*mut u8>,
    /// Constant terms that are not stored in a layer's keys, by layer; null or missing if a layer
    /// has none.
    pub known: Vec<*const KnownKeys>,
}

/// A table of commands with their descriptions.
#[derive(Default)]
pub struct Table {
    /// Commands in the order of replay.
    pub commands: Vec<Command>,
    /// Description of each command.
    pub infos: Vec<CommandInfo>,
}

/// Steps that a table is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowsOfStep {
    /// Steps of one row.
    One,
    /// All other steps.
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

/// Contents of the buffers that experts share, when a command starts.
#[derive(Default)]
struct Ordered {
    /// Expert ids by which the pairs are sorted.
    by: Option<ValueId>,
    /// Value whose rows were gathered in that order, columns of a part, and the form of the rows.
    gathered: Option<(ValueId, usize, ActivationKind)>,
}

/// Writer of tables.
pub struct Compiler<'a> {
    /// The plan that was lowered.
    pub plan: &'a Plan,
    /// The limits.
    pub limits: &'a Limits,
    /// The sizes.
    pub layout: &'a Layout,
    /// The buffers.
    pub at: &'a Addresses,
    /// Weights that were interleaved or copied.
    pub weights: &'a InterleavedWeights,
    /// Instruction set of the kernels.
    pub isa: Isa,
}

impl Compiler<'_> {
    /// The table for steps of `rows`.
    pub fn table(&self, units: &[(usize, Fields)], rows: RowsOfStep) -> Table {
        let mut table = Table::default();
        for (index, (key, _)) in self.layout.rope_tables.iter().enumerate() {
            let params = rope::TableParams {
                frequencies: self.weight_f32(key.frequencies),
                n_dims: key.n_dims,
                scale: f32::from_bits(key.scale),
                table: self.at.rope_tables[index],
            };
            // No command reads the RoPE table before the barrier of the first layer's projections.
            let command = Command::new(rope::table, params).without_sync();
            self.push(&mut table, 0, command, "rope_table".into(), 0);
        }
        let mut ordered = Ordered::default();
        for (node, unit) in units {
            match unit {
                Fields::Primitive(Op::ExpertLinear { x, ids, weight, out }) => {
                    let op = Experts { x: *x, ids: *ids, weight: *weight, out: *out };
                    self.experts(&mut table, *node, op, rows, &mut ordered);
                }
                Fields::Projection(p) => {
                    // A projection overwrites the prepared rows.
                    ordered.gathered = None;
                    self.projection(&mut table, *node, p, rows);
                }
                Fields::Primitive(op) => self.primitive(&mut table, *node, op),
                Fields::NormAdd(NormAdd { x, norm, residual, out }) => {
                    let params = rms_norm::RmsNormParams {
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
                Fields::QkRopeKv(unit) => self.qk_rope_kv(&mut table, *node, unit),
            }
        }
        table
    }

    fn push(&self, table: &mut Table, node: usize, command: Command, kernel: String, weight_bytes: u64) {
        let layer = self.plan.nodes.get(node).and_then(|n| n.layer);
        table.commands.push(command);
        table.infos.push(CommandInfo { kernel, node, layer, weight_bytes });
    }

    /// Address of a value `(rows, cols)`; null if it is not stored.
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

    /// Rows of a value in steps of `rows`; several if the value has several for each token.
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

    /// Attention shape of query heads over an encoder's output.
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
            out: chain.out().map_or(null_mut(), |id| self.value(id)),
        }
    }

    fn qk_rope_kv(&self, table: &mut Table, node: usize, unit: &QkRopeKv) {
        let QkRopeKv { q, k, v, layer, .. } = unit;
        let pages = self.pages(*layer);
        let k_chain = self.chain(k, pages.head_dim);
        let none = qk_rope_kv::Chain { n_heads: 0, norm: false, ..k_chain };
        let q_chain = q.as_ref().map_or(none, |q| self.chain(q, pages.head_dim));
        let params = qk_rope_kv::QkRopeKvParams { q: q_chain, k: k_chain, v: self.value(*v), pages };
        let name = if k.norm.is_some() { "qk_norm + rope + kv_write" } else { "rope + kv_write" };
        self.push(table, node, Command::new(qk_rope_kv::qk_rope_kv(self.isa), params), name.into(), 0);
    }

    fn projection(&self, table: &mut Table, node: usize, p: &Projection, rows: RowsOfStep) {
        let rows = self.rows_of(p.x, rows);
        let sizes = ProjectionSizes::new(self.plan, p, self.limits, self.layout.n_workers);
        let norm = p.norm.map_or(Norm { weight: None, eps: 0.0 }, |(norm, _)| norm);
        let source = activation_rows::RowSource {
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
        // Destination of prepared rows, if a matrix reads them. F32 rows that need no work are read
        // in place.
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
        let params = projection::ProjectionParams {
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
                    let params = activation_rows::ActivationRowsParams { source, rows: prepared };
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
        let params = expert_linear::ExpertLinearParams {
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
            let params = expert_groups::ExpertGroupsParams {
                ids,
                k,
                n_experts: sizes.n_experts,
                rows: of_rows,
                groups,
            };
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
}
