//! Q5_0: `w = d (c - 16)`, blocks of 32 columns in 22 bytes (5.5 bits a weight).
//!
//! Layout (ggml): `d` f16; 32 bits, where bit `i` is the fifth bit of column `i`; 16 bytes of
//! nibbles, low ones for columns 0..16, high ones for 16..32.
//!
//! Loops, order of accumulation and bytes moved: `interleaved` and `portable`; rates: `NOTES.md`.

use super::interleaved::{Interleaved, ScaleFields, add_fifth_bits, store_field, store_nibbles};
use super::portable::{Format, f16_at};
use weights::BlockType;

/// Q5_0 weights.
pub(super) struct Q5_0;

impl Format for Q5_0 {
    const NAME: &'static str = "linear_q5_0";
    const BLOCK: BlockType = BlockType::Q5_0;
    const GROUP: usize = 32;
    const HAS_OFFSET: bool = false;
    const ZERO: u8 = 16;
    const MAX_CODE: u8 = 31;

    #[inline(always)]
    fn scales(block: &[u8], scale: &mut [f32], _offset: &mut [f32]) {
        scale[0] = f16_at(block, 0);
    }

    #[inline(always)]
    fn codes(block: &[u8], codes: &mut [i8]) {
        let high = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
        for i in 0..16 {
            codes[i] = ((block[6 + i] & 15) | ((high >> i) as u8 & 1) << 4) as i8 - 16;
            codes[16 + i] = ((block[6 + i] >> 4) | ((high >> (16 + i)) as u8 & 1) << 4) as i8 - 16;
        }
    }
}

impl Interleaved for Q5_0 {
    const BITS: usize = 5;
    const SCALES: ScaleFields = ScaleFields::F16;

    #[inline(always)]
    fn stored(block: &[u8], codes: &mut [i8]) {
        store_nibbles(&block[6..], codes);
        add_fifth_bits(&block[2..6], codes);
    }

    #[inline(always)]
    fn store_scales(block: &[u8], r: usize, fields: &mut [u8]) {
        store_field::<2>(fields, 0, r, block);
    }
}
