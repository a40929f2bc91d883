//! Attention of each row over all rows of its own span: `out = softmax(scale q k^T) v`, head by
//! head, without a cache.
//!
//! q and out `(n, n_heads * head_dim)`, k and v `(n, n_kv_heads * head_dim)`. With a window, blocks
//! that no query of a tile sees are skipped. A unit of work is (a span, a head, a tile of up to
//! [`TILE`] queries), taken from a counter. Keys and values are processed in blocks of [`BLOCK`]. A
//! block's keys are loaded into scratch as columns `(head_dim, BLOCK)`, its values as rows of whole
//! vectors. Then come `S = Q K^T`, a softmax along the rows of S, and `O += P V`. The softmax
//! rescales earlier blocks when a larger score appears ("online softmax": Milakov and Gimelshein,
//! 2018; tiles: Dao et al., "FlashAttention", 2022). Scratch stays in the second-level cache for
//! any length of the span.
//!
//! Accumulation is in f32: a score over the columns of its head, ascending; the softmax's sum and
//! an output over the positions of a block, blocks ascending. A query's order does not depend on
//! the other queries of its tile. Bytes: keys and values once for each tile, q once, 4 written for
//! each output.

use super::attention::constants::{FLOAT_BLOCK as BLOCK, padded};
use super::attention::loops::Loops;
use super::attention::product::Product;
use super::attention::softmax::{scale_row, softmax_block};
use super::attention::tile::Partial;
use super::elementwise::{self, Times};
use super::round_up;
use crate::command::Worker;
use crate::simd::{RowsOf, Simd, Sink, variants};
use device::Span;

/// Maximum number of queries of a tile. Loading a block into scratch costs as much as the products
/// of a few queries.
const TILE: usize = 128;

/// Parameters.
#[derive(Clone, Copy)]
pub struct SelfAttentionParams {
    /// `(n, n_heads * head_dim)`
    pub q: *const f32,
    /// `(n, n_kv_heads * head_dim)`
    pub k: *const f32,
    /// `(n, n_kv_heads * head_dim)`
    pub v: *const f32,
    /// `(n, n_heads * head_dim)`
    pub out: *mut f32,
    /// Heads.
    pub n_heads: usize,
    /// Number of key and value heads.
    pub n_kv_heads: usize,
    /// Columns of a head.
    pub head_dim: usize,
    /// Factor on the scores.
    pub scale: f32,
    /// Rows that a row sees to each side; `usize::MAX` for all.
    pub window: usize,
}

/// Scratch of a worker.
#[derive(Clone, Copy)]
struct SelfScratch {
    /// `(TILE, head_dim)` scaled queries.
    q: *mut f32,
    /// `(head_dim, BLOCK)`
    keys: *mut f32,
    /// `(BLOCK, padded head_dim)`, zeros after the last column.
    values: *mut f32,
    /// `(TILE, BLOCK)` scores, then probabilities.
    s: *mut f32,
    total: Partial,
}

impl SelfScratch {
    fn sizes(head_dim: usize) -> [usize; 5] {
        [
            TILE * head_dim,
            head_dim * BLOCK,
            BLOCK * padded(head_dim),
            TILE * BLOCK,
            Partial::len(TILE, head_dim),
        ]
        .map(|len| round_up(len * 4))
    }

    /// # Safety
    /// `start` is valid for [`scratch_bytes`], aligned to 64.
    #[inline(always)]
    unsafe fn at(start: *mut u8, head_dim: usize) -> SelfScratch {
        let [q, keys, values, s, _] = Self::sizes(head_dim);
        // SAFETY: the caller guarantees `scratch_bytes` at `start`, the sum of `sizes`.
        unsafe {
            SelfScratch {
                q: start.cast(),
                keys: start.add(q).cast(),
                values: start.add(q + keys).cast(),
                s: start.add(q + keys + values).cast(),
                total: Partial::at(start.add(q + keys + values + s).cast(), TILE, head_dim),
            }
        }
    }
}

