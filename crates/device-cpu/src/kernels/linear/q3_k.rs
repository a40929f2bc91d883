//! Q3_K: `w = d (s - 32) (c - 4)`, blocks of 256 columns in 110 bytes (3.4375 bits a weight), `s`
//! for each 16 columns.
//!
//! Layout (ggml): 32 bytes of third bits, of which bit `g` of byte `i` belongs to column `32 g +
//! i`; 64 bytes of lower two bits as in Q2_K; 12 bytes of 6-bit scales; `d` f16. Scale `g` has its
//! low 4 bits in byte `g % 8` (low nibble for `g < 8`, else high) and its upper 2 in bits `2 (g /
//! 4)` of byte `8 + g % 4`.
//!
//! Loops, order of accumulation and bytes moved: `interleaved` and `portable`; rates: `NOTES.md`.

use super::interleaved::{Interleaved, ScaleFields, store_field};
use super::k_scales::words;
use super::portable::{Format, f16_at};
use weights::BlockType;

/// Unpacks the 16 scales, plus 32, as bytes of four words.
#[inline(always)]
fn unpack([a, b, upper]: [u32; 3]) -> [u32; 4] {
    let upper = |g: u32| ((upper >> (2 * g)) & 0x0303_0303) << 4;
    [
        (a & 0x0f0f_0f0f) | upper(0),
        (b & 0x0f0f_0f0f) | upper(1),
        ((a >> 4) & 0x0f0f_0f0f) | upper(2),
        ((b >> 4) & 0x0f0f_0f0f) | upper(3),
    ]
}

/// Q3_K weights.
pub(super) struct Q3K;

impl Format for Q3K {
    const NAME: &'static str = "linear_q3_k";
    const BLOCK: BlockType = BlockType::Q3_K;
    const GROUP: usize = 16;
    const HAS_OFFSET: bool = false;
    const ZERO: u8 = 4;
    const MAX_CODE: u8 = 7;

    #[inline(always)]
    fn scales(block: &[u8], scale: &mut [f32], _offset: &mut [f32]) {
        let d = f16_at(block, 108);
        let unpacked = unpack(words(&block[96..108]));
        for g in 0..16 {
            let s = (unpacked[g / 4] >> (8 * (g % 4)) & 0xff) as i32 - 32;
            scale[g] = d * s as f32;
        }
    }

    #[inline(always)]
    fn codes(block: &[u8], codes: &mut [i8]) {
        let high = &block[..32];
        for g in 0..8 {
            let bytes = &block[32 + 32 * (g / 4)..64 + 32 * (g / 4)];
            let codes = &mut codes[32 * g..32 * (g + 1)];
            for i in 0..32 {
                codes[i] = ((bytes[i] >> (2 * (g % 4)) & 3) | (high[i] >> g & 1) << 2) as i8 - 4;
            }
        }
    }
}

impl Interleaved for Q3K {
    const BITS: usize = 3;
    const SCALES: ScaleFields = ScaleFields::Signed;

    #[inline(always)]
    fn store_scales(block: &[u8], r: usize, fields: &mut [u8]) {
        store_field::<2>(fields, 0, r, &block[108..]);
        let unpacked = unpack(words(&block[96..108]));
        for g in 0..16 {
            fields[32 + 16 * g + r] = ((unpacked[g / 4] >> (8 * (g % 4)) & 0xff) as u8).wrapping_sub(32);
        }
    }
}
