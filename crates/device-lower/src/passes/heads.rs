//! Inputs of attention: products of the same rows without a norm before them, norms that no fusion
//! rule covers, and query heads without a KvWrite.

use super::{Joined, Readers};
use crate::fields::{HeadChain, Norm, Projection, RopeOf, Tail, attention_of};
use crate::units::{Heads, LoweredUnit, Queries, Unit};
use device::{Op, Plan};

/// Up to three Linears of the same rows.
pub fn linears(_: &Plan, _: &Readers, rest: &[LoweredUnit]) -> Joined {
    let single = |lowered: &LoweredUnit| {
        let Unit::Projection(p) = &lowered.unit else { return None };
        let [matrix] = p.matrices[..] else { return None };
        (p.norm.is_none() && p.tail == Tail::Store).then_some((p.x, matrix))
    };
    let (x, _) = single(rest.first()?)?;
    let same = rest.iter().map_while(single).take_while(|(other, _)| *other == x);
    let matrices: Vec<_> = same.take(3).map(|(_, matrix)| matrix).collect();
    let n = matrices.len();
    (n > 1).then_some((Unit::Projection(Projection { x, norm: None, matrices, tail: Tail::Store }), n))
}

/// A norm of the heads of v, or norms of the whole rows of q and k, before the unit that writes
/// them to the cache.
pub fn norms(plan: &Plan, readers: &Readers, rest: &[LoweredUnit]) -> Joined {
    match rest {
        [
            LoweredUnit { unit: Unit::Primitive(Op::RmsNorm { x, weight: None, eps, group, out }), .. },
            LoweredUnit { unit: Unit::QkRopeKv(heads @ Heads { v_norm: None, .. }), .. },
            ..,
        ] if heads.chains.v == *out
            && readers.only(*out)
            && *group == plan.kv.layer(heads.chains.layer).head_dim =>
        {
            let mut heads = *heads;
            heads.chains.v = *x;
            heads.v_norm = Some(Norm { weight: None, eps: *eps });
            Some((Unit::QkRopeKv(heads), 2))
        }
        [first, second, LoweredUnit { unit: Unit::QkRopeKv(heads), .. }, ..] => {
            let (q_x, q_norm, q_out) = first.unit.whole_norm(plan)?;
            let (k_x, k_norm, k_out) = second.unit.whole_norm(plan)?;
            let mut heads = *heads;
            let (q, k) = (heads.chains.q.as_mut()?, &mut heads.chains.k);
            let fits = (q.x, k.x) == (q_out, k_out)
                && q.norm.is_none()
                && k.norm.is_none()
                && q_norm.weight.is_some()
                && k_norm.weight.is_some()
                && readers.only(q_out)
                && readers.only(k_out)
                // Heads without RoPE are read in place.
                && q.rope.is_some()
                && k.rope.is_some();
            (q.x, q.norm, k.x, k.norm) = (q_x, Some(q_norm), k_x, Some(k_norm));
            heads.whole_rows = true;
            fits.then_some((Unit::QkRopeKv(heads), 3))
        }
        _ => None,
    }
}

/// `[norm of heads] rope attention`, over keys and values that were written before.
pub fn queries(plan: &Plan, readers: &Readers, rest: &[LoweredUnit]) -> Joined {
    let ops: Vec<&Op> = rest.iter().take(3).map_while(|l| l.unit.primitive()).collect();
    let (norm, after) = match &ops[..] {
        [Op::RmsNorm { x, weight, eps, group, out }, after @ ..] => {
            (Some((*x, Norm { weight: *weight, eps: *eps }, *group, *out)), after)
        }
        all => (None, all),
    };
    let [Op::Rope { x, head_dim, n_dims, style, frequencies, scale, out: end }, reader, ..] = after else {
        return None;
    };
    let (q, layer, attention) = attention_of(reader)?;
    let fits = q == *end
        && readers.only(*end)
        && *head_dim == plan.kv.layer(layer).head_dim
        && norm.is_none_or(|(_, norm, group, out)| {
            let one_for_all = norm.weight.is_none_or(|weight| plan.weight(weight).n_cols() == group);
            group == *head_dim && out == *x && readers.only(out) && one_for_all
        });
    let rope = RopeOf { frequencies: *frequencies, n_dims: *n_dims, style: *style, scale: *scale };
    let chain = HeadChain {
        x: norm.map_or(*x, |(x, ..)| x),
        norm: norm.map(|(_, norm, ..)| norm),
        rope: Some(rope),
        end: *end,
        escapes: false,
    };
    let unit = Unit::QRope(Queries { q: chain, layer, attention });
    fits.then_some((unit, if norm.is_some() { 3 } else { 2 }))
}
