//! AVX-512 products of plain numbers.
//!
//! GEMV: weight rows are read one after the other, as they are in memory. Two accumulators
//! alternate every 16 columns; they are added, then the lanes, 8 apart first.
//!
//! GEMM: [`PASS`] columns of 16 weight rows are converted and transposed to f32, 16 rows a
//! register. They are multiplied with up to [`X_ROWS`] activation rows at a time; the multiply-add
//! broadcasts each activation. A lane is a weight row. Columns follow in order, one fused
//! multiply-add each, so the order differs from GEMV's.

use super::activation::{ActRow, ActRows};
use super::avx512::{horizontal_sum, transpose};
use super::float::FloatFormat;
use super::weight_rows::row_addresses;
use super::{Part, TILE_ROWS, WeightRows};
use crate::prefetch::{prefetch, prefetch_stream};
use std::arch::x86_64::*;

/// Columns of a panel, 32 KB of f32; a multiple of 16.
pub(super) const PASS: usize = 512;

/// Activation rows whose accumulators fit the registers.
const X_ROWS: usize = 16;

/// Bytes from one copied activation row to the next, an odd number of cache lines.
const COPY_STRIDE: usize = PASS * 4 + 64;

/// Bytes of scratch; the same for any number of columns.
pub(super) fn scratch_bytes(_n_cols: usize) -> usize {
    64 + PASS * TILE_ROWS * 4 + X_ROWS * COPY_STRIDE
}

/// # Safety
/// As [`super::Gemv`]; AVX-512 is available.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn gemv<F: FloatFormat>(
    w: WeightRows,
    n_cols: usize,
    r0: usize,
    r1: usize,
    x: ActRow,
    out: *mut f32,
) {
    let x: *const f32 = x.0.cast();
    // SAFETY: the caller guarantees rows `r0..r1` of `n_cols` numbers, `n_cols` f32 activations at
    // `x`, room at `out`, and the instruction set. The last columns are loaded under a mask.
    unsafe {
        let full = n_cols / 32 * 32;
        for r in r0..r1 {
            let row = w.values.add(r * w.row_bytes);
            let mut sums = [_mm512_setzero_ps(); 2];
            for k in (0..full).step_by(32) {
                prefetch_stream(row, k * F::BYTES, 32 * F::BYTES);
                for half in 0..2 {
                    let k = k + half * 16;
                    let weights = F::load16(row.add(k * F::BYTES), 16);
                    sums[half] = _mm512_fmadd_ps(weights, _mm512_loadu_ps(x.add(k)), sums[half]);
                }
            }
            for k in (full..n_cols).step_by(16) {
                let n = (n_cols - k).min(16);
                let x = _mm512_maskz_loadu_ps(((1u32 << n) - 1) as u16, x.add(k));
                sums[0] = _mm512_fmadd_ps(F::load16(row.add(k * F::BYTES), n), x, sums[0]);
            }
            out.add(r - r0).write(horizontal_sum(_mm512_add_ps(sums[0], sums[1])));
        }
    }
}

/// # Safety
/// As [`super::GemmTile`]; AVX-512 is available.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn gemm_tile<F: FloatFormat>(
    w: WeightRows,
    _n_cols: usize,
    part: Part,
    xs: ActRows,
    scratch: *mut u8,
    out: *mut f32,
) {
    let (w, row_bytes) = (w.values, w.row_bytes);
    // SAFETY: by the caller, `w` has the weight rows and columns of the part, and `xs` as many
    // activations in each row. `scratch` has the kernel's `gemm_scratch_bytes`, and `out` has `xs.n
    // * TILE_ROWS` values. The caller checked the instruction set. Each pass is within the part.
    unsafe {
        let panel: *mut f32 = scratch.add(scratch.align_offset(64)).cast();
        let rows = row_addresses(w, row_bytes, part.r0, part.n_rows);
        for (k, n) in part.passes(PASS) {
            for c in (0..n).step_by(16) {
                let width = (n - c).min(16);
                let mut registers = [_mm512_setzero_si512(); 16];
                for (register, row) in registers.iter_mut().zip(rows) {
                    *register = _mm512_castps_si512(F::load16(row.add((k + c) * F::BYTES), width));
                }
                let columns = transpose(registers);
                for (i, column) in columns.into_iter().enumerate() {
                    _mm512_store_si512(panel.add((c + i) * TILE_ROWS).cast(), column);
                }
            }
            multiply(panel, k, n, xs, panel.add(PASS * TILE_ROWS), out);
        }
    }
}

