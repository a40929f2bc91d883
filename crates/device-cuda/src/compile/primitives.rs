//! The kernels of single Ops: norms, element-wise Ops, Ops over spans, and the choice of tokens.

use super::{Call, Draft, ONE, blocks, each, failed};
use crate::arguments::{
    ChooseArguments, CollectiveArguments, ElementArguments, EmbedArguments, ExpertSumArguments,
    NormArguments, RopeArguments, RouteArguments, ScanArguments, SpanArguments,
};
use crate::driver::Address;
use crate::group::{BLOCKS, BLOCKS_MANY};
use crate::layout::{BEST_PARTS, BESTS};
use device::{
    Activation, CollectiveKind, Op, Pooling, Result, RopeStyle, RouterGroups, RouterScores, StateId, ValueId,
    WeightId,
};
use device_gpu::signature::{Signature, Source, signature};
use device_lower::fields::{AttentionOf, Norm};
use device_lower::lifetimes::max_rows;
use device_lower::table::{Extent, RowClass, When};
use device_lower::units::Join;

/// `ACTIVATE_*` (arguments.h)
pub(crate) fn activation(kind: Activation) -> u32 {
    match kind {
        Activation::Silu => 0,
        Activation::GeluTanh => 1,
        Activation::GeluErf => 2,
        Activation::Relu => 3,
        Activation::Sigmoid => 4,
        Activation::Identity => 5,
        Activation::ReluSquared => 6,
        Activation::Softplus => 7,
    }
}

pub(super) fn interleaved(style: RopeStyle) -> u32 {
    match style {
        RopeStyle::Half => 0,
        RopeStyle::Interleaved => 1,
    }
}

/// Maximum number of columns of a head to which `rope` applies RoPE (rope.cu).
const MOST_ROPE_COLUMNS: usize = 1024;

/// Values per block of a collective (collective.cu).
const COLLECTIVE_VALUES: usize = 1024;

/// Maximum number of rows of a state (scan.cuh).
const MOST_STATE_ROWS: usize = 512;

