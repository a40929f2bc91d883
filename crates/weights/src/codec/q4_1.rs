//! Q4_1: 32 values in 20 bytes (5 bits each): a scale, an offset and unsigned 4-bit integers.
//!
//! `value = d * q + m`, `q` in `0..16`.
//!
//! | bytes | field | |
//! |---|---|---|
//! | 0-1 | `d` | f16 |
//! | 2-3 | `m` | f16 |
//! | 4-19 | `qs` | byte `j`: value `j` in the low nibble, value `j + 16` in the high one |

use bytemuck::{Pod, Zeroable};

use super::block::{Blocked, f16_to_f32};
use super::fit::{fit_affine, inverse, nearest, offset_to_f16, scale_to_f16};

/// A block as stored.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Q4_1Block {
    /// The scale, f16.
    pub d: [u8; 2],
    /// The offset, f16.
    pub m: [u8; 2],
    /// Two values a byte.
    pub qs: [u8; 16],
}

impl Blocked<32> for Q4_1Block {
    fn dequantize(&self, out: &mut [f32; 32]) {
        let (d, m) = (f16_to_f32(self.d), f16_to_f32(self.m));
        for (j, q) in self.qs.iter().enumerate() {
            out[j] = d * f32::from(q & 15) + m;
            out[j + 16] = d * f32::from(q >> 4) + m;
        }
    }

    fn quantize(x: &[f32; 32]) -> Q4_1Block {
        let (d, m) = fit_affine(x, 15, false);
        let ((d, scale), (m, offset)) = (scale_to_f16(d), offset_to_f16(m));
        let inverse = inverse(scale);
        let q = |v: f32| nearest((v - offset) * inverse, 0, 15) as u8;
        Q4_1Block { d, m, qs: std::array::from_fn(|j| q(x[j]) | q(x[j + 16]) << 4) }
    }
}
