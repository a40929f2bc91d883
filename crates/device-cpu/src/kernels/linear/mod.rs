//! Matrix kernels: `out[i][r] = sum_k W[r][k] * x[i][k]`, the weights in any block type.
//!
//! # How a product is computed
//!
//! Quantised weights are multiplied with activations quantised to 8 bits ([`activation`]). Every
//! block type decodes to small integers and one affine map for each group of 16 or 32 columns, `w =
//! scale * code + offset`, so that
//! ```text
//! sum_k w x  =  sum_groups  scale * x_scale * (sum_k code * q)  +  offset * x_sum
//! ```
//!
//! The inner sum is exact in 32-bit integers. `x_sum = x_scale * sum_k q` is computed once for an
//! activation row, for all weight rows. Types without an offset use it for the zero point of
//! unsigned codes. F32, F16 and BF16 weights are multiplied with activations in f32.
//!
//! # How the files divide the work
//!
//! Each block type is one file, which implements two traits. `portable::Format` decodes in plain
//! Rust: it serves the scalar reference and reads the file's bytes in place.
//! `interleaved::Interleaved` defines the order of codes and scales in the tiles that vectors read
//! ([`Interleave`]).
//!
//! The loops are shared. `portable` uses the inner product of `scalar`. On x86-64 there are
//! `interleaved_avx2`, `interleaved_avx512` with the products of `tile_avx512`, and
//! `interleaved_amx`. On Arm `interleaved_neon` has the products of `neon` or `interleaved_i8mm`.
//! Plain numbers implement `float::FloatFormat`; BF16 has its own tiles if the processor multiplies
//! it (`bf16_avx512`).
//!
//! Types whose scales are stored apart from the values are in `affine`. The panels of `affine_avx2`
//! are multiplied by `gemm_avx2` and `gemm_words_avx2` (8 bits). The panels of `affine_avx512` and
//! `affine_neon` use the loops of interleaved weights. Types without a kernel are decoded by their
//! codec, in `decoded`. The files `choose_*` pick the kernels of a type for an instruction set.
//! Experiments, kept or rejected, are in `NOTES.md`.
//!
//! # Numerics
//!
//! A `gemv` result depends on its weight row and its activation row only, not on how rows are
//! divided among calls. A `gemm_tile` result does not depend on the number of activation rows, and
//! has the bits of `gemv` if [`LinearKernel::gemm_adds_as_gemv`] is true. A caller that needs the
//! same order for any number of rows uses `gemv` for each row otherwise, or `few_rows`, which has
//! the bits of `gemv`.

// A loop variable here is an index of a lane, a row or a column in several arrays at once.
#![allow(clippy::needless_range_loop)]

pub mod activation;

mod affine;
mod choose_affine;
mod choose_blocks;
mod choose_float;
mod decoded;
mod float;
mod interleaved;
mod make_tile;
mod order;
mod portable;
mod scalar;
mod weight_rows;

#[cfg(target_arch = "x86_64")]
mod affine_avx2;
#[cfg(target_arch = "x86_64")]
mod affine_avx512;
#[cfg(target_arch = "aarch64")]
mod affine_neon;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod bf16_avx512;
#[cfg(target_arch = "x86_64")]
mod float_avx2;
#[cfg(target_arch = "x86_64")]
mod float_avx512;
#[cfg(target_arch = "aarch64")]
mod float_neon;
#[cfg(target_arch = "x86_64")]
mod gemm_avx2;
#[cfg(target_arch = "x86_64")]
mod gemm_words_avx2;
#[cfg(target_arch = "x86_64")]
mod interleaved_amx;
#[cfg(target_arch = "x86_64")]
mod interleaved_avx2;
#[cfg(target_arch = "x86_64")]
mod interleaved_avx512;
#[cfg(target_arch = "aarch64")]
mod interleaved_i8mm;
#[cfg(target_arch = "aarch64")]
mod interleaved_neon;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod panel_avx2;
#[cfg(target_arch = "x86_64")]
mod tile_avx512;

mod bf16;
mod f16;
mod f32;
mod iq4_nl;
mod iq4_xs;
mod k_scales;
mod mxfp4;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;

#[cfg(test)]
mod tests;

pub use activation::{ActRow, ActRows, ActivationKind, bf16_row_bytes, q8_row_bytes};
pub use weight_rows::WeightRows;

use crate::isa::Isa;
use device::Numerics;
use weights::BlockType;

/// Weight rows of one GEMM tile.
pub const TILE_ROWS: usize = 16;

