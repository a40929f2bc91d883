//! AVX2 products of plain numbers.
//!
//! GEMV: each weight row has one register of 8 lanes. Lane `l` adds columns `l, l + 8, ...` in
//! order, with a fused multiply-add each. The lanes are added 4 apart, 2 apart, neighbours, and
//! then the last `n_cols % 8` columns one by one. Several weight rows at a time are the chains that
//! hide the latency.
//!
//! A few activation rows ([`few_rows`]): the chains are the same, and so the bits of each row are
//! GEMV's. A group of weight rows is converted once for up to [`FEW`] activation rows, and read
//! from memory once for all of them.
//!
//! GEMM: a panel of 16 weight rows and [`PASS`] columns is converted and transposed once, then
//! multiplied with [`X_ROWS`] activation rows at a time. That takes 12 accumulators, with 2 loads
//! of weights and 6 of activations for 12 multiply-adds, unrolled for [`UNROLL`] columns. The
//! weights of the next panel are prefetched meanwhile. Columns follow in order, so the order
//! differs from GEMV's; it does not depend on the number of activation rows.

use super::activation::{ActRow, ActRows};
use super::avx2::{horizontal_sum, transpose};
use super::float::FloatFormat;
use super::weight_rows::{by_groups, row_addresses};
use super::{Part, TILE_ROWS, WeightRows};
use crate::prefetch::{groups_ahead, prefetch_far};
use std::arch::x86_64::*;

/// Columns of a panel, 16 KB of f32, half of the first-level cache; a multiple of 16.
pub(super) const PASS: usize = 256;

/// Activation rows whose accumulators fit the registers.
const X_ROWS: usize = 6;

/// Columns of one iteration of the GEMM's loop. The compiler unrolls eight, and computes the
/// activation rows' addresses once. It leaves sixteen as a loop, whose additions take a third of
/// the instructions.
const UNROLL: usize = 8;

/// Maximum number of activation rows that share a load of weights in [`few_rows`].
const FEW: usize = 6;

/// Weight rows of one iteration of [`few_rows`].
const FEW_ROWS: usize = 4;

/// Weight rows of one iteration of GEMV: the number of chains for two multiply-adds a cycle with
/// latency 4.
const GEMV_ROWS: usize = 8;

/// Maximum number of lines of the next tile that are prefetched at a time; more would wait for one
/// another.
const LINES: usize = 16;

/// Bytes from one copied activation row to the next, an odd number of cache lines.
const COPY_STRIDE: usize = PASS * 4 + 64;

/// Bytes of scratch; the same for any number of columns.
pub(super) fn scratch_bytes(_n_cols: usize) -> usize {
    64 + PASS * TILE_ROWS * 4 + X_ROWS * COPY_STRIDE
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
    let xs = ActRows { base: x.0, stride: 0, n: 1 };
    // SAFETY: the caller guarantees rows `r0..r1` of `n_cols` numbers, `n_cols` f32 activations at
    // `x`, room at `out`, and the instruction set.
    unsafe {
        by_groups!(r0..r1, GEMV_ROWS, |r, N| block::<F, N, 1>(w, n_cols, r, xs, out.add(r - r0)));
    }
}

/// [`super::GemmTile`] with the bits of GEMV; the scratch is not used.
///
/// # Safety
/// As [`super::GemmTile`]; AVX2, FMA and F16C are available.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn few_rows<F: FloatFormat>(
    w: WeightRows,
    n_cols: usize,
    part: Part,
    xs: ActRows,
    _scratch: *mut u8,
    out: *mut f32,
) {
    let Part { r0, n_rows, .. } = part;
    let mut r = 0;
    while r < n_rows {
        let n_weights = if r + FEW_ROWS <= n_rows { FEW_ROWS } else { 1 };
        let mut i = 0;
        while i < xs.n {
            // Seven and eight rows are two equal halves instead of six and a rest.
            let n = match xs.n - i {
                left @ ..=FEW => left,
                7 | 8 => 4,
                _ => FEW,
            };
            // SAFETY: the caller guarantees `n_rows` weight rows from `r0` on and `xs.n` activation
            // rows, of which these are some.
            unsafe {
                let xs = ActRows { base: xs.row(i).0, n, ..xs };
                let out = out.add(i * TILE_ROWS + r);
                match n_weights {
                    FEW_ROWS => four_weights::<F>(w, n_cols, r0 + r, xs, out),
                    _ => one_weight::<F>(w, n_cols, r0 + r, xs, out),
                }
            }
            i += n;
        }
        r += n_weights;
    }
}

