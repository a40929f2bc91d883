//! The ordered passes that lower the nodes of a plan to units.
//!
//! Each node first becomes one unit or, if a fused Op must write values of its inside, one unit for
//! each of its parts. Then each pass of the profile's list replaces neighbouring units by one that
//! has a kernel. There are passes for heads (`heads`), gates of columns or rows (`gates`), mixtures
//! of experts (`experts`), and additions to the residual stream (`residual`). Finally, readers of a
//! norm recompute it (`norms`). Later passes see the result of earlier ones, so the order of the
//! list matters. A profile lists the passes that its kernels support: [`ALL`], or fewer.

mod experts;
mod gates;
mod heads;
mod norms;
mod residual;

use crate::fields::fields_of_nodes;
use crate::fusion;
use crate::units::{LoweredUnit, Unit};
use device::{Op, Plan, ValueId};

/// One rewrite of the list of units.
#[derive(Clone, Copy)]
pub struct Pass {
    /// Short description of the pass's result.
    pub name: &'static str,
    rewrite: Rewrite,
}

/// Form of a rewrite.
#[derive(Clone, Copy)]
enum Rewrite {
    /// Replaces the first units of a window by one unit, wherever the window matches.
    Window(fn(&Plan, &Readers, &[LoweredUnit]) -> Joined),
    /// Rewrites the whole list.
    List(fn(&Plan, &Readers, Vec<LoweredUnit>) -> Vec<LoweredUnit>),
}

/// The unit that replaces the first units of a window, and their number; `None` if nothing matches.
type Joined = Option<(Unit, usize)>;

impl Pass {
    const fn window(name: &'static str, of: fn(&Plan, &Readers, &[LoweredUnit]) -> Joined) -> Pass {
        Pass { name, rewrite: Rewrite::Window(of) }
    }

    fn run(&self, plan: &Plan, readers: &Readers, units: Vec<LoweredUnit>) -> Vec<LoweredUnit> {
        match self.rewrite {
            Rewrite::Window(of) => rewrite_windows(&units, |rest| of(plan, readers, rest)),
            Rewrite::List(of) => of(plan, readers, units),
        }
    }
}

impl std::fmt::Debug for Pass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for Pass {
    /// Compares names, which are unique.
    fn eq(&self, other: &Pass) -> bool {
        self.name == other.name
    }
}

/// Joins Linears of the same rows.
pub const LINEARS: Pass = Pass::window("linears of the same rows", heads::linears);
/// Joins norms of v, or of whole rows of q and k, with the unit that writes heads to the cache.
pub const HEAD_NORMS: Pass = Pass::window("norms of heads", heads::norms);
/// Joins query heads and their attention over keys and values that another layer wrote.
pub const QUERIES: Pass = Pass::window("queries and attention", heads::queries);
/// Joins a Linear and its Gate with columns of another value.
pub const COLUMN_GATES: Pass = Pass::window("gates of columns", gates::columns);
/// Joins a Linear and the gate of its rows.
pub const ROW_GATES: Pass = Pass::window("gates of rows", gates::rows);
/// Joins the products of experts with their gate, or with their sum.
pub const EXPERT_PRODUCTS: Pass = Pass::window("products of experts", experts::products);
/// Runs a dense product beside the experts' sum.
pub const EXPERTS_BESIDE: Pass = Pass::window("a product beside experts", experts::beside);
/// Joins a branch that is the sum of two values.
pub const PAIRS: Pass = Pass::window("branches that are sums", residual::pairs);
/// Joins a factor on the residual sum.
pub const FACTORS: Pass = Pass::window("factors on the residual sum", residual::factors);
/// Moves norms into their readers.
pub const INNER_NORMS: Pass =
    Pass { name: "norms inside their readers", rewrite: Rewrite::List(norms::inside) };
/// Runs a dense gate and up beside those of experts. Runs after [`INNER_NORMS`], since both must
/// have the norm inside.
pub const EXPERT_GATES_BESIDE: Pass = Pass::window("a gate beside experts", experts::gates_beside);

/// All passes in order, for devices with a kernel for every unit.
pub const ALL: &[Pass] = &[
    LINEARS,
    HEAD_NORMS,
    QUERIES,
    COLUMN_GATES,
    ROW_GATES,
    EXPERT_PRODUCTS,
    EXPERTS_BESIDE,
    PAIRS,
    FACTORS,
    INNER_NORMS,
    EXPERT_GATES_BESIDE,
];

