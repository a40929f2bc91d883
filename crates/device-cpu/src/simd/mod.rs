//! Vectors of f32 for kernels that are written once and instantiated for each instruction set.
//!
//! A kernel's body is an `#[inline(always)]` function that is generic over [`Simd`]. The macro
//! [`variants!`](crate::simd::variants) inlines it into one `#[target_feature]` function for each
//! instruction set, and defines a function that selects one of them. `Simd`'s methods thus compile
//! to single instructions, and a binary does not depend on the machine that built it.

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
    /// A vector of `N` i32, `2 N` i16 or `4 N` bytes.
    type I: Copy;
    /// Number of lanes; divides 16.
    const N: usize;
    /// Vectors of a tile in the small matrix products of attention; `N * VECTORS` divides 64.
    const VECTORS: usize;

    /// Vector with `x` in all lanes.
    unsafe fn splat(x: f32) -> Self::V;
    /// Loads `N` numbers, unaligned.
    unsafe fn load(p: *const f32) -> Self::V;
    /// Loads `N` f16 numbers, unaligned, as f32.
    unsafe fn load_f16(p: *const u16) -> Self::V;
    /// Stores `N` numbers, unaligned.
    unsafe fn store(p: *mut f32, v: Self::V);
    /// Stores `N` numbers as f16, rounded to nearest even, unaligned.
    unsafe fn store_f16(p: *mut u16, v: Self::V);
    /// `a + b`
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    /// `a - b`
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b`
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    /// `a / b`
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    /// The larger number of each lane.
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// The smaller number of each lane.
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, fused where the instruction set has it.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `|a|`
    unsafe fn abs(a: Self::V) -> Self::V;
    /// `yes` in lanes where `a < b`, otherwise `no`.
    unsafe fn select_lt(a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V;
    /// `2^x`, relative error below 4e-6; 0 for minus infinity, undefined above 127.
    #[inline(always)]
    unsafe fn exp2(x: Self::V) -> Self::V {
        // SAFETY: the caller guarantees the instruction set.
        unsafe { math::exp2::<Self>(x) }
    }
    /// The larger of each lane, compared as unsigned 32-bit integers: the larger of two
    /// non-negative numbers, or the NaN if one is NaN.
    unsafe fn max_bits(a: Self::V, b: Self::V) -> Self::V;
    /// `2^n`, given `n + 1.5 * 2^23` with `n` an integer in `-126..=127`.
    unsafe fn exp2_biased(n: Self::V) -> Self::V;
    /// Sum of the lanes, in a fixed order.
    unsafe fn sum(v: Self::V) -> f32;
    /// Product with the Hadamard matrix of `N` rows: sums and differences of lanes 1 apart, then 2
    /// apart, and so on.
    unsafe fn hadamard(v: Self::V) -> Self::V;
    /// The largest lane.
    unsafe fn max_lane(v: Self::V) -> f32;
    /// The largest lane in the order of [`Self::max_bits`].
    #[inline(always)]
    unsafe fn max_bits_lane(v: Self::V) -> f32 {
        let mut lanes = [0f32; 16];
        // SAFETY: a vector has `N <= 16` lanes, so it fits in `lanes`; the caller guarantees the
        // instruction set.
        unsafe { Self::store(lanes.as_mut_ptr(), v) };
        f32::from_bits(lanes[..Self::N].iter().fold(0, |max, lane| max.max(lane.to_bits())))
    }

    /// Vector with `x` in all lanes.
    unsafe fn splat_i(x: i32) -> Self::I;
    /// Loads `N` integers, unaligned.
    unsafe fn load_i(p: *const i32) -> Self::I;
    /// Stores `N` integers, unaligned.
    unsafe fn store_i(p: *mut i32, v: Self::I);
    /// Stores the lower 16 bits of each lane, unaligned.
    unsafe fn store_words(p: *mut i16, v: Self::I);
    /// Stores the lower 8 bits of each lane, unaligned.
    unsafe fn store_bytes(p: *mut u8, v: Self::I);
    /// `a + b`
    unsafe fn add_i(a: Self::I, b: Self::I) -> Self::I;
    /// `sum + a.low * b.low + a.high * b.high` in each lane, with halves as i16.
    unsafe fn dot_words(sum: Self::I, a: Self::I, b: Self::I) -> Self::I;
    /// `sum` plus the products of the four bytes of each lane, with `a` unsigned and `b` signed.
    unsafe fn dot_bytes(sum: Self::I, a: Self::I, b: Self::I) -> Self::I;
    /// Converts to f32, rounded if f32 has fewer digits.
    unsafe fn to_f32(v: Self::I) -> Self::V;
    /// Rounds to the nearest integer, ties to even; undefined beyond 2^31.
    unsafe fn round(v: Self::V) -> Self::I;
    /// Sum of the lanes.
    unsafe fn sum_i(v: Self::I) -> i32;

    /// Transposes `N` vectors: the `i`th vector that the sink gets has lane `i` of row `r` in lane
    /// `r`. The sink gets them in order.
    unsafe fn transpose(rows: impl RowsOf, sink: &mut impl Sink<Self>);

    /// `a * b + c` of one number, rounded like [`Self::fma`].
    #[inline(always)]
    fn fma_one(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
}

/// A source of vectors, by index.
pub trait RowsOf {
    /// Vector `i`.
    ///
    /// # Safety
    /// Defined by the implementation; the instruction set is available.
    unsafe fn row<S: Simd>(&self, i: usize) -> S::V;
}

/// A destination of vectors.
pub trait Sink<S: Simd> {
    /// Accepts vector `i`.
    ///
    /// # Safety
    /// Defined by the implementation; the instruction set is available.
    unsafe fn take(&mut self, i: usize, v: S::V);
}

/// Defines methods of [`Simd`] whose body is one expression.
macro_rules! one_expression {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),*) $(-> $out:ty)? = $body:expr;)*) => {$(
        $(#[$doc])*
        #[inline(always)]
        unsafe fn $name($($arg: $type),*) $(-> $out)? {
            unsafe { $body }
        }
    )*};
}
use one_expression;

/// Defines `fn $name(isa) -> unsafe fn(&$params, &Worker)` over the generic kernel `$body`.
macro_rules! variants {
    ($(#[$doc:meta])* $name:ident, $body:ident, $params:ty) => {
        $(#[$doc])*
        pub fn $name(isa: $crate::isa::Isa) -> $crate::command::Kernel<$params> {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
            unsafe fn avx512(params: &$params, worker: &$crate::command::Worker<'_>) {
                // SAFETY: the caller guarantees what `Kernel` demands, and `isa` selects this
                // function only if it is available.
                unsafe { $body::<$crate::simd::Avx512>(params, worker) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn avx2(params: &$params, worker: &$crate::command::Worker<'_>) {
                // SAFETY: as for `avx512`.
                unsafe { $body::<$crate::simd::Avx2>(params, worker) }
            }
            #[cfg(target_arch = "aarch64")]
            #[target_feature(enable = "neon")]
            unsafe fn neon(params: &$params, worker: &$crate::command::Worker<'_>) {
                // SAFETY: as for `avx512`.
                unsafe { $body::<$crate::simd::Neon>(params, worker) }
            }
            unsafe fn portable(params: &$params, worker: &$crate::command::Worker<'_>) {
                // SAFETY: the caller guarantees what `Kernel` demands; no instruction set is
                // needed.
                unsafe { $body::<$crate::simd::Portable>(params, worker) }
            }
            match isa.vectors() {
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Vectors::Avx512 => avx512,
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Vectors::Avx2 => avx2,
                #[cfg(target_arch = "aarch64")]
                $crate::isa::Vectors::Neon => neon,
                $crate::isa::Vectors::Portable => portable,
            }
        }
    };
}
pub(crate) use variants;
