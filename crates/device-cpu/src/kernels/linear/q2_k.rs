//! Q2_K: `w = d s c - dmin m`, blocks of 256 columns in 84 bytes (2.625 bits a weight), `s` and `m`
//! for each 16 columns.
//!
//! Layout (ggml): 16 bytes, low nibble `s`, high nibble `m`; 64 bytes of codes; `d` and `dmin` f16.
//! Columns come in two halves of 128 with 32 bytes each: bits `2j, 2j + 1` of byte `i` are column
//! `32 j + i`.
//!
//! Loops, order of accumulation and bytes moved: `interleaved` and `portable`; rates: `NOTES.md`.

use super::interleaved::{Interleaved, ScaleFields, store_field};
use super::portable::{Format, f16_at};
use weights::BlockType;

/// Q2_K weights.
pub(super) struct Q2K;

impl Format for Q2K {
    const NAME: &'static str = "linear_q2_k";
    const BLOCK: BlockType = BlockType::Q2_K;
    const GROUP: usize = 16;
    const HAS_OFFSET: bool = true;
    const ZERO: u8 = 0;
    const MAX_CODE: u8 = 3;

    #[inline(always)]
    fn scales(block: &[u8], scale: &mut [f32], offset: &mut [f32]) {
        let (d, dmin) = (f16_at(block, 80), f16_at(block, 82));
        for g in 0..16 {
            scale[g] = d * f32::from(block[g] & 15);
            offset[g] = -(dmin * f32::from(block[g] >> 4));
        }
    }

    #[inline(always)]
    fn codes(block: &[u8], codes: &mut [i8]) {
        for half in 0..2 {
            let bytes = &block[16 + 32 * half..48 + 32 * half];
            for j in 0..4 {
                let codes = &mut codes[128 * half + 32 * j..128 * half + 32 * (j + 1)];
                for i in 0..32 {
                    codes[i] = (bytes[i] >> (2 * j) & 3) as i8;
                }
            }
        }
    }
}

impl Interleaved for Q2K {
    const BITS: usize = 2;
    const SCALES: ScaleFields = ScaleFields::Nibbles;

    #[inline(always)]
    fn store_scales(block: &[u8], r: usize, fields: &mut [u8]) {
        store_field::<2>(fields, 0, r, &block[80..]);
        store_field::<2>(fields, 32, r, &block[82..]);
        for (g, &both) in block[..16].iter().enumerate() {
            fields[64 + 16 * g + r] = both;
        }
    }
}
