//! Weights that are plain numbers: converted to f32 in registers, multiplied with activations in f32.
//!
//! The loops here serve the scalar variant (the compiler vectorises them); `float_avx2`, `float_avx512` and `float_neon`
//! are written by hand. Order of accumulation: [`LANES`] lanes, lane `l` taking columns `l, l + LANES, ...`, a multiply
//! and an add each (fused on AVX2, AVX-512 and NEON); the lanes are added in order at the end. Any number of columns.

use super::activation::{ActRow, ActRows, ActivationKind};
use super::{GemmTile, Gemv, LinearKernel, Part, TILE_ROWS, WeightRows};
use crate::isa::Isa;
use weights::BlockType;

/// Lanes of the portable loops.
const LANES: usize = 16;

/// A type of plain numbers.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))] // GEMM_MIN_ROWS is AVX-512's
pub(super) trait FloatFormat {
    /// `linear_f16`
    const NAME: &'static str;
    /// The type.
    const BLOCK: BlockType;
    /// From how many activation rows on AVX-512's GEMM beats its GEMV.
    const GEMM_MIN_ROWS: usize = 16;
    /// Bytes of a number.
    const BYTES: usize = Self::BLOCK.block_bytes();

    /// The number in the first [`Self::BYTES`] bytes.
    fn decode(bytes: &[u8]) -> f32;

    /// Eight numbers.
    ///
    /// # Safety
    /// AVX2 and F16C are available; the numbers are readable.
    #[cfg(target_arch = "x86_64")]
    unsafe fn load8(p: *const u8) -> std::arch::x86_64::__m256;

    /// The first `n <= 16` of sixteen numbers; zeros after.
    ///
    /// # Safety
    /// AVX-512 is available; the `n` numbers are readable.
    #[cfg(target_arch = "x86_64")]
    unsafe fn load16(p: *const u8, n: usize) -> std::arch::x86_64::__m512;

    /// Eight numbers.
    ///
    /// # Safety
    /// The numbers are readable.
    #[cfg(target_arch = "aarch64")]
    unsafe fn load8(p: *const u8) -> [std::arch::aarch64::float32x4_t; 2];
}

/// # Safety
/// As [`Gemv`].
unsafe fn gemv<F: FloatFormat>(w: WeightRows, n_cols: usize, r0: usize, r1: usize, x: ActRow, out: *mut f32) {
    let (w, row_bytes) = (w.values, w.row_bytes);
    // SAFETY: by the caller, `w` has rows `r0..r1` of `n_cols` columns, `x` as many activations,
    // and `out` room for the products.
    unsafe {
        let x = std::slice::from_raw_parts(x.0.cast::<f32>(), n_cols);
        for r in r0..r1 {
            let row = std::slice::from_raw_parts(w.add(r * row_bytes), n_cols * F::BYTES);
            out.add(r - r0).write(dot(row.chunks_exact(F::BYTES).map(F::decode), x));
        }
    }
}

/// The product of a row of weights with a row of activations.
#[inline(always)]
pub(super) fn dot(weights: impl Iterator<Item = f32>, x: &[f32]) -> f32 {
    let mut sums = [0f32; LANES];
    let mut buffer = [0f32; LANES];
    let mut weights = weights;
    for x in x.chunks(LANES) {
        for (value, w) in buffer.iter_mut().zip(weights.by_ref().take(x.len())) {
            *value = w;
        }
        for ((sum, w), x) in sums.iter_mut().zip(buffer).zip(x) {
            *sum += w * x;
        }
    }
    sums.iter().sum()
}

/// Bytes of scratch: one row in f32.
fn gemm_scratch_bytes(n_cols: usize) -> usize {
    n_cols * 4 + 64
}

/// # Safety
/// As [`GemmTile`].
unsafe fn gemm_tile<F: FloatFormat>(
    w: WeightRows,
    n_cols: usize,
    part: Part,
    xs: ActRows,
    scratch: *mut u8,
    out: *mut f32,
) {
    let (w, row_bytes) = (w.values, w.row_bytes);
    let Part { r0, n_rows, .. } = part;
    // SAFETY: the scratch has room for a row; all else as in `gemv`.
    unsafe {
        let weights: *mut f32 = scratch.add(scratch.align_offset(64)).cast();
        for r in 0..n_rows {
            let row = std::slice::from_raw_parts(w.add((r0 + r) * row_bytes), n_cols * F::BYTES);
            for (k, bytes) in row.chunks_exact(F::BYTES).enumerate() {
                weights.add(k).write(F::decode(bytes));
            }
            let weights = std::slice::from_raw_parts(weights, n_cols);
            for i in 0..xs.n {
                let x = std::slice::from_raw_parts(xs.row(i).0.cast::<f32>(), n_cols);
                out.add(i * TILE_ROWS + r).write(dot(weights.iter().copied(), x));
            }
        }
    }
}

/// The kernels of a type.
pub(super) fn kernel<F: FloatFormat>(isa: Isa) -> LinearKernel {
    let scalar = LinearKernel {
        name: F::NAME,
        activation: ActivationKind::F32,
        gemv: gemv::<F>,
        gemm_tile: gemm_tile::<F>,
        gemm_pass: usize::MAX,
        few_rows: None,
        gemm_scratch_bytes,
        gemm_adds_as_gemv: false,
        interleave: None,
        gemm_min_rows: 2,
    };
    match isa.vectors() {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => LinearKernel {
            gemv: super::float_avx2::gemv::<F>,
            gemm_tile: super::float_avx2::gemm_tile::<F>,
            gemm_pass: super::float_avx2::PASS,
            few_rows: Some(super::float_avx2::few_rows::<F>),
            gemm_scratch_bytes: super::float_avx2::scratch_bytes,
            gemm_min_rows: 13,
            ..scalar
        },
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => LinearKernel {
            gemv: super::float_avx512::gemv::<F>,
            gemm_tile: super::float_avx512::gemm_tile::<F>,
            gemm_pass: super::float_avx512::PASS,
            gemm_scratch_bytes: super::float_avx512::scratch_bytes,
            gemm_min_rows: F::GEMM_MIN_ROWS,
            ..scalar
        },
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => LinearKernel {
            gemv: super::float_neon::gemv::<F>,
            gemm_tile: super::float_neon::gemm_tile::<F>,
            gemm_pass: super::float_neon::PASS,
            few_rows: Some(super::float_neon::few_rows::<F>),
            gemm_scratch_bytes: super::float_neon::scratch_bytes,
            gemm_min_rows: 13,
            ..scalar
        },
        _ => scalar,
    }
}

/// The function pointers have the types that [`LinearKernel`] names.
const _: (Gemv, GemmTile) = (gemv::<super::f32::F32>, gemm_tile::<super::f32::F32>);
