//! A fused Op as a kernel that runs it whole needs it: the fields of its parts, without the values between them. Each device
//! decides for which of these it has kernels.

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
    /// Of the whole row, and where its result would go.
    pub norm: Option<(Norm, ValueId)>,
    /// With [`Tail::Gate`] the gate's is first.
    pub matrices: Vec<MatrixOf>,
    /// What follows.
    pub tail: Tail,
}

impl Projection {
    /// One Linear by itself.
    pub fn single(x: ValueId, weight: WeightId, bias: Option<WeightId>, out: ValueId) -> Projection {
        Projection { x, norm: None, matrices: vec![MatrixOf { weight, bias, out }], tail: Tail::Store }
    }

    /// Values that are written, whatever becomes of those between norm and tail.
    pub fn writes(&self) -> Vec<ValueId> {
        match self.tail {
            Tail::Store => self.matrices.iter().map(|m| m.out).collect(),
            Tail::Add { out, .. } | Tail::Gate { out, .. } => vec![out],
        }
    }
}

/// `out = norm(x) + residual`
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormAdd {
    /// What is normalised.
    pub x: ValueId,
    /// Of the whole row.
    pub norm: Norm,
    /// What is added.
    pub residual: ValueId,
    /// Where it goes.
    pub out: ValueId,
}

/// How heads turn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeOf {
    /// `(n_dims / 2)`
    pub frequencies: WeightId,
    /// Columns of a head that turn.
    pub n_dims: usize,
    /// Which columns form a pair.
    pub style: RopeStyle,
    /// On cosine and sine.
    pub scale: f32,
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
    /// The value that they become; `x` itself if nothing happens to them.
    pub end: ValueId,
    /// Whether anything but the attention of the same unit reads it.
    pub escapes: bool,
}

impl HeadChain {
    /// Whether nothing happens.
    pub fn is_empty(&self) -> bool {
        self.norm.is_none() && self.rope.is_none()
    }
}

/// The fields of an Attention, but for what it reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionOf {
    /// Query heads.
    pub n_heads: usize,
    /// Factor on the scores.
    pub scale: f32,
    /// As [`Op::Attention`]'s.
    pub softcap: Option<f32>,
    /// As [`Op::Attention`]'s.
    pub window: Option<usize>,
    /// As [`Op::Attention`]'s.
    pub chunked: bool,
    /// As [`Op::Attention`]'s.
    pub both_ways: bool,
    /// As [`Op::Attention`]'s.
    pub sinks: Option<WeightId>,
    /// Where it goes.
    pub out: ValueId,
}

/// Norm and Rope of q and k, KvWrite of k and v, and the attention that follows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QkRopeKv {
    /// The query heads, if they are part of it.
    pub q: Option<HeadChain>,
    /// The key heads.
    pub k: HeadChain,
    /// The value heads.
    pub v: ValueId,
    /// Where keys and values go.
    pub layer: KvLayerId,
    /// Of the query heads.
    pub attention: Option<AttentionOf>,
}

/// The units of a checked plan's nodes, in order, each with the index of its node.
///
/// A fused node becomes the unit that `whole(kind, parts, escaping)` gives, if it gives one and that `writes` all values
/// that others read. Every other node becomes one `part` for each of its primitives.
pub fn units_of_nodes<U>(
    plan: &Plan,
    whole: impl Fn(FusedKind, &[Op], &[ValueId]) -> Option<U>,
    writes: impl Fn(&U) -> Vec<ValueId>,
    part: impl Fn(&Op) -> U,
) -> Vec<(usize, U)> {
    let mut units = Vec::new();
    for ((node, n), escaping) in plan.nodes.iter().enumerate().zip(plan.escaping()) {
        let fused = if let Op::Fused { kind, parts } = &n.op { whole(*kind, parts, &escaping) } else { None };
        let is_complete = |unit: &U| {
            let written = writes(unit);
            escaping.iter().all(|id| written.contains(id))
        };
        match fused.filter(is_complete) {
            Some(unit) => units.push((node, unit)),
            None => units.extend(n.op.primitives().iter().map(|op| (node, part(op)))),
        }
    }
    units
}

