//! Adapter of each row's span: out `(n, 1)` of u32. Spans are shared among the workers for token
//! rows, rows for output rows. Bytes: 4 a row.

use crate::command::Worker;
use device::RowCount;

/// Parameters.
#[derive(Clone, Copy)]
pub struct AdaptersParams {
    /// `(n, 1)`
    pub out: *mut u32,
    /// Kind of rows (tokens or outputs).
    pub rows: RowCount,
}

/// The kernel.
///
/// # Safety
/// As [`crate::command::Kernel`].
pub unsafe fn adapters(p: &AdaptersParams, worker: &Worker<'_>) {
    let step = worker.step;
    if p.rows == RowCount::Outputs {
        for i in worker.share(step.outputs.len(), 1) {
            let row = step.outputs[i];
            let span = step.spans.partition_point(|span| span.first_row + span.n_rows <= row);
            // SAFETY: `i` is below the number of outputs, and `p.out` is valid for a value of each.
            unsafe { *p.out.add(i) = step.adapters[span] }
        }
        return;
    }
    for i in worker.share(step.spans.len(), 1) {
        let (first, n) = (step.spans[i].first_row as usize, step.spans[i].n_rows as usize);
        for row in first..first + n {
            // SAFETY: a span's rows are rows of the step, and `p.out` is valid for a value of each.
            unsafe { *p.out.add(row) = step.adapters[i] }
        }
    }
}
