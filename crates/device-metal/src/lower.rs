//! From nodes to what the kernels run: each node becomes one [`Unit`], or, where no kernel runs a fused Op as a whole, one
//! for each of its parts. Then neighbouring units that have a kernel together are joined: those of heads (`heads`), of a gate
//! of columns or of rows (`gates`), of a mixture of experts (`experts`), and what a branch adds to the residual stream
//! (`residual`); and what reads a norm makes it for itself (`norms`). Pure: it names values and weights, and takes no memory.

mod experts;
mod gates;
mod heads;
mod norms;
mod residual;

use device::lower::{
    AttentionOf, HeadChain, Norm, Projection, QkRopeKv, Tail, norm_add, projection, qk_rope_kv,
};
use device::{Activation, FusedKind, KvLayerId, Op, Plan, ValueId, WeightId};

/// What one or a few dispatches run.
#[derive(Clone, Debug, PartialEq)]
pub enum Unit {
    /// A primitive other than Linear.
    Primitive(Op),
    /// Linears with what stands before and after them.
    Projection(Projection),
    /// A Linear and the Gate that it opens to columns of another value.
    Gated {
        /// One matrix, stored.
        product: Projection,
        /// What it opens to.
        by: GivenUp,
    },
    /// A Linear whose rows count as much as a gate of each lets through, and what they are added to.
    RowGated {
        /// One matrix, stored.
        product: Projection,
        /// The gate.
        by: RowGate,
    },
    /// What a branch adds to the residual stream.
    Join(Join),
    /// Heads on their way to the cache, and attention.
    QkRopeKv(Heads),
    /// Query heads on their way to an attention over what another layer wrote.
    QRope(Queries),
    /// Two ExpertLinears of the same rows and ids, and the Gate of the two; before them a norm of the rows.
    ExpertGateUp {
        /// `(n, n_in)`: what is normalised, or read.
        x: ValueId,
        /// Of the whole row, and where its result would go.
        norm: Option<(Norm, ValueId)>,
        /// `(n, k)`
        ids: ValueId,
        /// `(n_experts, n_out, n_in)`
        gate: WeightId,
        /// `(n_experts, n_out, n_in)`
        up: WeightId,
        /// The function.
        kind: Activation,
        /// A dense gate and up of the same rows behind the same norm, with the same function, whose matrices have the experts' type.
        beside: Option<Projection>,
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
        /// A dense product that does not depend on it, of a matrix of the same type and as many rows.
        beside: Option<Beside>,
        /// `(n, n_out)`
        out: ValueId,
    },
}

/// `out = kind(product) * up[:, first .. first + columns of the product]`
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GivenUp {
    /// The function.
    pub kind: Activation,
    /// `(n, any)`
    pub up: ValueId,
    /// The first of its columns.
    pub first: usize,
    /// Where it goes.
    pub out: ValueId,
}

/// `out = residual + sigmoid(gate) * product`
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowGate {
    /// `(n, 1)`
    pub gate: ValueId,
    /// `(n, columns of the product)`
    pub residual: ValueId,
    /// Where it goes.
    pub out: ValueId,
}

/// Norm and Rope of query heads, and the attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Queries {
    /// Nobody but the attention reads its end.
    pub q: HeadChain,
    /// What is read.
    pub layer: KvLayerId,
    /// The attention.
    pub attention: AttentionOf,
}

/// `out = factor * (residual + norm(branch))`, the branch itself where it has no norm
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Join {
    /// The branch, or the first of the two that it is the sum of.
    pub x: ValueId,
    /// The other.
    pub pair: Option<Pair>,
    /// Of the whole row of the branch.
    pub norm: Option<Norm>,
    /// What it is added to.
    pub residual: ValueId,
    /// On the sum.
    pub factor: f32,
    /// Where the sum goes.
    pub out: ValueId,
}

/// A branch that is `norm(first) + other_norm(other)`; both norms have weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// Of the first.
    pub norm: Norm,
    /// The other.
    pub other: ValueId,
    /// Of the other.
    pub other_norm: Norm,
}

/// Heads on their way to the cache, and attention, with norms that no rule of fusion knows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Heads {
    /// The chains of q and k, v, and the attention.
    pub chains: QkRopeKv,
    /// Of each head of v.
    pub v_norm: Option<Norm>,
    /// The norms of q and k are of all heads together.
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

