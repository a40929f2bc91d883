//! Units of a plan: each node becomes one [`CpuUnit`], or several if no kernel runs its fused Op as
//! a whole. Units name values and weights, and own no memory.

use device::{FusedKind, Op, Plan, ValueId, WeightId};
use device_lower::fields::{
    HeadChain, NormAdd, Projection, QkRopeKv, RopeOf, norm_add, projection, qk_rope_kv, units_of_nodes,
};

/// Key of a RoPE table: Ropes with the same key share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RopeKey {
    /// `(n_dims / 2)`
    pub frequencies: WeightId,
    /// Columns of a head that are rotated.
    pub n_dims: usize,
    /// Bits of the factor on cosine and sine, an f32.
    pub scale: u32,
}

impl RopeKey {
    /// The key of a Rope. Frequencies with equal values get the same key, even if they are
    /// different weights.
    pub fn new(plan: &Plan, frequencies: WeightId, n_dims: usize, scale: f32) -> RopeKey {
        let data = &plan.weight(frequencies).data;
        let first = plan.weights.iter().position(|w| w.data.len() == data.len() && w.data[..] == data[..]);
        let frequencies = first.map_or(frequencies, |index| WeightId(index as u32));
        RopeKey { frequencies, n_dims, scale: scale.to_bits() }
    }

    /// The key of heads that are rotated.
    pub fn of(plan: &Plan, rope: RopeOf) -> RopeKey {
        RopeKey::new(plan, rope.frequencies, rope.n_dims, rope.scale)
    }
}

/// A unit of one or two commands.
#[derive(Clone, Debug, PartialEq)]
pub enum CpuUnit {
    /// A primitive other than Linear.
    Primitive(Op),
    /// Linears, with a norm before them and an epilogue.
    Projection(Projection),
    /// A norm and a residual sum.
    NormAdd(NormAdd),
    /// Norm and RoPE of q and k, and KvWrite of k and v.
    QkRopeKv(QkRopeKv),
}

/// A unit and the node that it comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeUnit {
    /// Index of the plan's node.
    pub node: usize,
    /// The unit.
    pub unit: CpuUnit,
}

/// Destination of the heads, if a value outside the KV cache is read.
pub fn out_of(chain: &HeadChain) -> Option<ValueId> {
    (chain.escapes && !chain.is_empty()).then_some(chain.end)
}

impl CpuUnit {
    /// Values that the unit writes to memory.
    pub fn writes(&self) -> Vec<ValueId> {
        match self {
            CpuUnit::Primitive(op) => op.writes(),
            CpuUnit::Projection(p) => p.writes(),
            CpuUnit::NormAdd(NormAdd { out, .. }) => vec![*out],
            CpuUnit::QkRopeKv(QkRopeKv { q, k, .. }) => q.iter().chain([k]).filter_map(out_of).collect(),
        }
    }
}

/// Units of a checked plan, in order.
pub fn units_of(plan: &Plan) -> Vec<NodeUnit> {
    let whole = |kind: FusedKind, parts: &[Op], escaping: &[ValueId]| recognise(plan, kind, parts, escaping);
    let units = units_of_nodes(plan, whole, CpuUnit::writes, primitive).into_iter();
    units.map(|(node, unit)| NodeUnit { node, unit }).collect()
}

fn primitive(op: &Op) -> CpuUnit {
    let Op::Linear { x, weight, bias, out } = op else { return CpuUnit::Primitive(op.clone()) };
    CpuUnit::Projection(Projection::single(*x, *weight, *bias, *out))
}

/// The unit that runs a fused Op as a whole, if there is one.
fn recognise(plan: &Plan, kind: FusedKind, parts: &[Op], escaping: &[ValueId]) -> Option<CpuUnit> {
    match kind {
        FusedKind::NormLinear | FusedKind::NormGateUp | FusedKind::GateUp | FusedKind::LinearAdd => {
            projection(plan, parts).map(CpuUnit::Projection)
        }
        FusedKind::NormAdd => norm_add(plan, parts).map(CpuUnit::NormAdd),
        FusedKind::QkNormRopeKvWrite => qk_rope_kv(plan, parts, escaping).map(CpuUnit::QkRopeKv),
        FusedKind::QkNormRopeKvAttention => None,
    }
}

