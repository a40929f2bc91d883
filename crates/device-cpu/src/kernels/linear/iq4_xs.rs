//! IQ4_XS: `w = d (s - 32) v[c]`, blocks of 256 columns in 136 bytes (4.25 bits a weight), `s` for
//! each 32 columns, `v` the table of IQ4_NL.
//!
//! Layout (ggml): `d` f16; 16 bits, the upper 2 bits of scale `g` at `2g`; 4 bytes, nibble `g` the
//! lower 4; 128 bytes of nibbles: of each 16 bytes the low nibbles are 16 columns and the high
//! nibbles the next 16.
//!
//! Loops, order of accumulation and bytes moved: `interleaved` and `portable`; rates: `NOTES.md`.

use super::interleaved::{Interleaved, ScaleFields, store_field, store_nibbles};
use super::iq4_nl::{VALUES, ZERO};
use super::portable::{Format, f16_at};
use weights::BlockType;

/// IQ4_XS weights.
pub(super) struct Iq4Xs;

/// Scale of a group, -32 to 31.
#[inline(always)]
fn group_scale(block: &[u8], g: usize) -> i8 {
    let upper = u16::from_le_bytes([block[2], block[3]]);
    let lower = block[4 + g / 2] >> (4 * (g % 2)) & 15;
    (lower | ((upper >> (2 * g) & 3) as u8) << 4) as i8 - 32
}

impl Format for Iq4Xs {
    const NAME: &'static str = "linear_iq4_xs";
    const BLOCK: BlockType = BlockType::IQ4_XS;
    const GROUP: usize = 32;
    const HAS_OFFSET: bool = false;
    const ZERO: u8 = ZERO;
    const MAX_CODE: u8 = 240;

    #[inline(always)]
    fn scales(block: &[u8], scale: &mut [f32], _offset: &mut [f32]) {
        let d = f16_at(block, 0);
        for g in 0..8 {
            scale[g] = d * f32::from(group_scale(block, g));
        }
    }

    #[inline(always)]
    fn codes(block: &[u8], codes: &mut [i8]) {
        for g in 0..8 {
            let bytes = &block[8 + 16 * g..24 + 16 * g];
            let codes = &mut codes[32 * g..32 * (g + 1)];
            for i in 0..16 {
                codes[i] = VALUES[usize::from(bytes[i] & 15)];
                codes[16 + i] = VALUES[usize::from(bytes[i] >> 4)];
            }
        }
    }
}

impl Interleaved for Iq4Xs {
    const BITS: usize = 4;
    const SCALES: ScaleFields = ScaleFields::Signed;
    const VALUES: Option<&'static [i8; 16]> = Some(&VALUES);

    #[inline(always)]
    fn stored(block: &[u8], codes: &mut [i8]) {
        for g in 0..8 {
            store_nibbles(&block[8 + 16 * g..24 + 16 * g], &mut codes[32 * g..32 * (g + 1)]);
        }
    }

    #[inline(always)]
    fn store_scales(block: &[u8], r: usize, fields: &mut [u8]) {
        store_field::<2>(fields, 0, r, block);
        for g in 0..8 {
            fields[32 + 16 * g + r] = group_scale(block, g) as u8;
        }
    }
}
