//! Times of tokens, from the decoder's cross-attention.
//!
//! Some heads of the cross-attention point at the audio of the next token. Their scores, of every
//! token over every position, are normalised and averaged into one matrix. Dynamic time warping
//! finds the best monotonic path through it (openai-whisper's `timing.py`):
//!
//! ```text
//! p[h][t]    = softmax over the window's positions of the scores of head h and token t
//! z[h][t][x] = (p[h][t][x] - mean over tokens) / deviation over tokens
//! m[h][t]    = median of 7 positions of z, mirrored at both ends
//! matrix[t]  = mean over heads of m[h][t]
//! ```

use crate::math;

/// Positions of the median filter, an odd number.
const MEDIAN: usize = 7;

/// Scores of tokens over positions, for some heads.
#[derive(Debug)]
pub(crate) struct Scores {
    /// `(n_heads, n_tokens, n_positions)`
    values: Vec<f32>,
    n_heads: usize,
    n_tokens: usize,
    n_positions: usize,
}

impl Scores {
    /// Creates scores for these numbers of heads, tokens and positions, all 0.
    pub(crate) fn new(n_heads: usize, n_tokens: usize, n_positions: usize) -> Scores {
        Scores { values: vec![0.0; n_heads * n_tokens * n_positions], n_heads, n_tokens, n_positions }
    }

    /// The scores of a head and token, `(n_positions)`.
    pub(crate) fn row_mut(&mut self, head: usize, token: usize) -> &mut [f32] {
        let start = (head * self.n_tokens + token) * self.n_positions;
        self.values.get_mut(start..start + self.n_positions).unwrap_or_default()
    }

    /// The first position of each token of `first_token..` except the last. It is the position on
    /// the path of the token after it, which a token's attention points to. Empty if there are no
    /// positions, heads or tokens.
    pub(crate) fn align(mut self, first_token: usize) -> Vec<usize> {
        let n_rows = self.n_tokens.saturating_sub(first_token + 1);
        if self.n_positions == 0 || self.n_heads == 0 || n_rows == 0 {
            return Vec::new();
        }
        let n = self.n_positions;
        let mut matrix = vec![0f32; n_rows * n];
        let mut filtered = vec![0f32; n];
        for head in self.values.chunks_mut(self.n_tokens * n) {
            head.chunks_mut(n).for_each(math::softmax);
            normalise(head, n);
            let rows = head.chunks(n).skip(first_token);
            for (row, sum) in rows.zip(matrix.chunks_mut(n)) {
                median(row, &mut filtered);
                sum.iter_mut().zip(&filtered).for_each(|(sum, value)| *sum += value);
            }
        }
        let scale = 1.0 / self.n_heads as f32;
        matrix.iter_mut().for_each(|value| *value *= scale);
        jumps(&matrix, n)
    }
}

/// Subtracts the mean over tokens of `(n_tokens, n)`, and divides by the deviation.
fn normalise(head: &mut [f32], n: usize) {
    let scale = 1.0 / (head.len() / n).max(1) as f32;
    let mut mean = vec![0f32; n];
    for row in head.chunks(n) {
        mean.iter_mut().zip(row).for_each(|(mean, value)| *mean += value * scale);
    }
    let mut variance = vec![0f32; n];
    for row in head.chunks(n) {
        for ((variance, mean), value) in variance.iter_mut().zip(&mean).zip(row) {
            *variance += (value - mean) * (value - mean) * scale;
        }
    }
    // The deviation is 0 if all tokens have the same score.
    let inverse = variance.iter().map(|v| if *v > 0.0 { 1.0 / v.sqrt() } else { 0.0 });
    let inverse: Vec<f32> = inverse.collect();
    for row in head.chunks_mut(n) {
        for ((value, mean), inverse) in row.iter_mut().zip(&mean).zip(&inverse) {
            *value = (*value - mean) * inverse;
        }
    }
}

/// Median of [`MEDIAN`] neighbours, mirrored at the ends without repeating them. A row not longer
/// than half of [`MEDIAN`] is unchanged.
fn median(row: &[f32], out: &mut [f32]) {
    const HALF: usize = MEDIAN / 2;
    if row.len() <= HALF {
        out.copy_from_slice(row);
        return;
    }
    let last = row.len() - 1;
    let at = |index: isize| {
        let index = index.unsigned_abs();
        let index = if index > last { 2 * last - index } else { index };
        row.get(index).copied().unwrap_or_default()
    };
    let inside = row.array_windows::<MEDIAN>();
    let out_inside = out.get_mut(HALF..).unwrap_or_default();
    for (out, window) in out_inside.iter_mut().zip(inside) {
        *out = median_of(*window);
    }
    let edges = (0..HALF.min(row.len())).chain(row.len().saturating_sub(HALF)..row.len());
    for edge in edges {
        if let Some(out) = out.get_mut(edge) {
            *out = median_of(std::array::from_fn(|k| at(edge as isize + k as isize - HALF as isize)));
        }
    }
}

