//! Q5_0: `w = d (c - 16)`, blocks of 32 columns in 22 bytes (5.5 bits a weight).
//!
//! Layout (ggml): `d` f16; 32 bits, bit `i` the fifth bit of column `i`; 16 bytes of nibbles, low ones columns 0..16,
//! high ones 16..32.
//!
//! Loops, order of accumulation and bytes moved: `gemv_*`, `gemm_*` and `portable`. Measured on one thread of an
//! AMD EPYC (Zen 5), 2026-11-21, 2048 columns: AVX-512 GEMV 38 GB/s from the second cache and 26 from memory, GEMM
//! of 128 rows 683 Gop/s; AVX2 18, 16 and 284.

use super::portable::{Format, f16_at};
use formats::BlockType;

/// The type.
pub(super) struct Q5_0;

impl Format for Q5_0 {
    const NAME: &'static str = "linear_q5_0";
    const BLOCK: BlockType = BlockType::Q5_0;
    const GROUP: usize = 32;
    const HAS_OFFSET: bool = false;
    const ZERO: u8 = 16;
    const MAX_CODE: u8 = 31;

    #[inline(always)]
    fn scales(block: &[u8], scale: &mut [f32], _offset: &mut [f32]) {
        scale[0] = f16_at(block, 0);
    }

    #[inline(always)]
    fn codes(block: &[u8], codes: &mut [i8]) {
        let high = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
        for i in 0..16 {
            codes[i] = ((block[6 + i] & 15) | ((high >> i) as u8 & 1) << 4) as i8 - 16;
            codes[16 + i] = ((block[6 + i] >> 4) | ((high >> (16 + i)) as u8 & 1) << 4) as i8 - 16;
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::super::avx2::{Avx2Format, f16_scales, fifth_bits, nibbles};
    use std::arch::x86_64::{__m256i, _mm256_or_si256};

    impl Avx2Format for super::Q5_0 {
        #[inline(always)]
        unsafe fn codes32(block: *const u8, _i: usize) -> __m256i {
            // SAFETY: the caller's promise.
            unsafe { _mm256_or_si256(nibbles(block.add(6)), fifth_bits(block.add(2))) }
        }

        #[inline(always)]
        unsafe fn scales_avx2(block: *const u8, scale: &mut [f32; 16], offset: &mut [f32; 16]) {
            // SAFETY: the caller's promise.
            unsafe { f16_scales::<Self>(block, scale, offset) }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use super::super::avx512::*;
    use std::arch::x86_64::{_mm512_mask_add_epi8, _mm512_set1_epi8};

    const NIBBLES: [u16; 32] = nibble_words(3, 11);
    const SCALES: [u16; 16] = scale_words(0, 11);

    static QUAD: QuadWords = QuadWords::new(11, 3);

    impl PairFormat for super::Q5_0 {
        #[inline(always)]
        unsafe fn pair<const HALF: bool>(p: *const u8) -> Pair {
            // SAFETY: the caller's promise.
            unsafe {
                let bytes = load_pair::<11, HALF>(p);
                let low = nibbles(bytes, &NIBBLES);
                let high = high_bits::<HALF>(p.add(2), 22);
                let scale = scales(bytes, &SCALES);
                Pair {
                    codes: _mm512_mask_add_epi8(low, high, low, _mm512_set1_epi8(16)),
                    scale,
                    offset: scale,
                }
            }
        }

        const HAS_QUAD: bool = true;

        #[inline(always)]
        unsafe fn quad(p: *const u8) -> Quad {
            // SAFETY: the caller's promise.
            unsafe {
                let quad = QUAD.load(p);
                let [a, b] = quad.codes;
                let sixteen = _mm512_set1_epi8(16);
                let codes = [
                    _mm512_mask_add_epi8(a, high_bits::<false>(p.add(2), 22), a, sixteen),
                    _mm512_mask_add_epi8(b, high_bits::<false>(p.add(46), 22), b, sixteen),
                ];
                Quad { codes, ..quad }
            }
        }
    }
}
