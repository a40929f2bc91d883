//! The arithmetic of attention: a tile of query rows against a chunk of positions, and how chunks are combined.
//!
//! # Formula
//!
//! For a query q (a row's head), over the positions of a chunk: `s_p = softcap(scale q . k_p)`, `m = max s_p`,
//! `l = sum e^(s_p - m)`, `o = sum e^(s_p - m) v_p`. Two such partials combine as
//! `m = max(m1, m2)`, `l = l1 e^(m1 - m) + l2 e^(m2 - m)`, o alike; the result is `o / l`.
//!
//! # Layout and tile
//!
//! All query heads of a KV head are handled together: a tile has `n` queries `(row, head)`, up to [`MAX_QUERIES`]. A chunk
//! is walked in blocks of positions (at absolute multiples of their number): `S = Q K^T`, a softmax along the rows of S,
//! `O += P V`. What a block's numbers are multiplied as depends on how they are stored ([`Attend`]): in f32
//! ([`attention_floats`](super::attention_floats)) or as whole numbers ([`attention_integers`]).
//!
//! # Order of accumulation
//!
//! Blocks and chunks follow each other in ascending order; within a block see there. Positions that a row does not see add
//! exact zeros. So a row's result does not depend on the tile that it is computed in, nor on whether chunks are computed by
//! one worker or by several: it is the same bits in a batch and alone, in one prompt and in pieces.

use super::attention_floats::Floats;
use super::attention_integers::{self, Integers};
use super::attention_loops::Loops;
use super::attention_numbers::Words;
use super::attention_product::{BLOCK, Place, padded};
use super::elementwise::{self, Times};
use super::kv_write::{LayerPages, StoredF32};
use super::round_up;
use crate::simd::{Simd, math};
use std::ops::Range;

/// Most queries of a tile, unless one row has more.
pub const MAX_QUERIES: usize = 64;
/// Most positions of a block.
const MAX_BLOCK: usize = if BLOCK > attention_integers::BLOCK { BLOCK } else { attention_integers::BLOCK };
/// A maximum below all scores, finite so that differences are.
pub const LOWEST: f32 = -1e30;

/// What is the same for all tiles of an Op.
#[derive(Clone, Copy)]
pub struct Shape {
    /// Where keys and values lie.
    pub pages: LayerPages,
    /// Query heads of a KV head.
    pub n_group: usize,
    /// Factor on the scores.
    pub scale: f32,
    /// `cap * tanh(score / cap)`; 0: none.
    pub softcap: f32,
    /// Positions that a row sees, its own included.
    pub window: usize,
    /// Columns of q and of the output.
    pub cols: usize,
}

/// Neighbouring rows of a sequence, and one KV head.
#[derive(Clone, Copy)]
pub struct Tile<'a> {
    /// The sequence's pages.
    pub table: &'a [u32],
    /// First row in the step.
    pub first_row: usize,
    /// Rows.
    pub n_rows: usize,
    /// Position of the first row.
    pub first_position: usize,
    /// Which.
    pub kv_head: usize,
}

impl<'a> Tile<'a> {
    /// Positions that a row of the step's sequence at `position` sees.
    fn seen(window: usize, position: usize) -> Range<usize> {
        (position + 1).saturating_sub(window)..position + 1
    }

    /// Positions of a block, counted from its first, that a query's row sees.
    pub fn seen_of(&self, shape: &Shape, query: usize, block: usize, len: usize) -> Range<usize> {
        let seen = Self::seen(shape.window, self.first_position + query / shape.n_group);
        seen.start.clamp(block, block + len) - block..seen.end.clamp(block, block + len) - block
    }

    /// Whether some of these rows of the step, ascending, are the tile's.
    pub fn has_any(&self, rows: &[u32]) -> bool {
        let first = rows.partition_point(|row| (*row as usize) < self.first_row);
        rows.get(first).is_some_and(|row| (*row as usize) < self.first_row + self.n_rows)
    }

