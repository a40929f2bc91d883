//! AVX2 products of plain numbers.
//!
//! GEMV: four registers of 8 lanes take 32 columns in turn, fused multiply-adds; the registers are added pairwise, then
//! the lanes, then the last `n_cols % 8` columns one by one.
//!
//! GEMM: as in `float_avx512`, with panels of 8 rows and [`PASS`] columns and [`COLS`] activation rows at a time; columns
//! follow in order, so the order differs from GEMV's.

use super::activation::{ActRow, ActRows};
use super::avx2::horizontal_sum;
use super::float::{FloatFormat, crowds};
use super::gemm_avx2::transpose;
use super::gemm_avx512::row_addresses;
use super::{TILE_ROWS, WeightRows};
use std::arch::x86_64::*;

/// Columns of a panel, 16 KB of f32; a multiple of 8.
const PASS: usize = 512;

/// Activation rows whose accumulators fit the registers.
const COLS: usize = 12;

/// Bytes from one copied activation row to the next, an odd number of cache lines.
const COPY_STRIDE: usize = PASS * 4 + 64;

/// Bytes of scratch; the same for any number of columns.
pub(super) fn scratch_bytes(_n_cols: usize) -> usize {
    64 + PASS * 8 * 4 + COLS * COPY_STRIDE
}

/// # Safety
/// As [`super::Gemv`]; AVX2, FMA and F16C are available.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn gemv<F: FloatFormat>(
    w: WeightRows,
    n_cols: usize,
    r0: usize,
    r1: usize,
    x: ActRow,
    out: *mut f32,
) {
    let (w, row_bytes) = (w.values, w.row_bytes);
    for r in r0..r1 {
        // SAFETY: the caller's promises.
        unsafe { out.add(r - r0).write(dot::<F>(w.add(r * row_bytes), x.0.cast(), n_cols)) };
    }
}

/// # Safety
/// AVX2 is available; `w` and `x` have `n_cols` numbers.
#[inline(always)]
unsafe fn dot<F: FloatFormat>(w: *const u8, x: *const f32, n_cols: usize) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [_mm256_setzero_ps(); 4];
        let full = n_cols / 32 * 32;
        for k in (0..full).step_by(32) {
            for (i, sum) in sums.iter_mut().enumerate() {
                let k = k + i * 8;
                *sum = _mm256_fmadd_ps(F::load8(w.add(k * F::BYTES)), _mm256_loadu_ps(x.add(k)), *sum);
            }
        }
        let eights = n_cols / 8 * 8;
        for k in (full..eights).step_by(8) {
            sums[0] = _mm256_fmadd_ps(F::load8(w.add(k * F::BYTES)), _mm256_loadu_ps(x.add(k)), sums[0]);
        }
        let sum = _mm256_add_ps(_mm256_add_ps(sums[0], sums[1]), _mm256_add_ps(sums[2], sums[3]));
        let mut sum = horizontal_sum(sum);
        for k in eights..n_cols {
            sum += F::decode(std::slice::from_raw_parts(w.add(k * F::BYTES), F::BYTES)) * *x.add(k);
        }
        sum
    }
}

/// # Safety
/// As [`super::GemmTile`]; AVX2, FMA and F16C are available.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn gemm_tile<F: FloatFormat>(
    w: WeightRows,
    n_cols: usize,
    r0: usize,
    n_rows: usize,
    xs: ActRows,
    scratch: *mut u8,
    out: *mut f32,
) {
    let (w, row_bytes) = (w.values, w.row_bytes);
    // SAFETY: passes over columns that the rows have; the scratch is as large as promised.
    unsafe {
        let panel: *mut f32 = scratch.add(scratch.align_offset(64)).cast();
        let rows = row_addresses(w, row_bytes, r0, n_rows);
        for half in 0..2 {
            let mut k = 0;
            while k < n_cols {
                let n = PASS.min(n_cols - k);
                for c in (0..n).step_by(8) {
                    let mut registers = [_mm256_setzero_si256(); 8];
                    for (r, register) in registers.iter_mut().enumerate() {
                        let p = rows[half * 8 + r].add((k + c) * F::BYTES);
                        *register = _mm256_castps_si256(load_some::<F>(p, n - c));
                    }
                    for (i, column) in transpose(registers).into_iter().enumerate() {
                        _mm256_store_si256(panel.add((c + i) * 8).cast(), column);
                    }
                }
                multiply(panel, k, n, xs, panel.add(PASS * 8), out.add(half * 8));
                k += n;
            }
        }
    }
}

/// Eight numbers, or the first `n` of them and zeros.
///
/// # Safety
/// AVX2 and F16C are available; the numbers are readable.
#[inline(always)]
unsafe fn load_some<F: FloatFormat>(p: *const u8, n: usize) -> __m256 {
    // SAFETY: the caller's promise; a copy of the last few is read whole.
    unsafe {
        if n >= 8 {
            return F::load8(p);
        }
        let mut last = [0u8; 32];
        last.as_mut_ptr().copy_from_nonoverlapping(p, n * F::BYTES);
        F::load8(last.as_ptr())
    }
}

/// Multiply the panel (columns `k..k + n`) with all activation rows; add to `out`, or set it if `k` is 0.
///
/// # Safety
/// The panel is filled; the activation rows have `k + n` columns; `copy` has room for `COLS` of them; `out` has
/// `xs.n` rows, `TILE_ROWS` values apart, of 8 values.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn multiply(panel: *const f32, k: usize, n: usize, xs: ActRows, copy: *mut f32, out: *mut f32) {
    // SAFETY: activation rows `i..i + COLS` exist.
    unsafe {
        let mut i = 0;
        while i < xs.n {
            let (mut x, mut stride) = (xs.row(i).0.cast::<f32>().add(k), xs.stride);
            let out = out.add(i * TILE_ROWS);
            if crowds(stride) && xs.n - i > 4 {
                for c in 0..COLS.min(xs.n - i) {
                    let to = copy.byte_add(c * COPY_STRIDE);
                    to.copy_from_nonoverlapping(x.byte_add(c * stride), n);
                }
                (x, stride) = (copy, COPY_STRIDE);
            }
            let c = match xs.n - i {
                COLS.. => {
                    columns::<COLS>(panel, n, x, stride, k == 0, out);
                    COLS
                }
                6.. => {
                    columns::<6>(panel, n, x, stride, k == 0, out);
                    6
                }
                3.. => {
                    columns::<3>(panel, n, x, stride, k == 0, out);
                    3
                }
                _ => {
                    columns::<1>(panel, n, x, stride, k == 0, out);
                    1
                }
            };
            i += c;
        }
    }
}

/// The panel times `C` activation rows.
///
/// # Safety
/// As [`multiply`]; `x` is the first of `C` rows, `stride` bytes apart.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn columns<const C: usize>(
    panel: *const f32,
    n: usize,
    x: *const f32,
    stride: usize,
    first: bool,
    out: *mut f32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [_mm256_setzero_ps(); C];
        if !first {
            for (c, sum) in sums.iter_mut().enumerate() {
                *sum = _mm256_loadu_ps(out.add(c * TILE_ROWS));
            }
        }
        for k in 0..n {
            let weights = _mm256_load_ps(panel.add(k * 8));
            for (c, sum) in sums.iter_mut().enumerate() {
                *sum = _mm256_fmadd_ps(weights, _mm256_broadcast_ss(&*x.byte_add(c * stride).add(k)), *sum);
            }
        }
        for (c, sum) in sums.into_iter().enumerate() {
            _mm256_storeu_ps(out.add(c * TILE_ROWS), sum);
        }
    }
}
