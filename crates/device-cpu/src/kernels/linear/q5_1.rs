//! Q5_1: `w = d c + m`, blocks of 32 columns in 24 bytes (6 bits a weight).
//!
//! Layout (ggml): `d` and `m` f16; 32 bits, where bit `i` is the fifth bit of column `i`; 16 bytes
//! of nibbles, low ones for columns 0..16, high ones for 16..32.
//!
//! Loops, order of accumulation and bytes moved: `interleaved` and `portable`; rates: `NOTES.md`.

use super::interleaved::{Interleaved, ScaleFields, add_fifth_bits, store_field, store_nibbles};
use super::portable::{Format, f16_at};
use weights::BlockType;

/// Q5_1 weights.
pub(super) struct Q5_1;

impl Format for Q5_1 {
    const NAME: &'static str = "linear_q5_1";
    const BLOCK: BlockType = BlockType::Q5_1;
    const GROUP: usize = 32;
    const HAS_OFFSET: bool = true;
    const ZERO: u8 = 0;
    const MAX_CODE: u8 = 31;

    #[inline(always)]
    fn scales(block: &[u8], scale: &mut [f32], offset: &mut [f32]) {
        scale[0] = f16_at(block, 0);
        offset[0] = f16_at(block, 2);
    }

    #[inline(always)]
    fn codes(block: &[u8], codes: &mut [i8]) {
        let high = u32::from_le_bytes([block[4], block[5], block[6], block[7]]);
        for i in 0..16 {
            codes[i] = ((block[8 + i] & 15) | ((high >> i) as u8 & 1) << 4) as i8;
            codes[16 + i] = ((block[8 + i] >> 4) | ((high >> (16 + i)) as u8 & 1) << 4) as i8;
        }
    }
}

impl Interleaved for Q5_1 {
    const BITS: usize = 5;
    const SCALES: ScaleFields = ScaleFields::F16Offset;

    #[inline(always)]
    fn stored(block: &[u8], codes: &mut [i8]) {
        store_nibbles(&block[8..], codes);
        add_fifth_bits(&block[4..8], codes);
    }

    #[inline(always)]
    fn store_scales(block: &[u8], r: usize, fields: &mut [u8]) {
        store_field::<2>(fields, 0, r, block);
        store_field::<2>(fields, 32, r, &block[2..]);
    }
}