    /// The block from position `block` on, as far as it is of these positions.
    #[inline(always)]
    pub fn place<A: Attend>(&self, shape: &'a Shape, block: usize, positions: &Range<usize>) -> Place<'a> {
        let within = |position: usize| position.clamp(block, block + A::BLOCK) - block;
        let range = within(positions.start)..within(positions.end);
        Place { pages: &shape.pages, table: self.table, kv_head: self.kv_head, block, range, next: None }
    }

    /// Positions that some row of the tile sees.
    pub fn positions(&self, window: usize) -> Range<usize> {
        let last = self.first_position + self.n_rows - 1;
        Self::seen(window, self.first_position).start..last + 1
    }
}

/// `(m, l, o)` of every query of a tile.
#[derive(Clone, Copy)]
pub struct Partial {
    /// `(padded n)` the largest score.
    pub m: *mut f32,
    /// `(padded n)` the sum of the exponentials.
    pub l: *mut f32,
    /// `(n, padded head_dim)` the weighted values.
    pub o: *mut f32,
}

impl Partial {
    /// f32 values that the partial of `n` queries takes.
    pub fn len(n: usize, head_dim: usize) -> usize {
        n * padded(head_dim) + 2 * padded(n)
    }

    /// At an address.
    ///
    /// # Safety
    /// It is valid for [`Self::len`] values.
    #[inline(always)]
    pub unsafe fn at(start: *mut f32, n: usize, head_dim: usize) -> Partial {
        // SAFETY: the caller's promise.
        unsafe {
            let m = start.add(n * padded(head_dim));
            Partial { o: start, m, l: m.add(padded(n)) }
        }
    }

    /// Of no positions.
    ///
    /// # Safety
    /// It is valid for `n` queries.
    #[inline(always)]
    pub unsafe fn clear(&self, n: usize, head_dim: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            self.o.write_bytes(0, n * padded(head_dim));
            self.l.write_bytes(0, n);
            (0..n).for_each(|i| self.m.add(i).write(LOWEST));
        }
    }
}

/// How a tile attends to a block of positions whose keys and values are stored in some way.
pub trait Attend: Copy + 'static {
    /// Positions of a block; divides a chunk.
    const BLOCK: usize;

    /// What a worker needs for it.
    type Work: Copy;

    /// Bytes of [`Self::Work`] for `n` queries.
    fn work_bytes(n: usize, head_dim: usize) -> usize;

    /// At an address.
    ///
    /// # Safety
    /// It is valid for [`Self::work_bytes`], aligned to 64.
    unsafe fn work(start: *mut u8, n: usize, head_dim: usize) -> Self::Work;

    /// The part of it that begins with query `first`.
    ///
    /// # Safety
    /// It is for as many queries.
    unsafe fn from_query(work: Self::Work, first: usize, head_dim: usize) -> Self::Work;

    /// Bring query `i` there, multiplied by `scale`.
    ///
    /// # Safety
    /// `x` has `head_dim` columns; the work is for more than `i` queries; the instruction set is available.
    unsafe fn load_query<S: Loops>(work: Self::Work, i: usize, x: *const f32, head_dim: usize, scale: f32);

    /// Scores of `n` queries with the positions of a block's range: `(n, BLOCK)`, of which other columns are undefined.
    ///
    /// # Safety
    /// The positions have pages; the queries are there; the instruction set is available.
    unsafe fn scores<S: Loops>(place: &Place<'_>, n: usize, work: Self::Work) -> *const f32;

    /// Add a block's positions to the partial of the tile's queries.
    ///
    /// # Safety
    /// As [`Self::scores`].
    unsafe fn block<S: Loops>(
        shape: &Shape,
        tile: &Tile<'_>,
        place: &Place<'_>,
        work: Self::Work,
        out: Partial,
    );
}

/// A worker's memory.
#[derive(Clone, Copy)]
pub struct Scratch<A: Attend> {
    /// For blocks.
    pub work: A::Work,
    /// A chunk's partial.
    pub chunk: Partial,
    /// The sum of the chunks so far.
    pub total: Partial,
}

impl<A: Attend> Scratch<A> {
    fn sizes(n: usize, head_dim: usize) -> [usize; 2] {
        [A::work_bytes(n, head_dim), round_up(Partial::len(n, head_dim) * 4)]
    }

    /// Bytes for tiles of `n` queries.
    pub fn bytes(n: usize, head_dim: usize) -> usize {
        let [work, partial] = Self::sizes(n, head_dim);
        work + 2 * partial
    }

    /// At an address.
    ///
    /// # Safety
    /// It is valid for [`Self::bytes`], aligned to 64.
    #[inline(always)]
    pub unsafe fn at(start: *mut u8, n: usize, head_dim: usize) -> Scratch<A> {
        let [work, partial] = Self::sizes(n, head_dim);
        // SAFETY: the caller's promise.
        unsafe {
            Scratch {
                work: A::work(start, n, head_dim),
                chunk: Partial::at(start.add(work).cast(), n, head_dim),
                total: Partial::at(start.add(work + partial).cast(), n, head_dim),
            }
        }
    }
}

