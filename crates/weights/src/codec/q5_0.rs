//! Q5_0: 32 values in 22 bytes (5.5 bits each): a scale and signed 5-bit integers.
//!
//! `value = d * (q - 16)`, `q` in `0..32`.
//!
//! | bytes | field | |
//! |---|---|---|
//! | 0-1 | `d` | f16 |
//! | 2-5 | `qh` | u32, little-endian: bit `j` is the fifth bit of value `j` |
//! | 6-21 | `qs` | byte `j`: low four bits of value `j` in the low nibble, of value `j + 16` in the high one |

use bytemuck::{Pod, Zeroable};

use super::block::{Blocked, f16_to_f32};
use super::fit::{fit_scale, inverse, nearest, scale_to_f16, targets_around};

/// A block as stored.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Q5_0Block {
    /// The scale, f16.
    pub d: [u8; 2],
    /// The fifth bits.
    pub qh: [u8; 4],
    /// The low four bits, two values a byte.
    pub qs: [u8; 16],
}

/// Unpacks the integers of a Q5 block, each in `0..32`, in order.
#[inline]
pub fn unpack_q5(qh: &[u8; 4], qs: &[u8; 16]) -> [u8; 32] {
    let high = u32::from_le_bytes(*qh);
    let mut q = [0; 32];
    for (j, low) in qs.iter().enumerate() {
        q[j] = low & 15 | ((high >> j & 1) << 4) as u8;
        q[j + 16] = low >> 4 | ((high >> (j + 16) & 1) << 4) as u8;
    }
    q
}

/// Inverse of [`unpack_q5`].
#[inline]
pub fn pack_q5(q: &[u8; 32]) -> ([u8; 4], [u8; 16]) {
    let high = q.iter().enumerate().fold(0, |bits, (j, q)| bits | u32::from(q >> 4 & 1) << j);
    (high.to_le_bytes(), std::array::from_fn(|j| q[j] & 15 | q[j + 16] << 4))
}

impl Blocked<32> for Q5_0Block {
    fn dequantize(&self, out: &mut [f32; 32]) {
        let d = f16_to_f32(self.d);
        for (out, q) in out.iter_mut().zip(unpack_q5(&self.qh, &self.qs)) {
            *out = d * (i32::from(q) - 16) as f32;
        }
    }

    fn quantize(x: &[f32; 32]) -> Q5_0Block {
        let (d, value) = scale_to_f16(fit_scale(x, targets_around(-16), |y| nearest(y, -16, 15) as f32));
        let inverse = inverse(value);
        let (qh, qs) = pack_q5(&x.map(|v| (nearest(v * inverse, -16, 15) + 16) as u8));
        Q5_0Block { d, qh, qs }
    }
}
