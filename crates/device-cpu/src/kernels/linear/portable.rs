//! Block decoding in plain Rust, and the loops of the scalar variant around it.
//!
//! A block is decoded into a small buffer that stays in registers or the first-level cache. The
//! compiler vectorises the decoding for the calling function. Only the inner product is written by
//! hand ([`Dot`]). Order of accumulation: blocks in order, and in a block groups of 32 columns in
//! order, in the lanes of the instruction set. The offsets' part accumulates separately and is
//! added last.

use super::activation::{ActRow, ActRows, Q8Row};
use super::{Part, WeightRows};
use weights::BlockType;

/// A quantised block type: `w = scale * code + offset`, one scale (and offset) for each `GROUP`
/// columns.
pub(super) trait Format {
    /// Name in profiles: `linear_q4_0`.
    const NAME: &'static str;
    /// Block type of the weights.
    const BLOCK: BlockType;
    /// Columns of one scale: 16 or 32.
    const GROUP: usize;
    /// True if there is an offset. Codes are then in `0..=127`; otherwise they are signed.
    const HAS_OFFSET: bool;
    /// Least number that makes every code unsigned when added; 0 with an offset. Vector variants
    /// use unsigned codes.
    const ZERO: u8;
    /// The largest unsigned code.
    const MAX_CODE: u8;

    /// Decodes the scales (and offsets) of a block of [`BlockType::block_bytes`] bytes, one for
    /// each group.
    fn scales(block: &[u8], scale: &mut [f32], offset: &mut [f32]);

    /// Decodes the [`BlockType::block_len`] codes of a block.
    fn codes(block: &[u8], codes: &mut [i8]);
}

/// Groups of decoded columns: the facts of a type that an inner product needs.
pub(super) trait Groups {
    /// Columns of a group, see [`Format::GROUP`].
    const GROUP: usize;
    /// True if groups have an offset, see [`Format::HAS_OFFSET`].
    const HAS_OFFSET: bool;
}

impl<F: Format> Groups for F {
    const GROUP: usize = F::GROUP;
    const HAS_OFFSET: bool = F::HAS_OFFSET;
}

/// Inner product of an instruction set.
pub(super) trait Dot {
    /// Partial sums.
    type Sum: Copy;

    /// Sums of zero.
    ///
    /// # Safety
    /// The instruction set is available.
    unsafe fn zero() -> Self::Sum;

    /// Adds the product of a decoded block, whole groups of 32 columns, with the activations of its
    /// columns.
    ///
    /// # Safety
    /// The instruction set is available; the slices are those of a block; `x` has the block's
    /// columns.
    unsafe fn add<F: Groups>(
        sum: Self::Sum,
        codes: &[i8],
        scale: &[f32],
        offset: &[f32],
        x: Q8Row,
    ) -> Self::Sum;

    /// Sum of all lanes.
    ///
    /// # Safety
    /// The instruction set is available.
    unsafe fn finish(sum: Self::Sum) -> f32;
}

/// Converts f16 to f32 without branches, so that it vectorises.
///
/// The bits moved up by 13 are an f32 whose exponent is 112 too small, subnormals included, so one
/// multiplication is exact. Infinities and NaN need the exponent's remaining bits.
#[inline(always)]
pub(super) fn f16_to_f32(bits: u16) -> f32 {
    let magnitude = u32::from(bits & 0x7fff) << 13;
    let special = if magnitude >= 0x0f80_0000 { 0x7f80_0000 } else { 0 };
    let value = f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23);
    f32::from_bits(value.to_bits() | special | (u32::from(bits & 0x8000) << 16))
}

/// Reads the f16 at byte `at` of a block.
#[inline(always)]
pub(super) fn f16_at(block: &[u8], at: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([block[at], block[at + 1]]))
}

/// Arrays of a row from column `k` on.
///
/// # Safety
/// `k` is a multiple of 32 within the row.
#[inline(always)]
pub(super) unsafe fn columns_from(x: Q8Row, k: usize) -> Q8Row {
    // SAFETY: the caller guarantees that `k` is a multiple of 32 within the row, so all arrays have
    // the column.
    unsafe {
        Q8Row {
            q: x.q.add(k),
            scale: x.scale.add(k / 32),
            sum32: x.sum32.add(k / 32),
            sum16: x.sum16.add(k / 16),
            centre32: x.centre32.add(k / 32),
            centre16: x.centre16.add(k / 16),
            pairs: x.pairs.add(k / 16),
        }
    }
}

