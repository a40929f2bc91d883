//! Causal attention over pages, with groups of query heads that share a KV head.

use crate::kv_pages::{Half, KvPages};
use crate::linear::dot;
use crate::parallel::{for_each_chunk, worth};
use device::{KvLayer, KvLayerId};

/// The parameters of the Op.
pub struct Attention<'a> {
    /// The layer whose pages are read.
    pub layer: KvLayerId,
    /// Heads of the layer.
    pub kv: KvLayer,
    /// Query heads.
    pub n_heads: usize,
    /// Factor on the scores.
    pub scale: f32,
    /// Cap of the scores.
    pub softcap: Option<f32>,
    /// Positions that a row attends to, its own included.
    pub window: Option<usize>,
    /// True if the window begins at a multiple of its length.
    pub chunked: bool,
    /// `(n_heads)`: a logit that is part of the softmax's sum and adds no value.
    pub sinks: Option<&'a [f32]>,
}

/// `out = softmax(softcap(scale * q k^T)) v`, each row over its own sequence's positions,
/// ascending.
///
/// The softmax subtracts the largest score (or sink). Sums over positions are in f64, because
/// sequential f32 sums over thousands of positions would be less accurate than the devices, which
/// add blocks.
pub fn attention<'a>(
    n_threads: usize,
    op: &Attention,
    pages: &KvPages,
    q: &[f32], // (n, n_heads * head_dim)
    // (n), and the last position that each row attends to
    (positions, last): (&[u32], &[u32]),
    table: impl Fn(usize) -> &'a [u32] + Sync, // row -> pages of its sequence
    out: &mut [f32],                           // (n, n_heads * head_dim)
) {
    let head_dim = op.kv.head_dim;
    let group = op.n_heads / op.kv.n_kv_heads; // query heads that share a KV head
    let row_len = op.n_heads * head_dim;
    let first_of = |last: usize| match op.window {
        None => 0,
        Some(window) if op.chunked => last / window * window,
        Some(window) => (last + 1).saturating_sub(window),
    };
    let seen = |row: usize| (first_of(positions[row] as usize), last[row] as usize);
    let n_pairs: usize = (0..positions.len()).map(|row| seen(row).1 + 1 - seen(row).0).sum();
    let scratch = || (vec![0.0f32; head_dim], Vec::<f32>::new(), vec![0.0f64; group * head_dim]);
    for_each_chunk(
        worth(n_threads, n_pairs * row_len * 2),
        out,
        row_len,
        scratch,
        |(vector, scores, sums), row, out| {
            let (first, last) = seen(row);
            let n_seen = last + 1 - first;
            let table = table(row);
            scores.resize(group * n_seen, 0.0); // (group, n_seen)
            for kv_head in 0..op.kv.n_kv_heads {
                let heads = kv_head * group..(kv_head + 1) * group;
                let columns = heads.start * head_dim..heads.end * head_dim;
                let q = &q[row * row_len..][columns.clone()]; // (group, head_dim)
                let out = &mut out[columns]; // (group, head_dim)

                for (at, position) in (first..=last).enumerate() {
                    pages.read(op.layer, Half::Keys, table, position, kv_head, vector);
                    for (head, q) in q.chunks_exact(head_dim).enumerate() {
                        let score = dot(q, vector) * op.scale;
                        scores[head * n_seen + at] =
                            op.softcap.map_or(score, |cap| cap * (score / cap).tanh());
                    }
                }
                for (head, scores) in heads.zip(scores.chunks_exact_mut(n_seen)) {
                    softmax(scores, op.sinks.map(|sinks| sinks[head]));
                }
                sums.fill(0.0);
                for (at, position) in (first..=last).enumerate() {
                    pages.read(op.layer, Half::Values, table, position, kv_head, vector);
                    for (head, sums) in sums.chunks_exact_mut(head_dim).enumerate() {
                        let probability = f64::from(scores[head * n_seen + at]);
                        for (sum, v) in sums.iter_mut().zip(vector.iter()) {
                            *sum += probability * f64::from(*v);
                        }
                    }
                }
                out.iter_mut().zip(sums.iter()).for_each(|(out, sum)| *out = *sum as f32);
            }
        },
    );
}

