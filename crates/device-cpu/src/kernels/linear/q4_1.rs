//! Q4_1: `w = d c + m`, blocks of 32 columns in 20 bytes (5 bits a weight).
//!
//! Layout (ggml): `d` and `m` f16; 16 bytes, whose low nibbles are columns 0..16 and high nibbles
//! 16..32.
//!
//! Loops, order of accumulation and bytes moved: `interleaved` and `portable`; rates: `NOTES.md`.

use super::interleaved::{Interleaved, ScaleFields, store_field};
use super::portable::{Format, f16_at};
use weights::BlockType;

/// Q4_1 weights.
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

impl Interleaved for Q4_1 {
    const BITS: usize = 4;
    const SCALES: ScaleFields = ScaleFields::F16Offset;

    #[inline(always)]
    fn store_scales(block: &[u8], r: usize, fields: &mut [u8]) {
        store_field::<2>(fields, 0, r, block);
        store_field::<2>(fields, 32, r, &block[2..]);
    }
}
