//! Many rows: tiles, over the cache and over rows of their own span.

use super::*;

#[test]
fn prefill_of_several_spans() {
    let mut rng = Rng::new(3);
    for shape in shapes() {
        // (rows, position of the first): a whole sequence, one that goes on, one row, and one that
        // crosses tiles.
        let spans = [(7, 0), (9, 40), (1, 17), (12, 3)];
        let cache = Cache::new(&mut rng, shape, &spans.map(|(n, first)| n + first));
        let (d, group) = (shape.head_dim, shape.n_heads / shape.n_kv_heads);
        let cols = shape.n_heads * d;
        let n: usize = spans.iter().map(|s| s.0).sum();
        let (q, sinks) = (normal(&mut rng, n * cols), normal(&mut rng, shape.n_heads));
        let (mut expected, mut row_spans, mut span_words) = (vec![], vec![], vec![]);
        for (s, (n_rows, first)) in spans.into_iter().enumerate() {
            span_words.extend(span(row_spans.len(), n_rows, first));
            for i in 0..n_rows {
                let row = row_spans.len();
                row_spans.push(s as u32);
                for head in 0..shape.n_heads {
                    let q = &q[row * cols + head * d..][..d];
                    let seen = shape.seen(first + i, first..first + n_rows);
                    expected.extend(cache.attend(s, head, q, seen, &sinks));
                }
            }
        }
        let heads = shape.heads_at_once();
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
        for launch in cache.bind(launch).with_tensors() {
            check(&format!("{shape:?}"), &launch.run().floats(9), &expected, bound);
        }
    }
}

#[test]
fn self_attention_sees_rows_of_its_span_to_both_sides() {
    let mut rng = Rng::new(4);
    for (n_heads, n_kv_heads, head_dim, window) in
        [(3, 3, 8, None), (2, 2, 64, Some(3)), (2, 1, 33, None), (10, 1, 130, Some(33)), (1, 1, 260, Some(0))]
    {
        let shape = Shape { n_heads, n_kv_heads, head_dim, window, kv: KvType::F32, ..PLAIN };
        let spans = [5, 40, 1];
        let (n, group) = (46, n_heads / n_kv_heads);
        let (cols, kv_cols) = (n_heads * head_dim, n_kv_heads * head_dim);
        let q = normal(&mut rng, n * cols);
        let [k, v] = [0, 1].map(|_| normal(&mut rng, n * kv_cols));
        let (mut expected, mut row_spans, mut span_words) = (vec![], vec![], vec![]);
        for (s, n_rows) in spans.into_iter().enumerate() {
            let first = row_spans.len();
            span_words.extend(span(first, n_rows, 0));
            for row in first..first + n_rows {
                row_spans.push(s as u32);
                let window = window.unwrap_or(n);
                let seen = first.max(row.saturating_sub(window))..(first + n_rows).min(row + window + 1);
                for head in 0..n_heads {
                    let [keys, values] = [&k, &v].map(|x| {
                        let of =
                            |row: usize| x[row * kv_cols + head / group * head_dim..][..head_dim].to_vec();
                        Vec::from_iter(seen.clone().map(of))
                    });
                    let q = &q[row * cols + head * head_dim..][..head_dim];
                    expected.extend(attend(shape, q, &keys, &values, None));
                }
            }
        }
        let (suffix, blocks) = tile(head_dim, true);
        let launch = shape
            .launch("self_attention.metal", format!("self_attention_{suffix}"))
            .arguments(&shape.arguments(0, 0, 0, [[0; 4]; 2]))
            .words(1, &step(n, 0, 3, 0, 0))
            .floats(2, &q)
            .words(4, &row_spans)
            .words(5, &span_words)
            .output(9, n * cols)
            .floats(12, &k)
            .floats(13, &v)
            .grid([n.div_ceil(8 * blocks / group.min(8)), n_kv_heads * group.div_ceil(8), 1], 128);
        for launch in launch.with_tensors() {
            let what = format!("{n_heads} heads of {head_dim}, window {window:?}");
            check(&what, &launch.run().floats(9), &expected, F32_BOUND);
        }
    }
}
