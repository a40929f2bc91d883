//! The attention kernels, through the emulator, against plain Rust in f64.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used)]

use crate::launch::{Launch, Sanitizer, step};
use device::testing::Rng;
use device::{KvType, PAGE_NONE};
use formats::BlockType;
use formats::codec::{dequantize_row, quantize_row};

// Function constants, as attention/constants.h numbers them.
const HEAD_DIM: u16 = 32;
const HEADS: u16 = 33;
const SOFTCAP: u16 = 34;
const SINKS: u16 = 35;
const WINDOW: u16 = 36;
const SPLIT: u16 = 37;
const FUSED: u16 = 38;
const Q_NORM: u16 = 39;
const K_NORM: u16 = 40;
const Q_WEIGHT: u16 = 41;
const K_WEIGHT: u16 = 42;
const Q_ROPE: u16 = 43;
const K_ROPE: u16 = 44;

const CAP: f32 = 5.0;

/// A layer and what is asked of it.
#[derive(Clone, Copy, Debug)]
struct Shape {
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
    page_len: usize,
    kv: KvType,
    window: Option<usize>,
    softcap: bool,
    sinks: bool,
}

const PLAIN: Shape = Shape {
    n_heads: 4,
    n_kv_heads: 2,
    head_dim: 64,
    page_len: 16,
    kv: KvType::F16,
    window: None,
    softcap: false,
    sinks: false,
};

impl Shape {
    fn block(&self) -> BlockType {
        match self.kv {
            KvType::F32 => BlockType::F32,
            KvType::F16 => BlockType::F16,
            KvType::Q8_0 => BlockType::Q8_0,
        }
    }

    fn kv_name(&self) -> &'static str {
        ["f32", "f16", "q8_0"]
            [[KvType::F32, KvType::F16, KvType::Q8_0].iter().position(|k| *k == self.kv).unwrap()]
    }

    fn scale(&self) -> f32 {
        (self.head_dim as f32).sqrt().recip()
    }

    fn layer_bytes(&self) -> usize {
        2 * self.n_kv_heads * self.page_len * self.kv.vector_bytes(self.head_dim)
    }

    /// Another layer stands before this one in a page, and another group before this one in the tables.
    fn page_bytes(&self) -> usize {
        2 * self.layer_offset()
    }

    fn layer_offset(&self) -> usize {
        self.layer_bytes().next_multiple_of(16)
    }

    /// First position that a row at `position` sees.
    fn first(&self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }

    fn launch(&self, file: &'static str, function: String) -> Launch {
        Launch::new(file, function)
            .number(HEAD_DIM, self.head_dim as u32)
            .number(HEADS, (self.n_heads / self.n_kv_heads).min(8) as u32)
            .flag(SOFTCAP, self.softcap)
            .flag(SINKS, self.sinks)
            .flag(WINDOW, self.window.is_some())
            .flag(SPLIT, false)
            .flag(FUSED, false)
            .flag(Q_NORM, false)
            .flag(K_NORM, false)
            .flag(Q_WEIGHT, false)
            .flag(K_WEIGHT, false)
            .number(Q_ROPE, 0)
            .number(K_ROPE, 0)
    }

    /// AttentionArguments.
    fn arguments(
        &self,
        n_positions: usize,
        n_splits: usize,
        n_chosen: usize,
        turns: [[u32; 4]; 2],
    ) -> Vec<u32> {
        let mut words =
            vec![self.page_bytes() as u32, 0, self.layer_offset() as u32, 0, 1, self.page_len as u32];
        words.extend([self.n_kv_heads, self.head_dim, self.n_heads, n_positions].map(|n| n as u32));
        words.extend([self.window.unwrap_or(0) as u32, n_splits as u32]);
        words.extend([self.scale().to_bits(), CAP.to_bits(), n_chosen as u32, 0]);
        words.extend(turns.concat());
        words
    }
}

/// Pages of several sequences, scattered; what no position was written to is NaN.
struct Cache {
    shape: Shape,
    pool: Vec<u8>,
    /// (sequence, group, page)
    tables: Vec<u32>,
    pages_per_table: usize,
}

impl Cache {
    /// Random keys and values of the first `lengths[s]` positions of each sequence, room for one more.
    fn new(rng: &mut Rng, shape: Shape, lengths: &[usize]) -> Cache {
        let pages_per_table = lengths.iter().max().unwrap() / shape.page_len + 2;
        let n_pages: usize = lengths.iter().map(|n| n / shape.page_len + 1).sum();
        let mut free: Vec<u32> = (0..n_pages as u32).collect();
        let mut tables = vec![PAGE_NONE; lengths.len() * 2 * pages_per_table];
        for (s, n) in lengths.iter().enumerate() {
            for page in 0..n / shape.page_len + 1 {
                tables[(s * 2 + 1) * pages_per_table + page] = free.swap_remove(rng.below(free.len()));
            }
        }
        let mut cache =
            Cache { shape, pool: vec![0xff; n_pages * shape.page_bytes()], tables, pages_per_table };
        for (s, n) in lengths.iter().enumerate() {
            for position in 0..*n {
                for head in 0..2 * shape.n_kv_heads {
                    let vector: Vec<f32> = (0..shape.head_dim).map(|_| rng.normal()).collect();
                    let range = cache.range(s, head, position);
                    quantize_row(shape.block(), &vector, &mut cache.pool[range]);
                }
            }
        }
        cache
    }

