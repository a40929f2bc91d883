//! ShortConv, GatedDelta and SelectiveScan: layers that keep a state of fixed size for each
//! sequence.

use std::ops::Range;

use device::{Plan, STATE_NONE, Span, StateId, StateUse, Step};

/// `out[t][c] = bias[c] + sum over j of weight[c][j] * x[t + 1 - size + j][c]`. The `size - 1` rows
/// before a span come from its state, which then receives the last rows of the span.
#[allow(clippy::too_many_arguments)]
pub fn short_conv(
    x: &[f32],            // (n, cols)
    cols: usize,          //
    weight: &[f32],       // (cols, size)
    bias: Option<&[f32]>, // (cols)
    spans: &[Span],       //
    uses: &[StateUse],    // (n_spans)
    states: &mut [f32],   // (n_states, state_len)
    state_len: usize,     // numbers of all layers' states
    range: Range<usize>,  // this layer's: (size - 1, cols), the oldest row first
    out: &mut [f32],      // (n, cols)
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
                let sum: f32 = (0..size).map(|j| weight[c * size + j] * rows[(t + j) * cols + c]).sum();
                out[(first + t) * cols + c] = bias.map_or(sum, |bias| bias[c] + sum);
            }
        }
        states[state.to as usize * state_len..][range.clone()].copy_from_slice(&rows[n * cols..]);
    }
}

/// Heads of a recurrent layer; the state of each is a matrix `S`.
#[derive(Clone, Copy)]
pub struct Heads {
    /// Number of heads.
    pub n: usize,
    /// Number of heads that several heads share; divides `n`.
    pub n_shared: usize,
    /// True if head `h` uses shared head `h % n_shared`, otherwise `h / (n / n_shared)`.
    pub tiled: bool,
    /// Rows of `S`.
    pub rows: usize,
    /// Columns of `S`.
    pub cols: usize,
}

impl Heads {
    fn shared(&self, head: usize) -> usize {
        if self.tiled { head % self.n_shared } else { head / (self.n / self.n_shared) }
    }
}

/// Common inputs of both recurrences, with the names of the delta rule.
pub struct Inputs<'a> {
    /// `(n, heads * cols)`: values added to `S`.
    pub v: &'a [f32],
    /// `(n, shared heads * rows)`: factors of the rows of `S` on input.
    pub k: &'a [f32],
    /// `(n, shared heads * rows)`: factors of the rows of `S` on output.
    pub q: &'a [f32],
    /// `(n, heads)` or `(n, heads * rows)`
    pub steps: &'a [f32],
    /// `(heads)`
    pub rate: &'a [f32],
}

/// A layer's states in a step.
pub struct States<'a> {
    /// `(n_states, state_len)`
    pub all: &'a mut [f32],
    len: usize,
    range: Range<usize>,
    spans: &'a [Span],
    uses: &'a [StateUse],
}

impl<'a> States<'a> {
    /// States of a layer.
    pub fn new(all: &'a mut [f32], plan: &Plan, id: StateId, step: &Step<'a>) -> States<'a> {
        let (len, range) = (plan.kv.state_len(), plan.kv.state_range(id));
        States { all, len, range, spans: step.spans, uses: step.states }
    }

    /// Calls `f` with each row of the step, in order, and the state of its sequence, which `f`
    /// updates.
    fn each(&mut self, mut f: impl FnMut(usize, &mut [f32])) {
        for (span, state) in self.spans.iter().zip(self.uses) {
            let mut s = match state.from {
                STATE_NONE => vec![0.0; self.range.len()],
                from => self.all[from as usize * self.len..][self.range.clone()].to_vec(),
            };
            for row in span.first_row..span.first_row + span.n_rows {
                f(row as usize, &mut s);
            }
            self.all[state.to as usize * self.len..][self.range.clone()].copy_from_slice(&s);
        }
    }
}