/// A unit and the nodes that it is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct Lowered {
    /// Index of the plan's node that it begins with.
    pub node: usize,
    /// Of the one that it ends with. All of it happens at once, so what it reads must be there until then.
    pub last: usize,
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

    /// Values that are read, whatever becomes of those inside.
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
            Some(unit) => lowered.push(Lowered { node, last: node, unit }),
            None => {
                let of = |op| Lowered { node, last: node, unit: primitive(op) };
                lowered.extend(n.op.primitives().iter().map(of));
            }
        }
    }
    let readers = Readers::of(plan);
    let joins = [
        heads::linears,
        heads::norms,
        heads::queries,
        gates::columns,
        gates::rows,
        experts::products,
        experts::beside,
        residual::pairs,
        residual::factors,
    ];
    let lowered = joins
        .into_iter()
        .fold(lowered, |lowered, joined| rewrite(&lowered, |rest| joined(plan, &readers, rest)));
    rewrite(&norms::inside(plan, &readers, lowered), |rest| experts::gates_beside(plan, rest))
}

/// What joins the first of some units: the unit that they become, and how many they are.
type Joined = Option<(Unit, usize)>;

/// The units with those that `joined` finds in the place of the ones they are made of.
fn rewrite(lowered: &[Lowered], joined: impl Fn(&[Lowered]) -> Joined) -> Vec<Lowered> {
    let mut found = Vec::with_capacity(lowered.len());
    let mut rest = lowered;
    while let [first, ..] = rest {
        let (unit, n) = joined(rest).unwrap_or_else(|| (first.unit.clone(), 1));
        let (window, after) = rest.split_at(n);
        let last = window.iter().map(|l| l.last).max().unwrap_or(first.last);
        found.push(Lowered { node: first.node, last, unit });
        rest = after;
    }
    found
}

/// How many Ops read each value, the caller included.
struct Readers(Vec<usize>);

impl Readers {
    fn of(plan: &Plan) -> Readers {
        let mut n = vec![0; plan.values.len()];
        let reads = plan.primitives().flat_map(Op::reads).chain(plan.results());
        reads.for_each(|id| n[id.0 as usize] += 1);
        Readers(n)
    }

    fn count(&self, id: ValueId) -> usize {
        self.0[id.0 as usize]
    }

    /// Whether a single Op reads it.
    fn only(&self, id: ValueId) -> bool {
        self.count(id) == 1
    }
}

/// What stands behind rows that are selected, and what became of a value among them: where there is but one row, that value.
pub fn behind_selections(id: ValueId, mut rest: &[Lowered]) -> (ValueId, &[Lowered]) {
    let mut selected = id;
    while let [Lowered { unit: Unit::Primitive(Op::SelectRows { x, out }), .. }, behind @ ..] = rest {
        if *x == id {
            selected = *out;
        }
        rest = behind;
    }
    (selected, rest)
}

/// The projection that stands behind the unit that made a value and reads it, and index of its last node. One that reads rows selected
/// from the value is none: they may be no rows.
pub fn reader_behind(id: ValueId, rest: &[Lowered]) -> Option<(usize, &Projection)> {
    match behind_selections(id, rest).1 {
        [Lowered { last, unit: Unit::Projection(p) | Unit::Gated { product: p, .. }, .. }, ..]
            if p.x == id =>
        {
            Some((*last, p))
        }
        _ => None,
    }
}

/// Norms that one dispatch makes with the sum that they are of, at most.
const MOST_NORMS: usize = 3;

/// The norms of a sum that can be made with it, and where they go: of the projection that stands behind it, and of what else reads it
/// before the next sum. All add the same to the mean square, and have weights.
pub fn norms_behind(sum: ValueId, rest: &[Lowered]) -> Vec<(Norm, ValueId)> {
    let first = reader_behind(sum, rest).and_then(|(_, p)| p.norm);
    let Some((first, _)) = first else { return vec![] };
    let mut found: Vec<(Norm, ValueId)> = Vec::new();
    for l in rest.iter().take_while(|l| !matches!(l.unit, Unit::Join(_))) {
        let norm = match &l.unit {
            Unit::Projection(Projection { x, norm, .. }) | Unit::ExpertGateUp { x, norm, .. } => {
                norm.filter(|_| *x == sum)
            }
            _ => None,
        };
        found.extend(norm.filter(|norm| {
            norm.0.weight.is_some()
                && norm.0.eps == first.eps
                && !found.contains(norm)
                && found.len() < MOST_NORMS
        }));
    }
    found
}

/// The experts whose products behind a unit's only reader, a sum, weighs and adds for itself: the parts, and how much each counts.
pub fn parts_of(unit: &Unit, rest: &[Lowered]) -> Option<(ValueId, ValueId)> {
    match (unit, rest) {
        (
            Unit::ExpertDownSum { parts, weights, residual: None, out, .. },
            [Lowered { unit: Unit::Join(Join { pair: Some(pair), .. }), .. }, ..],
        ) if pair.other == *out => Some((*parts, *weights)),
        _ => None,
    }
}

