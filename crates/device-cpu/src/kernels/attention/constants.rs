//! The sizes that attention's files share.

use device::kv_words;

/// Positions of a block where keys and values are met as f32.
pub const FLOAT_BLOCK: usize = 64;
/// Positions of a block where they are integers.
pub const INTEGER_BLOCK: usize = kv_words::MAX_POSITIONS;
/// Positions of the longer of both.
pub const MAX_BLOCK: usize = if FLOAT_BLOCK > INTEGER_BLOCK { FLOAT_BLOCK } else { INTEGER_BLOCK };
/// Lanes of a strip of integers: four of the longest vectors.
pub const STRIP: usize = 64;
/// Most queries of a tile, unless one row has more.
pub const MAX_QUERIES: usize = 64;
/// A maximum below all scores, finite so that differences are.
pub const LOWEST: f32 = -1e30;

/// Columns of a head, rounded up to whole vectors.
#[inline(always)]
pub fn padded(head_dim: usize) -> usize {
    head_dim.next_multiple_of(16)
}
