//! Q4_0: 32 values in 18 bytes (4.5 bits each): a scale and signed 4-bit integers.
//!
//! `value = d * (q - 8)`, `q` in `0..16`.
//!
//! | bytes | field | |
//! |---|---|---|
//! | 0-1 | `d` | f16 |
//! | 2-17 | `qs` | byte `j`: value `j` in the low nibble, value `j + 16` in the high one |

use bytemuck::{Pod, Zeroable};

use super::block::{Blocked, f16_to_f32};
use super::fit::{fit_scale, inverse, nearest, scale_to_f16, targets_around};

/// A block as stored.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Q4_0Block {
    /// The scale, f16.
    pub d: [u8; 2],
    /// Two values a byte.
    pub qs: [u8; 16],
}

impl Blocked<32> for Q4_0Block {
    fn dequantize(&self, out: &mut [f32; 32]) {
        let d = f16_to_f32(self.d);
        for (j, q) in self.qs.iter().enumerate() {
            out[j] = d * (i32::from(q & 15) - 8) as f32;
            out[j + 16] = d * (i32::from(q >> 4) - 8) as f32;
        }
    }

    fn quantize(x: &[f32; 32]) -> Q4_0Block {
        let (d, value) = scale_to_f16(fit_scale(x, targets_around(-8), |y| nearest(y, -8, 7) as f32));
        let inverse = inverse(value);
        let q = |v: f32| (nearest(v * inverse, -8, 7) + 8) as u8;
        Q4_0Block { d, qs: std::array::from_fn(|j| q(x[j]) | q(x[j + 16]) << 4) }
    }
}
