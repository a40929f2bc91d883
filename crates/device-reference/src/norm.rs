//! RmsNorm: root mean square normalisation (Zhang and Sennrich, 2019).

/// `out = x / sqrt(mean(x^2) + eps) * weight`, each group of columns by itself.
///
/// The squares are summed in f64, column by column; the rest is f32.
pub fn rms_norm(
    x: &[f32],              // (n, cols)
    weight: Option<&[f32]>, // (group) or (cols)
    eps: f32,               //
    group: usize,           // divides cols
    out: &mut [f32],        // (n, cols)
) {
    let n_weights = weight.map_or(1, |weight| weight.len() / group);
    for (at, (x, out)) in x.chunks_exact(group).zip(out.chunks_exact_mut(group)).enumerate() {
        let sum: f64 = x.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
        let mean = (sum / group as f64) as f32;
        let scale = 1.0 / (mean + eps).sqrt();
        for (out, x) in out.iter_mut().zip(x) {
            *out = x * scale;
        }
        let Some(weight) = weight else { continue };
        for (out, weight) in out.iter_mut().zip(&weight[at % n_weights * group..]) {
            *out *= weight;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_normalised_apart() {
        // Mean squares are 12.5 and 2: (3, 4) / sqrt(12.5), (0, 2) / sqrt(2).
        let mut out = [0.0; 4];
        rms_norm(&[3.0, 4.0, 0.0, 2.0], Some(&[1.0, 10.0]), 0.0, 2, &mut out);
        let expected = [3.0 / 12.5f32.sqrt(), 40.0 / 12.5f32.sqrt(), 0.0, 20.0 / 2f32.sqrt()];
        for (a, b) in out.iter().zip(expected) {
            assert!((a - b).abs() <= 1e-6 * b.abs(), "{out:?}");
        }
    }

    #[test]
    fn groups_may_have_weights_of_their_own() {
        let mut out = [0.0; 8];
        let weight = [1.0, 2.0, 3.0, 4.0];
        rms_norm(&[1.0, 1.0, -1.0, 1.0, 1.0, 1.0, 1.0, 1.0], Some(&weight), 0.0, 2, &mut out);
        assert_eq!(out, [1.0, 2.0, -3.0, 4.0, 1.0, 2.0, 3.0, 4.0]);
    }

    #[test]
    fn eps_keeps_zeros_finite() {
        let mut out = [1.0; 3];
        rms_norm(&[0.0; 3], None, 1e-6, 3, &mut out);
        assert_eq!(out, [0.0; 3]);
    }
}
