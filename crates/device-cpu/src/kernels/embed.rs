//! `out[i] = scale * table[token[i]]`; table `(n_vocab, cols)` of any block type, out `(n, cols)`.
//!
//! Rows are shared among the workers; a few rows are shared by columns, in whole blocks. The codec
//! decodes. Bytes: one row of the table read and 4 a column written, for each row.

use super::linear::WeightRows;
use crate::command::Worker;
use device::RowCount;

/// Parameters.
#[derive(Clone, Copy)]
pub struct EmbedParams {
    /// `(n_vocab, cols)`
    pub table: WeightRows,
    /// Columns.
    pub cols: usize,
    /// The factor.
    pub scale: f32,
    /// `(n, cols)`
    pub out: *mut f32,
}

/// The kernel.
///
/// # Safety
/// As [`crate::command::Kernel`].
pub unsafe fn embed(p: &EmbedParams, worker: &Worker<'_>) {
    let n = worker.step.n_rows(RowCount::Tokens);
    let (rows, cols) = if n < worker.n {
        (0..n, worker.share(p.cols, p.table.block.block_len().max(64)))
    } else {
        (worker.share(n, 1), 0..p.cols)
    };
    if cols.is_empty() {
        return;
    }
    for row in rows {
        let token = worker.step.tokens[row] as usize;
        // SAFETY: the step's check ensured that tokens are below the vocabulary's size. `cols` is
        // whole blocks of the row.
        let out = unsafe {
            let out = std::slice::from_raw_parts_mut(p.out.add(row * p.cols + cols.start), cols.len());
            p.table.decode(token, cols.clone(), out);
            out
        };
        if p.scale != 1.0 {
            out.iter_mut().for_each(|v| *v *= p.scale);
        }
    }
}
