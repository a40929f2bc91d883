//! The two matrix products of attention, over one block of positions: `S = Q K^T` and `O += P V`.
//!
//! Q `(n, head_dim)`, S and P `(n, BLOCK)`, O `(n, padded head_dim)`, in f32; keys and values are
//! read from the pages.
//!
//! There are two ways, which compute the same chains of fused multiply-adds, and so the same bits:
//!
//! - With few queries ([`MAX_DIRECT`](super::floats::MAX_DIRECT): a decoded token's heads of a KV
//!   head, or five beams), keys and values are read from the page into registers. Squares of keys
//!   are transposed and multiplied with the queries at once, values with the probabilities. Each
//!   number is read once and never stored, at about 0.2 cycles a number on Zen 5. Values are
//!   prefetched in small pieces while keys are multiplied, and the next block's keys while values
//!   are.
//! - With many queries, the block is first converted to f32 in scratch, with keys transposed. The
//!   products are tiled with four queries by `VECTORS` vectors in registers.

// Loops use indices, since accumulators are arrays that must become registers, and formulas stay
// readable.
#![allow(clippy::needless_range_loop)]

use super::constants::{FLOAT_BLOCK as BLOCK, padded};
use super::pages::{Half, KvBlock};
use super::stored::StoredFloats;
use crate::prefetch::prefetch_far;
use crate::simd::{RowsOf, Simd, Sink};
use std::marker::PhantomData;

/// Prefetches `n` vectors from `first` on.
#[inline(always)]
fn prefetch_vectors(first: *const u8, stride: usize, n: usize) {
    for line in (0..n * stride).step_by(64) {
        prefetch_far(first.wrapping_add(line));
    }
}

/// Scores of `M` queries with `S::N` positions, one lane each, accumulated over columns of keys.
struct Scores<S: Simd, const M: usize> {
    /// `(M, head_dim)` queries, from the first of these columns on.
    q: *const f32,
    head_dim: usize,
    sums: [S::V; M],
}

impl<S: Simd, const M: usize> Sink<S> for Scores<S, M> {
    #[inline(always)]
    unsafe fn take(&mut self, i: usize, keys: S::V) {
        // SAFETY: as the fields say, `q` has `M` queries; by the caller, the head has column `i`,
        // counted from the one that `q` begins with. The caller checked the instruction set.
        unsafe {
            for query in 0..M {
                let q = S::splat(*self.q.add(query * self.head_dim + i));
                self.sums[query] = S::fma(q, keys, self.sums[query]);
            }
        }
    }
}

/// Computes the scores of [`floats`](super::floats) for `M` queries.
///
/// # Safety
/// The positions of the range have pages; `q` is `(M, head_dim)`, `s` `(M, BLOCK)`; the instruction
/// set is available.
#[inline(always)]
pub unsafe fn direct_scores<S: Simd, K: StoredFloats, const M: usize>(
    block: &KvBlock<'_>,
    q: *const f32,
    s: *mut f32,
) {
    let mut at = block.range.start / S::N * S::N;
    // SAFETY: by the caller, the positions have pages, `q` has `M` queries, and `s` has `M` rows.
    // The caller checked the instruction set. Every group begins before the range's end.
    unsafe {
        // Every score is one chain of additions, so several groups must be in flight.
        while M == 1 && at + 3 * S::N < block.range.end {
            scores_of_groups::<S, K, M, 4>(block, at, q, s);
            at += 4 * S::N;
        }
        while M <= 3 && at + S::N < block.range.end {
            scores_of_groups::<S, K, M, 2>(block, at, q, s);
            at += 2 * S::N;
        }
        while at < block.range.end {
            scores_of_groups::<S, K, M, 1>(block, at, q, s);
            at += S::N;
        }
    }
}

