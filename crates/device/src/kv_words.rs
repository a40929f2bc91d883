//! Vectors of keys and values as `i16` with one scale ([`KvType::I16`](crate::KvType)).
//!
//! `x[i] = scale * q[i]`. Sums of products of such numbers are exact in 32 bits. Attention scores
//! therefore have the same bits in any order of summation, and instructions that every processor
//! has multiply two numbers at a time.
//!
//! The Euclidean norm of quantised keys and queries is at most [`MAX_NORM`]. By the Cauchy-Schwarz
//! inequality no dot product, and no partial sum, exceeds 2^31. In a key of 128 equal numbers each
//! has 12 bits; a single large number may have 15. Values have 11 bits and a sign ([`MAX_VALUE`]),
//! their attention weights 13 bits, and at most [`MAX_POSITIONS`] products are summed.

/// Columns of a stored vector, padding included.
#[inline(always)]
pub const fn padded(head_dim: usize) -> usize {
    head_dim.next_multiple_of(32)
}

/// Bytes of one vector with its scale.
#[inline(always)]
pub const fn vector_bytes(head_dim: usize) -> usize {
    padded(head_dim) * 2 + 4
}

/// Largest Euclidean norm of a key's or query's numbers before rounding. Rounding adds at most half
/// the root of their count: 16 for 1,024.
pub const MAX_NORM: f32 = 46_000.0;
/// Largest quantised number of a value.
pub const MAX_VALUE: f32 = 2047.0;
/// Largest quantised attention weight.
pub const MAX_WEIGHT: f32 = 8191.0;
/// Weighted values that are summed in 32 bits: `128 * 2047 * 8191 < 2^31`.
pub const MAX_POSITIONS: usize = 128;

/// Scale of a key or a query; NaN if the vector has a number that is not finite.
#[inline(always)]
pub fn key_scale(x: &[f32]) -> f32 {
    let (max, squares) = measure(x);
    let scale = (max / 32767.0).max(squares.sqrt() / MAX_NORM);
    if squares.is_finite() { scale } else { f32::NAN }
}

/// Scale of a value; NaN if the vector has a number that is not finite.
#[inline(always)]
pub fn value_scale(x: &[f32]) -> f32 {
    let (max, squares) = measure(x);
    if squares.is_finite() { max / MAX_VALUE } else { f32::NAN }
}

/// Quantises one number of a vector, given the reciprocal of its scale.
#[inline(always)]
pub fn to_word(x: f32, factor: f32) -> i16 {
    (x * factor).round_ties_even() as i16
}

/// Reciprocal of a scale, the factor of [`to_word`].
#[inline(always)]
pub fn factor(scale: f32) -> f32 {
    // The smallest normal scale has a reciprocal; vectors of smaller numbers become zeros.
    if scale >= f32::MIN_POSITIVE { 1.0 / scale } else { 0.0 }
}

/// Largest magnitude and sum of squares, added in an order that is the same on all processors.
#[inline(always)]
pub(crate) fn measure(x: &[f32]) -> (f32, f32) {
    const LANES: usize = 16;
    let (mut max, mut squares) = ([0f32; LANES], [0f32; LANES]);
    let (whole, rest) = x.as_chunks::<LANES>();
    for x in whole {
        for lane in 0..LANES {
            max[lane] = max[lane].max(x[lane].abs());
            squares[lane] += x[lane] * x[lane];
        }
    }
    for (lane, x) in rest.iter().enumerate() {
        max[lane] = max[lane].max(x.abs());
        squares[lane] += x * x;
    }
    (max.into_iter().fold(0.0, f32::max), squares.into_iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Vectors of equal numbers, of one number among zeros, and of sizes that differ a
    /// thousandfold.
    fn vectors(n: usize) -> Vec<Vec<f32>> {
        let wave = |i: usize| (i as f32 * 0.37).sin();
        let same = (0..n).map(wave).collect();
        let single = (0..n).map(|i| if i == 1 { -3e4 } else { 0.0 }).collect();
        let uneven = (0..n).map(|i| wave(i) * if i % 7 == 0 { 1e3 } else { 1.0 }).collect();
        vec![same, single, uneven, vec![0.0; n], vec![1e-40; n], vec![1e15; n]]
    }

    #[test]
    fn products_of_keys_fit_and_are_close() {
        for n in [16, 64, 70, 128, 512, 1024] {
            for x in vectors(n) {
                let scale = key_scale(&x);
                let words: Vec<_> = x.iter().map(|x| i64::from(to_word(*x, factor(scale)))).collect();
                let squares: i64 = words.iter().map(|w| w * w).sum();
                assert!(squares < 1 << 31, "{n}: {squares}");
                // A vector of 1,024 equal numbers has 1,437.5 in each place before rounding.
                let exact: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
                let got = squares as f64 * f64::from(scale).powi(2);
                assert!((got - exact).abs() <= exact * 1e-3 + 1e-70, "{n}: {got} for {exact}");
            }
        }
    }

    #[test]
    fn values_are_within_half_a_step() {
        for x in vectors(96) {
            let scale = value_scale(&x);
            for x in &x {
                let word = to_word(*x, factor(scale));
                assert!(f32::from(word).abs() <= MAX_VALUE);
                assert!(
                    (f32::from(word) * scale - x).abs() <= scale * 0.5001 + 1e-38,
                    "{x} became {word} * {scale}"
                );
            }
        }
        assert!(MAX_POSITIONS as f64 * f64::from(MAX_VALUE) * f64::from(MAX_WEIGHT) < 2f64.powi(31));
    }

    #[test]
    fn vectors_with_a_number_that_is_not_finite_are_nan() {
        for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30] {
            assert!(key_scale(&[1.0, wrong]).is_nan() && value_scale(&[wrong, 1.0]).is_nan());
        }
    }
}
