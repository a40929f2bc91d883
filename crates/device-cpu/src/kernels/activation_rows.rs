//! Rows as the matrix kernels read them: normalised if a norm comes first, and in each [form](ActivationKind) that some matrix
//! reads.
//!
//! x `(n, cols)`. Rows are shared among the workers. Norms accumulate as in [`rms_norm`](super::rms_norm). Bytes: 4 read a
//! value; 4, 2 (BF16) and 2.1 (Q8) written.

use super::linear::ActivationKind;
use super::rms_norm::norm_row;
use crate::command::Worker;
use crate::isa::Isa;
use crate::simd::{Simd, variants};
use device::RowCount;

/// What becomes of a row before a matrix reads it.
#[derive(Clone, Copy)]
pub struct Source {
    /// `(n, cols)`
    pub x: *const f32,
    /// Columns.
    pub cols: usize,
    /// Which rows.
    pub rows: RowCount,
    /// Whether there is a norm of the whole row.
    pub norm: bool,
    /// `(cols)`; null: no factor.
    pub weight: *const f32,
    /// Added to the mean square.
    pub eps: f32,
    /// What brings them into the forms.
    pub isa: Isa,
}

/// Parameters.
#[derive(Clone, Copy)]
pub struct Params {
    /// The rows.
    pub source: Source,
    /// `n` rows of each form, by its number; null: not wanted.
    pub rows: [*mut u8; 3],
}

/// Bytes of scratch: a normalised row.
pub fn scratch_bytes(cols: usize) -> usize {
    super::round_up(cols * 4)
}

/// # Safety
/// As [`crate::command::Kernel`].
#[inline(always)]
unsafe fn body<S: Simd>(p: &Params, worker: &Worker<'_>) {
    let cols = p.source.cols;
    for row in worker.share(worker.step.n_rows(p.source.rows), 1) {
        // SAFETY: the row lies within the values; the scratch has room for one.
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
    activation_rows, body, Params
);

/// A row in f32: the source's own, or normalised to `f32_row` if there is a norm.
///
/// # Safety
/// The rows are valid for their lengths; the instruction set is available.
#[inline(always)]
pub unsafe fn normalised<S: Simd>(source: &Source, row: usize, f32_row: *mut f32) -> *const f32 {
    // SAFETY: by the caller, the rows are valid for their lengths; the instruction set is available.
    unsafe {
        let x = source.x.add(row * source.cols);
        if !source.norm {
            return x;
        }
        norm_row::<S>(x, source.weight, source.cols, source.eps, f32_row);
        f32_row
    }
}
