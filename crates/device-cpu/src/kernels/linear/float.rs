//! Weights that are plain numbers: converted to f32 in registers, multiplied with activations in
//! f32.
//!
//! The loops here are the scalar variant (the compiler vectorises them); `float_avx2`,
//! `float_avx512` and `float_neon` are written by hand. Order of accumulation: lane `l` of
//! [`LANES`] adds columns `l, l + LANES, ...`, with a multiplication and an addition each (fused on
//! AVX2, AVX-512 and NEON). The lanes are added in order at the end. Any number of columns is
//! allowed.

use super::activation::{ActRow, ActRows};
use super::{Part, TILE_ROWS, WeightRows};
use weights::BlockType;

/// Lanes of the portable loops.
const LANES: usize = 16;

/// A type of plain numbers.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))] // GEMM_MIN_ROWS is AVX-512's
pub(super) trait FloatFormat {
    /// Name in profiles: `linear_f16`.
    const NAME: &'static str;
    /// Block type of the numbers.
    const BLOCK: BlockType;
    /// Least number of activation rows for which AVX-512's GEMM beats its GEMV.
    const GEMM_MIN_ROWS: usize = 16;
    /// Bytes of a number.
    const BYTES: usize = Self::BLOCK.block_bytes();

    /// Decodes the number in the first [`Self::BYTES`] bytes.
    fn decode(bytes: &[u8]) -> f32;

    /// Loads eight numbers.
    ///
    /// # Safety
    /// AVX2 and F16C are available; eight numbers are readable at `p`.
    #[cfg(target_arch = "x86_64")]
    unsafe fn load8(p: *const u8) -> std::arch::x86_64::__m256;

    /// Loads the first `n <= 16` of sixteen numbers, and zeros for the others.
    ///
    /// # Safety
    /// AVX-512 is available; `n` numbers are readable at `p`.
    #[cfg(target_arch = "x86_64")]
    unsafe fn load16(p: *const u8, n: usize) -> std::arch::x86_64::__m512;

    /// Loads eight numbers.
    ///
    /// # Safety
    /// Eight numbers are readable at `p`.
    #[cfg(target_arch = "aarch64")]
    unsafe fn load8(p: *const u8) -> [std::arch::aarch64::float32x4_t; 2];
}

/// # Safety
/// As [`Gemv`](super::Gemv).
pub(super) unsafe fn gemv<F: FloatFormat>(
    w: WeightRows,
    n_cols: usize,
    r0: usize,
    r1: usize,
    x: ActRow,
    out: *mut f32,
) {
    let (w, row_bytes) = (w.values, w.row_bytes);
    // SAFETY: the caller guarantees rows `r0..r1` of `n_cols` numbers at `w`, `n_cols` f32
    // activations at `x`, and room at `out`.
    unsafe {
        let x = std::slice::from_raw_parts(x.0.cast::<f32>(), n_cols);
        for r in r0..r1 {
            let row = std::slice::from_raw_parts(w.add(r * row_bytes), n_cols * F::BYTES);
            out.add(r - r0).write(dot(row.chunks_exact(F::BYTES).map(F::decode), x));
        }
    }
}

/// Product of a row of weights with a row of activations.
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
pub(super) fn gemm_scratch_bytes(n_cols: usize) -> usize {
    n_cols * 4 + 64
}

/// # Safety
/// As [`GemmTile`](super::GemmTile).
pub(super) unsafe fn gemm_tile<F: FloatFormat>(
    w: WeightRows,
    n_cols: usize,
    part: Part,
    xs: ActRows,
    scratch: *mut u8,
    out: *mut f32,
) {
    let (w, row_bytes) = (w.values, w.row_bytes);
    let Part { r0, n_rows, .. } = part;
    // SAFETY: the caller guarantees `gemm_scratch_bytes` at `scratch`, room for one row; `n_rows`
    // rows of `w` from `r0` on; `xs.n` rows of `n_cols` f32 activations; and `xs.n * TILE_ROWS`
    // values at `out`.
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
