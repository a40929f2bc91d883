//! Attention of each row over all encoder states: `softmax(scale q k^T) v`.
//!
//! q and out `(n, n_heads * head_dim)`; keys and values are in the KV pages of the encoder states.
//! The arithmetic, its order and its tiles are those of [`attention`](super::attention), over a
//! single chunk of all states.
//!
//! A tile is up to [`MAX_QUERIES`] queries of neighbouring rows whose slots have the same pages, in
//! any spans. Sequences that share the states (the beams of a search) thus read them once together.
//! A unit of work is (a tile, a KV head), taken from a shared counter. A head's positions are not
//! split, since one row alone has as many units as heads.
//!
//! A row's result does not depend on its tile. Bytes: each key and value once for each tile.

use super::attention::attend::Attend;
use super::attention::chunk::{ChunkScratch, chunk, finish, load_queries};
use super::attention::constants::MAX_QUERIES;
use super::attention::loops::Loops;
use super::attention::pages::HeadSize;
use super::attention::tile::{Partial, Row, RowTile, Shape};
use super::attention::variants::{self, kv_type_variants};
use crate::command::{StepState, Worker};

/// Parameters.
#[derive(Clone, Copy)]
pub struct CrossAttentionParams {
    /// `(n, cols)`
    pub q: *const f32,
    /// `(n, cols)`
    pub out: *mut f32,
    /// Shape of all tiles, without a window.
    pub shape: Shape,
    /// Number of encoder states.
    pub n_states: usize,
}

/// Rows of a tile.
fn rows_of_tile(n_group: usize) -> usize {
    (MAX_QUERIES / n_group).max(1)
}

/// Bytes of scratch.
pub fn scratch_bytes(n_group: usize, head_dim: usize) -> usize {
    variants::scratch_bytes(rows_of_tile(n_group) * n_group, HeadSize { head_dim, n_terms: 0 })
}

kv_type_variants!(
    /// The kernel for a KV type.
    cross_attention, body, CrossAttentionParams
);

/// Iterator over the tiles of a step in row order: at most `max_rows` neighbouring rows with the
/// same first entries of a group's page table.
pub struct Tiles<'a> {
    step: &'a StepState<'a>,
    group: usize,
    n_entries: usize,
    max_rows: usize,
    /// Next span, and the number of its rows in earlier tiles.
    span: usize,
    within: usize,
}

impl<'a> Tiles<'a> {
    /// Tiles over `n_states` encoder states.
    pub fn new(step: &'a StepState<'a>, shape: &Shape, n_states: usize, max_rows: usize) -> Tiles<'a> {
        let n_entries = n_states.div_ceil(shape.pages.page_len);
        Tiles { step, group: shape.pages.group, n_entries, max_rows, span: 0, within: 0 }
    }
}

/// Rows of a tile, with their pages.
#[derive(Clone, Copy)]
pub struct TileRows<'a> {
    /// Pages of the encoder states.
    pub table: &'a [u32],
    /// First row in the step.
    pub first_row: usize,
    /// Rows.
    pub n_rows: usize,
}

impl<'a> Iterator for Tiles<'a> {
    type Item = TileRows<'a>;

    fn next(&mut self) -> Option<TileRows<'a>> {
        let step = self.step;
        let first = step.spans.get(self.span)?;
        let table = &step.page_table(first.slot, self.group)[..self.n_entries];
        let first_row = first.first_row as usize + self.within;
        let mut n_rows = 0;
        while n_rows < self.max_rows {
            let Some(span) = step.spans.get(self.span) else { break };
            if &step.page_table(span.slot, self.group)[..self.n_entries] != table {
                break;
            }
            let taken = (span.n_rows as usize - self.within).min(self.max_rows - n_rows);
            n_rows += taken;
            self.within += taken;
            if self.within == span.n_rows as usize {
                (self.span, self.within) = (self.span + 1, 0);
            }
        }
        Some(TileRows { table, first_row, n_rows })
    }
}

/// # Safety
/// As [`crate::command::Kernel`].
#[inline(always)]
unsafe fn body<S: Loops, A: Attend>(p: &CrossAttentionParams, worker: &Worker<'_>) {
    let (n_kv_heads, head_dim) = (p.shape.pages.n_kv_heads, p.shape.pages.head_dim);
    let max_rows = rows_of_tile(p.shape.n_group);
    let tiles = || Tiles::new(worker.step, &p.shape, p.n_states, max_rows);
    let n_units = tiles().count() * n_kv_heads;
    // SAFETY: the caller guarantees the pointers of `p` for the step's rows and the instruction set
    // of `S`. The layout reserved scratch for the largest tile, `max_rows * n_group` queries.
    unsafe {
        let scratch = ChunkScratch::<A>::at(worker.scratch, max_rows * p.shape.n_group, p.shape.pages.size());
        while let Some(unit) = worker.take(n_units) {
            let Some(rows) = tiles().nth(unit / n_kv_heads) else { return };
            // A causal row at the last state's position attends to all states.
            let position = p.n_states as u32 - 1;
            let all: [Row; MAX_QUERIES] =
                std::array::from_fn(|i| Row::causal((rows.first_row + i) as u32, position));
            let (tile, kv_head) =
                (RowTile { table: rows.table, rows: &all[..rows.n_rows] }, unit % n_kv_heads);
            let (n, total) = (tile.n_queries(&p.shape), scratch.chunk.o);
            load_queries::<S, A>(&p.shape, &tile, kv_head, p.q, scratch.work);
            chunk::<S, A>(&p.shape, &tile, kv_head..kv_head + 1, 0..p.n_states, scratch.work, total);
            finish::<S>(&p.shape, &tile, kv_head, Partial::at(total, n, head_dim), std::ptr::null(), p.out);
        }
    }
}