/// [`Gemv`](super::Gemv) for the products of `D`.
///
/// # Safety
/// As [`Gemv`](super::Gemv).
#[inline(always)]
pub(super) unsafe fn gemv<F: Format, D: Dot>(
    w: WeightRows,
    n_cols: usize,
    r0: usize,
    r1: usize,
    x: ActRow,
    out: *mut f32,
) {
    let (w, row_bytes) = (w.values, w.row_bytes);
    let (len, bytes) = const { (F::BLOCK.block_len(), F::BLOCK.block_bytes()) };
    let n_groups = len / F::GROUP;
    let mut codes = [0i8; 256];
    let (mut scale, mut offset) = ([0f32; 16], [0f32; 16]);
    // SAFETY: the caller guarantees rows `r0..r1` of `n_cols` columns at `w`, `n_cols` activations
    // at `x`, and room at `out`; a row has whole blocks.
    unsafe {
        let x = x.q8(n_cols);
        for r in r0..r1 {
            let row = w.add(r * row_bytes);
            let mut sum = D::zero();
            for b in 0..n_cols / len {
                let block = std::slice::from_raw_parts(row.add(b * bytes), bytes);
                let (codes, scale, offset) =
                    (&mut codes[..len], &mut scale[..n_groups], &mut offset[..n_groups]);
                F::scales(block, scale, offset);
                F::codes(block, codes);
                sum = D::add::<F>(sum, codes, scale, offset, columns_from(x, b * len));
            }
            out.add(r - r0).write(D::finish(sum));
        }
    }
}

/// Bytes of scratch of [`gemm_tile`]: one decoded row.
pub(super) fn gemm_scratch_bytes<F: Format>(n_cols: usize) -> usize {
    n_cols + 2 * (n_cols / F::GROUP) * 4 + 64
}

/// [`GemmTile`](super::GemmTile) for the products of `D`. Each weight row is decoded once into the
/// scratch, and multiplied with every activation row.
///
/// # Safety
/// As [`GemmTile`](super::GemmTile).
#[inline(always)]
pub(super) unsafe fn gemm_tile<F: Format, D: Dot>(
    w: WeightRows,
    n_cols: usize,
    part: Part,
    xs: ActRows,
    scratch: *mut u8,
    out: *mut f32,
) {
    let (w, row_bytes) = (w.values, w.row_bytes);
    let Part { r0, n_rows, .. } = part;
    let (len, bytes) = const { (F::BLOCK.block_len(), F::BLOCK.block_bytes()) };
    let (n_blocks, n_groups) = (n_cols / len, len / F::GROUP);
    // SAFETY: the caller guarantees `gemm_scratch_bytes` at `scratch`, room for a row of codes,
    // scales and offsets; `n_rows` rows of `w` from `r0` on; `xs.n` rows of `n_cols` activations;
    // and `xs.n * TILE_ROWS` values at `out`.
    unsafe {
        let scratch = scratch.add(scratch.align_offset(64));
        scratch.write_bytes(0, n_cols + 2 * (n_cols / F::GROUP) * 4);
        let codes = std::slice::from_raw_parts_mut(scratch.cast::<i8>(), n_cols);
        let scales: *mut f32 = scratch.add(n_cols).cast();
        let (scales, offsets) =
            std::slice::from_raw_parts_mut(scales, 2 * n_blocks * n_groups).split_at_mut(n_blocks * n_groups);
        for r in 0..n_rows {
            let row = w.add((r0 + r) * row_bytes);
            for b in 0..n_blocks {
                let block = std::slice::from_raw_parts(row.add(b * bytes), bytes);
                F::codes(block, codes.get_unchecked_mut(b * len..(b + 1) * len));
                F::scales(
                    block,
                    scales.get_unchecked_mut(b * n_groups..(b + 1) * n_groups),
                    offsets.get_unchecked_mut(b * n_groups..(b + 1) * n_groups),
                );
            }
            for i in 0..xs.n {
                let x = xs.row(i).q8(n_cols);
                let mut sum = D::zero();
                for b in 0..n_blocks {
                    sum = D::add::<F>(
                        sum,
                        codes.get_unchecked(b * len..(b + 1) * len),
                        scales.get_unchecked(b * n_groups..(b + 1) * n_groups),
                        offsets.get_unchecked(b * n_groups..(b + 1) * n_groups),
                        columns_from(x, b * len),
                    );
                }
                out.add(i * super::TILE_ROWS + r).write(D::finish(sum));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::f16_to_f32;

    #[test]
    fn every_f16_converts_exactly() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (f16_to_f32(bits), half::f16::from_bits(bits).to_f32());
            assert!(ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()), "{bits:#06x}");
        }
    }
}
