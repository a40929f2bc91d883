//! IQ1_M: 256 values in 56 bytes (1.75 bits each): ternary points of [`IQ1`], 3-bit scales and
//! shifts.
//!
//! `value = (d * (2 * scale + 1)) * (point ± 0.125)`, `scale` in `0..8`.
//!
//! | bytes | field | |
//! |---|---|---|
//! | 0-31 | `qs` | the low 8 bits of index `i`, of the values from `8 i` |
//! | 32-47 | `qh` | nibble `i % 2` of byte `i / 2`: the upper 3 bits of index `i`, and a bit that is set if its shift is negative |
//! | 48-55 | `scales` | 4 u16, little-endian: four times 3 bits of scale, of 16 values; the top nibbles are the f16 `d`, the lowest first |

use bytemuck::{Pod, Zeroable};

use super::block::{Decoded, f16_to_f32};
use super::grid::{IQ1, iq1_point};
use super::iq1_s::SHIFT;

/// A block as stored.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Iq1MBlock {
    /// The low bits of the indices.
    pub qs: [u8; 32],
    /// Upper bits of indices, and shifts.
    pub qh: [u8; 16],
    /// The scales and the scale of the scales.
    pub scales: [[u8; 2]; 4],
}

impl Decoded<256> for Iq1MBlock {
    fn dequantize(&self, out: &mut [f32; 256]) {
        let scales = self.scales.map(u16::from_le_bytes);
        let d = (0..4).fold(0u16, |d, i| d | (scales[i] >> 12) << (4 * i));
        let d = f16_to_f32(d.to_le_bytes());
        for (i, (low, out)) in self.qs.iter().zip(out.as_chunks_mut::<8>().0).enumerate() {
            let high = self.qh[i / 2] >> (4 * (i % 2));
            let index = usize::from(*low) | usize::from(high & 7) << 8;
            let scale = d * f32::from(2 * (scales[i / 8] >> (3 * (i / 2 % 4)) & 7) + 1);
            let shift = if high & 8 == 0 { SHIFT } else { -SHIFT };
            *out = iq1_point(IQ1[index]).map(|v| scale * (v + shift));
        }
    }
}
