//! The sizes of everything that a program takes, computed once: the memory plan prints them, compiling allocates them.
//! Each plan has its own [`Layout`]; what is allocated is [`Shared`], the most that any of them needs.

use crate::isa::Isa;
use crate::kernels::attention::pages::HeadSize;
use crate::kernels::attention::schedule::{ScheduleShape, Sizes};
use crate::kernels::linear::{ActivationKind, WeightRows, linear_kernel};
use crate::kernels::{
    activation_rows, argmax, attention, cross_attention, cross_scores, expert_groups, expert_linear,
    kv_write, projection, recurrence, round_up, route, self_attention, short_conv,
};
use crate::lower::{NodeUnit, RopeKey, Unit, rope_tables};
use crate::program::IN_FLIGHT;
use crate::weights::{self, ToInterleave};
use ::weights::Bytes;
use device::{Item, KvLayerId, Limits, MemoryPlan, Op, Plan, Residence, RowCount, Value, ValueId, WeightId};
use device_lower::arena::{self, Arena};
use device_lower::fields::{Projection, QkRopeKv, Tail};
use device_lower::outputs::HostOutputs;
use std::collections::HashSet;

/// Bytes of every buffer that a plan needs.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Where values live.
    pub arena: Arena,
    /// Of the arena, what is logits.
    pub logits_bytes: usize,
    /// Logits of an output.
    pub n_logits: usize,
    /// Rows prepared for matrices, by [`ActivationKind`].
    pub prepared_bytes: [usize; 3],
    /// The tables of Rope, and the bytes of each.
    pub rope_tables: Vec<(RopeKey, usize)>,
    /// Each worker's scratch.
    pub scratch_bytes: usize,
    /// Partials of split attention.
    pub partial_bytes: usize,
    /// Counters of the chunks of split rows.
    pub arrived: usize,
    /// The schedules of Attention.
    pub attention: Vec<ScheduleShape>,
    /// Most units of one.
    pub schedule_units: usize,
    /// What each worker found for argmax.
    pub found_bytes: usize,
    /// Rows and experts in the order of the experts: most pairs of a step, most experts.
    pub grouped: (usize, usize),
    /// The stacks of experts, and how many each has.
    pub experts: Vec<(WeightId, usize)>,
    /// Workers.
    pub n_workers: usize,
}

/// Bytes of every buffer of a program: the most that any of its plans needs.
#[derive(Clone, Debug)]
pub struct Shared {
    /// Activations, logits included.
    pub arena_bytes: usize,
    /// Of these, what is logits.
    pub logits_bytes: usize,
    /// Buffers that tokens are chosen with.
    pub sampling_bytes: u64,
    /// As [`Layout::prepared_bytes`].
    pub prepared_bytes: [usize; 3],
    /// Of each table of Rope; every step fills its plan's anew.
    pub rope_bytes: Vec<usize>,
    /// Each worker's scratch.
    pub scratch_bytes: usize,
    /// As [`Layout::partial_bytes`].
    pub partial_bytes: usize,
    /// As [`Layout::arrived`].
    pub arrived: usize,
    /// Schedules of Attention; every step fills its plan's anew.
    pub n_schedules: usize,
    /// As [`Layout::schedule_units`].
    pub schedule_units: usize,
    /// As [`Layout::found_bytes`].
    pub found_bytes: usize,
    /// As [`Layout::grouped`].
    pub grouped: (usize, usize),
    /// Experts of all plans.
    pub n_experts: usize,
    /// Positions and slots of the rows.
    pub row_bytes: usize,
    /// Workers.
    pub n_workers: usize,
}

impl Shared {
    /// Of the plans' layouts.
    pub fn new(layouts: &[Layout], limits: &Limits, n_workers: usize) -> Shared {
        let most = |of: fn(&Layout) -> usize| layouts.iter().map(of).max().unwrap_or(0);
        let tables = |index: usize| {
            layouts
                .iter()
                .filter_map(|l| l.rope_tables.get(index).map(|(_, bytes)| *bytes))
                .max()
                .unwrap_or(0)
        };
        let n_logits = most(|l| l.n_logits);
        Shared {
            arena_bytes: most(|l| l.arena.total),
            logits_bytes: most(|l| l.logits_bytes),
            sampling_bytes: HostOutputs::bytes(n_logits, limits, IN_FLIGHT, n_workers),
            prepared_bytes: ActivationKind::ALL
                .map(|kind| layouts.iter().map(|l| l.prepared_bytes[kind as usize]).max().unwrap_or(0)),
            rope_bytes: (0..most(|l| l.rope_tables.len())).map(tables).collect(),
            scratch_bytes: most(|l| l.scratch_bytes),
            partial_bytes: most(|l| l.partial_bytes),
            arrived: most(|l| l.arrived),
            n_schedules: most(|l| l.attention.len()),
            schedule_units: most(|l| l.schedule_units),
            found_bytes: most(|l| l.found_bytes),
            grouped: (most(|l| l.grouped.0), most(|l| l.grouped.1)),
            n_experts: layouts.iter().map(Layout::n_experts).sum(),
            row_bytes: 2 * round_up(limits.max_rows * 4),
            n_workers,
        }
    }

