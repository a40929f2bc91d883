//! Q5_K: 256 values in 176 bytes (5.5 bits each): 8 sub-blocks of 32 with 6-bit scales and mins.
//!
//! `value = (d * scale) * q - (dmin * min)`, `q` in `0..32`; both products are rounded to f32
//! first.
//!
//! | bytes | field | |
//! |---|---|---|
//! | 0-1 | `d` | f16 |
//! | 2-3 | `dmin` | f16 |
//! | 4-15 | `scales` | see [`unpack_scales_mins`] |
//! | 16-47 | `qh` | value `32 g + l` (`g < 8, l < 32`): its fifth bit is bit `g` of byte `l` |
//! | 48-175 | `qs` | low four bits, in Q4_K's order |

use bytemuck::{Pod, Zeroable};

use super::block::{Blocked, f16_to_f32};
use super::fit::fit_affine_codes;
use super::k_scales::{pack_scales_mins, unpack_scales_mins};
use super::q4_k::pack_4_bits;

/// A block as stored.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Q5KBlock {
    /// The scale of the scales, f16.
    pub d: [u8; 2],
    /// The scale of the mins, f16.
    pub dmin: [u8; 2],
    /// The packed scales and mins of the sub-blocks.
    pub scales: [u8; 12],
    /// The fifth bits.
    pub qh: [u8; 32],
    /// The low four bits, two values a byte.
    pub qs: [u8; 128],
}

impl Blocked<256> for Q5KBlock {
    fn dequantize(&self, out: &mut [f32; 256]) {
        let (d, dmin) = (f16_to_f32(self.d), f16_to_f32(self.dmin));
        let (scales, mins) = unpack_scales_mins(&self.scales);
        let scale = |i: usize| (d * f32::from(scales[i]), dmin * f32::from(mins[i]));
        for (c, out) in out.as_chunks_mut::<64>().0.iter_mut().enumerate() {
            let ((scale_low, min_low), (scale_high, min_high)) = (scale(2 * c), scale(2 * c + 1));
            for (l, (q, high)) in self.qs[32 * c..][..32].iter().zip(&self.qh).enumerate() {
                let high = high >> (2 * c);
                out[l] = scale_low * f32::from(q & 15 | (high & 1) << 4) - min_low;
                out[l + 32] = scale_high * f32::from(q >> 4 | (high & 2) << 3) - min_high;
            }
        }
    }

    fn quantize(x: &[f32; 256]) -> Q5KBlock {
        let fit = fit_affine_codes::<8>(x, 31, 63);
        Q5KBlock {
            d: fit.d_bytes,
            dmin: fit.dmin_bytes,
            scales: pack_scales_mins(&fit.scales, &fit.mins),
            qh: std::array::from_fn(|l| (0..8).fold(0, |bits, g| bits | (fit.q[32 * g + l] >> 4) << g)),
            qs: pack_4_bits(&fit.q),
        }
    }
}
