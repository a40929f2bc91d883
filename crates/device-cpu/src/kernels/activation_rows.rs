//! Rows prepared for the matrix kernels: normalised if a norm precedes, in each
//! [form](ActivationKind) that a matrix reads.
//!
//! x `(n, cols)`. Rows are shared among the workers. Norms accumulate as in
//! [`rms_norm`](super::rms_norm). Bytes of a value: 4 read; 4 (F32), 2 (BF16) or 2.1 (Q8) written.

use super::linear::ActivationKind;
use super::rms_norm::norm_row;
use crate::command::Worker;
use crate::isa::Isa;
use crate::simd::{Simd, variants};
use device::RowCount;

/// Input rows of a matrix, with the norm before it.
#[derive(Clone, Copy)]
pub struct RowSource {
    /// `(n, cols)`
    pub x: *const f32,
    /// Columns.
    pub cols: usize,
    /// Kind of rows (tokens or outputs).
    pub rows: RowCount,
    /// True if the whole row is normalised.
    pub norm: bool,
    /// `(cols)`; null for no factor.
    pub weight: *const f32,
    /// Constant added to the mean square.
    pub eps: f32,
    /// Instruction set that converts the rows.
    pub isa: Isa,
}

/// Parameters.
#[derive(Clone, Copy)]
pub struct ActivationRowsParams {
    /// The rows.
    pub source: RowSource,
    /// `n` rows of each form, by [`ActivationKind`]; null if no matrix reads the form.
    pub rows: [*mut u8; 3],
}

/// Bytes of scratch: a normalised row.
pub fn scratch_bytes(cols: usize) -> usize {
    super::round_up(cols * 4)
}

/// # Safety
/// As [`crate::command::Kernel`].
#[inline(always)]
unsafe fn body<S: Simd>(p: &ActivationRowsParams, worker: &Worker<'_>) {
    let cols = p.source.cols;
    for row in worker.share(worker.step.n_rows(p.source.rows), 1) {
        // SAFETY: `row` is below the step's rows, for which the pointers in `p` are valid; the
        // scratch has room for one row.
        unsafe {
            let place = |kind: ActivationKind| match p.rows[kind as usize] {
                rows if rows.is_null() => rows,
                rows => rows.add(row * kind.row_bytes(cols)),
            };
            let f32_row = place(ActivationKind::F32);
            let f32_row = if f32_row.is_null() { worker.scratch } else { f32_row };
            let x = normalised::<S>(&p.source, row, f32_row.cast());
            for kind in [ActivationKind::Q8, ActivationKind::Bf16] {
                let out = place(kind);
                if !out.is_null() {
                    kind.write_row(p.source.isa, x, cols, out);
                }
            }
        }
    }
}

variants!(
    /// The kernel for an instruction set.
    activation_rows, body, ActivationRowsParams
);

/// Address of a row in f32: in the source, or in `f32_row` after normalisation.
///
/// # Safety
/// The source has the row; `f32_row` is valid for `source.cols` values; the instruction set is
/// available.
#[inline(always)]
pub unsafe fn normalised<S: Simd>(source: &RowSource, row: usize, f32_row: *mut f32) -> *const f32 {
    // SAFETY: the caller guarantees the row of `source`, `f32_row` and the instruction set.
    unsafe {
        let x = source.x.add(row * source.cols);
        if !source.norm {
            return x;
        }
        norm_row::<S>(x, source.weight, source.cols, source.eps, f32_row);
        f32_row
    }
}
