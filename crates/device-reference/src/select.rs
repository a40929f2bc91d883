//! Columns, Join, SelectRows and Argmax: parts of rows, output rows, and the best tokens.

/// `out[i] = x[outputs[i]]`
pub fn select_rows(
    x: &[f32],       // (n_tokens, cols)
    outputs: &[u32], // (n_outputs)
    cols: usize,     //
    out: &mut [f32], // (n_outputs, cols)
) {
    for (out, row) in out.chunks_exact_mut(cols).zip(outputs) {
        out.copy_from_slice(&x[*row as usize * cols..][..cols]);
    }
}

/// Selects `taken` columns from `first` on, in each group of columns.
pub fn columns(
    x: &[f32],       // (n, cols)
    group: usize,    // divides cols
    first: usize,    //
    taken: usize,    // of each group
    out: &mut [f32], // (n, cols / group * taken)
) {
    for (out, group) in out.chunks_exact_mut(taken).zip(x.chunks_exact(group)) {
        out.copy_from_slice(&group[first..first + taken]);
    }
}

/// Concatenates each head of `x` with the same head of `y`.
pub fn join(
    x: &[f32],       // (n * n_heads, x_dim)
    x_dim: usize,    //
    y: &[f32],       // (n * n_heads, y_dim)
    y_dim: usize,    //
    out: &mut [f32], // (n * n_heads, x_dim + y_dim)
) {
    for (out, (x, y)) in
        out.chunks_exact_mut(x_dim + y_dim).zip(x.chunks_exact(x_dim).zip(y.chunks_exact(y_dim)))
    {
        out[..x_dim].copy_from_slice(x);
        out[x_dim..].copy_from_slice(y);
    }
}

/// Index of the largest column of each row, ties to the lowest; NaN is never the largest.
pub fn argmax(
    x: &[f32],       // (n_outputs, cols)
    cols: usize,     //
    out: &mut [u32], // (n_outputs)
) {
    for (row, out) in x.chunks_exact(cols).zip(out) {
        let mut best = (0, f32::NEG_INFINITY);
        for (index, value) in row.iter().enumerate() {
            if *value > best.1 {
                best = (index, *value);
            }
        }
        *out = best.0 as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_picked() {
        let mut out = [0.0; 4];
        select_rows(&[1., 2., 3., 4., 5., 6.], &[0, 2], 2, &mut out);
        assert_eq!(out, [1., 2., 5., 6.]);
    }

    #[test]
    fn the_lowest_of_equals_wins_and_nan_never() {
        let mut out = [9; 3];
        argmax(&[1., 3., 3., f32::NAN, -1., -2., f32::NAN, f32::NAN, f32::NAN], 3, &mut out);
        assert_eq!(out, [1, 1, 0]);
    }
}
