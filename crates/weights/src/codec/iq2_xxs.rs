//! IQ2_XXS: 256 values in 66 bytes (2.0625 bits each): points of [`IQ2_XXS`] with signs and 4-bit
//! scales.
//!
//! `value = ±((d * (0.5 + scale)) * 0.25) * point`, `scale` in `0..16`.
//!
//! | bytes | field | |
//! |---|---|---|
//! | 0-1 | `d` | f16 |
//! | 2-65 | `qs` | 8 times, for 32 values: four bytes of indices, one for 8 values; a u32, little-endian: four times 7 bits of signs, then the scale in its top 4 bits |

use bytemuck::{Pod, Zeroable};

use super::block::{Decoded, f16_to_f32};
use super::grid::{IQ2_XXS, even_signs, iq2_point, signed};

/// A block as stored.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Iq2XxsBlock {
    /// The scale of the scales, f16.
    pub d: [u8; 2],
    /// Indices, signs and scales of 32 values each.
    pub qs: [[u8; 8]; 8],
}

impl Decoded<256> for Iq2XxsBlock {
    fn dequantize(&self, out: &mut [f32; 256]) {
        let d = f16_to_f32(self.d);
        for (qs, out) in self.qs.iter().zip(out.as_chunks_mut::<32>().0) {
            let [a, b, c, e, tail @ ..] = *qs;
            let tail = u32::from_le_bytes(tail);
            let scale = d * (0.5 + (tail >> 28) as f32) * 0.25;
            for (i, (index, out)) in [a, b, c, e].into_iter().zip(out.as_chunks_mut::<8>().0).enumerate() {
                let signs = even_signs((tail >> (7 * i)) as u8);
                let point = iq2_point(IQ2_XXS[usize::from(index)]);
                *out = std::array::from_fn(|j| signed(scale * point[j], signs, j));
            }
        }
    }
}