/// Distinct RoPE tables of the plan, in order of first use.
pub fn rope_tables(plan: &Plan, units: &[NodeUnit]) -> Vec<RopeKey> {
    let mut keys = Vec::new();
    for NodeUnit { unit, .. } in units {
        let found = match unit {
            CpuUnit::Primitive(Op::Rope { frequencies, n_dims, scale, .. }) => {
                vec![RopeKey::new(plan, *frequencies, *n_dims, *scale)]
            }
            CpuUnit::QkRopeKv(QkRopeKv { q, k, .. }) => {
                q.iter().chain([k]).filter_map(|c| Some(RopeKey::of(plan, c.rope?))).collect()
            }
            CpuUnit::Primitive(_) | CpuUnit::Projection(_) | CpuUnit::NormAdd(_) => vec![],
        };
        for key in found {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;
    use device_lower::fields::Tail;
    use device_lower::fusion::{self, fuse};
    use device_testing::{PlanBuilder, mini_transformer};
    use weights::BlockType;

    fn fused(plan: &Plan) -> Vec<NodeUnit> {
        units_of(&fuse(plan, crate::profile::RULES))
    }

    #[test]
    fn a_fused_transformer_is_six_units_a_layer() {
        let plan = mini_transformer(1, BlockType::Q8_0);
        let units = fused(&plan);
        let kinds: String = units
            .iter()
            .map(|l| match &l.unit {
                CpuUnit::Projection(p) => match p.tail {
                    Tail::Store if p.norm.is_some() => 'N',
                    Tail::Store => 'L',
                    Tail::Add { .. } => 'A',
                    Tail::Gate { .. } => 'G',
                },
                CpuUnit::QkRopeKv(QkRopeKv { q: Some(_), .. }) => 'K',
                CpuUnit::Primitive(Op::Attention { .. }) => 'T',
                CpuUnit::Primitive(Op::Embed { .. }) => 'e',
                CpuUnit::Primitive(Op::SelectRows { .. }) => 's',
                CpuUnit::Primitive(Op::Argmax { .. }) => 'm',
                CpuUnit::Primitive(_) | CpuUnit::NormAdd(_) | CpuUnit::QkRopeKv(_) => '?',
            })
            .collect();
        assert_eq!(kinds, "eNKTAGA".to_owned() + "sNKTsAGA" + "Nm");
        // Without fusion every Op is a unit, and the Linears have neither norm nor epilogue.
        assert_eq!(units_of(&plan).len(), plan.nodes.len());
    }

    /// A value that other nodes read must be written, so a norm that a fourth Linear reads is not
    /// fused away.
    #[test]
    fn a_fused_op_whose_inside_is_read_elsewhere_is_taken_apart() {
        let mut b = PlanBuilder::new(1, 50);
        let x = b.embed(32);
        let norm = b.rms_norm(x, 32);
        let outs: Vec<ValueId> = (0..4).map(|_| b.linear(norm, 32, BlockType::F32, false)).collect();
        let sum = outs[1..].iter().fold(outs[0], |sum, out| b.add(sum, *out));
        let plan = b.finish(sum);
        let units = fused(&plan);
        assert!(fuse(&plan, crate::profile::RULES).nodes.len() < plan.nodes.len(), "the rule applies");
        let written: Vec<ValueId> = units.iter().flat_map(|l| l.unit.writes()).collect();
        assert!(written.contains(&norm));
        assert!(units.iter().any(|l| matches!(l.unit, CpuUnit::Primitive(Op::RmsNorm { .. }))));
    }

    /// Rules of other devices may have fused the plan.
    #[test]
    fn every_rule_there_is_can_be_lowered() {
        let plan = mini_transformer(1, BlockType::Q4_0);
        let fused = fuse(&plan, fusion::ALL);
        let written: Vec<ValueId> = units_of(&fused).iter().flat_map(|l| l.unit.writes()).collect();
        for (node, escaping) in fused.escaping().iter().enumerate() {
            assert!(escaping.iter().all(|id| written.contains(id)), "node {node}");
        }
    }

    #[test]
    fn equal_frequencies_share_a_table() {
        let plan = mini_transformer(1, BlockType::F32);
        let ropes = plan.primitives().filter(|op| matches!(op, Op::Rope { .. })).count();
        assert_eq!((ropes, rope_tables(&plan, &fused(&plan)).len()), (4, 1));
    }
}
