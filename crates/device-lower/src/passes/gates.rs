//! Gates after a single product. Some gate columns of an existing value, such as the per-layer
//! inputs of some models; others gate whole rows, such as a shared expert's.

use super::{Joined, Readers};
use crate::fields::{Projection, Tail, other_of};
use crate::units::{GivenUp, LoweredUnit, RowGate, Unit};
use device::{Activation, Op, Plan};

/// `linear columns gate`
pub fn columns(plan: &Plan, readers: &Readers, rest: &[LoweredUnit]) -> Joined {
    let [
        LoweredUnit {
            unit: Unit::Projection(product @ Projection { norm: None, tail: Tail::Store, .. }),
            ..
        },
        LoweredUnit { unit: Unit::Primitive(Op::Columns { x, first, group, out: cut }), .. },
        LoweredUnit { unit: Unit::Primitive(Op::Gate { gate, up, kind, out }), .. },
        ..,
    ] = rest
    else {
        return None;
    };
    let [matrix] = &product.matrices[..] else { return None };
    let fits = (*gate, *up) == (matrix.out, *cut)
        && readers.only(*cut)
        && readers.only(matrix.out)
        && plan.value(*x).rows == plan.value(*out).rows
        && plan.value(*x).cols == *group;
    let by = GivenUp { kind: *kind, up: *x, first: *first, out: *out };
    fits.then_some((Unit::Gated { product: product.clone(), by }, 3))
}

/// `linear sigmoid expert_sum add`: the sum has a single term, so it only scales the row.
pub fn rows(plan: &Plan, readers: &Readers, rest: &[LoweredUnit]) -> Joined {
    let [
        LoweredUnit {
            unit: Unit::Projection(product @ Projection { norm: None, tail: Tail::Store, .. }),
            ..
        },
        LoweredUnit {
            unit: Unit::Primitive(Op::Activate { x: gate, kind: Activation::Sigmoid, out: open }),
            ..
        },
        LoweredUnit { unit: Unit::Primitive(Op::ExpertSum { x, weights, out: weighed }), .. },
        LoweredUnit { unit: Unit::Primitive(Op::Add { a, b, out }), .. },
        ..,
    ] = rest
    else {
        return None;
    };
    let [matrix] = &product.matrices[..] else { return None };
    let residual = other_of(*weighed, *a, *b)?;
    let fits = (*x, *weights) == (matrix.out, *open)
        && plan.value(*gate).cols == 1
        && plan.value(*gate).rows == plan.value(*out).rows
        && [matrix.out, *open, *weighed].into_iter().all(|id| readers.only(id));
    let by = RowGate { gate: *gate, residual, out: *out };
    fits.then_some((Unit::RowGated { product: product.clone(), by }, 4))
}
