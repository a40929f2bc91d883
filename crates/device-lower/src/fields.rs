//! Fields of an Op as its kernel needs them. Those of a fused Op are the fields of all parts,
//! without the values between the parts.
//!
//! [`Fields::of`] is the one place that recognises a fused Op. Fusion forms those windows that it
//! accepts, and lowering reads the same fields again.

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

    /// The heads, if others read them and they are not the input.
    pub fn out(&self) -> Option<ValueId> {
        (self.escapes && !self.is_empty()).then_some(self.end)
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

/// Fields of a primitive or of a fused Op.
#[derive(Clone, Debug, PartialEq)]
pub enum Fields {
    /// A primitive other than Linear.
    Primitive(Op),
    /// Linears, with a norm before them and an epilogue.
    Projection(Projection),
    /// A norm and a residual sum.
    NormAdd(NormAdd),
    /// Norm and RoPE of q and k, KvWrite of k and v, and perhaps the attention.
    QkRopeKv(QkRopeKv),
}

impl Fields {
    /// Fields of neighbouring Ops, if they are a fused Op of this kind. Other nodes read
    /// `escaping`.
    pub fn of(plan: &Plan, kind: FusedKind, parts: &[&Op], escaping: &[ValueId]) -> Option<Fields> {
        let projection = |has_norm: bool, has_tail: fn(&Tail) -> bool| {
            let found = projection(plan, parts).filter(|p| p.norm.is_some() == has_norm && has_tail(&p.tail));
            found.map(Fields::Projection)
        };
        let heads = |attends: bool| {
            let found =
                qk_rope_kv(plan, parts, escaping).filter(|heads| heads.attention.is_some() == attends);
            found.map(Fields::QkRopeKv)
        };
        match kind {
            FusedKind::NormLinear => projection(true, |tail| *tail == Tail::Store),
            FusedKind::NormGateUp => projection(true, |tail| matches!(tail, Tail::Gate { .. })),
            FusedKind::GateUp => projection(false, |tail| matches!(tail, Tail::Gate { .. })),
            FusedKind::LinearAdd => projection(false, |tail| matches!(tail, Tail::Add { .. })),
            FusedKind::NormAdd => norm_add(plan, parts).map(Fields::NormAdd),
            FusedKind::QkNormRopeKvWrite => heads(false),
            FusedKind::QkNormRopeKvAttention => heads(true),
        }
    }

    /// Fields of a primitive.
    fn of_primitive(op: &Op) -> Fields {
        let Op::Linear { x, weight, bias, out } = op else { return Fields::Primitive(op.clone()) };
        Fields::Projection(Projection::single(*x, *weight, *bias, *out))
    }

    /// Values that every schedule writes to memory.
    pub fn writes(&self) -> Vec<ValueId> {
        match self {
            Fields::Primitive(op) => op.writes(),
            Fields::Projection(p) => p.writes(),
            Fields::NormAdd(NormAdd { out, .. }) => vec![*out],
            Fields::QkRopeKv(QkRopeKv { q, k, attention, .. }) => {
                let heads = q.iter().chain([k]).filter_map(HeadChain::out);
                heads.chain(attention.map(|attention| attention.out)).collect()
            }
        }
    }
}

/// Fields of a checked plan's nodes, in order, each with the index of its node.
///
/// A fused node of one of the `kinds` has fields as a whole, provided its kernel writes all values
/// that other nodes read. Every other node has fields for each of its primitives.
pub fn fields_of_nodes(plan: &Plan, kinds: &[FusedKind]) -> Vec<(usize, Fields)> {
    let mut found = Vec::new();
    for ((node, n), escaping) in plan.nodes.iter().enumerate().zip(plan.escaping()) {
        let whole = |op: &Op| {
            let Op::Fused { kind, parts } = op else { return None };
            let fields = Fields::of(plan, *kind, &Vec::from_iter(parts), &escaping)?;
            let written = fields.writes();
            (kinds.contains(kind) && escaping.iter().all(|id| written.contains(id))).then_some(fields)
        };
        match whole(&n.op) {
            Some(fields) => found.push((node, fields)),
            None => found.extend(n.op.primitives().iter().map(|op| (node, Fields::of_primitive(op)))),
        }
    }
    found
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
fn norm_add(plan: &Plan, parts: &[&Op]) -> Option<NormAdd> {
    let [Op::RmsNorm { x, weight, eps, group, out: normed }, Op::Add { a, b, out }] = parts else {
        return None;
    };
    let residual = other_of(*normed, *a, *b)?;
    let norm = Norm { weight: *weight, eps: *eps };
    (*group == plan.value(*x).cols).then_some(NormAdd { x: *x, norm, residual, out: *out })
}

/// `[norm] linear{1,3} [add | gate]`
fn projection(plan: &Plan, parts: &[&Op]) -> Option<Projection> {
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

/// The two chains `norm -> Rope` of q and k, the KvWrite, and the Attention if there is one.
fn qk_rope_kv(plan: &Plan, parts: &[&Op], escaping: &[ValueId]) -> Option<QkRopeKv> {
    let (steps, write, reader) = match parts {
        [steps @ .., write @ Op::KvWrite { .. }] => (steps, write, None),
        [steps @ .., write @ Op::KvWrite { .. }, reader] => (steps, write, Some(attention_of(reader)?)),
        _ => return None,
    };
    let Op::KvWrite { k, v, layer } = write else { return None };
    let attends = |(_, read, attention): &(ValueId, KvLayerId, AttentionOf)| {
        read == layer && !attention.chunked && !attention.both_ways
    };
    if !reader.iter().all(attends) || steps.iter().any(|op| op.writes().contains(v)) {
        return None;
    }
    let heads = plan.kv.layer(*layer).head_dim;
    let one_for_all = |weight: &Option<WeightId>| weight.is_none_or(|id| plan.weight(id).n_cols() == heads);
    let mut used = Vec::new();
    let chain = |end: ValueId, used: &mut Vec<ValueId>| {
        let mut chain = HeadChain { x: end, norm: None, rope: None, end, escapes: escaping.contains(&end) };
        for op in steps.iter().rev() {
            if let Op::Rope { x, head_dim, n_dims, style, frequencies, scale, out } = op
                && (*out, *head_dim) == (chain.x, heads)
                && chain.is_empty()
            {
                let (frequencies, n_dims, style, scale) = (*frequencies, *n_dims, *style, *scale);
                chain.rope = Some(RopeOf { frequencies, n_dims, style, scale });
                chain.x = *x;
                used.push(*out);
            } else if let Op::RmsNorm { x, weight, eps, group, out } = op
                && (*out, *group) == (chain.x, heads)
                && chain.norm.is_none()
                && one_for_all(weight)
            {
                chain.norm = Some(Norm { weight: *weight, eps: *eps });
                chain.x = *x;
                used.push(*out);
            }
        }
        chain
    };
    let k = chain(*k, &mut used);
    // Without attention, the end of the q chain is the last value that is not of k's chain.
    let last = || steps.iter().rev().flat_map(|op| op.writes()).find(|id| !used.contains(id));
    let q = reader.map(|(q, ..)| q).or_else(last).map(|q| chain(q, &mut used));
    let attention = reader.map(|(.., attention)| attention);
    (used.len() == steps.len()).then_some(QkRopeKv { q, k, v: *v, layer: *layer, attention })
}
