//! Search for the scale (and offset) with which a block's values are rounded best.
//!
//! A scale determines both the step and the integers that the values round to, so the squared error
//! is not convex in it. The search tries a range of candidate scales that map the block's extreme
//! value near the end of the integer range. It computes the least-squares scale for each
//! candidate's integers, and keeps the best. Then it alternates rounding and least squares until
//! nothing improves (Lloyd's algorithm).
//!
//! In types whose scales are integers times a super-block's scale (the K types, IQ4_XS), each code
//! is then chosen among its neighbours by the block's actual error.
//!
//! Sums are in f64 and in a fixed order, four side by side, so a result depends on the values
//! alone. A block whose largest magnitude is below 1e-30 is stored as zeros. Values that are small
//! relative to the least f16, 6e-8, round to zero. A scale over 65504 is stored as 65504, so larger
//! inputs saturate.

use half::f16;

/// Magnitude below which a block counts as zero: far below the least f16, and its inverse is still
/// finite.
const TINY: f32 = 1e-30;

/// Values that are summed side by side: two registers of f64, and enough independent sums that no
/// addition waits for another.
const LANES: usize = 4;

/// Sums `terms` over all values. Value `i` is added to sum `i % LANES`, and these sums are added at
/// the end.
#[inline(always)]
pub(super) fn sums<const N: usize>(x: &[f32], terms: impl Fn(f32) -> [f64; N]) -> [f64; N] {
    let mut lanes = [[0.0; LANES]; N];
    let mut add = |values: &[f32; LANES]| {
        let terms = values.map(&terms);
        for (n, lanes) in lanes.iter_mut().enumerate() {
            for (lane, terms) in lanes.iter_mut().zip(&terms) {
                *lane += terms[n];
            }
        }
    };
    let (chunks, rest) = x.as_chunks();
    chunks.iter().for_each(&mut add);
    let mut lanes = lanes.map(|lanes| lanes.iter().sum::<f64>());
    for terms in rest.iter().map(|&v| terms(v)) {
        lanes.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
    }
    lanes
}

/// Like [`nearest`], with the integer as a float.
#[inline(always)]
pub(super) fn nearest_level(value: f32, lo: f32, hi: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0;
    (value.clamp(lo, hi) + SHIFT) - SHIFT
}

/// Rounds to the nearest integer (ties to even) within `lo..=hi`, which are within ±2^22.
#[inline(always)]
pub fn nearest(value: f32, lo: i32, hi: i32) -> i32 {
    // Adding 1.5 * 2^23 leaves the integer in the low bits of the mantissa. Unlike a call of
    // `round` it vectorises.
    const SHIFT: f32 = 12_582_912.0;
    let bits = (value.clamp(lo as f32, hi as f32) + SHIFT).to_bits();
    (bits & 0x7f_ffff) as i32 - 0x40_0000
}

/// Rounds an offset to f16, and returns the stored bytes and their value. Saturates at ±65504.
pub fn offset_to_f16(value: f32) -> ([u8; 2], f32) {
    let half = f16::from_f32(value.clamp(-65504.0, 65504.0));
    (half.to_le_bytes(), half.to_f32())
}

/// Like [`offset_to_f16`] for a scale, but rounds away from zero if the f16 is subnormal. A
/// subnormal f16 has so few bits that rounding down would clip the largest values. A scale that is
/// too large only loses part of the integers' range.
pub fn scale_to_f16(value: f32) -> ([u8; 2], f32) {
    let (bytes, rounded) = offset_to_f16(value);
    if rounded.abs() < value.abs() && rounded.abs() < f16::MIN_POSITIVE.to_f32() && value.abs() > TINY {
        let up = f16::from_bits(u16::from_le_bytes(bytes) + 1);
        // Adding to the bits of +0 yields the least number, for either sign of the value.
        let up = if value < 0.0 { -f16::from_bits(up.to_bits() & 0x7fff) } else { up };
        return (up.to_le_bytes(), up.to_f32());
    }
    (bytes, rounded)
}