/// Multiplies [`FEW_ROWS`] weight rows with up to [`FEW`] activation rows, at most as many at a
/// time as there are registers for.
///
/// # Safety
/// As [`few_rows`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn four_weights<F: FloatFormat>(w: WeightRows, n_cols: usize, r: usize, xs: ActRows, out: *mut f32) {
    // SAFETY: the caller guarantees `FEW_ROWS` weight rows from `r` on, `xs.n <= FEW` activation
    // rows of `n_cols`, room for their products at `out`, and the instruction set.
    unsafe {
        match xs.n {
            1 => block::<F, FEW_ROWS, 1>(w, n_cols, r, xs, out),
            2 => block::<F, FEW_ROWS, 2>(w, n_cols, r, xs, out),
            3 => block::<F, FEW_ROWS, 3>(w, n_cols, r, xs, out),
            n => {
                for half in [0, FEW_ROWS / 2] {
                    let out = out.add(half);
                    match n {
                        4 => block::<F, { FEW_ROWS / 2 }, 4>(w, n_cols, r + half, xs, out),
                        5 => block::<F, { FEW_ROWS / 2 }, 5>(w, n_cols, r + half, xs, out),
                        _ => block::<F, { FEW_ROWS / 2 }, FEW>(w, n_cols, r + half, xs, out),
                    }
                }
            }
        }
    }
}

/// Multiplies one weight row with up to [`FEW`] activation rows.
///
/// # Safety
/// As [`few_rows`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn one_weight<F: FloatFormat>(w: WeightRows, n_cols: usize, r: usize, xs: ActRows, out: *mut f32) {
    for i in 0..xs.n {
        // SAFETY: the caller guarantees weight row `r`, `xs.n` activation rows of `n_cols`, room
        // for their products at `out`, and the instruction set.
        unsafe {
            let x = ActRows { base: xs.row(i).0, n: 1, ..xs };
            block::<F, 1, 1>(w, n_cols, r, x, out.add(i * TILE_ROWS));
        }
    }
}

/// Multiplies `R` weight rows from row `r` on with `C` activation rows: `out[c * TILE_ROWS + i]`
/// for weight row `r + i`.
///
/// # Safety
/// The rows have `n_cols` numbers; `out` has room for the products; AVX2, FMA and F16C are
/// available.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn block<F: FloatFormat, const R: usize, const C: usize>(
    w: WeightRows,
    n_cols: usize,
    r: usize,
    xs: ActRows,
    out: *mut f32,
) {
    let row_bytes = w.row_bytes;
    // SAFETY: the caller guarantees `R` weight rows and `C` activation rows of `n_cols` numbers,
    // room for their products at `out`, and the instruction set.
    unsafe {
        let (w, x) = (w.values.add(r * row_bytes), xs.base.cast::<f32>());
        let mut sums = [[_mm256_setzero_ps(); C]; R];
        let (full, eights) = (n_cols / 32 * 32, n_cols / 8 * 8);
        let ahead = groups_ahead(R.max(FEW_ROWS) * row_bytes);
        for k in (0..full).step_by(32) {
            for i in 0..R {
                let next = w.wrapping_add(ahead + i * row_bytes + k * F::BYTES);
                for line in (0..32 * F::BYTES).step_by(64) {
                    prefetch_far(next.wrapping_add(line));
                }
            }
            for part in 0..4 {
                let k = k + part * 8;
                eight::<F, R, C>(w.add(k * F::BYTES), row_bytes, x.add(k), xs.stride, &mut sums);
            }
        }
        for k in (full..eights).step_by(8) {
            eight::<F, R, C>(w.add(k * F::BYTES), row_bytes, x.add(k), xs.stride, &mut sums);
        }
        for i in 0..R {
            for c in 0..C {
                let mut sum = horizontal_sum(sums[i][c]);
                for k in eights..n_cols {
                    let p = w.add(i * row_bytes + k * F::BYTES);
                    let weight = F::decode(std::slice::from_raw_parts(p, F::BYTES));
                    sum += weight * *x.byte_add(c * xs.stride).add(k);
                }
                out.add(c * TILE_ROWS + i).write(sum);
            }
        }
    }
}

/// Accumulates eight columns of a [`block`].
///
/// # Safety
/// Eight numbers are readable at `w` and `x` in each row; AVX2, FMA and F16C are available.
#[inline(always)]
unsafe fn eight<F: FloatFormat, const R: usize, const C: usize>(
    w: *const u8,
    row_bytes: usize,
    x: *const f32,
    stride: usize,
    sums: &mut [[__m256; C]; R],
) {
    // SAFETY: the caller guarantees eight numbers in each of `R` rows from `w` on and `C` rows from
    // `x` on, and the instruction set.
    unsafe {
        let mut activations = [_mm256_setzero_ps(); C];
        for c in 0..C {
            activations[c] = _mm256_loadu_ps(x.byte_add(c * stride));
        }
        for i in 0..R {
            let weights = F::load8(w.add(i * row_bytes));
            for c in 0..C {
                sums[i][c] = _mm256_fmadd_ps(weights, activations[c], sums[i][c]);
            }
        }
    }
}

