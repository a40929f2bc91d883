//! `out = max(min, min(x, max))`.
//!
//! Shapes, shares and bytes: [`elementwise`](super::elementwise).

use super::elementwise::{self, Function, map};
use crate::command::Worker;
use crate::simd::{Simd, variants};

/// Parameters.
#[derive(Clone, Copy)]
pub struct ClampedParams {
    /// Parameters of the element-wise kernel; the factor is the lower bound.
    pub of: elementwise::ElementwiseParams,
    /// Upper bound.
    pub max: f32,
}

struct Clamp(f32, f32);

impl Function for Clamp {
    #[inline(always)]
    unsafe fn of<S: Simd>(&self, a: S::V, _: S::V) -> S::V {
        // SAFETY: by the caller, the instruction set is available.
        unsafe { S::max(S::min(a, S::splat(self.1)), S::splat(self.0)) }
    }
}

/// # Safety
/// As [`crate::command::Kernel`].
#[inline(always)]
unsafe fn body<S: Simd>(p: &ClampedParams, worker: &Worker<'_>) {
    // SAFETY: by the caller, the parameters' pointers are valid for the rows of the step, and no
    // other worker writes what this one reads. The caller checked the instruction set.
    unsafe { map::<S>(&p.of, worker, Clamp(p.of.factor, p.max)) }
}

variants!(
    /// The kernel for an instruction set.
    clamped, body, ClampedParams
);
