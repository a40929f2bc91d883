//! `out[i] = table[position[i]]`; table `(n_positions, cols)` of any block type, out `(n, cols)`.
//!
//! Rows are shared among the workers. Bytes: one row of the table read and 4 a column written, for
//! each row.

use super::linear::WeightRows;
use crate::command::Worker;
use device::RowCount;

/// Parameters.
#[derive(Clone, Copy)]
pub struct EmbedPositionsParams {
    /// `(n_positions, cols)`
    pub table: WeightRows,
    /// Columns.
    pub cols: usize,
    /// `(n, cols)`
    pub out: *mut f32,
}

/// The kernel.
///
/// # Safety
/// As [`crate::command::Kernel`].
pub unsafe fn embed_positions(p: &EmbedPositionsParams, worker: &Worker<'_>) {
    for row in worker.share(worker.step.n_rows(RowCount::Tokens), 1) {
        let position = worker.step.positions[row] as usize;
        // SAFETY: the step's check ensured that positions are below the context length, which the
        // plan's check limits to the table's rows.
        unsafe {
            let out = std::slice::from_raw_parts_mut(p.out.add(row * p.cols), p.cols);
            p.table.decode(position, 0..p.cols, out);
        }
    }
}
