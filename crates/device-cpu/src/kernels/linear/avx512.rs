//! Functions that AVX-512 kernels share.

use std::arch::x86_64::*;

/// Loads a constant into a register.
///
/// # Safety
/// AVX-512 is available.
#[inline(always)]
pub(super) unsafe fn load512<T, const N: usize>(values: &'static [T; N]) -> __m512i {
    const { assert!(size_of::<T>() * N == 64) };
    // SAFETY: `values` has 64 bytes, by the assertion; the caller guarantees AVX-512.
    unsafe { _mm512_loadu_si512(values.as_ptr().cast()) }
}

/// Sum of the lanes in a fixed order: 8 apart, 4 apart, 2 apart, neighbours.
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

/// Index for `vpermps`: for register `z` of 64 columns and each lane, the group of the lane's four
/// columns.
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

/// Transposes 16 rows of 16 dwords.
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
        // In each 128-bit lane `L`, `b[4g + c]` has column `4L + c` of rows `4g..4g + 4`.
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

/// Loads 16 registers, `stride` bytes apart.
///
/// # Safety
/// AVX-512 is available; 64 bytes of each row are readable and aligned to 64.
#[inline(always)]
pub(super) unsafe fn load_rows(first: *const u8, stride: usize) -> [__m512i; 16] {
    // SAFETY: the caller guarantees AVX-512 and 16 rows of 64 aligned bytes, `stride` apart.
    unsafe {
        let mut rows = [_mm512_setzero_si512(); 16];
        for r in 0..16 {
            rows[r] = _mm512_load_si512(first.add(r * stride).cast());
        }
        rows
    }
}

/// A mask of the first `n` of 32 lanes.
#[inline(always)]
pub(super) fn first(n: usize) -> u32 {
    if n >= 32 { u32::MAX } else { (1 << n) - 1 }
}

/// Rounds a row to BF16, to nearest even, with zeros up to a multiple of 32.
///
/// # Safety
/// AVX-512 with BF16 is available; `x` is readable for `n` numbers; `out` has room for them,
/// rounded up to 32, and is aligned to 64.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,avx2,fma,f16c")]
pub(super) unsafe fn round_row_bf16(x: *const f32, n: usize, out: *mut u8) {
    // SAFETY: the caller guarantees `n` numbers at `x`, room at `out`, and the instruction set;
    // numbers outside the masks are not read.
    unsafe {
        for c in (0..n).step_by(32) {
            let (mask, x) = (first(n - c), x.add(c));
            let low = _mm512_maskz_loadu_ps(mask as u16, x);
            let high = _mm512_maskz_loadu_ps((mask >> 16) as u16, x.wrapping_add(16));
            let rounded: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(high, low));
            _mm512_store_si512(out.add(c * 2).cast(), rounded);
        }
    }
}
