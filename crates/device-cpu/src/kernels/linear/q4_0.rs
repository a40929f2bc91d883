//! Q4_0: `w = d (c - 8)`, blocks of 32 columns in 18 bytes (4.5 bits a weight).
//!
//! Layout (ggml): `d` f16; 16 bytes, whose low nibbles are columns 0..16 and high nibbles 16..32.
//!
//! Loops, order of accumulation and bytes moved: `interleaved` and `portable`; rates: `NOTES.md`.

use super::interleaved::{Interleaved, ScaleFields, store_field, store_nibbles};
use super::portable::{Format, f16_at};
use weights::BlockType;

/// Q4_0 weights.
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

impl Interleaved for Q4_0 {
    const BITS: usize = 4;
    const SCALES: ScaleFields = ScaleFields::F16;

    #[inline(always)]
    fn stored(block: &[u8], codes: &mut [i8]) {
        store_nibbles(&block[2..], codes);
    }

    #[inline(always)]
    fn store_scales(block: &[u8], r: usize, fields: &mut [u8]) {
        store_field::<2>(fields, 0, r, block);
    }
}
