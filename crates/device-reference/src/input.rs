//! Input and Unfold: numbers from the caller, and windows of rows for convolutions.

use device::Span;

/// `out[i][c * size + j] = x[stride * i + j - (size - 1) / 2][c]`, 0 outside the span.
#[allow(clippy::too_many_arguments)]
pub fn unfold(
    x: &[f32],        // (n_tokens * per_token * stride, cols)
    cols: usize,      //
    size: usize,      //
    stride: usize,    //
    per_token: usize, // rows of out for each token
    spans: &[Span],   //
    out: &mut [f32],  // (n_tokens * per_token, cols * size)
) {
    for span in spans {
        let first = span.first_row as usize * per_token;
        let n = span.n_rows as usize * per_token;
        let x = &x[first * stride * cols..][..n * stride * cols];
        let rows = out[first * cols * size..].chunks_exact_mut(cols * size).take(n);
        for (i, out) in rows.enumerate() {
            for (at, out) in out.iter_mut().enumerate() {
                let (c, j) = (at / size, at % size);
                let row = (stride * i + j).checked_sub((size - 1) / 2).filter(|row| *row < n * stride);
                *out = row.map_or(0.0, |row| x[row * cols + c]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_by_hand() {
        let span = |slot, first_row, n_rows| Span { slot, first_row, n_rows, first_position: 0 };
        let spans = [span(0, 0, 2), span(1, 2, 1)];
        // Two columns, two rows for each token: the first column is 10, 11, …, the second 20, 21,
        // ….
        let x: Vec<f32> = (0..6).flat_map(|row| [10.0 + row as f32, 20.0 + row as f32]).collect();
        let mut out = [f32::NAN; 18];
        unfold(&x, 2, 3, 2, 1, &spans, &mut out);
        assert_eq!(out[..6], [0., 10., 11., 0., 20., 21.]);
        assert_eq!(out[6..12], [11., 12., 13., 21., 22., 23.]);
        assert_eq!(out[12..], [0., 14., 15., 0., 24., 25.]);
        // Windows of even size reach one row farther ahead than back.
        let mut out = [f32::NAN; 6];
        unfold(&[1., 2., 3.], 1, 2, 1, 1, &[span(0, 0, 3)], &mut out);
        assert_eq!(out, [1., 2., 2., 3., 3., 0.]);
    }
}
