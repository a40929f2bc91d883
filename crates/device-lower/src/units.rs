//! [`Unit`]: the work of one dispatch, or of the few dispatches of a schedule that has no single
//! one.
//!
//! Units name values and weights; they hold no memory and are independent of devices. The passes
//! (`passes`) make them from the nodes of a plan. The queries at the end of this file look at the
//! following units. Some work can move into a later dispatch, and both the arena (`lifetimes`) and
//! the device must agree on when it does.

use crate::fields::{AttentionOf, Fields, HeadChain, Norm, NormAdd, Projection, QkRopeKv, Tail};
use device::{Activation, KvLayerId, Op, Plan, ValueId, WeightId};

/// The work of one or a few dispatches.
#[derive(Clone, Debug, PartialEq)]
pub enum Unit {
    /// A primitive other than Linear.
    Primitive(Op),
    /// Linears with the norm before and the tail after them.
    Projection(Projection),
    /// A Linear followed by a Gate with columns of another value.
    Gated {
        /// A single matrix, with tail `Store`.
        product: Projection,
        /// The gate.
        by: GivenUp,
    },
    /// A Linear whose rows are scaled by a gate of their own and added to a residual.
    RowGated {
        /// A single matrix, with tail `Store`.
        product: Projection,
        /// The gate.
        by: RowGate,
    },
    /// The addition of a branch to the residual stream.
    Join(Join),
    /// Norm and RoPE of heads, the write to the cache, and attention.
    QkRopeKv(Heads),
    /// Norm and RoPE of query heads, and attention over keys and values that another layer wrote.
    QRope(Queries),
    /// Two ExpertLinears of the same rows and ids, and the Gate of the two; before them a norm of
    /// the rows.
    ExpertGateUp {
        /// `(n, n_in)`: the input of the norm, or of the products without a norm.
        x: ValueId,
        /// Norm of the whole row, and the value that would hold its result.
        norm: Option<(Norm, ValueId)>,
        /// `(n, k)`
        ids: ValueId,
        /// `(n_experts, n_out, n_in)`
        gate: WeightId,
        /// `(n_experts, n_out, n_in)`
        up: WeightId,
        /// The activation.
        kind: Activation,
        /// A dense gate and up of the same rows after the same norm, with the same activation and
        /// the experts' block type.
        beside: Option<Projection>,
        /// `(n, k * n_out)`
        out: ValueId,
    },
    /// An ExpertLinear with its own rows for each expert, and the ExpertSum of its products.
    ExpertDownSum {
        /// `(n, k * n_in)`
        x: ValueId,
        /// `(n, k)`
        ids: ValueId,
        /// `(n_experts, n_out, n_in)`
        weight: WeightId,
        /// `(n, k)`
        weights: ValueId,
        /// The products of the experts, `(n, k * n_out)`; stored if the two Ops run separately.
        parts: ValueId,
        /// The residual, if there is one.
        residual: Option<ValueId>,
        /// An independent dense product with a matrix of the same type and the same number of rows.
        beside: Option<Beside>,
        /// `(n, n_out)`
        out: ValueId,
    },
}

/// `out = kind(product) * up[:, first .. first + columns of the product]`
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GivenUp {
    /// The activation.
    pub kind: Activation,
    /// `(n, any)`
    pub up: ValueId,
    /// First column of `up`.
    pub first: usize,
    /// The result.
    pub out: ValueId,
}

/// `out = residual + sigmoid(gate) * product`
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowGate {
    /// `(n, 1)`
    pub gate: ValueId,
    /// `(n, columns of the product)`
    pub residual: ValueId,
    /// The result.
    pub out: ValueId,
}

/// Norm and Rope of query heads, and the attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Queries {
    /// The query heads; only the attention reads their end.
    pub q: HeadChain,
    /// The layer whose keys and values are read.
    pub layer: KvLayerId,
    /// The attention.
    pub attention: AttentionOf,
}

/// `out = factor * (residual + norm(branch))`; without a norm if the branch has none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Join {
    /// The branch, or the first term of a branch that is a sum.
    pub x: ValueId,
    /// The second term of the branch.
    pub pair: Option<Pair>,
    /// Norm of the whole row of the branch.
    pub norm: Option<Norm>,
    /// The residual.
    pub residual: ValueId,
    /// Factor on the sum.
    pub factor: f32,
    /// The sum.
    pub out: ValueId,
}

/// A branch that is `norm(first) + other_norm(other)`; both norms have weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// Norm of the first term.
    pub norm: Norm,
    /// The second term.
    pub other: ValueId,
    /// Norm of the second term.
    pub other_norm: Norm,
}

