//! A decoded image.

/// Colours of an image: `(height, width, 3)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Colours {
    /// Rows of pixels, from top to bottom.
    pub height: usize,
    /// Columns of pixels, from left to right.
    pub width: usize,
    /// Red, green and blue of each pixel, row by row.
    pub bytes: Vec<u8>,
}
