//! MXFP4: `w = 2^(e - 127) v[c]`, blocks of 32 columns in 17 bytes (4.25 bits a weight), `v` the values of FP4 E2M1.
//!
//! Layout (ggml; format by the OCP Microscaling specification 1.0): the exponent `e`, 8 bits; 16 bytes, whose low
//! nibbles are columns 0..16 and high nibbles 16..32. Codes are twice the values of E2M1, 0 to 12 and their
//! negatives, and the scale is half as large, so that codes are integers.
//!
//! Loops, order of accumulation and bytes moved: `gemv_*`, `gemm_*` and `portable`. Measured on one thread of an
//! AMD EPYC (Zen 5), 2026-11-21, 2048 columns: AVX-512 GEMV 24 GB/s from the second cache and 20 from memory, GEMM
//! of 128 rows 685 Gop/s; AVX2 18, 16 and 284.

use super::portable::Format;
use formats::BlockType;

/// Twice the values of E2M1.
const VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// What makes the codes unsigned.
const ZERO: u8 = 12;

/// `2^(e - 128)`; the two smallest are subnormal.
#[inline(always)]
fn half_scale(e: u8) -> f32 {
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (u32::from(e) - 1) << 23 })
}

/// The type.
pub(super) struct Mxfp4;

impl Format for Mxfp4 {
    const NAME: &'static str = "linear_mxfp4";
    const BLOCK: BlockType = BlockType::MXFP4;
    const GROUP: usize = 32;
    const HAS_OFFSET: bool = false;
    const ZERO: u8 = ZERO;
    const MAX_CODE: u8 = 24;

    #[inline(always)]
    fn scales(block: &[u8], scale: &mut [f32], _offset: &mut [f32]) {
        scale[0] = half_scale(block[0]);
    }

    #[inline(always)]
    fn codes(block: &[u8], codes: &mut [i8]) {
        for i in 0..16 {
            codes[i] = VALUES[usize::from(block[1 + i] & 15)];
            codes[16 + i] = VALUES[usize::from(block[1 + i] >> 4)];
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::super::avx2::{Avx2Format, look_up, nibbles};
    use std::arch::x86_64::{__m256i, _mm256_add_epi8, _mm256_set1_epi8};

    impl Avx2Format for super::Mxfp4 {
        #[inline(always)]
        unsafe fn codes32(block: *const u8, _i: usize) -> __m256i {
            // SAFETY: the caller's promise.
            unsafe {
                let signed = look_up(&super::VALUES, nibbles(block.add(1)));
                _mm256_add_epi8(signed, _mm256_set1_epi8(super::ZERO as i8))
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use super::super::avx512::*;
    use super::super::iq4_nl::avx512::table;
    use std::arch::x86_64::*;

    const TABLE: [u8; 64] = table(&super::VALUES, super::ZERO);
    /// For `vpermq`: each 16 bytes twice.
    const TWICE: [u64; 8] = [0, 1, 0, 1, 2, 3, 2, 3];

    /// [`super::half_scale`] of 16 exponents.
    ///
    /// # Safety
    /// AVX-512 is available.
    #[inline(always)]
    unsafe fn half_scales(e: __m512i) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe {
            let normal = _mm512_slli_epi32::<23>(_mm512_sub_epi32(e, _mm512_set1_epi32(1)));
            let subnormal = _mm512_sllv_epi32(_mm512_set1_epi32(0x0020_0000), e);
            let small = _mm512_cmplt_epu32_mask(e, _mm512_set1_epi32(2));
            _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, small, subnormal))
        }
    }

    impl PairFormat for super::Mxfp4 {
        #[inline(always)]
        unsafe fn pair<const HALF: bool>(p: *const u8) -> Pair {
            // SAFETY: the caller's promise.
            unsafe {
                let first = _mm_loadu_si128(p.add(1).cast());
                let second = if HALF { _mm_setzero_si128() } else { _mm_loadu_si128(p.add(18).cast()) };
                let bytes = _mm512_castsi256_si512(_mm256_set_m128i(second, first));
                let spread = _mm512_permutexvar_epi64(load512(&TWICE), bytes);
                let nibbles = _mm512_and_si512(
                    _mm512_srlv_epi16(spread, load512(&NIBBLE_SHIFTS)),
                    _mm512_set1_epi8(15),
                );
                let exponent = |p: *const u8| _mm256_set1_epi32(i32::from(*p));
                let high = if HALF { _mm256_setzero_si256() } else { exponent(p.add(17)) };
                let scale = half_scales(_mm512_inserti64x4::<1>(_mm512_castsi256_si512(exponent(p)), high));
                Pair { codes: _mm512_shuffle_epi8(load512(&TABLE), nibbles), scale, offset: scale }
            }
        }

        #[inline(always)]
        unsafe fn column(rows: &[*const u8; 16], at: usize) -> (__m512, __m512) {
            // SAFETY: the caller's promise.
            unsafe {
                let e = |r: usize| *rows[r].add(at) as i8;
                let exponents = _mm_setr_epi8(
                    e(0),
                    e(1),
                    e(2),
                    e(3),
                    e(4),
                    e(5),
                    e(6),
                    e(7),
                    e(8),
                    e(9),
                    e(10),
                    e(11),
                    e(12),
                    e(13),
                    e(14),
                    e(15),
                );
                let scale = half_scales(_mm512_cvtepu8_epi32(exponents));
                (scale, _mm512_mul_ps(scale, _mm512_set1_ps(-f32::from(super::ZERO))))
            }
        }
    }
}
