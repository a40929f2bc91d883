//! IQ4_XS: 256 values in 136 bytes (4.25 bits each): IQ4_NL's table with 8 sub-blocks of 32 and
//! signed 6-bit scales.
//!
//! `value = (d * (scale - 32)) * KVALUES_IQ4NL[q]`, `scale` in `0..64`; the first product is
//! rounded to f32 first.
//!
//! | bytes | field | |
//! |---|---|---|
//! | 0-1 | `d` | f16 |
//! | 2-3 | `scales_h` | u16, little-endian: upper two bits of scale `i` at bit `2 i` |
//! | 4-7 | `scales_l` | low four bits of scale `i`: nibble `i % 2` of byte `i / 2` |
//! | 8-135 | `qs` | byte `16 i + j` (`i < 8, j < 16`): value `32 i + j` in the low nibble, `32 i + 16 + j` in the high one |

use bytemuck::{Pod, Zeroable};

use super::block::{Blocked, f16_to_f32};
use super::fit::{fit_scale_codes, inverse};
use super::iq4_nl::{KVALUES_IQ4NL, nearest_index, nearest_level, targets};

/// A block as stored.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Iq4XsBlock {
    /// The scale of the scales, f16.
    pub d: [u8; 2],
    /// Upper two bits of the scales.
    pub scales_h: [u8; 2],
    /// Low four bits of the scales.
    pub scales_l: [u8; 4],
    /// Two indices a byte.
    pub qs: [u8; 128],
}

impl Iq4XsBlock {
    /// Scales of the sub-blocks, each in `-32..32`.
    #[inline]
    pub fn scales(&self) -> [i8; 8] {
        let high = u16::from_le_bytes(self.scales_h);
        std::array::from_fn(|i| {
            let low = self.scales_l[i / 2] >> (4 * (i % 2)) & 15;
            (low | ((high >> (2 * i) & 3) << 4) as u8) as i8 - 32
        })
    }
}

impl Blocked<256> for Iq4XsBlock {
    fn dequantize(&self, out: &mut [f32; 256]) {
        let d = f16_to_f32(self.d);
        let scales = self.scales();
        for (i, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let scale = d * f32::from(scales[i]);
            for (j, q) in self.qs[16 * i..][..16].iter().enumerate() {
                out[j] = scale * f32::from(KVALUES_IQ4NL[usize::from(q & 15)]);
                out[j + 16] = scale * f32::from(KVALUES_IQ4NL[usize::from(q >> 4)]);
            }
        }
    }

    fn quantize(x: &[f32; 256]) -> Iq4XsBlock {
        let fit = fit_scale_codes::<8>(x, -32, targets(), nearest_level);
        let (mut high, mut scales_l, mut qs) = (0u16, [0; 4], [0; 128]);
        for (i, x) in x.as_chunks::<32>().0.iter().enumerate() {
            let code = (fit.codes[i] + 32) as u8;
            scales_l[i / 2] |= (code & 15) << (4 * (i % 2));
            high |= u16::from(code >> 4) << (2 * i);
            let inverse = inverse(fit.d * f32::from(fit.codes[i]));
            for (j, q) in qs[16 * i..][..16].iter_mut().enumerate() {
                *q = nearest_index(x[j] * inverse) | nearest_index(x[j + 16] * inverse) << 4;
            }
        }
        Iq4XsBlock { d: fit.d_bytes, scales_h: high.to_le_bytes(), scales_l, qs }
    }
}
