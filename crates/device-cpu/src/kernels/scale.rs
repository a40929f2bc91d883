//! `out = factor * x`
//!
//! Shapes, shares and bytes: [`elementwise`](super::elementwise).

use super::elementwise::{ElementwiseParams, Times, map};
use crate::command::Worker;
use crate::simd::{Simd, variants};

/// # Safety
/// As [`crate::command::Kernel`].
#[inline(always)]
unsafe fn body<S: Simd>(p: &ElementwiseParams, worker: &Worker<'_>) {
    // SAFETY: by the caller, the parameters' pointers are valid for the rows of the step, and no
    // other worker writes what this one reads. The caller checked the instruction set.
    unsafe { map::<S>(p, worker, Times(p.factor)) }
}

variants!(
    /// The kernel for an instruction set.
    scale, body, ElementwiseParams
);
