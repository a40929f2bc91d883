//! The affine types of MLX and `.base`: groups of 32, 64 or 128 integers of 2 to 8 bits, with
//! scales and offsets in separate arrays. [`Affine`] documents the formula and the packing.
//!
//! Decoding rounds the product to f32 before the offset is added.

use half::{bf16, f16};

use super::fit::{fit_affine, fit_scale, inverse, nearest, nearest_level, sums, targets_around};
use super::mxfp4::e8m0_half;
use crate::{Affine, ScaleType};

/// Length of the longest group.
const MAX_GROUP: usize = 128;

/// Magnitude to which inputs are clamped, small enough for the arithmetic of the fits. F16 scales
/// saturate earlier.
const LIMIT: f32 = 1e9;

/// Unpacks the 8 integers of `bits` bits in the first `bits` bytes of `packed`, the first from the
/// lowest bits.
#[inline(always)]
pub fn unpack_8(bits: usize, packed: &[u8]) -> [u8; 8] {
    let mut word = [0; 8];
    word[..bits].copy_from_slice(&packed[..bits]);
    let word = u64::from_le_bytes(word);
    std::array::from_fn(|i| (word >> (i * bits)) as u8 & (0xff >> (8 - bits)))
}

/// Inverse of [`unpack_8`]; every input is below `2^bits`.
#[inline(always)]
pub fn pack_8(bits: usize, q: [u8; 8], packed: &mut [u8]) {
    let word = q.iter().enumerate().fold(0u64, |word, (i, q)| word | u64::from(*q) << (i * bits));
    packed[..bits].copy_from_slice(&word.to_le_bytes()[..bits]);
}

/// Scale or offset `i` of a plane.
#[inline]
pub fn read_scale(scale: ScaleType, plane: &[u8], i: usize) -> f32 {
    let at = i * scale.bytes();
    match scale {
        ScaleType::F32 => f32::from_le_bytes([plane[at], plane[at + 1], plane[at + 2], plane[at + 3]]),
        ScaleType::F16 => f16::from_le_bytes([plane[at], plane[at + 1]]).to_f32(),
        ScaleType::BF16 => bf16::from_le_bytes([plane[at], plane[at + 1]]).to_f32(),
        ScaleType::E8M0 => 2.0 * e8m0_half(plane[at]),
    }
}

/// Decodes groups that are stored one after the other, rows or parts of rows.
///
/// # Panics
/// `dst` has more groups than `src`, `scales` or `biases`.
pub fn dequantize(affine: Affine, src: &[u8], scales: &[u8], biases: &[u8], dst: &mut [f32]) {
    match affine.bits() {
        2 => decode::<2>(affine, src, scales, biases, dst),
        3 => decode::<3>(affine, src, scales, biases, dst),
        4 => decode::<4>(affine, src, scales, biases, dst),
        5 => decode::<5>(affine, src, scales, biases, dst),
        6 => decode::<6>(affine, src, scales, biases, dst),
        _ => decode::<8>(affine, src, scales, biases, dst),
    }
}

fn decode<const BITS: usize>(affine: Affine, src: &[u8], scales: &[u8], biases: &[u8], dst: &mut [f32]) {
    let groups = src.chunks_exact(affine.group_bytes()).zip(dst.chunks_exact_mut(affine.group()));
    for (i, (src, dst)) in groups.enumerate() {
        let scale = read_scale(affine.scale(), scales, i);
        let eights = src.as_chunks::<BITS>().0.iter().zip(dst.as_chunks_mut::<8>().0);
        if affine.is_symmetric() {
            for (packed, out) in eights {
                *out = unpack_8(BITS, packed).map(|q| (i32::from(q) - (1 << (BITS - 1))) as f32 * scale);
            }
        } else {
            let bias = read_scale(affine.scale(), biases, i);
            for (packed, out) in eights {
                *out = unpack_8(BITS, packed).map(|q| f32::from(q) * scale + bias);
            }
        }
    }
}

/// True if [`quantize`] writes this type: all except those whose offsets would be powers of two,
/// which have no sign.
pub fn has_quantizer(affine: Affine) -> bool {
    affine.is_symmetric() || affine.scale() != ScaleType::E8M0
}

