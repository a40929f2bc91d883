//! Mixtures of experts: neighbouring units that one dispatch runs.

use super::{Joined, Readers};
use crate::fields::{Projection, Tail, other_of};
use crate::units::{Beside, LoweredUnit, Unit};
use device::{Op, Plan};

/// `expert_linear expert_linear gate`, and `expert_linear expert_sum [add]`
pub fn products(plan: &Plan, readers: &Readers, rest: &[LoweredUnit]) -> Joined {
    let units: Vec<&Unit> = rest.iter().take(4).map(|l| &l.unit).collect();
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
    let (x, ids, kind, out) = (*x, *ids, *kind, *out);
    let unit = Unit::ExpertGateUp { x, norm: None, ids, gate, up, kind, beside: None, out };
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
    let add = after.first().and_then(|next| next.primitive()).and_then(|op| {
        let Op::Add { a, b, out: sum } = op else { return None };
        other_of(*out, *a, *b).filter(|_| readers.only(*out)).map(|residual| (residual, *sum))
    });
    let residual = add.map(|(residual, _)| residual);
    let out = add.map_or(*out, |(_, sum)| sum);
    let (x, ids, weight, weights, parts) = (*x, *ids, *weight, *weights, *parts);
    let unit = Unit::ExpertDownSum { x, ids, weight, weights, parts, residual, beside: None, out };
    Some((unit, if add.is_some() { 3 } else { 2 }))
}

/// A dense product before the experts' products, which do not read it, if both matrices have one
/// type.
pub fn beside(plan: &Plan, _: &Readers, rest: &[LoweredUnit]) -> Joined {
    let [
        LoweredUnit {
            unit: Unit::Projection(Projection { x, norm: None, matrices, tail: Tail::Store }), ..
        },
        LoweredUnit {
            unit: experts @ Unit::ExpertDownSum { weight, residual: None, beside: None, out, .. },
            ..
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

/// The gate and up of a shared expert beside those of the chosen experts, if all matrices have one
/// type.
pub fn gates_beside(plan: &Plan, _: &Readers, rest: &[LoweredUnit]) -> Joined {
    let [
        LoweredUnit { unit: experts @ Unit::ExpertGateUp { x, norm, gate, kind, beside: None, .. }, .. },
        LoweredUnit { unit: Unit::Projection(dense), .. },
        ..,
    ] = rest
    else {
        return None;
    };
    let block = plan.weight(*gate).block;
    let fits = (dense.x, dense.norm) == (*x, *norm)
        && matches!(dense.tail, Tail::Gate { kind: of, .. } if of == *kind)
        && dense.matrices.iter().all(|m| m.bias.is_none() && plan.weight(m.weight).block == block);
    let mut unit = experts.clone();
    if let Unit::ExpertGateUp { beside, .. } = &mut unit {
        *beside = Some(dense.clone());
    }
    fits.then_some((unit, 2))
}
