//! The softmax of attention: within a block of f32 scores, and across blocks.

use super::constants::{LOWEST, MAX_BLOCK};
use crate::simd::{Simd, math};
use std::ops::Range;

/// Replaces a row of scores by masked exponentials, updates `m` and `l`, and returns the factor for
/// the earlier blocks.
///
/// `range`: computed positions of the block. `seen`: positions that the row sees.
///
/// # Safety
/// The row has the scores of a block, whole vectors; `m` and `l` are valid; the instruction set is
/// available.
#[inline(always)]
pub unsafe fn softmax_block<S: Simd>(
    row: *mut f32,
    range: Range<usize>,
    seen: Range<usize>,
    softcap: f32,
    m: *mut f32,
    l: *mut f32,
) -> f32 {
    // SAFETY: by the caller, the row has a block's scores, and `m` and `l` are valid. The caller
    // checked the instruction set. A block's length is a multiple of `S::N`, so `first..end` is
    // within the row.
    unsafe {
        let (first, end) = (range.start / S::N * S::N, range.end.next_multiple_of(S::N));
        let (from, to) = (seen.start.max(range.start), seen.end.min(range.end));
        if from >= to {
            row.add(first).write_bytes(0, end - first);
            return 1.0;
        }
        let whole = from == first && to == end;
        let shown = from..to;
        let mut max = S::splat(LOWEST);
        for at in (first..end).step_by(S::N) {
            let mut s = S::load(row.add(at));
            if softcap != 0.0 {
                let cap = S::splat(softcap);
                s = S::mul(cap, math::tanh::<S>(S::div(s, cap)));
            }
            if !whole {
                s = among::<S>(&shown, at, s, f32::NEG_INFINITY);
            }
            S::store(row.add(at), s);
            max = S::max(s, max);
        }
        let old = *m;
        let new = old.max(S::max_lane(max));
        let mut sum = S::splat(0.0);
        let new_v = S::splat(new);
        for at in (first..end).step_by(S::N) {
            let p = math::exp::<S>(S::sub(S::load(row.add(at)), new_v));
            S::store(row.add(at), p);
            sum = S::add(sum, p);
        }
        let factor = exp_difference::<S>(old, new);
        *m = new;
        *l = *l * factor + S::sum(sum);
        factor
    }
}

/// Lanes of a vector that are among the positions, and `hidden` in the other lanes. The vector
/// begins at position `at` of a block.
///
/// # Safety
/// The lanes are positions of a block, at most [`MAX_BLOCK`]; the instruction set is available.
#[inline(always)]
pub unsafe fn among<S: Simd>(positions: &Range<usize>, at: usize, v: S::V, hidden: f32) -> S::V {
    // SAFETY: by the caller, the lanes are positions of a block, and the instruction set is
    // available; `LANES` has those of the longest block.
    unsafe {
        let (lane, hidden) = (S::load(LANES.as_ptr().add(at)), S::splat(hidden));
        let v = S::select_lt(lane, S::splat(positions.start as f32), hidden, v);
        S::select_lt(lane, S::splat(positions.end as f32), v, hidden)
    }
}

/// 0, 1, 2, ..
static LANES: [f32; MAX_BLOCK] = {
    let mut lanes = [0.0; MAX_BLOCK];
    let mut i = 0;
    while i < MAX_BLOCK {
        lanes[i] = i as f32;
        i += 1;
    }
    lanes
};

/// [`math::exp`] of one number.
///
/// # Safety
/// The instruction set is available.
#[inline(always)]
pub unsafe fn exp_one<S: Simd>(x: f32) -> f32 {
    let mut lanes = [0f32; 16];
    // SAFETY: a vector has at most 16 lanes, so it fits in `lanes`; the caller guarantees the
    // instruction set.
    unsafe { S::store(lanes.as_mut_ptr(), math::exp::<S>(S::splat(x))) };
    lanes[0]
}

/// `e^(x - max)`, with a shortcut for the frequent case of equal arguments.
///
/// # Safety
/// The instruction set is available.
#[inline(always)]
unsafe fn exp_difference<S: Simd>(x: f32, max: f32) -> f32 {
    // SAFETY: by the caller, the instruction set is available.
    if x == max { 1.0 } else { unsafe { exp_one::<S>(x - max) } }
}

/// Multiplies a row by a factor.
///
/// # Safety
/// `x` has `n` values, a multiple of 16; the instruction set is available.
#[inline(always)]
pub unsafe fn scale_row<S: Simd>(x: *mut f32, n: usize, factor: f32) {
    // SAFETY: by the caller, `x` has `n` values, and the instruction set is available; `n` is a
    // multiple of 16 and so of a vector.
    unsafe {
        let factor = S::splat(factor);
        for at in (0..n).step_by(S::N) {
            S::store(x.add(at), S::mul(S::load(x.add(at)), factor));
        }
    }
}

/// Joins the maxima and sums `(m, l)` of a vector of queries into `first`, and returns the factors
/// for the weighted values of both.
///
/// # Safety
/// All four arrays have a vector at `at`, and none overlap; the instruction set is available.
#[inline(always)]
pub unsafe fn join<S: Simd>(
    first: (*mut f32, *mut f32),
    second: (*mut f32, *mut f32),
    at: usize,
) -> (S::V, S::V) {
    // SAFETY: by the caller, the four arrays have a vector at `at`, and the instruction set is
    // available.
    unsafe {
        let (m1, m2) = (S::load(first.0.add(at)), S::load(second.0.add(at)));
        let m = S::max(m1, m2);
        let (a, b) = (math::exp::<S>(S::sub(m1, m)), math::exp::<S>(S::sub(m2, m)));
        let l = S::fma(S::load(second.1.add(at)), b, S::mul(S::load(first.1.add(at)), a));
        S::store(first.0.add(at), m);
        S::store(first.1.add(at), l);
        (a, b)
    }
}
