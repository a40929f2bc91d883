//! The arithmetic of attention: a tile of query rows over a chunk of positions, and the combination
//! of chunks.
//!
//! # Formula
//!
//! For a query q (a row's head), over the positions of a chunk: `s_p = softcap(scale q . k_p)`,
//! `m = max s_p`, `l = sum e^(s_p - m)`, `o = sum e^(s_p - m) v_p`. Two such partials combine as
//! `m = max(m1, m2)`, `l = l1 e^(m1 - m) + l2 e^(m2 - m)`, o alike; the result is `o / l`.
//!
//! # Layout and tile
//!
//! A tile contains all query heads of a KV head: `n` queries `(row, head)`, up to
//! [`MAX_QUERIES`](super::constants::MAX_QUERIES). A chunk is processed in blocks of positions, at
//! absolute multiples of their number: `S = Q K^T`, a softmax along the rows of S, `O += P V`. The
//! type of the products depends on the KV type ([`Attend`]): f32 ([`floats`](super::floats)) or
//! integers ([`integers`](super::integers)).
//!
//! # Order of accumulation
//!
//! Blocks and chunks are accumulated in ascending order; the order within a block is that of
//! [`Attend`]'s implementation. Positions that a row does not see add exact zeros. A row's result
//! thus depends neither on its tile nor on the number of workers. Its bits are the same in a batch
//! and alone, and for a prompt in one piece or several.

use super::attend::Attend;
use super::constants::padded;
use super::loops::Loops;
use super::pages::{HeadSize, KvBlock};
use super::softmax::{exp_one, join};
use super::tile::{Partial, RowTile, Shape};
use crate::kernels::elementwise::{self, Times};
use crate::kernels::round_up;
use crate::simd::Simd;
use std::ops::Range;

/// Scratch of a worker.
#[derive(Clone, Copy)]
pub struct ChunkScratch<A: Attend> {
    /// Scratch for blocks.
    pub work: A::Work,
    /// Partial result of a chunk.
    pub chunk: Partial,
    /// Combined result of the chunks so far.
    pub total: Partial,
}

impl<A: Attend> ChunkScratch<A> {
    fn sizes(n: usize, size: HeadSize) -> [usize; 2] {
        [A::work_bytes(n, size), round_up(Partial::len(n, size.head_dim) * 4)]
    }

    /// Bytes for tiles of `n` queries.
    pub fn bytes(n: usize, size: HeadSize) -> usize {
        let [work, partial] = Self::sizes(n, size);
        work + 2 * partial
    }

    /// The scratch that is stored at an address.
    ///
    /// # Safety
    /// `start` is valid for [`Self::bytes`], aligned to 64.
    #[inline(always)]
    pub unsafe fn at(start: *mut u8, n: usize, size: HeadSize) -> ChunkScratch<A> {
        let ([work, partial], head_dim) = (Self::sizes(n, size), size.head_dim);
        // SAFETY: by the caller, `start` is valid for `bytes`, the sum of these sizes, and aligned
        // to 64; the sizes are multiples of 64.
        unsafe {
            ChunkScratch {
                work: A::work(start, n, size),
                chunk: Partial::at(start.add(work).cast(), n, head_dim),
                total: Partial::at(start.add(work + partial).cast(), n, head_dim),
            }
        }
    }
}

/// Loads the scaled queries of the tile for a KV head into scratch, in the order `(row, head of the
/// group)`.
///
/// # Safety
/// `q` has the tile's rows, `(n, cols)`; the work is for its queries; the instruction set is
/// available.
#[inline(always)]
pub unsafe fn load_queries<S: Loops, A: Attend>(
    shape: &Shape,
    tile: &RowTile<'_>,
    kv_head: usize,
    q: *const f32,
    work: A::Work,
) {
    let head_dim = shape.pages.head_dim;
    // SAFETY: by the caller, `q` has the tile's rows, and the work is for its queries. The caller
    // checked the instruction set. A row has `cols` columns, those of all heads.
    unsafe {
        for query in 0..tile.n_queries(shape) {
            let (row, head) = (query / shape.n_group, kv_head * shape.n_group + query % shape.n_group);
            let x = q.add(tile.rows[row].row as usize * shape.cols + head * head_dim);
            A::load_query::<S>(work, query, x, &shape.pages, kv_head, shape.scale);
        }
    }
}

