//! Rows as the matrix kernels read them: normalised if a norm comes first, and quantised to 8 bits where the weights are.
//!
//! x `(n, cols)`. Either form, or both, is written: f32 rows `(n, cols)`, Q8 rows of
//! [`q8_row_bytes`](super::linear::q8_row_bytes) each. Rows are shared among the workers. Norms accumulate as in
//! [`rms_norm`](super::rms_norm). Bytes: 4 read a value; 4 and 1.5 written.

use super::linear::{q8_row_bytes, quantize_row_q8};
use super::rms_norm::norm_row;
use crate::command::Worker;
use crate::isa::Isa;
use crate::simd::{Simd, variants};
use device::Rows;

/// What becomes of a row before a matrix reads it.
#[derive(Clone, Copy)]
pub struct Source {
    /// `(n, cols)`
    pub x: *const f32,
    /// Columns.
    pub cols: usize,
    /// Which rows.
    pub rows: Rows,
    /// Whether there is a norm of the whole row.
    pub norm: bool,
    /// `(cols)`; null: no factor.
    pub weight: *const f32,
    /// Added to the mean square.
    pub eps: f32,
    /// For the quantiser.
    pub isa: Isa,
}

/// Parameters.
#[derive(Clone, Copy)]
pub struct Params {
    /// The rows.
    pub source: Source,
    /// `(n, cols)`; null: not wanted.
    pub f32_rows: *mut f32,
    /// `n` Q8 rows; null: not wanted.
    pub q8_rows: *mut u8,
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
            let f32_row =
                if p.f32_rows.is_null() { worker.scratch.cast() } else { p.f32_rows.add(row * cols) };
            let q8_row =
                if p.q8_rows.is_null() { p.q8_rows } else { p.q8_rows.add(row * q8_row_bytes(cols)) };
            prepare::<S>(&p.source, row, f32_row, q8_row);
        }
    }
}

variants!(
    /// The kernel for an instruction set.
    activation_rows, body, Params
);

/// One row: normalise it to `f32_row` if there is a norm, quantise it to `q8_row` unless that is null. Gives the row in
/// f32: `f32_row`, or the source's own.
///
/// # Safety
/// The rows are valid for their lengths; the instruction set is available.
#[inline(always)]
pub unsafe fn prepare<S: Simd>(
    source: &Source,
    row: usize,
    f32_row: *mut f32,
    q8_row: *mut u8,
) -> *const f32 {
    // SAFETY: the caller's promise.
    unsafe {
        let mut x = source.x.add(row * source.cols);
        if source.norm {
            norm_row::<S>(x, source.weight, source.cols, source.eps, f32_row);
            x = f32_row;
        }
        if !q8_row.is_null() {
            quantize_row_q8(source.isa, x, source.cols, q8_row);
        }
        x
    }
}
