//! Arithmetic of scores in a form that compilers vectorise: no branches, no calls, fixed lanes.

/// Values in a block of the loops below: two registers of AVX-512, or eight of SSE2.
const LANES: usize = 32;

/// The exponential of smaller values is 0 in f32.
const LOWEST: f32 = -87.0;

/// `e^x` for `x <= 0`, to 2 units in the last place: `2^n * p(r)` with `r = x - n ln 2` in `±ln 2 /
/// 2` and Cephes' polynomial of degree 5 (Moshier, `expf`). The result for values below [`LOWEST`],
/// such as minus infinity, is almost 0.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    let x = if x > LOWEST { x } else { LOWEST };
    // Adding 1.5 * 2^23 rounds to an integer in the low bits of the sum.
    const ROUND: f32 = 12_582_912.0;
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    // ln 2 is split into two parts, of which the first is exact in few bits.
    let r = (x - n * 0.693_359_4) + n * 2.121_944_4e-4;
    let p = 1.987_569_1e-4;
    let p = p * r + 1.398_199_9e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_5e-2;
    let p = p * r + 1.666_666_5e-1;
    let p = p * r + 5e-1;
    let p = p * r * r + r + 1.0;
    let exponent = (shifted.to_bits() << 23).wrapping_add(1f32.to_bits());
    p * f32::from_bits(exponent)
}

/// The largest value; minus infinity of an empty slice.
pub(crate) fn max(values: &[f32]) -> f32 {
    let (blocks, rest) = values.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for block in blocks {
        for (lane, &value) in lanes.iter_mut().zip(block) {
            *lane = if value > *lane { value } else { *lane };
        }
    }
    lanes.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max)
}

/// Sum of `e^(x - shift)`; `shift` is at least the largest value.
pub(crate) fn sum_exp(values: &[f32], shift: f32) -> f32 {
    let (blocks, rest) = values.as_chunks::<LANES>();
    let mut lanes = [0f32; LANES];
    for block in blocks {
        for (lane, &value) in lanes.iter_mut().zip(block) {
            *lane += exp(value - shift);
        }
    }
    lanes.iter().sum::<f32>() + rest.iter().map(|&value| exp(value - shift)).sum::<f32>()
}

/// Logarithm of the sum of `e^x`; minus infinity if all values are minus infinity, or there are
/// none.
pub(crate) fn log_sum_exp(values: &[f32]) -> f32 {
    let shift = max(values);
    if shift == f32::NEG_INFINITY { shift } else { shift + sum_exp(values, shift).ln() }
}

/// `ln(e^a + e^b)`.
pub(crate) fn log_add_exp(a: f32, b: f32) -> f32 {
    let (low, high) = if a < b { (a, b) } else { (b, a) };
    if low == f32::NEG_INFINITY { high } else { high + exp(low - high).ln_1p() }
}

/// Converts values to probabilities that sum to 1.
pub(crate) fn softmax(values: &mut [f32]) {
    let shift = max(values);
    for value in values.iter_mut() {
        *value = exp(*value - shift);
    }
    let scale = 1.0 / values.iter().sum::<f32>();
    for value in values {
        *value *= scale;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_exact_to_two_units() {
        for i in 0..=870_000 {
            let x = -(i as f32) * 1e-4;
            let (found, exact) = (exp(x), f64::from(x).exp() as f32);
            let units = (found.to_bits() as i64 - exact.to_bits() as i64).abs();
            assert!(units <= 2, "{x}: {found} for {exact}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NEG_INFINITY) < 2e-38);
    }

    #[test]
    fn sums_of_any_length() {
        for n in [0, 1, 31, 32, 33, 100] {
            let values: Vec<f32> = (0..n).map(|i| (i * 37 % 19) as f32 - 40.0).collect();
            let exact = values.iter().map(|v| f64::from(*v).exp()).sum::<f64>().ln();
            let found = f64::from(log_sum_exp(&values));
            assert!(found == exact || (found - exact).abs() < 1e-5, "{n}: {found} for {exact}");
        }
        assert_eq!(log_sum_exp(&[f32::NEG_INFINITY; 40]), f32::NEG_INFINITY);
        assert_eq!(log_add_exp(f32::NEG_INFINITY, -3.0), -3.0);
        assert!((log_add_exp(-1.0, -1.0) - (-1.0 + 2f32.ln())).abs() < 1e-6);
        let mut values = [1.0, 2.0, f32::NEG_INFINITY];
        softmax(&mut values);
        assert!((values[1] - 0.731_058_6).abs() < 1e-6 && values[2] < 1e-30, "{values:?}");
    }
}
