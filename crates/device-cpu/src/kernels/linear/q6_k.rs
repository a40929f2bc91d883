//! Q6_K: `w = d s (c - 32)`, blocks of 256 columns in 210 bytes (6.5625 bits a weight), `s` for each 16 columns.
//!
//! Layout (ggml): 128 bytes of low nibbles, 64 bytes of upper 2 bits, 16 signed scales, `d` f16. Columns come in two
//! halves of 128, each with 64 nibble bytes `l` and 32 upper bytes `h`; in a half, columns 0..32 are the low nibbles of
//! `l[0..32]`, 32..64 those of `l[32..64]`, 64..96 and 96..128 the high nibbles of the same; bits `2j, 2j + 1` of `h[i]`
//! belong to column `32 j + i`.
//!
//! Loops, order of accumulation and bytes moved: `gemv_*`, `gemm_*` and `portable`. Measured on one thread of an
//! AMD EPYC (Zen 5), 2026-11-21, 2048 columns: AVX-512 GEMV 68 GB/s from the second cache and 38 from memory, GEMM
//! of 128 rows 561 Gop/s; AVX2 24, 22 and 207.

use super::portable::{Format, f16_at};
use formats::BlockType;

/// The type.
pub(super) struct Q6K;

impl Format for Q6K {
    const NAME: &'static str = "linear_q6_k";
    const BLOCK: BlockType = BlockType::Q6_K;
    const GROUP: usize = 16;
    const HAS_OFFSET: bool = false;
    const ZERO: u8 = 32;
    const MAX_CODE: u8 = 63;

    #[inline(always)]
    fn scales(block: &[u8], scale: &mut [f32], _offset: &mut [f32]) {
        let d = f16_at(block, 208);
        for (scale, &s) in scale.iter_mut().zip(&block[192..208]) {
            *scale = d * f32::from(s as i8);
        }
    }

    #[inline(always)]
    fn codes(block: &[u8], codes: &mut [i8]) {
        for half in 0..2 {
            let codes = &mut codes[128 * half..128 * (half + 1)];
            let low = &block[64 * half..64 * (half + 1)];
            let high = &block[128 + 32 * half..160 + 32 * half];
            for i in 0..32 {
                codes[i] = ((low[i] & 15) | (high[i] & 3) << 4) as i8 - 32;
                codes[32 + i] = ((low[32 + i] & 15) | (high[i] >> 2 & 3) << 4) as i8 - 32;
                codes[64 + i] = ((low[i] >> 4) | (high[i] >> 4 & 3) << 4) as i8 - 32;
                codes[96 + i] = ((low[32 + i] >> 4) | (high[i] >> 6) << 4) as i8 - 32;
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::super::avx2::{Avx2Format, bits};
    use std::arch::x86_64::{__m256i, _mm256_or_si256, _mm256_slli_epi16};

    impl Avx2Format for super::Q6K {
        #[inline(always)]
        unsafe fn codes32(block: *const u8, i: usize) -> __m256i {
            // SAFETY: the caller's promise.
            unsafe {
                let (half, j) = (i / 4, i % 4);
                let low = bits(block.add(64 * half + 32 * (j % 2)), 4 * (j / 2), 15);
                _mm256_or_si256(low, _mm256_slli_epi16::<4>(bits(block.add(128 + 32 * half), 2 * j, 3)))
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use super::super::avx512::*;
    use std::arch::x86_64::*;

    /// Shifts that bring the upper bits of 64 columns to bits 4 and 5: left for the first 64, right for the second.
    const LEFT: [u16; 32] = halves(4, 2);
    const RIGHT: [u16; 32] = halves(0, 2);

    impl SuperFormat for super::Q6K {
        #[inline(always)]
        unsafe fn block(p: *const u8) -> Super {
            // SAFETY: the caller's promise.
            unsafe {
                let nibble = _mm512_set1_epi8(15);
                let upper = _mm512_set1_epi8(0x30);
                let half = |half: usize| {
                    let low = _mm512_loadu_si512(p.add(64 * half).cast());
                    let high = _mm512_broadcast_i64x4(_mm256_loadu_si256(p.add(128 + 32 * half).cast()));
                    let left = _mm512_sllv_epi16(high, load512(&LEFT));
                    let right = _mm512_srlv_epi16(high, load512(&RIGHT));
                    // (a & b) | (c & d) with the masks complementary below bit 6: select by `nibble`, then cut.
                    let cut = _mm512_or_si512(nibble, upper);
                    let select =
                        |l, h| _mm512_and_si512(_mm512_ternarylogic_epi32::<0xca>(nibble, l, h), cut);
                    (select(low, left), select(_mm512_srli_epi16::<4>(low), right))
                };
                let ((a, b), (c, e)) = (half(0), half(1));
                let scale = _mm512_cvtepi8_epi32(_mm_loadu_si128(p.add(192).cast()));
                let d = _mm512_cvtph_ps(_mm256_set1_epi16(p.add(208).cast::<i16>().read_unaligned()));
                let scale = _mm512_mul_ps(_mm512_cvtepi32_ps(scale), d);
                Super { codes: [a, b, c, e], scale, offset: scale }
            }
        }
    }
}
