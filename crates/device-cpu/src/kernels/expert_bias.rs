//! `out[:, j] = x_j + bias[ids[:, j]]`: x and out `(n, k * cols)`, ids `(n, k)`, bias
//! `(n_experts, cols)`.
//!
//! Pairs of a row and an expert are shared among the workers. Bytes: 12 a value.

use crate::command::Worker;
use crate::simd::{Simd, variants};
use device::RowCount;

/// Parameters.
#[derive(Clone, Copy)]
pub struct ExpertBiasParams {
    /// `(n, k * cols)`
    pub x: *const f32,
    /// `(n, k)`, each below the number of experts.
    pub ids: *const u32,
    /// `(n_experts, cols)`
    pub bias: *const f32,
    /// Experts of a row.
    pub k: usize,
    /// Columns of a part.
    pub cols: usize,
    /// `(n, k * cols)`
    pub out: *mut f32,
    /// Kind of rows (tokens or outputs).
    pub rows: RowCount,
}

/// # Safety
/// As [`crate::command::Kernel`].
#[inline(always)]
unsafe fn body<S: Simd>(p: &ExpertBiasParams, worker: &Worker<'_>) {
    for pair in worker.share(worker.step.n_rows(p.rows) * p.k, 1) {
        // SAFETY: `pair` is below rows times `k`, for which `x`, `ids` and `out` are valid; `id` is
        // below the number of experts.
        unsafe {
            let id = *p.ids.add(pair) as usize;
            let x = std::slice::from_raw_parts(p.x.add(pair * p.cols), p.cols);
            let bias = std::slice::from_raw_parts(p.bias.add(id * p.cols), p.cols);
            let out = std::slice::from_raw_parts_mut(p.out.add(pair * p.cols), p.cols);
            for ((out, x), bias) in out.iter_mut().zip(x).zip(bias) {
                *out = x + bias;
            }
        }
    }
}

variants!(
    /// The kernel for an instruction set.
    expert_bias, body, ExpertBiasParams
);
