//! A causal convolution along the positions of each sequence, column by column:
//! `out[t][c] = sum over j of weight[c][j] * x[t + 1 - size + j][c]`, the oldest row first, in f32.
//!
//! x and out `(n, cols)`. Columns are shared among the workers; each reads the `size - 1` rows before a span out of its state
//! and writes the state after it. Bytes: 4 read and 4 written for each number of x, and `8 * (size - 1)` for each column and
//! span.

use crate::command::Worker;
use device::STATE_NONE;

/// Parameters.
#[derive(Clone, Copy)]
pub struct Params {
    /// `(n, cols)`
    pub x: *const f32,
    /// `(n, cols)`
    pub out: *mut f32,
    /// `(cols, size)`
    pub weight: *const f32,
    /// `(n_states, state_len)`, from this layer's part of the first one on.
    pub states: *mut f32,
    /// Numbers of a state of all layers.
    pub state_len: usize,
    /// Columns.
    pub cols: usize,
    /// Positions that a row looks at, its own included.
    pub size: usize,
}

/// The kernel.
///
/// # Safety
/// As [`crate::command::Kernel`].
pub unsafe fn short_conv(p: &Params, worker: &Worker<'_>) {
    let columns = worker.share(p.cols, 16);
    let n_before = p.size - 1;
    for (span, state) in worker.step.spans.iter().zip(worker.step.states) {
        let (first, n) = (span.first_row as usize, span.n_rows as usize);
        // Row `at` of those before the span and the span's own.
        let row = |at: usize, c: usize| {
            // SAFETY: rows of the span lie within x; the step's check has seen that `from` is below the number of states, each
            // of which has `n_before` rows of this layer.
            unsafe {
                match at.checked_sub(n_before) {
                    Some(at) => *p.x.add((first + at) * p.cols + c),
                    None if state.from == STATE_NONE => 0.0,
                    None => *p.states.add(state.from as usize * p.state_len + at * p.cols + c),
                }
            }
        };
        for t in 0..n {
            for c in columns.clone() {
                // SAFETY: the weight has `size` taps for each column, and out a row for each of x.
                unsafe {
                    let sum = (0..p.size).map(|j| *p.weight.add(c * p.size + j) * row(t + j, c)).sum();
                    *p.out.add((first + t) * p.cols + c) = sum;
                }
            }
        }
        for at in 0..n_before {
            for c in columns.clone() {
                // SAFETY: as above; the check has seen that nothing else in the step uses the state `to`, and other workers
                // have other columns.
                unsafe { *p.states.add(state.to as usize * p.state_len + at * p.cols + c) = row(n + at, c) }
            }
        }
    }
}
