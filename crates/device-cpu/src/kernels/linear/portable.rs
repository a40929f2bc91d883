//! Block decoding in plain Rust, the loops of the scalar variant around it, and the table of all variants.
//!
//! A block is decoded into a small buffer that stays in registers or the first cache; the compiler vectorises the
//! decoding for the instruction set of the function it is inlined into. Only the inner product is written by hand
//! ([`Dot`]). Order of accumulation: blocks in order, within a block groups of 32 columns in order, in as many lanes as
//! the instruction set's vectors have; the offsets' part accumulates apart and is added last.

use super::activation::{ActRow, ActRows, ActivationKind, Q8Row};
use super::interleaved::{Interleaved, Order, decode, tile_bytes};
use super::{GemmTile, Gemv, Interleave, LinearKernel, MakeTile, Part, WeightRows, scalar};
use crate::isa::Isa;
use weights::BlockType;

/// A quantised block type: `w = scale * code + offset`, one scale (and offset) for each `GROUP` columns.
pub(super) trait Format {
    /// `linear_q4_0`
    const NAME: &'static str;
    /// The type.
    const BLOCK: BlockType;
    /// Columns of one scale: 16 or 32.
    const GROUP: usize;
    /// Whether there is an offset. Then codes are in `0..=127`; without, they are signed.
    const HAS_OFFSET: bool;
    /// The least number that makes every code unsigned when added; 0 with an offset. Vector variants work on unsigned
    /// codes.
    const ZERO: u8;
    /// The largest unsigned code.
    const MAX_CODE: u8;

    /// The scales (and offsets) of a block of [`BlockType::block_bytes`] bytes, one for each group.
    fn scales(block: &[u8], scale: &mut [f32], offset: &mut [f32]);

    /// The codes of a block, [`BlockType::block_len`] of them.
    fn codes(block: &[u8], codes: &mut [i8]);
}

/// How decoded columns are grouped: what an inner product needs to know of a type.
pub(super) trait Groups {
    /// As [`Format::GROUP`].
    const GROUP: usize;
    /// As [`Format::HAS_OFFSET`].
    const HAS_OFFSET: bool;
}

impl<F: Format> Groups for F {
    const GROUP: usize = F::GROUP;
    const HAS_OFFSET: bool = F::HAS_OFFSET;
}

/// The inner product of an instruction set.
pub(super) trait Dot {
    /// Partial sums.
    type Sum: Copy;

    /// Zeros.
    ///
    /// # Safety
    /// The instruction set is available.
    unsafe fn zero() -> Self::Sum;

    /// Add the product of a decoded block, whole groups of 32 columns, with the activations of its columns.
    ///
    /// # Safety
    /// The instruction set is available; the slices are those of a block; `x` has a block's columns.
    unsafe fn add<F: Groups>(
        sum: Self::Sum,
        codes: &[i8],
        scale: &[f32],
        offset: &[f32],
        x: Q8Row,
    ) -> Self::Sum;

    /// The sum of all lanes.
    ///
    /// # Safety
    /// The instruction set is available.
    unsafe fn finish(sum: Self::Sum) -> f32;
}

/// An f16 in f32, without branches, so that it vectorises.
///
/// The bits moved up by 13 are an f32 whose exponent is 112 too small, subnormals included, so one multiplication
/// is exact; infinities and NaN need the exponent's remaining bits.
#[inline(always)]
pub(super) fn f16_to_f32(bits: u16) -> f32 {
    let magnitude = u32::from(bits & 0x7fff) << 13;
    let special = if magnitude >= 0x0f80_0000 { 0x7f80_0000 } else { 0 };
    let value = f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23);
    f32::from_bits(value.to_bits() | special | (u32::from(bits & 0x8000) << 16))
}

/// The f16 at byte `at` of a block.
#[inline(always)]
pub(super) fn f16_at(block: &[u8], at: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([block[at], block[at + 1]]))
}

