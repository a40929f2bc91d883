//! `out = (x - mean) / sqrt(variance + eps) * weight + bias`, over whole rows.
//!
//! x and out `(n, cols)`, weight and bias `(cols)`. Rows are shared among the workers. Accumulation
//! is in f32: four vectors side by side, added pairwise, then their lanes; a rest shorter than a
//! vector comes last. The variance is summed after the mean was subtracted, so rows far from zero
//! lose no precision. Bytes of a value: 4 read, 4 written; the second and third read of x hit the
//! first-level cache.

use crate::command::Worker;
use crate::kernels::elementwise::{Function, Sum, combine};
use crate::simd::{Simd, variants};
use device::RowCount;

/// Parameters.
#[derive(Clone, Copy)]
pub struct LayerNormParams {
    /// `(n, cols)`
    pub x: *const f32,
    /// `(cols)`
    pub weight: *const f32,
    /// `(cols)`; null for no bias.
    pub bias: *const f32,
    /// Constant added to the variance.
    pub eps: f32,
    /// Columns.
    pub cols: usize,
    /// Kind of rows (tokens or outputs).
    pub rows: RowCount,
    /// `(n, cols)`
    pub out: *mut f32,
}

/// `(x - mean) * scale * weight`
struct Normalised {
    mean: f32,
    scale: f32,
}

impl Function for Normalised {
    #[inline(always)]
    unsafe fn of<S: Simd>(&self, x: S::V, weight: S::V) -> S::V {
        // SAFETY: by the caller, the instruction set is available.
        unsafe { S::mul(S::mul(S::sub(x, S::splat(self.mean)), S::splat(self.scale)), weight) }
    }
}

/// # Safety
/// As [`crate::command::Kernel`].
#[inline(always)]
unsafe fn body<S: Simd>(p: &LayerNormParams, worker: &Worker<'_>) {
    let n = p.cols;
    for row in worker.share(worker.step.n_rows(p.rows), 1) {
        // SAFETY: `row` is below the step's rows, for which `x` and `out` are valid.
        unsafe {
            let (x, out) = (p.x.add(row * n), p.out.add(row * n));
            let mean = sum::<S>(x, n, 0.0, |v| v, |v| v) / n as f32;
            let variance = sum::<S>(x, n, mean, |v| S::mul(v, v), |v| v * v) / n as f32;
            let scale = 1.0 / (variance + p.eps).sqrt();
            combine::<S>(x, p.weight, out, n, Normalised { mean, scale });
            if !p.bias.is_null() {
                combine::<S>(out, p.bias, out, n, Sum);
            }
        }
    }
}

variants!(
    /// The kernel for an instruction set.
    layer_norm, body, LayerNormParams
);

/// Sum of `f(x - shift)` over `n` columns.
///
/// # Safety
/// `x` is valid for `n` values; the instruction set is available.
#[inline(always)]
unsafe fn sum<S: Simd>(
    x: *const f32,
    n: usize,
    shift: f32,
    f: impl Fn(S::V) -> S::V,
    one: impl Fn(f32) -> f32,
) -> f32 {
    // SAFETY: by the caller, `x` is valid for `n` values; the instruction set is available.
    unsafe {
        let shifts = S::splat(shift);
        let mut sums = [S::splat(0.0); 4];
        let mut at = 0;
        while at + 4 * S::N <= n {
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = S::add(*sum, f(S::sub(S::load(x.add(at + i * S::N)), shifts)));
            }
            at += 4 * S::N;
        }
        while at + S::N <= n {
            sums[0] = S::add(sums[0], f(S::sub(S::load(x.add(at)), shifts)));
            at += S::N;
        }
        let mut sum = S::sum(S::add(S::add(sums[0], sums[1]), S::add(sums[2], sums[3])));
        for i in at..n {
            sum += one(*x.add(i) - shift);
        }
        sum
    }
}