impl Draft<'_> {
    /// Adds a kernel whose signature is the same on every GPU.
    fn element(&mut self, of: &Signature) -> Result<()> {
        let c = self.c;
        let address = |source: Option<Source>| match source {
            None => Ok(0),
            Some(Source::Value(id)) => c.value(id),
            Some(Source::Weight(id)) => c.vector(id),
            Some(Source::Outputs) => Ok(c.step_place(c.step.outputs)),
            Some(Source::Input) => Ok(c.step_place(c.step.input)),
        };
        let (rows, cols, n) = (c.rows(of.out), c.cols(of.out), of.numbers);
        let arguments = ElementArguments {
            n_rows: 0,
            cols: cols as u32,
            x_cols: n.a_cols as u32,
            first: n.first as u32,
            group: n.group as u32,
            taken: n.taken as u32,
            kind: of.activation.map_or(0, activation),
            factor: n.factor,
            limit: n.limit,
            reserved: 0,
            a: address(of.a)?,
            b: address(of.b)?,
            rows: address(of.rows)?,
            out: c.value(of.out)?,
        };
        let (file, writes) = (format!("{}.cu", of.kernel), [of.out]);
        let call = Call::new(&file, rows, [blocks(cols, 256), each(rows), ONE], 256, &writes);
        self.push(call, &arguments);
        Ok(())
    }

    pub(super) fn gate(&mut self, gate: ValueId, up: ValueId, kind: Activation, out: ValueId) -> Result<()> {
        self.primitive(&Op::Gate { gate, up, kind, out })
    }

    pub(super) fn rms_norm(&mut self, x: ValueId, norm: Norm, group: usize, out: ValueId) -> Result<()> {
        let (rows, cols) = (self.c.rows(x), self.c.cols(x));
        let arguments = NormArguments {
            cols: cols as u32,
            group: group as u32,
            eps: norm.eps,
            weight_stride: norm.weight.map_or(0, |id| match self.c.plan.weight(id).n_cols() {
                n if n == group => 0,
                _ => group as u32,
            }),
            x: self.c.value(x)?,
            weight: self.c.vector_or_null(norm.weight)?,
            out: self.c.value(out)?,
            ..Default::default()
        };
        let grid = [Extent::Fixed((cols / group.max(1)) as u32), each(rows), ONE];
        let threads = (group.next_multiple_of(32) as u32).min(256);
        self.push(Call::new("rms_norm.cu", rows, grid, threads, &[out]), &arguments);
        Ok(())
    }

    pub(super) fn join(&mut self, join: &Join) -> Result<()> {
        if join.pair.is_some() {
            return failed("a branch that is a sum has no kernel".to_owned());
        }
        let (rows, cols) = (self.c.rows(join.x), self.c.cols(join.x));
        let arguments = NormArguments {
            cols: cols as u32,
            group: u32::from(join.norm.is_some()),
            eps: join.norm.map_or(0.0, |norm| norm.eps),
            factor: join.factor,
            x: self.c.value(join.x)?,
            weight: self.c.vector_or_null(join.norm.and_then(|norm| norm.weight))?,
            residual: self.c.value(join.residual)?,
            out: self.c.value(join.out)?,
            ..Default::default()
        };
        self.push(Call::new("join.cu", rows, [ONE, each(rows), ONE], 256, &[join.out]), &arguments);
        Ok(())
    }

    fn embed(
        &mut self,
        table: WeightId,
        scale: f32,
        tokens: Address,
        chosen: Address,
        out: ValueId,
    ) -> Result<()> {
        let (rows, cols) = (self.c.rows(out), self.c.cols(out));
        let (kind, arguments) = self.c.embed_arguments(table, scale, out)?;
        let file = kind.file();
        let (arguments, writes) = (EmbedArguments { tokens, chosen, ..arguments }, [out]);
        let call = Call::new(&file, rows, [blocks(cols.div_ceil(32), 128), each(rows), ONE], 128, &writes);
        self.push(Call { name: "embed_rows", ..call }, &arguments);
        Ok(())
    }

    pub(super) fn rope(&mut self, op: &Op) -> Result<()> {
        let Op::Rope { x, head_dim, n_dims, style, frequencies, scale, out } = op else { return Ok(()) };
        if *head_dim > MOST_ROPE_COLUMNS {
            return failed(format!("a head of {head_dim} columns, expected at most {MOST_ROPE_COLUMNS}"));
        }
        let (rows, n_heads) = (self.c.rows(*x), self.c.cols(*x) / head_dim);
        let arguments = RopeArguments {
            n_rows: 0,
            n_heads: n_heads as u32,
            head_dim: *head_dim as u32,
            n_dims: *n_dims as u32,
            interleaved: interleaved(*style),
            scale: *scale,
            x: self.c.value(*x)?,
            frequencies: self.c.vector(*frequencies)?,
            positions: self.c.step_place(self.c.step.positions),
            out: self.c.value(*out)?,
        };
        self.push(
            Call::new("rope.cu", rows, [blocks(n_heads, 4), each(rows), ONE], 128, &[*out]),
            &arguments,
        );
        Ok(())
    }

    /// Adds a scan over heads whose states are matrices: one block per head and span.
    fn scan(&mut self, file: &str, arguments: ScanArguments, state: StateId, out: ValueId) -> Result<()> {
        let c = self.c;
        if arguments.rows as usize > MOST_STATE_ROWS {
            return failed(format!("a state of {} rows, expected at most {MOST_STATE_ROWS}", arguments.rows));
        }
        let rows = c.rows(out);
        let arguments = ScanArguments {
            n_spans: c.limits.max_spans as u32,
            spans: c.step_place(c.step.spans),
            states: c.places.states + 4 * c.plan.kv.state_range(state).start as u64,
            state_stride: c.plan.kv.state_len() as u64,
            out: c.value(out)?,
            ..arguments
        };
        let grid = [Extent::Fixed(arguments.n_heads), each(rows), ONE];
        let threads = arguments.cols.next_multiple_of(32).min(256);
        self.push(Call::new(file, rows, grid, threads, &[out]), &arguments);
        Ok(())
    }

    /// Adds a kernel over spans, with one block per group of columns.
    fn of_spans(
        &mut self,
        file: &str,
        cols: usize,
        threads: u32,
        out: ValueId,
        arguments: SpanArguments,
    ) -> Result<()> {
        let c = self.c;
        let rows = c.rows(out);
        let arguments = SpanArguments {
            n_spans: c.limits.max_spans as u32,
            spans: c.step_place(c.step.spans),
            row_spans: c.step_place(c.step.row_spans),
            rows: c.step_place(c.step.outputs),
            out: c.value(out)?,
            ..arguments
        };
        let grid = [blocks(cols, threads as usize), each(rows), ONE];
        self.push(Call::new(file, rows, grid, threads, &[out]), &arguments);
        Ok(())
    }

    /// Adds a collective of the GPU's group. The class of rows sets the number of blocks, so that
    /// it is the same on each rank.
    fn collective(&mut self, kind: CollectiveKind, x: ValueId, out: ValueId) -> Result<()> {
        let c = self.c;
        let Some(rank) = &c.places.rank else { return failed(format!("{kind} on a GPU without a group")) };
        let (rows, cols) = (c.rows(x), c.cols(x));
        let arguments = CollectiveArguments {
            cols: cols as u32,
            rank: rank.index as u32,
            n_ranks: rank.n as u32,
            is_alone: u32::from(rank.is_alone),
            x: c.value(x)?,
            out: c.value(out)?,
            epochs: rank.epochs(),
            inboxes: rank.inboxes(),
            ..Default::default()
        };
        let most = self.class(rows).most().unwrap_or(usize::MAX).min(max_rows(c.limits, rows));
        // With many rows a thread moves four neighbouring values at once.
        let many = self.class(rows) == RowClass::Many && cols.is_multiple_of(4);
        let name = match (kind, many) {
            (CollectiveKind::AllReduce, false) => "all_reduce",
            (CollectiveKind::AllReduce, true) => "all_reduce_many",
            (CollectiveKind::AllGather, false) => "all_gather",
            (CollectiveKind::AllGather, true) => "all_gather_many",
        };
        let most_blocks = if many { BLOCKS_MANY } else { BLOCKS };
        let n_blocks = (most * cols).div_ceil(COLLECTIVE_VALUES).clamp(1, most_blocks);
        let grid = [Extent::Fixed(n_blocks as u32), ONE, ONE];
        let writes = [out];
        let call = Call::new("collective.cu", rows, grid, 512, &writes);
        self.push(Call { name, ..call }, &arguments);
        Ok(())
    }

    pub(super) fn primitive(&mut self, op: &Op) -> Result<()> {
        let c = self.c;
        match op {
            Op::Embed { table, scale, out } => {
                self.embed(*table, *scale, c.step_place(c.step.tokens), c.places.chosen, *out)
            }
            Op::EmbedPositions { table, out } => {
                self.embed(*table, 1.0, c.step_place(c.step.positions), 0, *out)
            }
            Op::RmsNorm { x, weight, eps, group, out } => {
                self.rms_norm(*x, Norm { weight: *weight, eps: *eps }, *group, *out)
            }
            Op::LayerNorm { x, weight, bias, eps, out } => {
                let (rows, cols) = (c.rows(*x), c.cols(*x));
                let arguments = NormArguments {
                    cols: cols as u32,
                    eps: *eps,
                    x: c.value(*x)?,
                    weight: c.vector(*weight)?,
                    bias: c.vector_or_null(*bias)?,
                    out: c.value(*out)?,
                    ..Default::default()
                };
                self.push(Call::new("layer_norm.cu", rows, [ONE, each(rows), ONE], 256, &[*out]), &arguments);
                Ok(())
            }
            Op::Rope { .. } => self.rope(op),
            Op::Pool { x, kind, out } => {
                let kind = match kind {
                    Pooling::Mean => 0,
                    Pooling::First => 1,
                    Pooling::Last => 2,
                };
                let cols = c.cols(*out);
                let arguments =
                    SpanArguments { cols: cols as u32, kind, x: c.value(*x)?, ..Default::default() };
                self.of_spans("pool.cu", cols, 256, *out, arguments)
            }
            Op::Unfold { x, size, stride, out } => {
                let arguments = SpanArguments {
                    cols: c.cols(*x) as u32,
                    size: *size as u32,
                    stride: *stride as u32,
                    kind: c.rows(*out).per_token().unwrap_or(1) as u32,
                    x: c.value(*x)?,
                    ..Default::default()
                };
                self.of_spans("unfold.cu", c.cols(*out), 256, *out, arguments)
            }
            Op::ShortConv { x, weight, bias, state, out } => {
                let cols = c.cols(*x);
                let arguments = SpanArguments {
                    cols: cols as u32,
                    size: c.plan.weight(*weight).n_cols() as u32,
                    x: c.value(*x)?,
                    weight: c.vector(*weight)?,
                    bias: c.vector_or_null(*bias)?,
                    states: c.places.states + 4 * c.plan.kv.state_range(*state).start as u64,
                    state_stride: c.plan.kv.state_len() as u64,
                    ..Default::default()
                };
                // A step has no more spans than rows.
                self.of_spans("short_conv.cu", cols, 128, *out, arguments)
            }
            Op::GatedDelta { q, k, v, step, beta, rate, n_key_heads, n_heads, tiled, scale, state, out } => {
                let rows = c.cols(*k) / n_key_heads;
                let arguments = ScanArguments {
                    n_heads: *n_heads as u32,
                    n_shared: *n_key_heads as u32,
                    rows: rows as u32,
                    cols: (c.cols(*v) / n_heads) as u32,
                    tiled: u32::from(*tiled),
                    step_per_row: u32::from(c.cols(*step) != *n_heads),
                    scale: *scale,
                    x: c.value(*v)?,
                    k: c.value(*k)?,
                    q: c.value(*q)?,
                    step: c.value(*step)?,
                    beta: c.value(*beta)?,
                    rate: c.vector(*rate)?,
                    ..Default::default()
                };
                self.scan("gated_delta.cu", arguments, *state, *out)
            }
            Op::SelectiveScan { x, b, c: from, step, rate, skip, n_groups, n_heads, state, out } => {
                let arguments = ScanArguments {
                    n_heads: *n_heads as u32,
                    n_shared: *n_groups as u32,
                    rows: (c.cols(*b) / n_groups) as u32,
                    cols: (c.cols(*x) / n_heads) as u32,
                    x: c.value(*x)?,
                    k: c.value(*b)?,
                    q: c.value(*from)?,
                    step: c.value(*step)?,
                    rate: c.vector(*rate)?,
                    skip: c.vector_or_null(*skip)?,
                    ..Default::default()
                };
                self.scan("selective_scan.cu", arguments, *state, *out)
            }
            Op::Route { x, normalise, factor, scores, bias, groups, scales, ids, weights } => {
                let groups = groups.unwrap_or(RouterGroups { n: 0, n_used: 0, n_best: 0 });
                let (rows, n_experts) = (c.rows(*x), c.cols(*x));
                let arguments = RouteArguments {
                    n_rows: 0,
                    n_experts: n_experts as u32,
                    k: c.cols(*ids) as u32,
                    normalise: u32::from(*normalise),
                    factor: *factor,
                    sigmoid: u32::from(*scores == RouterScores::Sigmoid),
                    n_groups: groups.n as u32,
                    n_used: groups.n_used as u32,
                    n_best: groups.n_best as u32,
                    reserved: 0,
                    x: c.value(*x)?,
                    bias: c.vector_or_null(*bias)?,
                    scales: c.vector_or_null(*scales)?,
                    ids: c.value(*ids)?,
                    weights: c.value(*weights)?,
                };
                let writes = [*ids, *weights];
                let call = Call::new("route.cu", rows, [each(rows), ONE, ONE], 32, &writes);
                self.push(Call { shared: ((2 * n_experts + groups.n) * 4) as u32, ..call }, &arguments);
                Ok(())
            }
            Op::ExpertLinear { x, ids, weight, out } => self.expert_linear(*x, *ids, *weight, *out),
            Op::ExpertSum { x, weights, out } => self.expert_sum(*x, *weights, None, *out),
            Op::Argmax { x, .. } => self.choose(*x),
            Op::KvWrite { k, v, layer } => self.kv_write(*k, *v, *layer),
            Op::Attention { .. } => self.attention(op),
            Op::CrossAttention { q, layer, n_heads, scale, out } => {
                let (n_heads, scale, out) = (*n_heads, *scale, *out);
                let (softcap, window, sinks, chunked, both_ways) = (None, None, None, false, false);
                let of = AttentionOf { n_heads, scale, softcap, window, chunked, both_ways, sinks, out };
                self.attend_layer(*q, *layer, &of)
            }
            Op::SelfAttention { q, k, v, n_heads, scale, window, out } => {
                self.self_attention([*q, *k, *v], *n_heads, *scale, *window, *out)
            }
            Op::CrossScores { q, layer, n_heads, heads, scale, out } => {
                self.cross_scores(*q, *layer, *n_heads, heads, *scale, *out)
            }
            Op::Adapters { out, .. } => {
                let kind = u32::from(c.rows(*out).per_token().is_none());
                self.of_spans("adapters.cu", 1, 32, *out, SpanArguments { kind, ..Default::default() })
            }
            Op::Collective { kind, x, out } => self.collective(*kind, *x, *out),
            Op::Activate { .. }
            | Op::Gate { .. }
            | Op::GateClamped { .. }
            | Op::Add { .. }
            | Op::Scale { .. }
            | Op::Softcap { .. }
            | Op::Clamp { .. }
            | Op::Columns { .. }
            | Op::Join { .. }
            | Op::ExpertBias { .. }
            | Op::SelectRows { .. }
            | Op::Input { .. }
            | Op::Ordinals { .. } => match signature(c.plan, op) {
                Some(of) => self.element(&of),
                None => failed(format!("{:?} was not lowered", op.kind())),
            },
            Op::Linear { .. } | Op::Fused { .. } => failed(format!("{:?} was not lowered", op.kind())),
        }
    }

    pub(super) fn expert_sum(
        &mut self,
        x: ValueId,
        weights: ValueId,
        residual: Option<ValueId>,
        out: ValueId,
    ) -> Result<()> {
        let (rows, cols) = (self.c.rows(out), self.c.cols(out));
        let arguments = ExpertSumArguments {
            n_rows: 0,
            k: self.c.cols(weights) as u32,
            cols: cols as u32,
            reserved: 0,
            x: self.c.value(x)?,
            weights: self.c.value(weights)?,
            residual: residual.map_or(Ok(0), |id| self.c.value(id))?,
            out: self.c.value(out)?,
        };
        let grid = [blocks(cols, 256), each(rows), ONE];
        self.push(Call::new("expert_sum.cu", rows, grid, 256, &[out]), &arguments);
        Ok(())
    }

    /// Adds the kernels that apply biases, masks and penalties to logits, and that choose the best
    /// or a random token.
    fn choose(&mut self, x: ValueId) -> Result<()> {
        let c = self.c;
        let (rows, cols) = (c.rows(x), c.cols(x));
        let arguments = ChooseArguments {
            n_rows: 0,
            cols: cols as u32,
            logits: c.value(x)?,
            choices: c.step_place(c.step.choices),
            recent: c.step_place(c.step.recent),
            pending: c.step_place(c.step.pending),
            chosen: c.places.chosen,
            host_chosen: c.places.host_chosen,
            bests: c.scratch_place(BESTS),
            biases: c.step_place(c.step.biases),
            masks: c.places.masks,
        };
        let parts = Extent::Fixed(BEST_PARTS as u32);
        let one = [each(rows), ONE, ONE];
        for (file, name, grid, threads, when) in [
            ("sampling/masks.cu", "masks", [parts, each(rows), ONE], 256, When::Masks),
            ("sampling/penalties.cu", "penalties", one, 256, When::Penalties),
            ("argmax.cu", "argmax", [parts, each(rows), ONE], 256, self.best),
            ("argmax.cu", "argmax_end", one, 32, self.best),
            ("sampling/sample.cu", "sample", one, 1024, When::Sample),
        ] {
            self.push(Call { name, when, ..Call::new(file, rows, grid, threads, &[]) }, &arguments);
        }
        Ok(())
    }
}
