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

/// 16 rows of 16 dwords to 16 columns of 16 dwords.
///
/// # Safety
/// AVX-512 is available.
#[inline(always)]
pub(super) unsafe fn transpose(rows: [__m512i; 16]) -> [__m512i; 16] {
    // SAFETY: by the caller, AVX-512 is available.
    unsafe {
        let mut a = rows;
        for i in (0..16).step_by(2) {
            a[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
            a[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
        }
        // b[4g + c]: in each 128-bit lane L, column 4L + c of rows 4g..4g + 4.
        let mut b = a;
        for g in 0..4 {
            b[4 * g] = _mm512_unpacklo_epi64(a[4 * g], a[4 * g + 2]);
            b[4 * g + 1] = _mm512_unpackhi_epi64(a[4 * g], a[4 * g + 2]);
            b[4 * g + 2] = _mm512_unpacklo_epi64(a[4 * g + 1], a[4 * g + 3]);
            b[4 * g + 3] = _mm512_unpackhi_epi64(a[4 * g + 1], a[4 * g + 3]);
        }
        let mut out = b;
        for c in 0..4 {
            let low01 = _mm512_shuffle_i32x4::<0b10_00_10_00>(b[c], b[4 + c]);
            let high01 = _mm512_shuffle_i32x4::<0b11_01_11_01>(b[c], b[4 + c]);
            let low23 = _mm512_shuffle_i32x4::<0b10_00_10_00>(b[8 + c], b[12 + c]);
            let high23 = _mm512_shuffle_i32x4::<0b11_01_11_01>(b[8 + c], b[12 + c]);
            out[c] = _mm512_shuffle_i32x4::<0b10_00_10_00>(low01, low23);
            out[4 + c] = _mm512_shuffle_i32x4::<0b10_00_10_00>(high01, high23);
            out[8 + c] = _mm512_shuffle_i32x4::<0b11_01_11_01>(low01, low23);
            out[12 + c] = _mm512_shuffle_i32x4::<0b11_01_11_01>(high01, high23);
        }
        out
    }
}

/// 16 registers, `stride` bytes apart.
///
/// # Safety
/// AVX-512 is available; the bytes are readable and aligned to 64.
#[inline(always)]
pub(super) unsafe fn load_rows(first: *const u8, stride: usize) -> [__m512i; 16] {
    // SAFETY: by the caller, AVX-512 is available; the bytes are readable and aligned to 64.
    unsafe {
        let mut rows = [_mm512_setzero_si512(); 16];
        for r in 0..16 {
            rows[r] = _mm512_load_si512(first.add(r * stride).cast());
        }
        rows
    }
}
