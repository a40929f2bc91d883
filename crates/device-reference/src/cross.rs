//! CrossAttention and CrossScores: rows of one plan, and encoder states that another plan wrote.

use crate::attention::softmax;
use crate::kv_pages::{Half, KvPages};
use crate::linear::dot;
use crate::parallel::{for_each_chunk, worth};
use device::{KvLayer, KvLayerId};

/// The common parameters of both Ops.
pub struct Cross {
    /// The layer whose pages are read.
    pub layer: KvLayerId,
    /// Heads of the layer.
    pub kv: KvLayer,
    /// Number of encoder states.
    pub n_states: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Factor on the scores.
    pub scale: f32,
}

/// `out = softmax(scale * q k^T) v`, each row over all encoder states of its slot, ascending.
pub fn attention<'a>(
    n_threads: usize,
    op: &Cross,
    pages: &KvPages,
    q: &[f32],                                 // (n, n_heads * head_dim)
    table: impl Fn(usize) -> &'a [u32] + Sync, // row -> the pages of its states
    out: &mut [f32],                           // (n, n_heads * head_dim)
) {
    let head_dim = op.kv.head_dim;
    let group = op.n_heads / op.kv.n_kv_heads; // query heads that share a KV head
    let cols = op.n_heads * head_dim;
    let work = out.len() * op.n_states * 2;
    let scratch = || (vec![0.0f32; head_dim], Vec::<f32>::new());
    for_each_chunk(worth(n_threads, work), out, cols, scratch, |(vector, scores), row, out| {
        let table = table(row);
        for (head, out) in out.chunks_exact_mut(head_dim).enumerate() {
            let q = &q[row * cols + head * head_dim..][..head_dim];
            scores.clear();
            for position in 0..op.n_states {
                pages.read(op.layer, Half::Keys, table, position, head / group, vector);
                scores.push(op.scale * dot(q, vector));
            }
            softmax(scores, None);
            out.fill(0.0);
            for (position, probability) in scores.iter().enumerate() {
                pages.read(op.layer, Half::Values, table, position, head / group, vector);
                for (out, v) in out.iter_mut().zip(vector.iter()) {
                    *out += probability * v;
                }
            }
        }
    });
}

/// `out[:, i * n_states + p] = scale * q_h . k_p` for `h = heads[i]`.
pub fn scores<'a>(
    n_threads: usize,
    op: &Cross,
    heads: &[usize],
    pages: &KvPages,
    q: &[f32],                                 // (n, n_heads * head_dim)
    table: impl Fn(usize) -> &'a [u32] + Sync, // row -> the pages of its states
    out: &mut [f32],                           // (n, heads.len() * n_states)
) {
    let head_dim = op.kv.head_dim;
    let group = op.n_heads / op.kv.n_kv_heads;
    let work = out.len() * head_dim * 2;
    let scratch = || vec![0.0f32; head_dim];
    let cols = heads.len() * op.n_states;
    for_each_chunk(worth(n_threads, work), out, cols, scratch, |vector, row, out| {
        let table = table(row);
        for (head, out) in heads.iter().zip(out.chunks_exact_mut(op.n_states)) {
            let q = &q[(row * op.n_heads + head) * head_dim..][..head_dim];
            for (position, out) in out.iter_mut().enumerate() {
                pages.read(op.layer, Half::Keys, table, position, head / group, vector);
                *out = op.scale * dot(q, vector);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::{KvLayout, KvType};

    /// Two heads of one column, 18 encoder states in scattered pages, keys that are 0 except at
    /// position 17.
    #[test]
    fn by_hand() {
        let kv = KvLayer {
            n_kv_heads: 2,
            head_dim: 1,
            window: None,
            encoder_states: Some(18),
            values_are_keys: false,
        };
        let (layer, table) = (KvLayerId(0), [2, 0]);
        let mut pages = KvPages::new(&KvLayout::new(vec![kv]), KvType::F32, 16, &[3]).unwrap();
        for position in 0..18 {
            let last = if position == 17 { 1.0 } else { 0.0 };
            pages.write(layer, Half::Keys, &table, position, &[last * 17f32.ln(), last]);
            pages.write(layer, Half::Values, &table, position, &[last, 3.0]);
        }
        let op = Cross { layer, kv, n_states: 18, n_heads: 2, scale: 0.5 };
        let mut out = [f32::NAN; 4];
        attention(1, &op, &pages, &[2.0, 5.0, 0.0, 0.0], |_| &table, &mut out);
        // The first query weights one state by e^(0.5 * 2 ln 17) = 17 and 17 states by 1. The
        // second one weights all 18 alike.
        let close = |a: f32, b: f32| (a - b).abs() < 1e-6;
        assert!(close(out[0], 0.5) && close(out[1], 3.0) && close(out[2], 1.0 / 18.0), "{out:?}");
        let mut out = [f32::NAN; 36];
        scores(1, &op, &[1, 0], &pages, &[2.0, 5.0], |_| &table, &mut out);
        assert!(close(out[17], 2.5) && close(out[35], 17f32.ln()) && out[16] == 0.0, "{out:?}");
    }
}
