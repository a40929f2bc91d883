//! ShortConv: a layer whose memory of a sequence is a state of fixed size.

use device::{STATE_NONE, Span, StateUse};

/// `out[t][c] = sum over j of weight[c][j] * x[t + 1 - size + j][c]`, with the `size - 1` rows before a span out of its state,
/// which then becomes the last rows up to the span's end.
#[allow(clippy::too_many_arguments)]
pub fn short_conv(
    x: &[f32],                     // (n, cols)
    cols: usize,                   //
    weight: &[f32],                // (cols, size)
    spans: &[Span],                //
    uses: &[StateUse],             // (n_spans)
    states: &mut [f32],            // (n_states, state_len)
    state_len: usize,              // numbers of all layers' states
    range: std::ops::Range<usize>, // this layer's: (size - 1, cols), the oldest row first
    out: &mut [f32],               // (n, cols)
) {
    let size = weight.len() / cols;
    for (span, state) in spans.iter().zip(uses) {
        let (first, n) = (span.first_row as usize, span.n_rows as usize);
        let before = match state.from {
            STATE_NONE => vec![0.0; range.len()],
            from => states[from as usize * state_len..][range.clone()].to_vec(),
        };
        let rows = [&before, &x[first * cols..(first + n) * cols]].concat();
        for t in 0..n {
            for c in 0..cols {
                out[(first + t) * cols + c] =
                    (0..size).map(|j| weight[c * size + j] * rows[(t + j) * cols + c]).sum();
            }
        }
        states[state.to as usize * state_len..][range.clone()].copy_from_slice(&rows[n * cols..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_by_hand() {
        let span = |first_row, n_rows, first_position| Span { slot: 0, first_row, n_rows, first_position };
        let (weight, mut states) = ([1.0, 10.0, 100.0], [f32::NAN; 6]);
        let mut run = |x: &[f32], at, from, to| {
            let mut out = vec![0.0; x.len()];
            let uses = [StateUse { from, to }];
            short_conv(x, 1, &weight, &[span(0, x.len() as u32, at)], &uses, &mut states, 2, 0..2, &mut out);
            out
        };
        assert_eq!(run(&[1.0, 2.0, 3.0], 0, STATE_NONE, 0), [100.0, 210.0, 321.0]);
        assert_eq!(run(&[4.0], 3, 0, 1), [432.0]);
        assert_eq!(run(&[5.0, 6.0], 3, 0, 2), [532.0, 653.0], "the state before is as it was");
        assert_eq!(run(&[5.0], 4, 1, 0), [543.0]);
        assert_eq!(states[..2], [4.0, 5.0]);
    }
}
