//! Q5_K: `w = d s c - dmin m`, blocks of 256 columns in 176 bytes (5.5 bits a weight), `s` and `m`
//! for each 32 columns.
//!
//! Layout (ggml): `d` and `dmin` f16; 12 bytes of 6-bit scales and minima ([`super::k_scales`]); 32
//! bytes of fifth bits, of which bit `g` of byte `i` belongs to column `32 g + i`; 128 bytes of
//! nibbles. The low nibbles of each 32 bytes are 32 columns, the high nibbles the next 32.
//!
//! Loops, order of accumulation and bytes moved: `interleaved` and `portable`; rates: `NOTES.md`.

use super::interleaved::{Interleaved, ScaleFields};
use super::k_scales;
use super::portable::Format;
use weights::BlockType;

/// Q5_K weights.
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

impl Interleaved for Q5K {
    const BITS: usize = 5;
    const SCALES: ScaleFields = ScaleFields::Minima;

    #[inline(always)]
    fn store_scales(block: &[u8], r: usize, fields: &mut [u8]) {
        k_scales::store(block, r, fields);
    }
}
