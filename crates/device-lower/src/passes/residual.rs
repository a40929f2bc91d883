//! Additions of a branch to the residual stream, after norms of its own.

use super::{Joined, Readers};
use crate::units::{Join, LoweredUnit, Pair, Unit};
use device::{Op, Plan};

/// A branch that is the sum of two values, each after a norm.
pub fn pairs(plan: &Plan, readers: &Readers, rest: &[LoweredUnit]) -> Joined {
    let [first, LoweredUnit { unit: Unit::Join(sum), .. }, LoweredUnit { unit: Unit::Join(join), .. }, ..] =
        rest
    else {
        return None;
    };
    let (x, norm, normed) = first.unit.whole_norm(plan)?;
    let other_norm = sum.norm?;
    let fits = sum.residual == normed
        && sum.factor == 1.0
        && join.x == sum.out
        && [sum, join].iter().all(|j| j.pair.is_none())
        && norm.weight.is_some()
        && other_norm.weight.is_some()
        && readers.only(normed)
        && readers.only(sum.out);
    let pair = Some(Pair { norm, other: sum.x, other_norm });
    fits.then_some((Unit::Join(Join { x, pair, ..*join }), 3))
}

/// A factor on the sum.
pub fn factors(_: &Plan, readers: &Readers, rest: &[LoweredUnit]) -> Joined {
    let [
        LoweredUnit { unit: Unit::Join(join), .. },
        LoweredUnit { unit: Unit::Primitive(Op::Scale { x, factor, out }), .. },
        ..,
    ] = rest
    else {
        return None;
    };
    let scaled = Unit::Join(Join { factor: join.factor * factor, out: *out, ..*join });
    (*x == join.out && readers.only(*x)).then_some((scaled, 2))
}
