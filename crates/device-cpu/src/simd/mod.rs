//! Vectors of f32 for kernels that are written once and instantiated for each instruction set.
//!
//! A kernel's body is an `#[inline(always)]` function generic over [`Simd`]; [`variants!`](crate::simd::variants) wraps
//! it in one `#[target_feature]` function for each instruction set, into which everything is inlined, and gives the
//! function that picks one. So `Simd`'s methods compile to single instructions, and no binary depends on the machine
//! that it was built on.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub mod math;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;

#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub use avx512::Avx512;
#[cfg(target_arch = "aarch64")]
pub use neon::Neon;
pub use portable::Portable;

/// Operations on vectors of [`Simd::N`] f32.
///
/// # Safety of all methods
/// The instruction set is available; pointers are valid for `N` values (any alignment).
pub trait Simd: Copy + 'static {
    /// A vector.
    type V: Copy;
    /// A vector of as many i32, of twice as many i16, or of four times as many bytes.
    type I: Copy;
    /// Their lanes; divides 16.
    const N: usize;
    /// Vectors of a tile of the small matrix products of attention; `N * VECTORS` divides 64.
    const VECTORS: usize;

    /// All lanes `x`.
    unsafe fn splat(x: f32) -> Self::V;
    /// Unaligned.
    unsafe fn load(p: *const f32) -> Self::V;
    /// Of f16.
    unsafe fn load_f16(p: *const u16) -> Self::V;
    /// Unaligned.
    unsafe fn store(p: *mut f32, v: Self::V);
    /// To f16, to nearest even.
    unsafe fn store_f16(p: *mut u16, v: Self::V);
    /// `a + b`
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    /// `a - b`
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b`
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    /// `a / b`
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    /// The larger.
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// The smaller.
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, fused where the instruction set has it.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `|a|`
    unsafe fn abs(a: Self::V) -> Self::V;
    /// In each lane `yes` where `a < b`, else `no`.
    unsafe fn select_lt(a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V;
    /// `2^x`, relative error below 4e-6; 0 of minus infinity. Above 127 it is undefined.
    #[inline(always)]
    unsafe fn exp2(x: Self::V) -> Self::V {
        // SAFETY: by the caller, the instruction set is available.
        unsafe { math::exp2::<Self>(x) }
    }
    /// The larger as whole numbers of 32 bits without a sign: of numbers that are not negative the larger, but where one is no
    /// number, that.
    unsafe fn max_bits(a: Self::V, b: Self::V) -> Self::V;
    /// `2^n`, given `n + 1.5 * 2^23` with `n` an integer in `-126..=127`.
    unsafe fn exp2_biased(n: Self::V) -> Self::V;
    /// Sum of the lanes, in a fixed order.
    unsafe fn sum(v: Self::V) -> f32;
    /// The product with the matrix of Hadamard of `N` rows: sums and differences of lanes 1 apart, of these 2 apart, and so on.
    unsafe fn hadamard(v: Self::V) -> Self::V;
    /// The largest lane.
    unsafe fn max_lane(v: Self::V) -> f32;
    /// The largest lane in the order of [`Self::max_bits`].
    #[inline(always)]
    unsafe fn max_bits_lane(v: Self::V) -> f32 {
        let mut lanes = [0f32; 16];
        // SAFETY: a vector has at most 16 lanes.
        unsafe { Self::store(lanes.as_mut_ptr(), v) };
        f32::from_bits(lanes[..Self::N].iter().fold(0, |max, lane| max.max(lane.to_bits())))
    }

    /// All lanes `x`.
    unsafe fn splat_i(x: i32) -> Self::I;
    /// Unaligned.
    unsafe fn load_i(p: *const i32) -> Self::I;
    /// Unaligned.
    unsafe fn store_i(p: *mut i32, v: Self::I);
    /// The lower 16 bits of each lane, unaligned.
    unsafe fn store_words(p: *mut i16, v: Self::I);
    /// The lower 8 bits of each lane, unaligned.
    unsafe fn store_bytes(p: *mut u8, v: Self::I);
    /// `a + b`
    unsafe fn add_i(a: Self::I, b: Self::I) -> Self::I;
    /// `sum + a.low * b.low + a.high * b.high` in each lane, of the halves as i16.
    unsafe fn dot_words(sum: Self::I, a: Self::I, b: Self::I) -> Self::I;
    /// `sum` and the products of four bytes in each lane, of `a` without a sign, of `b` with one.
    unsafe fn dot_bytes(sum: Self::I, a: Self::I, b: Self::I) -> Self::I;
    /// Rounded, where f32 has fewer digits.
    unsafe fn to_f32(v: Self::I) -> Self::V;
    /// To the nearest, halves to even; undefined beyond 2^31.
    unsafe fn round(v: Self::V) -> Self::I;
    /// Sum of the lanes.
    unsafe fn sum_i(v: Self::I) -> i32;

    /// Transpose `N` vectors: lane `r` of the vector that the sink takes as number `i` is lane `i` of row `r`. The sink takes
    /// them in order.
    unsafe fn transpose(rows: impl RowsOf, sink: &mut impl Sink<Self>);

    /// `a * b + c` of one number, with the rounding of [`Self::fma`].
    #[inline(always)]
    fn fma_one(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
}

/// Vectors by number.
pub trait RowsOf {
    /// Vector `i`.
    ///
    /// # Safety
    /// The implementer's; the instruction set is available.
    unsafe fn row<S: Simd>(&self, i: usize) -> S::V;
}

/// Takes vectors.
pub trait Sink<S: Simd> {
    /// Vector `i`.
    ///
    /// # Safety
    /// The implementer's; the instruction set is available.
    unsafe fn take(&mut self, i: usize, v: S::V);
}

/// Define `fn $name(isa) -> unsafe fn(&$params, &Worker)` over the generic kernel `$body`.
macro_rules! variants {
    ($(#[$doc:meta])* $name:ident, $body:ident, $params:ty) => {
        $(#[$doc])*
        pub fn $name(isa: $crate::isa::Isa) -> $crate::command::Kernel<$params> {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
            unsafe fn avx512(params: &$params, worker: &$crate::command::Worker<'_>) {
                // SAFETY: by the caller, the parameters fit the step as in `Kernel`, and this instruction set is available.
                unsafe { $body::<$crate::simd::Avx512>(params, worker) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn avx2(params: &$params, worker: &$crate::command::Worker<'_>) {
                // SAFETY: as above.
                unsafe { $body::<$crate::simd::Avx2>(params, worker) }
            }
            #[cfg(target_arch = "aarch64")]
            #[target_feature(enable = "neon")]
            unsafe fn neon(params: &$params, worker: &$crate::command::Worker<'_>) {
                // SAFETY: as above.
                unsafe { $body::<$crate::simd::Neon>(params, worker) }
            }
            unsafe fn portable(params: &$params, worker: &$crate::command::Worker<'_>) {
                // SAFETY: as above.
                unsafe { $body::<$crate::simd::Portable>(params, worker) }
            }
            match isa.vectors() {
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Isa::Avx512 => avx512,
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Isa::Avx2 => avx2,
                #[cfg(target_arch = "aarch64")]
                $crate::isa::Isa::Neon => neon,
                _ => portable,
            }
        }
    };
}
pub(crate) use variants;
