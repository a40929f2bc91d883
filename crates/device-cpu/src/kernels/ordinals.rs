//! `out[:, j] = j`, out `(n, k)` of u32. Rows are shared among the workers. Bytes: 4 a value.

use crate::command::Worker;
use device::RowCount;

/// Parameters.
#[derive(Clone, Copy)]
pub struct OrdinalsParams {
    /// `(n, k)`
    pub out: *mut u32,
    /// Columns.
    pub k: usize,
    /// Kind of rows (tokens or outputs).
    pub rows: RowCount,
}

/// The kernel.
///
/// # Safety
/// As [`crate::command::Kernel`].
pub unsafe fn ordinals(p: &OrdinalsParams, worker: &Worker<'_>) {
    for at in worker.share(worker.step.n_rows(p.rows) * p.k, 1) {
        // SAFETY: `at` is below rows times `k`, for which `p.out` is valid.
        unsafe { *p.out.add(at) = (at % p.k) as u32 }
    }
}