/// Multiplies the panel (columns `k..k + n`) with all activation rows; adds to `out`, or sets it if
/// `k` is 0.
///
/// # Safety
/// The panel is filled; the activation rows have `k + n` columns; `copy` has room for `n` columns
/// of `X_ROWS` rows; `out` has `xs.n * TILE_ROWS` values.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn multiply(panel: *const f32, k: usize, n: usize, xs: ActRows, copy: *mut f32, out: *mut f32) {
    // SAFETY: the caller guarantees the panel, `xs`, `copy` and `out`; `i` plus the rows of each
    // call is at most `xs.n`.
    unsafe {
        let mut i = 0;
        while i < xs.n {
            let (mut x, mut stride) = (xs.row(i).0.cast::<f32>().add(k), xs.stride);
            let out = out.add(i * TILE_ROWS);
            if crowds(stride) && xs.n - i > 4 {
                for c in 0..X_ROWS.min(xs.n - i) {
                    let to = copy.byte_add(c * COPY_STRIDE);
                    to.copy_from_nonoverlapping(x.byte_add(c * stride), n);
                }
                (x, stride) = (copy, COPY_STRIDE);
            }
            let c = match xs.n - i {
                X_ROWS.. => {
                    columns::<X_ROWS>(panel, n, x, stride, k == 0, out);
                    X_ROWS
                }
                8.. => {
                    columns::<8>(panel, n, x, stride, k == 0, out);
                    8
                }
                4.. => {
                    columns::<4>(panel, n, x, stride, k == 0, out);
                    4
                }
                2.. => {
                    columns::<2>(panel, n, x, stride, k == 0, out);
                    2
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

/// True if activation rows at this distance map to one or two of the first-level cache's 64 sets of
/// 64 bytes, and would fill their 8 ways. A copy then costs less than the misses.
const fn crowds(stride: usize) -> bool {
    stride.is_multiple_of(2048)
}

/// Multiplies the panel with `C` activation rows.
///
/// # Safety
/// As [`multiply`]; `x` is the first of `C` rows, `stride` bytes apart.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn columns<const C: usize>(
    panel: *const f32,
    n: usize,
    x: *const f32,
    stride: usize,
    first: bool,
    out: *mut f32,
) {
    // SAFETY: the caller guarantees `n` columns of the panel and of `C` rows at `x`, `(C, 16)`
    // values at `out`, and the instruction set.
    unsafe {
        let mut sums = [_mm512_setzero_ps(); C];
        if !first {
            for (c, sum) in sums.iter_mut().enumerate() {
                *sum = _mm512_loadu_ps(out.add(c * TILE_ROWS));
            }
        }
        for k in 0..n {
            // One cache line of each of the following rows. A prefetch beyond the last row does not
            // fault.
            if k % 16 == 0 {
                for c in 0..C {
                    prefetch(x.wrapping_byte_add((C + c) * stride).wrapping_add(k).cast());
                }
            }
            let weights = _mm512_load_ps(panel.add(k * TILE_ROWS));
            for (c, sum) in sums.iter_mut().enumerate() {
                *sum = _mm512_fmadd_ps(weights, _mm512_set1_ps(*x.byte_add(c * stride).add(k)), *sum);
            }
        }
        for (c, sum) in sums.into_iter().enumerate() {
            _mm512_storeu_ps(out.add(c * TILE_ROWS), sum);
        }
    }
}
