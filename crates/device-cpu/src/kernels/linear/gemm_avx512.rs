//! AVX-512 matrix times matrix: 16 weight rows are unpacked once and meet up to [`X_ROWS`] activation rows at a time.
//!
//! # The panel
//!
//! [`PASS`] columns of 16 weight rows are decoded to unsigned bytes and transposed, so that one register holds four
//! neighbouring columns of all 16 rows, the operand of `vpdpbusd`; the other operand is four activations, broadcast by
//! the instruction itself. Scales and offsets lie beside it, 16 rows a register. Panel, scales and offsets take 24 KB
//! and stay in the nearest caches while all activation rows pass.
//!
//! # Order of accumulation
//!
//! A lane is a weight row. Within a group of 16 or 32 columns the sum is an exact integer; each group adds
//! `(scale * x_scale) * sum`, then `offset * x_sum`, one fused multiply-add each, groups in order, and passes in
//! order. Symmetric types treat their zero point as an offset. The result does not depend on the number of activation
//! rows; it differs from `gemv`'s in the last bits.

use super::TILE_ROWS;
use super::activation::{ActRows, Q8Row};
use std::arch::x86_64::*;

/// Columns of a panel; a multiple of 256.
pub(super) const PASS: usize = 1024;

/// Activation rows whose accumulators fit the registers: 12 integer, 12 float, and the operands.
const X_ROWS: usize = 12;

/// Bytes of the panel's codes.
const CODES: usize = PASS * TILE_ROWS;

/// Values of the panel's scales, enough for groups of 16 columns.
const SCALES: usize = PASS / 16 * TILE_ROWS;

/// Bytes of scratch; the same for any number of columns.
pub(super) fn scratch_bytes(_n_cols: usize) -> usize {
    64 + CODES + 2 * SCALES * 4 + Panel::STAGE
}

/// Where the parts of the scratch begin.
#[derive(Clone, Copy)]
pub(super) struct Panel {
    /// `[PASS/4][16 rows][4]` u8
    pub codes: *mut u8,
    /// `[PASS/GROUP][16 rows]`
    pub scale: *mut f32,
    /// `[PASS/GROUP][16 rows]`
    pub offset: *mut f32,
    /// [`Panel::STAGE`] bytes, aligned to 64.
    pub stage: *mut u8,
}

impl Panel {
    /// Bytes for one block of 256 columns of 16 rows before it is transposed: codes, scales, offsets.
    pub(super) const STAGE: usize = 16 * (256 + 64 + 64);

    /// # Safety
    /// `scratch` has [`scratch_bytes`].
    #[inline(always)]
    pub(super) unsafe fn new(scratch: *mut u8) -> Panel {
        // SAFETY: the parts add up to `scratch_bytes`.
        unsafe {
            let codes = scratch.add(scratch.align_offset(64));
            let scale: *mut f32 = codes.add(CODES).cast();
            let offset = scale.add(SCALES);
            Panel { codes, scale, offset, stage: offset.add(SCALES).cast() }
        }
    }
}

