//! `out = kind(x)`
//!
//! Shapes, shares and bytes as in [`elementwise`](super::elementwise); the functions and their errors in
//! [`math`](crate::simd::math).

use super::elementwise::{Function, Params, map};
use crate::command::{Kernel, Worker};
use crate::isa::Isa;
use crate::simd::math::{Curve, GeluErf, GeluTanh, Identity, Relu, ReluSquared, Sigmoid, Silu, Softplus};
use crate::simd::{Simd, variants};
use device::Activation;
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

/// A kernel for each kind, so that none branches on it.
macro_rules! kind {
    ($name:ident, $body:ident, $curve:ty) => {
        /// # Safety
        /// As [`crate::command::Kernel`].
        #[inline(always)]
        unsafe fn $body<S: Simd>(p: &Params, worker: &Worker<'_>) {
            // SAFETY: by the caller, the parameters' pointers are valid for the rows of the step, no other
            // worker writes what this one reads, and the instruction set is available.
            unsafe { map::<S>(p, worker, Activated::<$curve>(PhantomData)) }
        }
        variants!($name, $body, Params);
    };
}

kind!(silu, silu_body, Silu);
kind!(gelu_tanh, gelu_tanh_body, GeluTanh);
kind!(gelu_erf, gelu_erf_body, GeluErf);
kind!(relu, relu_body, Relu);
kind!(sigmoid, sigmoid_body, Sigmoid);
kind!(identity, identity_body, Identity);
kind!(relu_squared, relu_squared_body, ReluSquared);
kind!(softplus, softplus_body, Softplus);

/// The kernel for a function and an instruction set.
pub fn activate(isa: Isa, kind: Activation) -> Kernel<Params> {
    match kind {
        Activation::Silu => silu(isa),
        Activation::GeluTanh => gelu_tanh(isa),
        Activation::GeluErf => gelu_erf(isa),
        Activation::Relu => relu(isa),
        Activation::Sigmoid => sigmoid(isa),
        Activation::Identity => identity(isa),
        Activation::ReluSquared => relu_squared(isa),
        Activation::Softplus => softplus(isa),
    }
}
