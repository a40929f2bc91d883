//! IQ3_S: 256 values in 110 bytes (3.4375 bits each): points of [`IQ3_S`] with a sign a value and
//! 4-bit scales.
//!
//! `value = ±(d * (1 + 2 * scale)) * point`, `scale` in `0..16`.
//!
//! | bytes | field | |
//! |---|---|---|
//! | 0-1 | `d` | f16 |
//! | 2-65 | `qs` | the low 8 bits of index `i`, of the values from `4 i` |
//! | 66-73 | `qh` | the ninth bit of index `i`: bit `i % 8` of byte `i / 8` |
//! | 74-105 | `signs` | byte `i`: bit `j` is set if value `8 i + j` is negative |
//! | 106-109 | `scales` | scale of the values from `32 i`: nibble `i % 2` of byte `i / 2` |

use bytemuck::{Pod, Zeroable};

use super::block::{Decoded, f16_to_f32};
use super::grid::{IQ3_S, IQ3_S_LEVELS, iq3_point, signed};

/// A block as stored.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Iq3SBlock {
    /// The scale of the scales, f16.
    pub d: [u8; 2],
    /// The low bits of the indices.
    pub qs: [u8; 64],
    /// The ninth bits of the indices.
    pub qh: [u8; 8],
    /// The signs.
    pub signs: [u8; 32],
    /// Two scales a byte.
    pub scales: [u8; 4],
}

impl Decoded<256> for Iq3SBlock {
    fn dequantize(&self, out: &mut [f32; 256]) {
        let d = f16_to_f32(self.d);
        for (i, (low, out)) in self.qs.iter().zip(out.as_chunks_mut::<4>().0).enumerate() {
            let index = usize::from(*low) | usize::from(self.qh[i / 8] >> (i % 8) & 1) << 8;
            let scale = d * f32::from(1 + 2 * (self.scales[i / 16] >> (4 * (i / 8 % 2)) & 15));
            let point = iq3_point(IQ3_S[index], &IQ3_S_LEVELS);
            *out = std::array::from_fn(|j| signed(scale * point[j], self.signs[i / 2], 4 * (i % 2) + j));
        }
    }
}