/// Computes the scores of `G` groups of `S::N` positions, from `at` on.
///
/// # Safety
/// As [`direct_scores`]; `at` is a multiple of `S::N`, and each group has a position of the range.
#[inline(always)]
unsafe fn scores_of_groups<S: Simd, K: StoredFloats, const M: usize, const G: usize>(
    block: &KvBlock<'_>,
    at: usize,
    q: *const f32,
    s: *mut f32,
) {
    let (head_dim, stride) = (block.pages.head_dim, block.pages.vector_bytes());
    let whole = head_dim / S::N * S::N;
    // SAFETY: by the caller, `q` has `M` queries, and `s` has `M` rows. The caller checked the
    // instruction set. Each group has a position of the range, which has a page, and is of one
    // page, since `S::N` divides 16, which divides the page's length. A vector has at most 16
    // lanes.
    unsafe {
        let mut firsts = [std::ptr::null(); G];
        for g in 0..G {
            let position = block.first + at + g * S::N;
            firsts[g] = block.pages.vector(block.table, Half::Keys, block.kv_head, position);
            // Values before the range are not read, so they are not prefetched.
            let from = position.max(block.first + block.range.start);
            let values = block.pages.vector(block.table, Half::Values, block.kv_head, from);
            prefetch_vectors(values, stride, S::N);
        }
        let mut sums = [[S::splat(0.0); M]; G];
        for d in (0..whole).step_by(S::N) {
            for g in 0..G {
                let rows = StoredRows::<K> { first: firsts[g], stride, d, stored: PhantomData };
                let mut scores = Scores::<S, M> { q: q.add(d), head_dim, sums: sums[g] };
                S::transpose(rows, &mut scores);
                sums[g] = scores.sums;
            }
        }
        for g in 0..G {
            let mut scores = Scores::<S, M> { q, head_dim, sums: sums[g] };
            for d in whole..head_dim {
                let mut keys = [0f32; 16];
                for (i, key) in keys.iter_mut().enumerate().take(S::N) {
                    *key = K::load_one(firsts[g].add(i * stride), d);
                }
                scores.take(d, S::load(keys.as_ptr()));
            }
            for query in 0..M {
                S::store(s.add(query * BLOCK + at + g * S::N), scores.sums[query]);
            }
        }
    }
}

/// Adds the weighted values of `M` queries to `o`.
///
/// # Safety
/// The positions of the range have pages; `p` is `(M, BLOCK)`, `o` `(M, padded head_dim)`; the
/// instruction set is available.
#[inline(always)]
pub unsafe fn direct_values<S: Simd, K: StoredFloats, const M: usize>(
    block: &KvBlock<'_>,
    p: *const f32,
    o: *mut f32,
) {
    let head_dim = block.pages.head_dim;
    let ld = padded(head_dim);
    // SAFETY: by the caller, the positions have pages, `p` has `M` rows of `BLOCK`, and `o` has `M`
    // rows of `ld`. The caller checked the instruction set. `d` stays below `head_dim`.
    unsafe {
        let mut d = 0;
        // The number of accumulators is limited by the registers.
        while (S::VECTORS == 4 || M <= 3) && d + 4 * S::N <= head_dim {
            direct_columns::<S, K, M, 4>(block, d, p, o);
            d += 4 * S::N;
        }
        while S::VECTORS == 2 && d + 2 * S::N <= head_dim {
            direct_columns::<S, K, M, 2>(block, d, p, o);
            d += 2 * S::N;
        }
        while d + S::N <= head_dim {
            direct_columns::<S, K, M, 1>(block, d, p, o);
            d += S::N;
        }
        for d in d..head_dim {
            for at in block.range.clone() {
                let vector = block.pages.vector(block.table, Half::Values, block.kv_head, block.first + at);
                let v = K::load_one(vector, d);
                for query in 0..M {
                    let o = o.add(query * ld + d);
                    *o = S::fma_one(*p.add(query * BLOCK + at), v, *o);
                }
            }
        }
    }
}

/// Adds the weighted values in `V` vectors of columns from `d` on.
///
/// # Safety
/// As [`direct_values`]; the head has these columns.
#[inline(always)]
unsafe fn direct_columns<S: Simd, K: StoredFloats, const M: usize, const V: usize>(
    block: &KvBlock<'_>,
    d: usize,
    p: *const f32,
    o: *mut f32,
) {
    let (stride, ld) = (block.pages.vector_bytes(), padded(block.pages.head_dim));
    // SAFETY: by the caller, the positions have pages, `p` has `M` rows of `BLOCK`, `o` has `M`
    // rows of `ld`, and the head has these columns. The caller checked the instruction set. A run
    // of positions is in one page.
    unsafe {
        let mut sums = [[S::splat(0.0); V]; M];
        for i in 0..M {
            for j in 0..V {
                sums[i][j] = S::load(o.add(i * ld + d + j * S::N));
            }
        }
        let mut at = block.range.start;
        while at < block.range.end {
            let (first, run) = block.run(Half::Values, at);
            // Runs of the next block have the same lengths, since a page and a block are powers of
            // two.
            let keys = match block.next {
                Some(next) if d == 0 => next
                    .keys_of(at)
                    .map(|keys| keys.wrapping_add(block.pages.within(next.first + at) * stride).cast_const()),
                _ => None,
            };
            for i in 0..run {
                if let Some(keys) = keys {
                    prefetch_vectors(keys.wrapping_add(i * stride), stride, 1);
                }
                let mut values = [S::splat(0.0); V];
                for j in 0..V {
                    values[j] = K::load::<S>(first.add(i * stride), d + j * S::N);
                }
                for query in 0..M {
                    let p = S::splat(*p.add(query * BLOCK + at + i));
                    for j in 0..V {
                        sums[query][j] = S::fma(p, values[j], sums[query][j]);
                    }
                }
            }
            at += run;
        }
        for i in 0..M {
            for j in 0..V {
                S::store(o.add(i * ld + d + j * S::N), sums[i][j]);
            }
        }
    }
}

