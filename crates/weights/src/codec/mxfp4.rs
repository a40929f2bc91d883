//! MXFP4: 32 values in 17 bytes (4.25 bits each): a power of two and 4-bit floats (E2M1), of the
//! OCP Microscaling Formats specification 1.0.
//!
//! `value = e8m0_half(e) * KVALUES_MXFP4[q]`: the table holds twice the E2M1 value, the scale half
//! of `2^(e - 127)`.
//!
//! | bytes | field | |
//! |---|---|---|
//! | 0 | `e` | E8M0: an exponent, biased by 127 |
//! | 1-16 | `qs` | byte `j`: value `j` in the low nibble, value `j + 16` in the high one |

use bytemuck::{Pod, Zeroable};

use super::block::Blocked;

/// Twice the value of each E2M1 code: sign, two bits of exponent, one bit of mantissa. Code 8 (-0)
/// is plain zero.
pub const KVALUES_MXFP4: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// A block as stored.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Mxfp4Block {
    /// The exponent.
    pub e: u8,
    /// Two values a byte.
    pub qs: [u8; 16],
}

/// Builds a block of this type from its scale and 16 bytes of another format. There a byte's
/// nibbles are neighbouring values, the first in the low nibble. Here byte `j` has value `j` in the
/// low nibble and value `j + 16` in the high nibble.
pub fn from_pairs(scale: u8, pairs: &[u8], block: &mut [u8]) {
    let nibble = |j: usize| pairs[j / 2] >> (j % 2 * 4) & 15;
    block[0] = scale;
    for (j, byte) in block[1..].iter_mut().enumerate() {
        *byte = nibble(j) | nibble(j + 16) << 4;
    }
}

/// Computes `2^(e - 128)`, half the scale of an E8M0 exponent. The two least exponents are
/// subnormal in f32. The specification's NaN, 255, is decoded as `2^127`, as in all other
/// implementations.
#[inline]
pub fn e8m0_half(e: u8) -> f32 {
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { u32::from(e - 1) << 23 })
}

/// Code nearest to `y` in units of [`KVALUES_MXFP4`]; halfway between two, the one of smaller
/// magnitude.
#[inline]
pub fn nearest_code(y: f32) -> u8 {
    const MIDPOINTS: [f32; 7] = [0.5, 1.5, 2.5, 3.5, 5.0, 7.0, 10.0];
    let magnitude: u8 = MIDPOINTS.iter().map(|&m| u8::from(y.abs() > m)).sum();
    if y < 0.0 && magnitude > 0 { magnitude | 8 } else { magnitude }
}

impl Blocked<32> for Mxfp4Block {
    /// The limit is 6 * 2^125, the largest value whose neighbours do not overflow f32. The scales
    /// span all of f32.
    const LIMIT: f32 = f32::from_bits(0x7f40_0000);

    fn dequantize(&self, out: &mut [f32; 32]) {
        let d = e8m0_half(self.e);
        for (j, q) in self.qs.iter().enumerate() {
            out[j] = d * f32::from(KVALUES_MXFP4[usize::from(q & 15)]);
            out[j + 16] = d * f32::from(KVALUES_MXFP4[usize::from(q >> 4)]);
        }
    }

    /// Chooses between two scales. The specification's scale puts the largest magnitude in `[4,
    /// 8)`, which clips values over 6. The next larger scale clips nothing. The block uses the one
    /// with the smaller squared error.
    fn quantize(x: &[f32; 32]) -> Mxfp4Block {
        let largest = x.iter().fold(0.0f32, |a, v| a.max(v.abs()));
        // Exponent of the largest magnitude less E2M1's largest exponent, 2; subnormals count as
        // the least exponent.
        let exponent = (largest.to_bits() >> 23).saturating_sub(2) as u8;
        // Division, since the inverse of the least scales is infinite.
        let code = |v: f32, e: u8| nearest_code((f64::from(v) / f64::from(e8m0_half(e))) as f32);
        let error = |e: u8| -> f64 {
            let d = f64::from(e8m0_half(e));
            x.iter()
                .map(|&v| (f64::from(v) - d * f64::from(KVALUES_MXFP4[usize::from(code(v, e))])).powi(2))
                .sum()
        };
        let e = if error(exponent + 1) < error(exponent) { exponent + 1 } else { exponent };
        Mxfp4Block { e, qs: std::array::from_fn(|j| code(x[j], e) | code(x[j + 16], e) << 4) }
    }
}
