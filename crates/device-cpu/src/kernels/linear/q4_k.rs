//! Q4_K: `w = d s c - dmin m`, blocks of 256 columns in 144 bytes (4.5 bits a weight), `s` and `m`
//! for each 32 columns.
//!
//! Layout (ggml): `d` and `dmin` f16; 12 bytes of 6-bit scales and minima ([`super::k_scales`]);
//! 128 bytes of nibbles. The low nibbles of each 32 bytes are 32 columns, the high nibbles the next
//! 32.
//!
//! Loops, order of accumulation and bytes moved: `interleaved` and `portable`; rates: `NOTES.md`.

use super::interleaved::{Interleaved, ScaleFields};
use super::k_scales;
use super::portable::Format;
use weights::BlockType;

/// Q4_K weights.
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

impl Interleaved for Q4K {
    const BITS: usize = 4;
    const SCALES: ScaleFields = ScaleFields::Minima;

    #[inline(always)]
    fn store_scales(block: &[u8], r: usize, fields: &mut [u8]) {
        k_scales::store(block, r, fields);
    }
}
