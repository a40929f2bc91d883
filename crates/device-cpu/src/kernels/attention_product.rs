//! The two matrix products of attention, over one block of positions: `S = Q K^T` and `O += P V`.
//!
//! Q `(n, head_dim)`, S and P `(n, BLOCK)`, O `(n, padded head_dim)`, in f32; keys and values are read from the pages.
//!
//! Two ways, the same chains of fused multiply-adds and so the same bits:
//!
//! - With few queries ([`MAX_DIRECT`]: a decoded token's heads of a KV head, or five beams) keys and values go from the
//!   page through registers: squares of keys are transposed and met by the queries at once, values by the probabilities.
//!   Each number is read once and never stored; about 0.2 cycles a number on Zen 5. What is needed next is asked for in small
//!   pieces as the work goes on: values while keys are multiplied, and the next block's keys while values are.
//! - With many, the block is brought into scratch in f32 first, keys transposed, and the products are tiled with four
//!   queries by `VECTORS` vectors in registers.

// Indices, for accumulators are arrays that must become registers, and the formulas stay readable.
#![allow(clippy::needless_range_loop)]

use super::attention_loops::Loops;
use super::kv_write::{Half, LayerPages, Stored};
use crate::prefetch::prefetch_far;
use crate::simd::{RowsOf, Simd, Sink};
use std::marker::PhantomData;
use std::ops::Range;

/// Positions of a block.
pub const BLOCK: usize = 64;
/// Most queries whose products go without scratch.
const MAX_DIRECT: usize = 5;

/// Columns of a head, rounded up to whole vectors.
#[inline(always)]
pub fn padded(head_dim: usize) -> usize {
    head_dim.next_multiple_of(16)
}

/// A block of positions of a sequence, for a KV head.
pub struct Place<'a> {
    /// Where keys and values lie.
    pub pages: &'a LayerPages,
    /// The sequence's pages.
    pub table: &'a [u32],
    /// Which.
    pub kv_head: usize,
    /// Its first position, a multiple of [`BLOCK`].
    pub block: usize,
    /// Positions of the block that are computed.
    pub range: Range<usize>,
    /// Whose keys are read after its values, if its range has any.
    pub next: Option<&'a Place<'a>>,
}

/// Ask for `n` vectors from `first` on.
#[inline(always)]
fn prefetch_vectors(first: *const u8, stride: usize, n: usize) {
    for line in (0..n * stride).step_by(64) {
        prefetch_far(first.wrapping_add(line));
    }
}

/// `S = Q K^T` for the positions of the range; other columns of S are undefined.
///
/// # Safety
/// The positions have pages; the matrices have their shapes, `kv` room for `padded(head_dim) * BLOCK` values; the
/// instruction set is available.
#[inline(always)]
pub unsafe fn scores<S: Loops, K: Stored>(
    place: &Place<'_>,
    n: usize,
    q: *const f32,
    kv: *mut f32,
    s: *mut f32,
) {
    let head_dim = place.pages.head_dim;
    // SAFETY: the caller's promise.
    unsafe {
        if n <= MAX_DIRECT {
            return match n {
                1 => S::direct_scores::<K, 1>(place, q, s),
                2 => S::direct_scores::<K, 2>(place, q, s),
                3 => S::direct_scores::<K, 3>(place, q, s),
                4 => S::direct_scores::<K, 4>(place, q, s),
                _ => S::direct_scores::<K, MAX_DIRECT>(place, q, s),
            };
        }
        load_keys::<S, K>(place, kv);
        let vectors = S::N * S::VECTORS;
        let (first, end) = (place.range.start / vectors * vectors, place.range.end.next_multiple_of(vectors));
        let shape =
            Product { n, k: head_dim, cols: end - first, lda: head_dim, ldb: BLOCK, ldc: BLOCK, add: false };
        S::product(shape, q, kv.add(first), s.add(first));
    }
}

/// `O += P V` over the positions of the range.
///
/// # Safety
/// As [`scores`].
#[inline(always)]
pub unsafe fn add_values<S: Loops, K: Stored>(
    place: &Place<'_>,
    n: usize,
    p: *const f32,
    kv: *mut f32,
    o: *mut f32,
) {
    let ld = padded(place.pages.head_dim);
    // SAFETY: the caller's promise.
    unsafe {
        if n <= MAX_DIRECT {
            return match n {
                1 => S::direct_values::<K, 1>(place, p, o),
                2 => S::direct_values::<K, 2>(place, p, o),
                3 => S::direct_values::<K, 3>(place, p, o),
                4 => S::direct_values::<K, 4>(place, p, o),
                _ => S::direct_values::<K, MAX_DIRECT>(place, p, o),
            };
        }
        load_values::<S, K>(place, kv);
        let shape = Product { n, k: place.range.len(), cols: ld, lda: BLOCK, ldb: ld, ldc: ld, add: true };
        S::product(shape, p.add(place.range.start), kv.add(place.range.start * ld), o);
    }
}

