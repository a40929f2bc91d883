//! Q2_K: 256 values in 84 bytes (2.625 bits each): 16 sub-blocks of 16 with 4-bit scales and mins.
//!
//! `value = (d * scale) * q - (dmin * min)`, `q` in `0..4`; both products are rounded to f32 first.
//!
//! | bytes | field | |
//! |---|---|---|
//! | 0-15 | `scales` | sub-block `i`: scale in the low nibble, min in the high one |
//! | 16-79 | `qs` | value `128 h + 32 j + l` (`h < 2, j < 4, l < 32`): bits `2 j` of byte `32 h + l` |
//! | 80-81 | `d` | f16 |
//! | 82-83 | `dmin` | f16 |

use bytemuck::{Pod, Zeroable};

use super::block::{Blocked, f16_to_f32};
use super::fit::fit_affine_codes;

/// A block as stored.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Q2KBlock {
    /// Scale and min of each sub-block.
    pub scales: [u8; 16],
    /// Four values a byte.
    pub qs: [u8; 64],
    /// The scale of the scales, f16.
    pub d: [u8; 2],
    /// The scale of the mins, f16.
    pub dmin: [u8; 2],
}

impl Blocked<256> for Q2KBlock {
    fn dequantize(&self, out: &mut [f32; 256]) {
        let (d, dmin) = (f16_to_f32(self.d), f16_to_f32(self.dmin));
        for (i, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let scale = d * f32::from(self.scales[i] & 15);
            let min = dmin * f32::from(self.scales[i] >> 4);
            let (half, j, odd) = (i / 8, i / 2 % 4, i % 2);
            let qs = &self.qs[32 * half + 16 * odd..][..16];
            for (out, q) in out.iter_mut().zip(qs) {
                *out = scale * f32::from(q >> (2 * j) & 3) - min;
            }
        }
    }

    fn quantize(x: &[f32; 256]) -> Q2KBlock {
        let fit = fit_affine_codes::<16>(x, 3, 15);
        Q2KBlock {
            scales: std::array::from_fn(|i| fit.scales[i] | fit.mins[i] << 4),
            qs: pack_2_bits(&fit.q),
            d: fit.d_bytes,
            dmin: fit.dmin_bytes,
        }
    }
}

/// Packs the low two bits of each value in the order of the K types: value `128 h + 32 j + l` in
/// bits `2 j` of byte `32 h + l`.
pub fn pack_2_bits(q: &[u8; 256]) -> [u8; 64] {
    std::array::from_fn(|byte| {
        let (half, l) = (byte / 32, byte % 32);
        (0..4).fold(0, |bits, j| bits | (q[128 * half + 32 * j + l] & 3) << (2 * j))
    })
}
