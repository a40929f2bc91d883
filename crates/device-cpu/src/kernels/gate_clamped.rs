//! `out = g * sigmoid(alpha * g) * (u + 1)`, `g = min(gate, limit)`, `u` the `up` between `-limit` and `limit`; all
//! `(n, cols)`.
//!
//! Values are shared among the workers in whole cache lines. The exponential is [`math`](crate::simd::math)'s, as of a Gate.
//! Bytes: 12 a value.

use crate::command::Worker;
use crate::simd::math::{Curve, Sigmoid};
use crate::simd::{Simd, variants};
use device::RowCount;

/// Parameters.
#[derive(Clone, Copy)]
pub struct Params {
    /// `(n, cols)`
    pub gate: *const f32,
    /// `(n, cols)`
    pub up: *const f32,
    /// `(n, cols)`; may be `gate` or `up`.
    pub out: *mut f32,
    /// Columns.
    pub cols: usize,
    /// Which rows.
    pub rows: RowCount,
    /// Factor in the sigmoid.
    pub alpha: f32,
    /// Bound of both.
    pub limit: f32,
}

/// # Safety
/// As [`crate::command::Kernel`].
#[inline(always)]
unsafe fn body<S: Simd>(p: &Params, worker: &Worker<'_>) {
    let share = worker.share(worker.step.n_rows(p.rows) * p.cols, 16);
    // SAFETY: by the caller, the values are valid for the rows of the step and the instruction set is available; whole vectors and
    // the rest lie within the share.
    unsafe {
        let whole = share.start + share.len() / S::N * S::N;
        let (alpha, limit, lowest) = (S::splat(p.alpha), S::splat(p.limit), S::splat(-p.limit));
        for at in (share.start..whole).step_by(S::N) {
            let g = smaller::<S>(S::load(p.gate.add(at)), limit);
            let u = S::max(smaller::<S>(S::load(p.up.add(at)), limit), lowest);
            let glu = S::mul(g, Sigmoid::at::<S>(S::mul(alpha, g)));
            S::store(p.out.add(at), S::mul(glu, S::add(u, S::splat(1.0))));
        }
        for at in whole..share.end {
            let (g, u) = ((*p.gate.add(at)).min(p.limit), (*p.up.add(at)).clamp(-p.limit, p.limit));
            *p.out.add(at) = g / (1.0 + (-p.alpha * g).exp()) * (u + 1.0);
        }
    }
}

/// The smaller of two values.
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
    gate_clamped, body, Params
);