/// Bytes of scratch.
pub fn scratch_bytes(head_dim: usize) -> usize {
    SelfScratch::sizes(head_dim).into_iter().sum()
}

/// Queries of each tile of a span of `n` rows, equal so that the last tile is not a small rest.
fn tile_rows(n: usize) -> usize {
    n.div_ceil(n.div_ceil(TILE))
}

/// # Safety
/// As [`crate::command::Kernel`].
#[inline(always)]
unsafe fn body<S: Loops>(p: &SelfAttentionParams, worker: &Worker<'_>) {
    let units_of = |span: &Span| {
        let n = span.n_rows as usize;
        n.div_ceil(tile_rows(n)) * p.n_heads
    };
    let n_units: usize = worker.step.spans.iter().map(units_of).sum();
    // SAFETY: the scratch has the layout of `scratch_bytes`; units are spans of the step, whose
    // rows are within the values.
    unsafe {
        let scratch = SelfScratch::at(worker.scratch, p.head_dim);
        while let Some(mut unit) = worker.take(n_units) {
            for span in worker.step.spans {
                let n = units_of(span);
                if unit < n {
                    // Neighbouring units are tiles of one head, so its keys are still in the cache.
                    let n_tiles = n / p.n_heads;
                    tile::<S>(p, span, unit / n_tiles, unit % n_tiles, &scratch);
                    break;
                }
                unit -= n;
            }
        }
    }
}

variants!(
    /// The kernel for an instruction set.
    self_attention, body, SelfAttentionParams
);

/// Computes one tile of a span's rows, for one head.
///
/// # Safety
/// The span's rows are rows of the values; the instruction set is available.
#[inline(always)]
unsafe fn tile<S: Loops>(
    p: &SelfAttentionParams,
    span: &Span,
    head: usize,
    tile: usize,
    scratch: &SelfScratch,
) {
    let (dim, cols, n_keys) = (p.head_dim, p.n_heads * p.head_dim, span.n_rows as usize);
    let (ld, total) = (padded(dim), scratch.total);
    let first = tile * tile_rows(n_keys);
    let n = tile_rows(n_keys).min(n_keys - first);
    let at = |row: usize| (span.first_row as usize + row) * cols + head * dim;
    let kv_cols = p.n_kv_heads * dim;
    let kv_head = head / (p.n_heads / p.n_kv_heads) * dim;
    let kv_at = |row: usize| (span.first_row as usize + row) * kv_cols + kv_head;
    // Range of keys that a query sees; below, that of the whole tile.
    let seen = |query: usize| {
        (first + query).saturating_sub(p.window)..(first + query).saturating_add(p.window).saturating_add(1)
    };
    let (begin, end) = (seen(0).start / BLOCK * BLOCK, seen(n - 1).end.min(n_keys));
    // SAFETY: the caller guarantees the span's rows in the values, and the instruction set.
    unsafe {
        for query in 0..n {
            let x = p.q.add(at(first + query));
            elementwise::combine::<S>(x, x, scratch.q.add(query * dim), dim, Times(p.scale));
        }
        total.clear(n, dim);
        for block in (begin..end).step_by(BLOCK) {
            let len = (n_keys - block).min(BLOCK);
            load_keys::<S>(p.k.add(kv_at(block)), kv_cols, dim, len, scratch.keys);
            load_values::<S>(p.v.add(kv_at(block)), kv_cols, dim, len, scratch.values);
            let vectors = len.next_multiple_of(S::N * S::VECTORS);
            let shape = Product { n, k: dim, cols: vectors, lda: dim, ldb: BLOCK, ldc: BLOCK, add: false };
            S::product(shape, scratch.q, scratch.keys, scratch.s);
            for query in 0..n {
                let row = scratch.s.add(query * BLOCK);
                let (m, l) = (total.m.add(query), total.l.add(query));
                let seen = seen(query);
                let seen =
                    seen.start.clamp(block, block + len) - block..seen.end.clamp(block, block + len) - block;
                let factor = softmax_block::<S>(row, 0..len, seen, 0.0, m, l);
                if factor != 1.0 {
                    scale_row::<S>(total.o.add(query * ld), ld, factor);
                }
            }
            let shape = Product { n, k: len, cols: ld, lda: BLOCK, ldb: ld, ldc: ld, add: true };
            S::product(shape, scratch.s, scratch.values, total.o);
        }
        for query in 0..n {
            let o = total.o.add(query * ld);
            let factor = Times(1.0 / *total.l.add(query));
            elementwise::combine::<S>(o, o, p.out.add(at(first + query)), dim, factor);
        }
    }
}

