//! [`Simd`] with AVX2, FMA and F16C: eight lanes.

use super::{RowsOf, Simd, Sink, one_expression};
use std::arch::x86_64::*;

/// 256-bit vectors.
#[derive(Clone, Copy)]
pub struct Avx2;

// SAFETY (of every block): by the trait, the instruction set is available, and pointers are valid
// for eight values.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Simd for Avx2 {
    type V = __m256;
    type I = __m256i;
    const N: usize = 8;
    const VECTORS: usize = 2;

    one_expression! {
        fn splat(x: f32) -> __m256 = _mm256_set1_ps(x);
        fn load(p: *const f32) -> __m256 = _mm256_loadu_ps(p);
        fn load_f16(p: *const u16) -> __m256 = _mm256_cvtph_ps(_mm_loadu_si128(p.cast()));
        fn store(p: *mut f32, v: __m256) = _mm256_storeu_ps(p, v);
        fn store_f16(p: *mut u16, v: __m256) =
            _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v));
        fn add(a: __m256, b: __m256) -> __m256 = _mm256_add_ps(a, b);
        fn sub(a: __m256, b: __m256) -> __m256 = _mm256_sub_ps(a, b);
        fn mul(a: __m256, b: __m256) -> __m256 = _mm256_mul_ps(a, b);
        fn div(a: __m256, b: __m256) -> __m256 = _mm256_div_ps(a, b);
        fn max(a: __m256, b: __m256) -> __m256 = _mm256_max_ps(a, b);
        fn min(a: __m256, b: __m256) -> __m256 = _mm256_min_ps(a, b);
        fn fma(a: __m256, b: __m256, c: __m256) -> __m256 = _mm256_fmadd_ps(a, b, c);
        fn abs(a: __m256) -> __m256 = _mm256_andnot_ps(_mm256_set1_ps(-0.0), a);
        fn select_lt(a: __m256, b: __m256, yes: __m256, no: __m256) -> __m256 =
            _mm256_blendv_ps(no, yes, _mm256_cmp_ps::<_CMP_LT_OQ>(a, b));
        fn max_bits(a: __m256, b: __m256) -> __m256 =
            _mm256_castsi256_ps(_mm256_max_epu32(_mm256_castps_si256(a), _mm256_castps_si256(b)));
        fn splat_i(x: i32) -> __m256i = _mm256_set1_epi32(x);
        fn load_i(p: *const i32) -> __m256i = _mm256_loadu_si256(p.cast());
        fn store_i(p: *mut i32, v: __m256i) = _mm256_storeu_si256(p.cast(), v);
    }
    #[inline(always)]
    unsafe fn store_words(p: *mut i16, v: __m256i) {
        unsafe {
            // The numbers fit, so saturation does not change them.
            let words = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
            _mm_storeu_si128(p.cast(), words);
        }
    }
    #[inline(always)]
    unsafe fn store_bytes(p: *mut u8, v: __m256i) {
        unsafe {
            // The numbers fit, so saturation does not change them.
            let words = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
            _mm_storel_epi64(p.cast(), _mm_packus_epi16(words, words));
        }
    }
    one_expression! {
        fn add_i(a: __m256i, b: __m256i) -> __m256i = _mm256_add_epi32(a, b);
        fn dot_words(sum: __m256i, a: __m256i, b: __m256i) -> __m256i =
            _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
    }
    #[inline(always)]
    unsafe fn dot_bytes(sum: __m256i, a: __m256i, b: __m256i) -> __m256i {
        // Bytes are widened to words, since `vpmaddubsw` would saturate. The widening of one
        // operand is shared by all its products.
        unsafe {
            let (a_even, a_odd) = (_mm256_and_si256(a, _mm256_set1_epi16(255)), _mm256_srli_epi16::<8>(a));
            let (b_even, b_odd) =
                (_mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(b)), _mm256_srai_epi16::<8>(b));
            let (even, odd) = (_mm256_madd_epi16(a_even, b_even), _mm256_madd_epi16(a_odd, b_odd));
            _mm256_add_epi32(_mm256_add_epi32(sum, even), odd)
        }
    }
    one_expression! {
        fn to_f32(v: __m256i) -> __m256 = _mm256_cvtepi32_ps(v);
        fn round(v: __m256) -> __m256i = _mm256_cvtps_epi32(v);
    }
    #[inline(always)]
    unsafe fn sum_i(v: __m256i) -> i32 {
        unsafe {
            let v = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
            let v = _mm_add_epi32(v, _mm_shuffle_epi32::<0b01_00_11_10>(v));
            _mm_cvtsi128_si32(_mm_add_epi32(v, _mm_shuffle_epi32::<0b10_11_00_01>(v)))
        }
    }
    #[inline(always)]
    unsafe fn exp2_biased(n: __m256) -> __m256 {
        unsafe {
            let biased = _mm256_add_epi32(_mm256_castps_si256(n), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
        }
    }
    #[inline(always)]
    unsafe fn sum(v: __m256) -> f32 {
        unsafe {
            let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
        }
    }
    #[inline(always)]
    unsafe fn hadamard(v: __m256) -> __m256 {
        unsafe {
            let others = _mm256_permute_ps::<0b10_11_00_01>(v);
            let v = _mm256_blend_ps::<0b1010_1010>(_mm256_add_ps(v, others), _mm256_sub_ps(others, v));
            let others = _mm256_permute_ps::<0b01_00_11_10>(v);
            let v = _mm256_blend_ps::<0b1100_1100>(_mm256_add_ps(v, others), _mm256_sub_ps(others, v));
            let others = _mm256_permute2f128_ps::<1>(v, v);
            _mm256_blend_ps::<0b1111_0000>(_mm256_add_ps(v, others), _mm256_sub_ps(others, v))
        }
    }
    #[inline(always)]
    unsafe fn max_lane(v: __m256) -> f32 {
        unsafe {
            let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)))
        }
    }
    #[inline(always)]
    unsafe fn transpose(rows: impl RowsOf, sink: &mut impl Sink<Self>) {
        unsafe {
            let r: [__m256; 8] = [
                rows.row::<Self>(0),
                rows.row::<Self>(1),
                rows.row::<Self>(2),
                rows.row::<Self>(3),
                rows.row::<Self>(4),
                rows.row::<Self>(5),
                rows.row::<Self>(6),
                rows.row::<Self>(7),
            ];
            // First pairs of rows, then quadruples within 128 bits, then across the halves.
            let mut a = r;
            for i in 0..4 {
                a[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
                a[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
            }
            let mut b = a;
            for i in 0..2 {
                b[4 * i] = _mm256_shuffle_ps::<0x44>(a[4 * i], a[4 * i + 2]);
                b[4 * i + 1] = _mm256_shuffle_ps::<0xee>(a[4 * i], a[4 * i + 2]);
                b[4 * i + 2] = _mm256_shuffle_ps::<0x44>(a[4 * i + 1], a[4 * i + 3]);
                b[4 * i + 3] = _mm256_shuffle_ps::<0xee>(a[4 * i + 1], a[4 * i + 3]);
            }
            for i in 0..4 {
                sink.take(i, _mm256_permute2f128_ps::<0x20>(b[i], b[i + 4]));
            }
            for i in 0..4 {
                sink.take(i + 4, _mm256_permute2f128_ps::<0x31>(b[i], b[i + 4]));
            }
        }
    }
}
