//! Windows of a convolution along the rows of each span (im2col): `out[i][c * size + j] = x[stride
//! * i + j - (size - 1) / 2][c]`, 0 outside the span.
//!
//! x `(stride * n, cols)`, out `(n, cols * size)`. Rows of out are shared among the workers. A row
//! of x is read whole, and its numbers are written to every `size`-th column, which stay in the
//! first-level cache meanwhile. Bytes of a number of x: 4 read, `4 * size` written, twice if the
//! first-level cache does not hold a row of out.

use crate::command::Worker;
use device::RowCount;

/// Parameters.
#[derive(Clone, Copy)]
pub struct UnfoldParams {
    /// `(stride * n, cols)`
    pub x: *const f32,
    /// `(n, cols * size)`
    pub out: *mut f32,
    /// Columns of x.
    pub cols: usize,
    /// Rows of a window.
    pub size: usize,
    /// Rows from one window to the next.
    pub stride: usize,
    /// Kind of rows of out.
    pub rows: RowCount,
}

/// The kernel.
///
/// # Safety
/// As [`crate::command::Kernel`].
pub unsafe fn unfold(p: &UnfoldParams, worker: &Worker<'_>) {
    let per_token = p.rows.count(1, 0);
    let share = worker.share(worker.step.n_rows(p.rows), 1);
    for span in worker.step.spans {
        // First and last rows of the span in out.
        let first = span.first_row as usize * per_token;
        let end = first + span.n_rows as usize * per_token;
        for row in share.start.max(first)..share.end.min(end) {
            for j in 0..p.size {
                let from = (row - first) * p.stride + j;
                let from = from.checked_sub((p.size - 1) / 2).filter(|at| *at < (end - first) * p.stride);
                // SAFETY: `row` and `at` are rows of the span in out and x, and columns are within
                // them.
                unsafe {
                    let out = p.out.add(row * p.cols * p.size + j);
                    match from {
                        Some(at) => {
                            let x = p.x.add((first * p.stride + at) * p.cols);
                            for c in 0..p.cols {
                                *out.add(c * p.size) = *x.add(c);
                            }
                        }
                        None => (0..p.cols).for_each(|c| *out.add(c * p.size) = 0.0),
                    }
                }
            }
        }
    }
}