/// The norm of whole rows that a unit is: what it normalises, the norm, and where it goes.
fn whole_norm(plan: &Plan, unit: &Unit) -> Option<(ValueId, Norm, ValueId)> {
    match unit {
        Unit::Primitive(Op::RmsNorm { x, weight, eps, group, out }) if *group == plan.value(*x).cols => {
            Some((*x, Norm { weight: *weight, eps: *eps }, *out))
        }
        _ => None,
    }
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
        FusedKind::NormAdd => norm_add(plan, parts).map(|found| {
            let device::lower::NormAdd { x, norm, residual, out } = found;
            Unit::Join(Join { x, pair: None, norm: Some(norm), residual, factor: 1.0, out })
        }),
        FusedKind::QkNormRopeKvWrite | FusedKind::QkNormRopeKvAttention => {
            let heads = |chains| Heads { chains, v_norm: None, whole_rows: false };
            qk_rope_kv(plan, parts, escaping).map(|chains| Unit::QkRopeKv(heads(chains)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::fusion::{self, fuse};
    use device::testing::{Norms, PlanBuilder, layers_with_norms, mini_transformer};
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
                Unit::QkRopeKv(Heads { chains: QkRopeKv { attention: Some(_), .. }, .. }) => 'T',
                Unit::Primitive(Op::Embed { .. }) => 'e',
                Unit::Primitive(Op::SelectRows { .. }) => 's',
                Unit::Primitive(Op::Argmax { .. }) => 'm',
                Unit::Primitive(Op::RmsNorm { .. }) => 'n',
                Unit::Primitive(Op::Route { .. }) => 'r',
                Unit::ExpertGateUp { .. } => 'g',
                Unit::ExpertDownSum { .. } => 'd',
                Unit::QRope(_) => 'Q',
                Unit::Gated { .. } => 'i',
                Unit::RowGated { .. } => 'w',
                Unit::Join(_) => 'j',
                _ => '?',
            })
            .collect()
    }

    #[test]
    fn a_fused_transformer_is_five_units_a_layer() {
        let plan = mini_transformer(1, BlockType::Q8_0);
        assert_eq!(letters(&fused(&plan)), "eNTAGAsNTsAGANm");
        // Not fused, every Op is a unit, but that q, k and v are one, and gate and up, in each of two layers.
        assert_eq!(lower(&plan).len(), plan.nodes.len() - 2 * (2 + 1));
    }

    /// What others read must be written, so a norm that a fourth Linear reads is not swallowed: both dispatches can make it.
    #[test]
    fn a_fused_op_whose_inside_is_read_elsewhere_is_taken_apart() {
        let mut b = PlanBuilder::new(1, 50);
        let x = b.embed(32);
        let norm = b.rms_norm(x, 32);
        let outs: Vec<ValueId> = (0..4).map(|_| b.linear(norm, 32, BlockType::F32, false)).collect();
        let sum = outs[1..].iter().fold(outs[0], |sum, out| b.add(sum, *out));
        let plan = b.finish(sum);
        let lowered = fused(&plan);
        let makers = lowered.iter().filter(|l| l.unit.writes().contains(&norm));
        let x_and_products = makers.map(|l| match &l.unit {
            Unit::Projection(p) => (p.x, p.norm.is_some(), p.matrices.len()),
            unit => panic!("{unit:?}"),
        });
        assert_eq!(Vec::from_iter(x_and_products), [(x, true, 3), (x, true, 1)]);
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

    /// As many units as dispatches of one row, but for the ends: what the next one adds, and rows that are selected.
    #[test]
    fn norms_behind_are_few_units() {
        for (norms, expected) in [
            (Norms::Around, "eNTLjGLjsNTsLjGLjN?m"),
            (Norms::Behind, "eLTLjGLjsLTsLjGLjN?m"),
            (Norms::AroundExperts, "eNTLjNrGgdjsNTsLjNrGgdjN?m"),
            (Norms::AroundInputs, "eLNTLjGLjiLjsNQsLjGLjsiLjN?m"),
            (Norms::SharedExpert, "eNTANrgwdsNTsANrgwdN?m"),
        ] {
            let plan = layers_with_norms(1, 2, 64, BlockType::Q8_0, norms);
            assert_eq!(letters(&fused(&plan)), expected, "{norms:?}");
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
        assert_eq!(letters(&fused(&plan)), "eNrgdsm");
    }
}
