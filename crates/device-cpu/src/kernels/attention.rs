//! Causal attention of each row over its own sequence's cached positions: `softmax(softcap(scale q k^T)) v`.
//!
//! q and out `(n, n_heads * head_dim)`; keys and values in the layer's pages. The arithmetic, its order and its tiles are
//! in [`attention_tile`](super::attention_tile).
//!
//! A unit of work is (a tile of neighbouring rows of a sequence, a KV head), the longest first. Where every sequence has
//! one row and there are few of them, a unit is a chunk of positions, with all KV heads or, where chunks are few, with some: block
//! by block, of each all heads, which is the order of memory. Each chunk's partial goes to memory that all see, and the worker that
//! finishes a row's last chunk combines them. Chunks are at absolute multiples of `chunk_len`, in both schedules, so the bits are the same.
//!
//! Bytes: each key and value once for each tile of up to 64 queries.

use super::attention_loops::Loops;
use super::attention_product::Place;
use super::attention_tile::{
    Attend, MAX_QUERIES, Partial, Scratch, Shape, Tile, chunk, combine, finish, load_queries,
    scratch_bytes_of,
};
use super::kv_write::kv_type_variants;
use crate::command::{StepState, Worker};
use device::Span;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Units that each worker has of a step of single rows, at least, where there are as many heads.
const UNITS: usize = 4;

/// Parameters.
#[derive(Clone, Copy)]
pub struct Params {
    /// `(n, cols)`
    pub q: *const f32,
    /// `(n, cols)`
    pub out: *mut f32,
    /// `(n_heads)`; null: none.
    pub sinks: *const f32,
    /// Whether nobody reads other rows than the step's outputs; tiles without one are left out.
    pub of_outputs: bool,
    /// What is the same for all tiles.
    pub shape: Shape,
    /// Positions of a chunk, a multiple of the block's.
    pub chunk_len: usize,
    /// `(max_split, max_chunks)` partials of one row and KV head.
    pub partials: *mut f32,
    /// `(max_split)` chunks finished; zero between commands.
    pub arrived: *const AtomicUsize,
    /// Most (row, KV head) pairs that can be split.
    pub max_split: usize,
    /// Most chunks of a sequence.
    pub max_chunks: usize,
}

/// Positions of a chunk: at least 256, at most 64 chunks in a sequence.
pub fn chunk_len(n_ctx: usize) -> usize {
    n_ctx.div_ceil(64).next_multiple_of(256).max(256)
}

/// Chunks that a sequence can have.
pub fn max_chunks(n_ctx: usize) -> usize {
    n_ctx.div_ceil(chunk_len(n_ctx))
}

/// (row, KV head) pairs up to which rows are split: those of one row at least.
pub fn max_split(n_workers: usize, n_kv_heads: usize) -> usize {
    n_kv_heads.max(2 * n_workers)
}

/// Rows of a tile.
fn rows_of_tile(n_group: usize) -> usize {
    (MAX_QUERIES / n_group).max(1)
}

/// Queries of a tile, or of all heads of a row.
fn most_queries(n_group: usize, n_kv_heads: usize) -> usize {
    (rows_of_tile(n_group) * n_group).max(n_group * n_kv_heads)
}

/// Bytes of scratch.
pub fn scratch_bytes(n_group: usize, n_kv_heads: usize, head_dim: usize) -> usize {
    scratch_bytes_of(most_queries(n_group, n_kv_heads), head_dim)
}

kv_type_variants!(
    /// The kernel for a KV type.
    attention, body, Params
);

impl Params {
    /// Chunks that hold some of these positions.
    fn chunks(&self, positions: &Range<usize>) -> Range<usize> {
        positions.start / self.chunk_len..positions.end.div_ceil(self.chunk_len)
    }

    /// The positions of a chunk among these.
    fn within(&self, chunk: usize, positions: &Range<usize>) -> Range<usize> {
        positions.start.max(chunk * self.chunk_len)..positions.end.min((chunk + 1) * self.chunk_len)
    }

    /// A (tile, KV head) pair of the step: the tile, its chunks, the positions that it sees.
    fn of_pair<'a>(&self, step: &StepState<'a>, pair: usize) -> (Tile<'a>, Range<usize>, Range<usize>) {
        let n_kv_heads = self.shape.pages.n_kv_heads;
        let tile = self.tile(step, pair / n_kv_heads, pair % n_kv_heads);
        let positions = tile.positions(self.shape.window);
        (tile, self.chunks(&positions), positions)
    }

    /// Tile number `tile` of the step, for a KV head.
    fn tile<'a>(&self, step: &StepState<'a>, mut tile: usize, kv_head: usize) -> Tile<'a> {
        let rows = rows_of_tile(self.shape.n_group);
        for span in step.spans {
            let n = (span.n_rows as usize).div_ceil(rows);
            if tile < n {
                let before = tile * rows;
                return Tile {
                    table: step.page_table(span.slot, self.shape.pages.group),
                    first_row: span.first_row as usize + before,
                    n_rows: (span.n_rows as usize - before).min(rows),
                    first_position: span.first_position as usize + before,
                    kv_head,
                };
            }
            tile -= n;
        }
        unreachable!("a tile beyond the last span")
    }
}

