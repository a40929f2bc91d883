//! `out[i]` is the mean, the first or the last of the rows of the span that contains row
//! `outputs[i]`; x `(n_tokens, cols)`, out `(n_outputs, cols)`.
//!
//! Columns are shared among the workers in whole cache lines. A mean adds rows in ascending order,
//! in f32, and is multiplied by one over their number. Bytes: 4 read for each value of the span, or
//! of the one row.

use crate::command::Worker;
use crate::kernels::elementwise::{Sum, Times, combine};
use crate::simd::{Simd, variants};
use device::{Pooling, RowCount};

/// Parameters.
#[derive(Clone, Copy)]
pub struct PoolParams {
    /// `(n_tokens, cols)`
    pub x: *const f32,
    /// Kind of pooling.
    pub kind: Pooling,
    /// Columns.
    pub cols: usize,
    /// `(n_outputs, cols)`
    pub out: *mut f32,
}

/// # Safety
/// As [`crate::command::Kernel`].
#[inline(always)]
unsafe fn body<S: Simd>(p: &PoolParams, worker: &Worker<'_>) {
    let share = worker.share(p.cols, 16);
    let mut spans = worker.step.spans.iter().peekable();
    for output in 0..worker.step.n_rows(RowCount::Outputs) {
        let row = worker.step.outputs[output];
        // Outputs and spans are both in ascending order.
        while spans.peek().is_some_and(|s| s.first_row + s.n_rows <= row) {
            spans.next();
        }
        let Some(span) = spans.peek() else { return };
        let (first, n) = (span.first_row as usize, span.n_rows as usize);
        // SAFETY: the span's rows are rows of the step, and `share` is within the columns.
        unsafe {
            let at = |row: usize| p.x.add(row * p.cols + share.start);
            let out = p.out.add(output * p.cols + share.start);
            let from = if p.kind == Pooling::Last { first + n - 1 } else { first };
            out.copy_from_nonoverlapping(at(from), share.len());
            if p.kind == Pooling::Mean {
                for row in first + 1..first + n {
                    combine::<S>(out, at(row), out, share.len(), Sum);
                }
                combine::<S>(out, out, out, share.len(), Times(1.0 / n as f32));
            }
        }
    }
}

variants!(
    /// The kernel for an instruction set.
    pool, body, PoolParams
);
