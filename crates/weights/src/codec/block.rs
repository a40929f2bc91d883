//! Traits of a block, which each codec implements.

use bytemuck::Pod;

/// A block of `LEN` values, laid out as in the file.
pub trait Blocked<const LEN: usize>: Pod {
    /// Inputs are clamped to this magnitude: past what the type can represent, yet small enough for the
    /// arithmetic of the fits.
    const LIMIT: f32 = 1e9;

    /// Write the block's values.
    fn dequantize(&self, out: &mut [f32; LEN]);

    /// The block nearest to `values`, which are finite and at most [`Self::LIMIT`] in magnitude.
    fn quantize(values: &[f32; LEN]) -> Self;
}

/// A type of [`BlockType::GGUF_EXTRA`]: it is only read.
pub trait Decoded<const LEN: usize>: Pod {
    /// Write the block's values.
    fn dequantize(&self, out: &mut [f32; LEN]);
}

/// An IEEE half, little-endian.
#[inline]
pub fn f16_to_f32(bytes: [u8; 2]) -> f32 {
    half::f16::from_le_bytes(bytes).to_f32()
}
