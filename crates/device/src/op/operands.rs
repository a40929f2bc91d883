//! Which values and weights an operation reads and writes.

use super::Op;
use crate::{ValueId, WeightId};

impl Op {
    /// Values read, in the order of the fields. Of a fused Op: those that none of its parts writes.
    pub fn reads(&self) -> Vec<ValueId> {
        match self {
            Op::Embed { .. }
            | Op::EmbedPositions { .. }
            | Op::Input { .. }
            | Op::Ordinals { .. }
            | Op::Adapters { .. } => vec![],
            Op::RmsNorm { x, .. }
            | Op::Linear { x, .. }
            | Op::Rope { x, .. }
            | Op::Activate { x, .. }
            | Op::Scale { x, .. }
            | Op::Softcap { x, .. }
            | Op::Clamp { x, .. }
            | Op::Columns { x, .. }
            | Op::Route { x, .. }
            | Op::SelectRows { x, .. }
            | Op::Argmax { x, .. }
            | Op::LayerNorm { x, .. }
            | Op::Pool { x, .. }
            | Op::Unfold { x, .. }
            | Op::ShortConv { x, .. }
            | Op::Collective { x, .. } => vec![*x],
            Op::KvWrite { k, v, .. } => vec![*k, *v],
            Op::Attention { q, .. } | Op::CrossAttention { q, .. } | Op::CrossScores { q, .. } => vec![*q],
            Op::Gate { gate, up, .. } | Op::GateClamped { gate, up, .. } => vec![*gate, *up],
            Op::Add { a, b, .. } | Op::Join { a, b, .. } => vec![*a, *b],
            Op::ExpertLinear { x, ids, .. } | Op::ExpertBias { x, ids, .. } => vec![*x, *ids],
            Op::ExpertSum { x, weights, .. } => vec![*x, *weights],
            Op::Fused { parts, .. } => {
                let written: Vec<_> = parts.iter().flat_map(Op::writes).collect();
                let mut reads = Vec::new();
                for id in parts.iter().flat_map(Op::reads) {
                    if !written.contains(&id) && !reads.contains(&id) {
                        reads.push(id);
                    }
                }
                reads
            }
            Op::SelfAttention { q, k, v, .. } => vec![*q, *k, *v],
            Op::GatedDelta { q, k, v, step, beta, .. } => vec![*q, *k, *v, *step, *beta],
            Op::SelectiveScan { x, b, c, step, .. } => vec![*x, *b, *c, *step],
        }
    }

    /// Values written. Of a fused Op: all that its parts write, those that nobody outside reads included.
    pub fn writes(&self) -> Vec<ValueId> {
        match self {
            Op::Embed { out, .. }
            | Op::RmsNorm { out, .. }
            | Op::Linear { out, .. }
            | Op::Rope { out, .. }
            | Op::Attention { out, .. }
            | Op::Activate { out, .. }
            | Op::Gate { out, .. }
            | Op::Add { out, .. }
            | Op::Scale { out, .. }
            | Op::Softcap { out, .. }
            | Op::Clamp { out, .. }
            | Op::Columns { out, .. }
            | Op::ExpertLinear { out, .. }
            | Op::ExpertSum { out, .. }
            | Op::SelectRows { out, .. }
            | Op::Argmax { out, .. }
            | Op::LayerNorm { out, .. }
            | Op::EmbedPositions { out, .. }
            | Op::SelfAttention { out, .. }
            | Op::Pool { out, .. }
            | Op::Input { out }
            | Op::Unfold { out, .. }
            | Op::CrossAttention { out, .. }
            | Op::CrossScores { out, .. }
            | Op::ShortConv { out, .. }
            | Op::GatedDelta { out, .. }
            | Op::SelectiveScan { out, .. }
            | Op::ExpertBias { out, .. }
            | Op::GateClamped { out, .. }
            | Op::Join { out, .. }
            | Op::Ordinals { out }
            | Op::Adapters { out, .. }
            | Op::Collective { out, .. } => vec![*out],
            Op::Route { ids, weights, .. } => vec![*ids, *weights],
            Op::KvWrite { .. } => vec![],
            Op::Fused { parts, .. } => parts.iter().flat_map(Op::writes).collect(),
        }
    }

    /// Weights read.
    pub fn weights(&self) -> Vec<WeightId> {
        match self {
            Op::Embed { table, .. } | Op::EmbedPositions { table, .. } => vec![*table],
            Op::RmsNorm { weight, .. } => weight.iter().copied().collect(),
            Op::Linear { weight, bias, .. }
            | Op::LayerNorm { weight, bias, .. }
            | Op::ShortConv { weight, bias, .. } => std::iter::once(*weight).chain(*bias).collect(),
            Op::Rope { frequencies, .. } => vec![*frequencies],
            Op::ExpertLinear { weight, .. } => vec![*weight],
            Op::Route { bias, scales, .. } => bias.iter().chain(scales).copied().collect(),
            Op::ExpertBias { bias, .. } => vec![*bias],
            Op::Attention { sinks, .. } => sinks.iter().copied().collect(),
            Op::Fused { parts, .. } => parts.iter().flat_map(Op::weights).collect(),
            Op::GatedDelta { rate, .. } => vec![*rate],
            Op::SelectiveScan { rate, skip, .. } => std::iter::once(*rate).chain(*skip).collect(),
            Op::KvWrite { .. }
            | Op::GateClamped { .. }
            | Op::Join { .. }
            | Op::Ordinals { .. }
            | Op::Adapters { .. }
            | Op::Collective { .. }
            | Op::Activate { .. }
            | Op::Gate { .. }
            | Op::Add { .. }
            | Op::Scale { .. }
            | Op::Softcap { .. }
            | Op::Clamp { .. }
            | Op::Columns { .. }
            | Op::ExpertSum { .. }
            | Op::SelectRows { .. }
            | Op::Argmax { .. }
            | Op::SelfAttention { .. }
            | Op::Pool { .. }
            | Op::Input { .. }
            | Op::Unfold { .. }
            | Op::CrossAttention { .. }
            | Op::CrossScores { .. } => vec![],
        }
    }

    /// The primitives: the parts of a fused Op, or the Op itself.
    pub fn primitives(&self) -> &[Op] {
        match self {
            Op::Fused { parts, .. } => parts,
            op => std::slice::from_ref(op),
        }
    }
}
