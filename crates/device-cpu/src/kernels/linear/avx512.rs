//! What AVX-512 kernels have in common.

use std::arch::x86_64::*;

/// A constant in a register.
///
/// # Safety
/// AVX-512 is available.
#[inline(always)]
pub(super) unsafe fn load512<T, const N: usize>(values: &'static [T; N]) -> __m512i {
    const { assert!(size_of::<T>() * N == 64) };
    // SAFETY: 64 bytes, by the assertion.
    unsafe { _mm512_loadu_si512(values.as_ptr().cast()) }
}

/// The sum of all lanes in a fixed order: 8 apart, 4, 2, neighbours.
///
/// # Safety
/// AVX-512 is available.
#[inline(always)]
pub(super) unsafe fn horizontal_sum(v: __m512) -> f32 {
    // SAFETY: by the caller, AVX-512 is available.
    unsafe {
        let s = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
        super::avx2::horizontal_sum(s)
    }
}

/// For `vpermps`: the lanes of 64 columns, register `z` of four, each showing the group its four columns are in.
pub(super) const fn group_lanes(group: usize) -> [[u32; 16]; 4] {
    let mut lanes = [[0; 16]; 4];
    let mut z = 0;
    while z < 4 {
        let mut i = 0;
        while i < 16 {
            lanes[z][i] = ((z * 64 + i * 4) / group) as u32;
            i += 1;
        }
        z += 1;
    }
    lanes
}
