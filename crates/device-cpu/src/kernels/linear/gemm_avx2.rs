//! AVX2 matrix product: 16 weight rows are unpacked once for up to [`X_ROWS`] activation rows at a
//! time.
//!
//! The scheme is that of `affine_avx512` with registers of 8 weight rows by 4 columns. Without
//! `vpdpbusd`, a product is `vpmaddubsw`. Small codes allow several products to be added in 16 bits
//! before one `vpmaddwd` widens. There are 8 for codes to 15 (8 * 2 * 15 * 127 = 30,480), 4 for
//! codes to 31, 2 for codes to 63. Codes beyond 127 stay signed and are multiplied as words, in
//! `gemm_words_avx2`.
//!
//! Order of accumulation: within a group of columns the sum is an exact integer. Each group adds
//! `(scale * x_scale) * sum`, then `offset * x_sum`, one fused multiply-add each, groups in order.
//! The order differs from `gemv`'s and does not depend on the number of activation rows.

use super::TILE_ROWS;
use super::activation::{ActRows, Q8Row};
use super::panel_avx2::{AffinePanelAvx2, HALF};
use std::arch::x86_64::*;

/// Activation rows whose accumulators fit the registers.
const X_ROWS: usize = 4;

/// Multiplies the panel (columns `k..k + n`) with all activation rows; adds to `out`, or sets it if
/// `k` is 0. `CHUNK`: number of `vpmaddubsw` that are added in 16 bits. `OFFSET`: true if the panel
/// has offsets other than 0.
///
/// # Safety
/// The panel is filled; the activation rows have `n_cols` columns; `out` has `xs.n * TILE_ROWS`
/// values.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn multiply<const GROUP: usize, const CHUNK: usize, const OFFSET: bool>(
    panel: AffinePanelAvx2,
    k: usize,
    n: usize,
    n_cols: usize,
    xs: ActRows,
    out: *mut f32,
) {
    // SAFETY: the caller guarantees the panel, `xs` and `out`; `i` plus the rows of each call is at
    // most `xs.n`, and `k + n` at most `n_cols`.
    unsafe {
        let mut i = 0;
        while i < xs.n {
            let x = xs.row(i).q8(n_cols);
            let x = Q8Row {
                q: x.q.add(k),
                scale: x.scale.add(k / 32),
                sum32: x.sum32.add(k / 32),
                sum16: x.sum16.add(k / 16),
                centre32: x.centre32.add(k / 32),
                centre16: x.centre16.add(k / 16),
                pairs: x.pairs.add(k / 16),
            };
            for half in 0..2 {
                let panel = AffinePanelAvx2 {
                    codes: panel.codes.add(half * HALF),
                    scale: panel.scale.add(half * 8),
                    offset: panel.offset.add(half * 8),
                    ..panel
                };
                let out = out.add(i * TILE_ROWS + half * 8);
                match xs.n - i {
                    1 => rows::<GROUP, CHUNK, OFFSET, 1>(panel, n / 32, x, xs.stride, k == 0, out),
                    2 => rows::<GROUP, CHUNK, OFFSET, 2>(panel, n / 32, x, xs.stride, k == 0, out),
                    3 => rows::<GROUP, CHUNK, OFFSET, 3>(panel, n / 32, x, xs.stride, k == 0, out),
                    _ => rows::<GROUP, CHUNK, OFFSET, X_ROWS>(panel, n / 32, x, xs.stride, k == 0, out),
                }
            }
            i += X_ROWS;
        }
    }
}

/// Multiplies half the panel with `C` activation rows.
///
/// # Safety
/// As [`multiply`]; `x` is the first of `C` rows, `stride` bytes apart.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn rows<const GROUP: usize, const CHUNK: usize, const OFFSET: bool, const C: usize>(
    panel: AffinePanelAvx2,
    n_blocks: usize,
    x: Q8Row,
    stride: usize,
    first: bool,
    out: *mut f32,
) {
    let steps = GROUP / 4;
    // SAFETY: the caller guarantees `n_blocks` blocks of the panel and of `C` rows from `x` on,
    // `(C, 16)` values at `out`, and the instruction set.
    unsafe {
        let ones = _mm256_set1_epi16(1);
        let mut sums = [_mm256_setzero_ps(); C];
        if !first {
            for (c, sum) in sums.iter_mut().enumerate() {
                *sum = _mm256_loadu_ps(out.add(c * TILE_ROWS));
            }
        }
        let x_sums = if GROUP == 32 { x.sum32 } else { x.sum16 };
        for g in 0..n_blocks * (32 / GROUP) {
            let codes = panel.codes.add(g * steps * 32);
            let activations = |c: usize, step: usize| {
                let p = x.q.byte_add(c * stride).add(g * GROUP + step * 4);
                _mm256_set1_epi32(p.cast::<i32>().read_unaligned())
            };
            let mut products = [_mm256_setzero_si256(); C];
            for start in (0..steps).step_by(CHUNK) {
                let mut pairs = [_mm256_setzero_si256(); C];
                for step in start..start + CHUNK {
                    let codes = _mm256_load_si256(codes.add(step * 32).cast());
                    for c in 0..C {
                        let product = _mm256_maddubs_epi16(codes, activations(c, step));
                        pairs[c] = _mm256_add_epi16(pairs[c], product);
                    }
                }
                for c in 0..C {
                    products[c] = _mm256_add_epi32(products[c], _mm256_madd_epi16(pairs[c], ones));
                }
            }
            let scale = _mm256_loadu_ps(panel.scale.add(g * TILE_ROWS));
            let offset = _mm256_loadu_ps(panel.offset.add(g * TILE_ROWS));
            for c in 0..C {
                let x_scale = _mm256_set1_ps(*x.scale.byte_add(c * stride).add(g * GROUP / 32));
                let factor = _mm256_mul_ps(scale, x_scale);
                sums[c] = _mm256_fmadd_ps(factor, _mm256_cvtepi32_ps(products[c]), sums[c]);
                if OFFSET {
                    let x_sum = _mm256_set1_ps(*x_sums.byte_add(c * stride).add(g));
                    sums[c] = _mm256_fmadd_ps(offset, x_sum, sums[c]);
                }
            }
        }
        for (c, sum) in sums.into_iter().enumerate() {
            _mm256_storeu_ps(out.add(c * TILE_ROWS), sum);
        }
    }
}
