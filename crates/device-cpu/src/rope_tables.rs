//! The RoPE tables that the units of a plan read.

use device::{Op, Plan, WeightId};
use device_lower::fields::{Fields, QkRopeKv, RopeOf};

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

/// Distinct RoPE tables of the plan, in order of first use.
pub fn rope_tables(plan: &Plan, units: &[(usize, Fields)]) -> Vec<RopeKey> {
    let mut keys = Vec::new();
    for (_, unit) in units {
        let found = match unit {
            Fields::Primitive(Op::Rope { frequencies, n_dims, scale, .. }) => {
                vec![RopeKey::new(plan, *frequencies, *n_dims, *scale)]
            }
            Fields::QkRopeKv(QkRopeKv { q, k, .. }) => {
                q.iter().chain([k]).filter_map(|c| Some(RopeKey::of(plan, c.rope?))).collect()
            }
            Fields::Primitive(_) | Fields::Projection(_) | Fields::NormAdd(_) => vec![],
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
    use crate::profile::RULES;
    use device::ValueId;
    use device_lower::fields::{Tail, fields_of_nodes};
    use device_lower::fusion::{self, fuse};
    use device_testing::{PlanBuilder, mini_transformer};
    use weights::BlockType;

    fn fused(plan: &Plan) -> Vec<(usize, Fields)> {
        fields_of_nodes(&fuse(plan, RULES), RULES)
    }

    #[test]
    fn a_fused_transformer_is_six_units_a_layer() {
        let plan = mini_transformer(1, BlockType::Q8_0);
        let units = fused(&plan);
        let kinds: String = units
            .iter()
            .map(|(_, unit)| match unit {
                Fields::Projection(p) => match p.tail {
                    Tail::Store if p.norm.is_some() => 'N',
                    Tail::Store => 'L',
                    Tail::Add { .. } => 'A',
                    Tail::Gate { .. } => 'G',
                },
                Fields::QkRopeKv(QkRopeKv { q: Some(_), .. }) => 'K',
                Fields::Primitive(Op::Attention { .. }) => 'T',
                Fields::Primitive(Op::Embed { .. }) => 'e',
                Fields::Primitive(Op::SelectRows { .. }) => 's',
                Fields::Primitive(Op::Argmax { .. }) => 'm',
                Fields::Primitive(_) | Fields::NormAdd(_) | Fields::QkRopeKv(_) => '?',
            })
            .collect();
        assert_eq!(kinds, "eNKTAGA".to_owned() + "sNKTsAGA" + "Nm");
        // Without fusion every Op is a unit, and the Linears have neither norm nor epilogue.
        assert_eq!(fields_of_nodes(&plan, RULES).len(), plan.nodes.len());
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
        assert!(fuse(&plan, RULES).nodes.len() < plan.nodes.len(), "the rule applies");
        let written: Vec<ValueId> = units.iter().flat_map(|(_, unit)| unit.writes()).collect();
        assert!(written.contains(&norm));
        assert!(units.iter().any(|(_, unit)| matches!(unit, Fields::Primitive(Op::RmsNorm { .. }))));
    }

    /// Rules of other devices may have fused the plan.
    #[test]
    fn every_rule_there_is_can_be_lowered() {
        let plan = mini_transformer(1, BlockType::Q4_0);
        let fused = fuse(&plan, fusion::ALL);
        let written: Vec<ValueId> =
            fields_of_nodes(&fused, RULES).iter().flat_map(|(_, unit)| unit.writes()).collect();
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
