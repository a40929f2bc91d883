//! From nodes to what the kernels run: each node becomes one [`Unit`], or, where no kernel runs a fused Op as a whole, one
//! for each of its parts. Pure: it names values and weights, and takes no memory.

use device::{FusedKind, Op, Plan, ValueId, WeightId};
use device_lower::fields::{
    HeadChain, NormAdd, Projection, QkRopeKv, RopeOf, norm_add, projection, qk_rope_kv, units_of_nodes,
};

/// Ropes with the same key share a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RopeKey {
    /// `(n_dims / 2)`
    pub frequencies: WeightId,
    /// Columns of a head that turn.
    pub n_dims: usize,
    /// Bits of the factor on cosine and sine.
    pub scale: u32,
}

impl RopeKey {
    /// Of a Rope. Frequencies with the same values are the same, whatever their weights.
    pub fn new(plan: &Plan, frequencies: WeightId, n_dims: usize, scale: f32) -> RopeKey {
        let data = &plan.weight(frequencies).data;
        let first = plan.weights.iter().position(|w| w.data.len() == data.len() && w.data[..] == data[..]);
        let frequencies = first.map_or(frequencies, |index| WeightId(index as u32));
        RopeKey { frequencies, n_dims, scale: scale.to_bits() }
    }

    /// Of heads that turn.
    pub fn of(plan: &Plan, rope: RopeOf) -> RopeKey {
        RopeKey::new(plan, rope.frequencies, rope.n_dims, rope.scale)
    }
}

/// What one or two commands run.
#[derive(Clone, Debug, PartialEq)]
pub enum Unit {
    /// A primitive other than Linear.
    Primitive(Op),
    /// Linears with what stands before and after them.
    Projection(Projection),
    /// A norm and a residual.
    NormAdd(NormAdd),
    /// Norm and Rope of q and k, KvWrite of k and v.
    QkRopeKv(QkRopeKv),
}

/// A unit and the node that it comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeUnit {
    /// Index of the plan's node.
    pub node: usize,
    /// What to run.
    pub unit: Unit,
}

/// Where heads go, if anybody reads them beside the cache.
pub fn out_of(chain: &HeadChain) -> Option<ValueId> {
    (chain.escapes && !chain.is_empty()).then_some(chain.end)
}

impl Unit {
    /// Values that are written to memory.
    pub fn writes(&self) -> Vec<ValueId> {
        match self {
            Unit::Primitive(op) => op.writes(),
            Unit::Projection(p) => p.writes(),
            Unit::NormAdd(NormAdd { out, .. }) => vec![*out],
            Unit::QkRopeKv(QkRopeKv { q, k, .. }) => q.iter().chain([k]).filter_map(out_of).collect(),
        }
    }
}

/// The units of a checked plan, in order.
pub fn lower(plan: &Plan) -> Vec<NodeUnit> {
    let whole = |kind: FusedKind, parts: &[Op], escaping: &[ValueId]| recognise(plan, kind, parts, escaping);
    let units = units_of_nodes(plan, whole, Unit::writes, primitive).into_iter();
    units.map(|(node, unit)| NodeUnit { node, unit }).collect()
}

fn primitive(op: &Op) -> Unit {
    match op {
        Op::Linear { x, weight, bias, out } => Unit::Projection(Projection::single(*x, *weight, *bias, *out)),
        op => Unit::Primitive(op.clone()),
    }
}

/// The unit that runs a fused Op as a whole, if there is one.
fn recognise(plan: &Plan, kind: FusedKind, parts: &[Op], escaping: &[ValueId]) -> Option<Unit> {
    match kind {
        FusedKind::NormLinear | FusedKind::NormGateUp | FusedKind::GateUp | FusedKind::LinearAdd => {
            projection(plan, parts).map(Unit::Projection)
        }
        FusedKind::NormAdd => norm_add(plan, parts).map(Unit::NormAdd),
        FusedKind::QkNormRopeKvWrite => qk_rope_kv(plan, parts, escaping).map(Unit::QkRopeKv),
        FusedKind::QkNormRopeKvAttention => None,
    }
}

/// The distinct tables that the plan's Ropes read, in order of their first use.
pub fn rope_tables(plan: &Plan, lowered: &[NodeUnit]) -> Vec<RopeKey> {
    let mut keys = Vec::new();
    for unit in lowered.iter().map(|l| &l.unit) {
        let found = match unit {
            Unit::Primitive(Op::Rope { frequencies, n_dims, scale, .. }) => {
                vec![RopeKey::new(plan, *frequencies, *n_dims, *scale)]
            }
            Unit::QkRopeKv(QkRopeKv { q, k, .. }) => {
                q.iter().chain([k]).filter_map(|c| Some(RopeKey::of(plan, c.rope?))).collect()
            }
            Unit::Primitive(_) | Unit::Projection(_) | Unit::NormAdd(_) => vec![],
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
        lower(&fuse(plan, crate::profile::RULES))
    }

    #[test]
    fn a_fused_transformer_is_six_units_a_layer() {
        let plan = mini_transformer(1, BlockType::Q8_0);
        let lowered = fused(&plan);
        let kinds: String = lowered
            .iter()
            .map(|l| match &l.unit {
                Unit::Projection(p) => match p.tail {
                    Tail::Store if p.norm.is_some() => 'N',
                    Tail::Store => 'L',
                    Tail::Add { .. } => 'A',
                    Tail::Gate { .. } => 'G',
                },
                Unit::QkRopeKv(QkRopeKv { q: Some(_), .. }) => 'K',
                Unit::Primitive(Op::Attention { .. }) => 'T',
                Unit::Primitive(Op::Embed { .. }) => 'e',
                Unit::Primitive(Op::SelectRows { .. }) => 's',
                Unit::Primitive(Op::Argmax { .. }) => 'm',
                Unit::Primitive(_) | Unit::NormAdd(_) | Unit::QkRopeKv(_) => '?',
            })
            .collect();
        assert_eq!(kinds, "eNKTAGA".to_owned() + "sNKTsAGA" + "Nm");
        // Not fused, every Op is a unit, and the Linears have no norm and no epilogue.
        assert_eq!(lower(&plan).len(), plan.nodes.len());
    }

    /// What others read must be written, so a norm that a fourth Linear reads is not swallowed.
    #[test]
    fn a_fused_op_whose_inside_is_read_elsewhere_is_taken_apart() {
        let mut b = PlanBuilder::new(1, 50);
        let x = b.embed(32);
        let norm = b.rms_norm(x, 32);
        let outs: Vec<ValueId> = (0..4).map(|_| b.linear(norm, 32, BlockType::F32, false)).collect();
        let sum = outs[1..].iter().fold(outs[0], |sum, out| b.add(sum, *out));
        let plan = b.finish(sum);
        let lowered = fused(&plan);
        assert!(fuse(&plan, crate::profile::RULES).nodes.len() < plan.nodes.len(), "the rule applies");
        let written: Vec<ValueId> = lowered.iter().flat_map(|l| l.unit.writes()).collect();
        assert!(written.contains(&norm));
        assert!(lowered.iter().any(|l| matches!(l.unit, Unit::Primitive(Op::RmsNorm { .. }))));
    }

    /// Rules of other profiles may have made the plan.
    #[test]
    fn every_rule_there_is_can_be_lowered() {
        let plan = mini_transformer(1, BlockType::Q4_0);
        let fused = fuse(&plan, fusion::ALL);
        let written: Vec<ValueId> = lower(&fused).iter().flat_map(|l| l.unit.writes()).collect();
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
