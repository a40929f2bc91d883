//! Q3_K: `w = d (s - 32) (c - 4)`, blocks of 256 columns in 110 bytes (3.4375 bits a weight), `s` for each 16 columns.
//!
//! Layout (ggml): 32 bytes of third bits, bit `g` of byte `i` belonging to column `32 g + i`; 64 bytes of lower two bits
//! as in Q2_K; 12 bytes of 6-bit scales; `d` f16. Scale `g` has its low 4 bits in byte `g % 8` (low nibble for
//! `g < 8`, else high) and its upper 2 in bits `2 (g / 4)` of byte `8 + g % 4`.
//!
//! Loops, order of accumulation and bytes moved: `gemv_*`, `gemm_*` and `portable`. Measured on one thread of an
//! AMD EPYC (Zen 5), 2026-11-21, 2048 columns: AVX-512 GEMV 24 GB/s from the second cache and 10 from memory, GEMM
//! of 128 rows 570 Gop/s; AVX2 9, 9 and 248.

use super::k_scales::words;
use super::portable::{Format, f16_at};
use formats::BlockType;

/// The 16 scales, plus 32, as bytes of four words.
#[inline(always)]
fn unpack([a, b, upper]: [u32; 3]) -> [u32; 4] {
    let upper = |g: u32| ((upper >> (2 * g)) & 0x0303_0303) << 4;
    [
        (a & 0x0f0f_0f0f) | upper(0),
        (b & 0x0f0f_0f0f) | upper(1),
        ((a >> 4) & 0x0f0f_0f0f) | upper(2),
        ((b >> 4) & 0x0f0f_0f0f) | upper(3),
    ]
}

/// The type.
pub(super) struct Q3K;

impl Format for Q3K {
    const NAME: &'static str = "linear_q3_k";
    const BLOCK: BlockType = BlockType::Q3_K;
    const GROUP: usize = 16;
    const HAS_OFFSET: bool = false;
    const ZERO: u8 = 4;
    const MAX_CODE: u8 = 7;

    #[inline(always)]
    fn scales(block: &[u8], scale: &mut [f32], _offset: &mut [f32]) {
        let d = f16_at(block, 108);
        let unpacked = unpack(words(&block[96..108]));
        for g in 0..16 {
            let s = (unpacked[g / 4] >> (8 * (g % 4)) & 0xff) as i32 - 32;
            scale[g] = d * s as f32;
        }
    }

    #[inline(always)]
    fn codes(block: &[u8], codes: &mut [i8]) {
        let high = &block[..32];
        for g in 0..8 {
            let bytes = &block[32 + 32 * (g / 4)..64 + 32 * (g / 4)];
            let codes = &mut codes[32 * g..32 * (g + 1)];
            for i in 0..32 {
                codes[i] = ((bytes[i] >> (2 * (g % 4)) & 3) | (high[i] >> g & 1) << 2) as i8 - 4;
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::super::avx2::{Avx2Format, bits};
    use std::arch::x86_64::{__m256i, _mm256_or_si256, _mm256_slli_epi16};

    impl Avx2Format for super::Q3K {
        #[inline(always)]
        unsafe fn codes32(block: *const u8, i: usize) -> __m256i {
            // SAFETY: the caller's promise.
            unsafe {
                let low = bits(block.add(32 + 32 * (i / 4)), 2 * (i % 4), 3);
                _mm256_or_si256(low, _mm256_slli_epi16::<2>(bits(block, i, 1)))
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use super::super::avx512::*;
    use super::super::q2_k::avx512::two_bits;
    use std::arch::x86_64::*;

    /// The third bits of 64 columns.
    const HIGH: [[u16; 32]; 4] =
        [halves(0x0101, 0x0202), halves(0x0404, 0x0808), halves(0x1010, 0x2020), halves(0x4040, 0x8080)];

    impl SuperFormat for super::Q3K {
        #[inline(always)]
        unsafe fn block(p: *const u8) -> Super {
            // SAFETY: the caller's promise.
            unsafe {
                let high = _mm512_broadcast_i64x4(_mm256_loadu_si256(p.cast()));
                let low = two_bits(p.add(32));
                let mut codes = [_mm512_setzero_si512(); 4];
                for (z, codes) in codes.iter_mut().enumerate() {
                    let set = _mm512_test_epi8_mask(high, load512(&HIGH[z]));
                    *codes = _mm512_mask_add_epi8(low[z], set, low[z], _mm512_set1_epi8(4));
                }
                let word = |i: usize| p.add(96 + 4 * i).cast::<u32>().read_unaligned();
                let [s0, s1, s2, s3] = super::unpack([word(0), word(1), word(2)]);
                let bytes = _mm_set_epi32(s3 as i32, s2 as i32, s1 as i32, s0 as i32);
                let s = _mm512_cvtepi8_epi32(_mm_sub_epi8(bytes, _mm_set1_epi8(32)));
                let d = _mm512_cvtph_ps(_mm256_set1_epi16(p.add(108).cast::<i16>().read_unaligned()));
                let scale = _mm512_mul_ps(_mm512_cvtepi32_ps(s), d);
                Super { codes, scale, offset: scale }
            }
        }
    }
}