    /// Where a vector lies; heads of values follow those of keys.
    fn range(&self, sequence: usize, head: usize, position: usize) -> std::ops::Range<usize> {
        let shape = self.shape;
        let page =
            self.tables[(sequence * 2 + 1) * self.pages_per_table + position / shape.page_len] as usize;
        let vector = head * shape.page_len + position % shape.page_len;
        let bytes = shape.kv.vector_bytes(shape.head_dim);
        let start = page * shape.page_bytes() + shape.layer_offset() + vector * bytes;
        start..start + bytes
    }

    fn read(&self, sequence: usize, head: usize, position: usize) -> Vec<f32> {
        let mut vector = vec![0.0; self.shape.head_dim];
        dequantize_row(self.shape.block(), &self.pool[self.range(sequence, head, position)], &mut vector);
        vector
    }

    /// Softmax over positions of a sequence for one query head.
    fn attend(
        &self,
        sequence: usize,
        head: usize,
        q: &[f32],
        seen: std::ops::Range<usize>,
        sinks: &[f32],
    ) -> Vec<f64> {
        let kv_head = head / (self.shape.n_heads / self.shape.n_kv_heads);
        let keys: Vec<_> = seen.clone().map(|p| self.read(sequence, kv_head, p)).collect();
        let values: Vec<_> = seen.map(|p| self.read(sequence, self.shape.n_kv_heads + kv_head, p)).collect();
        attend(self.shape, q, &keys, &values, self.shape.sinks.then(|| sinks[head]))
    }

    fn bind(&self, launch: Launch) -> Launch {
        launch.words(6, &self.tables).bytes(7, &self.pool)
    }
}

fn attend(shape: Shape, q: &[f32], keys: &[Vec<f32>], values: &[Vec<f32>], sink: Option<f32>) -> Vec<f64> {
    let cap = f64::from(CAP);
    let score = |k: &Vec<f32>| {
        let dot: f64 = q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
        let score = dot * f64::from(shape.scale());
        if shape.softcap { cap * (score / cap).tanh() } else { score }
    };
    let weights: Vec<f64> = keys.iter().map(|k| score(k).exp()).collect();
    let total: f64 = weights.iter().sum::<f64>() + sink.map_or(0.0, |s| f64::from(s).exp());
    let column =
        |c: usize| values.iter().zip(&weights).map(|(v, w)| f64::from(v[c]) * w).sum::<f64>() / total;
    (0..q.len()).map(column).collect()
}

/// Values are of variance 1, so outputs are at most about 3; `bound` is for their differences.
fn check(what: &str, found: &[f32], expected: &[f64], bound: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(*found) - expected).abs();
        assert!(error <= bound, "{what}: output {i} is {found}, expected {expected}");
    }
}

/// Scores of size 10 at most, summed in f32: an error of 1e-5 in the exponent.
const F32_BOUND: f64 = 3e-5;
/// q, k and probabilities rounded to half, scores of size 4 as a rule: a few 2^-11.
const HALF_BOUND: f64 = 6e-3;

fn normal(rng: &mut Rng, n: usize) -> Vec<f32> {
    (0..n).map(|_| rng.normal()).collect()
}

fn decode_memory(shape: Shape, heads: usize, simdgroups: usize) -> usize {
    let columns = shape.head_dim.next_multiple_of(4);
    4 * ((heads + 2).max(simdgroups) * columns + simdgroups * heads * 34)
}

