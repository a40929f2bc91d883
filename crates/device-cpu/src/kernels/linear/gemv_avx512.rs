//! AVX-512 matrix times vector: lanes are columns, four weight rows share each activation load.
//!
//! Order of accumulation for a row: 16 lanes of f32; lane `l` of a register of 64 columns holds columns
//! `4l..4l + 4`, whose integer sum is exact (the zero point is taken out in integers). Registers follow in the order of the
//! columns, one fused multiply-add each. Offsets accumulate in lanes of their own while blocks come in fours, and
//! are spread over the lanes for the rest. The lanes are added at the end, 8 apart first. The order is the same
//! whether four rows are computed together or one.
//!
//! Bytes moved: the weights, once. While a group of four rows is computed, the next four are prefetched at the same
//! distance from their start, since short rows end before the processor's own prefetching has found its stride.

use super::WeightRows;
use super::activation::ActRow;
use super::avx512::{PairFormat, SuperFormat, group_lanes, horizontal_sum, load512};
use super::portable::Format;
use std::arch::x86_64::*;

/// Rows that share the activations.
const ROWS: usize = 4;

/// For `vpermilps`: value 0 in lanes 0..8, value 1 in lanes 8..16, of a register filled with the two in turn.
const PAIR_LANES: [u32; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1];

/// For `vpermps`: each lane's group of 32 columns, and of 16.
pub(super) const GROUP_32: [[u32; 16]; 4] = group_lanes(32);
const GROUP_16: [[u32; 16]; 4] = group_lanes(16);

/// Each of eight values twice.
const TWICE: [u32; 16] = [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7];

/// # Safety
/// As [`super::Gemv`]; AVX-512 is available.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn gemv_pairs<F: PairFormat>(
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
            let row = w.add(r * row_bytes);
            // The prefetched rows may lie beyond the last: a prefetch does not fault.
            pair_rows::<F, ROWS>(row, row_bytes, n_cols, x, out.add(r - r0));
            r += ROWS;
        }
        while r < r1 {
            pair_rows::<F, 1>(w.add(r * row_bytes), row_bytes, n_cols, x, out.add(r - r0));
            r += 1;
        }
    }
}

/// `R` neighbouring rows.
///
/// # Safety
/// As [`gemv_pairs`], for `R` rows at `row`.
#[inline(always)]
unsafe fn pair_rows<F: PairFormat, const R: usize>(
    row: *const u8,
    row_bytes: usize,
    n_cols: usize,
    x: ActRow,
    out: *mut f32,
) {
    let n_blocks = n_cols / 32;
    let mut sums = [zero(); R];
    let n_quads = if F::HAS_QUAD { n_blocks / 4 } else { 0 };
    // SAFETY: blocks within the rows in fours, then twos, the last alone if their number is odd; the activations'
    // paddings make its absent half a multiplication with zeros.
    unsafe {
        if F::HAS_QUAD {
            let mut offset_sums = [_mm256_setzero_ps(); R];
            for j in 0..n_quads {
                quad_step::<F, R>(row, row_bytes, n_cols, x, j, &mut sums, &mut offset_sums);
            }
            if F::HAS_OFFSET {
                for r in 0..R {
                    // The lower half holds the scales' products, which are no part of the result.
                    let offsets = _mm512_zextps256_ps512(offset_sums[r]);
                    sums[r] = _mm512_mask_add_ps(sums[r], 0x00f0, sums[r], offsets);
                }
            }
        }
        for j in 2 * n_quads..n_blocks / 2 {
            pair_step::<F, R, false>(row, row_bytes, n_cols, x, j, &mut sums);
        }
        if n_blocks % 2 == 1 {
            pair_step::<F, R, true>(row, row_bytes, n_cols, x, n_blocks / 2, &mut sums);
        }
        for (r, sum) in sums.into_iter().enumerate() {
            out.add(r).write(horizontal_sum(sum));
        }
    }
}

/// Four blocks, number `j`, of `R` rows.
///
/// # Safety
/// As [`pair_rows`].
#[inline(always)]
unsafe fn quad_step<F: PairFormat, const R: usize>(
    row: *const u8,
    row_bytes: usize,
    n_cols: usize,
    x: ActRow,
    j: usize,
    sums: &mut [__m512; R],
    offset_sums: &mut [__m256; R],
) {
    let bytes = 4 * F::BLOCK.block_bytes();
    // SAFETY: as `pair_rows`.
    unsafe {
        let x = x.q8(n_cols);
        let q =
            [_mm512_loadu_si512(x.q.add(j * 128).cast()), _mm512_loadu_si512(x.q.add(j * 128 + 64).cast())];
        let start = [zero_point::<F>(q[0], F::ZERO), zero_point::<F>(q[1], F::ZERO)];
        let x_scale = _mm256_castps128_ps256(_mm_loadu_ps(x.scale.add(4 * j)));
        let x_factors = _mm256_insertf128_ps::<1>(x_scale, _mm_loadu_ps(x.sum32.add(4 * j)));
        for r in 0..R {
            let p = row.add(r * row_bytes + j * bytes);
            _mm_prefetch::<_MM_HINT_T0>(p.wrapping_add(R * row_bytes).cast());
            _mm_prefetch::<_MM_HINT_T0>(p.wrapping_add(R * row_bytes + 64).cast());
            let quad = F::quad(p);
            let factors = _mm256_mul_ps(quad.scale, x_factors);
            if F::HAS_OFFSET {
                offset_sums[r] = _mm256_add_ps(offset_sums[r], factors);
            }
            let factors = _mm512_castps256_ps512(factors);
            for z in 0..2 {
                let products = _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(start[z], quad.codes[z], q[z]));
                let scale = _mm512_permutexvar_ps(load512(&GROUP_32[z]), factors);
                sums[r] = _mm512_fmadd_ps(scale, products, sums[r]);
            }
        }
    }
}

