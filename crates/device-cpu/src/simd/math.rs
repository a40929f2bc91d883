//! Elementary functions on vectors.
//!
//! Each function documents its error bound, which is tested against f64 on every instruction set.

use super::Simd;

/// `1.5 * 2^23`: adding it rounds to an integer, which is then in the low bits.
const BIAS: f32 = 12_582_912.0;
/// Input below which `exp` returns 0 (the true value is below 1.2e-38, the smallest normal number).
const EXP_LOW: f32 = -87.0;
/// Input above which `exp` returns `exp(88)`, 1.65e38.
const EXP_HIGH: f32 = 88.0;

/// `e^x`, relative error below 3e-7; 0 below -87 (minus infinity included), `exp(88)` above 88.
///
/// `x = n ln 2 + r`, `|r| <= ln 2 / 2`. `e^r` is the minimax polynomial of degree 5 of the Cephes
/// library's `expf`, times `r^2`, plus `r + 1`. `2^n` is built from its bits.
///
/// # Safety
/// The instruction set is available.
#[inline(always)]
pub unsafe fn exp<S: Simd>(x: S::V) -> S::V {
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        let clamped = S::min(S::max(x, S::splat(EXP_LOW)), S::splat(EXP_HIGH));
        let biased = S::fma(clamped, S::splat(std::f32::consts::LOG2_E), S::splat(BIAS));
        let n = S::sub(biased, S::splat(BIAS));
        // ln 2 in two parts; the first has so few bits that its product with `n` is exact.
        let r = S::fma(n, S::splat(-355.0 / 512.0), clamped);
        let r = S::fma(n, S::splat(2.121_944_4e-4), r);
        let mut p = S::splat(1.987_569_1e-4);
        for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
            p = S::fma(p, r, S::splat(c));
        }
        let p = S::add(S::fma(p, S::mul(r, r), r), S::splat(1.0));
        let value = S::mul(p, S::exp2_biased(biased));
        S::select_lt(x, S::splat(EXP_LOW), S::splat(0.0), value)
    }
}

/// Coefficients, highest first, of the polynomial of degree 4 nearest to `2^x` on `0..1`, with a
/// relative error of 2.6e-6.
pub const EXP2: [f32; 5] = [0.013_534_164, 0.052_011_48, 0.241_442_74, 0.693_003_83, 1.000_002_6];

/// [`Simd::exp2`] for inputs up to 127, if the instruction set has nothing better; 0 below -126.
///
/// # Safety
/// As [`exp`].
#[inline(always)]
pub unsafe fn exp2<S: Simd>(x: S::V) -> S::V {
    const LOW: f32 = -126.0;
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        let clamped = S::max(x, S::splat(LOW));
        // The polynomial is for 0..1, so the integer part is rounded down and `r` is the rest.
        let biased = S::add(S::sub(clamped, S::splat(0.5)), S::splat(BIAS));
        let r = S::sub(x, S::sub(biased, S::splat(BIAS)));
        let mut p = S::splat(EXP2[0]);
        for c in &EXP2[1..] {
            p = S::fma(p, r, S::splat(*c));
        }
        S::select_lt(x, S::splat(LOW), S::splat(0.0), S::mul(p, S::exp2_biased(biased)))
    }
}

/// `1 / (1 + e^-x)`, relative error below 5e-7.
///
/// # Safety
/// As [`exp`].
#[inline(always)]
pub unsafe fn sigmoid<S: Simd>(x: S::V) -> S::V {
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        let one = S::splat(1.0);
        S::div(one, S::add(one, exp::<S>(S::sub(S::splat(0.0), x))))
    }
}

/// `tanh x`, absolute error below 3e-7.
///
/// # Safety
/// As [`exp`].
#[inline(always)]
pub unsafe fn tanh<S: Simd>(x: S::V) -> S::V {
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        let (one, two) = (S::splat(1.0), S::splat(2.0));
        S::sub(one, S::div(two, S::add(one, exp::<S>(S::mul(two, x)))))
    }
}

/// The error function, absolute error below 6e-7: Abramowitz and Stegun, formula 7.1.26 (1.5e-7 by
/// itself).
///
/// # Safety
/// As [`exp`].
#[inline(always)]
pub unsafe fn erf<S: Simd>(x: S::V) -> S::V {
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        let (zero, one) = (S::splat(0.0), S::splat(1.0));
        let a = S::abs(x);
        let t = S::div(one, S::fma(S::splat(0.327_591_1), a, one));
        let mut p = S::splat(1.061_405_4);
        for c in [-1.453_152, 1.421_413_7, -0.284_496_74, 0.254_829_6] {
            p = S::fma(p, t, S::splat(c));
        }
        let e = exp::<S>(S::sub(zero, S::mul(a, a)));
        let y = S::sub(one, S::mul(S::mul(p, t), e));
        S::select_lt(x, zero, S::sub(zero, y), y)
    }
}

