//! Q5_K: `w = d s c - dmin m`, blocks of 256 columns in 176 bytes (5.5 bits a weight), `s` and `m` for each 32 columns.
//!
//! Layout (ggml): `d` and `dmin` f16; 12 bytes of 6-bit scales and minima ([`super::k_scales`]); 32 bytes of fifth bits,
//! bit `g` of byte `i` belonging to column `32 g + i`; 128 bytes of nibbles: of each 32 bytes the low nibbles are 32
//! columns and the high nibbles the next 32.
//!
//! Loops, order of accumulation and bytes moved: `gemv_*`, `gemm_*` and `portable`. Measured on one thread of an
//! AMD EPYC (Zen 5), 2026-11-21, 2048 columns: AVX-512 GEMV 36 GB/s from the second cache and 14 from memory, GEMM
//! of 128 rows 668 Gop/s; AVX2 22, 21 and 286.

use super::k_scales;
use super::portable::Format;
use formats::BlockType;

/// The type.
pub(super) struct Q5K;

impl Format for Q5K {
    const NAME: &'static str = "linear_q5_k";
    const BLOCK: BlockType = BlockType::Q5_K;
    const GROUP: usize = 32;
    const HAS_OFFSET: bool = true;
    const ZERO: u8 = 0;
    const MAX_CODE: u8 = 31;

    #[inline(always)]
    fn scales(block: &[u8], scale: &mut [f32], offset: &mut [f32]) {
        k_scales::decode(block, scale, offset);
    }

    #[inline(always)]
    fn codes(block: &[u8], codes: &mut [i8]) {
        let high = &block[16..48];
        for j in 0..4 {
            let (codes, bytes) = (&mut codes[64 * j..64 * (j + 1)], &block[48 + 32 * j..80 + 32 * j]);
            for i in 0..32 {
                codes[i] = ((bytes[i] & 15) | ((high[i] >> (2 * j)) & 1) << 4) as i8;
                codes[32 + i] = ((bytes[i] >> 4) | ((high[i] >> (2 * j + 1)) & 1) << 4) as i8;
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::super::avx2::{Avx2Format, bits};
    use std::arch::x86_64::{__m256i, _mm256_or_si256, _mm256_slli_epi16};

    impl Avx2Format for super::Q5K {
        #[inline(always)]
        unsafe fn codes32(block: *const u8, i: usize) -> __m256i {
            // SAFETY: the caller's promise.
            unsafe {
                let low = bits(block.add(48 + 32 * (i / 2)), 4 * (i % 2), 15);
                _mm256_or_si256(low, _mm256_slli_epi16::<4>(bits(block.add(16), i, 1)))
            }
        }

        #[inline(always)]
        unsafe fn scales_avx2(block: *const u8, scale: &mut [f32; 16], offset: &mut [f32; 16]) {
            // SAFETY: the caller's promise.
            unsafe { super::k_scales::avx2::decode(block, scale, offset) }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use super::super::avx512::*;
    use super::k_scales;
    use std::arch::x86_64::*;

    const SHIFTS: [u16; 32] = halves(0, 4);

    /// The fifth bits of 64 columns: bit `2z` for the first 32, `2z + 1` for the others.
    const HIGH: [[u16; 32]; 4] =
        [halves(0x0101, 0x0202), halves(0x0404, 0x0808), halves(0x1010, 0x2020), halves(0x4040, 0x8080)];

    impl SuperFormat for super::Q5K {
        #[inline(always)]
        unsafe fn block(p: *const u8) -> Super {
            // SAFETY: the caller's promise.
            unsafe {
                let scale = k_scales::avx512::decode(p);
                let high = _mm512_broadcast_i64x4(_mm256_loadu_si256(p.add(16).cast()));
                let mut codes = [_mm512_setzero_si512(); 4];
                for (z, codes) in codes.iter_mut().enumerate() {
                    let bytes = _mm512_broadcast_i64x4(_mm256_loadu_si256(p.add(48 + 32 * z).cast()));
                    let low =
                        _mm512_and_si512(_mm512_srlv_epi16(bytes, load512(&SHIFTS)), _mm512_set1_epi8(15));
                    let set = _mm512_test_epi8_mask(high, load512(&HIGH[z]));
                    *codes = _mm512_mask_add_epi8(low, set, low, _mm512_set1_epi8(16));
                }
                Super { codes, scale, offset: scale }
            }
        }
    }
}
