//! Causal convolution along the positions of each sequence, column by column: `out[t][c] = bias[c]
//! + sum over j of weight[c][j] * x[t + 1 - size + j][c]`, the oldest row first, in f32.
//!
//! x and out `(n, cols)`. Columns are shared among the workers, a vector at a time with its taps in
//! scratch. Each worker reads the `size - 1` rows before a span from its state, and writes the
//! state after it. Bytes: 4 read and 4 written for each number of x, and `8 * (size - 1)` for each
//! column and span.

use super::round_up;
use crate::command::Worker;
use crate::simd::{Simd, variants};
use device::STATE_NONE;

/// Columns of a block, the lanes of the widest vector.
const BLOCK: usize = 16;

/// Parameters.
#[derive(Clone, Copy)]
pub struct ShortConvParams {
    /// `(n, cols)`
    pub x: *const f32,
    /// `(n, cols)`
    pub out: *mut f32,
    /// `(cols, size)`
    pub weight: *const f32,
    /// `(cols)`; null for 0.
    pub bias: *const f32,
    /// `(n_states, state_len)`, from this layer's part of the first state on.
    pub states: *mut f32,
    /// Numbers of a state, over all layers.
    pub state_len: usize,
    /// Columns.
    pub cols: usize,
    /// Positions that contribute to a row, including its own.
    pub size: usize,
}

/// Bytes of scratch: taps as rows, `(size, BLOCK)`.
pub fn scratch_bytes(size: usize) -> usize {
    round_up(size * BLOCK * 4)
}

/// # Safety
/// As [`crate::command::Kernel`].
#[inline(always)]
unsafe fn body<S: Simd>(p: &ShortConvParams, worker: &Worker<'_>) {
    let taps: *mut f32 = worker.scratch.cast();
    let zeros = [0f32; BLOCK];
    let columns = worker.share(p.cols, BLOCK);
    // SAFETY: columns are within the rows, and rows of a span within x. The step's check ensured
    // that `from` is an existing state, which has `size - 1` rows of this layer, and that no other
    // span uses the state `to`. The scratch has `size` rows of taps.
    unsafe {
        for c in columns.clone().step_by(BLOCK) {
            let n = BLOCK.min(columns.end - c);
            for j in 0..p.size {
                for i in 0..BLOCK {
                    *taps.add(j * BLOCK + i) = if i < n { *p.weight.add((c + i) * p.size + j) } else { 0.0 };
                }
            }
            let mut bias = zeros;
            if !p.bias.is_null() {
                bias.as_mut_ptr().copy_from_nonoverlapping(p.bias.add(c), n);
            }
            let whole = n == BLOCK;
            for (span, state) in worker.step.spans.iter().zip(worker.step.states) {
                let (first, n_rows) = (span.first_row as usize, span.n_rows as usize);
                // Row `at`, counted from the `size - 1` rows before the span; `zeros` before a
                // sequence's first row.
                let row = |at: usize| match at.checked_sub(p.size - 1) {
                    Some(at) => p.x.add((first + at) * p.cols + c),
                    None if state.from == STATE_NONE => zeros.as_ptr(),
                    None => p.states.add(state.from as usize * p.state_len + at * p.cols + c).cast_const(),
                };
                for t in 0..n_rows {
                    let out = p.out.add((first + t) * p.cols + c);
                    if whole {
                        for i in (0..BLOCK).step_by(S::N) {
                            let mut sum = S::load(bias.as_ptr().add(i));
                            for j in 0..p.size {
                                sum =
                                    S::fma(S::load(taps.add(j * BLOCK + i)), S::load(row(t + j).add(i)), sum);
                            }
                            S::store(out.add(i), sum);
                        }
                    } else {
                        for (i, bias) in bias.iter().enumerate().take(n) {
                            let mut sum = *bias;
                            for j in 0..p.size {
                                sum = S::fma_one(*taps.add(j * BLOCK + i), *row(t + j).add(i), sum);
                            }
                            *out.add(i) = sum;
                        }
                    }
                }
                for at in 0..p.size - 1 {
                    let to = p.states.add(state.to as usize * p.state_len + at * p.cols + c);
                    to.copy_from(row(n_rows + at), n);
                }
            }
        }
    }
}

variants!(
    /// The kernel for an instruction set.
    short_conv, body, ShortConvParams
);
