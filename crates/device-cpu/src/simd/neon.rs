//! [`Simd`] with NEON: four lanes.

use super::{RowsOf, Simd, Sink, one_expression};
use std::arch::aarch64::*;

/// 128-bit vectors.
#[derive(Clone, Copy)]
pub struct Neon;

// SAFETY (of every block): by the trait, pointers are valid for four values; NEON is the baseline.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Simd for Neon {
    type V = float32x4_t;
    type I = int32x4_t;
    const N: usize = 4;
    const VECTORS: usize = 4;

    one_expression! {
        fn splat(x: f32) -> float32x4_t = vdupq_n_f32(x);
        fn load(p: *const f32) -> float32x4_t = vld1q_f32(p);
        fn load_f16(p: *const u16) -> float32x4_t = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
        fn store(p: *mut f32, v: float32x4_t) = vst1q_f32(p, v);
        fn store_f16(p: *mut u16, v: float32x4_t) = vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(v)));
        fn add(a: float32x4_t, b: float32x4_t) -> float32x4_t = vaddq_f32(a, b);
        fn sub(a: float32x4_t, b: float32x4_t) -> float32x4_t = vsubq_f32(a, b);
        fn mul(a: float32x4_t, b: float32x4_t) -> float32x4_t = vmulq_f32(a, b);
        fn div(a: float32x4_t, b: float32x4_t) -> float32x4_t = vdivq_f32(a, b);
        /// Returns the other operand if one is NaN, as on x86.
        fn max(a: float32x4_t, b: float32x4_t) -> float32x4_t = vmaxnmq_f32(a, b);
        fn min(a: float32x4_t, b: float32x4_t) -> float32x4_t = vminnmq_f32(a, b);
        fn fma(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t = vfmaq_f32(c, a, b);
        fn abs(a: float32x4_t) -> float32x4_t = vabsq_f32(a);
        fn select_lt(a: float32x4_t, b: float32x4_t, yes: float32x4_t, no: float32x4_t) -> float32x4_t =
            vbslq_f32(vcltq_f32(a, b), yes, no);
        fn max_bits(a: float32x4_t, b: float32x4_t) -> float32x4_t =
            vreinterpretq_f32_u32(vmaxq_u32(vreinterpretq_u32_f32(a), vreinterpretq_u32_f32(b)));
        fn splat_i(x: i32) -> int32x4_t = vdupq_n_s32(x);
        fn load_i(p: *const i32) -> int32x4_t = vld1q_s32(p);
        fn store_i(p: *mut i32, v: int32x4_t) = vst1q_s32(p, v);
        fn store_words(p: *mut i16, v: int32x4_t) = vst1_s16(p, vmovn_s32(v));
    }
    #[inline(always)]
    unsafe fn store_bytes(p: *mut u8, v: int32x4_t) {
        unsafe {
            let words = vmovn_s32(v);
            let bytes = vmovn_u16(vreinterpretq_u16_s16(vcombine_s16(words, words)));
            p.cast::<u32>().write_unaligned(vget_lane_u32::<0>(vreinterpret_u32_u8(bytes)));
        }
    }
    #[inline(always)]
    unsafe fn add_i(a: int32x4_t, b: int32x4_t) -> int32x4_t {
        unsafe { vaddq_s32(a, b) }
    }
    #[inline(always)]
    unsafe fn dot_words(sum: int32x4_t, a: int32x4_t, b: int32x4_t) -> int32x4_t {
        unsafe {
            let (a, b) = (vreinterpretq_s16_s32(a), vreinterpretq_s16_s32(b));
            let low = vmull_s16(vget_low_s16(a), vget_low_s16(b));
            vaddq_s32(sum, vpaddq_s32(low, vmull_high_s16(a, b)))
        }
    }
    #[inline(always)]
    unsafe fn dot_bytes(sum: int32x4_t, a: int32x4_t, b: int32x4_t) -> int32x4_t {
        unsafe {
            let (a, b) = (vreinterpretq_u8_s32(a), vreinterpretq_s8_s32(b));
            let (a_low, a_high) = (vmovl_u8(vget_low_u8(a)), vmovl_high_u8(a));
            let (b_low, b_high) = (vmovl_s8(vget_low_s8(b)), vmovl_high_s8(b));
            // The products fit 16 bits: `255 * 128` is below 2^15.
            let low = vpaddlq_s16(vmulq_s16(vreinterpretq_s16_u16(a_low), b_low));
            let high = vpaddlq_s16(vmulq_s16(vreinterpretq_s16_u16(a_high), b_high));
            vaddq_s32(sum, vpaddq_s32(low, high))
        }
    }
    one_expression! {
        fn to_f32(v: int32x4_t) -> float32x4_t = vcvtq_f32_s32(v);
        fn round(v: float32x4_t) -> int32x4_t = vcvtnq_s32_f32(v);
        fn sum_i(v: int32x4_t) -> i32 = vaddvq_s32(v);
    }
    #[inline(always)]
    unsafe fn exp2_biased(n: float32x4_t) -> float32x4_t {
        unsafe {
            let biased = vaddq_s32(vreinterpretq_s32_f32(n), vdupq_n_s32(127));
            vreinterpretq_f32_s32(vshlq_n_s32::<23>(biased))
        }
    }
    #[inline(always)]
    unsafe fn sum(v: float32x4_t) -> f32 {
        unsafe { vaddvq_f32(v) }
    }
    #[inline(always)]
    unsafe fn hadamard(v: float32x4_t) -> float32x4_t {
        unsafe {
            let others = vrev64q_f32(v);
            let v = vtrn1q_f32(vaddq_f32(v, others), vsubq_f32(v, others));
            let others = vextq_f32::<2>(v, v);
            vcombine_f32(vget_low_f32(vaddq_f32(v, others)), vget_low_f32(vsubq_f32(v, others)))
        }
    }
    #[inline(always)]
    unsafe fn max_lane(v: float32x4_t) -> f32 {
        unsafe { vmaxnmvq_f32(v) }
    }
    #[inline(always)]
    unsafe fn transpose(rows: impl RowsOf, sink: &mut impl Sink<Self>) {
        unsafe {
            let r = [rows.row::<Self>(0), rows.row::<Self>(1), rows.row::<Self>(2), rows.row::<Self>(3)];
            // First columns 0 and 2 of two rows side by side, then columns 1 and 3; then pairs of
            // rows.
            let (a, b) = (vtrn1q_f32(r[0], r[1]), vtrn2q_f32(r[0], r[1]));
            let (c, d) = (vtrn1q_f32(r[2], r[3]), vtrn2q_f32(r[2], r[3]));
            let low =
                |u, v| vreinterpretq_f32_f64(vtrn1q_f64(vreinterpretq_f64_f32(u), vreinterpretq_f64_f32(v)));
            let high =
                |u, v| vreinterpretq_f32_f64(vtrn2q_f64(vreinterpretq_f64_f32(u), vreinterpretq_f64_f32(v)));
            sink.take(0, low(a, c));
            sink.take(1, low(b, d));
            sink.take(2, high(a, c));
            sink.take(3, high(b, d));
        }
    }
}