/// Norm and RoPE of heads, the write to the cache, and attention, with norms that no fusion rule
/// covers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Heads {
    /// The chains of q and k, v, and the attention.
    pub chains: QkRopeKv,
    /// Norm of each head of v.
    pub v_norm: Option<Norm>,
    /// True if the norms of q and k are over all heads together.
    pub whole_rows: bool,
}

/// A dense product that runs beside another unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Beside {
    /// `(n, n_in)`
    pub x: ValueId,
    /// `(n_out, n_in)`
    pub weight: WeightId,
    /// `(n, n_out)`
    pub out: ValueId,
}

/// A unit and the nodes that it was made from.
#[derive(Clone, Debug, PartialEq)]
pub struct LoweredUnit {
    /// Index of its first node in the plan.
    pub node: usize,
    /// Index of its last node. The nodes run at once, so the unit's inputs must live until here.
    pub last: usize,
    /// The work.
    pub unit: Unit,
}

/// Facts about a unit that most units lack.
#[derive(Default)]
struct UnitFacts {
    /// See [`Unit::experts`].
    experts: Option<(ValueId, WeightId)>,
    /// See [`Unit::attention`].
    attention: Option<(usize, KvLayerId)>,
    /// See [`Unit::own_norm`].
    own_norm: Option<(ValueId, Norm, ValueId)>,
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
            Unit::Gated { by, .. } => vec![by.out],
            Unit::RowGated { by, .. } => vec![by.out],
            Unit::Join(Join { out, .. }) => vec![*out],
            Unit::QRope(Queries { q, attention, .. }) => vec![q.end, attention.out],
            Unit::ExpertGateUp { norm, out, beside, .. } => {
                let beside = beside.iter().flat_map(Projection::writes);
                norm.iter().map(|(_, out)| *out).chain([*out]).chain(beside).collect()
            }
            Unit::QkRopeKv(Heads { chains, .. }) => {
                let chain = |chain: &HeadChain| (!chain.is_empty()).then_some(chain.end);
                let q = chains.q.as_ref().and_then(chain);
                let k = chain(&chains.k).filter(|_| chains.k.escapes);
                q.into_iter().chain(k).chain(chains.attention.map(|a| a.out)).collect()
            }
            Unit::ExpertDownSum { parts, beside, out, .. } => {
                [*parts, *out].into_iter().chain(beside.map(|beside| beside.out)).collect()
            }
        }
    }

    /// Values that the unit reads from outside.
    pub fn reads(&self) -> Vec<ValueId> {
        match self {
            Unit::Primitive(op) => op.reads(),
            Unit::Projection(p) => {
                let residual = if let Tail::Add { residual, .. } = p.tail { Some(residual) } else { None };
                [p.x].into_iter().chain(residual).collect()
            }
            Unit::Gated { product, by } => vec![product.x, by.up],
            Unit::RowGated { product, by } => vec![product.x, by.gate, by.residual],
            Unit::QRope(Queries { q, .. }) => vec![q.x],
            Unit::Join(Join { x, pair, residual, .. }) => {
                [*x, *residual].into_iter().chain(pair.map(|pair| pair.other)).collect()
            }
            Unit::QkRopeKv(Heads { chains: QkRopeKv { q, k, v, .. }, .. }) => {
                [k.x, *v].into_iter().chain(q.map(|q| q.x)).collect()
            }
            Unit::ExpertGateUp { x, ids, .. } => vec![*x, *ids],
            Unit::ExpertDownSum { x, ids, weights, residual, beside, .. } => {
                let others = residual.iter().copied().chain(beside.map(|beside| beside.x));
                [*x, *ids, *weights].into_iter().chain(others).collect()
            }
        }
    }

    /// The Op, if the unit is a primitive.
    pub fn primitive(&self) -> Option<&Op> {
        if let Unit::Primitive(op) = self { Some(op) } else { None }
    }

    /// Ids and matrices of the experts whose products the unit computes.
    pub fn experts(&self) -> Option<(ValueId, WeightId)> {
        self.facts().experts
    }

    /// Query heads and KV layer of the unit's attention over KV pages.
    pub fn attention(&self) -> Option<(usize, KvLayerId)> {
        self.facts().attention
    }

    /// The norm that the unit applies to the rows it reads: its input, the norm, and the value that
    /// would hold its output.
    fn own_norm(&self) -> Option<(ValueId, Norm, ValueId)> {
        self.facts().own_norm
    }

    /// The one place that names every unit for these facts.
    fn facts(&self) -> UnitFacts {
        let own_norm = |x: &ValueId, norm: &Option<(Norm, ValueId)>| norm.map(|(norm, out)| (*x, norm, out));
        match self {
            Unit::Primitive(Op::ExpertLinear { ids, weight, .. }) => {
                UnitFacts { experts: Some((*ids, *weight)), ..UnitFacts::default() }
            }
            Unit::Primitive(
                Op::Attention { n_heads, layer, .. } | Op::CrossAttention { n_heads, layer, .. },
            ) => UnitFacts { attention: Some((*n_heads, *layer)), ..UnitFacts::default() },
            Unit::Projection(Projection { x, norm, .. }) => {
                UnitFacts { own_norm: own_norm(x, norm), ..UnitFacts::default() }
            }
            Unit::ExpertGateUp { x, norm, ids, gate, .. } => UnitFacts {
                experts: Some((*ids, *gate)),
                own_norm: own_norm(x, norm),
                ..UnitFacts::default()
            },
            Unit::ExpertDownSum { ids, weight, .. } => {
                UnitFacts { experts: Some((*ids, *weight)), ..UnitFacts::default() }
            }
            Unit::QkRopeKv(Heads { chains, .. }) => UnitFacts {
                attention: chains.attention.map(|a| (a.n_heads, chains.layer)),
                ..UnitFacts::default()
            },
            Unit::QRope(Queries { layer, attention, .. }) => {
                UnitFacts { attention: Some((attention.n_heads, *layer)), ..UnitFacts::default() }
            }
            Unit::Primitive(_) | Unit::Gated { .. } | Unit::RowGated { .. } | Unit::Join(_) => {
                UnitFacts::default()
            }
        }
    }

    /// The norm of whole rows, if the unit is one: its input, the norm, and its output.
    pub(crate) fn whole_norm(&self, plan: &Plan) -> Option<(ValueId, Norm, ValueId)> {
        let Some(Op::RmsNorm { x, weight, eps, group, out }) = self.primitive() else { return None };
        let norm = Norm { weight: *weight, eps: *eps };
        (*group == plan.value(*x).cols).then_some((*x, norm, *out))
    }
}

