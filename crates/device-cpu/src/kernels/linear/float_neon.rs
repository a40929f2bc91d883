//! NEON products of plain numbers.
//!
//! GEMV: each weight row has two registers of 4 lanes. Lane `l` of the eight adds columns `l, l +
//! 8, ...` in order, with a fused multiply-add each. The registers are added, then the lanes,
//! neighbours first, and then the last `n_cols % 8` columns one by one. Several weight rows at a
//! time are the chains that hide the latency.
//!
//! A few activation rows ([`few_rows`]): the chains are the same, and so the bits of each row are
//! GEMV's. Four weight rows are converted once for up to [`FEW`] activation rows.
//!
//! GEMM: a panel of 16 weight rows and [`PASS`] columns is converted and transposed once, then
//! multiplied with [`X_ROWS`] activation rows at a time. That takes 24 accumulators, with 4 loads
//! of weights and 6 of activations for 24 multiply-adds. Columns follow in order, so the order
//! differs from GEMV's; it does not depend on the number of activation rows.

use super::activation::{ActRow, ActRows};
use super::float::FloatFormat;
use super::weight_rows::by_groups;
use super::{Part, TILE_ROWS, WeightRows};
use crate::prefetch::{groups_ahead, prefetch, prefetch_far};
use std::arch::aarch64::*;

/// Columns of a panel, 16 KB of f32; a multiple of 16.
pub(super) const PASS: usize = 256;

/// Activation rows whose accumulators fit the registers.
const X_ROWS: usize = 6;

/// Maximum number of activation rows that share a conversion of weights in [`few_rows`].
const FEW: usize = 3;

/// Weight rows of one iteration of [`few_rows`].
const FEW_ROWS: usize = 4;

/// Weight rows of one iteration of GEMV: 16 chains, for four multiply-adds a cycle with latency 4.
const GEMV_ROWS: usize = 8;

/// Bytes of scratch; the same for any number of columns.
pub(super) fn scratch_bytes(_n_cols: usize) -> usize {
    64 + PASS * TILE_ROWS * 4
}

/// # Safety
/// As [`super::Gemv`].
pub(super) unsafe fn gemv<F: FloatFormat>(
    w: WeightRows,
    n_cols: usize,
    r0: usize,
    r1: usize,
    x: ActRow,
    out: *mut f32,
) {
    let xs = ActRows { base: x.0, stride: 0, n: 1 };
    // SAFETY: the caller guarantees rows `r0..r1` of `n_cols` numbers, `n_cols` f32 activations at
    // `x`, and room at `out`; NEON is the baseline.
    unsafe {
        by_groups!(r0..r1, GEMV_ROWS, |r, N| block::<F, N, 1>(w, n_cols, r, xs, out.add(r - r0)));
    }
}

/// [`super::GemmTile`] with the bits of GEMV; the scratch is not used.
///
/// # Safety
/// As [`super::GemmTile`].
pub(super) unsafe fn few_rows<F: FloatFormat>(
    w: WeightRows,
    n_cols: usize,
    part: Part,
    xs: ActRows,
    _scratch: *mut u8,
    out: *mut f32,
) {
    let Part { r0, n_rows, .. } = part;
    let whole = n_rows / FEW_ROWS * FEW_ROWS;
    for i in (0..xs.n).step_by(FEW) {
        // SAFETY: the caller guarantees `n_rows` weight rows from `r0` on and `xs.n` activation
        // rows, of which these are some.
        unsafe {
            let (xs, out) = (ActRows { base: xs.row(i).0, ..xs }, out.add(i * TILE_ROWS));
            let n = xs.n - i;
            for r in (0..whole).step_by(FEW_ROWS) {
                match n {
                    1 => block::<F, FEW_ROWS, 1>(w, n_cols, r0 + r, xs, out.add(r)),
                    2 => block::<F, FEW_ROWS, 2>(w, n_cols, r0 + r, xs, out.add(r)),
                    _ => block::<F, FEW_ROWS, FEW>(w, n_cols, r0 + r, xs, out.add(r)),
                }
            }
            for r in whole..n_rows {
                match n {
                    1 => block::<F, 1, 1>(w, n_cols, r0 + r, xs, out.add(r)),
                    2 => block::<F, 1, 2>(w, n_cols, r0 + r, xs, out.add(r)),
                    _ => block::<F, 1, FEW>(w, n_cols, r0 + r, xs, out.add(r)),
                }
            }
        }
    }
}