/// # Safety
/// As [`super::GemmTile`]; AVX2, FMA and F16C are available.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn gemm_tile<F: FloatFormat>(
    w: WeightRows,
    _n_cols: usize,
    part: Part,
    xs: ActRows,
    scratch: *mut u8,
    out: *mut f32,
) {
    let (w, row_bytes) = (w.values, w.row_bytes);
    let r0 = part.r0;
    // SAFETY: by the caller, `w` has the weight rows and columns of the part, and `xs` as many
    // activations in each row. `scratch` has the kernel's `gemm_scratch_bytes`, and `out` has `xs.n
    // * TILE_ROWS` values. The caller checked the instruction set. Each pass is within the part.
    unsafe {
        let panel: *mut f32 = scratch.add(scratch.align_offset(64)).cast();
        let rows = row_addresses(w, row_bytes, r0, part.n_rows);
        for (k, n) in part.passes(PASS) {
            let whole = n / 8 * 8;
            for half in [0, 8] {
                for c in (0..whole).step_by(8) {
                    let mut registers = [_mm256_setzero_si256(); 8];
                    for r in 0..8 {
                        registers[r] = _mm256_castps_si256(F::load8(rows[half + r].add((k + c) * F::BYTES)));
                    }
                    store_columns(registers, panel.add(c * TILE_ROWS + half));
                }
                if whole < n {
                    let mut registers = [_mm256_setzero_si256(); 8];
                    for r in 0..8 {
                        let p = rows[half + r].add((k + whole) * F::BYTES);
                        registers[r] = _mm256_castps_si256(load_some::<F>(p, n - whole));
                    }
                    store_columns(registers, panel.add(whole * TILE_ROWS + half));
                }
            }
            let next = w.wrapping_add((r0 + TILE_ROWS) * row_bytes + k * F::BYTES);
            let next = NextFloatTile { row: next, row_bytes, n_bytes: n * F::BYTES, at: 0 };
            multiply(panel, k, n, xs, next, panel.add(PASS * TILE_ROWS), out);
        }
    }
}

/// Transposes eight rows into one half of a panel.
///
/// # Safety
/// AVX2 is available; `panel` has room for 8 columns, and is aligned to a vector.
#[inline(always)]
unsafe fn store_columns(rows: [__m256i; 8], panel: *mut f32) {
    // SAFETY: the caller guarantees AVX2, and room for 8 columns at `panel`, aligned to a vector.
    unsafe {
        for (i, column) in transpose(rows).into_iter().enumerate() {
            _mm256_store_si256(panel.add(i * TILE_ROWS).cast(), column);
        }
    }
}

/// Prefetch state of the tile that probably comes next. A prefetch beyond the last tile does not
/// fault.
struct NextFloatTile {
    /// Row that is prefetched.
    row: *const u8,
    row_bytes: usize,
    /// Bytes of a row.
    n_bytes: usize,
    /// Bytes of the row that were prefetched.
    at: usize,
}

impl NextFloatTile {
    /// Prefetches `n` more lines.
    #[inline(always)]
    fn prefetch(&mut self, n: usize) {
        for _ in 0..n {
            if self.at >= self.n_bytes {
                (self.at, self.row) = (0, self.row.wrapping_add(self.row_bytes));
            }
            // SAFETY: a prefetch never faults, whatever the address; SSE is part of x86-64.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(self.row.wrapping_add(self.at).cast()) };
            self.at += 64;
        }
    }
}

/// Loads eight numbers, or the first `n` of them and zeros.
///
/// # Safety
/// AVX2 and F16C are available; `n` numbers, at most eight, are readable at `p`.
#[inline(always)]
unsafe fn load_some<F: FloatFormat>(p: *const u8, n: usize) -> __m256 {
    // SAFETY: the caller guarantees AVX2, F16C and eight or `n` numbers at `p`; fewer than eight
    // are copied to `last`, which has room for eight.
    unsafe {
        if n >= 8 {
            return F::load8(p);
        }
        let mut last = [0u8; 32];
        last.as_mut_ptr().copy_from_nonoverlapping(p, n * F::BYTES);
        F::load8(last.as_ptr())
    }
}