impl From<Fields> for Unit {
    fn from(fields: Fields) -> Unit {
        match fields {
            Fields::Primitive(op) => Unit::Primitive(op),
            Fields::Projection(p) => Unit::Projection(p),
            Fields::NormAdd(NormAdd { x, norm, residual, out }) => {
                Unit::Join(Join { x, pair: None, norm: Some(norm), residual, factor: 1.0, out })
            }
            Fields::QkRopeKv(chains) => Unit::QkRopeKv(Heads { chains, v_norm: None, whole_rows: false }),
        }
    }
}

/// The units after the SelectRows that follow immediately, and the value that replaces `id` there:
/// the selected rows. With a single row both are equal.
pub fn after_selections(id: ValueId, mut rest: &[LoweredUnit]) -> (ValueId, &[LoweredUnit]) {
    let mut selected = id;
    while let [LoweredUnit { unit: Unit::Primitive(Op::SelectRows { x, out }), .. }, after @ ..] = rest {
        if *x == id {
            selected = *out;
        }
        rest = after;
    }
    (selected, rest)
}

/// The projection that reads a value right after the unit that wrote it, and the index of its last
/// node. A projection of rows selected from the value does not count, because there may be no such
/// rows.
pub fn next_reader(id: ValueId, rest: &[LoweredUnit]) -> Option<(usize, &Projection)> {
    let next = after_selections(id, rest).1.first()?;
    let (Unit::Projection(p) | Unit::Gated { product: p, .. }) = &next.unit else { return None };
    (p.x == id).then_some((next.last, p))
}

/// Maximum number of norms that one dispatch computes together with the sum that they normalise.
const MOST_NORMS: usize = 3;

/// Norms that the dispatch of a sum can compute, and their outputs: the norm of the next
/// projection, and norms of other readers before the next sum. All have weights, and the same eps.
pub fn norms_of_sum(sum: ValueId, rest: &[LoweredUnit]) -> Vec<(Norm, ValueId)> {
    let first = next_reader(sum, rest).and_then(|(_, p)| p.norm);
    let Some((first, _)) = first else { return vec![] };
    let mut found: Vec<(Norm, ValueId)> = Vec::new();
    for l in rest.iter().take_while(|l| !matches!(l.unit, Unit::Join(_))) {
        let norm = l.unit.own_norm().filter(|(x, ..)| *x == sum).map(|(_, norm, out)| (norm, out));
        found.extend(norm.filter(|norm| {
            norm.0.weight.is_some()
                && norm.0.eps == first.eps
                && !found.contains(norm)
                && found.len() < MOST_NORMS
        }));
    }
    found
}

/// The experts' products that the next unit, a sum, can weight and add itself: the products and
/// their weights.
pub fn parts_of(unit: &Unit, rest: &[LoweredUnit]) -> Option<(ValueId, ValueId)> {
    let Unit::ExpertDownSum { parts, weights, residual: None, out, .. } = unit else { return None };
    let Some(Unit::Join(Join { pair: Some(pair), .. })) = rest.first().map(|next| &next.unit) else {
        return None;
    };
    (pair.other == *out).then_some((*parts, *weights))
}
