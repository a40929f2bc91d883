//! Rows of blocks: the dispatch from a type to its codec.

use bytemuck::Pod;

use crate::BlockType;

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

/// An IEEE half, little-endian.
#[inline]
pub fn f16_to_f32(bytes: [u8; 2]) -> f32 {
    half::f16::from_le_bytes(bytes).to_f32()
}

fn decode<B: Blocked<LEN>, const LEN: usize>(src: &[u8], dst: &mut [f32]) {
    let blocks: &[B] = bytemuck::cast_slice(src);
    for (block, out) in blocks.iter().zip(dst.as_chunks_mut::<LEN>().0) {
        block.dequantize(out);
    }
}

fn encode<B: Blocked<LEN>, const LEN: usize>(src: &[f32], dst: &mut [u8]) {
    let blocks: &mut [B] = bytemuck::cast_slice_mut(dst);
    for (block, values) in blocks.iter_mut().zip(src.as_chunks::<LEN>().0) {
        let clean = values.map(|v| if v.is_nan() { 0.0 } else { v.clamp(-B::LIMIT, B::LIMIT) });
        *block = B::quantize(&clean);
    }
}

/// Decode a row, or several that lie one after the other.
///
/// `src` holds `block.row_bytes(dst.len())` bytes and needs no alignment.
///
/// # Panics
/// `dst.len()` is not a multiple of `block.block_len()`, or `src` has another length.
pub fn dequantize_row(block: BlockType, src: &[u8], dst: &mut [f32]) {
    check(block, src.len(), dst.len());
    match block {
        BlockType::F32 => super::f32::dequantize(src, dst),
        BlockType::F16 => super::f16::dequantize(src, dst),
        BlockType::BF16 => super::bf16::dequantize(src, dst),
        BlockType::Q4_0 => decode::<super::q4_0::Block, 32>(src, dst),
        BlockType::Q4_1 => decode::<super::q4_1::Block, 32>(src, dst),
        BlockType::Q5_0 => decode::<super::q5_0::Block, 32>(src, dst),
        BlockType::Q5_1 => decode::<super::q5_1::Block, 32>(src, dst),
        BlockType::Q8_0 => decode::<super::q8_0::Block, 32>(src, dst),
        BlockType::Q2_K => decode::<super::q2_k::Block, 256>(src, dst),
        BlockType::Q3_K => decode::<super::q3_k::Block, 256>(src, dst),
        BlockType::Q4_K => decode::<super::q4_k::Block, 256>(src, dst),
        BlockType::Q5_K => decode::<super::q5_k::Block, 256>(src, dst),
        BlockType::Q6_K => decode::<super::q6_k::Block, 256>(src, dst),
        BlockType::IQ4_NL => decode::<super::iq4_nl::Block, 32>(src, dst),
        BlockType::IQ4_XS => decode::<super::iq4_xs::Block, 256>(src, dst),
        BlockType::MXFP4 => decode::<super::mxfp4::Block, 32>(src, dst),
    }
}

/// Encode a row, or several that lie one after the other, into `block.row_bytes(src.len())` bytes.
///
/// The plain number types convert as IEEE says (round to nearest even, overflow to infinity). In all block types
/// NaN becomes 0 and infinities the largest value that the block's scale can carry.
///
/// # Panics
/// `src.len()` is not a multiple of `block.block_len()`, or `dst` has another length.
pub fn quantize_row(block: BlockType, src: &[f32], dst: &mut [u8]) {
    check(block, dst.len(), src.len());
    match block {
        BlockType::F32 => super::f32::quantize(src, dst),
        BlockType::F16 => super::f16::quantize(src, dst),
        BlockType::BF16 => super::bf16::quantize(src, dst),
        BlockType::Q4_0 => encode::<super::q4_0::Block, 32>(src, dst),
        BlockType::Q4_1 => encode::<super::q4_1::Block, 32>(src, dst),
        BlockType::Q5_0 => encode::<super::q5_0::Block, 32>(src, dst),
        BlockType::Q5_1 => encode::<super::q5_1::Block, 32>(src, dst),
        BlockType::Q8_0 => encode::<super::q8_0::Block, 32>(src, dst),
        BlockType::Q2_K => encode::<super::q2_k::Block, 256>(src, dst),
        BlockType::Q3_K => encode::<super::q3_k::Block, 256>(src, dst),
        BlockType::Q4_K => encode::<super::q4_k::Block, 256>(src, dst),
        BlockType::Q5_K => encode::<super::q5_k::Block, 256>(src, dst),
        BlockType::Q6_K => encode::<super::q6_k::Block, 256>(src, dst),
        BlockType::IQ4_NL => encode::<super::iq4_nl::Block, 32>(src, dst),
        BlockType::IQ4_XS => encode::<super::iq4_xs::Block, 256>(src, dst),
        BlockType::MXFP4 => encode::<super::mxfp4::Block, 32>(src, dst),
    }
}

fn check(block: BlockType, n_bytes: usize, n_values: usize) {
    assert!(
        n_values.is_multiple_of(block.block_len()),
        "{block}: {n_values} values are not whole blocks of {}",
        block.block_len()
    );
    assert_eq!(n_bytes, block.row_bytes(n_values), "{block}: bytes for {n_values} values");
}
