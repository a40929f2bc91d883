//! `out[i] = x[outputs[i]]`, from token rows to output rows: x `(n_tokens, cols)`, out `(n_outputs,
//! cols)`.
//!
//! Output values are shared among the workers in whole cache lines. Bytes: 8 a value.

use crate::command::Worker;
use device::RowCount;

/// Parameters.
#[derive(Clone, Copy)]
pub struct SelectRowsParams {
    /// `(n_tokens, cols)`
    pub x: *const f32,
    /// `(n_outputs, cols)`
    pub out: *mut f32,
    /// Columns.
    pub cols: usize,
}

/// The kernel.
///
/// # Safety
/// As [`crate::command::Kernel`].
pub unsafe fn select_rows(p: &SelectRowsParams, worker: &Worker<'_>) {
    let n = worker.step.n_rows(RowCount::Outputs);
    let (rows, cols) =
        if n < worker.n { (0..n, worker.share(p.cols, 16)) } else { (worker.share(n, 1), 0..p.cols) };
    for row in rows {
        let from = worker.step.outputs[row] as usize;
        // SAFETY: the step's check ensured that outputs are rows of the step; `cols` is within the
        // columns.
        unsafe {
            let x = p.x.add(from * p.cols + cols.start);
            p.out.add(row * p.cols + cols.start).copy_from_nonoverlapping(x, cols.len());
        }
    }
}