/// Encodes groups that are stored one after the other. `biases` is empty for a symmetric type.
///
/// NaN becomes 0, and an infinity the largest value that the scale can represent.
///
/// # Panics
/// `src` is not whole groups, another slice does not have room for exactly as many groups, or the
/// type has [no quantiser](has_quantizer).
pub fn quantize(affine: Affine, src: &[f32], dst: &mut [u8], scales: &mut [u8], biases: &mut [u8]) {
    assert!(has_quantizer(affine), "{affine}: offsets that are powers of two have no sign");
    let n_groups = src.len() / affine.group();
    let n_scale_bytes = n_groups * affine.scale().bytes();
    assert_eq!(src.len(), n_groups * affine.group(), "{affine}: whole groups");
    assert_eq!(dst.len(), n_groups * affine.group_bytes(), "{affine}: bytes for {n_groups} groups");
    assert_eq!(scales.len(), n_scale_bytes, "{affine}: bytes of scales");
    assert_eq!(
        biases.len(),
        if affine.is_symmetric() { 0 } else { n_scale_bytes },
        "{affine}: bytes of biases"
    );

    let (bits, size) = (affine.bits(), affine.scale().bytes());
    let mut clean = [0.0; MAX_GROUP];
    let clean = &mut clean[..affine.group()];
    for (i, (x, packed)) in
        src.chunks_exact(affine.group()).zip(dst.chunks_exact_mut(affine.group_bytes())).enumerate()
    {
        for (clean, &v) in clean.iter_mut().zip(x) {
            *clean = if v.is_nan() { 0.0 } else { v.clamp(-LIMIT, LIMIT) };
        }
        let fit =
            if affine.is_symmetric() { symmetric_fit(affine, clean) } else { affine_fit(affine, clean) };
        scales[i * size..][..size].copy_from_slice(&fit.scale.bytes[..size]);
        if !affine.is_symmetric() {
            biases[i * size..][..size].copy_from_slice(&fit.bias.bytes[..size]);
        }
        for (x, packed) in clean.as_chunks::<8>().0.iter().zip(packed.chunks_exact_mut(bits)) {
            pack_8(bits, x.map(|v| fit.code(bits, v)), packed);
        }
    }
}

/// A number in its stored form and its decoded value.
#[derive(Clone, Copy, Default)]
struct Stored {
    bytes: [u8; 4],
    value: f32,
}

impl Stored {
    /// The nearest number of the type. Magnitudes saturate; E8M0 uses the power of two with the
    /// nearest ratio.
    fn new(scale: ScaleType, value: f32) -> Stored {
        let (mut bytes, size) = ([0; 4], scale.bytes());
        match scale {
            ScaleType::F32 => bytes = value.to_le_bytes(),
            ScaleType::F16 => {
                bytes[..size].copy_from_slice(&f16::from_f32(value.clamp(-65504.0, 65504.0)).to_le_bytes());
            }
            ScaleType::BF16 => bytes[..size].copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
            ScaleType::E8M0 => bytes[0] = (value.abs().log2().round() + 127.0).clamp(0.0, 254.0) as u8,
        }
        Stored { bytes, value: read_scale(scale, &bytes, 0) }
    }

    /// The number and its two neighbours. A neighbour of 0 or beyond the largest number is the
    /// number itself.
    fn neighbours(self, scale: ScaleType) -> [Stored; 3] {
        let size = scale.bytes();
        let code = u32::from_le_bytes(self.bytes);
        let beside = |code: Option<u32>| {
            let bytes = code.unwrap_or_default().to_le_bytes();
            let value = read_scale(scale, &bytes[..size], 0);
            // Codes past the end of the type would be an infinity, or have the other sign.
            let sane = code.is_some() && value.is_finite() && value.signum() == self.value.signum();
            if sane && self.value != 0.0 { Stored { bytes, value } } else { self }
        };
        let last = scale == ScaleType::E8M0 && code >= 254;
        [self, beside(code.checked_sub(1)), beside(code.checked_add(1).filter(|_| !last))]
    }
}

/// Parameters of an encoded group.
#[derive(Clone, Copy, Default)]
struct Fit {
    scale: Stored,
    bias: Stored,
    /// Code of an integer with value zero.
    middle: i32,
}

impl Fit {
    fn code(&self, bits: usize, v: f32) -> u8 {
        let top = (1 << bits) - 1;
        let y = (v - self.bias.value) * inverse(self.scale.value);
        (nearest(y, -self.middle, top - self.middle) + self.middle) as u8
    }

