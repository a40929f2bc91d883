//! Q1_0: 128 values in 18 bytes (1.125 bits each): a scale and a sign a value.
//!
//! `value = d` if the bit is set, otherwise `-d`.
//!
//! | bytes | field | |
//! |---|---|---|
//! | 0-1 | `d` | f16 |
//! | 2-17 | `qs` | value `i`: bit `i % 8` of byte `i / 8` |

use bytemuck::{Pod, Zeroable};

use super::block::{Decoded, f16_to_f32};

/// A block as stored.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Q1_0Block {
    /// The scale, f16.
    pub d: [u8; 2],
    /// Eight values a byte.
    pub qs: [u8; 16],
}

impl Decoded<128> for Q1_0Block {
    fn dequantize(&self, out: &mut [f32; 128]) {
        let d = f16_to_f32(self.d);
        for (i, out) in out.iter_mut().enumerate() {
            *out = if self.qs[i / 8] >> (i % 8) & 1 == 1 { d } else { -d };
        }
    }
}
