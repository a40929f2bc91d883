//! What AVX2 kernels have in common.

use std::arch::x86_64::*;

/// Lanes added in a fixed order: 4 apart, 2 apart, neighbours.
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
