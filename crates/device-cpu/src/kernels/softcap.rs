//! `out = cap * tanh(x / cap)`; the error of tanh is at most 3e-7 of the cap.
//!
//! Shapes, shares and bytes: [`elementwise`](super::elementwise).

use super::elementwise::{ElementwiseParams, Function, map};
use crate::command::Worker;
use crate::simd::{Simd, math, variants};

struct Softcap(f32);

impl Function for Softcap {
    #[inline(always)]
    unsafe fn of<S: Simd>(&self, a: S::V, _: S::V) -> S::V {
        // SAFETY: by the caller, the instruction set is available.
        unsafe {
            let cap = S::splat(self.0);
            S::mul(cap, math::tanh::<S>(S::div(a, cap)))
        }
    }
}

/// # Safety
/// As [`crate::command::Kernel`].
#[inline(always)]
unsafe fn body<S: Simd>(p: &ElementwiseParams, worker: &Worker<'_>) {
    // SAFETY: by the caller, the parameters' pointers are valid for the rows of the step, and no
    // other worker writes what this one reads. The caller checked the instruction set.
    unsafe { map::<S>(p, worker, Softcap(p.factor)) }
}

variants!(
    /// The kernel for an instruction set.
    softcap, body, ElementwiseParams
);
