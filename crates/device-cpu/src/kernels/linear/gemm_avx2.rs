//! AVX2 matrix times matrix: 16 weight rows are unpacked once and meet up to [`X_ROWS`] activation rows at a time.
//!
//! The scheme is that of `affine_avx512` with registers of 8 weight rows by 4 columns. Without `vpdpbusd`, a product is
//! `vpmaddubsw`, and small codes allow several of them to be added in 16 bits before one `vpmaddwd` widens: 8 for codes
//! to 15 (8 * 2 * 15 * 127 = 30,480), 4 to 31, 2 to 63. Codes beyond 127 stay signed and are multiplied as words, in
//! `gemm_words_avx2`.
//!
//! Order of accumulation: within a group of columns the sum is an exact integer; each group adds `(scale * x_scale) * sum`, then
//! `offset * x_sum`, one fused multiply-add each, groups in order. It differs from `gemv`'s and does not depend on the number of
//! activation rows.

use super::TILE_ROWS;
use super::activation::{ActRows, Q8Row};
use super::gemm_words_avx2 as words;
use std::arch::x86_64::*;

/// Columns of a panel, so that it stays in the first cache with the activations it meets; a multiple of 256.
pub(super) const PASS: usize = 512;

/// Activation rows whose accumulators fit the registers.
const X_ROWS: usize = 4;

/// Bytes of the panel's codes for 8 rows.
pub(super) const HALF: usize = PASS * 8;

/// Values of the panel's scales, enough for groups of 16 columns.
const SCALES: usize = PASS / 16 * TILE_ROWS;

/// Bytes of scratch; the same for any number of columns.
pub(super) fn scratch_bytes(_n_cols: usize) -> usize {
    64 + 4 * HALF + 2 * SCALES * 4 + words::X_ROWS * PASS * 2
}

/// Where the parts of the scratch begin.
#[derive(Clone, Copy)]
pub(super) struct Panel {
    /// `[2][PASS/4][8 rows][4]` bytes, or words as [`words::store`] says
    pub codes: *mut u8,
    /// `[PASS/GROUP][16 rows]`
    pub scale: *mut f32,
    /// `[PASS/GROUP][16 rows]`
    pub offset: *mut f32,
    /// `[words::X_ROWS][PASS]` activations as words
    pub x: *mut i16,
}

impl Panel {
    /// # Safety
    /// `scratch` has [`scratch_bytes`].
    #[inline(always)]
    pub(super) unsafe fn new(scratch: *mut u8) -> Panel {
        // SAFETY: the parts add up to `scratch_bytes`.
        unsafe {
            let codes = scratch.add(scratch.align_offset(64));
            let scale: *mut f32 = codes.add(4 * HALF).cast();
            Panel { codes, scale, offset: scale.add(SCALES), x: scale.add(2 * SCALES).cast() }
        }
    }
}

/// 8 rows of 8 dwords to 8 columns of 8 dwords.
///
/// # Safety
/// AVX2 is available.
#[inline(always)]
pub(super) unsafe fn transpose(rows: [__m256i; 8]) -> [__m256i; 8] {
    // SAFETY: by the caller, AVX2 is available.
    unsafe {
        let mut a = rows;
        for i in (0..8).step_by(2) {
            a[i] = _mm256_unpacklo_epi32(rows[i], rows[i + 1]);
            a[i + 1] = _mm256_unpackhi_epi32(rows[i], rows[i + 1]);
        }
        // b[4g + c]: in each 128-bit lane L, column 4L + c of rows 4g..4g + 4.
        let mut b = a;
        for g in 0..2 {
            b[4 * g] = _mm256_unpacklo_epi64(a[4 * g], a[4 * g + 2]);
            b[4 * g + 1] = _mm256_unpackhi_epi64(a[4 * g], a[4 * g + 2]);
            b[4 * g + 2] = _mm256_unpacklo_epi64(a[4 * g + 1], a[4 * g + 3]);
            b[4 * g + 3] = _mm256_unpackhi_epi64(a[4 * g + 1], a[4 * g + 3]);
        }
        let mut out = b;
        for c in 0..4 {
            out[c] = _mm256_permute2x128_si256::<0x20>(b[c], b[4 + c]);
            out[4 + c] = _mm256_permute2x128_si256::<0x31>(b[c], b[4 + c]);
        }
        out
    }
}

/// Multiply the panel (columns `k..k + n`) with all activation rows; add to `out`, or set it if `k` is 0. `CHUNK` is how many
/// `vpmaddubsw` are added in 16 bits; `OFFSET`: whether the panel's offsets are not all 0.
///
/// # Safety
/// The panel is filled; the activation rows have `n_cols` columns; `out` has `xs.n * TILE_ROWS` values.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn multiply<const GROUP: usize, const CHUNK: usize, const OFFSET: bool>(
    panel: Panel,
    k: usize,
    n: usize,
    n_cols: usize,
    xs: ActRows,
    out: *mut f32,
) {
    // SAFETY: activation rows `i..i + X_ROWS` exist.
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
                let panel = Panel {
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

/// Half the panel times `C` activation rows.
///
/// # Safety
/// As [`multiply`]; `x` is the first of `C` rows, `stride` bytes apart.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn rows<const GROUP: usize, const CHUNK: usize, const OFFSET: bool, const C: usize>(
    panel: Panel,
    n_blocks: usize,
    x: Q8Row,
    stride: usize,
    first: bool,
    out: *mut f32,
) {
    let steps = GROUP / 4;
    // SAFETY: by the caller, the panel is filled, the activation rows have the columns, `out` has room for
    // `(C, 16)`, and the instruction set is available.
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