fn shapes() -> Vec<Shape> {
    vec![
        PLAIN,
        Shape { kv: KvType::F32, ..PLAIN },
        Shape { kv: KvType::Q8_0, head_dim: 96, ..PLAIN },
        Shape { n_heads: 9, n_kv_heads: 3, head_dim: 20, window: Some(40), ..PLAIN },
        Shape { n_heads: 5, n_kv_heads: 5, head_dim: 6, kv: KvType::F32, softcap: true, ..PLAIN },
        Shape { n_heads: 10, n_kv_heads: 1, head_dim: 128, page_len: 64, sinks: true, ..PLAIN },
        Shape { n_heads: 8, n_kv_heads: 1, head_dim: 256, window: Some(3), kv: KvType::F32, ..PLAIN },
        Shape { n_heads: 2, n_kv_heads: 1, head_dim: 512, page_len: 32, softcap: true, sinks: true, ..PLAIN },
    ]
}

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
                expected.extend(cache.attend(row, head, q, shape.first(length - 1)..*length, &sinks));
            }
        }
        let group = shape.n_heads / shape.n_kv_heads;
        for (splits, simdgroups) in [(1, 1 + number % 3), (3, 2)] {
            let heads = group.min(8);
            let columns = shape.head_dim.next_multiple_of(4);
            let launch = shape
                .launch("attention.metal", format!("attention_decode_{}", shape.kv_name()))
                .flag(SPLIT, splits > 1)
                .arguments(&shape.arguments(0, splits, 0, [[0; 4]; 2]))
                .words(1, &step(3, 0, 3, 2, cache.pages_per_table))
                .floats(2, &q)
                .words(3, &lengths.map(|n| n as u32 - 1))
                .words(4, &[0, 1, 2])
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

/// A head normalised and turned, in f64.
fn turned(
    head: &[f32],
    weight: Option<&[f32]>,
    norm: bool,
    style: u32,
    frequencies: &[f32],
    position: usize,
) -> Vec<f64> {
    let mut head: Vec<f64> = head.iter().map(|v| f64::from(*v)).collect();
    if norm {
        let mean = head.iter().map(|v| v * v).sum::<f64>() / head.len() as f64;
        let factor = 1.0 / (mean + 1e-6).sqrt();
        for (i, v) in head.iter_mut().enumerate() {
            *v *= factor * weight.map_or(1.0, |w| f64::from(w[i]));
        }
    }
    if style > 0 {
        let half = frequencies.len();
        for (pair, frequency) in frequencies.iter().enumerate() {
            let angle = f64::from(position as f32 * frequency);
            let (sin, cos) = (angle.sin() * 1.5, angle.cos() * 1.5);
            let (i, j) = if style == 1 { (pair, pair + half) } else { (2 * pair, 2 * pair + 1) };
            (head[i], head[j]) = (head[i] * cos - head[j] * sin, head[j] * cos + head[i] * sin);
        }
    }
    head
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
        let turn = [0, n_dims as u32, 1.5f32.to_bits(), 1e-6f32.to_bits()];
        let splits = 1 + number % 2;
        let simdgroups = 1 + number % 4;
        let heads = group.min(8);
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
            .floats(8, &sinks)
            .output(9, 3 * cols)
            .output(10, 3 * shape.n_heads * splits * d.next_multiple_of(4))
            .output(11, 3 * shape.n_heads * splits * 2)
            .floats(12, &k)
            .floats(13, &v)
            .floats(14, &q_weight)
            .floats(15, &k_weight)
            .floats(16, &frequencies)
            .floats(17, &frequencies)
            .memory(decode_memory(shape, heads, simdgroups))
            .grid([shape.n_kv_heads * group.div_ceil(heads), splits, 3], 32 * simdgroups);
        let mut outcome = cache.bind(launch.clone()).run();
        let after = Cache { pool: outcome.buffers[&7].clone(), tables: cache.tables.clone(), ..cache };
        if splits > 1 {
            outcome = Launch { function: "attention_merge".to_owned(), ..launch }
                .bytes(10, &outcome.buffers[&10])
                .bytes(11, &outcome.buffers[&11])
                .grid([shape.n_heads, 3, 1], 32)
                .run();
        }

        // What was stored, and that nothing else was.
        let mut pool = cache.pool.clone();
        let weight = |w| if weighted { Some(w) } else { None };
        for (row, position) in lengths.iter().enumerate() {
            for head in 0..2 * shape.n_kv_heads {
                let is_key = head < shape.n_kv_heads;
                let at = row * kv_cols + head % shape.n_kv_heads * d;
                let expected = if is_key {
                    turned(&k[at..at + d], weight(&k_weight[..]), k_norm, k_style, &frequencies, *position)
                } else {
                    v[at..at + d].iter().map(|v| f64::from(*v)).collect()
                };
                let most = expected.iter().fold(0.0f64, |m, v| m.max(v.abs()));
                // Half an ulp of what is stored: of F16 at the largest value, of Q8_0 half a step and d's own rounding.
                let bound = [2e-6, 5e-4, 4.5e-3]
                    [[KvType::F32, KvType::F16, KvType::Q8_0].iter().position(|t| *t == shape.kv).unwrap()];
                check(
                    &format!("{shape:?} stored"),
                    &after.read(row, head, *position),
                    &expected,
                    bound * most,
                );
                let range = after.range(row, head, *position);
                pool[range.clone()].copy_from_slice(&after.pool[range]);
            }
        }
        assert!(pool == after.pool, "{shape:?}: nothing else is written");

        let mut expected = vec![];
        for (row, position) in lengths.iter().enumerate() {
            for head in 0..shape.n_heads {
                let q = &q[row * cols + head * d..][..d];
                let q = turned(q, weight(&q_weight[..]), q_norm, q_style, &frequencies, *position);
                let q: Vec<f32> = q.iter().map(|v| *v as f32).collect();
                expected.extend(after.attend(row, head, &q, shape.first(*position)..position + 1, &sinks));
            }
        }
        // Scores of turned and weighted heads are larger.
        check(&format!("{shape:?} fused"), &outcome.floats(9), &expected, 4.0 * F32_BOUND);
    }
}