    /// Bytes of all workers' scratch.
    pub fn all_scratch_bytes(&self) -> usize {
        self.scratch_bytes * self.n_workers
    }

    /// Bytes of what orders rows by expert, and of the addresses of all experts.
    pub fn expert_bytes(&self) -> (usize, usize) {
        let (pairs, experts) = self.grouped;
        (expert_groups::group_bytes(pairs, experts), self.n_experts * size_of::<WeightRows>())
    }

    /// Bytes of the schedules of Attention, and of the counters beside them.
    fn schedule_bytes(&self, limits: &Limits) -> usize {
        let of_one = Sizes::new(limits).bytes(self.schedule_units);
        self.n_schedules * of_one + self.arrived * size_of::<usize>()
    }

    /// The buffers and their bytes.
    fn buffers(&self, limits: &Limits) -> [(&'static str, usize); 11] {
        [
            ("activations", self.arena_bytes - self.logits_bytes + self.row_bytes),
            ("logits", self.logits_bytes + self.found_bytes),
            ("sampling", self.sampling_bytes as usize),
            ("quantised activations", self.prepared_bytes[ActivationKind::Q8 as usize]),
            ("rounded activations", self.prepared_bytes[ActivationKind::Bf16 as usize]),
            ("normalised activations", self.prepared_bytes[ActivationKind::F32 as usize]),
            ("rope tables", self.rope_bytes.iter().sum()),
            ("attention partials", self.partial_bytes),
            ("attention schedules", self.schedule_bytes(limits)),
            ("expert tables", self.expert_bytes().0 + self.expert_bytes().1),
            ("scratch of the workers", self.all_scratch_bytes()),
        ]
    }

    /// Bytes of the buffers of tables that choose no tokens.
    pub fn bytes(&self, limits: &Limits) -> usize {
        let all: usize = self.buffers(limits).iter().map(|(_, bytes)| bytes).sum();
        all - self.sampling_bytes as usize
    }

    /// The memory plan: weights and KV pages, which every device has, and these buffers.
    pub fn memory_plan(&self, plans: &[Plan], limits: &Limits, interleaved: &ToInterleave) -> MemoryPlan {
        let let_go = interleaved.let_go();
        let in_place = |view: &Bytes| !view.is_mapped() || !let_go.contains(&weights::view(view));
        let mut memory = MemoryPlan::of_weights_and_kv(plans, limits, in_place);
        let of_weights = [
            ("weights, interleaved", interleaved.bytes()),
            ("small weights, copied", interleaved.copied_bytes()),
        ];
        for (what, bytes) in of_weights.into_iter().chain(self.buffers(limits)) {
            if bytes > 0 {
                let (what, bytes) = (what.to_owned(), bytes as u64);
                memory.items.push(Item { what, bytes, residence: Residence::Committed });
            }
        }
        memory
    }
}

/// What the units of an Attention depend on.
pub fn schedule_shape(
    plan: &Plan,
    layer: KvLayerId,
    n_heads: usize,
    window: (Option<usize>, bool, bool),
    out: ValueId,
) -> ScheduleShape {
    let n_kv_heads = plan.kv.layer(layer).n_kv_heads;
    ScheduleShape {
        group: plan.kv.group_of(layer).0,
        window: window.0.unwrap_or(usize::MAX),
        chunked: window.1,
        both_ways: window.2,
        n_kv_heads,
        tile_rows: attention::tile_rows(n_heads / n_kv_heads),
        of_outputs: is_only_selected_from(plan, out),
    }
}

/// Whether of a value's rows only the step's outputs are read.
pub fn is_only_selected_from(plan: &Plan, id: ValueId) -> bool {
    let selects = |op: &Op| matches!(op, Op::SelectRows { .. });
    plan.primitives().all(|op| selects(op) || !op.reads().contains(&id))
        && plan.results().all(|result| result != id)
}

/// How many rows a value can have.
pub fn max_rows(limits: &Limits, rows: RowCount) -> usize {
    rows.count(limits.max_rows, limits.max_outputs)
}

/// What a projection's schedules are compiled for.
#[derive(Clone, Copy, Debug)]
pub struct ProjectionSizes {
    /// Columns of the rows.
    pub cols: usize,
    /// Weight rows of a piece, one activation row.
    pub piece_rows: usize,
    /// Activation rows of a block, many rows.
    pub row_block: usize,
}

impl ProjectionSizes {
    /// Of a projection.
    pub fn new(plan: &Plan, p: &Projection, limits: &Limits, n_workers: usize) -> ProjectionSizes {
        let x = plan.value(p.x);
        let n_out: usize = match p.tail {
            Tail::Gate { .. } => plan.weight(p.matrices[0].weight).n_rows(),
            Tail::Store | Tail::Add { .. } => p.matrices.iter().map(|m| plan.weight(m.weight).n_rows()).sum(),
        };
        ProjectionSizes {
            cols: x.cols,
            piece_rows: projection::piece_rows(n_out, n_workers),
            row_block: projection::row_block(max_rows(limits, x.rows)),
        }
    }
}

/// What the schedules of an ExpertLinear are compiled for.
#[derive(Clone, Copy, Debug)]
pub struct ExpertSizes {
    /// Experts.
    pub n_experts: usize,
    /// Rows of a matrix.
    pub n_out: usize,
    /// Its columns.
    pub n_in: usize,
    /// Whether each chosen expert has its own input.
    pub own: bool,
    /// Most pairs of rows and experts.
    pub max_pairs: usize,
    /// Weight rows of a piece, one activation row.
    pub piece_rows: usize,
    /// Activation rows of a block, many rows.
    pub row_block: usize,
}

impl ExpertSizes {
    /// Of the fields of an ExpertLinear.
    pub fn new(
        plan: &Plan,
        x: ValueId,
        ids: ValueId,
        weight: WeightId,
        limits: &Limits,
        n_workers: usize,
    ) -> ExpertSizes {
        let (weight, k, x) = (plan.weight(weight), plan.value(ids).cols, plan.value(x));
        let (n_experts, n_in) = (weight.parts.len(), weight.n_cols());
        let n_out = weight.n_rows() / n_experts.max(1);
        let max_rows = max_rows(limits, x.rows);
        ExpertSizes {
            n_experts,
            n_out,
            n_in,
            own: x.cols != n_in,
            max_pairs: max_rows * k,
            piece_rows: projection::piece_rows(k * n_out, n_workers),
            // A row goes to an expert once.
            row_block: projection::row_block(max_rows),
        }
    }
}

impl Layout {
    /// For a plan that was lowered, and limits that fit it. `n_terms`: by layer, what keys are stored without.
    pub fn new(
        plan: &Plan,
        lowered: &[NodeUnit],
        limits: &Limits,
        n_terms: &[usize],
        isa: Isa,
        n_workers: usize,
    ) -> Layout {
        let written: HashSet<ValueId> = lowered.iter().flat_map(|l| l.unit.writes()).collect();
        let bytes_of = |value: &Value| max_rows(limits, value.rows) * value.cols * 4;
        let needs_internal = |_: &Op, id: ValueId| written.contains(&id);
        let options = arena::Options { align: 64, in_place: true, needs_internal: &needs_internal };
        let arena = arena::plan_with(plan, bytes_of, &options);
        let mut layout = Layout {
            arena,
            logits_bytes: bytes_of(plan.value(plan.output)),
            n_logits: plan.value(plan.output).cols,
            prepared_bytes: [0; 3],
            rope_tables: Vec::new(),
            scratch_bytes: 64,
            partial_bytes: 0,
            arrived: 0,
            attention: Vec::new(),
            schedule_units: 0,
            found_bytes: round_up(limits.max_outputs * n_workers * size_of::<argmax::Found>()),
            grouped: (0, 0),
            experts: Vec::new(),
            n_workers,
        };
        let table = |key: RopeKey| (key, round_up(limits.max_rows * key.n_dims * 4));
        layout.rope_tables = rope_tables(plan, lowered).into_iter().map(table).collect();
        for unit in lowered.iter().map(|l| &l.unit) {
            layout.grow(plan, unit, limits, n_terms, isa);
        }
        layout
    }

