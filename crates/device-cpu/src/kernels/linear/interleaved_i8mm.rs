//! Tiles multiplied by `smmla`: 2 activation rows by 8 columns times 8 columns by 2 weight rows, 32
//! products an instruction.
//!
//! A step of the tile is eight columns of eight rows ([`ArmEights`]). Two activation rows share a
//! register, 8 columns of each, so a sum has the lanes `x0 w0, x0 w1, x1 w0, x1 w1`. Scales have
//! the same order, and the sums are sorted into rows only at the end of a pass. With one activation
//! row half of `smmla` would be wasted. `sdot` computes it instead, with its 8 columns twice, and
//! the sums of four columns are added in pairs.

use super::TILE_ROWS;
use super::interleaved::prefetch_next_rows;
use super::neon::{MultiplyNeon, RowsNeon, Sdot, SourceNeon, sdot, to_f32, x_scale, x_sum};
use super::order::ArmEights;
use std::arch::aarch64::*;
use std::arch::asm;
use std::hint::black_box;

/// Products by `smmla`, and by `sdot` for one activation row.
pub(super) struct Smmla;

/// `sum[2 i + j] += sum_k a[8 i + k] b[8 j + k]`
#[inline]
#[target_feature(enable = "neon,dotprod,i8mm")]
pub(super) fn smmla(mut sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: the function has the features of the instruction, which touches registers only.
    unsafe {
        asm!(
            "smmla {sum:v}.4s, {a:v}.16b, {b:v}.16b",
            sum = inout(vreg) sum,
            a = in(vreg) a,
            b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

/// Runs 24 chains of `n` instructions, and returns the operations of one of the `n`.
#[target_feature(enable = "neon,dotprod,i8mm")]
pub(super) fn chains(n: usize) -> usize {
    let (a, b) = black_box((vdupq_n_s8(3), vdupq_n_s8(5)));
    let mut chains = black_box([vdupq_n_s32(0); 24]);
    for _ in 0..n {
        for chain in &mut chains {
            *chain = smmla(*chain, a, b);
        }
    }
    black_box(chains);
    24 * 32 * 2
}

impl MultiplyNeon for Smmla {
    type Order = ArmEights;

    #[inline(always)]
    unsafe fn rows<S: SourceNeon, const C: usize>(source: S, rows: RowsNeon) {
        #[inline(never)]
        #[target_feature(enable = "neon,dotprod,i8mm")]
        unsafe fn run<S: SourceNeon, const C: usize>(source: S, rows: RowsNeon) {
            // SAFETY: the caller guarantees i8mm, the columns of `source` and of `C <= X_ROWS` rows
            // from `rows.x` on, and room at `rows.out`.
            unsafe {
                match C {
                    1 => one_row::<S>(source, rows),
                    2 => both_halves::<S, 1>(source, C, rows),
                    3 | 4 => both_halves::<S, 2>(source, C, rows),
                    _ => both_halves::<S, 3>(source, C, rows),
                }
            }
        }
        // SAFETY: the caller guarantees i8mm, the columns of `source` and of `C <= X_ROWS` rows,
        // and room at `rows.out`.
        unsafe { run::<S, C>(source, rows) }
    }

    #[inline(always)]
    unsafe fn sixteen(sum: int32x4_t, codes: int8x16_t, q: int8x16_t) -> int32x4_t {
        // SAFETY: the caller guarantees i8mm, which includes `sdot`.
        unsafe { Sdot::sixteen(sum, codes, q) }
    }
}

/// Calls `$step` for each of the four steps of a half, with its index and its first column.
macro_rules! for_steps {
    ($half:ident, $step:ident) => {
        if $half == 0 {
            $step!(0 0);
            $step!(1 8);
            $step!(2 16);
            $step!(3 24);
        } else {
            $step!(4 0);
            $step!(5 8);
            $step!(6 16);
            $step!(7 24);
        }
    };
}

/// Multiplies one activation row.
///
/// # Safety
/// As [`MultiplyNeon::rows`].
#[inline(always)]
unsafe fn one_row<S: SourceNeon>(source: S, rows: RowsNeon) {
    let RowsNeon { n, x, first, out, .. } = rows;
    // SAFETY: the caller guarantees i8mm, `n` columns of `source` and of the row `x`, and 16 values
    // at `out`.
    unsafe {
        let mut sums = [vdupq_n_f32(0.0); 4];
        if !first {
            for r in 0..4 {
                sums[r] = vld1q_f32(out.add(4 * r));
            }
        }
        for b in 0..n / 32 {
            for half in 0..2 {
                let mut products = [vdupq_n_s32(0); 4];
                macro_rules! step {
                    ($step:literal $column:literal) => {
                        let q = vld1q_dup_s64(x.q.add(b * 32 + $column).cast());
                        for i in 0..4 {
                            let codes = source.codes::<$step>(b, i);
                            products[i] = sdot(products[i], codes, vreinterpretq_s8_s64(q));
                        }
                        if S::GROUP == 16 && $column == 8 {
                            add_to_row::<S>(source, 2 * b, half, &products, rows, &mut sums);
                            products = [vdupq_n_s32(0); 4];
                        }
                    };
                }
                for_steps!(half, step);
                let group = if S::GROUP == 16 { 2 * b + 1 } else { b };
                add_to_row::<S>(source, group, half, &products, rows, &mut sums);
            }
        }
        for r in 0..4 {
            vst1q_f32(out.add(4 * r), sums[r]);
        }
    }
}

/// Scales and adds the products of a group for eight rows, each row's in two neighbouring lanes.
///
/// # Safety
/// As [`MultiplyNeon::rows`].
#[inline(always)]
unsafe fn add_to_row<S: SourceNeon>(
    source: S,
    group: usize,
    half: usize,
    products: &[int32x4_t; 4],
    rows: RowsNeon,
    sums: &mut [float32x4_t; 4],
) {
    // SAFETY: the caller guarantees i8mm, and the group in `source` and in `rows.x`.
    unsafe {
        let (scale, offset) = source.scales(group, half);
        for i in 0..2 {
            let product = vpaddq_s32(products[2 * i], products[2 * i + 1]);
            let t = vmulq_n_f32(to_f32::<S>(product), x_scale::<S>(rows.x, 0, group));
            let sum = &mut sums[2 * half + i];
            *sum = vfmaq_f32(*sum, scale[i], t);
            if S::HAS_OFFSET {
                *sum = vfmaq_n_f32(*sum, offset[i], x_sum::<S>(rows.x, 0, group));
            }
        }
    }
}

/// Multiplies `P` pairs of activation rows, `n_x` rows in all. If the last pair has one row, that
/// row is used twice.
///
/// # Safety
/// As [`MultiplyNeon::rows`].
#[inline(always)]
unsafe fn both_halves<S: SourceNeon, const P: usize>(source: S, n_x: usize, rows: RowsNeon) {
    // SAFETY: the caller guarantees i8mm, the columns of `source` and of `n_x` rows from `rows.x`
    // on, and room at `rows.out`.
    unsafe {
        half_of::<S, P, 0>(source, n_x, rows);
        half_of::<S, P, 1>(source, n_x, rows);
    }
}

/// Multiplies weight rows `8 HALF..8 HALF + 8`.
///
/// # Safety
/// As [`MultiplyNeon::rows`].
#[inline(always)]
unsafe fn half_of<S: SourceNeon, const P: usize, const HALF: usize>(source: S, n_x: usize, rows: RowsNeon) {
    let RowsNeon { n, x, stride, first, out } = rows;
    let second = |pair: usize| (2 * pair + 1).min(n_x - 1);
    // SAFETY: the caller guarantees i8mm, `n` columns of `source` and of `n_x` rows from `x` on,
    // and room at `out`; `second` is below `n_x`.
    unsafe {
        let out = out.add(8 * HALF);
        let mut sums = [[vdupq_n_f32(0.0); 4]; P];
        if !first {
            for p in 0..P {
                let (low, high) = (out.add(2 * p * TILE_ROWS), out.add(second(p) * TILE_ROWS));
                for i in 0..2 {
                    let of_rows = [vld1q_f32(low.add(4 * i)), vld1q_f32(high.add(4 * i))];
                    [sums[p][2 * i], sums[p][2 * i + 1]] = halves_swapped(of_rows);
                }
            }
        }
        for b in 0..n / 32 {
            if HALF == 0 {
                match P {
                    1 => prefetch_next_rows::<2>(x, stride, b),
                    2 => prefetch_next_rows::<4>(x, stride, b),
                    _ => prefetch_next_rows::<6>(x, stride, b),
                }
            }
            let mut products = [[vdupq_n_s32(0); 4]; P];
            // Columns of two steps, for both rows of each pair.
            let mut q = [[vdupq_n_s8(0); 2]; P];
            macro_rules! step {
                ($step:literal $column:literal) => {
                    if $column % 16 == 0 {
                        for p in 0..P {
                            let low = x.q.byte_add(2 * p * stride).add(b * 32 + $column);
                            let high = x.q.byte_add(second(p) * stride).add(b * 32 + $column);
                            let (low, high) = (vld1q_s64(low.cast()), vld1q_s64(high.cast()));
                            q[p] = [
                                vreinterpretq_s8_s64(vzip1q_s64(low, high)),
                                vreinterpretq_s8_s64(vzip2q_s64(low, high)),
                            ];
                        }
                    }
                    for i in 0..4 {
                        let codes = source.codes::<$step>(b, i);
                        for p in 0..P {
                            products[p][i] = smmla(products[p][i], q[p][$column / 8 % 2], codes);
                        }
                    }
                    if S::GROUP == 16 && $column == 8 {
                        add_pairs::<S, P, HALF>(source, 2 * b, &products, n_x, rows, &mut sums);
                        products = [[vdupq_n_s32(0); 4]; P];
                    }
                };
            }
            for_steps!(HALF, step);
            let group = if S::GROUP == 16 { 2 * b + 1 } else { b };
            add_pairs::<S, P, HALF>(source, group, &products, n_x, rows, &mut sums);
        }
        for p in 0..P {
            for i in 0..2 {
                let [low, high] = halves_swapped([sums[p][2 * i], sums[p][2 * i + 1]]);
                vst1q_f32(out.add(2 * p * TILE_ROWS + 4 * i), low);
                vst1q_f32(out.add(second(p) * TILE_ROWS + 4 * i), high);
            }
        }
    }
}

/// Lower halves of two registers, then upper halves.
///
/// # Safety
/// NEON is available.
#[inline(always)]
unsafe fn halves_swapped([a, b]: [float32x4_t; 2]) -> [float32x4_t; 2] {
    // SAFETY: NEON is the baseline of this architecture.
    unsafe {
        let (a, b) = (vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b));
        [vreinterpretq_f32_f64(vzip1q_f64(a, b)), vreinterpretq_f32_f64(vzip2q_f64(a, b))]
    }
}

/// Scales and adds the products of a group.
///
/// # Safety
/// As [`MultiplyNeon::rows`].
#[inline(always)]
unsafe fn add_pairs<S: SourceNeon, const P: usize, const HALF: usize>(
    source: S,
    group: usize,
    products: &[[int32x4_t; 4]; P],
    n_x: usize,
    rows: RowsNeon,
    sums: &mut [[float32x4_t; 4]; P],
) {
    let RowsNeon { x, stride, .. } = rows;
    // SAFETY: the caller guarantees i8mm, and the group in `source` and in `n_x` rows from `x` on;
    // `high` is below them.
    unsafe {
        let (scale, offset) = source.scales_twice(group, HALF);
        for p in 0..P {
            let (low, high) = (2 * p * stride, (2 * p + 1).min(n_x - 1) * stride);
            let x_scale = side_by_side(x_scale::<S>(x, low, group), x_scale::<S>(x, high, group));
            for i in 0..4 {
                let t = vmulq_f32(to_f32::<S>(products[p][i]), x_scale);
                sums[p][i] = vfmaq_f32(sums[p][i], scale[i], t);
            }
            if S::HAS_OFFSET {
                let x_sum = side_by_side(x_sum::<S>(x, low, group), x_sum::<S>(x, high, group));
                for i in 0..4 {
                    sums[p][i] = vfmaq_f32(sums[p][i], offset[i], x_sum);
                }
            }
        }
    }
}

/// Vector `a, a, b, b`.
///
/// # Safety
/// NEON is available.
#[inline(always)]
unsafe fn side_by_side(a: f32, b: f32) -> float32x4_t {
    // SAFETY: NEON is the baseline of this architecture.
    unsafe { vcombine_f32(vdup_n_f32(a), vdup_n_f32(b)) }
}
