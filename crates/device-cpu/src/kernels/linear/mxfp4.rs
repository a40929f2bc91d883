//! MXFP4: `w = 2^(e - 127) v[c]`, blocks of 32 columns in 17 bytes (4.25 bits a weight), `v` the
//! values of FP4 E2M1.
//!
//! Layout (ggml; format by the OCP Microscaling specification 1.0): the exponent `e`, 8 bits; 16
//! bytes, whose low nibbles are columns 0..16 and high nibbles 16..32. Codes are twice the values
//! of E2M1, 0 to 12 and their negatives, and the scale is half as large, so that codes are
//! integers.
//!
//! Loops, order of accumulation and bytes moved: `interleaved` and `portable`; rates: `NOTES.md`.

use super::interleaved::{Interleaved, ScaleFields, store_nibbles};
use super::portable::Format;
use weights::{BlockType, codec};

/// Twice the values of E2M1.
const VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Offset that makes the codes unsigned.
const ZERO: u8 = 12;

/// MXFP4 weights.
pub(super) struct Mxfp4;

impl Format for Mxfp4 {
    const NAME: &'static str = "linear_mxfp4";
    const BLOCK: BlockType = BlockType::MXFP4;
    const GROUP: usize = 32;
    const HAS_OFFSET: bool = false;
    const ZERO: u8 = ZERO;
    const MAX_CODE: u8 = 24;

    #[inline(always)]
    fn scales(block: &[u8], scale: &mut [f32], _offset: &mut [f32]) {
        scale[0] = codec::e8m0_half(block[0]);
    }

    #[inline(always)]
    fn codes(block: &[u8], codes: &mut [i8]) {
        for i in 0..16 {
            codes[i] = VALUES[usize::from(block[1 + i] & 15)];
            codes[16 + i] = VALUES[usize::from(block[1 + i] >> 4)];
        }
    }
}

impl Interleaved for Mxfp4 {
    const BITS: usize = 4;
    const SCALES: ScaleFields = ScaleFields::Exponent;
    const VALUES: Option<&'static [i8; 16]> = Some(&VALUES);

    #[inline(always)]
    fn stored(block: &[u8], codes: &mut [i8]) {
        store_nibbles(&block[1..], codes);
    }

    #[inline(always)]
    fn store_scales(block: &[u8], r: usize, fields: &mut [u8]) {
        fields[r] = block[0];
    }
}
