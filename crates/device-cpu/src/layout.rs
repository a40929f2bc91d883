//! Sizes of all buffers of a program, computed once. The memory plan prints them, and compilation
//! allocates them. Each plan has a [`Layout`]; the allocation is their maximum, [`SharedLayout`].

use crate::isa::Isa;
use crate::kernels::attention::pages::HeadSize;
use crate::kernels::attention::schedule::{ScheduleShape, Sizes};
use crate::kernels::linear::{ActivationKind, WeightRows, linear_kernel};
use crate::kernels::{
    activation_rows, argmax, attention, cross_attention, cross_scores, expert_groups, expert_linear,
    kv_write, projection, recurrence, round_up, route, self_attention, short_conv,
};
use crate::rope_tables::{RopeKey, rope_tables};
use crate::weights::{self, ToInterleave};
use ::weights::Bytes;
use device::key_bias;
use device::{
    Item, KvLayer, KvLayerId, Limits, MemoryPlan, Op, Plan, Residence, RowCount, Value, ValueId, WeightId,
};
use device_lower::arena::{self, Arena};
use device_lower::fields::{Fields, Projection, QkRopeKv, Tail, fields_of_nodes};
use device_lower::outputs::HostOutputs;
use std::collections::HashSet;

/// Number of steps that may be in flight. A step is computed while it is submitted.
pub const IN_FLIGHT: usize = 1;

/// Bytes of every buffer that a plan needs.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Offsets of values in the arena.
    pub arena: Arena,
    /// Bytes of the arena that hold logits.
    pub logits_bytes: usize,
    /// Logits of an output row.
    pub n_logits: usize,
    /// Rows prepared for matrices, by [`ActivationKind`].
    pub prepared_bytes: [usize; 3],
    /// RoPE tables, with the bytes of each.
    pub rope_tables: Vec<(RopeKey, usize)>,
    /// Bytes of scratch of each worker.
    pub scratch_bytes: usize,
    /// Bytes of the partial results of split attention.
    pub partial_bytes: usize,
    /// Number of counters of finished chunks, for rows that attention splits.
    pub arrived: usize,
    /// Schedule shapes of the plan's Attentions.
    pub attention: Vec<ScheduleShape>,
    /// Largest number of units of one schedule.
    pub schedule_units: usize,
    /// Bytes of the largest logits that the workers find for argmax.
    pub found_bytes: usize,
    /// Largest number of (row, expert) pairs of a step, and of experts.
    pub grouped: (usize, usize),
    /// Stacks of experts, with the number of experts of each.
    pub experts: Vec<(WeightId, usize)>,
    /// Workers.
    pub n_workers: usize,
}

/// Bytes of every buffer of a program: the maximum over its plans.
#[derive(Clone, Debug)]
pub struct SharedLayout {
    /// Activations, logits included.
    pub arena_bytes: usize,
    /// Bytes of the arena that hold logits.
    pub logits_bytes: usize,
    /// Bytes of the buffers for choosing tokens.
    pub sampling_bytes: u64,
    /// Maximum of [`Layout::prepared_bytes`].
    pub prepared_bytes: [usize; 3],
    /// Bytes of each RoPE table; every step fills the tables of its plan.
    pub rope_bytes: Vec<usize>,
    /// Bytes of scratch of each worker.
    pub scratch_bytes: usize,
    /// Maximum of [`Layout::partial_bytes`].
    pub partial_bytes: usize,
    /// Maximum of [`Layout::arrived`].
    pub arrived: usize,
    /// Number of attention schedules; every step fills those of its plan.
    pub n_schedules: usize,
    /// Maximum of [`Layout::schedule_units`].
    pub schedule_units: usize,
    /// Maximum of [`Layout::found_bytes`].
    pub found_bytes: usize,
    /// Maximum of [`Layout::grouped`].
    pub grouped: (usize, usize),
    /// Number of experts of all plans.
    pub n_experts: usize,
    /// Bytes of the rows' positions and slots.
    pub row_bytes: usize,
    /// Workers.
    pub n_workers: usize,
}