/// Rows of keys, `cols` values apart.
struct Keys {
    first: *const f32,
    cols: usize,
}

impl RowsOf for Keys {
    #[inline(always)]
    unsafe fn row<S: Simd>(&self, i: usize) -> S::V {
        // SAFETY: the caller guarantees that the keys have row `i` with `S::N` columns, and the
        // instruction set.
        unsafe { S::load(self.first.add(i * self.cols)) }
    }
}

/// Columns of transposed keys, [`BLOCK`] apart.
struct TransposedKeys(*mut f32);

impl<S: Simd> Sink<S> for TransposedKeys {
    #[inline(always)]
    unsafe fn take(&mut self, i: usize, v: S::V) {
        // SAFETY: the caller guarantees that column `i` of the head has room for a vector of
        // positions.
        unsafe { S::store(self.0.add(i * BLOCK), v) }
    }
}

/// Loads `len` rows of keys, transposed to `(dim, BLOCK)`. Columns after the last row keep their
/// contents, which are finite; their scores are not read.
///
/// # Safety
/// There are `len` rows of `dim` columns at `k`, `cols` apart; `out` has room for `(dim, BLOCK)`;
/// the instruction set is available.
#[inline(always)]
pub(super) unsafe fn load_keys<S: Simd>(k: *const f32, cols: usize, dim: usize, len: usize, out: *mut f32) {
    let (whole_rows, whole_cols) = (len / S::N * S::N, dim / S::N * S::N);
    // SAFETY: the caller guarantees `len` rows of `dim` columns at `k`, room for `(dim, BLOCK)` at
    // `out`, and the instruction set.
    unsafe {
        for row in (0..whole_rows).step_by(S::N) {
            for d in (0..whole_cols).step_by(S::N) {
                let keys = Keys { first: k.add(row * cols + d), cols };
                S::transpose(keys, &mut TransposedKeys(out.add(d * BLOCK + row)));
            }
        }
        for row in 0..len {
            let from = if row < whole_rows { whole_cols } else { 0 };
            for d in from..dim {
                *out.add(d * BLOCK + row) = *k.add(row * cols + d);
            }
        }
    }
}

/// Loads `len` rows of values as `(len, padded dim)`, with zeros as padding.
///
/// # Safety
/// There are `len` rows of `dim` columns at `v`, `cols` apart; `out` has room for
/// `(len, padded dim)`; the instruction set is available.
#[inline(always)]
unsafe fn load_values<S: Simd>(v: *const f32, cols: usize, dim: usize, len: usize, out: *mut f32) {
    let whole = dim / S::N * S::N;
    // SAFETY: the caller guarantees `len` rows of `dim` columns at `v`, room for `len` rows of
    // `padded(dim)` at `out`, and the instruction set.
    unsafe {
        for row in 0..len {
            let (v, out) = (v.add(row * cols), out.add(row * padded(dim)));
            for d in (0..whole).step_by(S::N) {
                S::store(out.add(d), S::load(v.add(d)));
            }
            for d in whole..padded(dim) {
                *out.add(d) = if d < dim { *v.add(d) } else { 0.0 };
            }
        }
    }
}