    /// Make room for so many prepared rows.
    fn prepare(&mut self, kind: ActivationKind, n_rows: usize, n_cols: usize) {
        let bytes = &mut self.prepared_bytes[kind as usize];
        *bytes = (*bytes).max(n_rows * kind.row_bytes(n_cols));
    }

    /// Make room for a unit.
    fn grow(&mut self, plan: &Plan, unit: &Unit, limits: &Limits, n_terms: &[usize], isa: Isa) {
        let scratch = match unit {
            Unit::Projection(p) => {
                let sizes = ProjectionSizes::new(plan, p, limits, self.n_workers);
                let rows = max_rows(limits, plan.value(p.x).rows);
                let mut gemm = 0;
                for m in &p.matrices {
                    let block = plan.weight(m.weight).block;
                    let kernel = linear_kernel(block, sizes.cols, isa).with(limits.numerics);
                    if kernel.activation != ActivationKind::F32 || p.norm.is_some() {
                        self.prepare(kernel.activation, rows, sizes.cols);
                    }
                    gemm = gemm.max((kernel.gemm_scratch_bytes)(sizes.cols));
                }
                projection::one_row_scratch_bytes(sizes.cols, sizes.piece_rows)
                    .max(projection::many_rows_scratch_bytes(sizes.row_block, gemm))
                    .max(activation_rows::scratch_bytes(sizes.cols))
            }
            Unit::Primitive(Op::ExpertLinear { x, ids, weight, .. }) => {
                let sizes = ExpertSizes::new(plan, *x, *ids, *weight, limits, self.n_workers);
                let kernel = linear_kernel(plan.weight(*weight).block, sizes.n_in, isa).with(limits.numerics);
                self.prepare(kernel.activation, sizes.max_pairs, sizes.n_in);
                let (pairs, experts) = self.grouped;
                self.grouped = (pairs.max(sizes.max_pairs), experts.max(sizes.n_experts));
                if self.experts.iter().all(|(id, _)| id != weight) {
                    self.experts.push((*weight, sizes.n_experts));
                }
                let gemm = (kernel.gemm_scratch_bytes)(sizes.n_in);
                expert_linear::one_row_scratch_bytes(sizes.n_in)
                    .max(expert_linear::many_rows_scratch_bytes(sizes.row_block, gemm))
            }
            Unit::QkRopeKv(QkRopeKv { layer, .. }) | Unit::Primitive(Op::KvWrite { layer, .. }) => {
                kv_write::scratch_bytes(plan.kv.layer(*layer).head_dim)
            }
            Unit::Primitive(Op::Attention { layer, n_heads, window, chunked, both_ways, out, .. }) => {
                let shape = schedule_shape(plan, *layer, *n_heads, (*window, *chunked, *both_ways), *out);
                let n_terms = n_terms.get(layer.0 as usize).copied().unwrap_or(0);
                let layer = plan.kv.layer(*layer);
                let (n_group, sizes) = (n_heads / layer.n_kv_heads, Sizes::new(limits));
                if !self.attention.contains(&shape) {
                    self.attention.push(shape);
                }
                self.schedule_units = self.schedule_units.max(sizes.units(shape.n_kv_heads, shape.tile_rows));
                self.arrived = self.arrived.max(sizes.split_rows() * layer.n_kv_heads);
                let partials = attention::partial_bytes(&sizes, n_group, layer.n_kv_heads, layer.head_dim);
                self.partial_bytes = self.partial_bytes.max(partials);
                attention::scratch_bytes(
                    n_group,
                    layer.n_kv_heads,
                    HeadSize { head_dim: layer.head_dim, n_terms },
                )
            }
            Unit::Primitive(Op::ShortConv { weight, .. }) => {
                short_conv::scratch_bytes(plan.weight(*weight).n_cols())
            }
            Unit::Primitive(Op::GatedDelta { k, v, n_key_heads, n_heads, .. }) => {
                recurrence::scratch_bytes(plan.value(*k).cols / n_key_heads, plan.value(*v).cols / n_heads)
            }
            Unit::Primitive(Op::SelectiveScan { b, x, n_groups, n_heads, .. }) => {
                recurrence::scratch_bytes(plan.value(*b).cols / n_groups, plan.value(*x).cols / n_heads)
            }
            Unit::Primitive(Op::SelfAttention { q, n_heads, .. }) => {
                self_attention::scratch_bytes(plan.value(*q).cols / n_heads)
            }
            Unit::Primitive(Op::CrossAttention { layer, n_heads, .. }) => {
                let layer = plan.kv.layer(*layer);
                cross_attention::scratch_bytes(n_heads / layer.n_kv_heads, layer.head_dim)
            }
            Unit::Primitive(Op::CrossScores { layer, .. }) => {
                cross_scores::scratch_bytes(plan.kv.layer(*layer).head_dim)
            }
            Unit::Primitive(Op::Route { x, groups, .. }) => {
                route::scratch_bytes(plan.value(*x).cols, *groups)
            }
            Unit::NormAdd(_) => 0,
            Unit::Primitive(op) => {
                assert!(!op.facts().needs_scratch, "the scratch of {} has no size", op.kind());
                0
            }
        };
        self.scratch_bytes = self.scratch_bytes.max(round_up(scratch));
    }

    /// Experts of all stacks.
    pub fn n_experts(&self) -> usize {
        self.experts.iter().map(|(_, n)| n).sum()
    }

    /// Where the addresses of a stack begin among those of all.
    pub fn experts_offset(&self, weight: WeightId) -> usize {
        self.experts.iter().take_while(|(id, _)| *id != weight).map(|(_, n)| n).sum()
    }
}