/// `S = diag(exp(rate * step)) S`, `S = S + k (beta * (v - S^T k))^T`, `out = scale * S^T q`,
/// position by position.
pub fn gated_delta(
    heads: Heads,
    given: &Inputs<'_>,
    beta: &[f32], // (n, heads)
    scale: f32,
    states: &mut States<'_>, // (heads, rows, cols) each
    out: &mut [f32],         // (n, heads * cols)
) {
    let Heads { n, rows, cols, .. } = heads;
    let per_row = given.steps.len() / beta.len();
    states.each(|t, states| {
        for (h, s) in states.chunks_exact_mut(rows * cols).enumerate() {
            let (k, q) = shared_of(heads, given, t, h);
            let at = t * n + h;
            let steps = &given.steps[at * per_row..(at + 1) * per_row];
            let mut delta = given.v[at * cols..(at + 1) * cols].to_vec();
            for (i, s) in s.chunks_exact_mut(cols).enumerate() {
                let decay = (given.rate[h] * steps[i % per_row]).exp();
                for (s, delta) in s.iter_mut().zip(&mut delta) {
                    *s *= decay;
                    *delta -= *s * k[i];
                }
            }
            let out = &mut out[at * cols..(at + 1) * cols];
            out.fill(0.0);
            for (i, s) in s.chunks_exact_mut(cols).enumerate() {
                for ((s, delta), out) in s.iter_mut().zip(&delta).zip(&mut *out) {
                    *s += k[i] * beta[at] * delta;
                    *out += scale * q[i] * *s;
                }
            }
        }
    });
}

/// `S = exp(rate * step) S + b (step * x)^T`, `out = S^T c + skip * x`, position by position.
pub fn selective_scan(
    heads: Heads,
    given: &Inputs<'_>,      // x as v, b as k, c as q
    skip: Option<&[f32]>,    // (heads)
    states: &mut States<'_>, // (heads, rows, cols) each
    out: &mut [f32],         // (n, heads * cols)
) {
    let Heads { n, rows, cols, .. } = heads;
    states.each(|t, states| {
        for (h, s) in states.chunks_exact_mut(rows * cols).enumerate() {
            let (b, c) = shared_of(heads, given, t, h);
            let at = t * n + h;
            let (step, x) = (given.steps[at], &given.v[at * cols..(at + 1) * cols]);
            let decay = (given.rate[h] * step).exp();
            let skip = skip.map_or(0.0, |skip| skip[h]);
            let out = &mut out[at * cols..(at + 1) * cols];
            out.iter_mut().zip(x).for_each(|(out, x)| *out = skip * x);
            for (i, s) in s.chunks_exact_mut(cols).enumerate() {
                for ((s, x), out) in s.iter_mut().zip(x).zip(&mut *out) {
                    *s = decay * *s + b[i] * (step * x);
                    *out += c[i] * *s;
                }
            }
        }
    });
}

/// `k` and `q` of a head at a position.
fn shared_of<'a>(heads: Heads, given: &Inputs<'a>, t: usize, head: usize) -> (&'a [f32], &'a [f32]) {
    let at = (t * heads.n_shared + heads.shared(head)) * heads.rows;
    (&given.k[at..at + heads.rows], &given.q[at..at + heads.rows])
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
            short_conv(
                x,
                1,
                &weight,
                None,
                &[span(0, x.len() as u32, at)],
                &uses,
                &mut states,
                2,
                0..2,
                &mut out,
            );
            out
        };
        assert_eq!(run(&[1.0, 2.0, 3.0], 0, STATE_NONE, 0), [100.0, 210.0, 321.0]);
        assert_eq!(run(&[4.0], 3, 0, 1), [432.0]);
        assert_eq!(run(&[5.0, 6.0], 3, 0, 2), [532.0, 653.0], "the state before is as it was");
        assert_eq!(run(&[5.0], 4, 1, 0), [543.0]);
        assert_eq!(states[..2], [4.0, 5.0]);
    }
}
