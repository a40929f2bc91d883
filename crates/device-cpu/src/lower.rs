//! From nodes to what the kernels run: each node becomes one [`Unit`], or, where no kernel runs a fused Op as a whole, one
//! for each of its parts. Pure: it names values and weights, and takes no memory.

use device::{Activation, FusedKind, KvLayerId, Op, Plan, RopeStyle, ValueId, WeightId};

/// A norm of a whole row, or of a head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// Absent: no factor.
    pub weight: Option<WeightId>,
    /// Added to the mean square.
    pub eps: f32,
}

/// One matrix of a projection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MatrixOf {
    /// `(n_out, n_in)`
    pub weight: WeightId,
    /// `(n_out)`
    pub bias: Option<WeightId>,
    /// Where its products would go without an epilogue.
    pub out: ValueId,
}

/// What follows the products.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tail {
    /// Each goes to its own value.
    Store,
    /// The only product is added to a residual.
    Add {
        /// What is added.
        residual: ValueId,
        /// Where the sum goes.
        out: ValueId,
    },
    /// `kind(first) * second`
    Gate {
        /// The function.
        kind: Activation,
        /// Where it goes.
        out: ValueId,
    },
}

/// One to three matrices that read the same rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Projection {
    /// What is normalised, or read.
    pub x: ValueId,
    /// Of the whole row.
    pub norm: Option<Norm>,
    /// With [`Tail::Gate`] the gate's is first.
    pub matrices: Vec<MatrixOf>,
    /// What follows.
    pub tail: Tail,
}

/// How heads turn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeOf {
    /// Its table: an index into [`rope_tables`].
    pub key: RopeKey,
    /// Which columns form a pair.
    pub style: RopeStyle,
}

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
}

/// What happens to the heads of q, or of k.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadChain {
    /// Where they come from.
    pub x: ValueId,
    /// Of each head.
    pub norm: Option<Norm>,
    /// After the norm.
    pub rope: Option<RopeOf>,
    /// Where they go, if anybody reads them.
    pub out: Option<ValueId>,
}

/// What one or two commands run.
#[derive(Clone, Debug, PartialEq)]
pub enum Unit {
    /// A primitive other than Linear.
    Primitive(Op),
    /// Linears with what stands before and after them.
    Projection(Projection),
    /// `out = norm(x) + residual`
    NormAdd {
        /// What is normalised.
        x: ValueId,
        /// Of the whole row.
        norm: Norm,
        /// What is added.
        residual: ValueId,
        /// Where it goes.
        out: ValueId,
    },
    /// Norm and Rope of q and k, KvWrite of k and v.
    QkRopeKv {
        /// The query heads, if they are part of it.
        q: Option<HeadChain>,
        /// The key heads.
        k: HeadChain,
        /// The value heads.
        v: ValueId,
        /// Where keys and values go.
        layer: KvLayerId,
    },
}

/// A unit and the node that it comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct Lowered {
    /// Index of the plan's node.
    pub node: usize,
    /// What to run.
    pub unit: Unit,
}

impl Unit {
    /// Values that are written to memory.
    pub fn writes(&self) -> Vec<ValueId> {
        match self {
            Unit::Primitive(op) => op.writes(),
            Unit::Projection(p) => match p.tail {
                Tail::Store => p.matrices.iter().map(|m| m.out).collect(),
                Tail::Add { out, .. } | Tail::Gate { out, .. } => vec![out],
            },
            Unit::NormAdd { out, .. } => vec![*out],
            Unit::QkRopeKv { q, k, .. } => q.iter().chain([k]).filter_map(|c| c.out).collect(),
        }
    }
}