/// Replaces scores by `exp(score - max) / sum`; a sink is part of the maximum and the sum.
pub fn softmax(scores: &mut [f32], sink: Option<f32>) {
    let max = scores.iter().copied().chain(sink).fold(f32::NEG_INFINITY, f32::max);
    let mut sum = sink.map_or(0.0, |sink| f64::from((sink - max).exp()));
    for score in scores.iter_mut() {
        *score = (*score - max).exp();
        sum += f64::from(*score);
    }
    for score in scores {
        *score /= sum as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::{KvLayout, KvType};
    use device_testing::Rng;

    #[test]
    fn softmax_by_hand() {
        let mut scores = [0.0, 2f32.ln(), 1000.0];
        softmax(&mut scores[..2], None);
        assert!((scores[0] - 1.0 / 3.0).abs() < 1e-7 && (scores[1] - 2.0 / 3.0).abs() < 1e-7);
        let mut scores = [0.0, 0.0];
        softmax(&mut scores, Some(2f32.ln()));
        assert!(scores.iter().all(|p| (p - 0.25).abs() < 1e-7), "{scores:?}");
        let mut scores = [1e30, -1e30];
        softmax(&mut scores, None);
        assert_eq!(scores, [1.0, 0.0]);
    }

    /// An f32 sum over this many positions is off by 3.6e-5.
    #[test]
    fn softmax_of_many_positions_is_as_close_as_of_few() {
        let given: Vec<f32> = (0..100_000).map(|i| ((i * 37) % 101) as f32 * -0.03).collect();
        let sum: f64 = given.iter().map(|s| f64::from(*s).exp()).sum();
        let mut found = given.clone();
        softmax(&mut found, None);
        for (given, found) in given.iter().zip(found) {
            let expected = f64::from(*given).exp() / sum;
            assert!((f64::from(found) / expected - 1.0).abs() < 4e-7, "{found}, expected {expected}");
        }
    }

    /// One query head by the formula in f64 over plain arrays.
    fn naive(
        op: &Attention,
        head: usize,
        q: &[f32],
        k: &[Vec<f32>],
        v: &[Vec<f32>],
        last: usize,
    ) -> Vec<f64> {
        let first = op.window.map_or(0, |w| (last + 1).saturating_sub(w));
        let at = head / (op.n_heads / op.kv.n_kv_heads) * op.kv.head_dim;
        let part = |x: &[f32]| x[at..at + op.kv.head_dim].iter().map(|v| f64::from(*v)).collect::<Vec<_>>();
        let weights: Vec<f64> = (first..=last)
            .map(|p| {
                let score: f64 = part(&k[p]).iter().zip(q).map(|(k, q)| k * f64::from(*q)).sum();
                let score = score * f64::from(op.scale);
                op.softcap.map_or(score, |c| f64::from(c) * (score / f64::from(c)).tanh()).exp()
            })
            .collect();
        let sum = weights.iter().sum::<f64>() + op.sinks.map_or(0.0, |s| f64::from(s[head]).exp());
        (0..op.kv.head_dim)
            .map(|d| weights.iter().enumerate().map(|(i, w)| w / sum * part(&v[first + i])[d]).sum())
            .collect()
    }

    #[test]
    fn agrees_with_the_formula_over_scattered_pages() {
        let mut rng = Rng::new(3);
        let sinks = [0.5, -1.0, 2.0, 0.0, 1.0, -2.0];
        for (n_kv_heads, softcap, window, sinks) in [
            (2, None, None, None),
            (1, Some(2.0), None, None),
            (6, None, Some(7), None),
            (3, Some(5.0), Some(1), Some(&sinks[..])),
            (2, None, Some(100), Some(&sinks[..])),
        ] {
            let kv = KvLayer {
                n_kv_heads,
                head_dim: 5,
                window: None,
                encoder_states: None,
                values_are_keys: false,
            };
            let layer = KvLayerId(0);
            let op = Attention { layer, kv, n_heads: 6, scale: 0.7, softcap, window, chunked: false, sinks };
            let n = 37;
            let mut vectors = |cols: usize| -> Vec<Vec<f32>> {
                (0..n).map(|_| (0..cols).map(|_| rng.normal()).collect()).collect()
            };
            let (q, k, v) = (vectors(30), vectors(n_kv_heads * 5), vectors(n_kv_heads * 5));
            let table = [4, 0, 2];
            let mut pages = KvPages::new(&KvLayout::new(vec![kv]), KvType::F32, 16, &[5]).unwrap();
            for position in 0..n {
                pages.write(layer, Half::Keys, &table, position, &k[position]);
                pages.write(layer, Half::Values, &table, position, &v[position]);
            }
            let positions: Vec<u32> = (0..n as u32).collect();
            let mut out = vec![f32::NAN; n * 30];
            attention(1, &op, &pages, &q.concat(), (&positions, &positions), |_| &table, &mut out);
            for (at, out) in out.chunks(5).enumerate() {
                let (row, head) = (at / 6, at % 6);
                let expected = naive(&op, head, &q[row][head * 5..][..5], &k, &v, row);
                // Some dozens of f32 roundings of numbers near 1.
                assert!(
                    out.iter().zip(expected).all(|(a, b)| (f64::from(*a) - b).abs() < 5e-6),
                    "row {row} head {head}"
                );
            }
        }
    }
}
