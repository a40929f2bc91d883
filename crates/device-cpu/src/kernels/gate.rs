//! `out = kind(gate) * up`: `a` is the gate, `b` is up.
//!
//! Shapes, shares and bytes: [`elementwise`](super::elementwise). Functions and their errors:
//! [`math`](crate::simd::math).

use super::elementwise::{Function, of_curves};
use crate::simd::Simd;
use crate::simd::math::Curve;
use std::marker::PhantomData;

/// `C(a) * b`
pub struct Gated<C>(pub PhantomData<C>);

impl<C> Clone for Gated<C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C> Copy for Gated<C> {}

impl<C: Curve> Function for Gated<C> {
    #[inline(always)]
    unsafe fn of<S: Simd>(&self, a: S::V, b: S::V) -> S::V {
        // SAFETY: by the caller, the instruction set is available.
        unsafe { S::mul(C::at::<S>(a), b) }
    }
}

of_curves!(gate, Gated);
