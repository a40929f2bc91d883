//! [`Simd`] with AVX-512: sixteen lanes.

use super::math::EXP2;
use super::{RowsOf, Simd, Sink, one_expression};
use std::arch::x86_64::*;

/// 512-bit vectors.
#[derive(Clone, Copy)]
pub struct Avx512;

// SAFETY (of every block): by the trait, the instruction set is available, and pointers are valid
// for 16 values.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Simd for Avx512 {
    type V = __m512;
    type I = __m512i;
    const N: usize = 16;
    const VECTORS: usize = 4;

    one_expression! {
        fn splat(x: f32) -> __m512 = _mm512_set1_ps(x);
        fn load(p: *const f32) -> __m512 = _mm512_loadu_ps(p);
        fn load_f16(p: *const u16) -> __m512 = _mm512_cvtph_ps(_mm256_loadu_si256(p.cast()));
        fn store(p: *mut f32, v: __m512) = _mm512_storeu_ps(p, v);
        fn store_f16(p: *mut u16, v: __m512) =
            _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v));
        fn add(a: __m512, b: __m512) -> __m512 = _mm512_add_ps(a, b);
        fn sub(a: __m512, b: __m512) -> __m512 = _mm512_sub_ps(a, b);
        fn mul(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b);
        fn div(a: __m512, b: __m512) -> __m512 = _mm512_div_ps(a, b);
        fn max(a: __m512, b: __m512) -> __m512 = _mm512_max_ps(a, b);
        fn min(a: __m512, b: __m512) -> __m512 = _mm512_min_ps(a, b);
        fn fma(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fmadd_ps(a, b, c);
        fn abs(a: __m512) -> __m512 = _mm512_abs_ps(a);
        fn select_lt(a: __m512, b: __m512, yes: __m512, no: __m512) -> __m512 =
            _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), no, yes);
    }
    #[inline(always)]
    unsafe fn exp2(x: __m512) -> __m512 {
        unsafe {
            // Fraction above the integer below `x`; 0 for an infinity.
            let r = _mm512_reduce_ps::<{ _MM_FROUND_TO_NEG_INF }>(x);
            let mut p = _mm512_set1_ps(EXP2[0]);
            for c in &EXP2[1..] {
                p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(*c));
            }
            _mm512_scalef_ps(p, x)
        }
    }
    one_expression! {
        fn max_bits(a: __m512, b: __m512) -> __m512 =
            _mm512_castsi512_ps(_mm512_max_epu32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
        fn max_bits_lane(v: __m512) -> f32 = f32::from_bits(_mm512_reduce_max_epu32(_mm512_castps_si512(v)));
        fn splat_i(x: i32) -> __m512i = _mm512_set1_epi32(x);
        fn load_i(p: *const i32) -> __m512i = _mm512_loadu_si512(p.cast());
        fn store_i(p: *mut i32, v: __m512i) = _mm512_storeu_si512(p.cast(), v);
        fn store_words(p: *mut i16, v: __m512i) = _mm256_storeu_si256(p.cast(), _mm512_cvtepi32_epi16(v));
        fn store_bytes(p: *mut u8, v: __m512i) = _mm_storeu_si128(p.cast(), _mm512_cvtepi32_epi8(v));
        fn add_i(a: __m512i, b: __m512i) -> __m512i = _mm512_add_epi32(a, b);
        fn dot_words(sum: __m512i, a: __m512i, b: __m512i) -> __m512i = _mm512_dpwssd_epi32(sum, a, b);
        fn dot_bytes(sum: __m512i, a: __m512i, b: __m512i) -> __m512i = _mm512_dpbusd_epi32(sum, a, b);
        fn to_f32(v: __m512i) -> __m512 = _mm512_cvtepi32_ps(v);
        fn round(v: __m512) -> __m512i = _mm512_cvtps_epi32(v);
        fn sum_i(v: __m512i) -> i32 = _mm512_reduce_add_epi32(v);
    }
    #[inline(always)]
    unsafe fn exp2_biased(n: __m512) -> __m512 {
        unsafe {
            let biased = _mm512_add_epi32(_mm512_castps_si512(n), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased))
        }
    }
    #[inline(always)]
    unsafe fn sum(v: __m512) -> f32 {
        unsafe { _mm512_reduce_add_ps(v) }
    }
    #[inline(always)]
    unsafe fn hadamard(v: __m512) -> __m512 {
        unsafe {
            // Each pair of lanes becomes its sum and its difference; `differences` masks the second
            // lanes.
            let step =
                |v, others, differences| _mm512_mask_sub_ps(_mm512_add_ps(others, v), differences, others, v);
            let v = step(v, _mm512_permute_ps::<0b10_11_00_01>(v), 0xaaaa);
            let v = step(v, _mm512_permute_ps::<0b01_00_11_10>(v), 0xcccc);
            let v = step(v, _mm512_shuffle_f32x4::<0b10_11_00_01>(v, v), 0xf0f0);
            step(v, _mm512_shuffle_f32x4::<0b01_00_11_10>(v, v), 0xff00)
        }
    }
    #[inline(always)]
    unsafe fn max_lane(v: __m512) -> f32 {
        unsafe { _mm512_reduce_max_ps(v) }
    }
    #[inline(always)]
    unsafe fn transpose(rows: impl RowsOf, sink: &mut impl Sink<Self>) {
        unsafe {
            let r: [__m512; 16] = [
                rows.row::<Self>(0),
                rows.row::<Self>(1),
                rows.row::<Self>(2),
                rows.row::<Self>(3),
                rows.row::<Self>(4),
                rows.row::<Self>(5),
                rows.row::<Self>(6),
                rows.row::<Self>(7),
                rows.row::<Self>(8),
                rows.row::<Self>(9),
                rows.row::<Self>(10),
                rows.row::<Self>(11),
                rows.row::<Self>(12),
                rows.row::<Self>(13),
                rows.row::<Self>(14),
                rows.row::<Self>(15),
            ];
            // First pairs of rows, then quadruples within 128 bits, then the 128-bit pieces as a
            // 4x4 matrix.
            let mut a = r;
            for i in 0..8 {
                a[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
                a[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
            }
            let mut b = a;
            for i in 0..4 {
                b[4 * i] = _mm512_shuffle_ps::<0x44>(a[4 * i], a[4 * i + 2]);
                b[4 * i + 1] = _mm512_shuffle_ps::<0xee>(a[4 * i], a[4 * i + 2]);
                b[4 * i + 2] = _mm512_shuffle_ps::<0x44>(a[4 * i + 1], a[4 * i + 3]);
                b[4 * i + 3] = _mm512_shuffle_ps::<0xee>(a[4 * i + 1], a[4 * i + 3]);
            }
            // Piece p of b[4 * q + c] is column 4 * p + c of the rows 4 * q..4 * q + 4.
            let mut out = b;
            for c in 0..4 {
                let low01 = _mm512_shuffle_f32x4::<0x44>(b[c], b[4 + c]);
                let high01 = _mm512_shuffle_f32x4::<0xee>(b[c], b[4 + c]);
                let low23 = _mm512_shuffle_f32x4::<0x44>(b[8 + c], b[12 + c]);
                let high23 = _mm512_shuffle_f32x4::<0xee>(b[8 + c], b[12 + c]);
                out[c] = _mm512_shuffle_f32x4::<0x88>(low01, low23);
                out[4 + c] = _mm512_shuffle_f32x4::<0xdd>(low01, low23);
                out[8 + c] = _mm512_shuffle_f32x4::<0x88>(high01, high23);
                out[12 + c] = _mm512_shuffle_f32x4::<0xdd>(high01, high23);
            }
            for (i, v) in out.into_iter().enumerate() {
                sink.take(i, v);
            }
        }
    }
}
