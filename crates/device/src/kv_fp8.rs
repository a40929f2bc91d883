//! Vectors of keys and values as FP8 with one scale ([`KvType::Fp8`](crate::KvType)).
//!
//! `x[i] = scale * e4m3[i]`. E4M3 (OCP 8-bit Floating Point Specification 1.0, PyTorch's
//! `float8_e4m3fn`) has a sign, 4 bits of exponent biased by 7, and 3 bits of mantissa. Magnitudes
//! go from 2^-9 to 448; there are no infinities, and NaN has all bits but the sign set.
//!
//! The scale makes the largest magnitude of the vector 448, which E4M3 holds exactly. So vectors of
//! any size keep three bits of mantissa. Errors are a tenth smaller than without a scale, or with a
//! scale that is a power of two (docs/codecs.md).

/// The largest magnitude of E4M3.
pub const MAX: f32 = 448.0;
/// Smallest scale; its inverse is finite.
const LEAST_SCALE: f32 = f32::from_bits(27 << 23); // 2^-100

/// Bytes of one vector: a byte for each number, padded to whole words, and the scale as f32.
pub const fn vector_bytes(head_dim: usize) -> usize {
    head_dim.next_multiple_of(4) + 4
}

/// Scale of a vector with this largest magnitude.
pub fn scale(largest: f32) -> f32 {
    (largest / MAX).max(LEAST_SCALE)
}

/// The nearest E4M3 number, ties to even. Magnitudes above [`MAX`] become [`MAX`]; NaN stays NaN.
pub fn to_e4m3(x: f32) -> u8 {
    let sign = (x.to_bits() >> 24) as u8 & 0x80;
    let (magnitude, bits) = (x.abs(), x.abs().to_bits());
    let rounded = if x.is_nan() {
        0x7f
    } else if magnitude < 1.0 / 64.0 {
        // Subnormal numbers have steps of 2^-9; the smallest normal number is 8 steps.
        (magnitude * 512.0).round_ties_even() as u32
    } else {
        ((bits + 0x7_ffff + (bits >> 20 & 1)) >> 20).saturating_sub((127 - 7) << 3).min(0x7e)
    };
    sign | rounded as u8
}

/// Value of an E4M3 byte.
pub fn from_e4m3(byte: u8) -> f32 {
    let (exponent, mantissa) = (u32::from(byte >> 3 & 15), u32::from(byte & 7));
    let magnitude = match (exponent, mantissa) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa as f32 / 512.0,
        _ => f32::from_bits((exponent + 120) << 23 | mantissa << 20),
    };
    if byte & 0x80 == 0 { magnitude } else { -magnitude }
}

/// Stores a vector in [`vector_bytes`] bytes. All numbers become NaN if one is not finite.
pub fn write(vector: &[f32], out: &mut [u8]) {
    let is_finite = vector.iter().all(|x| x.is_finite());
    let largest = vector.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
    let scale = if is_finite { scale(largest) } else { f32::NAN };
    let (bytes, last) = out.split_at_mut(out.len() - 4);
    last.copy_from_slice(&scale.to_le_bytes());
    for (out, x) in bytes.iter_mut().zip(vector) {
        *out = to_e4m3(x * (1.0 / scale));
    }
}

/// Loads a vector that [`write`] stored.
pub fn read(bytes: &[u8], vector: &mut [f32]) {
    let Some((bytes, scale)) = bytes.split_last_chunk::<4>() else { return };
    let scale = f32::from_le_bytes(*scale);
    for (x, byte) in vector.iter_mut().zip(bytes) {
        *x = scale * from_e4m3(*byte);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every finite number is unchanged; halfway cases round to the even mantissa.
    #[test]
    fn numbers_round_to_the_nearest() {
        assert_eq!(
            [0x08, 0x07, 0x01, 0x7e, 0xb8].map(from_e4m3),
            [0.015625, 0.013671875, 0.001953125, 448.0, -1.0]
        );
        assert!(from_e4m3(0x7f).is_nan() && from_e4m3(0xff).is_nan() && to_e4m3(f32::NAN) & 0x7f == 0x7f);
        for byte in (0..=255u8).filter(|byte| byte & 0x7f != 0x7f) {
            assert_eq!(to_e4m3(from_e4m3(byte)), byte);
        }
        for byte in 0..0x7e {
            let (low, high) = (from_e4m3(byte), from_e4m3(byte + 1));
            let middle = (low + high) / 2.0;
            assert_eq!(to_e4m3(middle), byte + (byte & 1), "{middle}");
            assert_eq!(to_e4m3(middle.next_down()), byte, "{middle}");
            assert_eq!(to_e4m3(-middle.next_up()), 0x80 | (byte + 1), "{middle}");
        }
        assert_eq!([449.0, 1e30, -f32::INFINITY].map(to_e4m3), [0x7e, 0x7e, 0xfe]);
    }

    /// The error is at most 2^-4 of each number for vectors of any size, down to 2^-14 of the
    /// largest number, which has no error.
    #[test]
    fn vectors_keep_their_precision_at_any_size() {
        for size in [1e-25f32, 1e-4, 0.3, 448.0, 449.0, 1e5, 1e30] {
            let number = |i: i32| size * (i as f32 / 70.0).powi(6) * (1.0 - 2.0 * (i % 2) as f32);
            let vector: Vec<f32> = (1..=70).map(number).collect();
            let mut bytes = vec![0; vector_bytes(vector.len())];
            write(&vector, &mut bytes);
            let mut got = vec![0.0; vector.len()];
            read(&bytes, &mut got);
            for (x, got) in vector.iter().zip(&got) {
                assert!((x - got).abs() <= (x.abs() / 15.9).max(size * 2f32.powi(-17)), "{x} {got}");
            }
            assert!((got[69] - size).abs() < 1e-6 * size);
        }
        assert_eq!([448.0, 896.0, 0.0].map(scale), [1.0, 2.0, LEAST_SCALE]);
        let mut bytes = [0; vector_bytes(5)];
        write(&[1.0, f32::NAN, 0.0, f32::INFINITY, 2.0], &mut bytes);
        let mut got = [0.0; 5];
        read(&bytes, &mut got);
        assert!(got.iter().all(|x| x.is_nan()));
    }
}