/// Maximum number of activation rows for which a tile is multiplied with all its columns before the
/// next tile. Weights are then one stream, as for one row. With more rows, several tiles share each
/// pass of columns (measured, see `NOTES.md`).
pub const FEW_ROWS: usize = 24;

/// `out[r - r0] = dot(W[r], x)` for the weight rows `r0..r1`.
///
/// Arguments: the weight rows `w`, `n_cols`, `r0`, `r1`, the activation row, `out` of `r1 - r0`
/// values.
///
/// Reads each weight and scale once, and the activation row, which stays in the first-level cache.
///
/// # Safety
/// - The kernel was returned by [`linear_kernel`], which checks that this processor has its
///   [`Isa`].
/// - `w` is of the kernel's type and is valid for reads of `r1` rows of `n_cols` columns, a
///   multiple of the block's length. If the kernel needs interleaved weights, `w` is interleaved
///   and `r0` is a multiple of [`TILE_ROWS`].
/// - `x` holds `n_cols` activations of the kernel's [`ActivationKind`].
/// - `out` is valid for writes of `r1 - r0` values.
pub type Gemv = unsafe fn(w: WeightRows, n_cols: usize, r0: usize, r1: usize, x: ActRow, out: *mut f32);

/// A part of a tile: columns `k..k + n` of `n_rows <= TILE_ROWS` weight rows from `r0` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The first row.
    pub r0: usize,
    /// Rows, at least one.
    pub n_rows: usize,
    /// The first column.
    pub k: usize,
    /// Columns.
    pub n: usize,
}

impl Part {
    /// The first column and the number of columns of each pass of at most `len` columns, in order.
    #[inline(always)]
    fn passes(self, len: usize) -> impl Iterator<Item = (usize, usize)> {
        let end = self.k + self.n;
        (self.k..end).step_by(len).map(move |k| (k, len.min(end - k)))
    }
}

/// `out[i * TILE_ROWS + r] = dot(W[r0 + r], x[i])` for the rows and columns of a part and all
/// activation rows. If the part's first column is not 0, the products are added to `out`.
///
/// Arguments: the weight rows `w`, `n_cols`, the part, the activation rows, `scratch` of the
/// kernel's [`LinearKernel::gemm_scratch_bytes`] (any content), `out` of `xs.n * TILE_ROWS` values.
/// If `n_rows < TILE_ROWS` the remaining columns of `out` are undefined.
///
/// Reads each weight once and the activation rows once for each tile.
///
/// # Safety
/// As [`Gemv`], for the rows `r0..r0 + n_rows`. The part has all columns, or begins at a multiple
/// of the kernel's [`LinearKernel::gemm_pass`] and ends at one or with the row. `scratch` and `out`
/// are valid for writes and overlap nothing else.
pub type GemmTile =
    unsafe fn(w: WeightRows, n_cols: usize, part: Part, xs: ActRows, scratch: *mut u8, out: *mut f32);

/// The kernels of one block type on one instruction set.
#[derive(Clone, Copy, Debug)]
pub struct LinearKernel {
    /// Name in profiles: `linear_q4_1`.
    pub name: &'static str,
    /// Form of the activations.
    pub activation: ActivationKind,
    /// Kernel for one activation row.
    pub gemv: Gemv,
    /// Kernel for many activation rows and a tile of weight rows.
    pub gemm_tile: GemmTile,
    /// Columns of a pass of [`Self::gemm_tile`], if it supports passes; otherwise `usize::MAX`.
    pub gemm_pass: usize,
    /// Variant of [`Self::gemm_tile`] for a few activation rows, with the bits of [`Self::gemv`]
    /// and without scratch. If there is none, [`Self::gemv`] is called for each row.
    pub few_rows: Option<GemmTile>,
    /// Bytes of scratch that [`Self::gemm_tile`] needs for each worker.
    pub gemm_scratch_bytes: fn(n_cols: usize) -> usize,
    /// True if [`Self::gemm_tile`] has the same bits as [`Self::gemv`].
    pub gemm_adds_as_gemv: bool,
    /// Order of the weights that the kernels need; `None` for the file's order.
    pub interleave: Option<&'static Interleave>,
    /// Least number of activation rows for which [`Self::gemm_tile`] beats repeated [`Self::gemv`]
    /// (measured, see `NOTES.md`).
    pub gemm_min_rows: usize,
}