/// Computes the partial results of one chunk, one KV head after another from `out` on. Blocks are
/// processed in ascending order, all heads of a block together, which is the order of memory. The
/// tile's queries of these heads are in `work`, one head after another.
///
/// # Safety
/// The positions have pages; the work is for the queries of these heads; `out` has [`Partial::len`]
/// values for each head; the instruction set is available.
#[inline(always)]
pub unsafe fn chunk<S: Loops, A: Attend>(
    shape: &Shape,
    tile: &RowTile<'_>,
    heads: Range<usize>,
    positions: Range<usize>,
    work: A::Work,
    out: *mut f32,
) {
    let (n, head_dim) = (tile.n_queries(shape), shape.pages.head_dim);
    // SAFETY: by the caller, the positions have pages, the work has the queries of these heads, and
    // `out` has room for as many partials. The caller checked the instruction set. Ranges of blocks
    // are within the positions; that of a block after the last is empty.
    unsafe {
        let partial =
            |head: usize| Partial::at(out.add((head - heads.start) * Partial::len(n, head_dim)), n, head_dim);
        heads.clone().for_each(|head| partial(head).clear(n, head_dim));
        let mut first = positions.start / A::BLOCK * A::BLOCK;
        while first < positions.end {
            for head in heads.clone() {
                let (next_head, next_first) =
                    if head + 1 < heads.end { (head + 1, first) } else { (heads.start, first + A::BLOCK) };
                let next = tile.kv_block(shape, next_head, next_first, A::BLOCK, &positions);
                let block = tile.kv_block(shape, head, first, A::BLOCK, &positions);
                let block = KvBlock { next: Some(&next), ..block };
                let work = A::from_query(work, (head - heads.start) * n, head_dim);
                A::block::<S>(shape, tile, &block, work, partial(head));
            }
            first += A::BLOCK;
        }
    }
}

/// Combines a chunk's partial result with the total. The chunk's `m` and `l` are overwritten.
///
/// # Safety
/// Both are for `n` queries and do not overlap; the instruction set is available.
#[inline(always)]
pub unsafe fn combine<S: Simd>(total: Partial, chunk: Partial, n: usize, head_dim: usize) {
    let ld = padded(head_dim);
    // SAFETY: by the caller, both are for `n` queries. The caller checked the instruction set. `m`,
    // `l` and the rows of `o` have room for whole vectors, so what is after the last query and
    // column belongs to the partials, too.
    unsafe {
        // Factors of total and chunk, stored over the chunk's maximum and sum.
        let (total_factor, chunk_factor) = (chunk.m, chunk.l);
        for at in (0..n).step_by(S::N) {
            let (a, b) = join::<S>((total.m, total.l), (chunk.m, chunk.l), at);
            S::store(total_factor.add(at), a);
            S::store(chunk_factor.add(at), b);
        }
        for query in 0..n {
            let (a, b) = (S::splat(*total_factor.add(query)), S::splat(*chunk_factor.add(query)));
            let (o, other) = (total.o.add(query * ld), chunk.o.add(query * ld));
            for at in (0..ld).step_by(S::N) {
                let sum = S::fma(S::load(other.add(at)), b, S::mul(S::load(o.add(at)), a));
                S::store(o.add(at), sum);
            }
        }
    }
}

/// Divides by the sums and stores the tile's rows of a KV head. A head's sink is included in the
/// maximum and the sum.
///
/// # Safety
/// `total` is for the tile's queries, `out` `(n, cols)` for its rows, `sinks` null or for all
/// heads; the instruction set is available.
#[inline(always)]
pub unsafe fn finish<S: Simd>(
    shape: &Shape,
    tile: &RowTile<'_>,
    kv_head: usize,
    total: Partial,
    sinks: *const f32,
    out: *mut f32,
) {
    let head_dim = shape.pages.head_dim;
    // SAFETY: by the caller, `total` is for the tile's queries, `out` has its rows of `cols`
    // columns, and `sinks` is null or has all heads. The caller checked the instruction set.
    unsafe {
        for query in 0..tile.n_queries(shape) {
            let (row, head) = (query / shape.n_group, kv_head * shape.n_group + query % shape.n_group);
            let (mut l, mut factor) = (*total.l.add(query), 1.0);
            if !sinks.is_null() {
                let (m, sink) = (*total.m.add(query), *sinks.add(head));
                let max = m.max(sink);
                factor = exp_one::<S>(m - max);
                l = l * factor + exp_one::<S>(sink - max);
            }
            let o = total.o.add(query * padded(head_dim));
            let out = out.add(tile.rows[row].row as usize * shape.cols + head * head_dim);
            elementwise::combine::<S>(o, o, out, head_dim, Times(factor / l));
        }
    }
}
