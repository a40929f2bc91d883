//! Sizes that attention's files share.

use device::kv_words;

/// Positions of a block whose products are in f32.
pub const FLOAT_BLOCK: usize = 64;
/// Positions of a block whose products are of integers.
pub const INTEGER_BLOCK: usize = kv_words::MAX_POSITIONS;
/// Positions of the longer block.
pub const MAX_BLOCK: usize = if FLOAT_BLOCK > INTEGER_BLOCK { FLOAT_BLOCK } else { INTEGER_BLOCK };
/// Lanes of a strip of integers: four of the widest vectors.
pub const STRIP: usize = 64;
/// Maximum number of queries of a tile, unless one row has more.
pub const MAX_QUERIES: usize = 64;
/// Initial maximum, below all scores, but finite so that differences are finite.
pub const LOWEST: f32 = -1e30;

/// Columns of a head, rounded up to the widest vectors.
#[inline(always)]
pub fn padded(head_dim: usize) -> usize {
    head_dim.next_multiple_of(16)
}
