//! Scores of one head's queries with all encoder states: `out[:, first + p] = scale q . k_p`.
//!
//! q `(n, n_heads * head_dim)`, out `(n, out_cols)`, of which the kernel writes `n_states` columns; several heads are several
//! commands. A unit of work is (a tile of rows as in [`cross_attention`](super::cross_attention), a block of positions),
//! taken from a shared counter.
//!
//! Accumulation: as in [`attention`](super::attention). Bytes: each key once for each tile, 4 written for each score.

use super::attention::attend::Attend;
use super::attention::chunk::Scratch;
use super::attention::constants::MAX_QUERIES;
use super::attention::loops::Loops;
use super::attention::pages::{HeadSize, KvBlock};
use super::attention::tile::Shape;
use super::attention::variants::{self, kv_type_variants};
use super::cross_attention::Tiles;
use crate::command::Worker;

/// Parameters.
#[derive(Clone, Copy)]
pub struct Params {
    /// `(n, cols)`
    pub q: *const f32,
    /// `(n, out_cols)`
    pub out: *mut f32,
    /// Columns of out.
    pub out_cols: usize,
    /// The first column of out that this head's scores go to.
    pub first: usize,
    /// The query head.
    pub head: usize,
    /// Where keys lie, and the factor on the scores.
    pub shape: Shape,
    /// Positions.
    pub n_states: usize,
}

/// Bytes of scratch.
pub fn scratch_bytes(head_dim: usize) -> usize {
    variants::scratch_bytes(MAX_QUERIES, HeadSize { head_dim, n_terms: 0 })
}

kv_type_variants!(
    /// The kernel for a KV type.
    cross_scores, body, Params
);

/// # Safety
/// As [`crate::command::Kernel`].
#[inline(always)]
unsafe fn body<S: Loops, A: Attend>(p: &Params, worker: &Worker<'_>) {
    let (pages, head_dim) = (&p.shape.pages, p.shape.pages.head_dim);
    let tiles = || Tiles::new(worker.step, &p.shape, p.n_states, MAX_QUERIES);
    let n_blocks = p.n_states.div_ceil(A::BLOCK);
    let n_units = tiles().count() * n_blocks;
    // SAFETY: by the caller, the parameters' pointers are valid for the rows of the step, no other worker
    // writes what this one reads, and the instruction set is available; the scratch is for the largest tile.
    unsafe {
        let scratch = Scratch::<A>::at(worker.scratch, MAX_QUERIES, pages.size());
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