/// Bytes of [`Scratch`] for tiles of `n` queries, however keys and values are stored.
pub fn scratch_bytes_of(n: usize, head_dim: usize) -> usize {
    Scratch::<Floats<StoredF32>>::bytes(n, head_dim).max(Scratch::<Integers<Words>>::bytes(n, head_dim))
}

/// Bring the tile's queries into scratch: `(row, head of the group)` in that order, scaled.
///
/// # Safety
/// `q` holds the tile's rows, the scratch its queries; the instruction set is available.
#[inline(always)]
pub unsafe fn load_queries<S: Loops, A: Attend>(
    shape: &Shape,
    tile: &Tile<'_>,
    q: *const f32,
    work: A::Work,
) {
    let head_dim = shape.pages.head_dim;
    // SAFETY: the caller's promise.
    unsafe {
        for query in 0..tile.n_rows * shape.n_group {
            let (row, head) = (query / shape.n_group, tile.kv_head * shape.n_group + query % shape.n_group);
            let x = q.add((tile.first_row + row) * shape.cols + head * head_dim);
            A::load_query::<S>(work, query, x, head_dim, shape.scale);
        }
    }
}

/// The partial of one chunk. The tile's queries are in `work`.
///
/// # Safety
/// The positions have pages; the work and `out` are for the tile's queries; the instruction set is available.
#[inline(always)]
pub unsafe fn chunk<S: Loops, A: Attend>(
    shape: &Shape,
    tile: &Tile<'_>,
    positions: Range<usize>,
    work: A::Work,
    out: Partial,
) {
    // SAFETY: the caller's promise.
    unsafe {
        out.clear(tile.n_rows * shape.n_group, shape.pages.head_dim);
        let mut block = positions.start / A::BLOCK * A::BLOCK;
        while block < positions.end {
            let next = tile.place::<A>(shape, block + A::BLOCK, &positions);
            let place = Place { next: Some(&next), ..tile.place::<A>(shape, block, &positions) };
            A::block::<S>(shape, tile, &place, work, out);
            block += A::BLOCK;
        }
    }
}

/// Exponentials of a row of scores, masked; updates m and l and gives the factor for what was accumulated before.
///
/// `range`: positions of the block that were computed. `seen`: those that the row sees.
///
/// # Safety
/// The row has [`BLOCK`] scores; the instruction set is available.
#[inline(always)]
pub unsafe fn softmax_block<S: Simd>(
    row: *mut f32,
    range: Range<usize>,
    seen: Range<usize>,
    softcap: f32,
    m: *mut f32,
    l: *mut f32,
) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        let (first, end) = (range.start / S::N * S::N, range.end.next_multiple_of(S::N));
        let (from, to) = (seen.start.max(range.start), seen.end.min(range.end));
        if from >= to {
            row.add(first).write_bytes(0, end - first);
            return 1.0;
        }
        let whole = from == first && to == end;
        let shown = from..to;
        let mut max = S::splat(LOWEST);
        for at in (first..end).step_by(S::N) {
            let mut s = S::load(row.add(at));
            if softcap != 0.0 {
                let cap = S::splat(softcap);
                s = S::mul(cap, math::tanh::<S>(S::div(s, cap)));
            }
            if !whole {
                s = among::<S>(&shown, at, s, f32::NEG_INFINITY);
            }
            S::store(row.add(at), s);
            max = S::max(s, max);
        }
        let old = *m;
        let new = old.max(S::max_lane(max));
        let mut sum = S::splat(0.0);
        let new_v = S::splat(new);
        for at in (first..end).step_by(S::N) {
            let p = math::exp::<S>(S::sub(S::load(row.add(at)), new_v));
            S::store(row.add(at), p);
            sum = S::add(sum, p);
        }
        let factor = exp_difference::<S>(old, new);
        *m = new;
        *l = *l * factor + S::sum(sum);
        factor
    }
}

/// The lanes of a vector, which begins at `at`, that are among the positions; `hidden` elsewhere, where there may be anything.
///
/// # Safety
/// The instruction set is available.
#[inline(always)]
pub unsafe fn among<S: Simd>(positions: &Range<usize>, at: usize, v: S::V, hidden: f32) -> S::V {
    // SAFETY: the caller's promise; the vector is one of a block's.
    unsafe {
        let (lane, hidden) = (S::load(LANES.as_ptr().add(at)), S::splat(hidden));
        let v = S::select_lt(lane, S::splat(positions.start as f32), hidden, v);
        S::select_lt(lane, S::splat(positions.end as f32), v, hidden)
    }
}