/// Scores of `M` queries with `S::N` positions, a lane each, as columns of keys come in.
struct Scores<S: Simd, const M: usize> {
    /// `(M, head_dim)` from the columns' first on.
    q: *const f32,
    head_dim: usize,
    sums: [S::V; M],
}

impl<S: Simd, const M: usize> Sink<S> for Scores<S, M> {
    #[inline(always)]
    unsafe fn take(&mut self, i: usize, keys: S::V) {
        // SAFETY: the column is one of the head's.
        unsafe {
            for query in 0..M {
                let q = S::splat(*self.q.add(query * self.head_dim + i));
                self.sums[query] = S::fma(q, keys, self.sums[query]);
            }
        }
    }
}

/// [`scores`] of `M` queries.
///
/// # Safety
/// As [`scores`].
#[inline(always)]
pub unsafe fn direct_scores<S: Simd, K: Stored, const M: usize>(
    place: &Place<'_>,
    q: *const f32,
    s: *mut f32,
) {
    let mut at = place.range.start / S::N * S::N;
    // SAFETY: the caller's promise.
    unsafe {
        // Every score is one chain of additions, so that several groups must be under way.
        while M == 1 && at + 3 * S::N < place.range.end {
            scores_of_groups::<S, K, M, 4>(place, at, q, s);
            at += 4 * S::N;
        }
        while M <= 3 && at + S::N < place.range.end {
            scores_of_groups::<S, K, M, 2>(place, at, q, s);
            at += 2 * S::N;
        }
        while at < place.range.end {
            scores_of_groups::<S, K, M, 1>(place, at, q, s);
            at += S::N;
        }
    }
}

