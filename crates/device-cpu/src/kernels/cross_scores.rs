//! Scores of one head's queries with all encoder states: `out[:, first + p] = scale q . k_p`.
//!
//! q `(n, n_heads * head_dim)`, out `(n, out_cols)`. A command computes one head and writes
//! `n_states` columns of out. A unit of work is (a tile of rows as in
//! [`cross_attention`](super::cross_attention), a block of positions), taken from a shared counter.
//!
//! Accumulation: [`attention`](super::attention). Bytes: each key once for each tile, 4 written for
//! each score.

use super::attention::attend::Attend;
use super::attention::chunk::ChunkScratch;
use super::attention::constants::MAX_QUERIES;
use super::attention::loops::Loops;
use super::attention::pages::{HeadSize, KvBlock};
use super::attention::tile::Shape;
use super::attention::variants::{self, kv_type_variants};
use super::cross_attention::Tiles;
use crate::command::Worker;

/// Parameters.
#[derive(Clone, Copy)]
pub struct CrossScoresParams {
    /// `(n, cols)`
    pub q: *const f32,
    /// `(n, out_cols)`
    pub out: *mut f32,
    /// Columns of out.
    pub out_cols: usize,
    /// First column of out for this head's scores.
    pub first: usize,
    /// The query head.
    pub head: usize,
    /// Pages of the keys, and the factor on the scores.
    pub shape: Shape,
    /// Number of encoder states.
    pub n_states: usize,
}

/// Bytes of scratch.
pub fn scratch_bytes(head_dim: usize) -> usize {
    variants::scratch_bytes(MAX_QUERIES, HeadSize { head_dim, n_terms: 0 })
}

kv_type_variants!(
    /// The kernel for a KV type.
    cross_scores, body, CrossScoresParams
);

/// # Safety
/// As [`crate::command::Kernel`].
#[inline(always)]
unsafe fn body<S: Loops, A: Attend>(p: &CrossScoresParams, worker: &Worker<'_>) {
    let (pages, head_dim) = (&p.shape.pages, p.shape.pages.head_dim);
    let tiles = || Tiles::new(worker.step, &p.shape, p.n_states, MAX_QUERIES);
    let n_blocks = p.n_states.div_ceil(A::BLOCK);
    let n_units = tiles().count() * n_blocks;
    // SAFETY: the caller guarantees the pointers of `p` for the step's rows and the instruction set
    // of `S`. The layout reserved scratch for the largest tile, `MAX_QUERIES` queries.
    unsafe {
        let scratch = ChunkScratch::<A>::at(worker.scratch, MAX_QUERIES, pages.size());
        while let Some(unit) = worker.take(n_units) {
            let Some(rows) = tiles().nth(unit / n_blocks) else { return };
            let kv_head = p.head / p.shape.n_group;
            for row in 0..rows.n_rows {
                let x = p.q.add((rows.first_row + row) * p.shape.cols + p.head * head_dim);
                A::load_query::<S>(scratch.work, row, x, pages, kv_head, p.shape.scale);
            }
            let first = unit % n_blocks * A::BLOCK;
            let n = (p.n_states - first).min(A::BLOCK);
            let block = KvBlock { pages, table: rows.table, kv_head, first, range: 0..n, next: None };
            let scores = A::scores::<S>(&block, rows.n_rows, scratch.work);
            for row in 0..rows.n_rows {
                let out = p.out.add((rows.first_row + row) * p.out_cols + p.first + first);
                out.copy_from_nonoverlapping(scores.add(row * A::BLOCK), n);
            }
        }
    }
}
