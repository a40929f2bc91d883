//! Q6_K: `w = d s (c - 32)`, blocks of 256 columns in 210 bytes (6.5625 bits a weight), `s` for
//! each 16 columns.
//!
//! Layout (ggml): 128 bytes of low nibbles, 64 bytes of upper 2 bits, 16 signed scales, `d` f16.
//! Columns are in two halves of 128, each with 64 nibble bytes `l` and 32 upper bytes `h`. Columns
//! 0..32 of a half are the low nibbles of `l[0..32]`, and 32..64 those of `l[32..64]`. Columns
//! 64..96 and 96..128 are the high nibbles of these bytes. Bits `2j, 2j + 1` of `h[i]` belong to
//! column `32 j + i`.
//!
//! Loops, order of accumulation and bytes moved: `interleaved` and `portable`; rates: `NOTES.md`.

use super::interleaved::{Interleaved, ScaleFields, store_field};
use super::portable::{Format, f16_at};
use weights::BlockType;

/// Q6_K weights.
pub(super) struct Q6K;

impl Format for Q6K {
    const NAME: &'static str = "linear_q6_k";
    const BLOCK: BlockType = BlockType::Q6_K;
    const GROUP: usize = 16;
    const HAS_OFFSET: bool = false;
    const ZERO: u8 = 32;
    const MAX_CODE: u8 = 63;

    #[inline(always)]
    fn scales(block: &[u8], scale: &mut [f32], _offset: &mut [f32]) {
        let d = f16_at(block, 208);
        for (scale, &s) in scale.iter_mut().zip(&block[192..208]) {
            *scale = d * f32::from(s as i8);
        }
    }

    #[inline(always)]
    fn codes(block: &[u8], codes: &mut [i8]) {
        for half in 0..2 {
            let codes = &mut codes[128 * half..128 * (half + 1)];
            let low = &block[64 * half..64 * (half + 1)];
            let high = &block[128 + 32 * half..160 + 32 * half];
            for i in 0..32 {
                codes[i] = ((low[i] & 15) | (high[i] & 3) << 4) as i8 - 32;
                codes[32 + i] = ((low[32 + i] & 15) | (high[i] >> 2 & 3) << 4) as i8 - 32;
                codes[64 + i] = ((low[i] >> 4) | (high[i] >> 4 & 3) << 4) as i8 - 32;
                codes[96 + i] = ((low[32 + i] >> 4) | (high[i] >> 6) << 4) as i8 - 32;
            }
        }
    }
}

impl Interleaved for Q6K {
    const BITS: usize = 6;
    const SCALES: ScaleFields = ScaleFields::Signed;

    #[inline(always)]
    fn store_scales(block: &[u8], r: usize, fields: &mut [u8]) {
        store_field::<2>(fields, 0, r, &block[208..]);
        for (g, &s) in block[192..208].iter().enumerate() {
            fields[32 + 16 * g + r] = s;
        }
    }
}
