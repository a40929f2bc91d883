//! IQ2_S: 256 values in 82 bytes (2.5625 bits each): points of [`IQ2_S`] with a sign a value and
//! 4-bit scales.
//!
//! `value = ±((d * (0.5 + scale)) * 0.25) * point`, `scale` in `0..16`.
//!
//! | bytes | field | |
//! |---|---|---|
//! | 0-1 | `d` | f16 |
//! | 2-33 | `qs` | the low 8 bits of index `i`, of the values from `8 i` |
//! | 34-65 | `signs` | byte `i`: bit `j` is set if value `8 i + j` is negative |
//! | 66-73 | `qh` | the upper 2 bits of index `i`: bits `2 (i % 4)` of byte `i / 4` |
//! | 74-81 | `scales` | scale of the values from `16 i`: nibble `i % 2` of byte `i / 2` |

use bytemuck::{Pod, Zeroable};

use super::block::{Decoded, f16_to_f32};
use super::grid::{IQ2_S, iq2_point, signed};

/// A block as stored.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Iq2SBlock {
    /// The scale of the scales, f16.
    pub d: [u8; 2],
    /// The low bits of the indices.
    pub qs: [u8; 32],
    /// The signs.
    pub signs: [u8; 32],
    /// The upper bits of the indices, four a byte.
    pub qh: [u8; 8],
    /// Two scales a byte.
    pub scales: [u8; 8],
}

impl Decoded<256> for Iq2SBlock {
    fn dequantize(&self, out: &mut [f32; 256]) {
        let d = f16_to_f32(self.d);
        for (i, (low, out)) in self.qs.iter().zip(out.as_chunks_mut::<8>().0).enumerate() {
            let index = usize::from(*low) | usize::from(self.qh[i / 4] >> (2 * (i % 4)) & 3) << 8;
            let scale = d * (0.5 + f32::from(self.scales[i / 4] >> (4 * (i / 2 % 2)) & 15)) * 0.25;
            let point = iq2_point(IQ2_S[index]);
            *out = std::array::from_fn(|j| signed(scale * point[j], self.signs[i], j));
        }
    }
}
