//! Q2_K: `w = d s c - dmin m`, blocks of 256 columns in 84 bytes (2.625 bits a weight), `s` and `m` for each 16 columns.
//!
//! Layout (ggml): 16 bytes, low nibble `s`, high nibble `m`; 64 bytes of codes; `d` and `dmin` f16. Columns come in two
//! halves of 128 with 32 bytes each: bits `2j, 2j + 1` of byte `i` are column `32 j + i`.
//!
//! Loops, order of accumulation and bytes moved: `gemv_*`, `gemm_*` and `portable`. Measured on one thread of an
//! AMD EPYC (Zen 5), 2026-11-21, 2048 columns: AVX-512 GEMV 26 GB/s from the second cache and 12 from memory, GEMM
//! of 128 rows 576 Gop/s; AVX2 8, 7 and 246.

use super::portable::{Format, f16_at};
use formats::BlockType;

/// The type.
pub(super) struct Q2K;

impl Format for Q2K {
    const NAME: &'static str = "linear_q2_k";
    const BLOCK: BlockType = BlockType::Q2_K;
    const GROUP: usize = 16;
    const HAS_OFFSET: bool = true;
    const ZERO: u8 = 0;
    const MAX_CODE: u8 = 3;

    #[inline(always)]
    fn scales(block: &[u8], scale: &mut [f32], offset: &mut [f32]) {
        let (d, dmin) = (f16_at(block, 80), f16_at(block, 82));
        for g in 0..16 {
            scale[g] = d * f32::from(block[g] & 15);
            offset[g] = -(dmin * f32::from(block[g] >> 4));
        }
    }

    #[inline(always)]
    fn codes(block: &[u8], codes: &mut [i8]) {
        for half in 0..2 {
            let bytes = &block[16 + 32 * half..48 + 32 * half];
            for j in 0..4 {
                let codes = &mut codes[128 * half + 32 * j..128 * half + 32 * (j + 1)];
                for i in 0..32 {
                    codes[i] = (bytes[i] >> (2 * j) & 3) as i8;
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::super::avx2::{Avx2Format, bits};
    use std::arch::x86_64::__m256i;

    impl Avx2Format for super::Q2K {
        #[inline(always)]
        unsafe fn codes32(block: *const u8, i: usize) -> __m256i {
            // SAFETY: the caller's promise.
            unsafe { bits(block.add(16 + 32 * (i / 4)), 2 * (i % 4), 3) }
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod avx512 {
    use super::super::avx512::*;
    use std::arch::x86_64::*;

    const SHIFTS: [[u16; 32]; 2] = [halves(0, 2), halves(4, 6)];

    /// The 2-bit codes of Q2_K and Q3_K, from their 64 bytes.
    ///
    /// # Safety
    /// AVX-512 is available; 64 bytes are readable at `p`.
    #[inline(always)]
    pub(in super::super) unsafe fn two_bits(p: *const u8) -> [__m512i; 4] {
        // SAFETY: the caller's promise.
        unsafe {
            let mut codes = [_mm512_setzero_si512(); 4];
            for (z, codes) in codes.iter_mut().enumerate() {
                let bytes = _mm512_broadcast_i64x4(_mm256_loadu_si256(p.add(32 * (z / 2)).cast()));
                *codes =
                    _mm512_and_si512(_mm512_srlv_epi16(bytes, load512(&SHIFTS[z % 2])), _mm512_set1_epi8(3));
            }
            codes
        }
    }

    impl SuperFormat for super::Q2K {
        #[inline(always)]
        unsafe fn block(p: *const u8) -> Super {
            // SAFETY: the caller's promise.
            unsafe {
                let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()));
                let s = _mm512_cvtepi32_ps(_mm512_and_si512(bytes, _mm512_set1_epi32(15)));
                let m = _mm512_cvtepi32_ps(_mm512_srli_epi32::<4>(bytes));
                let factor =
                    |at: usize| _mm512_cvtph_ps(_mm256_set1_epi16(p.add(at).cast::<i16>().read_unaligned()));
                let offset = _mm512_sub_ps(_mm512_setzero_ps(), _mm512_mul_ps(m, factor(82)));
                Super { codes: two_bits(p.add(16)), scale: _mm512_mul_ps(s, factor(80)), offset }
            }
        }
    }
}
