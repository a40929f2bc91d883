//! What a branch adds to the residual stream behind norms of its own.

use super::{Join, Joined, Lowered, Pair, Readers, Unit, whole_norm};
use device::{Op, Plan};

/// A branch that is the sum of two, each behind a norm.
pub fn pairs(plan: &Plan, readers: &Readers, rest: &[Lowered]) -> Joined {
    let [first, Lowered { unit: Unit::Join(sum), .. }, Lowered { unit: Unit::Join(join), .. }, ..] = rest
    else {
        return None;
    };
    let (x, norm, normed) = whole_norm(plan, &first.unit)?;
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
pub fn factors(_: &Plan, readers: &Readers, rest: &[Lowered]) -> Joined {
    match rest {
        [
            Lowered { unit: Unit::Join(join), .. },
            Lowered { unit: Unit::Primitive(Op::Scale { x, factor, out }), .. },
            ..,
        ] if *x == join.out && readers.only(*x) => {
            Some((Unit::Join(Join { factor: join.factor * factor, out: *out, ..*join }), 2))
        }
        _ => None,
    }
}
