//! Fields of a fused Op as its kernel needs them: the fields of all parts, without the values
//! between the parts. Each device decides which of these it has kernels for.

use device::{Activation, FusedKind, KvLayerId, Op, Plan, RopeStyle, ValueId, WeightId};

/// A norm of a whole row, or of a head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// Weight of the norm; absent means no factor.
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
    /// The value that would hold the product without an epilogue.
    pub out: ValueId,
}

/// Operation after the products.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tail {
    /// Each product is stored to its own value.
    Store,
    /// The only product is added to a residual.
    Add {
        /// The residual.
        residual: ValueId,
        /// The sum.
        out: ValueId,
    },
    /// `kind(first) * second`
    Gate {
        /// The activation.
        kind: Activation,
        /// The result.
        out: ValueId,
    },
}

/// One to three matrices that read the same rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Projection {
    /// The input of the norm, or of the products without a norm.
    pub x: ValueId,
    /// Norm of the whole row, and the value that would hold its result.
    pub norm: Option<(Norm, ValueId)>,
    /// The matrices; with [`Tail::Gate`] the gate's matrix is first.
    pub matrices: Vec<MatrixOf>,
    /// Operation after the products.
    pub tail: Tail,
}

impl Projection {
    /// A single Linear.
    pub fn single(x: ValueId, weight: WeightId, bias: Option<WeightId>, out: ValueId) -> Projection {
        Projection { x, norm: None, matrices: vec![MatrixOf { weight, bias, out }], tail: Tail::Store }
    }

    /// Values that every schedule writes; values between norm and tail are not among them.
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
    /// Input of the norm.
    pub x: ValueId,
    /// Norm of the whole row.
    pub norm: Norm,
    /// The residual.
    pub residual: ValueId,
    /// The sum.
    pub out: ValueId,
}

/// RoPE of heads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeOf {
    /// `(n_dims / 2)`
    pub frequencies: WeightId,
    /// Rotated columns of a head.
    pub n_dims: usize,
    /// Columns that form a pair.
    pub style: RopeStyle,
    /// Factor on cosine and sine.
    pub scale: f32,
}

/// Norm and RoPE of the heads of q, or of k.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadChain {
    /// The input.
    pub x: ValueId,
    /// Norm of each head.
    pub norm: Option<Norm>,
    /// RoPE after the norm.
    pub rope: Option<RopeOf>,
    /// The resulting value; `x` itself if the chain is empty.
    pub end: ValueId,
    /// True if anything but the attention of the same unit reads `end`.
    pub escapes: bool,
}

impl HeadChain {
    /// Returns true if there is neither norm nor RoPE.
    pub fn is_empty(&self) -> bool {
        self.norm.is_none() && self.rope.is_none()
    }
}

/// Fields of an Attention, without its inputs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionOf {
    /// Query heads.
    pub n_heads: usize,
    /// Factor on the scores.
    pub scale: f32,
    /// Same as the field of [`Op::Attention`].
    pub softcap: Option<f32>,
    /// Same as the field of [`Op::Attention`].
    pub window: Option<usize>,
    /// Same as the field of [`Op::Attention`].
    pub chunked: bool,
    /// Same as the field of [`Op::Attention`].
    pub both_ways: bool,
    /// Same as the field of [`Op::Attention`].
    pub sinks: Option<WeightId>,
    /// The result.
    pub out: ValueId,
}

/// Norm and Rope of q and k, KvWrite of k and v, and the attention that follows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QkRopeKv {
    /// The query heads, if they are part of the Op.
    pub q: Option<HeadChain>,
    /// The key heads.
    pub k: HeadChain,
    /// The value heads.
    pub v: ValueId,
    /// The layer of the KV cache that is written.
    pub layer: KvLayerId,
    /// Attention of the query heads, if it is part of the Op.
    pub attention: Option<AttentionOf>,
}

/// Units of a checked plan's nodes, in order, each with the index of its node.
///
/// A fused node becomes the unit that `whole(kind, parts, escaping)` returns, provided the unit
/// writes (`writes`) all values that other nodes read. Every other node becomes one `part` for each
/// of its primitives.
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

/// The input of an addition that is not `this`.
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

/// Inputs and fields of an Attention.
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
            if op.writes() != [chain.x] || chain.norm.is_some() {
                continue;
            }
            if let &Op::Rope { x, head_dim: dim, n_dims, style, frequencies, scale, .. } = op
                && chain.rope.is_none()
                && dim == head_dim
            {
                chain.rope = Some(RopeOf { frequencies, n_dims, style, scale });
                chain.x = x;
                used += 1;
            } else if let &Op::RmsNorm { x, weight, eps, group, .. } = op
                && group == head_dim
            {
                chain.norm = Some(Norm { weight, eps });
                chain.x = x;
                used += 1;
            }
        }
        chain
    };
    let k_chain = chain(*k);
    let (q_end, attention) = match after {
        [] => {
            // The end of the q chain is the value that others read and that is not k.
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