/// The units of a checked plan, in order.
pub fn lower(plan: &Plan) -> Vec<Lowered> {
    let mut lowered = Vec::new();
    for (node, n) in plan.nodes.iter().enumerate() {
        let escaping = plan.escaping(node);
        let fused = match &n.op {
            Op::Fused { kind, parts } => recognise(plan, *kind, parts, &escaping),
            _ => None,
        };
        match fused.filter(|unit| {
            let writes = unit.writes();
            escaping.iter().all(|id| writes.contains(id))
        }) {
            Some(unit) => lowered.push(Lowered { node, unit }),
            None => lowered.extend(n.op.primitives().iter().map(|op| Lowered { node, unit: primitive(op) })),
        }
    }
    lowered
}

fn primitive(op: &Op) -> Unit {
    match op {
        Op::Linear { x, weight, bias, out } => Unit::Projection(Projection {
            x: *x,
            norm: None,
            matrices: vec![MatrixOf { weight: *weight, bias: *bias, out: *out }],
            tail: Tail::Store,
        }),
        op => Unit::Primitive(op.clone()),
    }
}

/// The unit that runs a fused Op as a whole, if there is one.
fn recognise(plan: &Plan, kind: FusedKind, parts: &[Op], escaping: &[ValueId]) -> Option<Unit> {
    match kind {
        FusedKind::NormLinear | FusedKind::NormGateUp | FusedKind::GateUp | FusedKind::LinearAdd => {
            projection(plan, parts).map(Unit::Projection)
        }
        FusedKind::NormAdd => {
            let [Op::RmsNorm { x, weight, eps, group, out: normed }, Op::Add { a, b, out }] = parts else {
                return None;
            };
            let residual = other_of(*normed, *a, *b)?;
            let norm = Norm { weight: *weight, eps: *eps };
            (*group == plan.value(*x).cols).then_some(Unit::NormAdd { x: *x, norm, residual, out: *out })
        }
        FusedKind::QkNormRopeKvWrite => qk_rope_kv(plan, parts, escaping),
        FusedKind::QkNormRopeKvAttention => None,
    }
}

/// Of an addition's two inputs, the one that is not `this`.
fn other_of(this: ValueId, a: ValueId, b: ValueId) -> Option<ValueId> {
    if a == b {
        None
    } else if a == this {
        Some(b)
    } else {
        (b == this).then_some(a)
    }
}

/// `[norm] linear{1,3} [add | gate]`
fn projection(plan: &Plan, parts: &[Op]) -> Option<Projection> {
    let (mut x, mut norm, mut rest) = (None, None, parts);
    if let [Op::RmsNorm { x: from, weight, eps, group, out }, after @ ..] = rest {
        if *group != plan.value(*from).cols {
            return None;
        }
        norm = Some((*from, *out, Norm { weight: *weight, eps: *eps }));
        x = Some(*out);
        rest = after;
    }
    let mut matrices = Vec::new();
    while let [Op::Linear { x: from, weight, bias, out }, after @ ..] = rest {
        if *x.get_or_insert(*from) != *from {
            return None;
        }
        matrices.push(MatrixOf { weight: *weight, bias: *bias, out: *out });
        rest = after;
    }
    let n_out = |m: &MatrixOf| plan.weight(m.weight).n_rows();
    let tail = match rest {
        [] => Tail::Store,
        [Op::Add { a, b, out }] if matrices.len() == 1 => {
            Tail::Add { residual: other_of(matrices[0].out, *a, *b)?, out: *out }
        }
        [Op::Gate { gate, up, kind, out }]
            if matrices.len() == 2 && n_out(&matrices[0]) == n_out(&matrices[1]) =>
        {
            if *gate == matrices[1].out {
                matrices.swap(0, 1);
            }
            if (*gate, *up) != (matrices[0].out, matrices[1].out) {
                return None;
            }
            Tail::Gate { kind: *kind, out: *out }
        }
        _ => return None,
    };
    let norm_of = norm.map(|(_, _, n)| n);
    let x = norm.map(|(from, _, _)| from).or(x)?;
    (1..=3).contains(&matrices.len()).then_some(Projection { x, norm: norm_of, matrices, tail })
}

