//! `out = input`, the numbers that the caller passes with a step; out `(n, cols)`.
//!
//! They are copied so that later commands find them at the same address in every step. Workers
//! share them in whole cache lines. Bytes of a number: 4 read, 4 written.

use crate::command::Worker;
use device::RowCount;

/// Parameters.
#[derive(Clone, Copy)]
pub struct InputParams {
    /// `(n, cols)`
    pub out: *mut f32,
    /// Columns.
    pub cols: usize,
    /// Kind of rows (tokens or outputs).
    pub rows: RowCount,
}

/// The kernel.
///
/// # Safety
/// As [`crate::command::Kernel`].
pub unsafe fn input(p: &InputParams, worker: &Worker<'_>) {
    let share = worker.share(worker.step.n_rows(p.rows) * p.cols, 16);
    let part = &worker.step.input[share.clone()];
    // SAFETY: `share` is within the step's rows times `cols`, for which `p.out` is valid.
    unsafe { p.out.add(share.start).copy_from_nonoverlapping(part.as_ptr(), part.len()) }
}
