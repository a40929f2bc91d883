//! Rope: rotary position embedding (Su et al., "RoFormer", 2021).

use device::RopeStyle;

/// Rotates each pair of columns of each head by `position * frequency`.
///
/// The angle is an f32 product, as in Hugging Face's models: weights were trained with its rounding
/// at large positions.
#[allow(clippy::too_many_arguments)]
pub fn rope(
    x: &[f32],           // (n, n_heads * head_dim)
    positions: &[u32],   // (n)
    head_dim: usize,     //
    n_dims: usize,       // even, at most head_dim
    style: RopeStyle,    //
    frequencies: &[f32], // (n_dims / 2) radians per position
    scale: f32,          // factor on cosine and sine
    out: &mut [f32],     // (n, n_heads * head_dim)
) {
    out.copy_from_slice(x);
    let n = positions.len();
    if n == 0 {
        return;
    }
    for (row, position) in out.chunks_exact_mut(x.len() / n).zip(positions) {
        for (pair, frequency) in frequencies.iter().enumerate() {
            let angle = *position as f32 * frequency;
            let (sin, cos) = (angle.sin() * scale, angle.cos() * scale);
            let (i, j) = match style {
                RopeStyle::Half => (pair, pair + n_dims / 2),
                RopeStyle::Interleaved => (2 * pair, 2 * pair + 1),
            };
            for head in row.chunks_exact_mut(head_dim) {
                let (a, b) = (head[i], head[j]);
                head[i] = a * cos - b * sin;
                head[j] = b * cos + a * sin;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::f32::consts::FRAC_PI_2;

    fn turned(style: RopeStyle, n_dims: usize, position: u32, scale: f32) -> Vec<f32> {
        let x: Vec<f32> = (1..=10).map(|v| v as f32).collect(); // two heads of five
        let mut out = vec![0.0; 10];
        rope(&x, &[position], 5, n_dims, style, &[FRAC_PI_2, 0.0][..n_dims / 2], scale, &mut out);
        out.iter().map(|v| (v * 1e4).round() / 1e4).collect()
    }

    #[test]
    fn a_quarter_turn_by_hand() {
        // At position 1 the first pair rotates by 90 degrees: (a, b) becomes (-b, a). The second
        // pair has frequency 0.
        assert_eq!(turned(RopeStyle::Half, 4, 1, 1.0), [-3., 2., 1., 4., 5., -8., 7., 6., 9., 10.]);
        assert_eq!(turned(RopeStyle::Interleaved, 4, 1, 1.0), [-2., 1., 3., 4., 5., -7., 6., 8., 9., 10.]);
        assert_eq!(turned(RopeStyle::Half, 2, 1, 1.0), [-2., 1., 3., 4., 5., -7., 6., 8., 9., 10.]);
        assert_eq!(turned(RopeStyle::Half, 4, 0, 1.0), [1., 2., 3., 4., 5., 6., 7., 8., 9., 10.]);
    }

    #[test]
    fn scale_applies_to_rotated_columns_only() {
        assert_eq!(turned(RopeStyle::Half, 2, 0, 2.0), [2., 4., 3., 4., 5., 12., 14., 8., 9., 10.]);
    }
}