impl LinearKernel {
    /// The kernels restricted to these numerics. Deterministic numerics exclude tiles that
    /// accumulate in another order than the kernel for one row. A row's result would depend on the
    /// number of rows in its step.
    pub fn with(self, numerics: Numerics) -> LinearKernel {
        match numerics {
            Numerics::Deterministic if !self.gemm_adds_as_gemv => {
                LinearKernel { gemm_min_rows: usize::MAX, ..self }
            }
            Numerics::Deterministic | Numerics::Fast => self,
        }
    }

    /// The functions that multiply.
    pub fn multiply(&self) -> Multiply {
        Multiply {
            activation: self.activation,
            gemv: self.gemv,
            gemm_tile: self.gemm_tile,
            gemm_pass: self.gemm_pass,
            few_rows: self.few_rows,
            gemm_min_rows: self.gemm_min_rows,
        }
    }
}

/// Functions of a [`LinearKernel`] that multiply, small enough for a command's parameters.
#[derive(Clone, Copy)]
pub struct Multiply {
    /// [`LinearKernel::activation`]
    pub activation: ActivationKind,
    /// [`LinearKernel::gemv`]
    pub gemv: Gemv,
    /// [`LinearKernel::gemm_pass`]
    pub gemm_pass: usize,
    gemm_tile: GemmTile,
    few_rows: Option<GemmTile>,
    gemm_min_rows: usize,
}

impl Multiply {
    /// Computes the products of a tile with activation rows, `(xs.n, 16)`, all columns at once. The
    /// tile has `n_rows` weight rows from `r0` on.
    ///
    /// # Safety
    /// As [`GemmTile`].
    #[inline(always)]
    pub unsafe fn whole_tile(
        &self,
        w: WeightRows,
        n_cols: usize,
        (r0, n_rows): (usize, usize),
        xs: ActRows,
        scratch: *mut u8,
        out: *mut f32,
    ) {
        let part = Part { r0, n_rows, k: 0, n: n_cols };
        // SAFETY: the caller guarantees what `GemmTile` demands for `part`, which has all columns.
        unsafe {
            if xs.n >= self.gemm_min_rows {
                (self.gemm_tile)(w, n_cols, part, xs, scratch, out);
            } else {
                self.tile(w, n_cols, part, xs, scratch, out);
            }
        }
    }

    /// Computes the products of a tile with activation rows, `(xs.n, 16)`, by the kernel for `xs.n`
    /// rows. The caller calls it in order for the parts that begin at each multiple of
    /// [`Self::gemm_pass`] up to the row's end. A kernel without passes computes all columns at the
    /// first call. Several tiles thus share a pass of columns, and the activation rows stay in the
    /// second-level cache.
    ///
    /// # Safety
    /// As [`GemmTile`]; the part may begin at any pass of any kernel.
    #[inline(always)]
    pub unsafe fn tile(
        &self,
        w: WeightRows,
        n_cols: usize,
        part: Part,
        xs: ActRows,
        scratch: *mut u8,
        out: *mut f32,
    ) {
        // SAFETY: the caller guarantees what `GemmTile` demands; a part that begins elsewhere than
        // the kernel's passes is skipped.
        unsafe {
            if xs.n >= self.gemm_min_rows {
                if part.k.is_multiple_of(self.gemm_pass) {
                    let part = Part { n: part.n.min(self.gemm_pass), ..part };
                    (self.gemm_tile)(w, n_cols, part, xs, scratch, out);
                }
            } else if part.k > 0 {
                // The first call computed all columns.
            } else if let Some(few_rows) = self.few_rows
                && xs.n > 1
            {
                few_rows(w, n_cols, part, xs, scratch, out);
            } else {
                for i in 0..xs.n {
                    let out = out.add(i * TILE_ROWS);
                    (self.gemv)(w, n_cols, part.r0, part.r0 + part.n_rows, xs.row(i), out);
                }
            }
        }
    }
}

/// Makes a tile from `n_rows <= TILE_ROWS` weight rows from `r0` on, as they are in the file. The
/// tile's bytes are aligned to 64.
///
/// # Safety
/// As [`Gemv`].
pub type MakeTile = unsafe fn(w: WeightRows, n_cols: usize, r0: usize, n_rows: usize, out: *mut u8);

/// Weights in the order that kernels need, in tiles of [`TILE_ROWS`] rows: see `interleaved`.
#[derive(Clone, Copy, Debug)]
pub struct Interleave {
    /// Bytes of a tile; a multiple of 64.
    pub tile_bytes: fn(n_cols: usize) -> usize,
    /// Function that makes a tile.
    pub tile: MakeTile,
    /// Function that decodes columns of a row of interleaved weights, as [`WeightRows::decode`].
    pub decode: unsafe fn(w: WeightRows, row: usize, cols: std::ops::Range<usize>, out: &mut [f32]),
}