#[inline(always)]
pub(super) fn zero() -> __m512 {
    // SAFETY: all zeros is a value of this type.
    unsafe { std::mem::zeroed() }
}

/// Pair `j` of the blocks of `R` rows.
///
/// # Safety
/// As [`pair_rows`].
#[inline(always)]
unsafe fn pair_step<F: PairFormat, const R: usize, const HALF: bool>(
    row: *const u8,
    row_bytes: usize,
    n_cols: usize,
    x: ActRow,
    j: usize,
    sums: &mut [__m512; R],
) {
    let pair_bytes = 2 * F::BLOCK.block_bytes();
    // SAFETY: as `pair_rows`.
    unsafe {
        let x = x.q8(n_cols);
        let lanes = load512(&PAIR_LANES);
        let two = |values: *const f32| {
            let pair = _mm512_set1_pd(values.add(2 * j).cast::<f64>().read_unaligned());
            _mm512_permutevar_ps(_mm512_castpd_ps(pair), lanes)
        };
        let q = _mm512_loadu_si512(x.q.add(j * 64).cast());
        let x_scale = two(x.scale);
        // Eight lanes take an eighth each: exact.
        let x_sum = if F::HAS_OFFSET { _mm512_mul_ps(two(x.sum32), _mm512_set1_ps(0.125)) } else { x_scale };
        let start = zero_point::<F>(q, F::ZERO);
        for r in 0..R {
            let p = row.add(r * row_bytes + j * pair_bytes);
            _mm_prefetch::<_MM_HINT_T0>(p.wrapping_add(R * row_bytes).cast());
            let pair = F::pair::<HALF>(p);
            let products = _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(start, pair.codes, q));
            sums[r] = _mm512_fmadd_ps(_mm512_mul_ps(pair.scale, x_scale), products, sums[r]);
            if F::HAS_OFFSET {
                sums[r] = _mm512_fmadd_ps(pair.offset, x_sum, sums[r]);
            }
        }
    }
}

/// What the zero point of unsigned codes adds to each lane, negated; it does not depend on the weights.
///
/// # Safety
/// AVX-512 is available.
#[inline(always)]
unsafe fn zero_point<F: Format>(q: __m512i, zero: u8) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        let none = _mm512_setzero_si512();
        if F::HAS_OFFSET {
            return none;
        }
        _mm512_sub_epi32(none, _mm512_dpbusd_epi32(none, _mm512_set1_epi8(zero as i8), q))
    }
}

/// # Safety
/// As [`super::Gemv`]; AVX-512 is available.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn gemv_super<F: SuperFormat>(
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
            super_rows::<F, ROWS>(w.add(r * row_bytes), row_bytes, n_cols, x, out.add(r - r0));
            r += ROWS;
        }
        while r < r1 {
            super_rows::<F, 1>(w.add(r * row_bytes), row_bytes, n_cols, x, out.add(r - r0));
            r += 1;
        }
    }
}

/// `R` neighbouring rows.
///
/// # Safety
/// As [`gemv_super`], for `R` rows at `row`.
#[inline(always)]
unsafe fn super_rows<F: SuperFormat, const R: usize>(
    row: *const u8,
    row_bytes: usize,
    n_cols: usize,
    x: ActRow,
    out: *mut f32,
) {
    let bytes = F::BLOCK.block_bytes();
    let mut sums = [zero(); R];
    // SAFETY: blocks within the rows and their columns within the activations.
    unsafe {
        let x = x.q8(n_cols);
        for b in 0..n_cols / 256 {
            let mut q = [_mm512_setzero_si512(); 4];
            let mut start = q;
            for z in 0..4 {
                q[z] = _mm512_loadu_si512(x.q.add(b * 256 + z * 64).cast());
                start[z] = zero_point::<F>(q[z], F::ZERO);
            }
            let x_scale = _mm512_castps256_ps512(_mm256_loadu_ps(x.scale.add(b * 8)));
            let (x_scale, x_sum) = if F::GROUP == 32 {
                (_mm512_insertf32x8::<1>(x_scale, _mm256_loadu_ps(x.sum32.add(b * 8))), x_scale)
            } else {
                (
                    _mm512_permutexvar_ps(load512(&TWICE), x_scale),
                    if F::HAS_OFFSET { _mm512_loadu_ps(x.sum16.add(b * 16)) } else { x_scale },
                )
            };
            for r in 0..R {
                let p = row.add(r * row_bytes + b * bytes);
                for line in 0..bytes.div_ceil(64) {
                    _mm_prefetch::<_MM_HINT_T0>(p.wrapping_add(R * row_bytes + line * 64).cast());
                }
                let block = F::block(p);
                let scale = _mm512_mul_ps(block.scale, x_scale);
                if F::HAS_OFFSET {
                    sums[r] = if F::GROUP == 32 {
                        _mm512_mask_add_ps(sums[r], 0xff00, sums[r], scale)
                    } else {
                        _mm512_fmadd_ps(block.offset, x_sum, sums[r])
                    };
                }
                let lanes = if F::GROUP == 32 { &GROUP_32 } else { &GROUP_16 };
                for z in 0..4 {
                    let products = _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(start[z], block.codes[z], q[z]));
                    let scale = _mm512_permutexvar_ps(load512(&lanes[z]), scale);
                    sums[r] = _mm512_fmadd_ps(scale, products, sums[r]);
                }
            }
        }
        for (r, sum) in sums.into_iter().enumerate() {
            out.add(r).write(horizontal_sum(sum));
        }
    }
}
