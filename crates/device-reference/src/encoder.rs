//! LayerNorm, SelfAttention and Pool: Ops over whole rows, and over all rows of a sequence at once.

use crate::attention::softmax;
use crate::linear::dot;
use crate::parallel::{for_each_chunk, worth};
use device::{Pooling, Span};

/// `out = (x - mean) / sqrt(variance + eps) * weight + bias`, each row by itself (Ba, Kiros and
/// Hinton, 2016).
///
/// Mean and variance are summed in f64, column by column; the variance is computed after the mean
/// was subtracted.
pub fn layer_norm(
    x: &[f32],            // (n, cols)
    weight: &[f32],       // (cols)
    bias: Option<&[f32]>, // (cols)
    eps: f32,             //
    out: &mut [f32],      // (n, cols)
) {
    let cols = weight.len();
    for (x, out) in x.chunks_exact(cols).zip(out.chunks_exact_mut(cols)) {
        let mean = x.iter().map(|v| f64::from(*v)).sum::<f64>() / cols as f64;
        let variance = x.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / cols as f64;
        let scale = 1.0 / (variance + f64::from(eps)).sqrt();
        for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
            *out = ((f64::from(*x) - mean) * scale) as f32 * weight;
        }
        for (out, bias) in out.iter_mut().zip(bias.unwrap_or_default()) {
            *out += bias;
        }
    }
}

/// Shape of the heads.
#[derive(Clone, Copy)]
pub struct HeadShape {
    /// Number of query heads.
    pub n_heads: usize,
    /// Number of key and value heads.
    pub n_kv_heads: usize,
    /// Columns of each head.
    pub head_dim: usize,
    /// Factor on the scores.
    pub scale: f32,
    /// Rows that a row attends to on each side.
    pub window: Option<usize>,
}

/// `out = softmax(scale * q k^T) v`, each row over all rows of its span, ascending.
pub fn self_attention(
    n_threads: usize,
    heads: HeadShape,
    q: &[f32],       // (n, n_heads * head_dim)
    k: &[f32],       // (n, n_kv_heads * head_dim)
    v: &[f32],       // (n, n_kv_heads * head_dim)
    spans: &[Span],  //
    out: &mut [f32], // (n, n_heads * head_dim)
) {
    let HeadShape { n_heads, n_kv_heads, head_dim, scale, window } = heads;
    let (cols, kv_cols) = (n_heads * head_dim, n_kv_heads * head_dim);
    let n_pairs: usize = spans.iter().map(|span| (span.n_rows as usize).pow(2)).sum();
    for_each_chunk(
        worth(n_threads, n_pairs * cols * 2),
        out,
        cols,
        Vec::new,
        |scores: &mut Vec<f32>, row, out| {
            let Some(span) = span_of(spans, row) else { return };
            let rows = span.first_row as usize..(span.first_row + span.n_rows) as usize;
            let rows = match window {
                Some(n) => rows.start.max(row.saturating_sub(n))..rows.end.min(row + n + 1),
                None => rows,
            };
            for head in 0..n_heads {
                let q = &q[row * cols + head * head_dim..][..head_dim];
                let kv_head = head / (n_heads / n_kv_heads) * head_dim;
                let at = |row: usize| row * kv_cols + kv_head..row * kv_cols + kv_head + head_dim;
                scores.clear();
                scores.extend(rows.clone().map(|other| scale * dot(q, &k[at(other)])));
                softmax(scores, None);
                let out = &mut out[head * head_dim..(head + 1) * head_dim];
                out.fill(0.0);
                for (other, probability) in rows.clone().zip(scores.iter()) {
                    for (out, v) in out.iter_mut().zip(&v[at(other)]) {
                        *out += probability * v;
                    }
                }
            }
        },
    );
}

/// `out[i]`: the mean, the first or the last row of the span that holds row `outputs[i]`. Sums are
/// in f64.
pub fn pool(
    kind: Pooling,
    x: &[f32], // (n_tokens, cols)
    cols: usize,
    spans: &[Span],
    outputs: &[u32], // (n_outputs)
    out: &mut [f32], // (n_outputs, cols)
) {
    for (out, row) in out.chunks_exact_mut(cols).zip(outputs) {
        let Some(span) = span_of(spans, *row as usize) else { continue };
        let first = span.first_row as usize;
        let last = first + span.n_rows as usize - 1;
        let row = |row: usize| &x[row * cols..(row + 1) * cols];
        match kind {
            Pooling::First => out.copy_from_slice(row(first)),
            Pooling::Last => out.copy_from_slice(row(last)),
            Pooling::Mean => {
                for (column, out) in out.iter_mut().enumerate() {
                    let sum: f64 = (first..=last).map(|r| f64::from(row(r)[column])).sum();
                    *out = (sum / f64::from(span.n_rows)) as f32;
                }
            }
        }
    }
}

/// The span of a row; spans are in row order and cover all rows.
fn span_of(spans: &[Span], row: usize) -> Option<&Span> {
    spans.iter().rev().find(|span| span.first_row as usize <= row)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPANS: [Span; 2] = [
        Span { slot: 0, first_row: 0, n_rows: 2, first_position: 0 },
        Span { slot: 1, first_row: 2, n_rows: 1, first_position: 0 },
    ];

    #[test]
    fn layer_norm_by_hand() {
        // Mean 2, variance 1, of (1, 3). The same far from zero, without loss.
        let mut out = [0.0; 4];
        layer_norm(&[1.0, 3.0, 4097.0, 4099.0], &[1.0, 10.0], Some(&[0.5, 0.0]), 0.0, &mut out);
        assert_eq!(out, [-0.5, 10.0, -0.5, 10.0]);
    }

    #[test]
    fn attention_stays_within_its_span_and_sees_what_follows() {
        // With keys of zeros, every row of a span has the same weight.
        let (q, k) = ([1.0, 2.0, 3.0], [0.0; 3]);
        let mut out = [0.0; 3];
        self_attention(
            1,
            HeadShape { n_heads: 1, n_kv_heads: 1, head_dim: 1, scale: 1.0, window: None },
            &q,
            &k,
            &[2.0, 4.0, 9.0],
            &SPANS,
            &mut out,
        );
        assert_eq!(out, [3.0, 3.0, 9.0]);
    }

    #[test]
    fn pooling_by_hand() {
        let x = [1.0, 2.0, 3.0, 6.0, 7.0, 8.0];
        for (kind, expected) in [
            (Pooling::Mean, [2.0, 4.0, 7.0, 8.0]),
            (Pooling::First, [1.0, 2.0, 7.0, 8.0]),
            (Pooling::Last, [3.0, 6.0, 7.0, 8.0]),
        ] {
            let mut out = [0.0; 4];
            pool(kind, &x, 2, &SPANS, &[0, 2], &mut out);
            assert_eq!(out, expected, "{kind}");
        }
    }
}