    /// Squared error of the group.
    fn error(&self, bits: usize, x: &[f32]) -> f64 {
        let (lo, hi) = (-self.middle as f32, ((1 << bits) - 1 - self.middle) as f32);
        let (scale, bias, inverse) = (self.scale.value, self.bias.value, inverse(self.scale.value));
        let [error] = sums(x, |v| {
            let off = f64::from(v) - f64::from(nearest_level((v - bias) * inverse, lo, hi) * scale + bias);
            [off * off]
        });
        error
    }
}

/// Finds the scale with the least error among the neighbours of the best scale.
fn symmetric_fit(affine: Affine, x: &[f32]) -> Fit {
    let (bits, middle) = (affine.bits(), 1 << (affine.bits() - 1));
    let best =
        fit_scale(x, targets_around(-middle), |y| nearest_level(y, -middle as f32, (middle - 1) as f32));
    // E8M0 has no sign: the largest magnitude may be positive, and is then clipped at `middle - 1`.
    let best = if affine.scale() == ScaleType::E8M0 { best.abs() } else { best };
    let candidates = Stored::new(affine.scale(), best).neighbours(affine.scale());
    least(bits, x, candidates.map(|scale| Fit { scale, bias: Stored::default(), middle }))
}

/// Finds the pair of scale and offset with the least error, among the neighbours of the best scale
/// and of each one's best offset. With few bits in an offset its rounding error is as large as a
/// step of 8-bit integers, so the search pays.
fn affine_fit(affine: Affine, x: &[f32]) -> Fit {
    let (bits, scale_type) = (affine.bits(), affine.scale());
    let top = (1 << bits) - 1;
    let (d, m) = fit_affine(x, top, false);
    let mut fits = [Fit::default(); 9];
    let scales = Stored::new(scale_type, d).neighbours(scale_type);
    for (scale, fits) in scales.into_iter().zip(fits.as_chunks_mut::<3>().0) {
        let inverse = inverse(scale.value);
        let [rest] = sums(x, |v| {
            [f64::from(v) - f64::from(scale.value * nearest_level((v - m) * inverse, 0.0, top as f32))]
        });
        let offset = (rest / x.len() as f64) as f32;
        let biases = Stored::new(scale_type, offset).neighbours(scale_type);
        *fits = biases.map(|bias| Fit { scale, bias, middle: 0 });
    }
    least(bits, x, fits)
}

fn least(bits: usize, x: &[f32], fits: impl IntoIterator<Item = Fit>) -> Fit {
    let mut best = (f64::INFINITY, Fit::default());
    for fit in fits {
        let error = fit.error(bits, x);
        if error < best.0 {
            best = (error, fit);
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_is_a_stream_of_bits() {
        for bits in Affine::BITS {
            let top = 0xff >> (8 - bits);
            let q: [u8; 8] = std::array::from_fn(|i| (i * 37 + 11) as u8 & top);
            let mut packed = [0; 8];
            pack_8(bits, q, &mut packed);
            assert_eq!(unpack_8(bits, &packed), q, "{bits} bits");
            // Value `i` is at bit `i * bits`.
            for (i, q) in q.iter().enumerate() {
                let bit = |at: usize| packed[at / 8] >> (at % 8) & 1;
                let value = (0..bits).fold(0, |value, b| value | bit(i * bits + b) << b);
                assert_eq!(value, *q, "{bits} bits, value {i}");
            }
        }
    }

    #[test]
    fn stored_numbers_are_the_nearest() {
        for (scale, value, expected) in [
            (ScaleType::F32, 0.1, 0.1),
            (ScaleType::F16, 1e6, 65504.0),
            (ScaleType::F16, 1.0 / 3.0, 0.333_251_95),
            (ScaleType::BF16, 1.0 / 3.0, 0.333_984_38),
            (ScaleType::E8M0, 0.3, 0.25),
            (ScaleType::E8M0, 0.4, 0.5),
            (ScaleType::E8M0, 0.0, 2f32.powi(-127)),
        ] {
            assert_eq!(Stored::new(scale, value).value, expected, "{scale} {value}");
        }
        assert_eq!(
            Stored::new(ScaleType::E8M0, 0.25).neighbours(ScaleType::E8M0).map(|s| s.value),
            [0.25, 0.125, 0.5]
        );
        let largest = Stored::new(ScaleType::F16, -7e4).neighbours(ScaleType::F16);
        assert_eq!(largest.map(|s| s.value), [-65504.0, -65472.0, -65504.0]);
        assert_eq!(Stored::new(ScaleType::BF16, 0.0).neighbours(ScaleType::BF16).map(|s| s.value), [0.0; 3]);
    }
}