/// Multiplies `R` weight rows from row `r` on with `C` activation rows: `out[c * TILE_ROWS + i]`
/// for weight row `r + i`.
///
/// # Safety
/// The rows have `n_cols` numbers; `out` has room for the products.
#[inline(never)]
unsafe fn block<F: FloatFormat, const R: usize, const C: usize>(
    w: WeightRows,
    n_cols: usize,
    r: usize,
    xs: ActRows,
    out: *mut f32,
) {
    let row_bytes = w.row_bytes;
    // SAFETY: the caller guarantees `R` weight rows and `C` activation rows of `n_cols` numbers,
    // and room for their products at `out`.
    unsafe {
        let (w, x) = (w.values.add(r * row_bytes), xs.base.cast::<f32>());
        let mut sums = [[[vdupq_n_f32(0.0); 2]; C]; R];
        let whole = n_cols / 8 * 8;
        for k in (0..whole).step_by(8) {
            let mut activations = [[vdupq_n_f32(0.0); 2]; C];
            for c in 0..C {
                let x = x.byte_add(c * xs.stride).add(k);
                activations[c] = [vld1q_f32(x), vld1q_f32(x.add(4))];
            }
            for i in 0..R {
                let p = w.add(i * row_bytes + k * F::BYTES);
                if (k * F::BYTES).is_multiple_of(64) {
                    prefetch_far(p.wrapping_add(groups_ahead(R * row_bytes)));
                }
                let weights = F::load8(p);
                for c in 0..C {
                    for half in 0..2 {
                        sums[i][c][half] = vfmaq_f32(sums[i][c][half], weights[half], activations[c][half]);
                    }
                }
            }
        }
        for i in 0..R {
            for c in 0..C {
                let mut sum = vaddvq_f32(vaddq_f32(sums[i][c][0], sums[i][c][1]));
                for k in whole..n_cols {
                    let bytes = std::slice::from_raw_parts(w.add(i * row_bytes + k * F::BYTES), F::BYTES);
                    sum = F::decode(bytes).mul_add(*x.byte_add(c * xs.stride).add(k), sum);
                }
                out.add(c * TILE_ROWS + i).write(sum);
            }
        }
    }
}

/// # Safety
/// As [`super::GemmTile`].
pub(super) unsafe fn gemm_tile<F: FloatFormat>(
    w: WeightRows,
    _n_cols: usize,
    part: Part,
    xs: ActRows,
    scratch: *mut u8,
    out: *mut f32,
) {
    // SAFETY: by the caller, `w` has the weight rows and columns of the part, and `xs` as many
    // activations in each row. `scratch` has the kernel's `gemm_scratch_bytes`, and `out` has `xs.n
    // * TILE_ROWS` values. The caller checked the instruction set. Each pass is within the part.
    unsafe {
        let panel: *mut f32 = scratch.add(scratch.align_offset(64)).cast();
        for (k, n) in part.passes(PASS) {
            fill::<F>(w, Part { k, n, ..part }, panel);
            for i in (0..xs.n).step_by(X_ROWS) {
                let (x, out) = (xs.row(i).0.cast::<f32>().add(k), out.add(i * TILE_ROWS));
                match xs.n - i {
                    1 => columns::<1>(panel, n, x, xs.stride, k == 0, out),
                    2 => columns::<2>(panel, n, x, xs.stride, k == 0, out),
                    3 => columns::<3>(panel, n, x, xs.stride, k == 0, out),
                    4 => columns::<4>(panel, n, x, xs.stride, k == 0, out),
                    5 => columns::<5>(panel, n, x, xs.stride, k == 0, out),
                    _ => columns::<X_ROWS>(panel, n, x, xs.stride, k == 0, out),
                }
            }
        }
    }
}