/// Of `G` groups of `S::N` positions, from `at` on.
///
/// # Safety
/// As [`scores`].
#[inline(always)]
unsafe fn scores_of_groups<S: Simd, K: Stored, const M: usize, const G: usize>(
    place: &Place<'_>,
    at: usize,
    q: *const f32,
    s: *mut f32,
) {
    let (head_dim, stride) = (place.pages.head_dim, place.pages.vector_bytes());
    let whole = head_dim / S::N * S::N;
    // SAFETY: the caller's promise. `S::N` divides 16, which divides a page, so a group of positions lies in one page.
    unsafe {
        let mut firsts = [std::ptr::null(); G];
        for g in 0..G {
            let position = place.block + at + g * S::N;
            firsts[g] = place.pages.vector(place.table, Half::Keys, place.kv_head, position);
            // Positions in front of the range may have no page.
            let asked = position.max(place.block + place.range.start);
            let values = place.pages.vector(place.table, Half::Values, place.kv_head, asked);
            prefetch_vectors(values, stride, S::N);
        }
        let mut sums = [[S::splat(0.0); M]; G];
        for d in (0..whole).step_by(S::N) {
            for g in 0..G {
                let rows = Rows::<K> { first: firsts[g], stride, d, stored: PhantomData };
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

/// [`add_values`] of `M` queries.
///
/// # Safety
/// As [`scores`].
#[inline(always)]
pub unsafe fn direct_values<S: Simd, K: Stored, const M: usize>(
    place: &Place<'_>,
    p: *const f32,
    o: *mut f32,
) {
    let head_dim = place.pages.head_dim;
    let ld = padded(head_dim);
    // SAFETY: the caller's promise.
    unsafe {
        let mut d = 0;
        // As many accumulators as registers allow.
        while (S::VECTORS == 4 || M <= 3) && d + 4 * S::N <= head_dim {
            direct_columns::<S, K, M, 4>(place, d, p, o);
            d += 4 * S::N;
        }
        while S::VECTORS == 2 && d + 2 * S::N <= head_dim {
            direct_columns::<S, K, M, 2>(place, d, p, o);
            d += 2 * S::N;
        }
        while d + S::N <= head_dim {
            direct_columns::<S, K, M, 1>(place, d, p, o);
            d += S::N;
        }
        for d in d..head_dim {
            for at in place.range.clone() {
                let vector = place.pages.vector(place.table, Half::Values, place.kv_head, place.block + at);
                let v = K::load_one(vector, d);
                for query in 0..M {
                    let o = o.add(query * ld + d);
                    *o = S::fma_one(*p.add(query * BLOCK + at), v, *o);
                }
            }
        }
    }
}

/// `V` vectors of columns from `d` on.
///
/// # Safety
/// As [`scores`].
#[inline(always)]
unsafe fn direct_columns<S: Simd, K: Stored, const M: usize, const V: usize>(
    place: &Place<'_>,
    d: usize,
    p: *const f32,
    o: *mut f32,
) {
    let (stride, ld) = (place.pages.vector_bytes(), padded(place.pages.head_dim));
    // SAFETY: the caller's promise; each run of positions lies in one page.
    unsafe {
        let mut sums = [[S::splat(0.0); V]; M];
        for i in 0..M {
            for j in 0..V {
                sums[i][j] = S::load(o.add(i * ld + d + j * S::N));
            }
        }
        let mut at = place.range.start;
        while at < place.range.end {
            let (first, run) = place.run(Half::Values, at);
            // Runs of the next block are as long: a page and a block are both powers of two.
            let keys = match place.next {
                Some(next) if d == 0 => next
                    .keys_of(at)
                    .map(|keys| keys.wrapping_add(place.pages.within(next.block + at) * stride).cast_const()),
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

impl Place<'_> {
    /// The head's keys in the page of a position of the block, if it is in the range.
    ///
    /// # Safety
    /// The range has pages.
    #[inline(always)]
    pub unsafe fn keys_of(&self, at: usize) -> Option<*mut u8> {
        // SAFETY: the caller's promise.
        let keys = || unsafe { self.pages.head(self.table, Half::Keys, self.kv_head, self.block + at) };
        self.range.contains(&at).then(keys)
    }

    /// The vector at a position of the block, and how many of the range follow it in its page, itself included.
    ///
    /// # Safety
    /// The position has a page.
    #[inline(always)]
    unsafe fn run(&self, half: Half, at: usize) -> (*const u8, usize) {
        let page_len = self.pages.page_len;
        // SAFETY: the caller's promise.
        let first = unsafe { self.pages.vector(self.table, half, self.kv_head, self.block + at) };
        (first, (page_len - (self.block + at) % page_len).min(self.range.end - at))
    }
}

/// `S::N` columns of the vectors of neighbouring positions.
struct Rows<K> {
    first: *const u8,
    stride: usize,
    d: usize,
    stored: PhantomData<K>,
}

impl<K: Stored> RowsOf for Rows<K> {
    #[inline(always)]
    unsafe fn row<S: Simd>(&self, i: usize) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { K::load::<S>(self.first.add(i * self.stride), self.d) }
    }
}

/// Columns of transposed keys, [`BLOCK`] apart.
struct Columns(*mut f32);

impl<S: Simd> Sink<S> for Columns {
    #[inline(always)]
    unsafe fn take(&mut self, i: usize, v: S::V) {
        // SAFETY: the column is one of the head's.
        unsafe { S::store(self.0.add(i * BLOCK), v) }
    }
}

/// Keys of a block's positions, transposed: `(head_dim, BLOCK)`.
///
/// # Safety
/// As [`scores`].
#[inline(always)]
unsafe fn load_keys<S: Simd, K: Stored>(place: &Place<'_>, out: *mut f32) {
    let (head_dim, stride) = (place.pages.head_dim, place.pages.vector_bytes());
    let whole = head_dim / S::N * S::N;
    // SAFETY: the caller's promise. `S::N` divides 16, which divides a page, so a group of positions lies in one page.
    unsafe {
        for at in (place.range.start / S::N * S::N..place.range.end).step_by(S::N) {
            let first = place.pages.vector(place.table, Half::Keys, place.kv_head, place.block + at);
            for d in (0..whole).step_by(S::N) {
                let rows = Rows::<K> { first, stride, d, stored: PhantomData };
                S::transpose(rows, &mut Columns(out.add(d * BLOCK + at)));
            }
            for d in whole..head_dim {
                for i in 0..S::N {
                    *out.add(d * BLOCK + at + i) = K::load_one(first.add(i * stride), d);
                }
            }
        }
    }
}

/// Values of a block's positions: `(BLOCK, padded head_dim)`, the padding zero.
///
/// # Safety
/// As [`scores`].
#[inline(always)]
unsafe fn load_values<S: Simd, K: Stored>(place: &Place<'_>, out: *mut f32) {
    let (head_dim, stride) = (place.pages.head_dim, place.pages.vector_bytes());
    let (whole, ld) = (head_dim / S::N * S::N, padded(head_dim));
    // SAFETY: the caller's promise; each run of positions lies in one page.
    unsafe {
        let mut at = place.range.start;
        while at < place.range.end {
            let (first, run) = place.run(Half::Values, at);
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
    /// From one row of A to the next.
    pub lda: usize,
    /// Of B.
    pub ldb: usize,
    /// Of C.
    pub ldc: usize,
    /// Whether C is added to.
    pub add: bool,
}

/// `C = A B` or `C += A B`; every element of C is one chain of fused multiply-adds over k. Rows go by in groups: B, which all
/// of them read, stays in the first cache, and A and C come by once.
///
/// # Safety
/// The matrices have these shapes; the instruction set is available.
#[inline(always)]
pub unsafe fn product<S: Simd>(p: Product, a: *const f32, b: *const f32, c: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut row = 0;
        // As many accumulators as registers allow: 12 of AVX2's 16, 16 of the 32 of AVX-512 and NEON.
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

/// `M` rows of a [`product`].
///
/// # Safety
/// As [`product`].
#[inline(always)]
unsafe fn rows<S: Simd, const M: usize>(p: Product, a: *const f32, b: *const f32, c: *mut f32) {
    // SAFETY: the caller's promise.
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

/// `M` rows by `V` vectors.
///
/// # Safety
/// As [`product`].
#[inline(always)]
unsafe fn tile_of<S: Simd, const M: usize, const V: usize>(
    p: Product,
    a: *const f32,
    b: *const f32,
    c: *mut f32,
) {
    // SAFETY: the caller's promise.
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
