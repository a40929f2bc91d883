//! Attention of few rows, split over positions: alone, and fused with the Ops before it.

use super::*;
use metal_emulator::BufferTraffic;

#[test]
fn decode_of_rows_of_several_sequences() {
    let mut rng = Rng::new(1);
    for (number, shape) in shapes().into_iter().enumerate() {
        // Positions of the rows: the first alone, whole tiles, a few over.
        let lengths = [1, 64, 135];
        let cache = Cache::new(&mut rng, shape, &lengths);
        let cols = shape.n_heads * shape.head_dim;
        let (q, sinks) = (normal(&mut rng, 3 * cols), normal(&mut rng, shape.n_heads));
        let mut expected = vec![];
        for (row, length) in lengths.iter().enumerate() {
            for head in 0..shape.n_heads {
                let q = &q[row * cols + head * shape.head_dim..][..shape.head_dim];
                expected.extend(cache.attend(
                    row,
                    head,
                    q,
                    shape.seen(length - 1, length - 1..*length),
                    &sinks,
                ));
            }
        }
        let group = shape.n_heads / shape.n_kv_heads;
        for (splits, simdgroups) in [(1, 1 + number % 3), (3, 2)] {
            let heads = shape.heads_at_once();
            let columns = shape.head_dim.next_multiple_of(4);
            let launch = shape
                .launch("attention.metal", format!("attention_decode_{}", shape.kv_name()))
                .flag(SPLIT, splits > 1)
                .number(KEY_LANES, [4, 8, 16][(number + splits) % 3])
                .arguments(&shape.arguments(0, splits, 0, [[0; 4]; 2]))
                .words(1, &step(3, 0, 3, 2, cache.pages_per_table))
                .floats(2, &q)
                .words(3, &lengths.map(|n| n as u32 - 1))
                .words(4, &[0, 1, 2])
                .words(5, &lengths.map(|n| span(0, 1, n - 1)).concat())
                .floats(8, &sinks)
                .output(9, 3 * cols)
                .output(10, 3 * shape.n_heads * splits * columns)
                .output(11, 3 * shape.n_heads * splits * 2)
                .memory(decode_memory(shape, heads, simdgroups))
                .grid([shape.n_kv_heads * group.div_ceil(heads), splits, 3], 32 * simdgroups);
            let mut outcome = cache.bind(launch.clone()).run();
            if splits > 1 {
                let merge = Launch { function: "attention_merge".to_owned(), ..launch }
                    .bytes(10, &outcome.buffers[&10])
                    .bytes(11, &outcome.buffers[&11])
                    .memory(0)
                    .grid([shape.n_heads, 3, 1], 32);
                outcome = merge.run();
            }
            check(&format!("{shape:?} {splits} splits"), &outcome.floats(9), &expected, F32_BOUND);
        }
    }
}

/// Norm and RoPE of heads.
struct HeadStep<'a> {
    norm: bool,
    /// Weights of the norm, `(head_dim)`.
    weight: Option<&'a [f32]>,
    /// 0: no RoPE; 1: pairs are half a rotation apart; 2: pairs are adjacent.
    style: u32,
    frequencies: &'a [f32],
}

impl HeadStep<'_> {
    /// The head after the step, in f64.
    fn of(&self, head: &[f32], position: usize) -> Vec<f64> {
        let mut head: Vec<f64> = head.iter().map(|v| f64::from(*v)).collect();
        if self.norm {
            let mean = head.iter().map(|v| v * v).sum::<f64>() / head.len() as f64;
            let factor = 1.0 / (mean + 1e-6).sqrt();
            for (i, v) in head.iter_mut().enumerate() {
                *v *= factor * self.weight.map_or(1.0, |w| f64::from(w[i]));
            }
        }
        if self.style > 0 {
            let half = self.frequencies.len();
            for (pair, frequency) in self.frequencies.iter().enumerate() {
                let angle = f64::from(position as f32 * frequency);
                let (sin, cos) = (angle.sin() * 1.5, angle.cos() * 1.5);
                let (i, j) = if self.style == 1 { (pair, pair + half) } else { (2 * pair, 2 * pair + 1) };
                (head[i], head[j]) = (head[i] * cos - head[j] * sin, head[j] * cos + head[i] * sin);
            }
        }
        head
    }
}

/// Cosines and sines of the positions times 1.5, `(positions, frequencies, 2)`: the buffer that
/// kernels read.
fn turns(frequencies: &[f32], positions: &[usize]) -> Vec<f32> {
    let of = |position: &usize| {
        let angles = frequencies.iter().map(|frequency| f64::from(*position as f32 * frequency));
        angles.flat_map(|angle| [(angle.cos() * 1.5) as f32, (angle.sin() * 1.5) as f32]).collect::<Vec<_>>()
    };
    positions.iter().flat_map(of).collect()
}

