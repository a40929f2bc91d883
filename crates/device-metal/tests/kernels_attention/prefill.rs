//! Many rows: tiles, over the cache and over rows of their own span.

use super::*;

#[test]
fn prefill_of_several_spans() {
    let mut rng = Rng::new(3);
    for shape in shapes() {
        // (rows, position of the first): a whole sequence, one that goes on, one row, and one that crosses tiles.
        let spans = [(7, 0), (9, 40), (1, 17), (12, 3)];
        let cache = Cache::new(&mut rng, shape, &spans.map(|(n, first)| n + first));
        let (d, group) = (shape.head_dim, shape.n_heads / shape.n_kv_heads);
        let cols = shape.n_heads * d;
        let n: usize = spans.iter().map(|s| s.0).sum();
        let (q, sinks) = (normal(&mut rng, n * cols), normal(&mut rng, shape.n_heads));
        let (mut expected, mut row_spans, mut span_words) = (vec![], vec![], vec![]);
        for (s, (n_rows, first)) in spans.into_iter().enumerate() {
            span_words.extend([row_spans.len() as u32, n_rows as u32, first as u32, 0]);
            for i in 0..n_rows {
                let row = row_spans.len();
                row_spans.push(s as u32);
                for head in 0..shape.n_heads {
                    let q = &q[row * cols + head * d..][..d];
                    expected.extend(cache.attend(s, head, q, shape.first(first + i)..first + i + 1, &sinks));
                }
            }
        }
        let heads = group.min(8);
        let (suffix, blocks) = tile(d, shape.kv == KvType::F32);
        let launch = shape
            .launch("attention.metal", format!("attention_prefill_{}_{suffix}", shape.kv_name()))
            .arguments(&shape.arguments(0, 0, 0, [[0; 4]; 2]))
            .words(1, &step(n, 0, spans.len(), 2, cache.pages_per_table))
            .floats(2, &q)
            .words(4, &row_spans)
            .words(5, &span_words)
            .floats(8, &sinks)
            .output(9, n * cols)
            .grid([n.div_ceil(8 * blocks / heads), shape.n_kv_heads * group.div_ceil(heads), 1], 128);
        let bound = if shape.kv == KvType::F32 { F32_BOUND } else { HALF_BOUND };
        check(&format!("{shape:?}"), &cache.bind(launch).run().floats(9), &expected, bound);
    }
}

#[test]
fn self_attention_sees_all_rows_of_its_span() {
    let mut rng = Rng::new(4);
    for (n_heads, head_dim) in [(3, 8), (2, 64), (2, 33), (1, 130), (1, 260)] {
        let shape = Shape { n_heads, n_kv_heads: n_heads, head_dim, kv: KvType::F32, ..PLAIN };
        let spans = [5, 40, 1];
        let (n, cols) = (46, n_heads * head_dim);
        let [q, k, v] = [0, 1, 2].map(|_| normal(&mut rng, n * cols));
        let (mut expected, mut row_spans, mut span_words) = (vec![], vec![], vec![]);
        for (s, n_rows) in spans.into_iter().enumerate() {
            let first = row_spans.len();
            span_words.extend([first as u32, n_rows as u32, 0, 0]);
            for row in first..first + n_rows {
                row_spans.push(s as u32);
                for head in 0..n_heads {
                    let of = |x: &[f32], row: usize| x[row * cols + head * head_dim..][..head_dim].to_vec();
                    let [keys, values] =
                        [&k, &v].map(|x| Vec::from_iter((first..first + n_rows).map(|r| of(x, r))));
                    expected.extend(attend(shape, &of(&q, row), &keys, &values, None));
                }
            }
        }
        let (suffix, blocks) = tile(head_dim, true);
        let out = shape
            .launch("self_attention.metal", format!("self_attention_{suffix}"))
            .arguments(&shape.arguments(0, 0, 0, [[0; 4]; 2]))
            .words(1, &step(n, 0, 3, 0, 0))
            .floats(2, &q)
            .words(4, &row_spans)
            .words(5, &span_words)
            .output(9, n * cols)
            .floats(12, &k)
            .floats(13, &v)
            .grid([n.div_ceil(8 * blocks), n_heads, 1], 128)
            .run();
        check(&format!("{n_heads} heads of {head_dim}"), &out.floats(9), &expected, F32_BOUND);
    }
}
