//! IQ4_NL: `w = d v[c]`, blocks of 32 columns in 18 bytes (4.5 bits a weight), `v` a fixed table of
//! 16 values.
//!
//! Layout (ggml): `d` f16; 16 bytes, whose low nibbles are columns 0..16 and high nibbles 16..32.
//! The table is denser around zero than a uniform one, as weights are.
//!
//! Loops, order of accumulation and bytes moved: `interleaved` and `portable`; rates: `NOTES.md`.

use super::interleaved::{Interleaved, ScaleFields, store_field, store_nibbles};
use super::portable::{Format, f16_at};
use weights::BlockType;

/// The table of IQ4_NL and IQ4_XS.
pub(super) const VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Offset that makes the table unsigned.
pub(super) const ZERO: u8 = 127;

/// IQ4_NL weights.
pub(super) struct Iq4Nl;

impl Format for Iq4Nl {
    const NAME: &'static str = "linear_iq4_nl";
    const BLOCK: BlockType = BlockType::IQ4_NL;
    const GROUP: usize = 32;
    const HAS_OFFSET: bool = false;
    const ZERO: u8 = ZERO;
    const MAX_CODE: u8 = 240;

    #[inline(always)]
    fn scales(block: &[u8], scale: &mut [f32], _offset: &mut [f32]) {
        scale[0] = f16_at(block, 0);
    }

    #[inline(always)]
    fn codes(block: &[u8], codes: &mut [i8]) {
        for i in 0..16 {
            codes[i] = VALUES[usize::from(block[2 + i] & 15)];
            codes[16 + i] = VALUES[usize::from(block[2 + i] >> 4)];
        }
    }
}

impl Interleaved for Iq4Nl {
    const BITS: usize = 4;
    const SCALES: ScaleFields = ScaleFields::F16;
    const VALUES: Option<&'static [i8; 16]> = Some(&VALUES);

    #[inline(always)]
    fn stored(block: &[u8], codes: &mut [i8]) {
        store_nibbles(&block[2..], codes);
    }

    #[inline(always)]
    fn store_scales(block: &[u8], r: usize, fields: &mut [u8]) {
        store_field::<2>(fields, 0, r, block);
    }
}
