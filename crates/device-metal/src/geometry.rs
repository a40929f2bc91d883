//! Sizes that the kernels fix: rows of a block, threads of a tile, bytes of their results in
//! scratch. The headers under `kernels/` define each size.

use crate::arguments::ExpertTile;

/// Rows of a weight that a SIMD-group of a GEMV makes, unless a profile takes more for one row of x
/// ([`crate::Profile::weight_rows`]).
pub const GEMV_ROWS: usize = 4;

/// Rows of a weight that a tile has.
pub const GEMM_ROWS: usize = 64;

/// Threads of a tile.
pub const GEMM_THREADS: u32 = 128;

/// Columns that all lanes of a SIMD-group take at once.
pub const SPAN_COLUMNS: usize = 16 * 32;

/// Bytes of a threadgroup's largest product and its column.
pub const BEST_BYTES: usize = 8;

/// Columns of a row that fit threadgroup memory, at most: 24 KiB of 32, the rest being the kernel's
/// own.
pub const MOST_ROW_COLUMNS: usize = 6144;

/// Rows that attention decodes one by one at most, rather than by tiles.
pub const MOST_DECODED: usize = 8;

/// Threadgroups that share the positions of a row, at most.
pub const MOST_SPLITS: usize = 32;

/// Bytes of the partial sums, and of their totals, of the rows of an attention that is split.
pub fn partial_bytes(n_rows: usize, n_heads: usize, head_dim: usize) -> (usize, usize) {
    let n = n_rows.min(MOST_DECODED) * n_heads * MOST_SPLITS;
    (n * head_dim.next_multiple_of(4) * 4, n * 8)
}

/// Pairs of a row and an expert that a tile has, at most.
pub const TILE_PAIRS: usize = 64;

/// Bytes of the description of such a tile.
pub const TILE_BYTES: usize = size_of::<ExpertTile>();

/// Maximum number of tiles of `n_pairs` pairs.
pub fn n_tiles(n_experts: usize, n_pairs: usize) -> usize {
    n_experts + n_pairs / TILE_PAIRS
}