/// Converts and transposes the rows and columns of a part to `(PASS, 16)`. Missing rows repeat the
/// last one.
///
/// # Safety
/// The matrix has the rows and columns; the panel has room for whole groups of 8 columns.
#[inline(never)]
unsafe fn fill<F: FloatFormat>(w: WeightRows, part: Part, panel: *mut f32) {
    // SAFETY: the caller guarantees the rows and columns of `part`, and room for whole groups of 8
    // columns at `panel`.
    unsafe {
        for first in (0..TILE_ROWS).step_by(4) {
            let mut rows = [w.values; 4];
            for (i, row) in rows.iter_mut().enumerate() {
                let r = part.r0 + (first + i).min(part.n_rows - 1);
                *row = row.add(r * w.row_bytes + part.k * F::BYTES);
            }
            for c in (0..part.n).step_by(8) {
                let mut eights = [[vdupq_n_f32(0.0); 2]; 4];
                for i in 0..4 {
                    eights[i] = load_some::<F>(rows[i].add(c * F::BYTES), part.n - c);
                }
                for half in 0..2 {
                    let columns =
                        transposed(eights[0][half], eights[1][half], eights[2][half], eights[3][half]);
                    for (i, column) in columns.into_iter().enumerate() {
                        vst1q_f32(panel.add((c + 4 * half + i) * TILE_ROWS + first), column);
                    }
                }
            }
        }
    }
}

/// Loads eight numbers, or the first `n` of them and zeros.
///
/// # Safety
/// `n` numbers, at most eight, are readable at `p`.
#[inline(always)]
unsafe fn load_some<F: FloatFormat>(p: *const u8, n: usize) -> [float32x4_t; 2] {
    // SAFETY: the caller guarantees eight or `n` numbers at `p`; fewer than eight are copied to
    // `last`, which has room for eight.
    unsafe {
        if n >= 8 {
            return F::load8(p);
        }
        let mut last = [0u8; 32];
        last.as_mut_ptr().copy_from_nonoverlapping(p, n * F::BYTES);
        F::load8(last.as_ptr())
    }
}

/// Transposes four rows.
///
/// # Safety
/// NEON is available.
#[inline(always)]
unsafe fn transposed(r0: float32x4_t, r1: float32x4_t, r2: float32x4_t, r3: float32x4_t) -> [float32x4_t; 4] {
    // SAFETY: NEON is the baseline.
    unsafe {
        let even = [vreinterpretq_f64_f32(vtrn1q_f32(r0, r1)), vreinterpretq_f64_f32(vtrn1q_f32(r2, r3))];
        let odd = [vreinterpretq_f64_f32(vtrn2q_f32(r0, r1)), vreinterpretq_f64_f32(vtrn2q_f32(r2, r3))];
        [
            vreinterpretq_f32_f64(vzip1q_f64(even[0], even[1])),
            vreinterpretq_f32_f64(vzip1q_f64(odd[0], odd[1])),
            vreinterpretq_f32_f64(vzip2q_f64(even[0], even[1])),
            vreinterpretq_f32_f64(vzip2q_f64(odd[0], odd[1])),
        ]
    }
}

/// Multiplies the panel with `C` activation rows.
///
/// # Safety
/// The panel has `n` columns, and so have `C` activation rows, `stride` bytes apart; `out` has room
/// for `(C, 16)`.
#[inline(never)]
unsafe fn columns<const C: usize>(
    panel: *const f32,
    n: usize,
    x: *const f32,
    stride: usize,
    first: bool,
    out: *mut f32,
) {
    // SAFETY: the caller guarantees `n` columns of the panel and of `C` rows from `x` on, and `(C,
    // 16)` values at `out`.
    unsafe {
        let mut sums = [[vdupq_n_f32(0.0); 4]; C];
        if !first {
            for c in 0..C {
                for i in 0..4 {
                    sums[c][i] = vld1q_f32(out.add(c * TILE_ROWS + 4 * i));
                }
            }
        }
        for k in 0..n {
            if k % 16 == 0 {
                // Prefetch of the following rows.
                for c in 0..C {
                    prefetch(x.wrapping_byte_add((C + c) * stride).wrapping_add(k).cast());
                }
            }
            let mut weights = [vdupq_n_f32(0.0); 4];
            for i in 0..4 {
                weights[i] = vld1q_f32(panel.add(k * TILE_ROWS + 4 * i));
            }
            for c in 0..C {
                let activation = *x.byte_add(c * stride).add(k);
                for i in 0..4 {
                    sums[c][i] = vfmaq_n_f32(sums[c][i], weights[i], activation);
                }
            }
        }
        for c in 0..C {
            for i in 0..4 {
                vst1q_f32(out.add(c * TILE_ROWS + 4 * i), sums[c][i]);
            }
        }
    }
}
