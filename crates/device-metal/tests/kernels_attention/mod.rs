//! The attention kernels, through the emulator, against plain Rust in f64. This file has their
//! shapes, the cache of scattered pages, and the reference.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used)]

mod cross;
mod decode;
mod prefill;
mod sanitizers;

use crate::launch::{Launch, Sanitizer, step};
use device::{KvType, PAGE_NONE};
use device_testing::Rng;
use std::ops::Range;
use weights::BlockType;
use weights::codec::{dequantize_row, quantize_row};

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
const V_NORM: u16 = 45;
const WHOLE_ROWS: u16 = 46;
const KEY_BIAS: u16 = 47;
const CHUNKED: u16 = 48;
const BOTH_WAYS: u16 = 49;
const KEY_LANES: u16 = 50;

const CAP: f32 = 5.0;

/// A layer and its request.
#[derive(Clone, Copy, Debug)]
struct Shape {
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
    page_len: usize,
    kv: KvType,
    window: Option<usize>,
    chunked: bool,
    both_ways: bool,
    values_are_keys: bool,
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
    chunked: false,
    both_ways: false,
    values_are_keys: false,
    softcap: false,
    sinks: false,
};

impl Shape {
    fn block(&self) -> BlockType {
        match self.kv {
            KvType::F32 => BlockType::F32,
            KvType::F16 => BlockType::F16,
            KvType::Q8_0 => BlockType::Q8_0,
            KvType::I16 | KvType::I8 | KvType::Fp8 => unreachable!("not one of Metal's"),
        }
    }

    fn kv_name(&self) -> &'static str {
        ["f32", "f16", "q8_0"]
            [[KvType::F32, KvType::F16, KvType::Q8_0].iter().position(|k| *k == self.kv).unwrap()]
    }

    /// Query heads that a threadgroup makes at once.
    fn heads_at_once(&self) -> usize {
        (self.n_heads / self.n_kv_heads).min(if self.head_dim > 512 { 4 } else { 8 })
    }

    fn scale(&self) -> f32 {
        (self.head_dim as f32).sqrt().recip()
    }

    /// Heads of a position that are stored.
    fn n_stored(&self) -> usize {
        if self.values_are_keys { self.n_kv_heads } else { 2 * self.n_kv_heads }
    }

    fn layer_bytes(&self) -> usize {
        self.n_stored() * self.page_len * self.kv.vector_bytes(self.head_dim)
    }

    /// Another layer precedes this one in a page, and another group precedes this one in the
    /// tables.
    fn page_bytes(&self) -> usize {
        2 * self.layer_offset()
    }

    fn layer_offset(&self) -> usize {
        self.layer_bytes().next_multiple_of(16)
    }

    /// Positions of a span that its row at `position` sees.
    fn seen(&self, position: usize, span: Range<usize>) -> Range<usize> {
        let first = match self.window {
            Some(window) if self.chunked => position / window * window,
            Some(window) => (position + 1).saturating_sub(window),
            None => 0,
        };
        first..if self.both_ways { span.end } else { position + 1 }
    }

    fn launch(&self, file: &'static str, function: String) -> Launch {
        Launch::new(file, function)
            .number(HEAD_DIM, self.head_dim as u32)
            .number(HEADS, self.heads_at_once() as u32)
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
            .flag(V_NORM, false)
            .flag(WHOLE_ROWS, false)
            .flag(KEY_BIAS, false)
            .flag(CHUNKED, self.chunked)
            .flag(BOTH_WAYS, self.both_ways)
            .number(KEY_LANES, 4)
    }

    /// AttentionArguments.
    fn arguments(
        &self,
        n_positions: usize,
        n_splits: usize,
        n_chosen: usize,
        turns: [[u32; 4]; 2],
    ) -> Vec<u32> {
        let mut words = vec![self.layer_offset() as u32, 1, self.page_len as u32];
        let shared = usize::from(self.values_are_keys);
        words.extend(
            [self.n_kv_heads, self.head_dim, shared, 0, 0, self.n_heads, n_positions].map(|n| n as u32),
        );
        words.extend([self.window.unwrap_or(0) as u32, n_splits as u32]);
        words.extend([self.scale().to_bits(), CAP.to_bits(), n_chosen as u32, 0]);
        words.extend(turns.concat());
        words
    }
}

/// Scattered pages of several sequences; bytes of unwritten positions are NaN.
struct Cache {
    shape: Shape,
    pool: Vec<u8>,
    /// (sequence, group, page)
    tables: Vec<u32>,
    pages_per_table: usize,
}

impl Cache {
    /// Random keys and values of the first `lengths[s]` positions of each sequence, room for one
    /// more.
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
                for head in 0..shape.n_stored() {
                    let vector: Vec<f32> = (0..shape.head_dim).map(|_| rng.normal()).collect();
                    let range = cache.range(s, head, position);
                    quantize_row(shape.block(), &vector, &mut cache.pool[range]);
                }
            }
        }
        cache
    }

    /// Range of a vector in the pool; heads of values follow those of keys.
    fn range(&self, sequence: usize, head: usize, position: usize) -> Range<usize> {
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
    fn attend(&self, sequence: usize, head: usize, q: &[f32], seen: Range<usize>, sinks: &[f32]) -> Vec<f64> {
        let kv_head = head / (self.shape.n_heads / self.shape.n_kv_heads);
        let keys: Vec<_> = seen.clone().map(|p| self.read(sequence, kv_head, p)).collect();
        let value_head = self.shape.n_stored() - self.shape.n_kv_heads + kv_head;
        let values: Vec<_> = seen.map(|p| self.read(sequence, value_head, p)).collect();
        attend(self.shape, q, &keys, &values, self.shape.sinks.then(|| sinks[head]))
    }

    fn bind(&self, launch: Launch) -> Launch {
        launch.pages(6, &self.tables, &self.pool, self.shape.page_bytes())
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

/// A Span: its first row, its rows, and the position of the first.
fn span(first_row: usize, n_rows: usize, first_position: usize) -> [u32; 8] {
    [first_row as u32, n_rows as u32, first_position as u32, 0, 0, 0, 0, 0]
}

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
        Shape { n_heads: 5, n_kv_heads: 1, head_dim: 576, values_are_keys: true, ..PLAIN },
        Shape { window: Some(37), chunked: true, kv: KvType::F32, ..PLAIN },
        Shape { window: Some(5), both_ways: true, head_dim: 32, ..PLAIN },
    ]
}

/// The kernel's suffix for a head size, and its blocks of eight pairs.
fn tile(head_dim: usize, floats: bool) -> (usize, usize) {
    match head_dim {
        ..=64 => (64, 4),
        65..=128 => (128, if floats { 2 } else { 4 }),
        129..=256 => (256, if floats { 1 } else { 2 }),
        257..=512 => (512, 1),
        _ => (576, 1),
    }
}
