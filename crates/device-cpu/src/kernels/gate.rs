//! `out = kind(gate) * up`: `a` is the gate, `b` is up.
//!
//! Shapes, shares and bytes as in [`elementwise`](super::elementwise); the functions and their errors in
//! [`math`](crate::simd::math).

use super::elementwise::{Params, map};
use crate::command::{Kernel, Worker};
use crate::isa::Isa;
use crate::simd::{Simd, math, variants};
use device::Activation;

/// A function for each kind, so that no kernel branches on it.
macro_rules! kind {
    ($name:ident, $body:ident, $kind:ident) => {
        /// # Safety
        /// As [`crate::command::Kernel`].
        #[inline(always)]
        unsafe fn $body<S: Simd>(p: &Params, worker: &Worker<'_>) {
            const KIND: Activation = Activation::$kind;
            // SAFETY: the caller's promise.
            unsafe { map::<S>(p, worker, |a, b| S::mul(math::activate::<S>(KIND, a), b)) }
        }
        variants!($name, $body, Params);
    };
}

kind!(silu, silu_body, Silu);
kind!(gelu_tanh, gelu_tanh_body, GeluTanh);
kind!(gelu_erf, gelu_erf_body, GeluErf);
kind!(relu, relu_body, Relu);
kind!(sigmoid, sigmoid_body, Sigmoid);

/// The kernel for a function and an instruction set.
pub fn gate(isa: Isa, kind: Activation) -> Kernel<Params> {
    match kind {
        Activation::Silu => silu(isa),
        Activation::GeluTanh => gelu_tanh(isa),
        Activation::GeluErf => gelu_erf(isa),
        Activation::Relu => relu(isa),
        Activation::Sigmoid => sigmoid(isa),
    }
}
