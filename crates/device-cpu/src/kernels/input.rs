//! `out = input`: the numbers that the caller gives with a step; out `(n, cols)`.
//!
//! They are copied, so that what reads them finds them at one address in every step. Shared among the workers in whole cache
//! lines. Bytes: 4 read and 4 written for each number.

use crate::command::Worker;
use device::RowCount;

/// Parameters.
#[derive(Clone, Copy)]
pub struct Params {
    /// `(n, cols)`
    pub out: *mut f32,
    /// Columns.
    pub cols: usize,
    /// Which rows.
    pub rows: RowCount,
}

/// The kernel.
///
/// # Safety
/// As [`crate::command::Kernel`].
pub unsafe fn input(p: &Params, worker: &Worker<'_>) {
    let share = worker.share(worker.step.n_rows(p.rows) * p.cols, 16);
    let part = &worker.step.input[share.clone()];
    // SAFETY: the value has these rows.
    unsafe { p.out.add(share.start).copy_from_nonoverlapping(part.as_ptr(), part.len()) }
}
