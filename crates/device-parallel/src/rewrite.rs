//! An Op with other ids for what it reads.

use device::{Op, ValueId, WeightId};

/// The Op with each value that it reads and each weight replaced; what it writes stays.
pub fn rewrite(
    op: &Op,
    values: &mut dyn FnMut(ValueId) -> ValueId,
    weights: &mut dyn FnMut(WeightId) -> WeightId,
) -> Op {
    let mut op = op.clone();
    let optional = |id: &mut Option<WeightId>, weights: &mut dyn FnMut(WeightId) -> WeightId| {
        if let Some(id) = id {
            *id = weights(*id);
        }
    };
    let mut each = |ids: &mut [&mut ValueId]| ids.iter_mut().for_each(|id| **id = values(**id));
    match &mut op {
        Op::Embed { table, .. } | Op::EmbedPositions { table, .. } => *table = weights(*table),
        Op::RmsNorm { x, weight, .. } => {
            each(&mut [x]);
            optional(weight, weights);
        }
        Op::LayerNorm { x, weight, bias, .. }
        | Op::Linear { x, weight, bias, .. }
        | Op::ShortConv { x, weight, bias, .. } => {
            each(&mut [x]);
            *weight = weights(*weight);
            optional(bias, weights);
        }
        Op::Rope { x, frequencies, .. } => {
            each(&mut [x]);
            *frequencies = weights(*frequencies);
        }
        Op::KvWrite { k, v, .. } => each(&mut [k, v]),
        Op::Attention { q, sinks, .. } => {
            each(&mut [q]);
            optional(sinks, weights);
        }
        Op::CrossAttention { q, .. } | Op::CrossScores { q, .. } => each(&mut [q]),
        Op::SelfAttention { q, k, v, .. } => each(&mut [q, k, v]),
        Op::Activate { x, .. }
        | Op::Scale { x, .. }
        | Op::Softcap { x, .. }
        | Op::Clamp { x, .. }
        | Op::Columns { x, .. }
        | Op::SelectRows { x, .. }
        | Op::Argmax { x, .. }
        | Op::Pool { x, .. }
        | Op::Unfold { x, .. }
        | Op::Collective { x, .. } => each(&mut [x]),
        Op::Gate { gate, up, .. } | Op::GateClamped { gate, up, .. } => each(&mut [gate, up]),
        Op::Add { a, b, .. } | Op::Join { a, b, .. } => each(&mut [a, b]),
        Op::Route { x, bias, scales, .. } => {
            each(&mut [x]);
            optional(bias, weights);
            optional(scales, weights);
        }
        Op::ExpertLinear { x, ids, weight, .. } => {
            each(&mut [x, ids]);
            *weight = weights(*weight);
        }
        Op::ExpertBias { x, ids, bias, .. } => {
            each(&mut [x, ids]);
            *bias = weights(*bias);
        }
        Op::ExpertSum { x, weights, .. } => each(&mut [x, weights]),
        Op::GatedDelta { q, k, v, step, beta, rate, .. } => {
            each(&mut [q, k, v, step, beta]);
            *rate = weights(*rate);
        }
        Op::SelectiveScan { x, b, c, step, rate, skip, .. } => {
            each(&mut [x, b, c, step]);
            *rate = weights(*rate);
            optional(skip, weights);
        }
        Op::Fused { parts, .. } => {
            parts.iter_mut().for_each(|part| *part = rewrite(part, values, weights));
        }
        Op::Ordinals { .. } | Op::Adapters { .. } | Op::Input { .. } => {}
    }
    op
}
