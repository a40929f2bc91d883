//! Rows of a weight matrix as the kernels read them: in place in the file, or interleaved.

use super::{Interleave, TILE_ROWS};
use std::ops::Range;
use weights::{BlockType, PlaneSlices, codec};

/// Addresses of a matrix: packed values, and scales and offsets for types that store them apart.
/// Any alignment.
#[derive(Clone, Copy, Debug)]
pub struct WeightRows {
    /// Type of the stored values.
    pub block: BlockType,
    /// Address of row 0.
    pub values: *const u8,
    /// Bytes from one row's values to the next row's.
    pub row_bytes: usize,
    /// Address of the first scale of row 0; dangling for a type without separate scales.
    pub scales: *const u8,
    /// Address of the first offset of row 0; dangling for a type without offsets.
    pub biases: *const u8,
    /// Bytes from one row's scales to the next row's, and from one row's offsets to the next row's.
    pub plane_bytes: usize,
    /// Interleaving of the matrix, if any. `values` is then the first tile, which includes scales,
    /// and a row has a sixteenth of a tile's bytes.
    interleave: Option<&'static Interleave>,
}

impl WeightRows {
    /// Rows of `n_cols` values; `values` and `planes` have the bytes of all these rows.
    pub fn new(block: BlockType, n_cols: usize, values: &[u8], planes: PlaneSlices) -> WeightRows {
        WeightRows {
            block,
            values: values.as_ptr(),
            row_bytes: block.row_bytes(n_cols),
            scales: planes.scales.as_ptr(),
            biases: planes.biases.as_ptr(),
            plane_bytes: block.row_scale_bytes(n_cols),
            interleave: None,
        }
    }

    /// This matrix of `n_cols` columns, in tiles at `tiles`.
    pub fn interleaved(self, tiles: *const u8, n_cols: usize, interleave: &'static Interleave) -> WeightRows {
        let row_bytes = (interleave.tile_bytes)(n_cols) / TILE_ROWS;
        WeightRows { values: tiles, row_bytes, interleave: Some(interleave), ..self }
    }

    /// Decodes some columns of a row by the codec, for any type, at the speed of plain Rust.
    ///
    /// # Safety
    /// The matrix has the row and the columns, which begin and end with whole blocks; `out` has
    /// room for them.
    pub unsafe fn decode(self, row: usize, cols: Range<usize>, out: &mut [f32]) {
        if let Some(interleave) = self.interleave {
            // SAFETY: the caller guarantees `row` and whole blocks of `cols`; `self` is
            // interleaved.
            return unsafe { (interleave.decode)(self, row, cols, out) };
        }
        let block = self.block;
        // Other types have no separate scales, or one scale for a whole row.
        let first = if matches!(block, BlockType::Affine(_)) { block.row_scale_bytes(cols.start) } else { 0 };
        let (n, at) = (cols.len(), row * self.plane_bytes + first);
        // SAFETY: the caller guarantees `row` and whole blocks of `cols`, so the values and planes
        // have these bytes; `plane` reads nothing of a missing plane.
        let (values, scales, biases) = unsafe {
            let values = self.values.add(row * self.row_bytes + block.row_bytes(cols.start));
            (
                std::slice::from_raw_parts(values, block.row_bytes(n)),
                plane(self.scales, at, block.row_scale_bytes(n)),
                plane(self.biases, at, block.row_bias_bytes(n)),
            )
        };
        codec::dequantize_rows(block, n, values, PlaneSlices { scales, biases }, out);
    }
}

/// Addresses of 16 rows from `r0` on; rows after the tile's last row repeat it.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn row_addresses(
    w: *const u8,
    row_bytes: usize,
    r0: usize,
    n_rows: usize,
) -> [*const u8; TILE_ROWS] {
    std::array::from_fn(|r| w.wrapping_add((r0 + r.min(n_rows - 1)) * row_bytes))
}

/// Bytes `at..at + n` of a plane; empty for a missing plane.
///
/// # Safety
/// Unless `n` is 0, the bytes are readable.
#[inline(always)]
pub(super) unsafe fn plane<'a>(start: *const u8, at: usize, n: usize) -> &'a [u8] {
    match n {
        0 => &[],
        // SAFETY: `n` is not 0, so the caller guarantees that bytes `at..at + n` are readable.
        _ => unsafe { std::slice::from_raw_parts(start.add(at), n) },
    }
}

/// Runs `$body` for each group of `$most` of the rows `$rows`, then for each remaining row. `$r` is
/// the group's first row, and `$n` is a constant, its number of rows.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! by_groups {
    ($rows:expr, $most:expr, |$r:ident, $n:ident| $body:expr) => {{
        let rows: std::ops::Range<usize> = $rows;
        let mut $r = rows.start;
        while $r + $most <= rows.end {
            const $n: usize = $most;
            $body;
            $r += $most;
        }
        while $r < rows.end {
            const $n: usize = 1;
            $body;
            $r += 1;
        }
    }};
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) use by_groups;
