//! The trait that a KV type implements for attention: how a tile attends to a block of positions.

use super::loops::Loops;
use super::pages::{HeadSize, KvBlock, LayerPages};
use super::tile::{Partial, RowTile, Shape};

/// Attention of a tile to a block of positions whose keys and values are stored in one way.
pub trait Attend: Copy + 'static {
    /// Positions of a block; divides a chunk.
    const BLOCK: usize;

    /// Scratch of a worker.
    type Work: Copy;

    /// Bytes of [`Self::Work`] for `n` queries.
    fn work_bytes(n: usize, size: HeadSize) -> usize;

    /// The work that is stored at an address.
    ///
    /// # Safety
    /// `start` is valid for [`Self::work_bytes`], aligned to 64.
    unsafe fn work(start: *mut u8, n: usize, size: HeadSize) -> Self::Work;

    /// Part of the work that begins with query `first`.
    ///
    /// # Safety
    /// The work is for at least `first` queries.
    unsafe fn from_query(work: Self::Work, first: usize, head_dim: usize) -> Self::Work;

    /// Loads query `i` into the work, multiplied by `scale`, for products with keys of a KV head.
    ///
    /// # Safety
    /// `x` has the pages' `head_dim` columns; the work is for more than `i` queries; the
    /// instruction set is available.
    unsafe fn load_query<S: Loops>(
        work: Self::Work,
        i: usize,
        x: *const f32,
        pages: &LayerPages,
        kv_head: usize,
        scale: f32,
    );

    /// Computes scores of `n` queries with the positions of a block's range, `(n, BLOCK)`; other
    /// columns are undefined.
    ///
    /// # Safety
    /// The positions of the block's range have pages; the work has the `n` queries; the instruction
    /// set is available.
    unsafe fn scores<S: Loops>(block: &KvBlock<'_>, n: usize, work: Self::Work) -> *const f32;

    /// Adds a block's positions to the partial of the tile's queries.
    ///
    /// # Safety
    /// As [`Self::scores`], for the tile's queries; `out` has a partial for them.
    unsafe fn block<S: Loops>(
        shape: &Shape,
        tile: &RowTile<'_>,
        block: &KvBlock<'_>,
        work: Self::Work,
        out: Partial,
    );
}
