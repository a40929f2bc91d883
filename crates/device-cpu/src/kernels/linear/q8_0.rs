//! Q8_0: `w = d c`, blocks of 32 columns in 34 bytes (8.5 bits a weight).
//!
//! Layout (ggml): `d` f16; 32 signed bytes. AVX-512 adds 128 to make them unsigned, by flipping the
//! sign bit.
//!
//! Loops, order of accumulation and bytes moved: `interleaved` and `portable`; rates: `NOTES.md`.

use super::interleaved::{Interleaved, ScaleFields, store_field};
use super::portable::{Format, f16_at};
use weights::BlockType;

/// Q8_0 weights.
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

impl Interleaved for Q8_0 {
    const BITS: usize = 8;
    const SCALES: ScaleFields = ScaleFields::F16;

    #[inline(always)]
    fn store_scales(block: &[u8], r: usize, fields: &mut [u8]) {
        store_field::<2>(fields, 0, r, block);
    }
}
