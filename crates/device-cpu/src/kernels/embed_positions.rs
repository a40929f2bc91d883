//! `out[i] = table[position[i]]`; table `(n_positions, cols)` of any block type, out `(n, cols)`.
//!
//! Rows are shared among the workers. Bytes: one row of the table read and 4 a column written, for each row.

use crate::command::Worker;
use device::Rows;
use formats::BlockType;
use formats::codec::dequantize_row;

/// Parameters.
#[derive(Clone, Copy)]
pub struct Params {
    /// `(n_positions, cols)`
    pub table: *const u8,
    /// Its type.
    pub block: BlockType,
    /// Columns.
    pub cols: usize,
    /// `(n, cols)`
    pub out: *mut f32,
}

/// The kernel.
///
/// # Safety
/// As [`crate::command::Kernel`].
pub unsafe fn embed_positions(p: &Params, worker: &Worker<'_>) {
    let row_bytes = p.block.row_bytes(p.cols);
    for row in worker.share(worker.step.n_rows(Rows::Tokens), 1) {
        let position = worker.step.positions[row] as usize;
        // SAFETY: positions are below the limits' context, and that is at most the table's rows.
        let (bytes, out) = unsafe {
            (
                std::slice::from_raw_parts(p.table.add(position * row_bytes), row_bytes),
                std::slice::from_raw_parts_mut(p.out.add(row * p.cols), p.cols),
            )
        };
        dequantize_row(p.block, bytes, out);
    }
}