/// Computes `1 / value`, or 0 for a value too small to divide by.
#[inline]
pub fn inverse(value: f32) -> f32 {
    if value.abs() < TINY { 0.0 } else { 1.0 / value }
}

/// The value of largest magnitude, with its sign; the first of several.
fn extreme(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |best: f32, &v| if v.abs() > best.abs() { v } else { best })
}

/// Finds the scale `d` for which `d * level(x / d)` is nearest to `x`.
///
/// `level` rounds to the nearest representable level. `targets` are the levels at which the extreme
/// value of `x` is tried; they need not be levels themselves.
pub fn fit_scale(x: &[f32], targets: impl IntoIterator<Item = f32>, level: impl Fn(f32) -> f32) -> f32 {
    let extreme = extreme(x);
    if extreme.abs() < TINY {
        return 0.0;
    }
    // For fixed levels l the best d is <l,x>/<l,l>, which reduces the squared error by
    // <l,x>^2/<l,l>.
    let try_inverse = |inverse: f32| {
        let [lx, ll] = sums(x, |v| {
            let l = f64::from(level(v * inverse));
            [l * f64::from(v), l * l]
        });
        if ll > 0.0 { (lx * lx / ll, lx / ll) } else { (0.0, 0.0) }
    };
    let mut best = (0.0, 0.0);
    for target in targets {
        let tried = try_inverse(target / extreme);
        if tried.0 > best.0 {
            best = tried;
        }
    }
    for _ in 0..4 {
        let tried = try_inverse(inverse(best.1 as f32));
        if tried.0 <= best.0 {
            break;
        }
        best = tried;
    }
    best.1 as f32
}

/// Targets of [`fit_scale`] for levels that are the integers from `lo` (negative) on: values around
/// `lo`.
pub fn targets_around(lo: i32) -> impl Iterator<Item = f32> + Clone {
    (-9..=9).map(move |step| lo as f32 + 0.1 * step as f32)
}

/// Finds `d` and `m` for which `d * q + m` is nearest to `x`, where `q` is an integer in `0..=hi`
/// and `d` is not negative. With `m_not_positive`, `m <= 0` (the K types store `-m` in unsigned
/// codes).
pub fn fit_affine(x: &[f32], hi: i32, m_not_positive: bool) -> (f32, f32) {
    let (mut min, max) = x.iter().fold((f32::MAX, f32::MIN), |(a, b), &v| (a.min(v), b.max(v)));
    if m_not_positive {
        min = min.min(0.0);
    }
    if max - min < TINY {
        return (0.0, min);
    }
    let n = x.len() as f64;
    let [sum_x, sum_xx] = sums(x, |v| [f64::from(v), f64::from(v) * f64::from(v)]);
    // Least squares for the rounded integers of (v - m) * inverse: the error, d and m.
    let try_at = |inverse: f32, m: f32| {
        let [sum_q, sum_qq, sum_qx] = sums(x, |v| {
            let q = f64::from(nearest_level((v - m) * inverse, 0.0, hi as f32));
            [q, q * q, q * f64::from(v)]
        });
        let determinant = n * sum_qq - sum_q * sum_q;
        let (mut d, mut m) = if determinant > 0.0 {
            ((n * sum_qx - sum_q * sum_x) / determinant, (sum_qq * sum_x - sum_q * sum_qx) / determinant)
        } else {
            // All values have one level, which the scale alone represents.
            (if sum_qq > 0.0 { sum_qx / sum_qq } else { 0.0 }, 0.0)
        };
        if m_not_positive && m > 0.0 {
            m = 0.0;
            d = if sum_qq > 0.0 { sum_qx / sum_qq } else { 0.0 };
        }
        d = d.max(0.0);
        let error =
            sum_xx + d * d * sum_qq + n * m * m - 2.0 * (d * sum_qx + m * sum_x) + 2.0 * d * m * sum_q;
        (error, d as f32, m as f32)
    };
    let mut best = (f64::INFINITY, 0.0, min);
    for step in -10..=10 {
        let tried = try_at((hi as f32 + 0.1 * step as f32) / (max - min), min);
        if tried.0 < best.0 {
            best = tried;
        }
    }
    for _ in 0..4 {
        let tried = try_at(inverse(best.1), best.2);
        if tried.0 >= best.0 {
            break;
        }
        best = tried;
    }
    (best.1, best.2)
}

