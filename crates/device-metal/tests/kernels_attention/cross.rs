//! Attention to encoder states, and its scores.

use super::*;

#[test]
fn cross_attention_and_scores_of_encoder_states() {
    let mut rng = Rng::new(5);
    for kv in [KvType::F32, KvType::F16, KvType::Q8_0] {
        for (n_heads, n_kv_heads, head_dim) in [(4, 2, 64), (3, 3, 32)] {
            let shape = Shape { n_heads, n_kv_heads, head_dim, kv, ..PLAIN };
            let n_states = 43;
            let cache = Cache::new(&mut rng, shape, &[n_states, n_states]);
            let cols = n_heads * head_dim;
            let row_spans = [0, 0, 0, 1, 1];
            let q = normal(&mut rng, 5 * cols);
            let mut expected = vec![];
            for (row, s) in row_spans.iter().enumerate() {
                for head in 0..n_heads {
                    expected.extend(cache.attend(
                        *s,
                        head,
                        &q[row * cols + head * head_dim..][..head_dim],
                        0..n_states,
                        &[],
                    ));
                }
            }
            let base = |file, function| {
                let launch = shape
                    .launch(file, function)
                    .arguments(&shape.arguments(n_states, 0, 2, [[0; 4]; 2]))
                    .words(1, &step(5, 0, 2, 2, cache.pages_per_table))
                    .floats(2, &q)
                    .words(3, &[0; 5])
                    .words(4, &row_spans.map(|s| s as u32));
                cache.bind(launch)
            };
            let group = n_heads / n_kv_heads;
            let decode = base("cross_attention.metal", format!("cross_attention_decode_{}", shape.kv_name()))
                .output(9, 5 * cols)
                .memory(decode_memory(shape, group, 2))
                .grid([n_kv_heads, 1, 5], 64);
            check(&format!("{shape:?} decode"), &decode.run().floats(9), &expected, F32_BOUND);
            let prefill =
                base("cross_attention.metal", format!("cross_attention_prefill_{}_64", shape.kv_name()))
                    .words(5, &[span(0, 3, 9), span(3, 2, 0)].concat())
                    .output(9, 5 * cols)
                    .grid([5usize.div_ceil(32 / group), n_kv_heads, 1], 128);
            let bound = if kv == KvType::F32 { F32_BOUND } else { HALF_BOUND };
            for prefill in prefill.with_tensors() {
                check(&format!("{shape:?} prefill"), &prefill.run().floats(9), &expected, bound);
            }

            let chosen = [2u32, 1];
            let scores = base("cross_scores.metal", format!("cross_scores_{}", shape.kv_name()))
                .number(HEADS, 1)
                .words(8, &chosen)
                .output(9, 5 * 2 * n_states)
                .memory(4 * head_dim)
                .grid([n_states.div_ceil(32), 2, 5], 32);
            let mut expected = vec![];
            for (row, s) in row_spans.iter().enumerate() {
                for head in chosen.map(|h| h as usize) {
                    let q = &q[row * cols + head * head_dim..][..head_dim];
                    for p in 0..n_states {
                        let k = cache.read(*s, head / group, p);
                        let dot: f64 = q.iter().zip(&k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
                        expected.push(dot * f64::from(shape.scale()));
                    }
                }
            }
            check(&format!("{shape:?} scores"), &scores.run().floats(9), &expected, F32_BOUND);
        }
    }
}
