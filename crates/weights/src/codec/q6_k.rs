//! Q6_K: 256 values in 210 bytes (6.5625 bits each): 16 sub-blocks of 16 with signed 8-bit scales.
//!
//! `value = (d * scale) * (q - 32)`, `q` in `0..64`; the first product is rounded to f32 first.
//!
//! Value `128 h + 32 j + l` (`h < 2, j < 4, l < 32`) is in sub-block `8 h + 2 j + l / 16`:
//!
//! | bytes | field | |
//! |---|---|---|
//! | 0-127 | `ql` | its low four bits: nibble `j / 2` of byte `64 h + 32 (j % 2) + l` |
//! | 128-191 | `qh` | its upper two bits: bits `2 j` of byte `32 h + l` |
//! | 192-207 | `scales` | i8 |
//! | 208-209 | `d` | f16 |

use bytemuck::{Pod, Zeroable};

use super::block::{Blocked, f16_to_f32};
use super::fit::{fit_scale_codes, inverse, nearest, targets_around};

/// A block as stored.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Q6KBlock {
    /// The low four bits, two values a byte.
    pub ql: [u8; 128],
    /// The upper two bits, four values a byte.
    pub qh: [u8; 64],
    /// The scales of the sub-blocks.
    pub scales: [i8; 16],
    /// The scale of the scales, f16.
    pub d: [u8; 2],
}

impl Blocked<256> for Q6KBlock {
    fn dequantize(&self, out: &mut [f32; 256]) {
        let d = f16_to_f32(self.d);
        for (i, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let scale = d * f32::from(self.scales[i]);
            let (half, j, odd) = (i / 8, i / 2 % 4, i % 2);
            let ql = &self.ql[64 * half + 32 * (j % 2) + 16 * odd..][..16];
            let qh = &self.qh[32 * half + 16 * odd..][..16];
            for ((out, low), high) in out.iter_mut().zip(ql).zip(qh) {
                let q = low >> (4 * (j / 2)) & 15 | (high >> (2 * j) & 3) << 4;
                *out = scale * (i32::from(q) - 32) as f32;
            }
        }
    }

    fn quantize(x: &[f32; 256]) -> Q6KBlock {
        let fit = fit_scale_codes::<16>(x, -128, targets_around(-32), |y| nearest(y, -32, 31) as f32);
        let (mut ql, mut qh) = ([0; 128], [0; 64]);
        for (i, x) in x.chunks_exact(16).enumerate() {
            let inverse = inverse(fit.d * f32::from(fit.codes[i]));
            let (half, j, odd) = (i / 8, i / 2 % 4, i % 2);
            for (l, v) in x.iter().enumerate() {
                let q = (nearest(v * inverse, -32, 31) + 32) as u8;
                ql[64 * half + 32 * (j % 2) + 16 * odd + l] |= (q & 15) << (4 * (j / 2));
                qh[32 * half + 16 * odd + l] |= (q >> 4) << (2 * j);
            }
        }
        Q6KBlock { ql, qh, scales: fit.codes, d: fit.d_bytes }
    }
}
