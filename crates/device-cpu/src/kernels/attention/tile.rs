//! Units of computation in attention: a tile of query rows, and the partial results of its queries.

use super::constants::{LOWEST, padded};
use super::pages::{KvBlock, LayerPages};
use std::ops::Range;

/// Facts that all tiles of an Op share.
#[derive(Clone, Copy)]
pub struct Shape {
    /// Addresses of keys and values.
    pub pages: LayerPages,
    /// Query heads of a KV head.
    pub n_group: usize,
    /// Factor on the scores.
    pub scale: f32,
    /// Cap in `cap * tanh(score / cap)`; 0 for none.
    pub softcap: f32,
    /// Positions that a row sees, its own included.
    pub window: usize,
    /// True if the window begins at a multiple of its length.
    pub chunked: bool,
    /// Columns of q and of the output.
    pub cols: usize,
}

/// A row of a step, with its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The row of the step.
    pub row: u32,
    /// The row's position in the sequence.
    pub position: u32,
    /// End of the positions that the row sees: after its own position, or after its span.
    pub end: u32,
}

/// Rows that are computed together, since they read the same pages.
#[derive(Clone, Copy)]
pub struct RowTile<'a> {
    /// Page table of the rows.
    pub table: &'a [u32],
    /// The rows, at least one.
    pub rows: &'a [Row],
}

/// Positions that a row at `position` sees.
pub fn seen(window: usize, chunked: bool, position: usize) -> Range<usize> {
    let first = if chunked { position / window * window } else { (position + 1).saturating_sub(window) };
    first..position + 1
}

impl Row {
    /// A row that sees only the positions up to its own.
    pub fn causal(row: u32, position: u32) -> Row {
        Row { row, position, end: position + 1 }
    }

    /// Positions that the row sees.
    #[inline(always)]
    fn seen(&self, shape: &Shape) -> Range<usize> {
        seen(shape.window, shape.chunked, self.position as usize).start..self.end as usize
    }
}

impl<'a> RowTile<'a> {
    /// Number of queries `(row, head of the group)` of a KV head.
    #[inline(always)]
    pub fn n_queries(&self, shape: &Shape) -> usize {
        self.rows.len() * shape.n_group
    }

    /// Positions that the row of a query sees in the block of `len` positions from `first` on,
    /// counted from `first`.
    #[inline(always)]
    pub fn seen_of(&self, shape: &Shape, query: usize, first: usize, len: usize) -> Range<usize> {
        let seen = self.rows[query / shape.n_group].seen(shape);
        seen.start.clamp(first, first + len) - first..seen.end.clamp(first, first + len) - first
    }

    /// The block of `len` positions from `first` on, for a KV head. Its range is the part within
    /// `positions`.
    #[inline(always)]
    pub fn kv_block(
        &self,
        shape: &'a Shape,
        kv_head: usize,
        first: usize,
        len: usize,
        positions: &Range<usize>,
    ) -> KvBlock<'a> {
        let within = |position: usize| position.clamp(first, first + len) - first;
        let range = within(positions.start)..within(positions.end);
        KvBlock { pages: &shape.pages, table: self.table, kv_head, first, range, next: None }
    }

    /// Range from the first to the last position that some row of the tile sees.
    pub fn positions(&self, shape: &Shape) -> Range<usize> {
        let of_row = |row: &Row| row.seen(shape);
        self.rows[1..]
            .iter()
            .map(of_row)
            .fold(of_row(&self.rows[0]), |all, seen| all.start.min(seen.start)..all.end.max(seen.end))
    }
}

/// Partial result `(m, l, o)` of every query of a tile.
#[derive(Clone, Copy)]
pub struct Partial {
    /// `(padded n)` largest score.
    pub m: *mut f32,
    /// `(padded n)` sum of the exponentials.
    pub l: *mut f32,
    /// `(n, padded head_dim)` weighted values.
    pub o: *mut f32,
}

impl Partial {
    /// Number of f32 values in the partial result of `n` queries.
    pub fn len(n: usize, head_dim: usize) -> usize {
        n * padded(head_dim) + 2 * padded(n)
    }

    /// The partial result that is stored at an address.
    ///
    /// # Safety
    /// `start` is valid for [`Self::len`] values.
    #[inline(always)]
    pub unsafe fn at(start: *mut f32, n: usize, head_dim: usize) -> Partial {
        // SAFETY: by the caller, `start` is valid for `len` values: `o`, then `m`, then `l`.
        unsafe {
            let m = start.add(n * padded(head_dim));
            Partial { o: start, m, l: m.add(padded(n)) }
        }
    }

    /// Resets the partial result to that of no positions.
    ///
    /// # Safety
    /// The partial result has room for `n` queries.
    #[inline(always)]
    pub unsafe fn clear(&self, n: usize, head_dim: usize) {
        // SAFETY: the caller guarantees `n` rows of `padded(head_dim)` in `o`, and `n` values in
        // `m` and `l`. Zero bytes are 0.0.
        unsafe {
            self.o.write_bytes(0, n * padded(head_dim));
            self.l.write_bytes(0, n);
            (0..n).for_each(|i| self.m.add(i).write(LOWEST));
        }
    }
}
