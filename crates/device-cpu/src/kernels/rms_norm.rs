//! `out = x / sqrt(mean(x^2) + eps) * weight [+ residual]`, over groups of neighbouring columns.
//!
//! x, residual and out `(n, cols)`, weight `(group)` or `(cols)`. Groups are shared among the workers. Accumulation: four vectors
//! of squares side by side, added pairwise, then their lanes, in f32; a rest shorter than a vector last.
//! Bytes: 4 read (8 with a residual) and 4 written a value; the second reading of x comes from the first cache.

use super::elementwise::{Sum, Times, TimesBoth, combine};
use crate::command::Worker;
use crate::simd::{Simd, variants};
use device::RowCount;

/// Parameters.
#[derive(Clone, Copy)]
pub struct Params {
    /// `(n, cols)`
    pub x: *const f32,
    /// `(group)` or `(cols)`; null: no factor.
    pub weight: *const f32,
    /// Groups that have weights of their own: 1, or all of a row.
    pub n_weights: usize,
    /// Added to the mean square.
    pub eps: f32,
    /// Columns normalised together.
    pub group: usize,
    /// Columns.
    pub cols: usize,
    /// Which rows.
    pub rows: RowCount,
    /// `(n, cols)`; null: nothing is added.
    pub residual: *const f32,
    /// `(n, cols)`; may be the residual.
    pub out: *mut f32,
}

/// # Safety
/// As [`crate::command::Kernel`].
#[inline(always)]
unsafe fn body<S: Simd>(p: &Params, worker: &Worker<'_>) {
    for group in worker.share(worker.step.n_rows(p.rows) * (p.cols / p.group), 1) {
        let at = group * p.group;
        // SAFETY: the group lies within the values.
        unsafe {
            let (x, out) = (p.x.add(at), p.out.add(at));
            // No offset where there is no weight: null stays null.
            let weight = p.weight.wrapping_add(group % p.n_weights * p.group);
            if p.residual.is_null() {
                norm_row::<S>(x, weight, p.group, p.eps, out);
            } else {
                let residual = p.residual.add(at);
                let factor = factor::<S>(x, p.group, p.eps);
                // The residual may be `out`: it is read where it is written, in the same pass.
                add_normed::<S>(x, weight, factor, residual, p.group, out);
            }
        }
    }
}

variants!(
    /// The kernel for an instruction set.
    rms_norm, body, Params
);

/// `1 / sqrt(mean(x^2) + eps)` of `n` columns.
///
/// # Safety
/// `x` is valid for `n` values; the instruction set is available.
#[inline(always)]
pub unsafe fn factor<S: Simd>(x: *const f32, n: usize, eps: f32) -> f32 {
    // SAFETY: by the caller, `x` is valid for `n` values; the instruction set is available.
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

/// One group: `out = x * factor * weight`; `out` may be `x`.
///
/// # Safety
/// `x`, `out` and `weight`, unless it is null, are valid for `n` values; the instruction set is available.
#[inline(always)]
pub unsafe fn norm_row<S: Simd>(x: *const f32, weight: *const f32, n: usize, eps: f32, out: *mut f32) {
    // SAFETY: by the caller, `x`, `out` and `weight`, unless it is null, are valid for `n` values; the
    // instruction set is available.
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
/// As [`norm_row`], `residual` too.
#[inline(always)]
unsafe fn add_normed<S: Simd>(
    x: *const f32,
    weight: *const f32,
    factor: f32,
    residual: *const f32,
    n: usize,
    out: *mut f32,
) {
    // SAFETY: by the caller, `x`, `residual`, `out` and `weight` are valid for `n` values; pieces of 16 go through a copy of the normed values.
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