/// Of an addition's two inputs, the one that is not `this`.
pub fn other_of(this: ValueId, a: ValueId, b: ValueId) -> Option<ValueId> {
    match (a == this, b == this) {
        (true, false) => Some(b),
        (false, true) => Some(a),
        _ => None,
    }
}

/// `norm add`
pub fn norm_add(plan: &Plan, parts: &[Op]) -> Option<NormAdd> {
    let [Op::RmsNorm { x, weight, eps, group, out: normed }, Op::Add { a, b, out }] = parts else {
        return None;
    };
    let residual = other_of(*normed, *a, *b)?;
    let norm = Norm { weight: *weight, eps: *eps };
    (*group == plan.value(*x).cols).then_some(NormAdd { x: *x, norm, residual, out: *out })
}

/// `[norm] linear{1,3} [add | gate]`
pub fn projection(plan: &Plan, parts: &[Op]) -> Option<Projection> {
    let (mut x, mut norm, mut rest) = (None, None, parts);
    if let [Op::RmsNorm { x: from, weight, eps, group, out }, after @ ..] = rest {
        if *group != plan.value(*from).cols {
            return None;
        }
        norm = Some((*from, (Norm { weight: *weight, eps: *eps }, *out)));
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
    let tail = match (rest, &mut matrices[..]) {
        ([], [_, ..]) => Tail::Store,
        ([Op::Add { a, b, out }], [only]) => Tail::Add { residual: other_of(only.out, *a, *b)?, out: *out },
        ([Op::Gate { gate, up, kind, out }], [first, second]) if n_out(first) == n_out(second) => {
            if *gate == second.out {
                std::mem::swap(first, second);
            }
            if (*gate, *up) != (first.out, second.out) {
                return None;
            }
            Tail::Gate { kind: *kind, out: *out }
        }
        _ => return None,
    };
    let x = norm.map(|(from, _)| from).or(x)?;
    (matrices.len() <= 3).then_some(Projection { x, norm: norm.map(|(_, norm)| norm), matrices, tail })
}

/// What an Attention reads, and its other fields.
pub fn attention_of(op: &Op) -> Option<(ValueId, KvLayerId, AttentionOf)> {
    let &Op::Attention { q, layer, n_heads, scale, softcap, window, chunked, both_ways, sinks, out } = op
    else {
        return None;
    };
    Some((q, layer, AttentionOf { n_heads, scale, softcap, window, chunked, both_ways, sinks, out }))
}

/// The two chains of norms and Ropes, the KvWrite, and the Attention if there is one.
pub fn qk_rope_kv(plan: &Plan, parts: &[Op], escaping: &[ValueId]) -> Option<QkRopeKv> {
    let write = parts.iter().position(|op| matches!(op, Op::KvWrite { .. }))?;
    let (steps, after) = parts.split_at(write);
    let [Op::KvWrite { k, v, layer }, after @ ..] = after else { return None };
    let head_dim = plan.kv.layer(*layer).head_dim;
    let mut used = 0;
    let mut chain = |end: ValueId| -> HeadChain {
        let mut chain = HeadChain { x: end, norm: None, rope: None, end, escapes: escaping.contains(&end) };
        for op in steps.iter().rev() {
            match op {
                Op::Rope { x, head_dim: dim, n_dims, style, frequencies, scale, out }
                    if *out == chain.x
                        && chain.rope.is_none()
                        && chain.norm.is_none()
                        && *dim == head_dim =>
                {
                    chain.rope = Some(RopeOf {
                        frequencies: *frequencies,
                        n_dims: *n_dims,
                        style: *style,
                        scale: *scale,
                    });
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
        chain
    };
    let k_chain = chain(*k);
    let (q_end, attention) = match after {
        [] => {
            // q's end is the value that others read and that is not k.
            let written: Vec<ValueId> = steps.iter().flat_map(Op::writes).collect();
            (escaping.iter().copied().find(|id| id != k && written.contains(id)), None)
        }
        [op] => {
            let (q, _, attention) = attention_of(op).filter(|(_, read, _)| read == layer)?;
            (Some(q), Some(attention))
        }
        _ => return None,
    };
    let q = q_end.map(chain);
    (used == steps.len()).then_some(QkRopeKv { q, k: k_chain, v: *v, layer: *layer, attention })
}
