//! `out = x[:, first..first + taken]` of each group of columns, x `(n, cols)`,
//! out `(n, cols / group * taken)`.
//!
//! Rows are shared among the workers. Bytes: 8 a value.

use crate::command::Worker;
use device::RowCount;

/// Parameters.
#[derive(Clone, Copy)]
pub struct ColumnsParams {
    /// `(n, n_groups * group)`
    pub x: *const f32,
    /// Groups of a row.
    pub n_groups: usize,
    /// Columns of a group of `x`.
    pub group: usize,
    /// First selected column of each group.
    pub first: usize,
    /// `(n, n_groups * taken)`
    pub out: *mut f32,
    /// Number of selected columns of each group.
    pub taken: usize,
    /// Kind of rows (tokens or outputs).
    pub rows: RowCount,
}

/// The kernel.
///
/// # Safety
/// As [`crate::command::Kernel`].
pub unsafe fn columns(p: &ColumnsParams, worker: &Worker<'_>) {
    for row in worker.share(worker.step.n_rows(p.rows), 1) {
        for group in row * p.n_groups..(row + 1) * p.n_groups {
            // SAFETY: the plan's check ensured `first + taken <= group`, so the columns are within
            // the group, and `row` is a row of the step.
            unsafe {
                let x = p.x.add(group * p.group + p.first);
                p.out.add(group * p.taken).copy_from_nonoverlapping(x, p.taken);
            }
        }
    }
}
