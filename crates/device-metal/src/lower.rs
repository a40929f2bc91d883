//! From nodes to what the kernels run: each node becomes one [`Unit`], or, where no kernel runs a fused Op as a whole, one
//! for each of its parts. Then neighbouring units of a mixture of experts are joined. Pure: it names values and weights,
//! and takes no memory.

use device::lower::{
    HeadChain, NormAdd, Projection, QkRopeKv, Tail, norm_add, other_of, projection, qk_rope_kv,
};
use device::{Activation, FusedKind, Op, Plan, ValueId, WeightId};

/// What one or a few dispatches run.
#[derive(Clone, Debug, PartialEq)]
pub enum Unit {
    /// A primitive other than Linear.
    Primitive(Op),
    /// Linears with what stands before and after them.
    Projection(Projection),
    /// A norm and a residual.
    NormAdd(NormAdd),
    /// Heads on their way to the cache, and attention.
    QkRopeKv(QkRopeKv),
    /// Two ExpertLinears of the same rows and ids, and the Gate of the two.
    ExpertGateUp {
        /// `(n, n_in)`
        x: ValueId,
        /// `(n, k)`
        ids: ValueId,
        /// `(n_experts, n_out, n_in)`
        gate: WeightId,
        /// `(n_experts, n_out, n_in)`
        up: WeightId,
        /// The function.
        kind: Activation,
        /// `(n, k * n_out)`
        out: ValueId,
    },
    /// An ExpertLinear of the experts' own rows and the ExpertSum of what it makes.
    ExpertDownSum {
        /// `(n, k * n_in)`
        x: ValueId,
        /// `(n, k)`
        ids: ValueId,
        /// `(n_experts, n_out, n_in)`
        weight: WeightId,
        /// `(n, k)`
        weights: ValueId,
        /// What the experts make, `(n, k * n_out)`: needed where the two run apart.
        parts: ValueId,
        /// What is added, if anything.
        residual: Option<ValueId>,
        /// `(n, n_out)`
        out: ValueId,
    },
}

/// A unit and the node that it begins with.
#[derive(Clone, Debug, PartialEq)]
pub struct Lowered {
    /// Index of the plan's node.
    pub node: usize,
    /// What to run.
    pub unit: Unit,
}

impl Unit {
    /// Values that some schedule of the unit writes to memory.
    pub fn writes(&self) -> Vec<ValueId> {
        match self {
            Unit::Primitive(op) => op.writes(),
            Unit::Projection(p) => {
                // With many rows the norm is a dispatch of its own, and a gate may be.
                let inside = p.norm.iter().map(|(_, out)| *out);
                let matrices = p.matrices.iter().map(|m| m.out);
                match p.tail {
                    Tail::Store => inside.chain(matrices).collect(),
                    Tail::Add { out, .. } => inside.chain([out]).collect(),
                    Tail::Gate { out, .. } => inside.chain(matrices).chain([out]).collect(),
                }
            }
            Unit::NormAdd(NormAdd { out, .. }) | Unit::ExpertGateUp { out, .. } => vec![*out],
            Unit::QkRopeKv(unit) => {
                let chain = |chain: &HeadChain| (!chain.is_empty()).then_some(chain.end);
                let q = unit.q.as_ref().and_then(chain);
                let k = chain(&unit.k).filter(|_| unit.k.escapes);
                q.into_iter().chain(k).chain(unit.attention.map(|a| a.out)).collect()
            }
            Unit::ExpertDownSum { parts, out, .. } => vec![*parts, *out],
        }
    }

    /// Of a unit that joins several nodes: what it reads, and what it writes last. All of it happens at once, so what the first
    /// node reads must be there until the last one has written.
    pub fn joined(&self) -> Option<(Vec<ValueId>, ValueId)> {
        match self {
            Unit::ExpertGateUp { x, ids, out, .. } => Some((vec![*x, *ids], *out)),
            Unit::ExpertDownSum { x, ids, weights, residual, out, .. } => {
                Some(([*x, *ids, *weights].into_iter().chain(*residual).collect(), *out))
            }
            _ => None,
        }
    }

    /// Values that are certainly written, whichever schedule runs.
    fn surely_writes(&self) -> Vec<ValueId> {
        match self {
            Unit::Projection(p) => p.writes(),
            unit => unit.writes(),
        }
    }
}

/// The units of a checked plan, in order.
pub fn lower(plan: &Plan) -> Vec<Lowered> {
    let mut lowered = Vec::new();
    for ((node, n), escaping) in plan.nodes.iter().enumerate().zip(plan.escaping()) {
        let fused = match &n.op {
            Op::Fused { kind, parts } => recognise(plan, *kind, parts, &escaping),
            _ => None,
        };
        match fused.filter(|unit| {
            let writes = unit.surely_writes();
            escaping.iter().all(|id| writes.contains(id))
        }) {
            Some(unit) => lowered.push(Lowered { node, unit }),
            None => lowered.extend(n.op.primitives().iter().map(|op| Lowered { node, unit: primitive(op) })),
        }
    }
    join_experts(plan, lowered)
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
        FusedKind::QkNormRopeKvWrite | FusedKind::QkNormRopeKvAttention => {
            qk_rope_kv(plan, parts, escaping).map(Unit::QkRopeKv)
        }
    }
}

