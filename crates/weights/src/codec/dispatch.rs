//! The dispatch from a [`BlockType`] to its codec, for rows of any type.

use super::block::{Blocked, Decoded};
use crate::{BlockType, PlaneSlices};

/// Error for writing a type that has no quantiser.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{block} can be read, not written; types that can be written: {}", BlockType::ALL.map(BlockType::name).join(", "))]
pub struct NoQuantizer {
    /// The type.
    pub block: BlockType,
}

fn decode<B: Blocked<LEN>, const LEN: usize>(src: &[u8], dst: &mut [f32]) {
    let blocks: &[B] = bytemuck::cast_slice(src);
    for (block, out) in blocks.iter().zip(dst.as_chunks_mut::<LEN>().0) {
        block.dequantize(out);
    }
}

fn decode_extra<B: Decoded<LEN>, const LEN: usize>(src: &[u8], dst: &mut [f32]) {
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

/// Decodes one row, or several that are stored one after the other.
///
/// `src` holds `block.row_bytes(dst.len())` bytes and needs no alignment.
///
/// # Panics
/// `dst.len()` is not a multiple of `block.block_len()`, `src` has another length, or the type
/// stores its scales apart ([`BlockType::has_planes`]). [`dequantize_rows`] accepts all types, and
/// so any type of a file.
pub fn dequantize_row(block: BlockType, src: &[u8], dst: &mut [f32]) {
    check(block, src.len(), dst.len());
    match block {
        BlockType::F32 => super::f32::dequantize(src, dst),
        BlockType::F16 => super::f16::dequantize(src, dst),
        BlockType::BF16 => super::bf16::dequantize(src, dst),
        BlockType::Q4_0 => decode::<super::q4_0::Q4_0Block, 32>(src, dst),
        BlockType::Q4_1 => decode::<super::q4_1::Q4_1Block, 32>(src, dst),
        BlockType::Q5_0 => decode::<super::q5_0::Q5_0Block, 32>(src, dst),
        BlockType::Q5_1 => decode::<super::q5_1::Q5_1Block, 32>(src, dst),
        BlockType::Q8_0 => decode::<super::q8_0::Q8_0Block, 32>(src, dst),
        BlockType::Q2_K => decode::<super::q2_k::Q2KBlock, 256>(src, dst),
        BlockType::Q3_K => decode::<super::q3_k::Q3KBlock, 256>(src, dst),
        BlockType::Q4_K => decode::<super::q4_k::Q4KBlock, 256>(src, dst),
        BlockType::Q5_K => decode::<super::q5_k::Q5KBlock, 256>(src, dst),
        BlockType::Q6_K => decode::<super::q6_k::Q6KBlock, 256>(src, dst),
        BlockType::IQ4_NL => decode::<super::iq4_nl::Iq4NlBlock, 32>(src, dst),
        BlockType::IQ4_XS => decode::<super::iq4_xs::Iq4XsBlock, 256>(src, dst),
        BlockType::MXFP4 => decode::<super::mxfp4::Mxfp4Block, 32>(src, dst),
        BlockType::IQ2_XXS => decode_extra::<super::iq2_xxs::Iq2XxsBlock, 256>(src, dst),
        BlockType::IQ2_XS => decode_extra::<super::iq2_xs::Iq2XsBlock, 256>(src, dst),
        BlockType::IQ2_S => decode_extra::<super::iq2_s::Iq2SBlock, 256>(src, dst),
        BlockType::IQ3_XXS => decode_extra::<super::iq3_xxs::Iq3XxsBlock, 256>(src, dst),
        BlockType::IQ3_S => decode_extra::<super::iq3_s::Iq3SBlock, 256>(src, dst),
        BlockType::IQ1_S => decode_extra::<super::iq1_s::Iq1SBlock, 256>(src, dst),
        BlockType::IQ1_M => decode_extra::<super::iq1_m::Iq1MBlock, 256>(src, dst),
        BlockType::TQ1_0 => decode_extra::<super::tq1_0::Tq1_0Block, 256>(src, dst),
        BlockType::TQ2_0 => decode_extra::<super::tq2_0::Tq2_0Block, 256>(src, dst),
        BlockType::Q1_0 => decode_extra::<super::q1_0::Q1_0Block, 128>(src, dst),
        BlockType::NVFP4 => decode_extra::<super::nvfp4::Nvfp4Block, 64>(src, dst),
        BlockType::Affine(_) | BlockType::I8_ROWS | BlockType::I16_ROWS => {
            panic!("{block} keeps its scales apart from its values: use dequantize_rows")
        }
    }
}

/// Decodes whole rows of `n_cols` values of any type.
///
/// `src` holds `block.row_bytes(dst.len())` bytes and needs no alignment; `planes` are those of the
/// same rows.
///
/// # Panics
/// `dst.len()` is not whole rows, `n_cols` not whole blocks, or `src` or `planes` have another
/// length.
pub fn dequantize_rows(block: BlockType, n_cols: usize, src: &[u8], planes: PlaneSlices, dst: &mut [f32]) {
    if !block.has_planes() {
        return dequantize_row(block, src, dst);
    }
    check(block, src.len(), dst.len());
    assert!(
        n_cols > 0 && dst.len().is_multiple_of(n_cols) && n_cols.is_multiple_of(block.block_len()),
        "{block}: {} values are not whole rows of {n_cols}",
        dst.len()
    );
    let n_rows = dst.len() / n_cols;
    assert_eq!(planes.scales.len(), n_rows * block.row_scale_bytes(n_cols), "{block}: bytes of scales");
    assert_eq!(planes.biases.len(), n_rows * block.row_bias_bytes(n_cols), "{block}: bytes of biases");
    if let BlockType::Affine(affine) = block {
        super::affine::dequantize(affine, src, planes.scales, planes.biases, dst);
    } else if block == BlockType::I8_ROWS {
        super::int_rows::dequantize_i8(n_cols, src, planes.scales, dst);
    } else {
        super::int_rows::dequantize_i16(n_cols, src, planes.scales, dst);
    }
}

/// Encodes one row, or several that are stored one after the other, into
/// `block.row_bytes(src.len())` bytes.
///
/// The plain number types are converted by IEEE's rules (round to nearest even, overflow to
/// infinity). In all block types NaN becomes 0, and an infinity the largest value that the block's
/// scale can represent.
///
/// # Panics
/// `src.len()` is not a multiple of `block.block_len()`, `dst` has another length, or the type has
/// no quantiser ([`BlockType::has_quantizer`]). For a type from outside use [`try_quantize_row`].
pub fn quantize_row(block: BlockType, src: &[f32], dst: &mut [u8]) {
    if let Err(error) = try_quantize_row(block, src, dst) {
        panic!("{error}");
    }
}

/// Like [`quantize_row`], for a type that may have no quantiser. Affine types have their own,
/// [`affine::quantize`](super::affine::quantize).
///
/// # Errors
/// The type has no quantiser.
///
/// # Panics
/// `src.len()` is not a multiple of `block.block_len()`, or `dst` has another length.
pub fn try_quantize_row(block: BlockType, src: &[f32], dst: &mut [u8]) -> Result<(), NoQuantizer> {
    check(block, dst.len(), src.len());
    match block {
        BlockType::F32 => super::f32::quantize(src, dst),
        BlockType::F16 => super::f16::quantize(src, dst),
        BlockType::BF16 => super::bf16::quantize(src, dst),
        BlockType::Q4_0 => encode::<super::q4_0::Q4_0Block, 32>(src, dst),
        BlockType::Q4_1 => encode::<super::q4_1::Q4_1Block, 32>(src, dst),
        BlockType::Q5_0 => encode::<super::q5_0::Q5_0Block, 32>(src, dst),
        BlockType::Q5_1 => encode::<super::q5_1::Q5_1Block, 32>(src, dst),
        BlockType::Q8_0 => encode::<super::q8_0::Q8_0Block, 32>(src, dst),
        BlockType::Q2_K => encode::<super::q2_k::Q2KBlock, 256>(src, dst),
        BlockType::Q3_K => encode::<super::q3_k::Q3KBlock, 256>(src, dst),
        BlockType::Q4_K => encode::<super::q4_k::Q4KBlock, 256>(src, dst),
        BlockType::Q5_K => encode::<super::q5_k::Q5KBlock, 256>(src, dst),
        BlockType::Q6_K => encode::<super::q6_k::Q6KBlock, 256>(src, dst),
        BlockType::IQ4_NL => encode::<super::iq4_nl::Iq4NlBlock, 32>(src, dst),
        BlockType::IQ4_XS => encode::<super::iq4_xs::Iq4XsBlock, 256>(src, dst),
        BlockType::MXFP4 => encode::<super::mxfp4::Mxfp4Block, 32>(src, dst),
        BlockType::IQ1_S
        | BlockType::IQ1_M
        | BlockType::IQ2_XXS
        | BlockType::IQ2_XS
        | BlockType::IQ2_S
        | BlockType::IQ3_XXS
        | BlockType::IQ3_S
        | BlockType::TQ1_0
        | BlockType::TQ2_0
        | BlockType::Q1_0
        | BlockType::NVFP4
        | BlockType::Affine(_)
        | BlockType::I8_ROWS
        | BlockType::I16_ROWS => return Err(NoQuantizer { block }),
    }
    Ok(())
}

fn check(block: BlockType, n_bytes: usize, n_values: usize) {
    assert!(
        n_values.is_multiple_of(block.block_len()),
        "{block}: {n_values} values are not whole blocks of {}",
        block.block_len()
    );
    assert_eq!(n_bytes, block.row_bytes(n_values), "{block}: bytes for {n_values} values");
}