/// Median of seven numbers, by compare-exchange without a branch.
fn median_of(mut v: [f32; MEDIAN]) -> f32 {
    // Devillard's network (opt_med7): after it, element 3 is the median.
    const PAIRS: [(usize, usize); 13] = [
        (0, 5),
        (0, 3),
        (1, 6),
        (2, 4),
        (0, 1),
        (3, 5),
        (2, 6),
        (2, 3),
        (3, 6),
        (4, 5),
        (1, 4),
        (1, 3),
        (3, 4),
    ];
    for (a, b) in PAIRS {
        let (low, high) = if v[b] < v[a] { (v[b], v[a]) } else { (v[a], v[b]) };
        (v[a], v[b]) = (low, high);
    }
    v[MEDIAN / 2]
}

/// Dynamic time warping through the negated matrix `(n_rows, n)`. Returns the first column of the
/// path in each row.
///
/// If two paths have the same cost, the one that stays in its row wins, then the one that stays in
/// its column.
fn jumps(matrix: &[f32], n: usize) -> Vec<usize> {
    #[derive(Clone, Copy, PartialEq)]
    enum From {
        Diagonal,
        Above,
        Left,
    }
    let n_rows = matrix.len() / n;
    let mut trace = vec![From::Left; n_rows * n];
    // Costs of the row above and of this row, with a border on the left.
    let mut above = vec![f32::INFINITY; n + 1];
    let mut costs = vec![f32::INFINITY; n + 1];
    above[0] = 0.0;
    for (values, trace) in matrix.chunks(n).zip(trace.chunks_mut(n)) {
        costs[0] = f32::INFINITY;
        let mut left = f32::INFINITY;
        for (((value, trace), pair), cost) in
            values.iter().zip(trace).zip(above.array_windows::<2>()).zip(costs.iter_mut().skip(1))
        {
            let [diagonal, up] = *pair;
            let (best, from) = if diagonal < up && diagonal < left {
                (diagonal, From::Diagonal)
            } else if up < diagonal && up < left {
                (up, From::Above)
            } else {
                (left, From::Left)
            };
            *trace = from;
            left = best - value;
            *cost = left;
        }
        std::mem::swap(&mut above, &mut costs);
    }
    let mut jumps = vec![0; n_rows];
    let (mut row, mut column) = (n_rows - 1, n - 1);
    loop {
        jumps[row] = column;
        let from = match (row, column) {
            (0, _) => break,
            // The first column has no left neighbour.
            (_, 0) => From::Above,
            _ => trace[row * n + column],
        };
        match from {
            From::Diagonal => (row, column) = (row - 1, column - 1),
            From::Above => row -= 1,
            From::Left => column -= 1,
        }
    }
    jumps[0] = 0;
    jumps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_medians() {
        let mut state = 1u32;
        for _ in 0..2000 {
            let v: [f32; 7] = std::array::from_fn(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 28) as f32
            });
            let mut sorted = v;
            sorted.sort_by(f32::total_cmp);
            assert_eq!(median_of(v), sorted[3], "{v:?}");
        }
        for n in 1..12 {
            let row: Vec<f32> = (0..n).map(|i| ((i * 7) % 5) as f32).collect();
            let mut out = vec![9.0; n];
            median(&row, &mut out);
            for (i, value) in out.iter().enumerate() {
                let mirrored = |at: isize| {
                    let at = at.unsigned_abs();
                    row[if at >= n { 2 * (n - 1) - at } else { at }]
                };
                let expected = if n <= 3 {
                    row[i]
                } else {
                    let mut around: Vec<f32> = (-3..=3).map(|d| mirrored(i as isize + d)).collect();
                    around.sort_by(f32::total_cmp);
                    around[3]
                };
                assert_eq!(*value, expected, "{n} {i}");
            }
        }
    }

    #[test]
    fn the_path_follows_the_large_numbers() {
        // Row 0 over columns 0..3, row 1 over 3..4, row 2 over 4..8.
        let bounds = [0..3, 3..4, 4..8];
        let matrix: Vec<f32> =
            bounds.iter().flat_map(|row| (0..8).map(|x| if row.contains(&x) { 1.0 } else { -1.0 })).collect();
        assert_eq!(jumps(&matrix, 8), [0, 3, 4]);
        // More rows than columns: rows share a column.
        assert_eq!(jumps(&[1.0; 6], 1), [0; 6]);
    }

    #[test]
    fn scores_of_heads_that_look_along_a_line_are_followed() {
        let (n_heads, n_tokens, n) = (3, 9, 90);
        let mut scores = Scores::new(n_heads, n_tokens, n);
        for head in 0..n_heads {
            for token in 0..n_tokens {
                let row = scores.row_mut(head, token);
                for (x, value) in row.iter_mut().enumerate() {
                    let distance = x as f32 - (token as f32 * 10.0 + 5.0);
                    *value = -(distance * distance) / (20.0 + head as f32);
                }
            }
        }
        // Two tokens before the text, one after it.
        let found = scores.align(2);
        assert_eq!(found.len(), 6);
        for (token, jump) in found.iter().enumerate().skip(1) {
            assert!(jump.abs_diff((token + 2) * 10) <= 2, "{found:?}");
        }
    }

    #[test]
    fn nothing_gives_nothing() {
        assert!(Scores::new(0, 5, 9).align(1).is_empty());
        assert!(Scores::new(2, 5, 0).align(1).is_empty());
        assert!(Scores::new(2, 2, 9).align(1).is_empty());
        assert_eq!(Scores::new(2, 3, 9).align(1), [0]);
    }
}