impl SharedLayout {
    /// The maximum of the plans' layouts.
    pub fn new(layouts: &[Layout], limits: &Limits, n_workers: usize) -> SharedLayout {
        let most = |of: fn(&Layout) -> usize| layouts.iter().map(of).max().unwrap_or(0);
        let tables = |index: usize| {
            layouts
                .iter()
                .filter_map(|l| l.rope_tables.get(index).map(|(_, bytes)| *bytes))
                .max()
                .unwrap_or(0)
        };
        let n_logits = most(|l| l.n_logits);
        SharedLayout {
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

    /// Bytes of the pairs sorted by expert, and of the addresses of all experts.
    pub fn expert_bytes(&self) -> (usize, usize) {
        let (pairs, experts) = self.grouped;
        (expert_groups::group_bytes(pairs, experts), self.n_experts * size_of::<WeightRows>())
    }

    /// Bytes of the attention schedules and of their counters.
    fn schedule_bytes(&self, limits: &Limits) -> usize {
        let of_one = Sizes::new(limits).bytes(self.schedule_units);
        self.n_schedules * of_one + self.arrived * size_of::<usize>()
    }

    /// Names of the buffers, with their bytes.
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

    /// Bytes of all buffers, except those for choosing tokens.
    pub fn bytes(&self, limits: &Limits) -> usize {
        let all: usize = self.buffers(limits).iter().map(|(_, bytes)| bytes).sum();
        all - self.sampling_bytes as usize
    }

    /// The memory plan: weights, KV pages, and these buffers.
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

/// Facts that an Attention's units depend on.
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

/// True if only the step's output rows of the value are read.
pub fn is_only_selected_from(plan: &Plan, id: ValueId) -> bool {
    let selects = |op: &Op| matches!(op, Op::SelectRows { .. });
    plan.primitives().all(|op| selects(op) || !op.reads().contains(&id))
        && plan.results().all(|result| result != id)
}

/// Largest number of rows of a value.
pub fn max_rows(limits: &Limits, rows: RowCount) -> usize {
    rows.count(limits.max_rows, limits.max_outputs)
}

/// Sizes that a projection is compiled for.
#[derive(Clone, Copy, Debug)]
pub struct ProjectionSizes {
    /// Columns of the rows.
    pub cols: usize,
    /// Weight rows of a piece, for steps of one row.
    pub piece_rows: usize,
    /// Activation rows of a block, for steps of many rows.
    pub row_block: usize,
}

impl ProjectionSizes {
    /// Sizes of `p`.
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

/// Sizes that an ExpertLinear is compiled for.
#[derive(Clone, Copy, Debug)]
pub struct ExpertSizes {
    /// Experts.
    pub n_experts: usize,
    /// Rows of an expert's matrix.
    pub n_out: usize,
    /// Columns of an expert's matrix.
    pub n_in: usize,
    /// True if each chosen expert has its own input row.
    pub own: bool,
    /// Largest number of (row, expert) pairs.
    pub max_pairs: usize,
    /// Weight rows of a piece, for steps of one row.
    pub piece_rows: usize,
    /// Activation rows of a block, for steps of many rows.
    pub row_block: usize,
}

impl ExpertSizes {
    /// Sizes of an ExpertLinear with these fields.
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
            // An expert gets each row at most once.
            row_block: projection::row_block(max_rows),
        }
    }
}

impl Layout {
    /// Layout of a plan for limits that fit it. `n_terms`: constant key terms of each layer.
    pub fn new(
        plan: &Plan,
        units: &[(usize, Fields)],
        limits: &Limits,
        n_terms: &[usize],
        isa: Isa,
        n_workers: usize,
    ) -> Layout {
        let written: HashSet<ValueId> = units.iter().flat_map(|(_, unit)| unit.writes()).collect();
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
        layout.rope_tables = rope_tables(plan, units).into_iter().map(table).collect();
        for (_, unit) in units {
            layout.grow(plan, unit, limits, n_terms, isa);
        }
        layout
    }

    /// Reserves space for `n_rows` prepared rows of `n_cols`.
    fn prepare(&mut self, kind: ActivationKind, n_rows: usize, n_cols: usize) {
        let bytes = &mut self.prepared_bytes[kind as usize];
        *bytes = (*bytes).max(n_rows * kind.row_bytes(n_cols));
    }

    /// Reserves space for a unit.
    fn grow(&mut self, plan: &Plan, unit: &Fields, limits: &Limits, n_terms: &[usize], isa: Isa) {
        let scratch = match unit {
            Fields::Projection(p) => self.grow_projection(plan, p, limits, isa),
            Fields::Primitive(Op::ExpertLinear { x, ids, weight, .. }) => {
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
            Fields::QkRopeKv(QkRopeKv { layer, .. }) | Fields::Primitive(Op::KvWrite { layer, .. }) => {
                kv_write::scratch_bytes(plan.kv.layer(*layer).head_dim)
            }
            Fields::Primitive(Op::Attention { layer, n_heads, window, chunked, both_ways, out, .. }) => {
                let shape = schedule_shape(plan, *layer, *n_heads, (*window, *chunked, *both_ways), *out);
                let n_terms = n_terms.get(layer.0 as usize).copied().unwrap_or(0);
                self.grow_attention(plan.kv.layer(*layer), *n_heads, shape, n_terms, limits)
            }
            Fields::Primitive(Op::ShortConv { weight, .. }) => {
                short_conv::scratch_bytes(plan.weight(*weight).n_cols())
            }
            Fields::Primitive(Op::GatedDelta { k, v, n_key_heads, n_heads, .. }) => {
                recurrence::scratch_bytes(plan.value(*k).cols / n_key_heads, plan.value(*v).cols / n_heads)
            }
            Fields::Primitive(Op::SelectiveScan { b, x, n_groups, n_heads, .. }) => {
                recurrence::scratch_bytes(plan.value(*b).cols / n_groups, plan.value(*x).cols / n_heads)
            }
            Fields::Primitive(Op::SelfAttention { q, n_heads, .. }) => {
                self_attention::scratch_bytes(plan.value(*q).cols / n_heads)
            }
            Fields::Primitive(Op::CrossAttention { layer, n_heads, .. }) => {
                let layer = plan.kv.layer(*layer);
                cross_attention::scratch_bytes(n_heads / layer.n_kv_heads, layer.head_dim)
            }
            Fields::Primitive(Op::CrossScores { layer, .. }) => {
                cross_scores::scratch_bytes(plan.kv.layer(*layer).head_dim)
            }
            Fields::Primitive(Op::Route { x, groups, .. }) => {
                route::scratch_bytes(plan.value(*x).cols, *groups)
            }
            Fields::NormAdd(_) => 0,
            Fields::Primitive(op) => {
                assert!(!op.facts().needs_scratch, "the scratch of {} has no size", op.kind());
                0
            }
        };
        self.scratch_bytes = self.scratch_bytes.max(round_up(scratch));
    }

    /// Reserves space for a projection, and returns the bytes of scratch that it needs.
    fn grow_projection(&mut self, plan: &Plan, p: &Projection, limits: &Limits, isa: Isa) -> usize {
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

    /// Reserves space for the attention of a layer, and returns the bytes of scratch that it needs.
    fn grow_attention(
        &mut self,
        layer: &KvLayer,
        n_heads: usize,
        shape: ScheduleShape,
        n_terms: usize,
        limits: &Limits,
    ) -> usize {
        let (n_group, sizes) = (n_heads / layer.n_kv_heads, Sizes::new(limits));
        if !self.attention.contains(&shape) {
            self.attention.push(shape);
        }
        self.schedule_units = self.schedule_units.max(sizes.units(shape.n_kv_heads, shape.tile_rows));
        self.arrived = self.arrived.max(sizes.split_rows() * layer.n_kv_heads);
        let partials = attention::partial_bytes(&sizes, n_group, layer.n_kv_heads, layer.head_dim);
        self.partial_bytes = self.partial_bytes.max(partials);
        attention::scratch_bytes(n_group, layer.n_kv_heads, HeadSize { head_dim: layer.head_dim, n_terms })
    }

    /// Number of experts of all stacks.
    pub fn n_experts(&self) -> usize {
        self.experts.iter().map(|(_, n)| n).sum()
    }

    /// Index of the first expert of a stack among the experts of all stacks.
    pub fn experts_offset(&self, weight: WeightId) -> usize {
        self.experts.iter().take_while(|(id, _)| *id != weight).map(|(_, n)| n).sum()
    }
}

/// A plan with its units and their sizes.
pub struct LaidOutPlan<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// Its units.
    pub units: Vec<(usize, Fields)>,
    /// Sizes of the units.
    pub layout: Layout,
}

/// The plans of a program, laid out together.
pub struct LaidOut<'a> {
    /// Each plan with its layout.
    pub plans: Vec<LaidOutPlan<'a>>,
    /// Sizes of the shared buffers.
    pub shared: SharedLayout,
}

impl<'a> LaidOut<'a> {
    /// Lays out checked plans that have the same KV layout.
    pub fn new(plans: &'a [Plan], limits: &Limits, isa: Isa, n_workers: usize) -> LaidOut<'a> {
        let n_terms = key_bias::n_terms(plans, limits);
        let of_plan = |plan| {
            let units = fields_of_nodes(plan, crate::profile::RULES);
            let layout = Layout::new(plan, &units, limits, &n_terms, isa, n_workers);
            LaidOutPlan { plan, units, layout }
        };
        let plans: Vec<_> = plans.iter().map(of_plan).collect();
        let layouts: Vec<Layout> = plans.iter().map(|plan| plan.layout.clone()).collect();
        LaidOut { shared: SharedLayout::new(&layouts, limits, n_workers), plans }
    }
}