/// Multiplies the panel (columns `k..k + n`) with all activation rows; adds to `out`, or sets it if
/// `k` is 0. Meanwhile it prefetches the next tile's weights into the second-level cache.
///
/// # Safety
/// The panel is filled; the activation rows have `k + n` columns; `copy` has room for `n` columns
/// of `X_ROWS` rows; `out` has `xs.n * TILE_ROWS` values.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn multiply(
    panel: *const f32,
    k: usize,
    n: usize,
    xs: ActRows,
    mut next_tile: NextFloatTile,
    copy: *mut f32,
    out: *mut f32,
) {
    let lines = (TILE_ROWS * next_tile.n_bytes).div_ceil(64 * xs.n.div_ceil(X_ROWS).max(1));
    // SAFETY: the caller guarantees the panel, `xs`, `copy` and `out`; `i + c` is at most `xs.n`.
    unsafe {
        let mut i = 0;
        while i < xs.n {
            next_tile.prefetch(lines.min(LINES));
            let (mut x, mut stride) = (xs.row(i).0.cast::<f32>().add(k), xs.stride);
            let out = out.add(i * TILE_ROWS);
            let c = X_ROWS.min(xs.n - i);
            if crowds(stride) {
                for c in 0..c {
                    let to = copy.byte_add(c * COPY_STRIDE);
                    to.copy_from_nonoverlapping(x.byte_add(c * stride), n);
                }
                (x, stride) = (copy, COPY_STRIDE);
            }
            // A prefetch beyond the last row does not fault.
            let next = xs.base.wrapping_add((i + X_ROWS) * xs.stride).cast::<f32>().wrapping_add(k);
            let x = Activations { x, stride, next, next_stride: xs.stride };
            match c {
                1 => columns::<1>(panel, n, x, k == 0, out),
                2 => columns::<2>(panel, n, x, k == 0, out),
                3 => columns::<3>(panel, n, x, k == 0, out),
                4 => columns::<4>(panel, n, x, k == 0, out),
                5 => columns::<5>(panel, n, x, k == 0, out),
                _ => columns::<X_ROWS>(panel, n, x, k == 0, out),
            }
            i += c;
        }
    }
}

/// True if activation rows at this distance would evict the panel from the cache sets that all rows
/// map to. The panel is half of the first-level cache (64 sets of 64 bytes, 8 ways). A copy then
/// costs less than the misses.
const fn crowds(stride: usize) -> bool {
    stride.is_multiple_of(4096)
}

/// Activation rows, and the rows to prefetch.
#[derive(Clone, Copy)]
struct Activations {
    x: *const f32,
    /// Bytes from one row to the next.
    stride: usize,
    /// Address of the rows to prefetch; any address is allowed.
    next: *const f32,
    next_stride: usize,
}

/// Multiplies the panel with `C` activation rows.
///
/// # Safety
/// As [`multiply`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn columns<const C: usize>(panel: *const f32, n: usize, x: Activations, first: bool, out: *mut f32) {
    // SAFETY: the caller guarantees `n` columns of the panel and of `C` rows at `x.x`, `(C, 16)`
    // values at `out`, and the instruction set.
    unsafe {
        let mut sums = [[_mm256_setzero_ps(); 2]; C];
        if !first {
            for c in 0..C {
                for half in 0..2 {
                    sums[c][half] = _mm256_loadu_ps(out.add(c * TILE_ROWS + half * 8));
                }
            }
        }
        let whole = n / UNROLL * UNROLL;
        for k in (0..whole).step_by(UNROLL) {
            if k % 16 == 0 {
                for c in 0..C {
                    let next = x.next.wrapping_byte_add(c * x.next_stride).wrapping_add(k);
                    _mm_prefetch::<_MM_HINT_T0>(next.cast());
                }
            }
            for k in k..k + UNROLL {
                column::<C>(panel.add(k * TILE_ROWS), x.x.add(k), x.stride, &mut sums);
            }
        }
        for k in whole..n {
            column::<C>(panel.add(k * TILE_ROWS), x.x.add(k), x.stride, &mut sums);
        }
        for c in 0..C {
            for half in 0..2 {
                _mm256_storeu_ps(out.add(c * TILE_ROWS + half * 8), sums[c][half]);
            }
        }
    }
}

/// Accumulates one column of 16 weight rows times `C` activation rows.
///
/// # Safety
/// AVX2 and FMA are available; 16 numbers are readable at `panel`, aligned, and one at `x` in each
/// row.
#[inline(always)]
unsafe fn column<const C: usize>(
    panel: *const f32,
    x: *const f32,
    stride: usize,
    sums: &mut [[__m256; 2]; C],
) {
    // SAFETY: the caller guarantees AVX2 and FMA, 16 aligned numbers at `panel`, and one number in
    // each of `C` rows from `x` on.
    unsafe {
        let weights = [_mm256_load_ps(panel), _mm256_load_ps(panel.add(8))];
        for c in 0..C {
            let activation = _mm256_broadcast_ss(&*x.byte_add(c * stride));
            for half in 0..2 {
                sums[c][half] = _mm256_fmadd_ps(weights[half], activation, sums[c][half]);
            }
        }
    }
}