/// 0, 1, 2, ..
static LANES: [f32; MAX_BLOCK] = {
    let mut lanes = [0.0; MAX_BLOCK];
    let mut i = 0;
    while i < MAX_BLOCK {
        lanes[i] = i as f32;
        i += 1;
    }
    lanes
};

/// [`math::exp`] of one number.
///
/// # Safety
/// The instruction set is available.
#[inline(always)]
unsafe fn exp_one<S: Simd>(x: f32) -> f32 {
    let mut lanes = [0f32; 16];
    // SAFETY: a vector has at most 16 lanes.
    unsafe { S::store(lanes.as_mut_ptr(), math::exp::<S>(S::splat(x))) };
    lanes[0]
}

/// `e^(x - max)`; most often both are the same.
///
/// # Safety
/// The instruction set is available.
#[inline(always)]
unsafe fn exp_difference<S: Simd>(x: f32, max: f32) -> f32 {
    // SAFETY: the caller's promise.
    if x == max { 1.0 } else { unsafe { exp_one::<S>(x - max) } }
}

/// Multiply by a factor.
///
/// # Safety
/// `x` has `n` values, a multiple of 16; the instruction set is available.
#[inline(always)]
pub unsafe fn scale_row<S: Simd>(x: *mut f32, n: usize, factor: f32) {
    // SAFETY: the caller's promise.
    unsafe {
        let factor = S::splat(factor);
        for at in (0..n).step_by(S::N) {
            S::store(x.add(at), S::mul(S::load(x.add(at)), factor));
        }
    }
}

/// Bring the maxima and sums `(m, l)` of a vector of queries together, into the first; what the weighted values of both are multiplied
/// with.
///
/// # Safety
/// The vector at `at` belongs to all of them; the instruction set is available.
#[inline(always)]
pub unsafe fn join<S: Simd>(
    first: (*mut f32, *mut f32),
    second: (*mut f32, *mut f32),
    at: usize,
) -> (S::V, S::V) {
    // SAFETY: the caller's promise.
    unsafe {
        let (m1, m2) = (S::load(first.0.add(at)), S::load(second.0.add(at)));
        let m = S::max(m1, m2);
        let (a, b) = (math::exp::<S>(S::sub(m1, m)), math::exp::<S>(S::sub(m2, m)));
        let l = S::fma(S::load(second.1.add(at)), b, S::mul(S::load(first.1.add(at)), a));
        S::store(first.0.add(at), m);
        S::store(first.1.add(at), l);
        (a, b)
    }
}

/// Combine a chunk's partial into the total. Of the chunk's, nothing is left.
///
/// # Safety
/// Both are for `n` queries; the instruction set is available.
#[inline(always)]
pub unsafe fn combine<S: Simd>(total: Partial, chunk: Partial, n: usize, head_dim: usize) {
    let ld = padded(head_dim);
    // SAFETY: the caller's promise; what is behind the last query, up to whole vectors, belongs to the partials.
    unsafe {
        // The factors of both, where the chunk's maximum and sum were.
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

/// Divide by the sums and write the tile's rows. A head's sink takes part in the maximum and the sum.
///
/// # Safety
/// `total` is for the tile's queries, `out` `(n, cols)` for its rows, `sinks` null or for all heads; the instruction set is
/// available.
#[inline(always)]
pub unsafe fn finish<S: Simd>(
    shape: &Shape,
    tile: &Tile<'_>,
    total: Partial,
    sinks: *const f32,
    out: *mut f32,
) {
    let head_dim = shape.pages.head_dim;
    // SAFETY: the caller's promise.
    unsafe {
        for query in 0..tile.n_rows * shape.n_group {
            let (row, head) = (query / shape.n_group, tile.kv_head * shape.n_group + query % shape.n_group);
            let (mut l, mut factor) = (*total.l.add(query), 1.0);
            if !sinks.is_null() {
                let (m, sink) = (*total.m.add(query), *sinks.add(head));
                let max = m.max(sink);
                factor = exp_one::<S>(m - max);
                l = l * factor + exp_one::<S>(sink - max);
            }
            let o = total.o.add(query * padded(head_dim));
            let out = out.add((tile.first_row + row) * shape.cols + head * head_dim);
            elementwise::combine::<S>(o, o, out, head_dim, Times(factor / l));
        }
    }
}