/// # Safety
/// As [`crate::command::Kernel`].
#[inline(always)]
unsafe fn body<S: Loops, A: Attend>(p: &Params, worker: &Worker<'_>) {
    let (step, head_dim) = (worker.step, p.shape.pages.head_dim);
    let (n_group, n_kv_heads) = (p.shape.n_group, p.shape.pages.n_kv_heads);
    let n_tiles_of = |span: &Span| (span.n_rows as usize).div_ceil(rows_of_tile(n_group));
    let n_pairs = step.spans.iter().map(n_tiles_of).sum::<usize>() * n_kv_heads;
    let single = step.spans.len() == step.tokens.len();
    // SAFETY: the caller's promise; the scratch is for as many queries.
    unsafe {
        let scratch = Scratch::<A>::at(worker.scratch, most_queries(n_group, n_kv_heads), head_dim);
        if single && n_pairs <= p.max_split {
            by_chunks::<S, A>(p, worker, &scratch);
        } else {
            by_tiles::<S, A>(p, worker, n_pairs, &scratch);
        }
    }
}

/// Each pair by one worker.
///
/// # Safety
/// As [`body`].
#[inline(always)]
unsafe fn by_tiles<S: Loops, A: Attend>(
    p: &Params,
    worker: &Worker<'_>,
    n_pairs: usize,
    scratch: &Scratch<A>,
) {
    let (step, shape) = (worker.step, &p.shape);
    // SAFETY: the caller's promise.
    unsafe {
        while let Some(unit) = worker.take(n_pairs) {
            // The last rows of a sequence see the most positions, so they come first.
            let (tile, chunks, positions) = p.of_pair(step, n_pairs - 1 - unit);
            if p.of_outputs && !tile.has_any(step.outputs) {
                continue;
            }
            let n = tile.n_rows * shape.n_group;
            load_queries::<S, A>(shape, &tile, p.q, scratch.work);
            scratch.total.clear(n, shape.pages.head_dim);
            for index in chunks {
                chunk::<S, A>(shape, &tile, p.within(index, &positions), scratch.work, scratch.chunk);
                combine::<S>(scratch.total, scratch.chunk, n, shape.pages.head_dim);
            }
            finish::<S>(shape, &tile, scratch.total, p.sinks, p.out);
        }
    }
}

/// Sequences of one row each: chunks of their positions, by all heads or by some.
///
/// # Safety
/// As [`body`]; there are not more pairs than [`Params::max_split`].
#[inline(always)]
unsafe fn by_chunks<S: Loops, A: Attend>(p: &Params, worker: &Worker<'_>, scratch: &Scratch<A>) {
    let (step, shape, head_dim) = (worker.step, &p.shape, p.shape.pages.head_dim);
    let (n_group, n_kv_heads) = (shape.n_group, shape.pages.n_kv_heads);
    let n_chunks: usize = (0..step.spans.len()).map(|span| p.of_pair(step, span * n_kv_heads).1.len()).sum();
    let n_parts = (UNITS * worker.n).div_ceil(n_chunks.max(1)).min(n_kv_heads);
    let (mut helped, mut loaded) = (0, None);
    // SAFETY: the caller's promise. A partial is written by the worker that took its unit, and read after all of its row arrived.
    unsafe {
        while let Some(unit) = worker.take_near(n_chunks * n_parts, &mut helped) {
            let (part, mut within, mut span) = (unit % n_parts, unit / n_parts, 0);
            let (tile, chunks, positions) = loop {
                let found = p.of_pair(step, span * n_kv_heads);
                if within < found.1.len() {
                    break found;
                }
                within -= found.1.len();
                span += 1;
            };
            if p.of_outputs && !tile.has_any(step.outputs) {
                continue;
            }
            let heads = n_kv_heads * part / n_parts..n_kv_heads * (part + 1) / n_parts;
            let of_head = |kv_head: usize| Tile { kv_head, ..tile };
            let work = |kv_head: usize| A::from_query(scratch.work, kv_head * n_group, head_dim);
            let partial = |kv_head: usize, i: usize| {
                let index = (span * n_kv_heads + kv_head) * p.max_chunks + i;
                Partial::at(p.partials.add(index * Partial::len(n_group, head_dim)), n_group, head_dim)
            };
            if loaded != Some((span, part)) {
                heads.clone().for_each(|head| load_queries::<S, A>(shape, &of_head(head), p.q, work(head)));
                loaded = Some((span, part));
            }
            heads.clone().for_each(|head| partial(head, within).clear(n_group, head_dim));
            let positions = p.within(chunks.start + within, &positions);
            let mut block = positions.start / A::BLOCK * A::BLOCK;
            while block < positions.end {
                for head in heads.clone() {
                    let (next_head, next_block) = if head + 1 < heads.end {
                        (head + 1, block)
                    } else {
                        (heads.start, block + A::BLOCK)
                    };
                    let next = of_head(next_head).place::<A>(shape, next_block, &positions);
                    let tile = of_head(head);
                    let place = Place { next: Some(&next), ..tile.place::<A>(shape, block, &positions) };
                    A::block::<S>(shape, &tile, &place, work(head), partial(head, within));
                }
                block += A::BLOCK;
            }
            for head in heads {
                let arrived = &*p.arrived.add(span * n_kv_heads + head);
                if arrived.fetch_add(1, Ordering::AcqRel) + 1 < chunks.len() {
                    continue;
                }
                arrived.store(0, Ordering::Relaxed);
                scratch.total.clear(n_group, head_dim);
                for i in 0..chunks.len() {
                    combine::<S>(scratch.total, partial(head, i), n_group, head_dim);
                }
                finish::<S>(shape, &of_head(head), scratch.total, p.sinks, p.out);
            }
        }
    }
}
