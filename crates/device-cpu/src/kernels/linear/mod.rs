//! Matrix kernels: `out[i][r] = sum_k W[r][k] * x[i][k]`, the weights in any block type.
//!
//! # How a product is computed
//!
//! Quantised weights meet activations quantised to 8 bits ([`activation`]). Every block type decodes to small integers
//! and one affine map for each group of 16 or 32 columns, `w = scale * code + offset`, so that
//!
//! ```text
//! sum_k w x  =  sum_groups  scale * x_scale * (sum_k code * q)  +  offset * x_sum
//! ```
//!
//! The inner sum is exact in 32-bit integers; `x_sum = x_scale * sum_k q` is computed once for an activation row,
//! whatever the number of weight rows. Types without an offset use it for the zero point of unsigned codes. F32, F16
//! and BF16 weights meet activations in f32.
//!
//! # How the files divide the work
//!
//! A block type is one file, which implements `portable::Format` (decoding in plain Rust, which serves the scalar
//! reference and reads the weights where they lie in the file) and `interleaved::Interleaved` (how its codes
//! and scales stand in the tiles that vectors read, [`Interleave`]). The loops are shared: `portable` with the
//! inner product of `scalar`; `interleaved_avx2`; `interleaved_avx512`, which `tile_avx512` multiplies, and `interleaved_amx`; on Arm
//! `interleaved_neon`, which multiplies as `neon` or `interleaved_i8mm` do. Numbers that need no decoding implement `float::FloatFormat`; BF16 has tiles of its own where the
//! processor multiplies it (`bf16_avx512`). Types whose scales lie apart from the
//! values are in `affine`, with `affine_avx2`, whose panels `gemm_avx2` and `gemm_words_avx2` (8 bits) multiply, and `affine_avx512` and
//! `affine_neon`, whose panels go through the loops of interleaved weights; whatever has no kernel of its own runs through its codec, in `decoded`. What was tried, kept and lost stands in `NOTES.md`.
//!
//! # Numerics
//!
//! A `gemv` result is a function of its weight row and its activation row: how the rows were divided among calls does
//! not matter. A `gemm_tile` result does not depend on how many activation rows there are, and has the same bits as
//! `gemv`'s where [`LinearKernel::gemm_adds_as_gemv`] says so; who needs one order for one row and for many uses `gemv`
//! for each elsewhere, or `few_rows`, which gives the bits of `gemv`.

// A loop variable here numbers a lane, a row or a column of several arrays at once.
#![allow(clippy::needless_range_loop)]

pub mod activation;

mod affine;
mod decoded;
mod float;
mod interleaved;
mod make_tile;
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

/// Up to how many activation rows a tile is multiplied with all its columns before the next, so that weights are one stream, as
/// for one row. With more, several tiles go through the columns together (measured, see `NOTES.md`).
pub const FEW_ROWS: usize = 24;

/// `out[r - r0] = dot(W[r], x)` for the weight rows `r0..r1`.
///
/// Arguments: the weight rows `w`, `n_cols`, `r0`, `r1`, the activation row, `out` of `r1 - r0` values.
///
/// Reads each weight and scale once, and the activation row, which stays in the first cache.
///
/// # Safety
/// - The kernel was given for an [`Isa`] that this processor runs ([`linear_kernel`] sees to it).
/// - `w` is of the kernel's type and is valid for reads of `r1` rows of `n_cols` columns, a multiple of the block's length.
///   Where the kernel interleaves, it is interleaved, and `r0` is a multiple of [`TILE_ROWS`].
/// - `x` holds `n_cols` activations of the kernel's [`ActivationKind`].
/// - `out` is valid for writes of `r1 - r0` values.
pub type Gemv = unsafe fn(w: WeightRows, n_cols: usize, r0: usize, r1: usize, x: ActRow, out: *mut f32);

/// A part of a tile: `n_rows <= TILE_ROWS` weight rows from `r0` on, and of these `n` columns from `k` on.
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