/// A super-block without offsets: sub-block `i` has the scale `d * codes[i]`.
pub struct ScaleCodes<const N: usize> {
    /// Stored scale of the super-block.
    pub d_bytes: [u8; 2],
    /// Value of that scale.
    pub d: f32,
    /// Codes of the sub-blocks, from `code_lo` to `-code_lo - 1`.
    pub codes: [i8; N],
}

/// Fits `N` sub-blocks of equal length with signed codes in `code_lo..-code_lo`.
pub fn fit_scale_codes<const N: usize>(
    x: &[f32],
    code_lo: i32,
    targets: impl Iterator<Item = f32> + Clone,
    level: impl Fn(f32) -> f32,
) -> ScaleCodes<N> {
    let subs = || x.chunks_exact(x.len() / N);
    let mut scales = [0.0; N];
    for (scale, sub) in scales.iter_mut().zip(subs()) {
        *scale = fit_scale(sub, targets.clone(), &level);
    }
    let (d_bytes, d) = scale_to_f16(extreme(&scales) / code_lo as f32);
    let error_at = |sub: &[f32], scale: f32| -> f64 {
        let inverse = inverse(scale);
        sub.iter().map(|&v| (f64::from(v) - f64::from(scale * level(v * inverse))).powi(2)).sum()
    };
    let mut codes = [0; N];
    for ((code, &scale), sub) in codes.iter_mut().zip(&scales).zip(subs()) {
        let guess = nearest(scale * inverse(d), code_lo, -code_lo - 1);
        let mut best = f64::INFINITY;
        for candidate in [guess, guess - 1, guess + 1] {
            let error = error_at(sub, d * candidate as f32);
            if (code_lo..-code_lo).contains(&candidate) && error < best {
                best = error;
                *code = candidate as i8;
            }
        }
    }
    ScaleCodes { d_bytes, d, codes }
}

/// A super-block with offsets: sub-block `i` is `d * scales[i] * q - dmin * mins[i]`.
pub struct AffineCodes<const N: usize> {
    /// Stored scale of the super-block.
    pub d_bytes: [u8; 2],
    /// Stored scale of the mins.
    pub dmin_bytes: [u8; 2],
    /// Integers `q`, in order.
    pub q: [u8; 256],
    /// Scale codes of the sub-blocks.
    pub scales: [u8; N],
    /// Min codes of the sub-blocks.
    pub mins: [u8; N],
}