/// Checks that the cache after a launch has the keys `k` after `step` and the values `v`, each
/// `(lengths.len(), n_kv_heads * head_dim)`, at the positions `lengths`, and is otherwise as
/// before.
fn check_stored(before: &Cache, after: &Cache, lengths: &[usize], step: &HeadStep, [k, v]: [&[f32]; 2]) {
    let shape = before.shape;
    let (d, n_kv_heads) = (shape.head_dim, shape.n_kv_heads);
    let mut pool = before.pool.clone();
    for (row, position) in lengths.iter().enumerate() {
        for head in 0..shape.n_stored() {
            let at = (row * n_kv_heads + head % n_kv_heads) * d;
            let expected: Vec<f64> = match head < n_kv_heads {
                true => step.of(&k[at..at + d], *position),
                false => v[at..at + d].iter().map(|v| f64::from(*v)).collect(),
            };
            let most = expected.iter().fold(0.0f64, |m, v| m.max(v.abs()));
            // Half an ulp of a stored value: F16 at the largest value; for Q8_0 half a step and
            // d's own rounding.
            let bound = match shape.kv {
                KvType::F32 => 2e-6,
                KvType::F16 => 5e-4,
                KvType::Q8_0 => 4.5e-3,
                KvType::I16 | KvType::I8 | KvType::Fp8 => unreachable!("not one of Metal's"),
            };
            let stored = after.read(row, head, *position);
            check(&format!("{shape:?} stored"), &stored, &expected, bound * most);
            let range = after.range(row, head, *position);
            pool[range.clone()].copy_from_slice(&after.pool[range]);
        }
    }
    assert!(pool == after.pool, "{shape:?}: nothing else is written");
}

#[test]
fn norm_turn_write_and_attention_in_one() {
    let mut rng = Rng::new(2);
    for (number, shape) in shapes().into_iter().enumerate() {
        let lengths = [0, 31, 66]; // before this step
        let cache = Cache::new(&mut rng, shape, &lengths);
        let (d, group) = (shape.head_dim, shape.n_heads / shape.n_kv_heads);
        let (cols, kv_cols) = (shape.n_heads * d, shape.n_kv_heads * d);
        let q = normal(&mut rng, 3 * cols);
        let [k, v] = [0, 1].map(|_| normal(&mut rng, 3 * kv_cols));
        let [q_weight, k_weight] = [0, 1].map(|_| normal(&mut rng, d));
        let n_dims = if number % 2 == 0 { d } else { d / 4 * 2 };
        let frequencies: Vec<f32> = (0..n_dims / 2).map(|i| 0.7f32.powi(i as i32)).collect();
        let sinks = normal(&mut rng, shape.n_heads);
        let (q_norm, k_norm, weighted) = (number % 3 != 1, number % 4 != 2, number % 5 != 3);
        let (q_style, k_style) = ((number % 3) as u32, (1 + number % 2) as u32);
        let turn = [0, n_dims as u32, 1e-6f32.to_bits(), 0];
        let turns = turns(&frequencies, &lengths);
        let splits = 1 + number % 2;
        let simdgroups = 1 + number % 4;
        let heads = shape.heads_at_once();
        let launch = shape
            .launch("attention.metal", format!("attention_decode_{}", shape.kv_name()))
            .flag(SPLIT, splits > 1)
            .flag(FUSED, true)
            .flag(Q_NORM, q_norm)
            .flag(K_NORM, k_norm)
            .flag(Q_WEIGHT, weighted)
            .flag(K_WEIGHT, weighted)
            .number(Q_ROPE, q_style)
            .number(K_ROPE, k_style)
            .arguments(&shape.arguments(0, splits, 0, [turn, turn]))
            .words(1, &step(3, 0, 3, 2, cache.pages_per_table))
            .floats(2, &q)
            .words(3, &lengths.map(|n| n as u32))
            .words(4, &[0, 1, 2])
            .words(5, &lengths.map(|n| span(0, 1, n)).concat())
            .floats(8, &sinks)
            .output(9, 3 * cols)
            .output(10, 3 * shape.n_heads * splits * d.next_multiple_of(4))
            .output(11, 3 * shape.n_heads * splits * 2)
            .floats(12, &k)
            .floats(13, &v)
            .floats(14, &q_weight)
            .floats(15, &k_weight)
            .floats(16, &turns)
            .floats(17, &turns)
            .memory(decode_memory(shape, heads, simdgroups))
            .grid([shape.n_kv_heads * group.div_ceil(heads), splits, 3], 32 * simdgroups);
        let mut outcome = cache.bind(launch.clone()).run();
        let after = Cache { pool: outcome.pool.clone(), tables: cache.tables.clone(), ..cache };
        // Attention over the stored keys: only query heads get RoPE.
        let queries =
            launch.clone().flag(FUSED, false).flag(K_NORM, false).flag(K_WEIGHT, false).number(K_ROPE, 0);
        let of_queries = after.bind(queries).run();
        if splits > 1 {
            outcome = Launch { function: "attention_merge".to_owned(), ..launch }
                .bytes(10, &outcome.buffers[&10])
                .bytes(11, &outcome.buffers[&11])
                .grid([shape.n_heads, 3, 1], 32)
                .run();
        }

        let [q_step, k_step] =
            [(q_norm, &q_weight[..], q_style), (k_norm, &k_weight[..], k_style)].map(|(norm, of, style)| {
                HeadStep { norm, weight: weighted.then_some(of), style, frequencies: &frequencies }
            });
        check_stored(&cache, &after, &lengths, &k_step, [&k, &v]);

        let mut expected = vec![];
        for (row, position) in lengths.iter().enumerate() {
            for head in 0..shape.n_heads {
                let q = &q[row * cols + head * d..][..d];
                let q: Vec<f32> = q_step.of(q, *position).iter().map(|v| *v as f32).collect();
                let seen = shape.seen(*position, *position..position + 1);
                expected.extend(after.attend(row, head, &q, seen, &sinks));
            }
        }
        // Scores of turned and weighted heads are larger.
        check(&format!("{shape:?} fused"), &outcome.floats(9), &expected, 4.0 * F32_BOUND);
        if splits == 1 {
            check(&format!("{shape:?} turned"), &of_queries.floats(9), &expected, 4.0 * F32_BOUND);
        }
        assert!(of_queries.pool == after.pool, "{shape:?}: nothing is written");
    }
}

