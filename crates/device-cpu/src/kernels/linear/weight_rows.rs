//! The rows of a weight matrix as the kernels read them: where they lie in the file, or interleaved.

use super::{Interleave, TILE_ROWS};
use std::ops::Range;
use weights::{BlockType, PlaneSlices, codec};

/// Addresses of a matrix: packed values, and scales and offsets for types that keep them apart. Any alignment.
#[derive(Clone, Copy, Debug)]
pub struct WeightRows {
    /// How the values are stored.
    pub block: BlockType,
    /// The first byte of row 0.
    pub values: *const u8,
    /// Bytes from one row's values to the next row's.
    pub row_bytes: usize,
    /// The first scale of row 0; dangling for a type that keeps none apart.
    pub scales: *const u8,
    /// The first offset of row 0; dangling for a type without.
    pub biases: *const u8,
    /// Bytes from one row's scales to the next row's; the same for offsets.
    pub plane_bytes: usize,
    /// How it is interleaved: then `values` is the first tile, with the scales, and a row's bytes are a sixteenth of a tile's.
    interleave: Option<&'static Interleave>,
}

impl WeightRows {
    /// Rows of `n_cols` values; `values` and `planes` have the bytes of the same rows, from the first on.
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

    /// The same matrix of `n_cols` in tiles at `tiles`.
    pub fn interleaved(self, tiles: *const u8, n_cols: usize, interleave: &'static Interleave) -> WeightRows {
        let row_bytes = (interleave.tile_bytes)(n_cols) / TILE_ROWS;
        WeightRows { values: tiles, row_bytes, interleave: Some(interleave), ..self }
    }

    /// Decode some columns of a row by the codecs' definition: any type, at the speed of plain Rust.
    ///
    /// # Safety
    /// The matrix has the row and the columns, which begin and end with whole blocks; `out` has room for them.
    pub unsafe fn decode(self, row: usize, cols: Range<usize>, out: &mut [f32]) {
        if let Some(interleave) = self.interleave {
            // SAFETY: by the caller, the matrix has the row and the columns, which begin and end with whole
            // blocks; `out` has room for them.
            return unsafe { (interleave.decode)(self, row, cols, out) };
        }
        let block = self.block;
        let first = match block {
            BlockType::Affine(_) => block.row_scale_bytes(cols.start),
            // One scale a row, wherever in it the columns are; or none.
            _ => 0,
        };
        let (n, at) = (cols.len(), row * self.plane_bytes + first);
        // SAFETY: by the caller, the matrix has the row and the columns, which begin and end with whole
        // blocks; `out` has room for them; a plane that is not there is read for no bytes.
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

/// The addresses of 16 rows from `r0` on; rows beyond the tile repeat its last.
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

/// `n` bytes of a plane from byte `at` on; none of a plane that is not there.
///
/// # Safety
/// Unless `n` is 0, the bytes are readable.
#[inline(always)]
pub(super) unsafe fn plane<'a>(start: *const u8, at: usize, n: usize) -> &'a [u8] {
    match n {
        0 => &[],
        // SAFETY: by the caller, unless `n` is 0, the bytes are readable.
        _ => unsafe { std::slice::from_raw_parts(start.add(at), n) },
    }
}
