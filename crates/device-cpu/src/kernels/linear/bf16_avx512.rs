//! BF16 matrices by `vdpbf16ps` (AVX-512 BF16; Zen 4): two products a lane, twice the rate of f32.
//!
//! Activations are rounded to BF16, as in the training of BF16 models; weights are as in the file.
//!
//! One row: lanes are pairs of columns, with two accumulators a row. Weight rows are read one after
//! the other, as they are in memory.
//!
//! Many rows: the panel has pairs of neighbouring columns of 16 weight rows, a register a pair; the
//! instruction broadcasts a pair of activations. A lane is a weight row, and pairs follow in order.
//! The instruction adds the two products of a pair one after the other, each rounded to nearest,
//! with subnormal numbers as zero (Intel SDM, VDPBF16PS). The order does not depend on the number
//! of activation rows. Bytes: each weight once, the activations once for each tile.

use super::activation::{ActRow, ActRows};
use super::avx512::{first, horizontal_sum, transpose};
use super::weight_rows::row_addresses;
use super::{Part, TILE_ROWS, WeightRows};
use crate::prefetch::{prefetch, prefetch_stream};
use std::arch::x86_64::*;

/// Columns of a panel, 16 KB; a multiple of 32.
pub(super) const PASS: usize = 512;

/// Activation rows whose accumulators fit the registers.
const X_ROWS: usize = 16;

/// Bytes of scratch; the same for any number of columns.
pub(super) fn scratch_bytes(_n_cols: usize) -> usize {
    64 + PASS * TILE_ROWS * 2
}

/// # Safety
/// As [`super::Gemv`], for weights and activations in BF16; AVX-512 with BF16 is available.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,avx2,fma,f16c")]
pub(super) unsafe fn gemv(w: WeightRows, n_cols: usize, r0: usize, r1: usize, x: ActRow, out: *mut f32) {
    // SAFETY: the caller guarantees rows `r0..r1` of `w`, `n_cols` activations in BF16 at `x`, room
    // at `out`, and the instruction set. The last columns are loaded under a mask. Both vector
    // types of the transmute have 64 bytes without padding.
    unsafe {
        let numbers = |v: __m512i| std::mem::transmute::<__m512i, __m512bh>(v);
        let whole = n_cols / 64 * 64;
        for r in r0..r1 {
            let row = w.values.add(r * w.row_bytes);
            let mut sums = [_mm512_setzero_ps(); 2];
            for k in (0..whole).step_by(64) {
                prefetch_stream(row, k * 2, 128);
                for half in 0..2 {
                    let at = k * 2 + half * 64;
                    let x = numbers(_mm512_load_si512(x.0.add(at).cast()));
                    sums[half] =
                        _mm512_dpbf16_ps(sums[half], numbers(_mm512_loadu_si512(row.add(at).cast())), x);
                }
            }
            for k in (whole..n_cols).step_by(32) {
                let x = numbers(_mm512_load_si512(x.0.add(k * 2).cast()));
                let weights = _mm512_maskz_loadu_epi16(first(n_cols - k), row.add(k * 2).cast());
                sums[0] = _mm512_dpbf16_ps(sums[0], numbers(weights), x);
            }
            out.add(r - r0).write(horizontal_sum(_mm512_add_ps(sums[0], sums[1])));
        }
    }
}

/// # Safety
/// As [`super::GemmTile`], for weights and activations in BF16; AVX-512 with BF16 is available.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,avx2,fma,f16c")]
pub(super) unsafe fn gemm_tile(
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
        let panel = scratch.add(scratch.align_offset(64));
        let rows = row_addresses(w.values, w.row_bytes, part.r0, part.n_rows);
        for (k, n) in part.passes(PASS) {
            for c in (0..n).step_by(32) {
                let mut pairs = [_mm512_setzero_si512(); 16];
                for r in 0..16 {
                    pairs[r] = _mm512_maskz_loadu_epi16(first(n - c), rows[r].add((k + c) * 2).cast());
                }
                let pairs = transpose(pairs);
                for i in 0..16 {
                    _mm512_store_si512(panel.add((c / 2 + i) * 64).cast(), pairs[i]);
                }
            }
            for i in (0..xs.n).step_by(X_ROWS) {
                let x = xs.row(i).0.add(k * 2);
                let (n_pairs, out) = (n.div_ceil(2), out.add(i * TILE_ROWS));
                macro_rules! of {
                    ($($c:literal)*) => {
                        match xs.n - i {
                            $($c => columns::<$c>(panel, n_pairs, x, xs.stride, k == 0, out),)*
                            _ => columns::<X_ROWS>(panel, n_pairs, x, xs.stride, k == 0, out),
                        }
                    };
                }
                of!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
            }
        }
    }
}

/// Multiplies the panel with `C` activation rows in BF16.
///
/// # Safety
/// AVX-512 with BF16 is available; the panel and the rows have `n_pairs` pairs; `out` has `(C, 16)`
/// values.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,avx2,fma,f16c")]
unsafe fn columns<const C: usize>(
    panel: *const u8,
    n_pairs: usize,
    x: *const u8,
    stride: usize,
    first: bool,
    out: *mut f32,
) {
    // SAFETY: the caller guarantees `n_pairs` pairs in `panel` and in `C` rows at `x`, `(C, 16)`
    // values at `out`, and the instruction set. Both vector types of a transmute have 64 bytes.
    unsafe {
        let mut sums = [_mm512_setzero_ps(); C];
        if !first {
            for c in 0..C {
                sums[c] = _mm512_loadu_ps(out.add(c * TILE_ROWS));
            }
        }
        for pair in 0..n_pairs {
            // A cache line has 16 pairs. A prefetch beyond the last row does not fault.
            if pair % 16 == 0 {
                for c in 0..C {
                    prefetch(x.wrapping_add((C + c) * stride + pair * 4));
                }
            }
            let weights: __m512bh = std::mem::transmute(_mm512_load_si512(panel.add(pair * 64).cast()));
            for c in 0..C {
                let q = x.add(c * stride + pair * 4).cast::<i32>().read_unaligned();
                let q: __m512bh = std::mem::transmute(_mm512_set1_epi32(q));
                sums[c] = _mm512_dpbf16_ps(sums[c], weights, q);
            }
        }
        for c in 0..C {
            _mm512_storeu_ps(out.add(c * TILE_ROWS), sums[c]);
        }
    }
}
