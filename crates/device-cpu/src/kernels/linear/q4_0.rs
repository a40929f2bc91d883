//! Q4_0: `w = d (c - 8)`, blocks of 32 columns in 18 bytes (4.5 bits a weight).
//!
//! Layout (ggml): `d` f16; 16 bytes, whose low nibbles are columns 0..16 and high nibbles 16..32.
//!
//! Loops, order of accumulation and bytes moved: `gemv_*`, `gemm_*` and `portable`. Measured on one thread of an
//! AMD EPYC (Zen 5), 2026-11-21, 2048 columns: AVX-512 GEMV 44 GB/s from the second cache and 24 from memory, GEMM
//! of 128 rows 686 Gop/s; AVX2 21, 19 and 295.

use super::portable::{Format, f16_at};
use formats::BlockType;

/// The type.
pub(super) struct Q4_0;

impl Format for Q4_0 {
    const NAME: &'static str = "linear_q4_0";
    const BLOCK: BlockType = BlockType::Q4_0;
    const GROUP: usize = 32;
    const HAS_OFFSET: bool = false;
    const ZERO: u8 = 8;
    const MAX_CODE: u8 = 15;

    #[inline(always)]
    fn scales(block: &[u8], scale: &mut [f32], _offset: &mut [f32]) {
        scale[0] = f16_at(block, 0);
    }

    #[inline(always)]
    fn codes(block: &[u8], codes: &mut [i8]) {
        for i in 0..16 {
            codes[i] = (block[2 + i] & 15) as i8 - 8;
            codes[16 + i] = (block[2 + i] >> 4) as i8 - 8;
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::super::avx2::{Avx2Format, f16_scales, nibbles};
    use std::arch::x86_64::__m256i;

    impl Avx2Format for super::Q4_0 {
        #[inline(always)]
        unsafe fn codes32(block: *const u8, _i: usize) -> __m256i {
            // SAFETY: the caller's promise.
            unsafe { nibbles(block.add(2)) }
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

    const NIBBLES: [u16; 32] = nibble_words(1, 9);
    const SCALES: [u16; 16] = scale_words(0, 9);

    static QUAD: QuadWords = QuadWords::new(9, 1);

    impl PairFormat for super::Q4_0 {
        #[inline(always)]
        unsafe fn pair<const HALF: bool>(p: *const u8) -> Pair {
            // SAFETY: the caller's promise.
            unsafe {
                let bytes = load_pair::<9, HALF>(p);
                let scale = scales(bytes, &SCALES);
                Pair { codes: nibbles(bytes, &NIBBLES), scale, offset: scale }
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
