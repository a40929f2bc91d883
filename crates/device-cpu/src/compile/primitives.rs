//! Parameters of the kernel of each primitive.
//!
//! The GPUs share a table of kernel signatures (`device-gpu`). The CPU binds each Op here, because
//! its parameters are addresses in structs of their own, and the shape and the instruction set
//! select an instance of the kernel.

use std::ptr::null;

use device::{Numerics, Op, ValueId};
use device_lower::fields::RopeOf;

use super::{Compiler, Table};
use crate::command::Command;
use crate::kernels::attention::tile::Shape;
use crate::kernels::{
    activate, adapters, add, argmax, attention, clamped, columns, cross_attention, cross_scores, elementwise,
    embed, embed_positions, expert_bias, expert_sum, gate, gate_clamped, input, join, kv_write, layer_norm,
    ordinals, pool, recurrence, rms_norm, rope, route, scale, select_rows, self_attention, short_conv,
    softcap, unfold,
};
use crate::layout::schedule_shape;

impl Compiler<'_> {
    pub(super) fn primitive(&self, table: &mut Table, node: usize, op: &Op) {
        let isa = self.isa;
        let element_wise =
            |a: ValueId, b: ValueId, out: ValueId, factor: f32| elementwise::ElementwiseParams {
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
                let params = embed::EmbedParams {
                    table: self.matrix(*table),
                    cols: weight.n_cols(),
                    scale: *scale,
                    out: self.value(*out),
                };
                (Command::new(embed::embed, params), "embed")
            }
            Op::RmsNorm { x, weight, eps, group, out } => {
                let params = rms_norm::RmsNormParams {
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
                let params = rope::RopeParams {
                    x: self.value(*x),
                    out: self.value(*out),
                    cols: self.plan.value(*x).cols,
                    head_dim: *head_dim,
                    turn: self.turn(Some(rope)),
                };
                (Command::new(rope::rope(isa), params), "rope")
            }
            Op::KvWrite { k, v, layer } => {
                let params = kv_write::KvWriteParams {
                    k: self.value(*k),
                    v: self.value(*v),
                    pages: self.pages(*layer),
                };
                (Command::new(kv_write::kv_write(isa), params), "kv_write")
            }
            Op::Attention { q, layer, n_heads, scale, softcap, window, chunked, both_ways, sinks, out } => {
                let pages = self.pages(*layer);
                let schedule =
                    schedule_shape(self.plan, *layer, *n_heads, (*window, *chunked, *both_ways), *out);
                // The layout contains the shape of every Attention of its plan.
                let schedule = self.layout.attention.iter().position(|shape| *shape == schedule).unwrap_or(0);
                let params = attention::AttentionParams {
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
                let params = clamped::ClampedParams { of: element_wise(*x, *x, *out, *min), max: *max };
                (Command::new(clamped::clamped(isa), params), "clamped")
            }
            Op::Columns { x, first, group, out } => {
                let n_groups = self.plan.value(*x).cols / group;
                let params = columns::ColumnsParams {
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
                let params = route::RouteParams {
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
                let params = expert_bias::ExpertBiasParams {
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
                let params = gate_clamped::GateClampedParams {
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
                let params = join::JoinParams {
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
                let params = ordinals::OrdinalsParams {
                    out: self.value(*out).cast(),
                    k: value.cols,
                    rows: value.rows,
                };
                (Command::new(ordinals::ordinals, params), "ordinals")
            }
            Op::Adapters { out, .. } => {
                let params = adapters::AdaptersParams {
                    out: self.value(*out).cast(),
                    rows: self.plan.value(*out).rows,
                };
                (Command::new(adapters::adapters, params), "adapters")
            }
            Op::ExpertSum { x, weights, out } => {
                let params = expert_sum::ExpertSumParams {
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
                let params = select_rows::SelectRowsParams { x: self.value(*x), out: self.value(*out), cols };
                (Command::new(select_rows::select_rows, params), "select_rows")
            }
            Op::Argmax { x, out } => {
                let params = argmax::ArgmaxParams {
                    x: self.value(*x),
                    n_vocab: self.plan.value(*x).cols,
                    found: self.at.found,
                    out: self.value(*out).cast(),
                };
                (Command::new(argmax::argmax(isa), params), "argmax")
            }
            Op::LayerNorm { x, weight, bias, eps, out } => {
                let params = layer_norm::LayerNormParams {
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
                let params = embed_positions::EmbedPositionsParams {
                    table: self.matrix(*table),
                    cols: weight.n_cols(),
                    out: self.value(*out),
                };
                (Command::new(embed_positions::embed_positions, params), "embed_positions")
            }
            Op::SelfAttention { q, k, v, n_heads, scale, window, out } => {
                let cols = self.plan.value(*q).cols;
                let params = self_attention::SelfAttentionParams {
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
                let params = pool::PoolParams { x: self.value(*x), kind: *kind, cols, out: self.value(*out) };
                (Command::new(pool::pool(isa), params), "pool")
            }
            Op::Input { out } => {
                let (out, value) = (self.value(*out), self.plan.value(*out));
                (
                    Command::new(
                        input::input,
                        input::InputParams { out, cols: value.cols, rows: value.rows },
                    ),
                    "input",
                )
            }
            Op::Unfold { x, size, stride, out } => {
                let params = unfold::UnfoldParams {
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
                let params = short_conv::ShortConvParams {
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
                let params = recurrence::RecurrenceParams {
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
                let params = recurrence::RecurrenceParams {
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
                let params = cross_attention::CrossAttentionParams {
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
                    let params = cross_scores::CrossScoresParams {
                        q: self.value(*q),
                        out: self.value(*out),
                        out_cols: heads.len() * n_states,
                        first: index * n_states,
                        head: *head,
                        shape: self.memory_shape(*layer, *n_heads, *scale),
                        n_states,
                    };
                    let mut command = Command::new(kernel, params);
                    // Heads are independent, so a barrier follows only the last one.
                    command.sync = index + 1 == heads.len();
                    self.push(table, node, command, "cross_scores".into(), 0);
                }
                return;
            }
            // These Ops are not compiled here: Linears are projections, fused Ops were split, and
            // experts were compiled before. A device outside a group gets no collective.
            Op::Linear { .. } | Op::ExpertLinear { .. } | Op::Fused { .. } | Op::Collective { .. } => return,
        };
        self.push(table, node, command, name.into(), bytes);
    }
}
