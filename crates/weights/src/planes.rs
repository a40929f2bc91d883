//! Scales and offsets that a file stores apart from the packed values.

use std::ops::Range;

use crate::{BlockType, Bytes};

/// Arrays beside a tensor's packed values, for types that [store them
/// apart](BlockType::has_planes); empty for all other types. Each is row-major like the values, and
/// a view of the file if the file has it in this form.
#[derive(Clone, Debug, Default)]
pub struct Planes {
    /// `[n_rows, n_cols / group]` numbers of an affine type's [`ScaleType`](crate::ScaleType);
    /// `[n_rows]` f32 for [`BlockType::I8_ROWS`] and [`BlockType::I16_ROWS`].
    pub scales: Option<Bytes>,
    /// `[n_rows, n_cols / group]` numbers of that type; none for a symmetric type.
    pub biases: Option<Bytes>,
}

impl Planes {
    /// Bytes of scales and offsets.
    pub fn n_bytes(&self) -> usize {
        self.scales.as_deref().map_or(0, <[u8]>::len) + self.biases.as_deref().map_or(0, <[u8]>::len)
    }

    /// True if these planes have exactly the bytes that `block` needs for `n_rows` rows of `n_cols`
    /// values.
    pub fn fit(&self, block: BlockType, n_rows: usize, n_cols: usize) -> bool {
        let fits = |plane: &Option<Bytes>, row: usize| {
            n_rows.checked_mul(row) == Some(plane.as_deref().map_or(0, <[u8]>::len))
        };
        fits(&self.scales, block.row_scale_bytes(n_cols)) && fits(&self.biases, block.row_bias_bytes(n_cols))
    }

    /// Planes of some rows, if there are such rows. Nothing is copied.
    pub fn rows(&self, block: BlockType, n_cols: usize, rows: Range<usize>) -> Option<Planes> {
        let part = |plane: &Option<Bytes>, row: usize| match plane {
            None => Some(None),
            Some(bytes) => bytes.slice(rows.start.checked_mul(row)?..rows.end.checked_mul(row)?).map(Some),
        };
        Some(Planes {
            scales: part(&self.scales, block.row_scale_bytes(n_cols))?,
            biases: part(&self.biases, block.row_bias_bytes(n_cols))?,
        })
    }

    /// Borrowed bytes, for the codecs.
    pub fn as_slices(&self) -> PlaneSlices<'_> {
        PlaneSlices {
            scales: self.scales.as_deref().unwrap_or_default(),
            biases: self.biases.as_deref().unwrap_or_default(),
        }
    }
}

/// Borrowed [`Planes`]; a slice is empty if the type has no such plane.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlaneSlices<'a> {
    /// Bytes of [`Planes::scales`].
    pub scales: &'a [u8],
    /// Bytes of [`Planes::biases`].
    pub biases: &'a [u8],
}

impl<'a> PlaneSlices<'a> {
    /// Planes of some rows.
    ///
    /// # Panics
    /// The planes do not have these rows.
    pub fn rows(self, block: BlockType, n_cols: usize, rows: Range<usize>) -> PlaneSlices<'a> {
        let part = |plane: &'a [u8], row: usize| &plane[rows.start * row..rows.end * row];
        PlaneSlices {
            scales: part(self.scales, block.row_scale_bytes(n_cols)),
            biases: part(self.biases, block.row_bias_bytes(n_cols)),
        }
    }
}
