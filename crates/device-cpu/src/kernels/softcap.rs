//! `out = cap * tanh(x / cap)`; the error of tanh is at most 3e-7 of the cap.
//!
//! Shapes, shares and bytes as in [`elementwise`](super::elementwise).

use super::elementwise::{Params, map};
use crate::command::Worker;
use crate::simd::{Simd, math, variants};

/// # Safety
/// As [`crate::command::Kernel`].
#[inline(always)]
unsafe fn body<S: Simd>(p: &Params, worker: &Worker<'_>) {
    // SAFETY: the caller's promise.
    unsafe {
        let cap = S::splat(p.factor);
        map::<S>(p, worker, |a, _| S::mul(cap, math::tanh::<S>(S::div(a, cap))))
    }
}

variants!(
    /// The kernel for an instruction set.
    softcap, body, Params
);