/// The kernel's suffix for a head size, and its blocks of eight pairs.
fn tile(head_dim: usize, floats: bool) -> (usize, usize) {
    match head_dim {
        ..=64 => (64, 4),
        65..=128 => (128, if floats { 2 } else { 4 }),
        129..=256 => (256, if floats { 1 } else { 2 }),
        _ => (512, 1),
    }
}

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

#[test]
fn cross_attention_and_scores_of_a_memory() {
    let mut rng = Rng::new(5);
    for kv in [KvType::F32, KvType::F16, KvType::Q8_0] {
        for (n_heads, n_kv_heads, head_dim) in [(4, 2, 64), (3, 3, 32)] {
            let shape = Shape { n_heads, n_kv_heads, head_dim, kv, ..PLAIN };
            let memory = 43;
            let cache = Cache::new(&mut rng, shape, &[memory, memory]);
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
                        0..memory,
                        &[],
                    ));
                }
            }
            let base = |file, function| {
                let launch = shape
                    .launch(file, function)
                    .arguments(&shape.arguments(memory, 0, 2, [[0; 4]; 2]))
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
                    .words(5, &[0, 3, 9, 0, 3, 2, 0, 0])
                    .output(9, 5 * cols)
                    .grid([5usize.div_ceil(32 / group), n_kv_heads, 1], 128);
            let bound = if kv == KvType::F32 { F32_BOUND } else { HALF_BOUND };
            check(&format!("{shape:?} prefill"), &prefill.run().floats(9), &expected, bound);

            let chosen = [2u32, 1];
            let scores = base("cross_scores.metal", format!("cross_scores_{}", shape.kv_name()))
                .number(HEADS, 1)
                .words(8, &chosen)
                .output(9, 5 * 2 * memory)
                .memory(4 * head_dim)
                .grid([memory.div_ceil(32), 2, 5], 32);
            let mut expected = vec![];
            for (row, s) in row_spans.iter().enumerate() {
                for head in chosen.map(|h| h as usize) {
                    let q = &q[row * cols + head * head_dim..][..head_dim];
                    for p in 0..memory {
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
    let turn = [0, 32, 1f32.to_bits(), 1e-6f32.to_bits()];
    let mut expected = vec![];
    for row in 0..n {
        for head in 0..shape.n_heads {
            let q = &q[row * cols + head * shape.head_dim..][..shape.head_dim];
            expected.extend(cache.attend(0, head, q, shape.first(first + row)..first + row + 1, &sinks));
        }
    }
    let base = |shape: Shape, function: &str| {
        let launch = shape
            .launch("attention.metal", function.to_owned())
            .arguments(&shape.arguments(0, 2, 0, [turn, turn]))
            .words(1, &step(n, 0, 1, 2, cache.pages_per_table))
            .floats(2, &q)
            .words(4, &vec![0; n])
            .words(5, &[0, n as u32, first as u32, 0])
            .floats(8, &sinks)
            .output(9, n * cols)
            .floats(12, &k)
            .floats(13, &v);
        cache.bind(launch)
    };
    for sanitizer in [Sanitizer::Thread, Sanitizer::AddressUndefined] {
        let halves = base(shape, "halves").grid([2, 2, 1], 128).sanitize(sanitizer, &source);
        check("prefill", &halves.floats(9), &expected, HALF_BOUND);

        let rows =
            Shape { n_heads: 1, n_kv_heads: 1, head_dim: 128, kv: KvType::F32, softcap: false, ..shape };
        let floats = base(rows, "floats").grid([2, 1, 1], 128).sanitize(sanitizer, &source);
        assert!(floats.floats(9).iter().all(|v| v.is_finite()));

        // Each of two splits writes its part; the row's own k and v are stored.
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
            .floats(16, &[0.1; 16])
            .floats(17, &[0.1; 16])
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
    let counters = cache.bind(launch).count(source);
    let of = |index: u32| *counters.buffers.iter().find(|b| b.index == index).unwrap();
    let bytes = (2 * shape.n_kv_heads * length * shape.head_dim * 2) as u64;
    assert_eq!((of(7).read, of(7).read_once), (bytes, bytes));
    assert_eq!(of(2).read, (cols * 4) as u64);
    assert_eq!(of(9).written, (cols * 4) as u64);
}
