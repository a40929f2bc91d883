//! Vectors of keys and values as `i8` with one scale ([`KvType::I8`](crate::KvType)).
//!
//! `x[i] = scale * q[i]`, with `|q[i]|` at most [`MAX`]. Keys and queries are first rotated by a
//! normalised Hadamard matrix, in pieces of [`piece`] columns. The rotation preserves dot products.
//! It spreads an outlier column over all columns, which would otherwise lose their precision to the
//! outlier's scale (QuaRot, arXiv:2404.00456).
//!
//! Attention weights on values are 8-bit unsigned ([`MAX_WEIGHT`]). They are rounded by a threshold
//! that differs from position to position ([`THRESHOLDS`]). So many small weights add up, where
//! rounding to nearest would make each of them 0.

use crate::kv_words::{self, MAX_POSITIONS};

/// Bytes of one vector with its scale.
#[inline(always)]
pub const fn vector_bytes(head_dim: usize) -> usize {
    kv_words::padded(head_dim) + 4
}

/// Largest quantised number of a key, a query or a value.
pub const MAX: f32 = 127.0;
/// Largest quantised attention weight.
pub const MAX_WEIGHT: f32 = 255.0;
/// Maximum number of columns that are rotated together.
pub const MAX_PIECE: usize = 64;

/// Number added to the weight of a position before rounding to nearest. The numbers are the
/// position's bits in reverse order, so any few neighbouring positions are spread evenly over a
/// half on both sides of 0.
pub static THRESHOLDS: [f32; MAX_POSITIONS] = {
    let mut thresholds = [0.0; MAX_POSITIONS];
    let mut at = 0;
    while at < MAX_POSITIONS {
        let reversed = (at as u32).reverse_bits() >> (32 - MAX_POSITIONS.ilog2());
        thresholds[at] = (reversed as f32 + 0.5) / MAX_POSITIONS as f32 - 0.5;
        at += 1;
    }
    thresholds
};

/// Columns of a head that are rotated together: the largest power of two that divides `head_dim`,
/// at most [`MAX_PIECE`].
#[inline(always)]
pub const fn piece(head_dim: usize) -> usize {
    1 << (head_dim | MAX_PIECE).trailing_zeros()
}

