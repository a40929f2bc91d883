//! Traits of a block, which each codec implements.

use bytemuck::Pod;

/// A block of `LEN` values with the layout of the file.
pub trait Blocked<const LEN: usize>: Pod {
    /// Magnitude to which inputs are clamped: larger than the type can represent, but small enough
    /// for the arithmetic of the fits.
    const LIMIT: f32 = 1e9;

    /// Decodes the block's values.
    fn dequantize(&self, out: &mut [f32; LEN]);

    /// Encodes `values`, which are finite and at most [`Self::LIMIT`] in magnitude, as the nearest
    /// block.
    fn quantize(values: &[f32; LEN]) -> Self;
}

/// A type of [`BlockType::GGUF_EXTRA`](crate::BlockType::GGUF_EXTRA), which is only decoded.
pub trait Decoded<const LEN: usize>: Pod {
    /// Decodes the block's values.
    fn dequantize(&self, out: &mut [f32; LEN]);
}

/// Converts a little-endian IEEE half.
#[inline]
pub fn f16_to_f32(bytes: [u8; 2]) -> f32 {
    half::f16::from_le_bytes(bytes).to_f32()
}
