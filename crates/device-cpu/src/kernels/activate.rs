//! `out = kind(x)`
//!
//! Shapes, shares and bytes: [`elementwise`](super::elementwise). Functions and their errors:
//! [`math`](crate::simd::math).

use super::elementwise::{Function, of_curves};
use crate::simd::Simd;
use crate::simd::math::Curve;
use std::marker::PhantomData;

/// `C(a)`
struct Activated<C>(PhantomData<C>);

impl<C: Curve> Function for Activated<C> {
    #[inline(always)]
    unsafe fn of<S: Simd>(&self, a: S::V, _: S::V) -> S::V {
        // SAFETY: by the caller, the instruction set is available.
        unsafe { C::at::<S>(a) }
    }
}

of_curves!(activate, Activated);
