//! Q5_1: 32 values in 24 bytes (6 bits each): a scale, an offset and unsigned 5-bit integers.
//!
//! `value = d * q + m`, `q` in `0..32`.
//!
//! | bytes | field | |
//! |---|---|---|
//! | 0-1 | `d` | f16 |
//! | 2-3 | `m` | f16 |
//! | 4-7 | `qh` | u32, little-endian: bit `j` is the fifth bit of value `j` |
//! | 8-23 | `qs` | byte `j`: low four bits of value `j` in the low nibble, of value `j + 16` in the high one |

use bytemuck::{Pod, Zeroable};

use super::block::{Blocked, f16_to_f32};
use super::fit::{fit_affine, inverse, nearest, offset_to_f16, scale_to_f16};
use super::q5_0::{pack_q5, unpack_q5};

/// A block as stored.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Q5_1Block {
    /// The scale, f16.
    pub d: [u8; 2],
    /// The offset, f16.
    pub m: [u8; 2],
    /// The fifth bits.
    pub qh: [u8; 4],
    /// The low four bits, two values a byte.
    pub qs: [u8; 16],
}

impl Blocked<32> for Q5_1Block {
    fn dequantize(&self, out: &mut [f32; 32]) {
        let (d, m) = (f16_to_f32(self.d), f16_to_f32(self.m));
        for (out, q) in out.iter_mut().zip(unpack_q5(&self.qh, &self.qs)) {
            *out = d * f32::from(q) + m;
        }
    }

    fn quantize(x: &[f32; 32]) -> Q5_1Block {
        let (d, m) = fit_affine(x, 31, false);
        let ((d, scale), (m, offset)) = (scale_to_f16(d), offset_to_f16(m));
        let inverse = inverse(scale);
        let (qh, qs) = pack_q5(&x.map(|v| nearest((v - offset) * inverse, 0, 31) as u8));
        Q5_1Block { d, m, qh, qs }
    }
}
