//! `out = g * sigmoid(alpha * g) * (u + 1)`, with `g = min(gate, limit)` and `u` = `up` clamped to
//! `-limit..=limit`; all `(n, cols)`.
//!
//! Values are shared among the workers in whole cache lines. The exponential is that of
//! [`math`](crate::simd::math). Bytes: 12 a value.

use crate::command::Worker;
use crate::simd::math::{Curve, Sigmoid};
use crate::simd::{Simd, variants};
use device::RowCount;

/// Parameters.
#[derive(Clone, Copy)]
pub struct GateClampedParams {
    /// `(n, cols)`
    pub gate: *const f32,
    /// `(n, cols)`
    pub up: *const f32,
    /// `(n, cols)`; may alias `gate` or `up`.
    pub out: *mut f32,
    /// Columns.
    pub cols: usize,
    /// Kind of rows (tokens or outputs).
    pub rows: RowCount,
    /// Factor in the sigmoid.
    pub alpha: f32,
    /// Bound of gate and up.
    pub limit: f32,
}

/// # Safety
/// As [`crate::command::Kernel`].
#[inline(always)]
unsafe fn body<S: Simd>(p: &GateClampedParams, worker: &Worker<'_>) {
    let share = worker.share(worker.step.n_rows(p.rows) * p.cols, 16);
    // SAFETY: the caller guarantees values for the step's rows and the instruction set. Whole
    // vectors end at `whole`, and the rest is copied to and from arrays of `MOST_LANES`.
    unsafe {
        let whole = share.start + share.len() / S::N * S::N;
        for at in (share.start..whole).step_by(S::N) {
            vector::<S>(p, p.gate.add(at), p.up.add(at), p.out.add(at));
        }
        // The rest is computed in whole vectors too, so that a value's bits do not depend on its
        // index.
        let n_rest = share.end - whole;
        if n_rest > 0 {
            let (mut gate, mut up, mut out) = ([0.0; MOST_LANES], [0.0; MOST_LANES], [0.0; MOST_LANES]);
            std::ptr::copy_nonoverlapping(p.gate.add(whole), gate.as_mut_ptr(), n_rest);
            std::ptr::copy_nonoverlapping(p.up.add(whole), up.as_mut_ptr(), n_rest);
            vector::<S>(p, gate.as_ptr(), up.as_ptr(), out.as_mut_ptr());
            std::ptr::copy_nonoverlapping(out.as_ptr(), p.out.add(whole), n_rest);
        }
    }
}

/// Lanes of the widest vector.
const MOST_LANES: usize = 16;

/// Computes one vector.
///
/// # Safety
/// The pointers are valid for `S::N` values, and the instruction set is available.
#[inline(always)]
unsafe fn vector<S: Simd>(p: &GateClampedParams, gate: *const f32, up: *const f32, out: *mut f32) {
    const { assert!(S::N <= MOST_LANES) };
    // SAFETY: the caller guarantees `S::N` values at each pointer, and the instruction set.
    unsafe {
        let (limit, lowest) = (S::splat(p.limit), S::splat(-p.limit));
        let g = smaller::<S>(S::load(gate), limit);
        let u = S::max(smaller::<S>(S::load(up), limit), lowest);
        let glu = S::mul(g, Sigmoid::at::<S>(S::mul(S::splat(p.alpha), g)));
        S::store(out, S::mul(glu, S::add(u, S::splat(1.0))));
    }
}

/// The smaller of two values; `b` if one is NaN.
///
/// # Safety
/// The instruction set is available.
#[inline(always)]
unsafe fn smaller<S: Simd>(a: S::V, b: S::V) -> S::V {
    // SAFETY: by the caller, the instruction set is available.
    unsafe { S::select_lt(a, b, a, b) }
}

variants!(
    /// The kernel for an instruction set.
    gate_clamped, body, GateClampedParams
);