/// Units of a checked plan, in order, after the passes of a profile.
pub fn lower(plan: &Plan, passes: &[Pass]) -> Vec<LoweredUnit> {
    let readers = Readers::of(plan);
    let fields = fields_of_nodes(plan, fusion::ALL).into_iter();
    let units = fields.map(|(node, fields)| LoweredUnit { node, last: node, unit: fields.into() }).collect();
    passes.iter().fold(units, |units, pass| pass.run(plan, &readers, units))
}

/// The units, with each window that `joined` matches replaced.
fn rewrite_windows(units: &[LoweredUnit], joined: impl Fn(&[LoweredUnit]) -> Joined) -> Vec<LoweredUnit> {
    let mut found = Vec::with_capacity(units.len());
    let mut rest = units;
    while let [first, ..] = rest {
        let (unit, n) = joined(rest).unwrap_or_else(|| (first.unit.clone(), 1));
        let (window, after) = rest.split_at(n);
        let last = window.iter().map(|l| l.last).max().unwrap_or(first.last);
        found.push(LoweredUnit { node: first.node, last, unit });
        rest = after;
    }
    found
}

/// Number of readers of each value, the caller included.
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

    /// Returns true if a single Op reads the value.
    fn only(&self, id: ValueId) -> bool {
        self.count(id) == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::{QkRopeKv, Tail};
    use crate::fusion::fuse;
    use crate::units::Heads;
    use device::{Activation, FusedKind};
    use device_testing::{Norms, PlanBuilder, layers_with_norms, mini_transformer};
    use weights::BlockType;

    fn fused(plan: &Plan) -> Vec<LoweredUnit> {
        lower(&fuse(plan, fusion::ALL), ALL)
    }

    fn letters(lowered: &[LoweredUnit]) -> String {
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
                Unit::QkRopeKv(_) | Unit::Primitive(_) => '?',
            })
            .collect()
    }

    #[test]
    fn a_fused_transformer_is_five_units_a_layer() {
        let plan = mini_transformer(1, BlockType::Q8_0);
        assert_eq!(letters(&fused(&plan)), "eNTAGAsNTsAGANm");
        // Without fusion, every Op is a unit, except that q, k and v are joined, and gate and up,
        // in each of two layers.
        assert_eq!(lower(&plan, ALL).len(), plan.nodes.len() - 2 * (2 + 1));
    }

    /// Values that others read must be written, so a norm that a fourth Linear reads is not lost:
    /// both dispatches can compute it.
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
    fn escaping_values_are_written_under_every_rule() {
        let plan = mini_transformer(1, BlockType::Q4_0);
        for rules in [fusion::ALL, &[FusedKind::QkNormRopeKvWrite], &[FusedKind::NormLinear]] {
            let fused = fuse(&plan, rules);
            let written: Vec<ValueId> = lower(&fused, ALL).iter().flat_map(|l| l.unit.writes()).collect();
            for (node, escaping) in fused.escaping().iter().enumerate() {
                assert!(escaping.iter().all(|id| written.contains(id)), "node {node}");
            }
        }
    }

    /// There are as many units as dispatches of one row, except at the ends: sums that the next
    /// unit computes, and selected rows.
    #[test]
    fn layers_with_norms_are_few_units() {
        for (norms, expected) in [
            (Norms::Around, "eNTLjGLjsNTsLjGLjN?m"),
            (Norms::After, "eLTLjGLjsLTsLjGLjN?m"),
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

    /// A profile without passes has a unit for each fused node, and names remain distinct.
    #[test]
    fn a_profile_lists_its_passes() {
        let plan = fuse(&mini_transformer(1, BlockType::Q8_0), fusion::ALL);
        assert_eq!(letters(&lower(&plan, &[])), letters(&lower(&plan, ALL)), "nothing is left to join");
        let plan = mini_transformer(1, BlockType::Q8_0);
        assert_eq!(lower(&plan, &[]).len(), plan.nodes.len());
        assert_eq!(lower(&plan, &[LINEARS]).len(), lower(&plan, ALL).len());
        let names: std::collections::BTreeSet<&str> = ALL.iter().map(|pass| pass.name).collect();
        assert_eq!(names.len(), ALL.len());
    }
}
