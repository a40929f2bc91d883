//! TQ1_0: 256 ternary values in 54 bytes (1.6875 bits each): five to a byte.
//!
//! `value = d * q`, `q` in -1, 0, 1.
//!
//! Byte `b` is a fraction of 256 in base 3: digit `n` is the top of `b * 3^n`, modulo 256, times 3.
//! Multiplications alone thus extract the digits.
//!
//! | bytes | field | |
//! |---|---|---|
//! | 0-31 | `qs` | digit `n < 5` of byte `j`: value `32 n + j` |
//! | 32-47 | `qs` | digit `n < 5` of byte `32 + j`: value `160 + 16 n + j` |
//! | 48-51 | `qh` | digit `n < 4` of byte `j`: value `240 + 4 n + j` |
//! | 52-53 | `d` | f16 |

use bytemuck::{Pod, Zeroable};

use super::block::{Decoded, f16_to_f32};

/// A block as stored.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Tq1_0Block {
    /// Five values a byte.
    pub qs: [u8; 48],
    /// Four values a byte.
    pub qh: [u8; 4],
    /// The scale, f16.
    pub d: [u8; 2],
}

/// Digit `n` of a byte, as -1, 0 or 1.
#[inline]
pub fn ternary_digit(byte: u8, n: usize) -> f32 {
    const POWERS: [u8; 5] = [1, 3, 9, 27, 81];
    let rest = byte.wrapping_mul(POWERS[n]);
    (i32::from((u16::from(rest) * 3) >> 8) - 1) as f32
}

impl Decoded<256> for Tq1_0Block {
    fn dequantize(&self, out: &mut [f32; 256]) {
        let d = f16_to_f32(self.d);
        let (first, second) = self.qs.split_at(32);
        let mut out = out.iter_mut();
        for (bytes, n_digits) in [(first, 5), (second, 5), (&self.qh[..], 4)] {
            let digits = (0..n_digits).flat_map(|n| bytes.iter().map(move |&byte| ternary_digit(byte, n)));
            for (digit, out) in digits.zip(&mut out) {
                *out = d * digit;
            }
        }
    }
}
