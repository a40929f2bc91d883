//! TQ2_0: 256 ternary values in 66 bytes (2.0625 bits each): four to a byte.
//!
//! `value = d * (q - 1)`, `q` in `0..4`; a ternary file has no 3, and a file that has one means 2.
//!
//! | bytes | field | |
//! |---|---|---|
//! | 0-63 | `qs` | value `128 h + 32 n + j` (`h < 2, n < 4, j < 32`): bits `2 n` of byte `32 h + j` |
//! | 64-65 | `d` | f16 |

use bytemuck::{Pod, Zeroable};

use super::block::{Decoded, f16_to_f32};

/// A block as stored.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Tq2_0Block {
    /// Four values a byte.
    pub qs: [u8; 64],
    /// The scale, f16.
    pub d: [u8; 2],
}

impl Decoded<256> for Tq2_0Block {
    fn dequantize(&self, out: &mut [f32; 256]) {
        let d = f16_to_f32(self.d);
        for (i, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            for (out, byte) in out.iter_mut().zip(&self.qs[32 * (i / 4)..]) {
                *out = d * (i32::from(byte >> (2 * (i % 4)) & 3) - 1) as f32;
            }
        }
    }
}
