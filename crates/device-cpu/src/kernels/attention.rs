//! Causal attention of each row over its own sequence's cached positions:
//! `softmax(softcap(scale q k^T)) v`.
//!
//! q and out `(n, n_heads * head_dim)`; keys and values are in the layer's pages. [`chunk`]
//! documents the arithmetic, its order and its tiles. [`schedule`] documents units of work, and
//! which rows share the reads of a page: whole tiles of a prompt's rows, or chunks of the positions
//! of few rows. Each chunk's partial results are stored in shared memory. The worker that finishes
//! a row's last chunk combines them in ascending order.
//!
//! Bytes: each key and value once for each tile of up to 64 queries; pages that split rows share,
//! once for all of them.

pub mod attend;
pub mod chunk;
pub mod constants;
pub mod floats;
pub mod integer_layout;
pub mod integer_products;
pub mod integer_weights;
pub mod integers;
pub mod loops;
pub mod numbers;
pub mod pages;
pub mod product;
pub mod schedule;
pub mod softmax;
pub mod stored;
pub mod tile;
pub mod variants;

use super::round_up;
use crate::command::Worker;
use attend::Attend;
use chunk::{ChunkScratch, chunk, combine, finish, load_queries};
use constants::{MAX_QUERIES, padded};
use loops::Loops;
use pages::HeadSize;
use schedule::{AttentionUnit, Schedule, Sizes};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use tile::{Partial, RowTile, Shape};
use variants::kv_type_variants;

/// Parameters.
#[derive(Clone, Copy)]
pub struct AttentionParams {
    /// `(n, cols)`
    pub q: *const f32,
    /// `(n, cols)`
    pub out: *mut f32,
    /// `(n_heads)`; null for no sinks.
    pub sinks: *const f32,
    /// Shape of all tiles.
    pub shape: Shape,
    /// Index of the schedule in the step.
    pub schedule: usize,
    /// `(chunks of split rows, n_kv_heads)` partial results of a row and KV head:
    /// [`partial_bytes`].
    pub partials: *mut f32,
    /// `(split rows, n_kv_heads)` counters of finished chunks; zero between commands.
    pub arrived: *const AtomicUsize,
}

/// Rows of a tile.
pub fn tile_rows(n_group: usize) -> usize {
    (MAX_QUERIES / n_group).max(1)
}

/// Maximum number of queries in scratch: those of a tile for one head, or of a row for all heads.
fn most_queries(n_group: usize, n_kv_heads: usize) -> usize {
    (tile_rows(n_group) * n_group).max(n_group * n_kv_heads)
}

/// Bytes of scratch. One tile's partial results are enough, since those of split rows are in shared
/// memory.
pub fn scratch_bytes(n_group: usize, n_kv_heads: usize, size: HeadSize) -> usize {
    variants::scratch_bytes(most_queries(n_group, n_kv_heads), size)
}

/// Bytes of the partial results of split rows.
pub fn partial_bytes(sizes: &Sizes, n_group: usize, n_kv_heads: usize, head_dim: usize) -> usize {
    round_up(sizes.max_chunks * n_kv_heads * Partial::len(n_group, head_dim) * 4)
}

kv_type_variants!(
    /// The kernel for a KV type.
    attention, body, AttentionParams
);

impl AttentionParams {
    /// Address of the partial result of a split row's chunk for a KV head; the following heads are
    /// stored after it.
    ///
    /// # Safety
    /// `index` is below the schedule's number of chunks of split rows.
    #[inline(always)]
    unsafe fn partial(&self, index: usize, kv_head: usize) -> *mut f32 {
        let Shape { n_group, pages, .. } = &self.shape;
        // SAFETY: the buffer has `Sizes::max_chunks` partials for each KV head, and the caller
        // guarantees that `index` is below.
        unsafe {
            self.partials.add((index * pages.n_kv_heads + kv_head) * Partial::len(*n_group, pages.head_dim))
        }
    }
}

/// # Safety
/// As [`crate::command::Kernel`].
#[inline(always)]
unsafe fn body<S: Loops, A: Attend>(p: &AttentionParams, worker: &Worker<'_>) {
    let (schedule, shape) = (&worker.step.attention[p.schedule], &p.shape);
    let (n_group, n_kv_heads) = (shape.n_group, shape.pages.n_kv_heads);
    let units = schedule.units();
    // SAFETY: the layout gave each worker `scratch_bytes`, which are for `most_queries`.
    // `Program::check` compared the spans' rows and pages with the limits before the schedule was
    // written. The caller guarantees the rest.
    unsafe {
        let n = most_queries(n_group, n_kv_heads);
        let scratch = ChunkScratch::<A>::at(worker.scratch, n, shape.pages.size());
        // Rows and heads whose queries are in scratch.
        let mut loaded = None;
        while let Some(unit) = worker.take(units.len()) {
            match units[unit] {
                AttentionUnit::Whole { first, n_rows, slot, kv_head } => {
                    loaded = None;
                    let rows = &schedule.rows()[first as usize..(first + n_rows) as usize];
                    let tile = RowTile { table: worker.step.page_table(slot, shape.pages.group), rows };
                    whole::<S, A>(p, schedule, &tile, kv_head as usize, &scratch);
                }
                AttentionUnit::Chunk { first, n_rows, chunk, first_head, n_heads } => {
                    let rows = first as usize..(first + n_rows) as usize;
                    let heads = first_head as usize..(first_head + n_heads) as usize;
                    let slot = schedule.split()[rows.start].slot;
                    let table = worker.step.page_table(slot, shape.pages.group);
                    let tile = RowTile { table, rows: &schedule.rows()[rows.clone()] };
                    if loaded.replace((rows.clone(), heads.clone())) != Some((rows.clone(), heads.clone())) {
                        let n = tile.n_queries(shape);
                        for (i, head) in heads.clone().enumerate() {
                            let work = A::from_query(scratch.work, i * n, shape.pages.head_dim);
                            load_queries::<S, A>(shape, &tile, head, p.q, work);
                        }
                    }
                    part::<S, A>(p, schedule, &tile, rows, heads, chunk, &scratch);
                }
            }
        }
    }
}

