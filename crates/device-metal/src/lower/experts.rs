//! Mixtures of experts: neighbours that one dispatch runs.

use super::{Beside, Joined, Lowered, Readers, Unit, whole_norm};
use device::lower::{Projection, Tail, other_of};
use device::{Op, Plan};

/// `[norm] expert_linear expert_linear gate`, and `expert_linear expert_sum [add]`
pub fn products(plan: &Plan, readers: &Readers, rest: &[Lowered]) -> Joined {
    let units: Vec<&Unit> = rest.iter().take(4).map(|l| &l.unit).collect();
    if let [first, behind @ ..] = &units[..]
        && let Some((x, norm, out)) = whole_norm(plan, first)
        && let Some((gate_up, n)) = gate_up(plan, readers, behind)
        && let Unit::ExpertGateUp { x: normed, ids, gate, up, kind, out: to, .. } = gate_up
        && normed == out
        && norm.weight.is_some()
        && readers.count(out) == 2
    {
        let norm = Some((norm, out));
        return Some((Unit::ExpertGateUp { x, norm, ids, gate, up, kind, out: to }, n + 1));
    }
    gate_up(plan, readers, &units).or_else(|| down_sum(plan, readers, &units))
}

fn gate_up(plan: &Plan, readers: &Readers, units: &[&Unit]) -> Joined {
    let [
        Unit::Primitive(Op::ExpertLinear { x, ids, weight: w1, out: o1 }),
        Unit::Primitive(Op::ExpertLinear { x: x2, ids: ids2, weight: w2, out: o2 }),
        Unit::Primitive(Op::Gate { gate, up, kind, out }),
        ..,
    ] = units
    else {
        return None;
    };
    let fits = x == x2
        && ids == ids2
        && readers.only(*o1)
        && readers.only(*o2)
        && ((gate, up) == (o1, o2) || (gate, up) == (o2, o1))
        && plan.weight(*w1).shape == plan.weight(*w2).shape
        && plan.weight(*w1).block == plan.weight(*w2).block
        && plan.value(*x).cols == plan.weight(*w1).n_cols();
    let (gate, up) = if gate == o1 { (*w1, *w2) } else { (*w2, *w1) };
    let unit = Unit::ExpertGateUp { x: *x, norm: None, ids: *ids, gate, up, kind: *kind, out: *out };
    fits.then_some((unit, 3))
}

fn down_sum(plan: &Plan, readers: &Readers, units: &[&Unit]) -> Joined {
    let [
        Unit::Primitive(Op::ExpertLinear { x, ids, weight, out: parts }),
        Unit::Primitive(Op::ExpertSum { x: summed, weights, out }),
        after @ ..,
    ] = units
    else {
        return None;
    };
    if summed != parts || !readers.only(*parts) || plan.value(*weights).cols != plan.value(*ids).cols {
        return None;
    }
    let add = match after {
        [Unit::Primitive(Op::Add { a, b, out: sum }), ..] if readers.only(*out) => {
            other_of(*out, *a, *b).map(|residual| (residual, *sum))
        }
        _ => None,
    };
    let residual = add.map(|(residual, _)| residual);
    let out = add.map_or(*out, |(_, sum)| sum);
    let (x, ids, weight, weights, parts) = (*x, *ids, *weight, *weights, *parts);
    let unit = Unit::ExpertDownSum { x, ids, weight, weights, parts, residual, beside: None, out };
    Some((unit, if add.is_some() { 3 } else { 2 }))
}

/// A dense product that stands before the experts' own and that they do not read, where both matrices have one type.
pub fn beside(plan: &Plan, _: &Readers, rest: &[Lowered]) -> Joined {
    let [
        Lowered { unit: Unit::Projection(Projection { x, norm: None, matrices, tail: Tail::Store }), .. },
        Lowered {
            unit: experts @ Unit::ExpertDownSum { weight, residual: None, beside: None, out, .. }, ..
        },
        ..,
    ] = rest
    else {
        return None;
    };
    let [matrix] = &matrices[..] else { return None };
    let fits = matrix.bias.is_none()
        && plan.weight(matrix.weight).block == plan.weight(*weight).block
        && plan.value(matrix.out).cols == plan.value(*out).cols
        && !experts.reads().contains(&matrix.out);
    let mut unit = experts.clone();
    if let Unit::ExpertDownSum { beside, .. } = &mut unit {
        *beside = Some(Beside { x: *x, weight: matrix.weight, out: matrix.out });
    }
    fits.then_some((unit, 2))
}
