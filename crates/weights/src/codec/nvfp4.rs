//! NVFP4: 64 values in 36 bytes (4.5 bits each): E2M1 floats, 16 to a scale that is itself an 8-bit
//! float (E4M3).
//!
//! `value = e4m3_half(d) * KVALUES_MXFP4[q]`: the table holds twice the E2M1 value, the scale half
//! of its own.
//!
//! | bytes | field | |
//! |---|---|---|
//! | 0-3 | `d` | E4M3 without its sign, of 16 values each |
//! | 4-35 | `qs` | byte `8 s + j` (`s < 4, j < 8`): value `16 s + j` in the low nibble, `16 s + 8 + j` in the high one |

use bytemuck::{Pod, Zeroable};

use super::block::Decoded;
use super::mxfp4::KVALUES_MXFP4;

/// A block as stored.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Nvfp4Block {
    /// The scales.
    pub d: [u8; 4],
    /// Two values a byte.
    pub qs: [[u8; 8]; 4],
}

/// Half the value of an E4M3 float (4 bits of exponent biased by 7, 3 bits of mantissa); the sign
/// bit is ignored. NaN, 127, is decoded as 0, as in ggml.
#[inline]
pub fn e4m3_half(byte: u8) -> f32 {
    let (exponent, mantissa) = (byte >> 3 & 15, f32::from(byte & 7));
    match (byte, exponent) {
        (127, _) => 0.0,
        // 2^-6 / 8, halved.
        (_, 0) => mantissa * (1.0 / 1024.0),
        _ => (1.0 + mantissa / 8.0) * f32::from_bits((u32::from(exponent) + 127 - 8) << 23),
    }
}

impl Decoded<64> for Nvfp4Block {
    fn dequantize(&self, out: &mut [f32; 64]) {
        for ((d, qs), out) in self.d.iter().zip(&self.qs).zip(out.as_chunks_mut::<16>().0) {
            let d = e4m3_half(*d);
            for (j, q) in qs.iter().enumerate() {
                out[j] = d * f32::from(KVALUES_MXFP4[usize::from(q & 15)]);
                out[j + 8] = d * f32::from(KVALUES_MXFP4[usize::from(q >> 4)]);
            }
        }
    }
}
