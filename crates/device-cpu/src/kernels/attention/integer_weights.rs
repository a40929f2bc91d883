//! Softmax from sums of products to integer weights, for a block whose keys and values are
//! integers. The formula is in [`integers`](super::integers).

// Loops use indices, since the vectors of a block are an array that must become registers.
#![allow(clippy::needless_range_loop)]

use super::constants::{INTEGER_BLOCK as BLOCK, LOWEST};
use super::integer_layout::IntegerWork;
use super::numbers::Numbers;
use super::softmax::among;
use crate::simd::{Simd, math};
use std::ops::Range;

/// Binary logarithm of an exponential of 1 before it is rounded: [`BLOCK`] of them fit into 31
/// bits.
const ONE_LOG2: f32 = 23.0;
/// `2^-ONE_LOG2`
const ONE_STEP: f32 = 1.0 / (1 << 23) as f32;
/// Weight below which values are treated as zero.
const LEAST_WEIGHT: f32 = 1e-30;

/// Scores of a vector of positions, without the query's scale.
///
/// # Safety
/// The pointers are valid for vectors; the instruction set is available.
#[inline(always)]
pub unsafe fn score<S: Simd>(sums: *const i32, scales: *const f32) -> S::V {
    // SAFETY: by the caller, both pointers are valid for a vector, and the instruction set is
    // available.
    unsafe { S::mul(S::to_f32(S::load_i(sums)), S::load(scales)) }
}

/// Maximum number of vectors of a block, with the shortest vectors.
const MAX_VECTORS: usize = BLOCK / 4;
/// Vectors of a block if those of two queries fit the registers, with AVX-512.
pub const PAIRED_VECTORS: usize = 8;

/// Turns the sums of products of `M` queries into integer weights, in place, and computes the
/// block's `m`, `l` and `step`. Each operation depends on the one before, so with AVX-512 two
/// queries are interleaved, with their whole block in registers.
///
/// `shown`: for each query, the computed positions of the block that its row sees. `SCORED`: the
/// sums were already replaced by scaled scores in f32.
///
/// # Safety
/// The work has the sums or scores of the queries `query..query + M`, and the scales of keys and
/// values; the instruction set is available.
#[inline(always)]
pub unsafe fn weights<S: Simd, N: Numbers, const M: usize, const SCORED: bool>(
    work: IntegerWork,
    query: usize,
    shown: [Range<usize>; M],
    softcap: f32,
) {
    let n = BLOCK / S::N;
    let whole = shown.iter().all(|shown| *shown == (0..BLOCK));
    // SAFETY: by the caller, the work has the sums or scores of the queries `query..query + M` and
    // the scales of keys and values. The caller checked the instruction set. `n` vectors are a
    // block. What is not shown may be anything, and is replaced.
    unsafe {
        let (rows, q_scales) = (work.s.add(query * BLOCK), work.q_scale.add(query));
        let mut x = [[S::splat(0.0); MAX_VECTORS]; M];
        for m in 0..M {
            for i in 0..n {
                let sums = rows.add(m * BLOCK + i * S::N);
                x[m][i] =
                    if SCORED { S::load(sums.cast()) } else { score::<S>(sums, work.scales.add(i * S::N)) };
            }
        }
        if softcap != 0.0 {
            let cap = S::splat(softcap);
            for m in 0..M {
                for i in 0..n {
                    let s = if SCORED { x[m][i] } else { S::mul(x[m][i], S::splat(*q_scales.add(m))) };
                    x[m][i] = S::mul(cap, math::tanh::<S>(S::div(s, cap)));
                }
            }
        }
        if !whole {
            for m in 0..M {
                for i in 0..n {
                    x[m][i] = among::<S>(&shown[m], i * S::N, x[m][i], f32::NEG_INFINITY);
                }
            }
        }
        let mut max = [S::splat(LOWEST); M];
        for i in 0..n {
            for m in 0..M {
                max[m] = S::max(x[m][i], max[m]);
            }
        }
        let (mut log2_e, mut shift) = ([0.0; M], [0.0; M]);
        for m in 0..M {
            // Scores with a softcap are already scaled; others are not.
            let scale = if SCORED || softcap != 0.0 { 1.0 } else { *q_scales.add(m) };
            let max = if shown[m].is_empty() { LOWEST } else { S::max_lane(max[m]) * scale };
            work.m.add(query + m).write(max);
            // Clamp: 0 * -inf on hidden positions would be NaN.
            log2_e[m] = (scale * std::f32::consts::LOG2_E).max(f32::MIN_POSITIVE);
            shift[m] = ONE_LOG2 - max * std::f32::consts::LOG2_E;
        }
        let mut l = [S::splat_i(0); M];
        for i in 0..n {
            let scales = S::load(work.scales.add(BLOCK + i * S::N));
            for m in 0..M {
                let e = S::exp2(S::fma(x[m][i], S::splat(log2_e[m]), S::splat(shift[m])));
                l[m] = S::add_i(l[m], S::round(e));
                x[m][i] = S::mul(e, scales);
            }
        }
        if !whole {
            for m in 0..M {
                for i in 0..n {
                    x[m][i] = among::<S>(&shown[m], i * S::N, x[m][i], 0.0);
                }
            }
        }
        let mut most = [S::splat(0.0); M];
        for i in 0..n {
            for m in 0..M {
                most[m] = S::max_bits(most[m], x[m][i]);
            }
        }
        let mut factor = [0.0; M];
        for m in 0..M {
            let most = S::max_bits_lane(most[m]);
            // A NaN fails this comparison on purpose, and is then visible in the step.
            factor[m] = if most < LEAST_WEIGHT { 0.0 } else { N::MAX_WEIGHT / most };
            // A NaN query has ordinary integer sums; its scale restores the NaN.
            let l = S::sum_i(l[m]) as f32 * ONE_STEP + 0.0 * *q_scales.add(m);
            work.l.add(query + m).write(l);
            work.step.add(query + m).write(most * (ONE_STEP / N::MAX_WEIGHT));
        }
        for m in 0..M {
            for i in 0..n {
                N::store_weights::<S>(rows.add(m * BLOCK), i * S::N, x[m][i], S::splat(factor[m]));
            }
        }
    }
}
