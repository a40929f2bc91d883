//! Q3_K: 256 values in 110 bytes (3.4375 bits each): 16 sub-blocks of 16 with signed 6-bit scales.
//!
//! `value = (d * scale) * q`, `q` in `-4..4`, `scale` in `-32..32`; the product in brackets is
//! rounded to f32 first.
//!
//! | bytes | field | |
//! |---|---|---|
//! | 0-31 | `hmask` | value `32 g + l` (`g < 8, l < 32`): bit `g` of byte `l`; **4 is taken off where it is 0** |
//! | 32-95 | `qs` | low two bits; value `128 h + 32 j + l`: bits `2 j` of byte `32 h + l` |
//! | 96-107 | `scales` | see [`unpack_q3_scales`] |
//! | 108-109 | `d` | f16 |

use bytemuck::{Pod, Zeroable};

use super::block::{Blocked, f16_to_f32};
use super::fit::{fit_scale_codes, inverse, nearest, targets_around};
use super::k_scales::{pack_q3_scales, unpack_q3_scales};
use super::q2_k::pack_2_bits;

/// A block as stored.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Q3KBlock {
    /// The third bits.
    pub hmask: [u8; 32],
    /// The low two bits, four values a byte.
    pub qs: [u8; 64],
    /// The packed scales of the sub-blocks.
    pub scales: [u8; 12],
    /// The scale of the scales, f16.
    pub d: [u8; 2],
}

impl Blocked<256> for Q3KBlock {
    fn dequantize(&self, out: &mut [f32; 256]) {
        let d = f16_to_f32(self.d);
        let scales = unpack_q3_scales(&self.scales);
        for (i, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let scale = d * f32::from(scales[i]);
            let (half, group, odd) = (i / 8, i / 2, i % 2);
            let qs = &self.qs[32 * half + 16 * odd..][..16];
            let hmask = &self.hmask[16 * odd..][..16];
            for ((out, low), high) in out.iter_mut().zip(qs).zip(hmask) {
                let q = (low >> (2 * (group % 4)) & 3) | (high >> group & 1) << 2;
                *out = scale * (i32::from(q) - 4) as f32;
            }
        }
    }

    fn quantize(x: &[f32; 256]) -> Q3KBlock {
        let fit = fit_scale_codes::<16>(x, -32, targets_around(-4), |y| nearest(y, -4, 3) as f32);
        let mut q = [0; 256];
        for (i, (q, x)) in q.chunks_exact_mut(16).zip(x.chunks_exact(16)).enumerate() {
            let inverse = inverse(fit.d * f32::from(fit.codes[i]));
            for (q, v) in q.iter_mut().zip(x) {
                *q = (nearest(v * inverse, -4, 3) + 4) as u8;
            }
        }
        Q3KBlock {
            hmask: std::array::from_fn(|l| (0..8).fold(0, |bits, g| bits | (q[32 * g + l] >> 2) << g)),
            qs: pack_2_bits(&q),
            scales: pack_q3_scales(&fit.codes),
            d: fit.d_bytes,
        }
    }
}
