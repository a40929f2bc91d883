//! Gates in front of which a single product stands: of columns that are there already, as the inputs that a layer has of its own, and of
//! whole rows, as that of an expert that every row goes through.

use super::{GivenUp, Joined, Lowered, Readers, RowGate, Unit};
use device::lower::{Projection, Tail, other_of};
use device::{Activation, Op, Plan};

/// `linear columns gate`
pub fn columns(plan: &Plan, readers: &Readers, rest: &[Lowered]) -> Joined {
    let [
        Lowered {
            unit: Unit::Projection(product @ Projection { norm: None, tail: Tail::Store, .. }), ..
        },
        Lowered { unit: Unit::Primitive(Op::Columns { x, first, out: cut }), .. },
        Lowered { unit: Unit::Primitive(Op::Gate { gate, up, kind, out }), .. },
        ..,
    ] = rest
    else {
        return None;
    };
    let [matrix] = &product.matrices[..] else { return None };
    let fits = (*gate, *up) == (matrix.out, *cut)
        && readers.only(*cut)
        && readers.only(matrix.out)
        && plan.value(*x).rows == plan.value(*out).rows;
    let by = GivenUp { kind: *kind, up: *x, first: *first, out: *out };
    fits.then_some((Unit::Gated { product: product.clone(), by }, 3))
}

/// `linear sigmoid expert_sum add`: the sum is of one expert, which so is weighed.
pub fn rows(plan: &Plan, readers: &Readers, rest: &[Lowered]) -> Joined {
    let [
        Lowered {
            unit: Unit::Projection(product @ Projection { norm: None, tail: Tail::Store, .. }), ..
        },
        Lowered {
            unit: Unit::Primitive(Op::Activate { x: gate, kind: Activation::Sigmoid, out: open }), ..
        },
        Lowered { unit: Unit::Primitive(Op::ExpertSum { x, weights, out: weighed }), .. },
        Lowered { unit: Unit::Primitive(Op::Add { a, b, out }), .. },
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
