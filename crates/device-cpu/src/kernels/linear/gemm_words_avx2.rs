//! AVX2 matrix product for signed codes of 8 bits: the panel and the activations are widened to 16
//! bits.
//!
//! `vpmaddwd` multiplies words exactly and adds two neighbours in 32 bits. A product of bytes would
//! take `vpsignb`, `vpmaddubsw` (after the magnitude of one operand) and `vpmaddwd` for twice the
//! columns: the same number of multiplications and one more instruction. Widening costs little: the
//! panel once for all activation rows, an activation row once for 16 weight rows.
//!
//! A step is 16 weight rows by 2 columns by [`X_ROWS`] activation rows: 2 loads of weights, 6 of
//! activations, 12 multiplications and additions. A processor with four vector pipes, two of which
//! multiply, is bound to 32 products a cycle, twice the rate of f32.
//!
//! Order of accumulation: that of `gemm_avx2` for groups of 32 columns. Sums of f32 stay in `out`,
//! since the integers fill the registers; they are loaded and stored once for 32 columns.

use super::TILE_ROWS;
use super::activation::{ActRows, Q8Row};
use super::panel_avx2::{AffinePanelAvx2, PASS, WORD_ROWS as X_ROWS};
use std::arch::x86_64::*;

/// Stores 32 codes of 8 weight rows, transposed, as columns `32 i..32 (i + 1)` of a half of the
/// panel: `[PASS/2][16 rows][2]` words. Of each four columns the first and third are a pair, and so
/// are the second and fourth, which needs shifts only. Activations have the same order.
///
/// # Safety
/// AVX2 is available; the panel has room for column `32 (i + 1)`.
#[inline(always)]
pub(super) unsafe fn store(panel: AffinePanelAvx2, half: usize, i: usize, columns: [__m256i; 8]) {
    // SAFETY: the caller guarantees AVX2 and room in `panel.codes`, which is aligned to 64.
    unsafe {
        let to = panel.codes.add(i * 16 * 64 + half * 32);
        for (c, column) in columns.into_iter().enumerate() {
            let first = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(column));
            _mm256_store_si256(to.add(2 * c * 64).cast(), first);
            _mm256_store_si256(to.add((2 * c + 1) * 64).cast(), _mm256_srai_epi16::<8>(column));
        }
    }
}

/// Multiplies the panel (columns `k..k + n`) with all activation rows; adds to `out`, or sets it if
/// `k` is 0. `OFFSET`: true if the panel has offsets other than 0.
///
/// # Safety
/// The panel is filled; the activation rows have `n_cols` columns; `out` has `xs.n * TILE_ROWS`
/// values.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn multiply<const OFFSET: bool>(
    panel: AffinePanelAvx2,
    k: usize,
    n: usize,
    n_cols: usize,
    xs: ActRows,
    out: *mut f32,
) {
    // SAFETY: the caller guarantees the panel, `xs` and `out`; `i + c` is at most `xs.n`, `n` is a
    // multiple of 32, and `panel.x` has room for `X_ROWS` rows.
    unsafe {
        if k == 0 {
            out.write_bytes(0, xs.n * TILE_ROWS);
        }
        let mut i = 0;
        while i < xs.n {
            let c = X_ROWS.min(xs.n - i);
            for c in 0..c {
                widen(xs.row(i + c).q8(n_cols).q.add(k), n, panel.x.add(c * PASS));
            }
            let x = xs.row(i).q8(n_cols);
            let x = Q8Row { scale: x.scale.add(k / 32), sum32: x.sum32.add(k / 32), ..x };
            let out = out.add(i * TILE_ROWS);
            match c {
                1 => rows::<OFFSET, 1>(panel, n / 32, x, xs.stride, out),
                2 => rows::<OFFSET, 2>(panel, n / 32, x, xs.stride, out),
                3 => rows::<OFFSET, 3>(panel, n / 32, x, xs.stride, out),
                4 => rows::<OFFSET, 4>(panel, n / 32, x, xs.stride, out),
                5 => rows::<OFFSET, 5>(panel, n / 32, x, xs.stride, out),
                _ => rows::<OFFSET, X_ROWS>(panel, n / 32, x, xs.stride, out),
            }
            i += c;
        }
    }
}

/// Widens `n` activations to words; each four are in the order of the panel's pairs.
///
/// # Safety
/// AVX2 is available; `n` is a multiple of 32; `n` bytes are readable at `q`, and `n` words
/// writable at `out`.
#[inline(always)]
unsafe fn widen(q: *const i8, n: usize, out: *mut i16) {
    // SAFETY: the caller guarantees AVX2, `n` bytes at `q` and `n` words at `out`, with `n` a
    // multiple of 32.
    unsafe {
        let order = _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
        for k in (0..n).step_by(16) {
            let bytes = _mm_shuffle_epi8(_mm_loadu_si128(q.add(k).cast()), order);
            _mm256_storeu_si256(out.add(k).cast(), _mm256_cvtepi8_epi16(bytes));
        }
    }
}

/// Multiplies the panel with the `C` activation rows in its `x`. Their scales and sums are in the
/// rows from `x` on, `stride` bytes apart.
///
/// # Safety
/// As [`multiply`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn rows<const OFFSET: bool, const C: usize>(
    panel: AffinePanelAvx2,
    n_blocks: usize,
    x: Q8Row,
    stride: usize,
    out: *mut f32,
) {
    // SAFETY: the caller guarantees `n_blocks` blocks of the panel and of `C` rows from `x` on,
    // `(C, 16)` values at `out`, and the instruction set.
    unsafe {
        for g in 0..n_blocks {
            let mut products = [[_mm256_setzero_si256(); 2]; C];
            for step in g * 16..(g + 1) * 16 {
                let codes = panel.codes.add(step * 64);
                let codes = [_mm256_load_si256(codes.cast()), _mm256_load_si256(codes.add(32).cast())];
                for c in 0..C {
                    let pair = panel.x.add(c * PASS + step * 2).cast::<i32>();
                    let activations = _mm256_set1_epi32(*pair);
                    for half in 0..2 {
                        let product = _mm256_madd_epi16(codes[half], activations);
                        products[c][half] = _mm256_add_epi32(products[c][half], product);
                    }
                }
            }
            // Row by row, so that scales and sums need only two registers.
            for c in 0..C {
                let x_scale = _mm256_set1_ps(*x.scale.byte_add(c * stride).add(g));
                for half in 0..2 {
                    let (at, out) = (g * TILE_ROWS + half * 8, out.add(c * TILE_ROWS + half * 8));
                    let factor = _mm256_mul_ps(_mm256_loadu_ps(panel.scale.add(at)), x_scale);
                    let product = _mm256_cvtepi32_ps(products[c][half]);
                    let mut sum = _mm256_fmadd_ps(factor, product, _mm256_loadu_ps(out));
                    if OFFSET {
                        let x_sum = _mm256_set1_ps(*x.sum32.byte_add(c * stride).add(g));
                        sum = _mm256_fmadd_ps(_mm256_loadu_ps(panel.offset.add(at)), x_sum, sum);
                    }
                    _mm256_storeu_ps(out, sum);
                }
            }
        }
    }
}
