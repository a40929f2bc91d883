//! Clang's sanitizers over the kernels that attend.

use super::*;

#[test]
fn sanitizers_find_nothing() {
    let mut source =
        "#include <metal_stdlib>\nusing namespace metal;\n#include \"instantiate.h\"\n".to_owned();
    source += "#include \"attention/decode.h\"\n#include \"attention/prefill.h\"\n";
    source += "INSTANTIATE(decode, attention_decode<KvQ8_0, false>)\n";
    source += "INSTANTIATE(halves, attention_prefill<KvQ8_0, 4, 1, SOURCE_CACHE>)\n";
    source += "INSTANTIATE(floats, attention_prefill<KvF32, 2, 2, SOURCE_ROWS>)\n";
    let mut rng = Rng::new(6);
    let shape =
        Shape { kv: KvType::Q8_0, head_dim: 32, softcap: true, sinks: true, window: Some(30), ..PLAIN };
    let (n, first, cols) = (17, 20, shape.n_heads * shape.head_dim);
    let cache = Cache::new(&mut rng, shape, &[n + first]);
    let (q, sinks) = (normal(&mut rng, n * cols), normal(&mut rng, shape.n_heads));
    let [k, v] = [0, 1].map(|_| normal(&mut rng, n * cols));
    let turn = [0, 32, 1e-6f32.to_bits(), 0];
    let mut expected = vec![];
    for row in 0..n {
        for head in 0..shape.n_heads {
            let q = &q[row * cols + head * shape.head_dim..][..shape.head_dim];
            let seen = shape.seen(first + row, first..first + n);
            expected.extend(cache.attend(0, head, q, seen, &sinks));
        }
    }
    let base = |shape: Shape, function: &str| {
        let launch = shape
            .launch("attention.metal", function.to_owned())
            .arguments(&shape.arguments(0, 2, 0, [turn, turn]))
            .words(1, &step(n, 0, 1, 2, cache.pages_per_table))
            .floats(2, &q)
            .words(4, &vec![0; n])
            .words(5, &span(0, n, first))
            .floats(8, &sinks)
            .output(9, n * cols)
            .floats(12, &k)
            .floats(13, &v);
        cache.bind(launch)
    };
    for sanitizer in [Sanitizer::Thread, Sanitizer::AddressUndefined] {
        for launch in base(shape, "halves").grid([2, 2, 1], 128).with_tensors() {
            let halves = launch.sanitize(sanitizer, &source);
            check("prefill", &halves.floats(9), &expected, HALF_BOUND);
        }

        let rows =
            Shape { n_heads: 1, n_kv_heads: 1, head_dim: 128, kv: KvType::F32, softcap: false, ..shape };
        let floats = base(rows, "floats").grid([2, 1, 1], 128).sanitize(sanitizer, &source);
        assert!(floats.floats(9).iter().all(|v| v.is_finite()));

        // Two splits write a part each; the row's own k and v are stored.
        let decode = base(shape, "decode")
            .flag(SPLIT, true)
            .flag(FUSED, true)
            .flag(Q_NORM, true)
            .flag(K_NORM, true)
            .number(Q_ROPE, 1)
            .number(K_ROPE, 2)
            .words(3, &[(first + n - 1) as u32])
            .output(10, shape.n_heads * 2 * shape.head_dim)
            .output(11, shape.n_heads * 2 * 2)
            .floats(16, &[0.1; 32])
            .floats(17, &[0.1; 32])
            .words(1, &step(1, 0, 1, 2, cache.pages_per_table))
            .memory(decode_memory(shape, 2, 2))
            .grid([2, 2, 1], 64)
            .sanitize(sanitizer, &source);
        assert!(decode.floats(11).iter().all(|v| v.is_finite()));

        let scores = shape
            .launch("cross_scores.metal", "cross_scores_q8_0".to_owned())
            .number(HEADS, 1)
            .flag(SOFTCAP, false)
            .arguments(&shape.arguments(n + first, 0, 1, [turn, turn]))
            .words(1, &step(1, 0, 1, 2, cache.pages_per_table))
            .floats(2, &q)
            .words(4, &[0])
            .words(8, &[3])
            .output(9, n + first)
            .memory(4 * 32)
            .grid([2, 1, 1], 32);
        let scores = cache.bind(scores).sanitize_file(sanitizer);
        assert!(scores.floats(9).iter().all(|v| v.is_finite()));
    }
}
