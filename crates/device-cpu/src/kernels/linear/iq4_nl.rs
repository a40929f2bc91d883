//! IQ4_NL: `w = d v[c]`, blocks of 32 columns in 18 bytes (4.5 bits a weight), `v` a fixed table of 16 values.
//!
//! Layout (ggml): `d` f16; 16 bytes, whose low nibbles are columns 0..16 and high nibbles 16..32. The table is denser
//! around zero than a uniform one, as weights are.
//!
//! Loops, order of accumulation and bytes moved: `gemv_*`, `gemm_*` and `portable`. Measured on one thread of an
//! AMD EPYC (Zen 5), 2026-11-21, 2048 columns: AVX-512 GEMV 39 GB/s from the second cache and 26 from memory, GEMM
//! of 128 rows 687 Gop/s; AVX2 18, 16 and 188.

use super::portable::{Format, f16_at};
use formats::BlockType;

/// The table of IQ4_NL and IQ4_XS.
pub(super) const VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// What makes the table unsigned.
pub(super) const ZERO: u8 = 127;

/// The type.
pub(super) struct Iq4Nl;

impl Format for Iq4Nl {
    const NAME: &'static str = "linear_iq4_nl";
    const BLOCK: BlockType = BlockType::IQ4_NL;
    const GROUP: usize = 32;
    const HAS_OFFSET: bool = false;
    const ZERO: u8 = ZERO;
    const MAX_CODE: u8 = 240;

    #[inline(always)]
    fn scales(block: &[u8], scale: &mut [f32], _offset: &mut [f32]) {
        scale[0] = f16_at(block, 0);
    }

    #[inline(always)]
    fn codes(block: &[u8], codes: &mut [i8]) {
        for i in 0..16 {
            codes[i] = VALUES[usize::from(block[2 + i] & 15)];
            codes[16 + i] = VALUES[usize::from(block[2 + i] >> 4)];
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::super::avx2::{Avx2Format, f16_scales, look_up, nibbles};
    use std::arch::x86_64::__m256i;

    impl Avx2Format for super::Iq4Nl {
        #[inline(always)]
        unsafe fn codes32(block: *const u8, _i: usize) -> __m256i {
            // SAFETY: the caller's promise.
            unsafe { look_up(&super::VALUES, nibbles(block.add(2))) }
        }

        #[inline(always)]
        unsafe fn scales_avx2(block: *const u8, scale: &mut [f32; 16], offset: &mut [f32; 16]) {
            // SAFETY: the caller's promise.
            unsafe { f16_scales::<Self>(block, scale, offset) }
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod avx512 {
    use super::super::avx512::*;
    use std::arch::x86_64::{__m512i, _mm512_shuffle_epi8};

    const NIBBLES: [u16; 32] = nibble_words(1, 9);
    const SCALES: [u16; 16] = scale_words(0, 9);

    const TABLE: [u8; 64] = table(&super::VALUES, super::ZERO);

    /// A table made unsigned, for every 128-bit lane.
    pub(in super::super) const fn table(values: &[i8; 16], zero: u8) -> [u8; 64] {
        let mut unsigned = [0; 64];
        let mut i = 0;
        while i < 64 {
            unsigned[i] = (values[i % 16] as i16 + zero as i16) as u8;
            i += 1;
        }
        unsigned
    }

    /// Nibbles to the unsigned values of the table.
    ///
    /// # Safety
    /// AVX-512 is available.
    #[inline(always)]
    pub(in super::super) unsafe fn look_up(nibbles: __m512i) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_shuffle_epi8(load512(&TABLE), nibbles) }
    }

    static QUAD: QuadWords = QuadWords::new(9, 1);

    impl PairFormat for super::Iq4Nl {
        #[inline(always)]
        unsafe fn pair<const HALF: bool>(p: *const u8) -> Pair {
            // SAFETY: the caller's promise.
            unsafe {
                let bytes = load_pair::<9, HALF>(p);
                let scale = scales(bytes, &SCALES);
                Pair { codes: look_up(nibbles(bytes, &NIBBLES)), scale, offset: scale }
            }
        }

        const HAS_QUAD: bool = true;

        #[inline(always)]
        unsafe fn quad(p: *const u8) -> Quad {
            // SAFETY: the caller's promise.
            unsafe {
                let quad = QUAD.load(p);
                Quad { codes: [look_up(quad.codes[0]), look_up(quad.codes[1])], ..quad }
            }
        }
    }
}
