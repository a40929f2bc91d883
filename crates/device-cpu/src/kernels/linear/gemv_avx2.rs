//! AVX2 matrix times vector: lanes are columns, a few weight rows share each activation load.
//!
//! Order of accumulation for a row: 8 lanes of f32; lane `l` of a register of 32 columns holds columns `4l..4l + 4`, whose
//! integer sum is exact. Registers follow in the order of the columns, one fused multiply-add each; offsets accumulate
//! in 8 lanes of their own, one a group. At the end the two are added, then the lanes, 4 apart first. The order is the
//! same whether several rows are computed together or one.
//!
//! Bytes moved: the weights, once; the next group of rows is prefetched as in `gemv_avx512`.
//!
//! A few activation rows and signed codes ([`few_rows`]): the same chains, a weight row at a time with up to [`FEW`]
//! activation rows, which are chains enough. Each block is loaded, and its magnitude and scale made, once for all of them.

use super::activation::{ActRow, ActRows};
use super::avx2::{Avx2Format, horizontal_sum, is_signed};
use super::{TILE_ROWS, WeightRows};
use std::arch::x86_64::*;

/// Rows that share the activations.
const ROWS: usize = 4;

/// Most activation rows that share a weight row in [`few_rows`].
const FEW: usize = 6;

/// # Safety
/// As [`super::Gemv`]; AVX2, FMA and F16C are available.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn gemv<F: Avx2Format>(
    w: WeightRows,
    n_cols: usize,
    r0: usize,
    r1: usize,
    x: ActRow,
    out: *mut f32,
) {
    let (w, row_bytes) = (w.values, w.row_bytes);
    // SAFETY: rows `r0..r1` in groups, each within the caller's promises.
    unsafe {
        let mut r = r0;
        while r + ROWS <= r1 {
            rows::<F, ROWS>(w.add(r * row_bytes), row_bytes, n_cols, x, out.add(r - r0));
            r += ROWS;
        }
        while r < r1 {
            rows::<F, 1>(w.add(r * row_bytes), row_bytes, n_cols, x, out.add(r - r0));
            r += 1;
        }
    }
}

/// `R` neighbouring rows.
///
/// # Safety
/// As [`gemv`], for `R` rows at `row`.
#[inline(always)]
unsafe fn rows<F: Avx2Format, const R: usize>(
    row: *const u8,
    row_bytes: usize,
    n_cols: usize,
    x: ActRow,
    out: *mut f32,
) {
    let (len, bytes) = (F::BLOCK.block_len(), F::BLOCK.block_bytes());
    // SAFETY: blocks within the rows and their columns within the activations.
    unsafe {
        let x = x.q8(n_cols);
        let ones = _mm256_set1_epi16(1);
        let zero = _mm256_set1_epi8(F::ZERO as i8);
        let halves = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
        let mut sums = [_mm256_setzero_ps(); R];
        let mut offset_sums = [_mm256_setzero_ps(); R];
        let mut scale = [[0f32; 16]; R];
        let mut offset = [0f32; 16];
        for b in 0..n_cols / len {
            for r in 0..R {
                let p = row.add(r * row_bytes + b * bytes);
                for line in 0..bytes.div_ceil(64) {
                    _mm_prefetch::<_MM_HINT_T0>(p.wrapping_add(R * row_bytes + line * 64).cast());
                }
                F::scales_avx2(p, &mut scale[r], &mut offset);
                if F::HAS_OFFSET {
                    if len == 32 {
                        let product = _mm_set_ss(offset[0] * *x.sum32.add(b));
                        offset_sums[r] = _mm256_add_ps(offset_sums[r], _mm256_zextps128_ps256(product));
                    } else {
                        let n_groups = len / F::GROUP;
                        let x_sums = if F::GROUP == 32 { x.sum32 } else { x.sum16 }.add(b * n_groups);
                        for g in (0..n_groups).step_by(8) {
                            let offset = _mm256_loadu_ps(offset.as_ptr().add(g));
                            offset_sums[r] =
                                _mm256_fmadd_ps(offset, _mm256_loadu_ps(x_sums.add(g)), offset_sums[r]);
                        }
                    }
                }
            }
            for i in 0..len / 32 {
                let q = _mm256_loadu_si256(x.q.add(b * len + i * 32).cast());
                let x_scale = _mm256_broadcast_ss(&*x.scale.add(b * len / 32 + i));
                let zeros = _mm256_maddubs_epi16(zero, q);
                for r in 0..R {
                    let codes = F::codes32(row.add(r * row_bytes + b * bytes), i);
                    let pairs = if is_signed::<F>() {
                        _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(q, codes))
                    } else if F::HAS_OFFSET {
                        _mm256_maddubs_epi16(codes, q)
                    } else {
                        _mm256_sub_epi16(_mm256_maddubs_epi16(codes, q), zeros)
                    };
                    let products = _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, ones));
                    let scale = if F::GROUP == 32 {
                        _mm256_broadcast_ss(&scale[r][i])
                    } else {
                        let two = scale[r].as_ptr().add(2 * i).cast::<f64>().read_unaligned();
                        _mm256_permutevar_ps(_mm256_castpd_ps(_mm256_set1_pd(two)), halves)
                    };
                    sums[r] = _mm256_fmadd_ps(_mm256_mul_ps(scale, x_scale), products, sums[r]);
                }
            }
        }
        for r in 0..R {
            out.add(r).write(horizontal_sum(_mm256_add_ps(sums[r], offset_sums[r])));
        }
    }
}

