//! IQ4_NL: 32 values in 18 bytes (4.5 bits each): a scale and 4-bit indices into a fixed table of
//! 16 levels. The levels are closer together around zero, where weights are dense.
//!
//! `value = d * KVALUES_IQ4NL[q]`.
//!
//! | bytes | field | |
//! |---|---|---|
//! | 0-1 | `d` | f16 |
//! | 2-17 | `qs` | byte `j`: index of value `j` in the low nibble, of value `j + 16` in the high one |

use bytemuck::{Pod, Zeroable};

use super::block::{Blocked, f16_to_f32};
use super::fit::{fit_scale, inverse, scale_to_f16};

/// The levels of IQ4_NL and IQ4_XS, in rising order.
pub const KVALUES_IQ4NL: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// A block as stored.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Iq4NlBlock {
    /// The scale, f16.
    pub d: [u8; 2],
    /// Two indices a byte.
    pub qs: [u8; 16],
}

/// Index of the level nearest to `y`; halfway between two, the upper one.
#[inline]
pub fn nearest_index(y: f32) -> u8 {
    const MIDPOINTS: [f32; 15] = {
        let mut midpoints = [0.0; 15];
        let mut i = 0;
        while i < 15 {
            midpoints[i] = (KVALUES_IQ4NL[i] as f32 + KVALUES_IQ4NL[i + 1] as f32) / 2.0;
            i += 1;
        }
        midpoints
    };
    MIDPOINTS.iter().map(|&m| u8::from(y >= m)).sum()
}

/// Level nearest to `y`.
#[inline]
pub fn nearest_level(y: f32) -> f32 {
    f32::from(KVALUES_IQ4NL[usize::from(nearest_index(y))])
}

/// Targets of a fit for the extreme value: around either end of the table, which is not symmetric.
pub fn targets() -> impl Iterator<Item = f32> + Clone {
    (-7..=7).flat_map(|step| [-127.0 + 2.0 * step as f32, 113.0 + 2.0 * step as f32])
}

impl Blocked<32> for Iq4NlBlock {
    fn dequantize(&self, out: &mut [f32; 32]) {
        let d = f16_to_f32(self.d);
        for (j, q) in self.qs.iter().enumerate() {
            out[j] = d * f32::from(KVALUES_IQ4NL[usize::from(q & 15)]);
            out[j + 16] = d * f32::from(KVALUES_IQ4NL[usize::from(q >> 4)]);
        }
    }

    fn quantize(x: &[f32; 32]) -> Iq4NlBlock {
        let (d, value) = scale_to_f16(fit_scale(x, targets(), nearest_level));
        let inverse = inverse(value);
        let q = |v: f32| nearest_index(v * inverse);
        Iq4NlBlock { d, qs: std::array::from_fn(|j| q(x[j]) | q(x[j + 16]) << 4) }
    }
}
