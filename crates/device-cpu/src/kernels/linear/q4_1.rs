//! Q4_1: `w = d c + m`, blocks of 32 columns in 20 bytes (5 bits a weight).
//!
//! Layout (ggml): `d` and `m` f16; 16 bytes, whose low nibbles are columns 0..16 and high nibbles 16..32.
//!
//! Loops, order of accumulation and bytes moved: `gemv_*`, `gemm_*` and `portable`. Measured on one thread of an
//! AMD EPYC (Zen 5), 2026-11-21, 2048 columns: AVX-512 GEMV 47 GB/s from the second cache and 35 from memory, GEMM
//! of 128 rows 683 Gop/s; AVX2 21, 19 and 300.

use super::portable::{Format, f16_at};
use formats::BlockType;

/// The type.
pub(super) struct Q4_1;

impl Format for Q4_1 {
    const NAME: &'static str = "linear_q4_1";
    const BLOCK: BlockType = BlockType::Q4_1;
    const GROUP: usize = 32;
    const HAS_OFFSET: bool = true;
    const ZERO: u8 = 0;
    const MAX_CODE: u8 = 15;

    #[inline(always)]
    fn scales(block: &[u8], scale: &mut [f32], offset: &mut [f32]) {
        scale[0] = f16_at(block, 0);
        offset[0] = f16_at(block, 2);
    }

    #[inline(always)]
    fn codes(block: &[u8], codes: &mut [i8]) {
        for i in 0..16 {
            codes[i] = (block[4 + i] & 15) as i8;
            codes[16 + i] = (block[4 + i] >> 4) as i8;
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::super::avx2::{Avx2Format, f16_scales, nibbles};
    use std::arch::x86_64::__m256i;

    impl Avx2Format for super::Q4_1 {
        #[inline(always)]
        unsafe fn codes32(block: *const u8, _i: usize) -> __m256i {
            // SAFETY: the caller's promise.
            unsafe { nibbles(block.add(4)) }
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

    const NIBBLES: [u16; 32] = nibble_words(2, 10);
    const SCALES: [u16; 16] = scale_words(0, 10);
    const OFFSETS: [u16; 16] = scale_words(1, 10);

    static QUAD: QuadWords = QuadWords::new(10, 2);

    impl PairFormat for super::Q4_1 {
        #[inline(always)]
        unsafe fn pair<const HALF: bool>(p: *const u8) -> Pair {
            // SAFETY: the caller's promise.
            unsafe {
                let bytes = load_pair::<10, HALF>(p);
                Pair {
                    codes: nibbles(bytes, &NIBBLES),
                    scale: scales(bytes, &SCALES),
                    offset: scales(bytes, &OFFSETS),
                }
            }
        }

        const HAS_QUAD: bool = true;

        #[inline(always)]
        unsafe fn quad(p: *const u8) -> Quad {
            // SAFETY: the caller's promise.
            unsafe { QUAD.load(p) }
        }
    }
}
