//! Causal attention of each row over its own sequence's cached positions: `softmax(softcap(scale q k^T)) v`.
//!
//! q and out `(n, n_heads * head_dim)`; keys and values in the layer's pages. The arithmetic, its order and its tiles are
//! in [`attention_tile`](super::attention_tile).
//!
//! A unit of work is (a tile of neighbouring rows of a sequence, a KV head), the longest first. Where every sequence has
//! one row and there are fewer units than workers could share, a unit is also one chunk of positions; its partial goes to
//! memory that all see, and the worker that finishes a row's last chunk combines them. Chunks are at absolute multiples
//! of `chunk_len`, in both schedules, so the bits are the same.
//!
//! Bytes: each key and value once for each tile of up to 64 queries.

use super::attention_loops::Loops;
use super::attention_tile::{
    Attend, MAX_QUERIES, Partial, Scratch, Shape, Tile, chunk, combine, finish, load_queries,
    scratch_bytes_of,
};
use super::kv_write::kv_type_variants;
use crate::command::{StepState, Worker};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

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

/// (row, KV head) pairs up to which rows are split.
pub fn max_split(n_workers: usize) -> usize {
    if n_workers > 1 { 2 * n_workers } else { 0 }
}

/// Rows of a tile.
fn rows_of_tile(n_group: usize) -> usize {
    (MAX_QUERIES / n_group).max(1)
}

/// Bytes of scratch.
pub fn scratch_bytes(n_group: usize, head_dim: usize) -> usize {
    scratch_bytes_of(rows_of_tile(n_group) * n_group, head_dim)
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

    /// Of units that are single chunks: the pair, and which of its chunks.
    fn pair_of(&self, step: &StepState<'_>, mut unit: usize) -> (usize, usize) {
        let mut pair = 0;
        loop {
            let n = self.of_pair(step, pair).1.len();
            if unit < n {
                return (pair, unit);
            }
            unit -= n;
            pair += 1;
        }
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
    let (step, n_kv_heads, head_dim) = (worker.step, p.shape.pages.n_kv_heads, p.shape.pages.head_dim);
    let rows = rows_of_tile(p.shape.n_group);
    let n_tiles: usize = step.spans.iter().map(|s| (s.n_rows as usize).div_ceil(rows)).sum();
    let n_pairs = n_tiles * n_kv_heads;
    let split = step.spans.len() == step.tokens.len() && n_pairs <= p.max_split;
    let n_units = if split { (0..n_pairs).map(|pair| p.of_pair(step, pair).1.len()).sum() } else { n_pairs };
    // SAFETY: the caller's promise; the scratch is for the largest tile. A partial is written by the worker that took its
    // unit, and read after all of its row arrived.
    unsafe {
        let scratch = Scratch::<A>::at(worker.scratch, rows * p.shape.n_group, head_dim);
        let (mut helped, mut loaded) = (0, usize::MAX);
        // Chunks that follow each other are read ahead; of tiles the longest come first.
        let next =
            |helped: &mut usize| if split { worker.take_near(n_units, helped) } else { worker.take(n_units) };
        while let Some(unit) = next(&mut helped) {
            // The last rows of a sequence see the most positions, so they come first.
            let (mut pair, mut within) = (n_pairs - 1 - unit.min(n_pairs - 1), 0);
            if split {
                (pair, within) = p.pair_of(step, unit);
            }
            let (tile, all_chunks, positions) = p.of_pair(step, pair);
            if p.of_outputs && !tile.has_any(step.outputs) {
                continue;
            }
            let n = tile.n_rows * p.shape.n_group;
            let partial = |i: usize| {
                let len = Partial::len(n, head_dim);
                Partial::at(p.partials.add((pair * p.max_chunks + i) * len), n, head_dim)
            };
            let mine = if split {
                all_chunks.start + within..all_chunks.start + within + 1
            } else {
                all_chunks.clone()
            };
            if loaded != pair {
                load_queries::<S, A>(&p.shape, &tile, p.q, scratch.work);
                loaded = pair;
            }
            scratch.total.clear(n, head_dim);
            for index in mine {
                let out = if split { partial(within) } else { scratch.chunk };
                chunk::<S, A>(&p.shape, &tile, p.within(index, &positions), positions.end, &scratch, out);
                if !split {
                    combine::<S>(scratch.total, out, n, head_dim);
                }
            }
            if split {
                let arrived = &*p.arrived.add(pair);
                if arrived.fetch_add(1, Ordering::AcqRel) + 1 < all_chunks.len() {
                    continue;
                }
                arrived.store(0, Ordering::Relaxed);
                for i in 0..all_chunks.len() {
                    combine::<S>(scratch.total, partial(i), n, head_dim);
                }
            }
            finish::<S>(&p.shape, &tile, scratch.total, p.sinks, p.out);
        }
    }
}
