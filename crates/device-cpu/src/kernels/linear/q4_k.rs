//! Q4_K: `w = d s c - dmin m`, blocks of 256 columns in 144 bytes (4.5 bits a weight), `s` and `m` for each 32 columns.
//!
//! Layout (ggml): `d` and `dmin` f16; 12 bytes of 6-bit scales and minima ([`super::k_scales`]); 128 bytes of nibbles:
//! of each 32 bytes the low nibbles are 32 columns and the high nibbles the next 32.
//!
//! Loops, order of accumulation and bytes moved: `gemv_*`, `gemm_*` and `portable`. Measured on one thread of an
//! AMD EPYC (Zen 5), 2026-11-21, 2048 columns: AVX-512 GEMV 38 GB/s from the second cache and 33 from memory, GEMM
//! of 128 rows 680 Gop/s; AVX2 24, 23 and 299.

use super::k_scales;
use super::portable::Format;
use formats::BlockType;

/// The type.
pub(super) struct Q4K;

impl Format for Q4K {
    const NAME: &'static str = "linear_q4_k";
    const BLOCK: BlockType = BlockType::Q4_K;
    const GROUP: usize = 32;
    const HAS_OFFSET: bool = true;
    const ZERO: u8 = 0;
    const MAX_CODE: u8 = 15;

    #[inline(always)]
    fn scales(block: &[u8], scale: &mut [f32], offset: &mut [f32]) {
        k_scales::decode(block, scale, offset);
    }

    #[inline(always)]
    fn codes(block: &[u8], codes: &mut [i8]) {
        for (codes, bytes) in codes.chunks_exact_mut(64).zip(block[16..144].chunks_exact(32)) {
            for i in 0..32 {
                codes[i] = (bytes[i] & 15) as i8;
                codes[32 + i] = (bytes[i] >> 4) as i8;
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::super::avx2::{Avx2Format, bits};
    use std::arch::x86_64::__m256i;

    impl Avx2Format for super::Q4K {
        #[inline(always)]
        unsafe fn codes32(block: *const u8, i: usize) -> __m256i {
            // SAFETY: the caller's promise.
            unsafe { bits(block.add(16 + 32 * (i / 2)), 4 * (i % 2), 15) }
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

    impl SuperFormat for super::Q4K {
        #[inline(always)]
        unsafe fn block(p: *const u8) -> Super {
            // SAFETY: the caller's promise.
            unsafe {
                let scale = k_scales::avx512::decode(p);
                let mut codes = [_mm512_setzero_si512(); 4];
                for (z, codes) in codes.iter_mut().enumerate() {
                    let bytes = _mm512_broadcast_i64x4(_mm256_loadu_si256(p.add(16 + 32 * z).cast()));
                    *codes =
                        _mm512_and_si512(_mm512_srlv_epi16(bytes, load512(&SHIFTS)), _mm512_set1_epi8(15));
                }
                Super { codes, scale, offset: scale }
            }
        }
    }
}