/// `norm{0,2} rope{0,2} kv_write`, in two chains.
fn qk_rope_kv(plan: &Plan, parts: &[Op], escaping: &[ValueId]) -> Option<Unit> {
    let (Op::KvWrite { k, v, layer }, steps) = parts.split_last()? else { return None };
    let head_dim = plan.kv.layer(*layer).head_dim;
    let mut used = 0;
    // The steps that lead to a value, last first.
    let mut chain = |end: ValueId| -> Option<HeadChain> {
        let mut chain = HeadChain { x: end, norm: None, rope: None, out: None };
        for op in steps.iter().rev() {
            match op {
                Op::Rope { x, head_dim: dim, n_dims, style, frequencies, scale, out }
                    if *out == chain.x
                        && chain.rope.is_none()
                        && chain.norm.is_none()
                        && *dim == head_dim =>
                {
                    let key = RopeKey::new(plan, *frequencies, *n_dims, *scale);
                    chain.rope = Some(RopeOf { key, style: *style });
                    chain.x = *x;
                    used += 1;
                }
                Op::RmsNorm { x, weight, eps, group, out }
                    if *out == chain.x && chain.norm.is_none() && *group == head_dim =>
                {
                    chain.norm = Some(Norm { weight: *weight, eps: *eps });
                    chain.x = *x;
                    used += 1;
                }
                _ => {}
            }
        }
        chain.out = escaping.contains(&end).then_some(end);
        Some(chain)
    };
    let k_chain = chain(*k)?;
    let written: Vec<ValueId> = steps.iter().flat_map(Op::writes).collect();
    // q's end is the value that others read and that is not k.
    let q_end = escaping.iter().copied().find(|id| *id != *k && written.contains(id));
    let q_chain = match q_end {
        Some(end) => Some(chain(end)?),
        None => None,
    };
    // `k` itself is written by the chain only if the chain has steps.
    let k_chain = if k_chain.x == *k { HeadChain { out: None, ..k_chain } } else { k_chain };
    (used == steps.len()).then_some(Unit::QkRopeKv { q: q_chain, k: k_chain, v: *v, layer: *layer })
}

/// The distinct tables that the plan's Ropes read, in order of their first use.
pub fn rope_tables(plan: &Plan, lowered: &[Lowered]) -> Vec<RopeKey> {
    let mut keys = Vec::new();
    for unit in lowered.iter().map(|l| &l.unit) {
        let found = match unit {
            Unit::Primitive(Op::Rope { frequencies, n_dims, scale, .. }) => {
                vec![RopeKey::new(plan, *frequencies, *n_dims, *scale)]
            }
            Unit::QkRopeKv { q, k, .. } => q.iter().chain([k]).filter_map(|c| Some(c.rope?.key)).collect(),
            _ => vec![],
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
    use device::fusion::{self, fuse};
    use device::testing::{PlanBuilder, mini_transformer};
    use formats::BlockType;

    fn fused(plan: &Plan) -> Vec<Lowered> {
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
                Unit::QkRopeKv { q: Some(_), .. } => 'K',
                Unit::Primitive(Op::Attention { .. }) => 'T',
                Unit::Primitive(Op::Embed { .. }) => 'e',
                Unit::Primitive(Op::SelectRows { .. }) => 's',
                Unit::Primitive(Op::Argmax { .. }) => 'm',
                _ => '?',
            })
            .collect();
        assert_eq!(kinds, "eNKTAGA".to_owned() + "NKTAGA" + "sNm");
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
        for node in 0..fused.nodes.len() {
            assert!(fused.escaping(node).iter().all(|id| written.contains(id)), "node {node}");
        }
    }

    #[test]
    fn equal_frequencies_share_a_table() {
        let plan = mini_transformer(1, BlockType::F32);
        let ropes = plan.primitives().filter(|op| matches!(op, Op::Rope { .. })).count();
        assert_eq!((ropes, rope_tables(&plan, &fused(&plan)).len()), (4, 1));
    }
}
