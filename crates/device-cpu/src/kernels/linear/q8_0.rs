//! Q8_0: `w = d c`, blocks of 32 columns in 34 bytes (8.5 bits a weight).
//!
//! Layout (ggml): `d` f16; 32 signed bytes. AVX-512 adds 128 to make them unsigned, by turning the sign bit.
//!
//! Loops, order of accumulation and bytes moved: `gemv_*`, `gemm_*` and `portable`. Measured on one thread of an
//! AMD EPYC (Zen 5), 2026-11-21, 2048 columns: AVX-512 GEMV 78 GB/s from the second cache and 28 from memory, GEMM
//! of 128 rows 701 Gop/s; AVX2 52, 36 and 192.

use super::portable::{Format, f16_at};
use formats::BlockType;

/// The type.
pub(super) struct Q8_0;

impl Format for Q8_0 {
    const NAME: &'static str = "linear_q8_0";
    const BLOCK: BlockType = BlockType::Q8_0;
    const GROUP: usize = 32;
    const HAS_OFFSET: bool = false;
    const ZERO: u8 = 128;
    const MAX_CODE: u8 = 255;

    #[inline(always)]
    fn scales(block: &[u8], scale: &mut [f32], _offset: &mut [f32]) {
        scale[0] = f16_at(block, 0);
    }

    #[inline(always)]
    fn codes(block: &[u8], codes: &mut [i8]) {
        for i in 0..32 {
            codes[i] = block[2 + i] as i8;
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::super::GemmTile;
    use super::super::avx2::{Avx2Format, f16_scales};
    use super::super::gemv_avx2::few_rows;
    use std::arch::x86_64::{__m256i, _mm256_loadu_si256};

    impl Avx2Format for super::Q8_0 {
        const FEW_ROWS: Option<GemmTile> = Some(few_rows::<Self>);

        #[inline(always)]
        unsafe fn codes32(block: *const u8, _i: usize) -> __m256i {
            // SAFETY: the caller's promise.
            unsafe { _mm256_loadu_si256(block.add(2).cast()) }
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
    use std::arch::x86_64::*;

    impl PairFormat for super::Q8_0 {
        #[inline(always)]
        unsafe fn pair<const HALF: bool>(p: *const u8) -> Pair {
            // SAFETY: the caller's promise.
            unsafe {
                let first = _mm256_loadu_si256(p.add(2).cast());
                let second = if HALF { _mm256_setzero_si256() } else { _mm256_loadu_si256(p.add(36).cast()) };
                let signed = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(first), second);
                let scale = two_scales::<HALF>(p, 34);
                Pair { codes: _mm512_xor_si512(signed, _mm512_set1_epi8(-128)), scale, offset: scale }
            }
        }
    }
}