/// `S::N` columns of the stored vectors of `S::N` neighbouring positions.
struct StoredRows<K> {
    /// Address of the vector of the first position; the other vectors follow in its page.
    first: *const u8,
    /// Bytes from one vector to the next.
    stride: usize,
    /// First column.
    d: usize,
    stored: PhantomData<K>,
}

impl<K: StoredFloats> RowsOf for StoredRows<K> {
    #[inline(always)]
    unsafe fn row<S: Simd>(&self, i: usize) -> S::V {
        // SAFETY: as the fields say, `S::N` vectors of one page begin at `first`, and they have the
        // columns `d..d + S::N`; by the caller, `i` is below `S::N`. The caller checked the
        // instruction set.
        unsafe { K::load::<S>(self.first.add(i * self.stride), self.d) }
    }
}

/// Columns of transposed keys, [`BLOCK`] apart.
struct BlockColumns(*mut f32);

impl<S: Simd> Sink<S> for BlockColumns {
    #[inline(always)]
    unsafe fn take(&mut self, i: usize, v: S::V) {
        // SAFETY: by the caller, the head has column `i`, counted from the one that the pointer
        // begins with, and the instruction set is available.
        unsafe { S::store(self.0.add(i * BLOCK), v) }
    }
}

/// Loads the keys of a block's positions, transposed to `(head_dim, BLOCK)`.
///
/// # Safety
/// The positions of the range have pages; `out` has this shape; the instruction set is available.
#[inline(always)]
pub unsafe fn load_keys<S: Simd, K: StoredFloats>(block: &KvBlock<'_>, out: *mut f32) {
    let (head_dim, stride) = (block.pages.head_dim, block.pages.vector_bytes());
    let whole = head_dim / S::N * S::N;
    // SAFETY: by the caller, `out` has `head_dim` rows of `BLOCK`. The caller checked the
    // instruction set. Each group has a position of the range, which has a page, and is of one
    // page, since `S::N` divides 16, which divides the page's length.
    unsafe {
        for at in (block.range.start / S::N * S::N..block.range.end).step_by(S::N) {
            let first = block.pages.vector(block.table, Half::Keys, block.kv_head, block.first + at);
            for d in (0..whole).step_by(S::N) {
                let rows = StoredRows::<K> { first, stride, d, stored: PhantomData };
                S::transpose(rows, &mut BlockColumns(out.add(d * BLOCK + at)));
            }
            for d in whole..head_dim {
                for i in 0..S::N {
                    *out.add(d * BLOCK + at + i) = K::load_one(first.add(i * stride), d);
                }
            }
        }
    }
}

/// Loads the values of a block's positions as `(BLOCK, padded head_dim)`, with zeros as padding.
///
/// # Safety
/// The positions of the range have pages; `out` has this shape; the instruction set is available.
#[inline(always)]
pub unsafe fn load_values<S: Simd, K: StoredFloats>(block: &KvBlock<'_>, out: *mut f32) {
    let (head_dim, stride) = (block.pages.head_dim, block.pages.vector_bytes());
    let (whole, ld) = (head_dim / S::N * S::N, padded(head_dim));
    // SAFETY: by the caller, the positions have pages, and `out` has `BLOCK` rows of `ld`. The
    // caller checked the instruction set. A run of positions is in one page.
    unsafe {
        let mut at = block.range.start;
        while at < block.range.end {
            let (first, run) = block.run(Half::Values, at);
            for i in 0..run {
                let (vector, out) = (first.add(i * stride), out.add((at + i) * ld));
                for d in (0..whole).step_by(S::N) {
                    S::store(out.add(d), K::load::<S>(vector, d));
                }
                for d in whole..head_dim {
                    *out.add(d) = K::load_one(vector, d);
                }
                for d in head_dim..ld {
                    *out.add(d) = 0.0;
                }
            }
            at += run;
        }
    }
}