/// `out[i * TILE_ROWS + r] = dot(W[r0 + r], x[i])` for the rows and columns of a part and all activation rows; added to what is
/// there if the part's first column is not 0.
///
/// Arguments: the weight rows `w`, `n_cols`, the part, the activation rows, `scratch` of the kernel's [`LinearKernel::gemm_scratch_bytes`] (any content), `out` of
/// `xs.n * TILE_ROWS` values. Where `n_rows < TILE_ROWS` the remaining columns of `out` are undefined.
///
/// Reads each weight once and the activation rows once for each tile.
///
/// # Safety
/// As [`Gemv`], for the rows `r0..r0 + n_rows`; the part is of all columns, or begins at a multiple of the kernel's
/// [`LinearKernel::gemm_pass`] and ends at one or with the row; `scratch` and `out` are valid for writes and overlap nothing else.
pub type GemmTile =
    unsafe fn(w: WeightRows, n_cols: usize, part: Part, xs: ActRows, scratch: *mut u8, out: *mut f32);

/// The kernels of one block type on one instruction set.
#[derive(Clone, Copy, Debug)]
pub struct LinearKernel {
    /// For profiles: `linear_q4_1`.
    pub name: &'static str,
    /// The form of the activations.
    pub activation: ActivationKind,
    /// One activation row.
    pub gemv: Gemv,
    /// Many activation rows, a tile of weight rows.
    pub gemm_tile: GemmTile,
    /// Columns of a pass of [`Self::gemm_tile`], where it can begin with one; else `usize::MAX`.
    pub gemm_pass: usize,
    /// As [`Self::gemm_tile`] for a few activation rows, with the bits of [`Self::gemv`] and without scratch; where there is
    /// none, [`Self::gemv`] serves each.
    pub few_rows: Option<GemmTile>,
    /// Bytes of scratch that [`Self::gemm_tile`] needs, one for each worker.
    pub gemm_scratch_bytes: fn(n_cols: usize) -> usize,
    /// Whether [`Self::gemm_tile`] gives the same bits as [`Self::gemv`].
    pub gemm_adds_as_gemv: bool,
    /// How the kernels want the weights; `None`: as they lie in the file.
    pub interleave: Option<&'static Interleave>,
    /// From how many activation rows on [`Self::gemm_tile`] beats [`Self::gemv`] for each (measured, see `NOTES.md`).
    pub gemm_min_rows: usize,
}

impl LinearKernel {
    /// The same for such numerics. Where they are to be deterministic, no tiles that add in another order than the kernel for
    /// one row: they would make a row's result depend on how many share its step.
    pub fn with(self, numerics: Numerics) -> LinearKernel {
        match numerics {
            Numerics::Deterministic if !self.gemm_adds_as_gemv => {
                LinearKernel { gemm_min_rows: usize::MAX, ..self }
            }
            _ => self,
        }
    }