/// Runs multiply-adds of bytes by the instructions of Arm or AMX, to measure their peak. The work
/// is chains of `n` instructions, or of the sequence that replaces an instruction. Returns the
/// operations of one of the `n`, two for a multiply-add.
///
/// # Safety
/// The instruction set is available.
pub unsafe fn int8_products(isa: Isa, n: usize) -> usize {
    // SAFETY: by the caller, the instruction set is available.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => interleaved_amx::chains(n),
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Amx => 0,
            #[cfg(target_arch = "aarch64")]
            Isa::I8mm => interleaved_i8mm::chains(n),
            #[cfg(target_arch = "aarch64")]
            Isa::Dotprod => neon::chains_of_sdot(n),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => neon::chains_of_mull(n),
            #[cfg(not(target_arch = "aarch64"))]
            Isa::I8mm | Isa::Dotprod | Isa::Neon => 0,
            Isa::Scalar | Isa::Avx2 | Isa::Avx512 | Isa::Avx512Bf16 => 0,
        }
    }
}

/// Kernels for matrices of a block type with rows of `n_cols`. For an instruction set that this
/// processor lacks, these are the scalar kernels.
pub fn linear_kernel(block: BlockType, n_cols: usize, isa: Isa) -> LinearKernel {
    let isa = if isa.is_available() { isa } else { Isa::Scalar };
    match block {
        BlockType::F32 => choose_float::kernel::<f32::F32>(isa),
        BlockType::F16 => choose_float::kernel::<f16::F16>(isa),
        BlockType::BF16 => bf16::kernel(n_cols, isa),
        BlockType::Q4_0 => choose_blocks::kernel::<q4_0::Q4_0>(isa),
        BlockType::Q4_1 => choose_blocks::kernel::<q4_1::Q4_1>(isa),
        BlockType::Q5_0 => choose_blocks::kernel::<q5_0::Q5_0>(isa),
        BlockType::Q5_1 => choose_blocks::kernel::<q5_1::Q5_1>(isa),
        BlockType::Q8_0 => choose_blocks::kernel::<q8_0::Q8_0>(isa),
        BlockType::IQ4_NL => choose_blocks::kernel::<iq4_nl::Iq4Nl>(isa),
        BlockType::MXFP4 => choose_blocks::kernel::<mxfp4::Mxfp4>(isa),
        BlockType::Q2_K => choose_blocks::kernel::<q2_k::Q2K>(isa),
        BlockType::Q3_K => choose_blocks::kernel::<q3_k::Q3K>(isa),
        BlockType::Q4_K => choose_blocks::kernel::<q4_k::Q4K>(isa),
        BlockType::Q5_K => choose_blocks::kernel::<q5_k::Q5K>(isa),
        BlockType::Q6_K => choose_blocks::kernel::<q6_k::Q6K>(isa),
        BlockType::IQ4_XS => choose_blocks::kernel::<iq4_xs::Iq4Xs>(isa),
        BlockType::Affine(affine) => match affine.bits() {
            2 => choose_affine::kernel::<affine::PackedCodes<2>>(isa),
            3 => choose_affine::kernel::<affine::PackedCodes<3>>(isa),
            4 => choose_affine::kernel::<affine::PackedCodes<4>>(isa),
            5 => choose_affine::kernel::<affine::PackedCodes<5>>(isa),
            6 => choose_affine::kernel::<affine::PackedCodes<6>>(isa),
            _ => choose_affine::kernel::<affine::PackedCodes<8>>(isa),
        },
        // Activations are quantised in groups of 32.
        BlockType::I8_ROWS if n_cols.is_multiple_of(32) => choose_affine::kernel::<affine::SignedBytes>(isa),
        BlockType::I8_ROWS
        | BlockType::I16_ROWS
        | BlockType::IQ1_S
        | BlockType::IQ1_M
        | BlockType::IQ2_XXS
        | BlockType::IQ2_XS
        | BlockType::IQ2_S
        | BlockType::IQ3_XXS
        | BlockType::IQ3_S
        | BlockType::TQ1_0
        | BlockType::TQ2_0
        | BlockType::Q1_0
        | BlockType::NVFP4 => decoded::kernel(),
    }
}