/// `ln(1 + e^x)`, relative error below 1e-6; 0 where the result is below `e^-87`.
///
/// `max(x, 0) + ln(1 + u)` with `u = e^-|x|` in `0..=1`. `ln(1 + u) = 2 artanh(s)` with `s = u / (2
/// + u)` in `0..=1/3`, by its series up to `s^15`, whose next term is 1e-9 of the first.
///
/// # Safety
/// As [`exp`].
#[inline(always)]
pub unsafe fn softplus<S: Simd>(x: S::V) -> S::V {
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        let zero = S::splat(0.0);
        let u = exp::<S>(S::sub(zero, S::abs(x)));
        let s = S::div(u, S::add(S::splat(2.0), u));
        let square = S::mul(s, s);
        let mut p = S::splat(2.0 / 15.0);
        for c in [2.0 / 13.0, 2.0 / 11.0, 2.0 / 9.0, 2.0 / 7.0, 2.0 / 5.0, 2.0 / 3.0, 2.0] {
            p = S::fma(p, square, S::splat(c));
        }
        S::fma(p, s, S::max(x, zero))
    }
}

/// A function of one number, as a type that kernels are instantiated for. A closure would not do:
/// it lacks the instruction set of the surrounding kernel. If the compiler does not inline it, each
/// instruction becomes a call.
pub trait Curve: Copy + 'static {
    /// The function's values at `x`.
    ///
    /// # Safety
    /// As [`exp`].
    unsafe fn at<S: Simd>(x: S::V) -> S::V;
}

/// [`device::Activation::Silu`]
#[derive(Clone, Copy)]
pub struct Silu;
/// [`device::Activation::GeluTanh`]
#[derive(Clone, Copy)]
pub struct GeluTanh;
/// [`device::Activation::GeluErf`]
#[derive(Clone, Copy)]
pub struct GeluErf;
/// [`device::Activation::Relu`]
#[derive(Clone, Copy)]
pub struct Relu;
/// [`device::Activation::Sigmoid`]
#[derive(Clone, Copy)]
pub struct Sigmoid;
/// [`device::Activation::Identity`]
#[derive(Clone, Copy)]
pub struct Identity;
/// [`device::Activation::ReluSquared`]
#[derive(Clone, Copy)]
pub struct ReluSquared;
/// [`device::Activation::Softplus`]
#[derive(Clone, Copy)]
pub struct Softplus;

impl Curve for Silu {
    #[inline(always)]
    unsafe fn at<S: Simd>(x: S::V) -> S::V {
        // SAFETY: the caller guarantees the instruction set.
        unsafe { S::mul(x, sigmoid::<S>(x)) }
    }
}

impl Curve for GeluTanh {
    #[inline(always)]
    unsafe fn at<S: Simd>(x: S::V) -> S::V {
        // SAFETY: the caller guarantees the instruction set.
        unsafe {
            // 0.5 (1 + tanh u) = sigmoid(2 u)
            let cube = S::mul(S::mul(x, x), x);
            let u = S::mul(S::splat(1.595_769), S::fma(S::splat(0.044_715), cube, x));
            S::mul(x, sigmoid::<S>(u))
        }
    }
}

impl Curve for GeluErf {
    #[inline(always)]
    unsafe fn at<S: Simd>(x: S::V) -> S::V {
        // SAFETY: the caller guarantees the instruction set.
        unsafe {
            let e = erf::<S>(S::mul(x, S::splat(std::f32::consts::FRAC_1_SQRT_2)));
            S::mul(S::mul(S::splat(0.5), x), S::add(S::splat(1.0), e))
        }
    }
}

impl Curve for Relu {
    #[inline(always)]
    unsafe fn at<S: Simd>(x: S::V) -> S::V {
        // SAFETY: the caller guarantees the instruction set.
        unsafe { S::max(x, S::splat(0.0)) }
    }
}

impl Curve for Sigmoid {
    #[inline(always)]
    unsafe fn at<S: Simd>(x: S::V) -> S::V {
        // SAFETY: the caller guarantees the instruction set.
        unsafe { sigmoid::<S>(x) }
    }
}

impl Curve for Identity {
    #[inline(always)]
    unsafe fn at<S: Simd>(x: S::V) -> S::V {
        x
    }
}

impl Curve for ReluSquared {
    #[inline(always)]
    unsafe fn at<S: Simd>(x: S::V) -> S::V {
        // SAFETY: the caller guarantees the instruction set.
        unsafe {
            let x = S::max(x, S::splat(0.0));
            S::mul(x, x)
        }
    }
}

