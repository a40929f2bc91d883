//! Q8_0: 32 values in 34 bytes (8.5 bits each): a scale and signed bytes.
//!
//! `value = d * q`, `q` in `-128..128`.
//!
//! | bytes | field | |
//! |---|---|---|
//! | 0-1 | `d` | f16 |
//! | 2-33 | `qs` | i8, in order |

use bytemuck::{Pod, Zeroable};

use super::block::{Blocked, f16_to_f32};
use super::fit::{inverse, nearest, scale_to_f16};

/// A block as stored.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Q8_0Block {
    /// The scale, f16.
    pub d: [u8; 2],
    /// The integers.
    pub qs: [i8; 32],
}

impl Blocked<32> for Q8_0Block {
    fn dequantize(&self, out: &mut [f32; 32]) {
        let d = f16_to_f32(self.d);
        for (out, q) in out.iter_mut().zip(self.qs) {
            *out = d * f32::from(q);
        }
    }

    /// The largest magnitude becomes ±127. -128 is never written, since kernels that split off the
    /// sign cannot negate it. With such fine steps a search for a better scale gains nothing.
    fn quantize(x: &[f32; 32]) -> Q8_0Block {
        let largest = x.iter().fold(0.0f32, |a, v| a.max(v.abs()));
        let (d, value) = scale_to_f16(largest / 127.0);
        let inverse = inverse(value);
        Q8_0Block { d, qs: x.map(|v| nearest(v * inverse, -127, 127) as i8) }
    }
}
