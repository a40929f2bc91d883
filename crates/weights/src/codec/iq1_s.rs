//! IQ1_S: 256 values in 50 bytes (1.5625 bits each): ternary points of [`IQ1`], 3-bit scales and a
//! shift.
//!
//! `value = (d * (2 * scale + 1)) * (point ± 0.125)`, `scale` in `0..8`.
//!
//! | bytes | field | |
//! |---|---|---|
//! | 0-1 | `d` | f16 |
//! | 2-33 | `qs` | the low 8 bits of index `i`, of the values from `8 i` |
//! | 34-49 | `qh` | 8 u16, little-endian, for 32 values: four times the upper 3 bits of an index, 3 bits of scale, a bit that is set if the shift is negative |

use bytemuck::{Pod, Zeroable};

use super::block::{Decoded, f16_to_f32};
use super::grid::{IQ1, iq1_point};

/// Offset of a group's values from -1, 0 and 1, positive or negative.
pub const SHIFT: f32 = 0.125;

/// A block as stored.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Iq1SBlock {
    /// The scale of the scales, f16.
    pub d: [u8; 2],
    /// The low bits of the indices.
    pub qs: [u8; 32],
    /// Upper bits of indices, scale and shift of 32 values each.
    pub qh: [[u8; 2]; 8],
}

impl Decoded<256> for Iq1SBlock {
    fn dequantize(&self, out: &mut [f32; 256]) {
        let d = f16_to_f32(self.d);
        for (i, (low, out)) in self.qs.iter().zip(out.as_chunks_mut::<8>().0).enumerate() {
            let high = u16::from_le_bytes(self.qh[i / 4]);
            let index = usize::from(*low) | usize::from(high >> (3 * (i % 4)) & 7) << 8;
            let scale = d * f32::from(2 * (high >> 12 & 7) + 1);
            let shift = if high & 0x8000 == 0 { SHIFT } else { -SHIFT };
            *out = iq1_point(IQ1[index]).map(|v| scale * (v + shift));
        }
    }
}
