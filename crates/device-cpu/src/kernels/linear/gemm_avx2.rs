//! AVX2 matrix times matrix: 16 weight rows are unpacked once and meet up to [`COLS`] activation rows at a time.
//!
//! The scheme is that of `gemm_avx512` with registers of 8 weight rows by 4 columns. Without `vpdpbusd`, a product is
//! `vpmaddubsw`, and small codes allow several of them to be added in 16 bits before one `vpmaddwd` widens: 8 for codes
//! to 15 (8 * 2 * 15 * 127 = 30,480), 4 to 31, 2 to 63. Codes beyond 127 stay signed and are multiplied as words, in
//! `gemm_words_avx2`.
//!
//! Order of accumulation: as in `gemm_avx512` with passes of [`PASS`] columns; it differs from `gemv`'s and does not
//! depend on the number of activation rows.

use super::activation::{ActRows, Q8Row};
use super::avx2::{Avx2Format, is_signed};
use super::gemm_avx512::row_addresses;
use super::gemm_words_avx2 as words;
use super::{TILE_ROWS, WeightRows};
use std::arch::x86_64::*;

/// Columns of a panel, so that it stays in the first cache with the activations it meets; a multiple of 256.
pub(super) const PASS: usize = 512;

/// Activation rows whose accumulators fit the registers.
const COLS: usize = 4;

/// Bytes of the panel's codes for 8 rows.
pub(super) const HALF: usize = PASS * 8;

/// Values of the panel's scales, enough for groups of 16 columns.
const SCALES: usize = PASS / 16 * TILE_ROWS;

/// Bytes of scratch; the same for any number of columns.
pub(super) fn scratch_bytes(_n_cols: usize) -> usize {
    64 + 4 * HALF + 2 * SCALES * 4 + words::COLS * PASS * 2
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
    /// `[words::COLS][PASS]` activations as words
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

/// How many `vpmaddubsw` of unsigned codes may be added in 16 bits.
const fn chunk<F: Avx2Format>() -> usize {
    let fitting = 32_767 / (2 * 127 * F::MAX_CODE as usize);
    let steps = F::GROUP / 4;
    // A power of two that divides the steps of a group.
    if fitting >= 8 && steps == 8 {
        8
    } else if fitting >= 4 {
        4
    } else {
        2
    }
}

/// # Safety
/// As [`super::GemmTile`]; AVX2, FMA and F16C are available.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn gemm_tile<F: Avx2Format>(
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
        let panel = Panel::new(scratch);
        let rows = row_addresses(w, row_bytes, r0, n_rows);
        let len = F::BLOCK.block_len();
        let mut k = 0;
        while k < n_cols {
            let n = PASS.min(n_cols - k);
            for b in 0..n / len {
                pack::<F>(&rows, (k / len + b) * F::BLOCK.block_bytes(), b, panel);
            }
            match (F::GROUP, chunk::<F>()) {
                _ if is_signed::<F>() => words::multiply::<false>(panel, k, n, n_cols, xs, out),
                (32, 8) => multiply::<32, 8, true>(panel, k, n, n_cols, xs, out),
                (32, 4) => multiply::<32, 4, true>(panel, k, n, n_cols, xs, out),
                (16, 4) => multiply::<16, 4, true>(panel, k, n, n_cols, xs, out),
                (16, _) => multiply::<16, 2, true>(panel, k, n, n_cols, xs, out),
                _ => multiply::<32, 2, true>(panel, k, n, n_cols, xs, out),
            }
            k += n;
        }
    }
}

/// Decode the blocks at byte `at` of 16 rows into the panel as its block `b`.
///
/// # Safety
/// AVX2 and F16C are available; the blocks are readable; the panel has room.
#[inline(always)]
unsafe fn pack<F: Avx2Format>(rows: &[*const u8; 16], at: usize, b: usize, panel: Panel) {
    let registers_of_block = F::BLOCK.block_len() / 32;
    let n_groups = F::BLOCK.block_len() / F::GROUP;
    let (mut scale, mut offset) = ([0f32; 16], [0f32; 16]);
    // SAFETY: the caller's promise.
    unsafe {
        for half in 0..2 {
            for i in 0..registers_of_block {
                let mut registers = [_mm256_setzero_si256(); 8];
                for (r, register) in registers.iter_mut().enumerate() {
                    *register = F::codes32(rows[half * 8 + r].add(at), i);
                }
                let columns = transpose(registers);
                if is_signed::<F>() {
                    words::store(panel, half, b * registers_of_block + i, columns);
                    continue;
                }
                let to = panel.codes.add(half * HALF + (b * registers_of_block + i) * 256);
                for (c, column) in columns.into_iter().enumerate() {
                    _mm256_store_si256(to.add(c * 32).cast(), column);
                }
            }
        }
        // The next tile, where it follows this one; beyond the last row a prefetch does not fault.
        let tile = TILE_ROWS * (rows[1] as usize).wrapping_sub(rows[0] as usize);
        for (r, row) in rows.iter().enumerate() {
            for line in (0..F::BLOCK.block_bytes()).step_by(64) {
                _mm_prefetch::<_MM_HINT_T1>(row.wrapping_add(tile + at + line).cast());
            }
            F::scales_avx2(row.add(at), &mut scale, &mut offset);
            for g in 0..n_groups {
                let to = (b * n_groups + g) * TILE_ROWS + r;
                panel.scale.add(to).write(scale[g]);
                if F::HAS_OFFSET {
                    panel.offset.add(to).write(offset[g]);
                } else if !is_signed::<F>() {
                    panel.offset.add(to).write(-f32::from(F::ZERO) * scale[g]);
                } else {
                    panel.offset.add(to).write(0.0);
                }
            }
        }
    }
}

/// 8 rows of 8 dwords to 8 columns of 8 dwords.
///
/// # Safety
/// AVX2 is available.
#[inline(always)]
pub(super) unsafe fn transpose(rows: [__m256i; 8]) -> [__m256i; 8] {
    // SAFETY: the caller's promise.
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
    // SAFETY: activation rows `i..i + COLS` exist.
    unsafe {
        let mut i = 0;
        while i < xs.n {
            let x = xs.row(i).q8(n_cols);
            let x = Q8Row {
                q: x.q.add(k),
                scale: x.scale.add(k / 32),
                sum32: x.sum32.add(k / 32),
                sum16: x.sum16.add(k / 16),
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
                    _ => rows::<GROUP, CHUNK, OFFSET, COLS>(panel, n / 32, x, xs.stride, k == 0, out),
                }
            }
            i += COLS;
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
    // SAFETY: the caller's promise.
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
