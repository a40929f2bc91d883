//! IQ3_XXS: 256 values in 98 bytes (3.0625 bits each): points of [`IQ3_XXS`] with signs and 4-bit
//! scales.
//!
//! `value = ±((d * (0.5 + scale)) * 0.5) * point`, `scale` in `0..16`.
//!
//! | bytes | field | |
//! |---|---|---|
//! | 0-1 | `d` | f16 |
//! | 2-65 | `qs` | the index of the values from `4 i` |
//! | 66-97 | `tails` | 8 u32, little-endian, for 32 values: four times 7 bits of signs of 8 values, then the scale in the top 4 bits |

use bytemuck::{Pod, Zeroable};

use super::block::{Decoded, f16_to_f32};
use super::grid::{IQ3_XXS, IQ3_XXS_LEVELS, even_signs, iq3_point, signed};

/// A block as stored.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Iq3XxsBlock {
    /// The scale of the scales, f16.
    pub d: [u8; 2],
    /// Indices of 4 values each.
    pub qs: [u8; 64],
    /// Signs and scales of 32 values each.
    pub tails: [[u8; 4]; 8],
}

impl Decoded<256> for Iq3XxsBlock {
    fn dequantize(&self, out: &mut [f32; 256]) {
        let d = f16_to_f32(self.d);
        for (i, (index, out)) in self.qs.iter().zip(out.as_chunks_mut::<4>().0).enumerate() {
            let tail = u32::from_le_bytes(self.tails[i / 8]);
            let scale = d * (0.5 + (tail >> 28) as f32) * 0.5;
            let signs = even_signs((tail >> (7 * (i / 2 % 4))) as u8);
            let point = iq3_point(IQ3_XXS[usize::from(*index)], &IQ3_XXS_LEVELS);
            *out = std::array::from_fn(|j| signed(scale * point[j], signs, 4 * (i % 2) + j));
        }
    }
}
