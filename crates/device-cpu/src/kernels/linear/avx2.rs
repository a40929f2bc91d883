//! Functions that AVX2 kernels share.

use std::arch::x86_64::*;

/// Sum of the lanes in a fixed order: 4 apart, 2 apart, neighbours.
///
/// # Safety
/// AVX2 is available.
#[inline(always)]
pub(super) unsafe fn horizontal_sum(v: __m256) -> f32 {
    // SAFETY: by the caller, AVX2 is available.
    unsafe {
        let s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let s = _mm_add_ps(s, _mm_movehl_ps(s, s));
        _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)))
    }
}

/// Transposes 8 rows of 8 dwords.
///
/// # Safety
/// AVX2 is available.
#[inline(always)]
pub(super) unsafe fn transpose(rows: [__m256i; 8]) -> [__m256i; 8] {
    // SAFETY: by the caller, AVX2 is available.
    unsafe {
        let mut a = rows;
        for i in (0..8).step_by(2) {
            a[i] = _mm256_unpacklo_epi32(rows[i], rows[i + 1]);
            a[i + 1] = _mm256_unpackhi_epi32(rows[i], rows[i + 1]);
        }
        // In each 128-bit lane `L`, `b[4g + c]` has column `4L + c` of rows `4g..4g + 4`.
        let mut b = a;
        for g in 0..2 {
            b[4 * g] = _mm256_unpacklo_epi64(a[4 * g], a[4 * g + 2]);
            b[4 * g + 1] = _mm256_unpackhi_epi64(a[4 * g], a[4 * g + 2]);
            b[4 * g + 2] = _mm256_unpacklo_epi64(a[4 * g + 1], a[4 * g + 3]);
            b[4 * g + 3] = _mm256_unpackhi_epi64(a[4 * g + 1], a[4 * g + 3]);
        }
        let mut out = b;
        for c in 0..4 {
            out[c] = _mm256_permute2x128_si256::<0x20>(b[c], b[4 + c]);
            out[4 + c] = _mm256_permute2x128_si256::<0x31>(b[c], b[4 + c]);
        }
        out
    }
}
