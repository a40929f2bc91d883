//! IQ4_XS: `w = d (s - 32) v[c]`, blocks of 256 columns in 136 bytes (4.25 bits a weight), `s` for each 32 columns, `v`
//! the table of IQ4_NL.
//!
//! Layout (ggml): `d` f16; 16 bits, the upper 2 bits of scale `g` at `2g`; 4 bytes, nibble `g` the lower 4; 128 bytes of
//! nibbles: of each 16 bytes the low nibbles are 16 columns and the high nibbles the next 16.
//!
//! Loops, order of accumulation and bytes moved: `gemv_*`, `gemm_*` and `portable`. Measured on one thread of an
//! AMD EPYC (Zen 5), 2026-11-21, 2048 columns: AVX-512 GEMV 34 GB/s from the second cache and 30 from memory, GEMM
//! of 128 rows 688 Gop/s; AVX2 13, 11 and 189.

use super::iq4_nl::{VALUES, ZERO};
use super::portable::{Format, f16_at};
use formats::BlockType;

/// The type.
pub(super) struct Iq4Xs;

impl Format for Iq4Xs {
    const NAME: &'static str = "linear_iq4_xs";
    const BLOCK: BlockType = BlockType::IQ4_XS;
    const GROUP: usize = 32;
    const HAS_OFFSET: bool = false;
    const ZERO: u8 = ZERO;
    const MAX_CODE: u8 = 240;

    #[inline(always)]
    fn scales(block: &[u8], scale: &mut [f32], _offset: &mut [f32]) {
        let d = f16_at(block, 0);
        let upper = u32::from(u16::from_le_bytes([block[2], block[3]]));
        for g in 0..8 {
            let lower = u32::from(block[4 + g / 2] >> (4 * (g % 2)) & 15);
            let s = (lower | (upper >> (2 * g) & 3) << 4) as i32 - 32;
            scale[g] = d * s as f32;
        }
    }

    #[inline(always)]
    fn codes(block: &[u8], codes: &mut [i8]) {
        for g in 0..8 {
            let bytes = &block[8 + 16 * g..24 + 16 * g];
            let codes = &mut codes[32 * g..32 * (g + 1)];
            for i in 0..16 {
                codes[i] = VALUES[usize::from(bytes[i] & 15)];
                codes[16 + i] = VALUES[usize::from(bytes[i] >> 4)];
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::super::avx2::{Avx2Format, look_up, nibbles};
    use super::VALUES;
    use std::arch::x86_64::__m256i;

    impl Avx2Format for super::Iq4Xs {
        #[inline(always)]
        unsafe fn codes32(block: *const u8, i: usize) -> __m256i {
            // SAFETY: the caller's promise.
            unsafe { look_up(&VALUES, nibbles(block.add(8 + 16 * i))) }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use super::super::avx512::*;
    use super::super::iq4_nl::avx512::look_up;
    use std::arch::x86_64::*;

    /// For `vpermq`: each 16 bytes twice.
    const TWICE: [u64; 8] = [0, 1, 0, 1, 2, 3, 2, 3];
    const LOWER: [u32; 8] = [0, 4, 8, 12, 16, 20, 24, 28];
    const UPPER: [u32; 8] = [0, 2, 4, 6, 8, 10, 12, 14];

    impl SuperFormat for super::Iq4Xs {
        #[inline(always)]
        unsafe fn block(p: *const u8) -> Super {
            // SAFETY: the caller's promise.
            unsafe {
                let mut codes = [_mm512_setzero_si512(); 4];
                for (z, codes) in codes.iter_mut().enumerate() {
                    let bytes = _mm512_castsi256_si512(_mm256_loadu_si256(p.add(8 + 32 * z).cast()));
                    let spread = _mm512_permutexvar_epi64(load512(&TWICE), bytes);
                    *codes = look_up(_mm512_and_si512(
                        _mm512_srlv_epi16(spread, load512(&NIBBLE_SHIFTS)),
                        _mm512_set1_epi8(15),
                    ));
                }
                let lower = _mm256_set1_epi32(p.add(4).cast::<i32>().read_unaligned());
                let lower =
                    _mm256_and_si256(_mm256_srlv_epi32(lower, load256(&LOWER)), _mm256_set1_epi32(15));
                let upper = _mm256_set1_epi32(i32::from(p.add(2).cast::<u16>().read_unaligned()));
                let upper = _mm256_and_si256(_mm256_srlv_epi32(upper, load256(&UPPER)), _mm256_set1_epi32(3));
                let s = _mm256_or_si256(lower, _mm256_slli_epi32::<4>(upper));
                let s = _mm256_cvtepi32_ps(_mm256_sub_epi32(s, _mm256_set1_epi32(32)));
                let d = _mm256_cvtph_ps(_mm_set1_epi16(p.cast::<i16>().read_unaligned()));
                let scale = _mm512_zextps256_ps512(_mm256_mul_ps(s, d));
                Super { codes, scale, offset: scale }
            }
        }
    }
}