/// As [`super::GemmTile`] for types with signed codes, with the bits of [`gemv`]; the scratch is not used.
///
/// # Safety
/// As [`super::GemmTile`]; AVX2, FMA and F16C are available.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn few_rows<F: Avx2Format>(
    w: WeightRows,
    n_cols: usize,
    r0: usize,
    n_rows: usize,
    xs: ActRows,
    _scratch: *mut u8,
    out: *mut f32,
) {
    for r in 0..n_rows {
        let mut i = 0;
        while i < xs.n {
            // Seven and eight are two equal halves rather than six and a rest.
            let n = match xs.n - i {
                left @ ..=FEW => left,
                7 | 8 => 4,
                _ => FEW,
            };
            // SAFETY: the rows are among the caller's.
            unsafe {
                let (x, out) = (xs.row(i), out.add(i * TILE_ROWS + r));
                match n {
                    1 => few::<F, 1>(w, r0 + r, n_cols, x, xs.stride, out),
                    2 => few::<F, 2>(w, r0 + r, n_cols, x, xs.stride, out),
                    3 => few::<F, 3>(w, r0 + r, n_cols, x, xs.stride, out),
                    4 => few::<F, 4>(w, r0 + r, n_cols, x, xs.stride, out),
                    5 => few::<F, 5>(w, r0 + r, n_cols, x, xs.stride, out),
                    _ => few::<F, FEW>(w, r0 + r, n_cols, x, xs.stride, out),
                }
            }
            i += n;
        }
    }
}

/// Weight row `r` times `C` activation rows: `out[c * TILE_ROWS]`.
///
/// # Safety
/// As [`few_rows`]; `x` is the first of `C` rows, `stride` bytes apart.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn few<F: Avx2Format, const C: usize>(
    w: WeightRows,
    r: usize,
    n_cols: usize,
    x: ActRow,
    stride: usize,
    out: *mut f32,
) {
    const { assert!(is_signed::<F>() && F::GROUP == 32 && F::BLOCK.block_len() == 32 && !F::HAS_OFFSET) };
    // SAFETY: blocks within the row and their columns within the activations.
    unsafe {
        let row = w.values.add(r * w.row_bytes);
        let x = x.q8(n_cols);
        let ones = _mm256_set1_epi16(1);
        let mut sums = [_mm256_setzero_ps(); C];
        let (mut scale, mut offset) = ([0f32; 16], [0f32; 16]);
        for b in 0..n_cols / 32 {
            let block = row.add(b * F::BLOCK.block_bytes());
            // Beyond the last row a prefetch does not fault.
            _mm_prefetch::<_MM_HINT_T0>(block.wrapping_add(ROWS * w.row_bytes).cast());
            let codes = F::codes32(block, 0);
            let magnitude = _mm256_abs_epi8(codes);
            F::scales_avx2(block, &mut scale, &mut offset);
            let scale = _mm256_set1_ps(scale[0]);
            for c in 0..C {
                let q = _mm256_loadu_si256(x.q.byte_add(c * stride).add(b * 32).cast());
                let pairs = _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(q, codes));
                let products = _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, ones));
                let x_scale = _mm256_broadcast_ss(&*x.scale.byte_add(c * stride).add(b));
                sums[c] = _mm256_fmadd_ps(_mm256_mul_ps(scale, x_scale), products, sums[c]);
            }
        }
        for c in 0..C {
            // `gemv` adds offsets, of which there are none.
            let sum = _mm256_add_ps(sums[c], _mm256_setzero_ps());
            out.add(c * TILE_ROWS).write(horizontal_sum(sum));
        }
    }
}
