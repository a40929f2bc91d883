//! Rotary position embedding: `(a, b) -> (a cos - b sin, b cos + a sin)` for the pairs of the first
//! `n_dims` columns of every head; other columns are copied.
//!
//! Cosines and sines depend on the row's position only. [`table`] computes them once a step for
//! every distinct set of frequencies, `(n, n_dims)`, with cosines in the first half of a row and
//! sines in the second. All layers and heads read this table. [`rope`] shares `(row, head)` pairs
//! among the workers. Bytes: 8 a column, and the table from the cache.

use crate::command::Worker;
use crate::simd::{Simd, variants};
use device::{RopeStyle, RowCount};

/// Parameters of [`table`].
#[derive(Clone, Copy)]
pub struct TableParams {
    /// `(n_dims / 2)` in radians a position.
    pub frequencies: *const f32,
    /// Columns of a head that are rotated.
    pub n_dims: usize,
    /// Factor on cosine and sine.
    pub scale: f32,
    /// `(n, n_dims)`
    pub table: *mut f32,
}

/// Computes the table of a step: `cos` and `sin` of `position * frequency`, with the product
/// rounded to f32.
///
/// # Safety
/// As [`crate::command::Kernel`].
pub unsafe fn table(p: &TableParams, worker: &Worker<'_>) {
    let half = p.n_dims / 2;
    for at in worker.share(worker.step.n_rows(RowCount::Tokens) * half, 16) {
        let (row, pair) = (at / half, at % half);
        // SAFETY: `at` is below rows times `half`, so the pair is within its row of the table.
        unsafe {
            let angle = worker.step.positions[row] as f32 * *p.frequencies.add(pair);
            let (sin, cos) = angle.sin_cos();
            p.table.add(row * p.n_dims + pair).write(cos * p.scale);
            p.table.add(row * p.n_dims + half + pair).write(sin * p.scale);
        }
    }
}

/// Rotation of the heads of a value.
#[derive(Clone, Copy)]
pub struct Turn {
    /// `(n, n_dims)`; null for no rotation.
    pub table: *const f32,
    /// Columns of a head that are rotated.
    pub n_dims: usize,
    /// Style of the pairs of columns.
    pub style: RopeStyle,
}

/// Parameters of [`rope`].
#[derive(Clone, Copy)]
pub struct RopeParams {
    /// `(n, cols)`
    pub x: *const f32,
    /// `(n, cols)`; may alias `x`.
    pub out: *mut f32,
    /// `n_heads * head_dim`
    pub cols: usize,
    /// Columns of one head.
    pub head_dim: usize,
    /// Rotation of the heads.
    pub turn: Turn,
}

/// # Safety
/// As [`crate::command::Kernel`].
#[inline(always)]
unsafe fn body<S: Simd>(p: &RopeParams, worker: &Worker<'_>) {
    let n_heads = p.cols / p.head_dim;
    for at in worker.share(worker.step.n_rows(RowCount::Tokens) * n_heads, 1) {
        // SAFETY: `at` is below rows times heads, so the head is within `x` and `out`; `turn.table`
        // has the step's rows.
        unsafe {
            let (x, out) = (p.x.add(at * p.head_dim), p.out.add(at * p.head_dim));
            turn_head::<S>(&p.turn, at / n_heads, x, p.head_dim, out);
        }
    }
}

variants!(
    /// The kernel for an instruction set.
    rope, body, RopeParams
);

/// Rotates one head; `out` may alias `x`.
///
/// # Safety
/// `x` and `out` are valid for `head_dim` values, the table for the row; the instruction set is
/// available.
#[inline(always)]
pub unsafe fn turn_head<S: Simd>(turn: &Turn, row: usize, x: *const f32, head_dim: usize, out: *mut f32) {
    let half = turn.n_dims / 2;
    // SAFETY: the caller guarantees `head_dim` values at `x` and `out`, row `row` of the table, and
    // the instruction set.
    unsafe {
        let cos = turn.table.add(row * turn.n_dims);
        let sin = cos.add(half);
        match turn.style {
            RopeStyle::Half => {
                let mut i = 0;
                while i + S::N <= half {
                    let (c, s) = (S::load(cos.add(i)), S::load(sin.add(i)));
                    let (a, b) = (S::load(x.add(i)), S::load(x.add(half + i)));
                    S::store(out.add(i), S::sub(S::mul(a, c), S::mul(b, s)));
                    S::store(out.add(half + i), S::add(S::mul(b, c), S::mul(a, s)));
                    i += S::N;
                }
                for i in i..half {
                    turn_pair(x, out, i, half + i, *cos.add(i), *sin.add(i));
                }
            }
            RopeStyle::Interleaved => {
                for i in 0..half {
                    turn_pair(x, out, 2 * i, 2 * i + 1, *cos.add(i), *sin.add(i));
                }
            }
        }
        if !std::ptr::eq(x, out) {
            out.add(turn.n_dims).copy_from_nonoverlapping(x.add(turn.n_dims), head_dim - turn.n_dims);
        }
    }
}

/// # Safety
/// `x` and `out` are valid at `i` and `j`.
#[inline(always)]
unsafe fn turn_pair(x: *const f32, out: *mut f32, i: usize, j: usize, cos: f32, sin: f32) {
    // SAFETY: the caller guarantees `x` and `out` at `i` and `j`.
    unsafe {
        let (a, b) = (*x.add(i), *x.add(j));
        out.add(i).write(a * cos - b * sin);
        out.add(j).write(b * cos + a * sin);
    }
}