/// Computes a tile of a prompt's rows over all positions that they see.
///
/// # Safety
/// As [`body`].
#[inline(always)]
unsafe fn whole<S: Loops, A: Attend>(
    p: &AttentionParams,
    schedule: &Schedule,
    tile: &RowTile<'_>,
    kv_head: usize,
    scratch: &ChunkScratch<A>,
) {
    let (shape, head_dim, sizes) = (&p.shape, p.shape.pages.head_dim, schedule.sizes());
    let (n, positions) = (tile.n_queries(shape), tile.positions(shape));
    // SAFETY: a whole tile has at most `tile_rows` rows, so its queries fit the scratch, and all
    // rows have pages up to their positions.
    unsafe {
        load_queries::<S, A>(shape, tile, kv_head, p.q, scratch.work);
        scratch.total.clear(n, head_dim);
        let of_chunk = Partial::at(scratch.chunk.o, n, head_dim);
        for index in sizes.chunks(&positions) {
            let within = sizes.within(index, &positions);
            chunk::<S, A>(shape, tile, kv_head..kv_head + 1, within, scratch.work, of_chunk.o);
            combine::<S>(scratch.total, of_chunk, n, head_dim);
        }
        finish::<S>(shape, tile, kv_head, scratch.total, p.sinks, p.out);
    }
}

/// Computes a chunk of the positions of split rows, whose queries are in scratch. It also finishes
/// each row of which this is the last chunk.
///
/// # Safety
/// As [`body`]; several rows are computed for one head only.
#[inline(always)]
unsafe fn part<S: Loops, A: Attend>(
    p: &AttentionParams,
    schedule: &Schedule,
    tile: &RowTile<'_>,
    rows: Range<usize>,
    heads: Range<usize>,
    index: u32,
    scratch: &ChunkScratch<A>,
) {
    let (shape, head_dim) = (&p.shape, p.shape.pages.head_dim);
    let (n_group, n_kv_heads) = (shape.n_group, shape.pages.n_kv_heads);
    let (split, sizes) = (schedule.split(), schedule.sizes());
    let positions = sizes.within(index as usize, &tile.positions(shape));
    // SAFETY: each (row, chunk, head) is in one unit of the schedule, so no other worker writes its
    // partial. The counter's acquire and release make all partials of a row visible to the worker
    // that combines them.
    unsafe {
        if rows.len() == 1 {
            let out = p.partial(split[rows.start].partial(index), heads.start);
            chunk::<S, A>(shape, tile, heads.clone(), positions, scratch.work, out);
        } else {
            let together = scratch.chunk.o;
            chunk::<S, A>(shape, tile, heads.clone(), positions, scratch.work, together);
            let together = Partial::at(together, tile.n_queries(shape), head_dim);
            for (i, row) in rows.clone().enumerate() {
                let out = Partial::at(p.partial(split[row].partial(index), heads.start), n_group, head_dim);
                let (first, ld) = (i * n_group, padded(head_dim));
                out.o.copy_from_nonoverlapping(together.o.add(first * ld), n_group * ld);
                out.m.copy_from_nonoverlapping(together.m.add(first), n_group);
                out.l.copy_from_nonoverlapping(together.l.add(first), n_group);
            }
        }
        for row in rows {
            for head in heads.clone() {
                let arrived = &*p.arrived.add(row * n_kv_heads + head);
                let n_chunks = split[row].n_chunks as usize;
                if arrived.fetch_add(1, Ordering::AcqRel) + 1 < n_chunks {
                    continue;
                }
                arrived.store(0, Ordering::Relaxed);
                scratch.total.clear(n_group, head_dim);
                for i in 0..n_chunks {
                    let partial = p.partial(split[row].first_partial as usize + i, head);
                    combine::<S>(scratch.total, Partial::at(partial, n_group, head_dim), n_group, head_dim);
                }
                let tile = RowTile { table: tile.table, rows: &schedule.rows()[row..row + 1] };
                finish::<S>(shape, &tile, head, scratch.total, p.sinks, p.out);
            }
        }
    }
}
