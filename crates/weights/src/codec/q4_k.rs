//! Q4_K: 256 values in 144 bytes (4.5 bits each): 8 sub-blocks of 32 with 6-bit scales and mins.
//!
//! `value = (d * scale) * q - (dmin * min)`, `q` in `0..16`; both products are rounded to f32
//! first.
//!
//! | bytes | field | |
//! |---|---|---|
//! | 0-1 | `d` | f16 |
//! | 2-3 | `dmin` | f16 |
//! | 4-15 | `scales` | see [`unpack_scales_mins`] |
//! | 16-143 | `qs` | byte `32 c + l` (`c < 4, l < 32`): value `64 c + l` in the low nibble, `64 c + 32 + l` in the high one |

use bytemuck::{Pod, Zeroable};

use super::block::{Blocked, f16_to_f32};
use super::fit::fit_affine_codes;
use super::k_scales::{pack_scales_mins, unpack_scales_mins};

/// A block as stored.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Q4KBlock {
    /// The scale of the scales, f16.
    pub d: [u8; 2],
    /// The scale of the mins, f16.
    pub dmin: [u8; 2],
    /// The packed scales and mins of the sub-blocks.
    pub scales: [u8; 12],
    /// Two values a byte.
    pub qs: [u8; 128],
}

impl Blocked<256> for Q4KBlock {
    fn dequantize(&self, out: &mut [f32; 256]) {
        let (d, dmin) = (f16_to_f32(self.d), f16_to_f32(self.dmin));
        let (scales, mins) = unpack_scales_mins(&self.scales);
        let scale = |i: usize| (d * f32::from(scales[i]), dmin * f32::from(mins[i]));
        for (c, out) in out.as_chunks_mut::<64>().0.iter_mut().enumerate() {
            let ((scale_low, min_low), (scale_high, min_high)) = (scale(2 * c), scale(2 * c + 1));
            for (l, q) in self.qs[32 * c..][..32].iter().enumerate() {
                out[l] = scale_low * f32::from(q & 15) - min_low;
                out[l + 32] = scale_high * f32::from(q >> 4) - min_high;
            }
        }
    }

    fn quantize(x: &[f32; 256]) -> Q4KBlock {
        let fit = fit_affine_codes::<8>(x, 15, 63);
        Q4KBlock {
            d: fit.d_bytes,
            dmin: fit.dmin_bytes,
            scales: pack_scales_mins(&fit.scales, &fit.mins),
            qs: pack_4_bits(&fit.q),
        }
    }
}

/// Packs the low four bits of each value in the order of Q4_K and Q5_K. Byte `32 c + l` has value
/// `64 c + l` in the low nibble and `64 c + 32 + l` in the high nibble.
pub fn pack_4_bits(q: &[u8; 256]) -> [u8; 128] {
    std::array::from_fn(|byte| {
        let (c, l) = (byte / 32, byte % 32);
        q[64 * c + l] & 15 | q[64 * c + 32 + l] << 4
    })
}
