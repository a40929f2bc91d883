//! Concatenation of heads: a `(n, n_heads * a_dim)`, b `(n, n_heads * b_dim)`, out `(n, n_heads *
//! (a_dim + b_dim))`.
//!
//! Heads of rows are shared among the workers. Bytes: 8 a value.

use crate::command::Worker;
use device::RowCount;

/// Parameters.
#[derive(Clone, Copy)]
pub struct JoinParams {
    /// `(n, n_heads * a_dim)`
    pub a: *const f32,
    /// Columns of a head of `a`.
    pub a_dim: usize,
    /// `(n, n_heads * b_dim)`
    pub b: *const f32,
    /// Columns of a head of `b`.
    pub b_dim: usize,
    /// Heads of a row.
    pub n_heads: usize,
    /// `(n, n_heads * (a_dim + b_dim))`
    pub out: *mut f32,
    /// Kind of rows (tokens or outputs).
    pub rows: RowCount,
}

/// The kernel.
///
/// # Safety
/// As [`crate::command::Kernel`].
pub unsafe fn join(p: &JoinParams, worker: &Worker<'_>) {
    for head in worker.share(worker.step.n_rows(p.rows) * p.n_heads, 1) {
        // SAFETY: `head` is below rows times `n_heads`, for which `a`, `b` and `out` are valid.
        unsafe {
            let out = p.out.add(head * (p.a_dim + p.b_dim));
            out.copy_from_nonoverlapping(p.a.add(head * p.a_dim), p.a_dim);
            out.add(p.a_dim).copy_from_nonoverlapping(p.b.add(head * p.b_dim), p.b_dim);
        }
    }
}
