//! A gate of columns that are there already, as the inputs that a layer has of its own.

use super::{GivenUp, Joined, Lowered, Readers, Unit};
use device::lower::{Projection, Tail};
use device::{Op, Plan};

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