#[test]
fn decode_reads_keys_and_values_once_for_all_heads_that_share_them() {
    let mut rng = Rng::new(7);
    let shape = Shape { n_heads: 8, n_kv_heads: 2, ..PLAIN };
    let length = 96;
    let cache = Cache::new(&mut rng, shape, &[length]);
    let cols = shape.n_heads * shape.head_dim;
    let launch = shape
        .launch("attention.metal", "decode".to_owned())
        .arguments(&shape.arguments(0, 1, 0, [[0; 4]; 2]))
        .words(1, &step(1, 0, 1, 2, cache.pages_per_table))
        .floats(2, &normal(&mut rng, cols))
        .words(3, &[length as u32 - 1])
        .words(4, &[0])
        .output(9, cols)
        .memory(decode_memory(shape, 4, 2))
        .grid([2, 1, 1], 64);
    let source = "#include <metal_stdlib>\nusing namespace metal;\n#include \"instantiate.h\"\n\
                  #include \"attention/decode.h\"\nINSTANTIATE(decode, attention_decode<KvF16, false>)\n";
    let [four, eight, sixteen] =
        [4, 8, 16].map(|n| cache.bind(launch.clone()).number(KEY_LANES, n).count(source));
    for (lanes, counters) in [(4, &four), (8, &eight), (16, &sixteen)] {
        let (bytes, shuffles) = (counters.threadgroup_read, counters.simdgroup.shuffles);
        println!("{lanes} lanes share a key: {bytes} bytes of threadgroup memory read, {shuffles} shuffles");
    }
    // A tile of 32 positions reads the queries half as often, for twice as many exchanges and one.
    let n_tiles = (shape.n_kv_heads * length / 32) as u64;
    assert_eq!(eight.simdgroup.shuffles - four.simdgroup.shuffles, n_tiles * 4 * (7 - 3));
    assert_eq!(sixteen.simdgroup.shuffles - eight.simdgroup.shuffles, n_tiles * 4 * (15 - 7));
    assert!(
        four.threadgroup_read > eight.threadgroup_read && eight.threadgroup_read > sixteen.threadgroup_read
    );
    let counters = eight;
    let of = |index: u32| *counters.buffers.iter().find(|b| b.index == index).unwrap();
    let bytes = (2 * shape.n_kv_heads * length * shape.head_dim * 2) as u64;
    let of_pages = |f: fn(&BufferTraffic) -> u64| counters.resources.iter().map(f).sum::<u64>();
    assert_eq!((of_pages(|r| r.read), of_pages(|r| r.read_once)), (bytes, bytes));
    assert_eq!(of(2).read, (cols * 4) as u64);
    assert_eq!(of(9).written, (cols * 4) as u64);
}