/// A row's arrays from column `k` on.
///
/// # Safety
/// `k` is a multiple of 32 within the row.
#[inline(always)]
pub(super) unsafe fn columns_from(x: Q8Row, k: usize) -> Q8Row {
    // SAFETY: by the caller, `k` is a multiple of 32 within the row.
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

/// [`Gemv`] around a [`Dot`].
///
/// # Safety
/// As [`Gemv`].
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
    // SAFETY: by the caller, `w` has rows `r0..r1` of `n_cols` columns, `x` as many activations,
    // and `out` room for the products; blocks end with a row.
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

/// [`GemmTile`] around a [`Dot`]: each weight row is decoded once into the scratch and meets every activation row.
///
/// # Safety
/// As [`GemmTile`].
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
    // SAFETY: the scratch has room for the row; all else as in `gemv`.
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

/// How a type is interleaved, given the function that makes a tile.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const fn tiles<F: Interleaved, O: Order>(tile: MakeTile) -> Interleave {
    Interleave { tile_bytes: tile_bytes::<F>, tile, decode: decode::<F, O> }
}

/// The kernels on Arm that multiply by `M`.
#[cfg(target_arch = "aarch64")]
fn on_arm<F: Interleaved, M: super::neon::Multiply>(
    as_stored: impl Fn(Gemv, GemmTile) -> LinearKernel,
) -> LinearKernel {
    use super::interleaved_neon::{PASS, gemm_tile, gemv, scratch_bytes};
    LinearKernel {
        gemm_pass: PASS,
        gemm_scratch_bytes: scratch_bytes,
        interleave: Some(const { &tiles::<F, M::Order>(super::make_tile::interleave::<F, M::Order>) }),
        ..as_stored(gemv::<F, M>, gemm_tile::<F, M>)
    }
}

/// The kernels of a type: interleaved weights where vectors want them, else the loops in this file.
pub(super) fn kernel<F: Interleaved>(isa: Isa) -> LinearKernel {
    let as_stored = |gemv: Gemv, gemm_tile: GemmTile| LinearKernel {
        name: F::NAME,
        activation: ActivationKind::Q8,
        gemv,
        gemm_tile,
        gemm_pass: usize::MAX,
        few_rows: None,
        gemm_scratch_bytes: gemm_scratch_bytes::<F>,
        gemm_min_rows: 2,
        gemm_adds_as_gemv: true,
        interleave: None,
    };
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => {
            use super::interleaved::Fours;
            use super::interleaved_avx2::interleave;
            use super::interleaved_avx512::{PASS, gemm_tile, gemv, scratch_bytes};
            let vnni = LinearKernel {
                gemm_pass: PASS,
                gemm_scratch_bytes: scratch_bytes,
                interleave: Some(const { &tiles::<F, Fours>(interleave::<F>) }),
                ..as_stored(gemv::<F, false>, gemm_tile::<F>)
            };
            if isa != Isa::Amx {
                return vnni;
            }
            // Processors with AMX are Intel's, which read a single row's weights faster when they are prefetched.
            let vnni = LinearKernel { gemv: gemv::<F, true>, ..vnni };
            // Groups of 16 need twice the products and sums for as many columns, and are slower by AMX than by VNNI.
            if F::GROUP == 16 {
                return vnni;
            }
            use super::interleaved_amx as amx;
            LinearKernel { gemm_tile: amx::gemm_tile::<F>, gemm_scratch_bytes: amx::scratch_bytes, ..vnni }
        }
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => {
            use super::interleaved::Fours;
            use super::interleaved_avx2::{PASS, gemm_tile, gemv, interleave, scratch_bytes};
            LinearKernel {
                gemm_pass: PASS,
                gemm_scratch_bytes: scratch_bytes,
                interleave: Some(const { &tiles::<F, Fours>(interleave::<F>) }),
                ..as_stored(gemv::<F>, gemm_tile::<F>)
            }
        }
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => on_arm::<F, super::neon::Mull>(as_stored),
        #[cfg(target_arch = "aarch64")]
        Isa::Dotprod => on_arm::<F, super::neon::Sdot>(as_stored),
        #[cfg(target_arch = "aarch64")]
        Isa::I8mm => on_arm::<F, super::interleaved_i8mm::Smmla>(as_stored),
        _ => as_stored(gemv::<F, scalar::Scalar>, gemm_tile::<F, scalar::Scalar>),
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