/// Rotates a vector, piece by piece: sums and differences of columns 1 apart, then 2 apart, and so
/// on, scaled by the root of the length. A second rotation restores the vector.
pub fn rotate(x: &mut [f32]) {
    let piece = piece(x.len());
    for apart in (0..piece.ilog2()).map(|step| 1 << step) {
        for pair in x.chunks_exact_mut(2 * apart) {
            let (sums, differences) = pair.split_at_mut(apart);
            for (a, b) in sums.iter_mut().zip(differences) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
    }
    let factor = rotation_factor(piece);
    x.iter_mut().for_each(|x| *x *= factor);
}

/// Factor on the sums and differences of a piece.
#[inline(always)]
pub fn rotation_factor(piece: usize) -> f32 {
    1.0 / (piece as f32).sqrt()
}

/// Number of scales tried for a vector.
const N_SCALES: usize = 8;

/// The scales tried, as multiples of the vector's largest magnitude. They are half a percent apart,
/// and the largest number becomes at most [`MAX`].
const SCALES: [f32; N_SCALES] = {
    let mut scales = [0.0; N_SCALES];
    let mut i = 0;
    while i < N_SCALES {
        scales[i] = 1.0 / (MAX + 0.4 - 0.5 * i as f32);
        i += 1;
    }
    scales
};

/// Search for the scale of a vector with the smallest sum of squared errors.
///
/// A vector of 32 to 128 columns has so few rounding errors that their sum differs much between
/// scales. The best of [`N_SCALES`] scales has an error a fifth below the mean with 32 columns, a
/// tenth with 128.
#[derive(Clone, Copy)]
pub struct ScaleSearch {
    scales: [f32; N_SCALES],
    errors: [f32; N_SCALES],
}

impl ScaleSearch {
    /// A search for a vector with this largest magnitude ([`largest`]).
    #[inline(always)]
    pub fn new(largest: f32) -> Self {
        ScaleSearch { scales: SCALES.map(|scale| scale * largest), errors: [0.0; N_SCALES] }
    }

    /// Adds the errors of these columns, in an order that is the same on all processors.
    #[inline(always)]
    pub fn add(&mut self, x: &[f32]) {
        const LANES: usize = 16;
        let (whole, rest) = x.as_chunks::<LANES>();
        for (scale, error) in self.scales.iter().zip(&mut self.errors) {
            let factor = kv_words::factor(*scale);
            let square = |x: f32| {
                let error = x * factor - (x * factor).round_ties_even();
                error * error
            };
            let mut squares = [0f32; LANES];
            for x in whole {
                for lane in 0..LANES {
                    squares[lane] += square(x[lane]);
                }
            }
            for (lane, x) in rest.iter().enumerate() {
                squares[lane] += square(*x);
            }
            *error += squares.into_iter().sum::<f32>() * (scale * scale);
        }
    }

    /// The scale with the smallest error; NaN if the largest magnitude is NaN.
    #[inline(always)]
    pub fn best(&self) -> f32 {
        let mut best = 0;
        for i in 1..N_SCALES {
            if self.errors[i] < self.errors[best] {
                best = i;
            }
        }
        self.scales[best]
    }
}

/// Largest magnitude of a vector; NaN if the vector has a number that is not finite.
#[inline(always)]
pub fn largest(x: &[f32]) -> f32 {
    let (max, squares) = kv_words::measure(x);
    if squares.is_finite() { max } else { f32::NAN }
}

/// Scale of a value, or of a rotated key or query; NaN if the vector has a number that is not
/// finite.
#[inline(always)]
pub fn scale(x: &[f32]) -> f32 {
    let mut search = ScaleSearch::new(largest(x));
    search.add(x);
    search.best()
}

/// Quantises one number of a vector, given the reciprocal of its scale ([`kv_words::factor`]).
#[inline(always)]
pub fn to_byte(x: f32, factor: f32) -> i8 {
    (x * factor).round_ties_even() as i8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vector(n: usize, large: f32) -> Vec<f32> {
        let number = |i: usize| (i as f32 * 0.37 + 0.1).sin() * if i == n / 3 { large } else { 1.0 };
        (0..n).map(number).collect()
    }

    fn numbers(x: &[f32]) -> (Vec<i8>, f32) {
        let scale = scale(x);
        (x.iter().map(|x| to_byte(*x, kv_words::factor(scale))).collect(), scale)
    }

    fn rotated(x: &[f32]) -> Vec<f32> {
        let mut x = x.to_vec();
        rotate(&mut x);
        x
    }

    fn dot(a: &[f32], b: &[f32]) -> f32 {
        a.iter().zip(b).map(|(a, b)| a * b).sum()
    }

    #[test]
    fn rotating_twice_changes_nothing_and_keeps_products() {
        for n in [1, 2, 8, 16, 64, 80, 96, 256] {
            let (a, b) = (vector(n, 1.0), vector(n, 9.0));
            let (ra, rb) = (rotated(&a), rotated(&b));
            assert!((dot(&ra, &rb) - dot(&a, &b)).abs() < 1e-4, "{n}");
            assert!(rotated(&ra).iter().zip(&a).all(|(got, want)| (got - want).abs() < 1e-5), "{n}");
        }
    }

    /// A single large column costs the other columns of a key little of their precision.
    #[test]
    fn products_of_keys_are_close_though_one_column_is_large() {
        for n in [32, 64, 80, 96, 128] {
            let (q, k) = (vector(n, 1.0), vector(n, 40.0));
            let ((q8, q_scale), (k8, k_scale)) = (numbers(&rotated(&q)), numbers(&rotated(&k)));
            let got: i32 = q8.iter().zip(&k8).map(|(a, b)| i32::from(*a) * i32::from(*b)).sum();
            let (got, want) = (got as f32 * q_scale * k_scale, dot(&q, &k));
            let bound = 0.01 * (dot(&q, &q) * dot(&k, &k)).sqrt();
            assert!((got - want).abs() < bound, "{n}: {got} for {want}");
        }
    }

    #[test]
    fn values_are_within_half_a_step() {
        for x in [vector(96, 1.0), vector(64, 1e3), vec![0.0; 33], vec![1e-40; 32], vec![1e15; 16]] {
            let (bytes, scale) = numbers(&x);
            for (x, byte) in x.iter().zip(bytes) {
                let got = f32::from(byte) * scale;
                assert!((got - x).abs() <= scale * 0.5001 + 1e-38, "{x} became {got}");
            }
        }
    }

    /// The chosen scale has the smallest error of all candidates, and none overflows a number.
    #[test]
    fn the_scale_is_the_best_of_those_tried() {
        let (mut searched, mut plain) = (0.0, 0.0);
        for (n, k) in [32, 64, 80, 128].into_iter().flat_map(|n| (0..16).map(move |k| (n, k))) {
            let x = vector(n, 1.1 + 0.1 * k as f32);
            let error = |scale: f32| -> f64 {
                let factor = kv_words::factor(scale);
                x.iter().map(|x| f64::from(x - scale * f32::from(to_byte(*x, factor))).powi(2)).sum()
            };
            let scales = SCALES.map(|scale| scale * largest(&x));
            let least = scales.map(error).into_iter().fold(f64::INFINITY, f64::min);
            assert!(error(scale(&x)) <= least * 1.0001, "{n} {k}");
            for scale in scales {
                assert!(x.iter().all(|x| (x * kv_words::factor(scale)).abs() < MAX + 0.5), "{n} {k}");
            }
            searched += least;
            plain += error(largest(&x) / MAX);
        }
        assert!(searched < 0.97 * plain, "{searched} for {plain}: not worth a search");
    }

    /// Equal weights of any size, rounded by their thresholds, add up to their sum over any 16
    /// consecutive positions.
    #[test]
    fn small_weights_count_together() {
        for weight in [0.05f32, 0.3, 0.5, 1.7] {
            for thresholds in THRESHOLDS.chunks_exact(16) {
                let sum: f32 =
                    thresholds.iter().map(|threshold| (weight + threshold).round_ties_even()).sum();
                assert!((sum - 16.0 * weight).abs() <= 1.0, "{weight} became {sum}");
            }
        }
        let most = THRESHOLDS.iter().map(|threshold| (MAX_WEIGHT + threshold).round_ties_even());
        assert_eq!(most.fold(0.0, f32::max), MAX_WEIGHT);
    }

    #[test]
    fn vectors_with_a_number_that_is_not_finite_are_nan() {
        for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30] {
            let x = [1.0, wrong, 0.0, 0.0];
            assert!(scale(&x).is_nan() && scale(&rotated(&x)).is_nan());
        }
    }
}