/// Fits a super-block of 256 values as `N` sub-blocks with codes in `0..=code_hi` and integers in
/// `0..=hi`.
pub fn fit_affine_codes<const N: usize>(x: &[f32; 256], hi: i32, code_hi: i32) -> AffineCodes<N> {
    let len = 256 / N;
    let mut fits = [(0.0, 0.0); N];
    for (fit, sub) in fits.iter_mut().zip(x.chunks_exact(len)) {
        *fit = fit_affine(sub, hi, true);
    }
    let largest = fits.iter().fold((0.0f32, 0.0f32), |(d, m), fit| (d.max(fit.0), m.max(-fit.1)));
    let (d_bytes, d) = scale_to_f16(largest.0 / code_hi as f32);
    let (dmin_bytes, dmin) = scale_to_f16(largest.1 / code_hi as f32);

    let mut codes = AffineCodes { d_bytes, dmin_bytes, q: [0; 256], scales: [0; N], mins: [0; N] };
    for (i, sub) in x.chunks_exact(len).enumerate() {
        let scale_guess = nearest(fits[i].0 * inverse(d), 0, code_hi);
        let min_guess = nearest(-fits[i].1 * inverse(dmin), 0, code_hi);
        let mut best = f64::INFINITY;
        for (ds, dm) in [(0, 0), (0, -1), (0, 1), (-1, 0), (-1, -1), (-1, 1), (1, 0), (1, -1), (1, 1)] {
            let (scale_code, min_code) = (scale_guess + ds, min_guess + dm);
            if !(0..=code_hi).contains(&scale_code) || !(0..=code_hi).contains(&min_code) {
                continue;
            }
            let (scale, min) = (d * scale_code as f32, dmin * min_code as f32);
            let inverse = inverse(scale);
            let error: f64 = sub
                .iter()
                .map(|&v| {
                    let q = nearest((v + min) * inverse, 0, hi) as f32;
                    (f64::from(v) - f64::from(scale * q - min)).powi(2)
                })
                .sum();
            if error < best {
                best = error;
                codes.scales[i] = scale_code as u8;
                codes.mins[i] = min_code as u8;
            }
        }
        let (scale, min) = (d * f32::from(codes.scales[i]), dmin * f32::from(codes.mins[i]));
        let inverse = inverse(scale);
        for (q, &v) in codes.q[i * len..].iter_mut().zip(sub) {
            *q = nearest((v + min) * inverse, 0, hi) as u8;
        }
    }
    codes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_rounds_and_clamps() {
        let cases =
            [(0.49, 0), (0.51, 1), (-0.51, -1), (-7.6, -8), (-100.0, -8), (1e30, 7), (f32::NEG_INFINITY, -8)];
        for (value, expected) in cases {
            assert_eq!(nearest(value, -8, 7), expected, "{value}");
        }
        assert_eq!(nearest(-128.4, -128, 127), -128);
    }

    #[test]
    fn a_scale_is_recovered_exactly() {
        let d = 0.013_671_875; // an f16
        let x: Vec<f32> = [-8, 7, 3, 0, -1, 5, 2, -6].iter().map(|&q| d * q as f32).collect();
        assert_eq!(fit_scale(&x, targets_around(-8), |y| nearest(y, -8, 7) as f32), d);
        let x: Vec<f32> = [0, 15, 3, 9, 1, 5, 2, 6].iter().map(|&q| d * q as f32 - 0.25).collect();
        assert_eq!(fit_affine(&x, 15, true), (d, -0.25));
    }

    #[test]
    fn subnormal_scales_round_away_from_zero() {
        let least = 2f32.powi(-24);
        for (value, expected) in [
            (0.0, 0.0),
            (1e-12, least),
            (-1e-12, -least),
            (1.2 * least, 2.0 * least),
            (-5.1 * least, -6.0 * least),
        ] {
            assert_eq!(scale_to_f16(value).1, expected, "{value:e}");
        }
        assert_eq!(scale_to_f16(3.0 * least).1, 3.0 * least);
        assert_eq!(scale_to_f16(1.0001).1, 1.0);
        assert_eq!(scale_to_f16(f32::MAX).1, 65504.0);
    }

    #[test]
    fn offsets_keep_their_sign() {
        let x: Vec<f32> = (0..16).map(|i| 5.0 + 0.1 * i as f32).collect();
        assert_eq!(fit_affine(&x, 15, true).1, 0.0);
        let (d, m) = fit_affine(&x, 15, false);
        assert!((d - 0.1).abs() < 1e-6 && (m - 5.0).abs() < 1e-5, "{d} {m}");
        assert_eq!(fit_affine(&[3.0; 16], 15, false), (0.0, 3.0));
        assert_eq!(fit_affine(&[-3.0; 16], 15, true), (0.0, -3.0));
        let (d, m) = fit_affine(&[3.0; 16], 15, true);
        assert!(m == 0.0 && (d * nearest(3.0 / d, 0, 15) as f32 - 3.0).abs() < 1e-6, "{d} {m}");
    }
}
