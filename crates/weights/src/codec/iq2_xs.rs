//! IQ2_XS: 256 values in 74 bytes (2.3125 bits each): points of [`IQ2_XS`] with signs and 4-bit
//! scales.
//!
//! `value = ±((d * (0.5 + scale)) * 0.25) * point`, `scale` in `0..16`.
//!
//! | bytes | field | |
//! |---|---|---|
//! | 0-1 | `d` | f16 |
//! | 2-65 | `qs` | 32 u16, little-endian, one for 8 values: 9 bits of index, 7 bits of signs |
//! | 66-73 | `scales` | scale of the values from `16 i`: nibble `i % 2` of byte `i / 2` |

use bytemuck::{Pod, Zeroable};

use super::block::{Decoded, f16_to_f32};
use super::grid::{IQ2_XS, even_signs, iq2_point, signed};

/// A block as stored.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Iq2XsBlock {
    /// The scale of the scales, f16.
    pub d: [u8; 2],
    /// Index and signs of 8 values each.
    pub qs: [[u8; 2]; 32],
    /// Two scales a byte.
    pub scales: [u8; 8],
}

impl Decoded<256> for Iq2XsBlock {
    fn dequantize(&self, out: &mut [f32; 256]) {
        let d = f16_to_f32(self.d);
        for (i, (qs, out)) in self.qs.iter().zip(out.as_chunks_mut::<8>().0).enumerate() {
            let q = u16::from_le_bytes(*qs);
            let scale = d * (0.5 + f32::from(self.scales[i / 4] >> (4 * (i / 2 % 2)) & 15)) * 0.25;
            let signs = even_signs((q >> 9) as u8);
            let point = iq2_point(IQ2_XS[usize::from(q & 511)]);
            *out = std::array::from_fn(|j| signed(scale * point[j], signs, j));
        }
    }
}