impl Curve for Softplus {
    #[inline(always)]
    unsafe fn at<S: Simd>(x: S::V) -> S::V {
        // SAFETY: the caller guarantees the instruction set.
        unsafe { softplus::<S>(x) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::{Isa, Vectors};

    /// Applies a function to every number of a slice, whose length is a multiple of 16.
    fn on_all(isa: Isa, which: usize, x: &mut [f32]) {
        #[inline(always)]
        unsafe fn body<S: Simd>(which: usize, x: &mut [f32]) {
            for x in x.chunks_exact_mut(S::N) {
                // SAFETY: a chunk has `S::N` numbers; the caller guarantees the instruction set.
                unsafe {
                    let v = S::load(x.as_ptr());
                    let y = match which {
                        0 => exp::<S>(v),
                        1 => sigmoid::<S>(v),
                        2 => tanh::<S>(v),
                        3 => erf::<S>(v),
                        4 => S::exp2(v),
                        5 => softplus::<S>(v),
                        _ => GeluTanh::at::<S>(v),
                    };
                    S::store(x.as_mut_ptr(), y);
                }
            }
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
        unsafe fn avx512(which: usize, x: &mut [f32]) {
            // SAFETY: this function has the features of `Avx512`.
            unsafe { body::<crate::simd::Avx512>(which, x) }
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn avx2(which: usize, x: &mut [f32]) {
            // SAFETY: this function has the features of `Avx2`.
            unsafe { body::<crate::simd::Avx2>(which, x) }
        }
        // SAFETY: the test passes only instruction sets from `Isa::available`.
        unsafe {
            match isa.vectors() {
                #[cfg(target_arch = "x86_64")]
                Vectors::Avx512 => avx512(which, x),
                #[cfg(target_arch = "x86_64")]
                Vectors::Avx2 => avx2(which, x),
                #[cfg(target_arch = "aarch64")]
                Vectors::Neon => body::<crate::simd::Neon>(which, x),
                Vectors::Portable => body::<crate::simd::Portable>(which, x),
            }
        }
    }

    /// erf by its series, for |x| < 6.
    fn erf_f64(x: f64) -> f64 {
        let (mut sum, mut term) = (0.0, x);
        for n in 0..200 {
            sum += term / f64::from(2 * n + 1);
            term *= -x * x / f64::from(n + 1);
        }
        (sum * std::f64::consts::FRAC_2_SQRT_PI).clamp(-1.0, 1.0)
    }

    #[test]
    fn functions_keep_their_bounds_on_every_instruction_set() {
        let inputs: Vec<f32> = (0..16 * 1024).map(|i| (i as f32 - 8192.0) * 0.0105).collect();
        for isa in Isa::available() {
            for which in 0..7 {
                let mut y = inputs.clone();
                on_all(isa, which, &mut y);
                for (x, y) in inputs.iter().zip(&y) {
                    let (x, y) = (f64::from(*x), f64::from(*y));
                    let (expected, bound) = match which {
                        0 => (x.exp(), 3e-7 * x.exp() + 1.3e-38),
                        1 => (1.0 / (1.0 + (-x).exp()), 5e-7 / (1.0 + (-x).exp()) + 1e-38),
                        2 => (x.tanh(), 3e-7),
                        3 if x.abs() < 5.0 => (erf_f64(x), 6e-7),
                        3 => (x.signum(), 6e-7),
                        4 if x > 127.0 => continue,
                        4 => (x.exp2(), 4e-6 * x.exp2() + 1.3e-38),
                        5 => (
                            x.max(0.0) + (-x.abs()).exp().ln_1p(),
                            1e-6 * (x.max(0.0) + (-x.abs()).exp()) + 1.3e-38,
                        ),
                        _ => {
                            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
                            (0.5 * x * (1.0 + u.tanh()), 1e-6 * x.abs() + 1e-7)
                        }
                    };
                    assert!(
                        (y - expected).abs() <= bound,
                        "{isa} {which}: f({x}) = {y}, expected {expected}"
                    );
                }
            }
            let mut edge = [0.0f32; 16];
            edge[0] = f32::NEG_INFINITY;
            edge[1] = 1000.0;
            edge[2] = -200.0;
            on_all(isa, 0, &mut edge);
            assert_eq!((edge[0], edge[2], edge[3]), (0.0, 0.0, 1.0), "{isa}");
            assert!(edge[1].is_finite(), "{isa}");
            let mut edge = [0.0f32; 16];
            (edge[0], edge[1], edge[2]) = (f32::NEG_INFINITY, -200.0, f32::NAN);
            on_all(isa, 4, &mut edge);
            assert_eq!((edge[0], edge[1]), (0.0, 0.0), "{isa}");
            assert!(edge[2].is_nan(), "{isa}");
        }
    }
}