/// Shape of a small matrix product, strides in values.
#[derive(Clone, Copy)]
pub struct Product {
    /// Rows of A and C.
    pub n: usize,
    /// Columns of A, rows of B.
    pub k: usize,
    /// Columns of B and C; a multiple of the vector's length.
    pub cols: usize,
    /// Values from one row of A to the next.
    pub lda: usize,
    /// Values from one row of B to the next.
    pub ldb: usize,
    /// Values from one row of C to the next.
    pub ldc: usize,
    /// True for `C += A B`.
    pub add: bool,
}

/// Computes `C = A B` or `C += A B`. Every element of C is one chain of fused multiply-adds over k.
/// Rows are processed in groups, so that B stays in the first-level cache, and A and C are read
/// once.
///
/// # Safety
/// The matrices have these shapes; the instruction set is available.
#[inline(always)]
pub unsafe fn product<S: Simd>(p: Product, a: *const f32, b: *const f32, c: *mut f32) {
    // SAFETY: by the caller, the matrices have these shapes. The caller checked the instruction
    // set. `row` plus the rows of each call is at most `n`.
    unsafe {
        let mut row = 0;
        // The number of accumulators is limited by registers: 12 of AVX2's 16, 16 of the 32 of
        // AVX-512 and NEON.
        while S::VECTORS == 2 && row + 6 <= p.n {
            rows::<S, 6>(p, a.add(row * p.lda), b, c.add(row * p.ldc));
            row += 6;
        }
        while row + 4 <= p.n {
            rows::<S, 4>(p, a.add(row * p.lda), b, c.add(row * p.ldc));
            row += 4;
        }
        let (a, c) = (a.add(row * p.lda), c.add(row * p.ldc));
        match p.n - row {
            3 => rows::<S, 3>(p, a, b, c),
            2 => rows::<S, 2>(p, a, b, c),
            1 => rows::<S, 1>(p, a, b, c),
            _ => {}
        }
    }
}

/// Computes `M` rows of a [`product`].
///
/// # Safety
/// As [`product`]; A and C have `M` rows from here on.
#[inline(always)]
unsafe fn rows<S: Simd, const M: usize>(p: Product, a: *const f32, b: *const f32, c: *mut f32) {
    // SAFETY: by the caller, A and C have `M` rows more, and the matrices have these shapes. The
    // caller checked the instruction set. `cols` is a multiple of a vector, and `col` plus the
    // vectors of each call is at most `cols`.
    unsafe {
        let mut col = 0;
        while S::VECTORS == 4 && col + 4 * S::N <= p.cols {
            tile_of::<S, M, 4>(p, a, b.add(col), c.add(col));
            col += 4 * S::N;
        }
        while S::VECTORS == 2 && col + 2 * S::N <= p.cols {
            tile_of::<S, M, 2>(p, a, b.add(col), c.add(col));
            col += 2 * S::N;
        }
        while col < p.cols {
            tile_of::<S, M, 1>(p, a, b.add(col), c.add(col));
            col += S::N;
        }
    }
}

/// Computes `M` rows by `V` vectors.
///
/// # Safety
/// As [`rows`]; B and C have `V` vectors of columns from here on.
#[inline(always)]
unsafe fn tile_of<S: Simd, const M: usize, const V: usize>(
    p: Product,
    a: *const f32,
    b: *const f32,
    c: *mut f32,
) {
    // SAFETY: by the caller, A and C have `M` rows more, B and C `V` vectors of columns more, and
    // the instruction set is available.
    unsafe {
        let mut acc = [[S::splat(0.0); V]; M];
        if p.add {
            for i in 0..M {
                for j in 0..V {
                    acc[i][j] = S::load(c.add(i * p.ldc + j * S::N));
                }
            }
        }
        for k in 0..p.k {
            let mut bv = [S::splat(0.0); V];
            for j in 0..V {
                bv[j] = S::load(b.add(k * p.ldb + j * S::N));
            }
            for i in 0..M {
                let x = S::splat(*a.add(i * p.lda + k));
                for j in 0..V {
                    acc[i][j] = S::fma(x, bv[j], acc[i][j]);
                }
            }
        }
        for i in 0..M {
            for j in 0..V {
                S::store(c.add(i * p.ldc + j * S::N), acc[i][j]);
            }
        }
    }
}