/// 16 rows of 16 dwords to 16 columns of 16 dwords.
///
/// # Safety
/// AVX-512 is available.
#[inline(always)]
pub(super) unsafe fn transpose(rows: [__m512i; 16]) -> [__m512i; 16] {
    // SAFETY: by the caller, AVX-512 is available.
    unsafe {
        let mut a = rows;
        for i in (0..16).step_by(2) {
            a[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
            a[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
        }
        // b[4g + c]: in each 128-bit lane L, column 4L + c of rows 4g..4g + 4.
        let mut b = a;
        for g in 0..4 {
            b[4 * g] = _mm512_unpacklo_epi64(a[4 * g], a[4 * g + 2]);
            b[4 * g + 1] = _mm512_unpackhi_epi64(a[4 * g], a[4 * g + 2]);
            b[4 * g + 2] = _mm512_unpacklo_epi64(a[4 * g + 1], a[4 * g + 3]);
            b[4 * g + 3] = _mm512_unpackhi_epi64(a[4 * g + 1], a[4 * g + 3]);
        }
        let mut out = b;
        for c in 0..4 {
            let low01 = _mm512_shuffle_i32x4::<0b10_00_10_00>(b[c], b[4 + c]);
            let high01 = _mm512_shuffle_i32x4::<0b11_01_11_01>(b[c], b[4 + c]);
            let low23 = _mm512_shuffle_i32x4::<0b10_00_10_00>(b[8 + c], b[12 + c]);
            let high23 = _mm512_shuffle_i32x4::<0b11_01_11_01>(b[8 + c], b[12 + c]);
            out[c] = _mm512_shuffle_i32x4::<0b10_00_10_00>(low01, low23);
            out[4 + c] = _mm512_shuffle_i32x4::<0b10_00_10_00>(high01, high23);
            out[8 + c] = _mm512_shuffle_i32x4::<0b11_01_11_01>(low01, low23);
            out[12 + c] = _mm512_shuffle_i32x4::<0b11_01_11_01>(high01, high23);
        }
        out
    }
}

/// 16 registers, `stride` bytes apart.
///
/// # Safety
/// AVX-512 is available; the bytes are readable and aligned to 64.
#[inline(always)]
pub(super) unsafe fn load_rows(first: *const u8, stride: usize) -> [__m512i; 16] {
    // SAFETY: by the caller, AVX-512 is available; the bytes are readable and aligned to 64.
    unsafe {
        let mut rows = [_mm512_setzero_si512(); 16];
        for r in 0..16 {
            rows[r] = _mm512_load_si512(first.add(r * stride).cast());
        }
        rows
    }
}

/// The addresses of 16 rows from `r0` on; rows beyond the tile repeat its last.
#[inline(always)]
pub(super) fn row_addresses(w: *const u8, row_bytes: usize, r0: usize, n_rows: usize) -> [*const u8; 16] {
    std::array::from_fn(|r| w.wrapping_add((r0 + r.min(n_rows - 1)) * row_bytes))
}

/// Multiply the panel (columns `k..k + n`) with all activation rows; add to `out`, or set it if `k` is 0.
///
/// # Safety
/// The panel is filled; the activation rows have `n_cols` columns; `out` has `xs.n * TILE_ROWS` values.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn multiply<const GROUP: usize>(
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
            let (stride, out) = (xs.stride, out.add(i * TILE_ROWS));
            match xs.n - i {
                1 => rows::<GROUP, 1>(panel, n / 32, x, stride, k == 0, out),
                2 => rows::<GROUP, 2>(panel, n / 32, x, stride, k == 0, out),
                3 => rows::<GROUP, 3>(panel, n / 32, x, stride, k == 0, out),
                4 => rows::<GROUP, 4>(panel, n / 32, x, stride, k == 0, out),
                5 => rows::<GROUP, 5>(panel, n / 32, x, stride, k == 0, out),
                6 => rows::<GROUP, 6>(panel, n / 32, x, stride, k == 0, out),
                7 => rows::<GROUP, 7>(panel, n / 32, x, stride, k == 0, out),
                8 => rows::<GROUP, 8>(panel, n / 32, x, stride, k == 0, out),
                9 => rows::<GROUP, 9>(panel, n / 32, x, stride, k == 0, out),
                10 => rows::<GROUP, 10>(panel, n / 32, x, stride, k == 0, out),
                11 => rows::<GROUP, 11>(panel, n / 32, x, stride, k == 0, out),
                _ => rows::<GROUP, X_ROWS>(panel, n / 32, x, stride, k == 0, out),
            }
            i += X_ROWS;
        }
    }
}

/// The panel times `C` activation rows.
///
/// # Safety
/// As [`multiply`]; `x` is the first of `C` rows, `stride` bytes apart.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn rows<const GROUP: usize, const C: usize>(
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
        let mut sums = [_mm512_setzero_ps(); C];
        if !first {
            for (c, sum) in sums.iter_mut().enumerate() {
                *sum = _mm512_loadu_ps(out.add(c * TILE_ROWS));
            }
        }
        let x_sums = if GROUP == 32 { x.sum32 } else { x.sum16 };
        for g in 0..n_blocks * (32 / GROUP) {
            let mut products = [_mm512_setzero_si512(); C];
            for step in 0..steps {
                let codes = _mm512_load_si512(panel.codes.add((g * steps + step) * 64).cast());
                for c in 0..C {
                    let q = x.q.byte_add(c * stride).add(g * GROUP + step * 4).cast::<i32>().read_unaligned();
                    products[c] = _mm512_dpbusd_epi32(products[c], codes, _mm512_set1_epi32(q));
                }
            }
            let scale = _mm512_load_ps(panel.scale.add(g * TILE_ROWS));
            let offset = _mm512_load_ps(panel.offset.add(g * TILE_ROWS));
            for c in 0..C {
                let x_scale = *x.scale.byte_add(c * stride).add(g * GROUP / 32);
                let x_sum = *x_sums.byte_add(c * stride).add(g);
                let factor = _mm512_mul_ps(scale, _mm512_set1_ps(x_scale));
                sums[c] = _mm512_fmadd_ps(factor, _mm512_cvtepi32_ps(products[c]), sums[c]);
                sums[c] = _mm512_fmadd_ps(offset, _mm512_set1_ps(x_sum), sums[c]);
            }
        }
        for (c, sum) in sums.into_iter().enumerate() {
            _mm512_storeu_ps(out.add(c * TILE_ROWS), sum);
        }
    }
}
