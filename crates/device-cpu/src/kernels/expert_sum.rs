//! `out = sum over j of weights[:, j] * x_j`, the weighted sum of the experts' results: x `(n, k *
//! cols)`, weights `(n, k)`, out `(n, cols)`.
//!
//! Rows are shared among the workers; a few rows are shared by columns. Terms are added in the
//! order of `j`. Bytes of a column: `4 k` read, 4 written.

use crate::command::Worker;
use crate::simd::{Simd, variants};
use device::RowCount;

/// Parameters.
#[derive(Clone, Copy)]
pub struct ExpertSumParams {
    /// `(n, k * cols)`
    pub x: *const f32,
    /// `(n, k)`
    pub weights: *const f32,
    /// Parts of a row.
    pub k: usize,
    /// Columns of a part.
    pub cols: usize,
    /// `(n, cols)`
    pub out: *mut f32,
    /// Kind of rows (tokens or outputs).
    pub rows: RowCount,
}

/// # Safety
/// As [`crate::command::Kernel`].
#[inline(always)]
unsafe fn body<S: Simd>(p: &ExpertSumParams, worker: &Worker<'_>) {
    let n = worker.step.n_rows(p.rows);
    let (rows, cols) =
        if n < worker.n { (0..n, worker.share(p.cols, 16)) } else { (worker.share(n, 1), 0..p.cols) };
    for row in rows {
        // SAFETY: `row` and `cols` are within the step's rows, for which `x`, `weights` and `out`
        // are valid.
        unsafe {
            let weights = std::slice::from_raw_parts(p.weights.add(row * p.k), p.k);
            let out = std::slice::from_raw_parts_mut(p.out.add(row * p.cols + cols.start), cols.len());
            out.fill(0.0);
            for (j, weight) in weights.iter().enumerate() {
                let x = p.x.add((row * p.k + j) * p.cols + cols.start);
                let x = std::slice::from_raw_parts(x, cols.len());
                for (out, x) in out.iter_mut().zip(x) {
                    *out += weight * x;
                }
            }
        }
    }
}

variants!(
    /// The kernel for an instruction set.
    expert_sum, body, ExpertSumParams
);
