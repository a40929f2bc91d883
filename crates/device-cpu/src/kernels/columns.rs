//! `out = x[:, first..first + cols]`: neighbouring columns, x `(n, from)`, out `(n, cols)`.
//!
//! Rows are shared among the workers. Bytes: 8 a value.

use crate::command::Worker;
use device::RowCount;

/// Parameters.
#[derive(Clone, Copy)]
pub struct Params {
    /// `(n, from)`
    pub x: *const f32,
    /// Columns of `x`.
    pub from: usize,
    /// The first that is taken.
    pub first: usize,
    /// `(n, cols)`
    pub out: *mut f32,
    /// How many are taken.
    pub cols: usize,
    /// Which rows.
    pub rows: RowCount,
}

/// The kernel.
///
/// # Safety
/// As [`crate::command::Kernel`].
pub unsafe fn columns(p: &Params, worker: &Worker<'_>) {
    for row in worker.share(worker.step.n_rows(p.rows), 1) {
        // SAFETY: the columns lie within the rows, as the plan's check ensures.
        unsafe {
            let x = p.x.add(row * p.from + p.first);
            p.out.add(row * p.cols).copy_from_nonoverlapping(x, p.cols);
        }
    }
}