    /// What multiplies.
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

/// What multiplies, of a [`LinearKernel`]: as much of it as a command has room for.
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
    /// The products of a tile with activation rows, `(xs.n, 16)`, all columns at once. The tile has `n_rows` weight rows from `r0` on.
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
        // SAFETY: by the caller, `w` has the tile's rows, `xs` the part's columns, `scratch` and `out` have
        // room and overlap nothing else, and the instruction set is available.
        unsafe {
            if xs.n >= self.gemm_min_rows {
                (self.gemm_tile)(w, n_cols, part, xs, scratch, out);
            } else {
                self.tile(w, n_cols, part, xs, scratch, out);
            }
        }
    }

    /// The products of a tile with activation rows, `(xs.n, 16)`, by the kernel for so many rows. Who calls it for the parts that
    /// begin at each multiple of [`Self::gemm_pass`], in order, and end with the row, has all; a kernel that has no passes
    /// does all at the first. So several tiles can go through the columns together, and the rows stay in the second cache.
    ///
    /// # Safety
    /// As [`GemmTile`], of which the part may begin at any pass of any kernel.
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
        // SAFETY: by the caller, `w` has the tile's rows, `xs` the part's columns, `scratch` and `out` have
        // room and overlap nothing else, and the instruction set is available.
        unsafe {
            if xs.n >= self.gemm_min_rows {
                if part.k.is_multiple_of(self.gemm_pass) {
                    let part = Part { n: part.n.min(self.gemm_pass), ..part };
                    (self.gemm_tile)(w, n_cols, part, xs, scratch, out);
                }
            } else if part.k > 0 {
                // All columns were done at once.
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

/// Make a tile: from the weight rows as they lie in the file, `n_cols`, `r0`, `n_rows <= TILE_ROWS`, into its bytes, aligned to
/// 64.
///
/// # Safety
/// As [`Gemv`].
pub type MakeTile = unsafe fn(w: WeightRows, n_cols: usize, r0: usize, n_rows: usize, out: *mut u8);

/// Weights in an order of the kernels' own, in tiles of [`TILE_ROWS`] rows: see `interleaved`.
#[derive(Clone, Copy, Debug)]
pub struct Interleave {
    /// Bytes of a tile; a multiple of 64.
    pub tile_bytes: fn(n_cols: usize) -> usize,
    /// Makes a tile.
    pub tile: MakeTile,
    /// The values of columns of a row of interleaved weights, as [`WeightRows::decode`].
    pub decode: unsafe fn(w: WeightRows, row: usize, cols: std::ops::Range<usize>, out: &mut [f32]),
}

/// Multiply-adds of bytes by the instructions of an instruction set of Arm, or of AMX, for its peak: chains of `n` instructions (or of
/// what takes an instruction's place). Gives the operations, two for a multiply-add, of one of the `n`.
///
/// # Safety
/// The instruction set is available.
pub unsafe fn int8_products(isa: Isa, n: usize) -> usize {
    // SAFETY: by the caller, the instruction set is available.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => interleaved_amx::chains(n),
            #[cfg(target_arch = "aarch64")]
            Isa::I8mm => interleaved_i8mm::chains(n),
            #[cfg(target_arch = "aarch64")]
            Isa::Dotprod => neon::chains_of_sdot(n),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => neon::chains_of_mull(n),
            _ => 0,
        }
    }
}

/// The kernels for matrices of a block type with rows of `n_cols`. An instruction set that this processor lacks gives the
/// scalar ones.
pub fn linear_kernel(block: BlockType, n_cols: usize, isa: Isa) -> LinearKernel {
    let isa = if isa.is_available() { isa } else { Isa::Scalar };
    match block {
        BlockType::F32 => float::kernel::<f32::F32>(isa),
        BlockType::F16 => float::kernel::<f16::F16>(isa),
        BlockType::BF16 => bf16::kernel(n_cols, isa),
        BlockType::Q4_0 => portable::kernel::<q4_0::Q4_0>(isa),
        BlockType::Q4_1 => portable::kernel::<q4_1::Q4_1>(isa),
        BlockType::Q5_0 => portable::kernel::<q5_0::Q5_0>(isa),
        BlockType::Q5_1 => portable::kernel::<q5_1::Q5_1>(isa),
        BlockType::Q8_0 => portable::kernel::<q8_0::Q8_0>(isa),
        BlockType::IQ4_NL => portable::kernel::<iq4_nl::Iq4Nl>(isa),
        BlockType::MXFP4 => portable::kernel::<mxfp4::Mxfp4>(isa),
        BlockType::Q2_K => portable::kernel::<q2_k::Q2K>(isa),
        BlockType::Q3_K => portable::kernel::<q3_k::Q3K>(isa),
        BlockType::Q4_K => portable::kernel::<q4_k::Q4K>(isa),
        BlockType::Q5_K => portable::kernel::<q5_k::Q5K>(isa),
        BlockType::Q6_K => portable::kernel::<q6_k::Q6K>(isa),
        BlockType::IQ4_XS => portable::kernel::<iq4_xs::Iq4Xs>(isa),
        BlockType::Affine(affine) => match affine.bits() {
            2 => affine::kernel::<affine::Packed<2>>(isa),
            3 => affine::kernel::<affine::Packed<3>>(isa),
            4 => affine::kernel::<affine::Packed<4>>(isa),
            5 => affine::kernel::<affine::Packed<5>>(isa),
            6 => affine::kernel::<affine::Packed<6>>(isa),
            _ => affine::kernel::<affine::Packed<8>>(isa),
        },
        // Activations are quantised in groups of 32.
        BlockType::I8_ROWS if n_cols.is_multiple_of(32) => affine::kernel::<affine::SignedBytes>(isa),
        _ => decoded::kernel(),
    }
}