/// Join the neighbours of a mixture of experts that have a kernel together.
fn join_experts(plan: &Plan, lowered: Vec<Lowered>) -> Vec<Lowered> {
    // How many units read each value, the caller included.
    let mut n_readers = vec![0usize; plan.values.len()];
    for op in plan.primitives() {
        op.reads().into_iter().for_each(|id| n_readers[id.0 as usize] += 1);
    }
    plan.results().for_each(|id| n_readers[id.0 as usize] += 1);
    let only = |id: &ValueId| n_readers[id.0 as usize] == 1;
    let mut joined = Vec::with_capacity(lowered.len());
    let mut rest = &lowered[..];
    while let [first, ..] = rest {
        let units: Vec<&Unit> = rest.iter().take(3).map(|l| &l.unit).collect();
        let (unit, n) = match units[..] {
            [
                Unit::Primitive(Op::ExpertLinear { x, ids, weight: w1, out: o1 }),
                Unit::Primitive(Op::ExpertLinear { x: x2, ids: ids2, weight: w2, out: o2 }),
                Unit::Primitive(Op::Gate { gate, up, kind, out }),
            ] if x == x2
                && ids == ids2
                && only(o1)
                && only(o2)
                && ((gate, up) == (o1, o2) || (gate, up) == (o2, o1))
                && plan.weight(*w1).shape == plan.weight(*w2).shape
                && plan.weight(*w1).block == plan.weight(*w2).block
                && plan.value(*x).cols == plan.weight(*w1).n_cols() =>
            {
                let (g, u) = if gate == o1 { (w1, w2) } else { (w2, w1) };
                (Unit::ExpertGateUp { x: *x, ids: *ids, gate: *g, up: *u, kind: *kind, out: *out }, 3)
            }
            [
                Unit::Primitive(Op::ExpertLinear { x, ids, weight, out: parts }),
                Unit::Primitive(Op::ExpertSum { x: summed, weights, out }),
                ref after @ ..,
            ] if summed == parts && only(parts) && plan.value(*weights).cols == plan.value(*ids).cols => {
                let add = match after {
                    [Unit::Primitive(Op::Add { a, b, out: sum })] if only(out) => {
                        other_of(*out, *a, *b).map(|residual| (residual, *sum))
                    }
                    _ => None,
                };
                let residual = add.map(|(residual, _)| residual);
                let out = add.map_or(*out, |(_, sum)| sum);
                let (x, ids, weight) = (*x, *ids, *weight);
                let (weights, parts) = (*weights, *parts);
                let n = if add.is_some() { 3 } else { 2 };
                (Unit::ExpertDownSum { x, ids, weight, weights, parts, residual, out }, n)
            }
            _ => (first.unit.clone(), 1),
        };
        joined.push(Lowered { node: first.node, unit });
        rest = &rest[n..];
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::fusion::{self, fuse};
    use device::testing::{PlanBuilder, mini_transformer};
    use formats::BlockType;

    fn fused(plan: &Plan) -> Vec<Lowered> {
        lower(&fuse(plan, fusion::ALL))
    }

    fn letters(lowered: &[Lowered]) -> String {
        lowered
            .iter()
            .map(|l| match &l.unit {
                Unit::Projection(p) => match p.tail {
                    Tail::Store if p.norm.is_some() => 'N',
                    Tail::Store => 'L',
                    Tail::Add { .. } => 'A',
                    Tail::Gate { .. } => 'G',
                },
                Unit::QkRopeKv(QkRopeKv { attention: Some(_), .. }) => 'T',
                Unit::Primitive(Op::Embed { .. }) => 'e',
                Unit::Primitive(Op::SelectRows { .. }) => 's',
                Unit::Primitive(Op::Argmax { .. }) => 'm',
                Unit::Primitive(Op::RmsNorm { .. }) => 'n',
                Unit::Primitive(Op::Route { .. }) => 'r',
                Unit::ExpertGateUp { .. } => 'g',
                Unit::ExpertDownSum { residual: Some(_), .. } => 'd',
                _ => '?',
            })
            .collect()
    }

    #[test]
    fn a_fused_transformer_is_five_units_a_layer() {
        let plan = mini_transformer(1, BlockType::Q8_0);
        assert_eq!(letters(&fused(&plan)), "eNTAGANTAGAsNm");
        // Not fused, every Op is a unit.
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
        let written: Vec<ValueId> = lowered.iter().flat_map(|l| l.unit.writes()).collect();
        assert!(written.contains(&norm));
        assert!(lowered.iter().any(|l| matches!(l.unit, Unit::Primitive(Op::RmsNorm { .. }))));
    }

    #[test]
    fn what_escapes_is_written_under_every_rule() {
        let plan = mini_transformer(1, BlockType::Q4_0);
        for rules in [fusion::ALL, &[fusion::QK_NORM_ROPE_KV_WRITE], &[fusion::NORM_LINEAR]] {
            let fused = fuse(&plan, rules);
            let written: Vec<ValueId> = lower(&fused).iter().flat_map(|l| l.unit.writes()).collect();
            for (node, escaping) in fused.escaping().iter().enumerate() {
                assert!(escaping.iter().all(|id| written.contains(id)), "node {node}");
            }
        }
    }

    #[test]
    fn a_mixture_of_experts_is_few_units() {
        let mut b = PlanBuilder::new(3, 50);
        let x = b.embed(64);
        b.layer(Some(0));
        let norm = b.rms_norm(x, 64);
        let router = b.linear(norm, 9, BlockType::F32, false);
        let (ids, weights) = b.route(router, 3, true, 1.0, false);
        let gate = b.expert_linear((norm, false), ids, (9, 64), BlockType::F32);
        let up = b.expert_linear((norm, false), ids, (9, 64), BlockType::F32);
        let y = b.gate(gate, up, Activation::Silu);
        let y = b.expert_linear((y, true), ids, (9, 64), BlockType::F32);
        let y = b.expert_sum(y, weights);
        let y = b.add(x, y);
        let plan = b.finish(y);
        plan.check().unwrap();
        assert_eq!(letters(&fused(&plan)), "enLrgdsm");
    }
}
