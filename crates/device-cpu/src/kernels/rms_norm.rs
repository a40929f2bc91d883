//! `out = x / sqrt(mean(x^2) + eps) * weight [+ residual]`, over groups of neighbouring columns.
//!
//! x, residual and out `(n, cols)`, weight `(group)` or `(cols)`. Groups are shared among the
//! workers. Accumulation is in f32: four vectors of squares side by side, added pairwise, then
//! their lanes; a rest shorter than a vector comes last. Bytes of a value: 4 read (8 with a
//! residual), 4 written; the second read of x hits the first-level cache.

use super::elementwise::{Sum, Times, TimesBoth, combine};
use crate::command::Worker;
use crate::simd::{Simd, variants};
use device::RowCount;

/// Parameters.
#[derive(Clone, Copy)]
pub struct RmsNormParams {
    /// `(n, cols)`
    pub x: *const f32,
    /// `(group)` or `(cols)`; null for no factor.
    pub weight: *const f32,
    /// Number of groups with different weights: 1, or all groups of a row.
    pub n_weights: usize,
    /// Constant added to the mean square.
    pub eps: f32,
    /// Columns that are normalised together.
    pub group: usize,
    /// Columns.
    pub cols: usize,
    /// Kind of rows (tokens or outputs).
    pub rows: RowCount,
    /// `(n, cols)`; null for no residual.
    pub residual: *const f32,
    /// `(n, cols)`; may alias the residual.
    pub out: *mut f32,
}

/// # Safety
/// As [`crate::command::Kernel`].
#[inline(always)]
unsafe fn body<S: Simd>(p: &RmsNormParams, worker: &Worker<'_>) {
    for group in worker.share(worker.step.n_rows(p.rows) * (p.cols / p.group), 1) {
        let at = group * p.group;
        // SAFETY: `group` is below rows times groups, so `at` is within `x`, `residual` and `out`.
        unsafe {
            let (x, out) = (p.x.add(at), p.out.add(at));
            // A null weight must stay null: `n_weights` is 1 then, and the offset 0.
            let weight = p.weight.wrapping_add(group % p.n_weights * p.group);
            if p.residual.is_null() {
                norm_row::<S>(x, weight, p.group, p.eps, out);
            } else {
                let residual = p.residual.add(at);
                let factor = factor::<S>(x, p.group, p.eps);
                // The residual may alias `out`: each value is read before it is written, in the
                // same pass.
                add_normed::<S>(x, weight, factor, residual, p.group, out);
            }
        }
    }
}

variants!(
    /// The kernel for an instruction set.
    rms_norm, body, RmsNormParams
);

/// `1 / sqrt(mean(x^2) + eps)` of `n` columns.
///
/// # Safety
/// `x` is valid for `n` values; the instruction set is available.
#[inline(always)]
pub unsafe fn factor<S: Simd>(x: *const f32, n: usize, eps: f32) -> f32 {
    // SAFETY: the caller guarantees `n` values at `x`, and the instruction set.
    unsafe {
        let mut sums = [S::splat(0.0); 4];
        let mut at = 0;
        while at + 4 * S::N <= n {
            for (i, sum) in sums.iter_mut().enumerate() {
                let v = S::load(x.add(at + i * S::N));
                *sum = S::fma(v, v, *sum);
            }
            at += 4 * S::N;
        }
        while at + S::N <= n {
            let v = S::load(x.add(at));
            sums[0] = S::fma(v, v, sums[0]);
            at += S::N;
        }
        let mut sum = S::sum(S::add(S::add(sums[0], sums[1]), S::add(sums[2], sums[3])));
        for i in at..n {
            sum += *x.add(i) * *x.add(i);
        }
        1.0 / (sum / n as f32 + eps).sqrt()
    }
}

/// Normalises one group: `out = x * factor * weight`; `out` may alias `x`.
///
/// # Safety
/// `x`, `out` and a `weight` that is not null are valid for `n` values; the instruction set is
/// available.
#[inline(always)]
pub unsafe fn norm_row<S: Simd>(x: *const f32, weight: *const f32, n: usize, eps: f32, out: *mut f32) {
    // SAFETY: the caller guarantees `n` values at `x`, `out` and a non-null `weight`, and the
    // instruction set.
    unsafe {
        let factor = factor::<S>(x, n, eps);
        if weight.is_null() {
            combine::<S>(x, x, out, n, Times(factor));
        } else {
            combine::<S>(x, weight, out, n, TimesBoth(factor));
        }
    }
}

/// # Safety
/// As [`norm_row`]; `residual` is valid for `n` values too.
#[inline(always)]
unsafe fn add_normed<S: Simd>(
    x: *const f32,
    weight: *const f32,
    factor: f32,
    residual: *const f32,
    n: usize,
    out: *mut f32,
) {
    // SAFETY: the caller guarantees `n` values at `x`, `weight`, `residual` and `out`; each piece
    // is at most 16 values, as `normed` is.
    unsafe {
        for at in (0..n).step_by(16) {
            let len = (n - at).min(16);
            let mut normed = [0f32; 16];
            if weight.is_null() {
                combine::<S>(x.add(at), x.add(at), normed.as_mut_ptr(), len, Times(factor));
            } else {
                combine::<S>(x.add(at), weight.add(at), normed.as_mut_ptr(), len, TimesBoth(factor));
            }
            combine::<S>(normed.as_ptr(), residual.add(at), out.add(at), len, Sum);
        }
    }
}
