//! Products of bytes on Arm: three kinds, and the loop of the two kinds whose steps are four
//! columns.
//!
//! | kind | instruction | products | feature |
//! |---|---|---|---|
//! | [`Mull`] | `smull`, `smull2`, `addp`, `sadalp` and a `dup` | 16 | every 64-bit Arm |
//! | [`Sdot`] | `sdot` by a quarter of a register | 16 | `dotprod` |
//! | [`Smmla`](super::interleaved_i8mm::Smmla) | `smmla`: 2 rows by 8 columns times 8 by 2 | 32 | `i8mm` |
//!
//! Rust 1.95 has no stable intrinsics for the last two, hence `asm!`.
//!
//! All codes are signed bytes here. Codes of a few bits around zero are at the top of their byte,
//! `2^SHIFT` times too large. The conversion of a group's sum to f32 corrects this exactly. No zero
//! point is then left to subtract. A sum of 32 such products is below 2^20 and thus exact in f32
//! for every instruction. So all three kinds have the same bits.
//!
//! Two products of signed bytes fit 16 bits (2 * 128 * 127 = 32,512), so [`Mull`] adds two before
//! it widens.

use super::TILE_ROWS;
use super::activation::Q8Row;
use super::affine::Groups32;
use super::interleaved::prefetch_next_rows;
use super::order::{ArmFours, Order};
use super::portable::{Dot, Groups};
use std::arch::aarch64::*;
use std::arch::asm;
use std::hint::black_box;
use std::marker::PhantomData;

/// Maximum number of activation rows of [`MultiplyNeon::rows`]. The sums of eight weight rows with
/// six activation rows are 12 registers of integers and 12 of f32, which leaves 8 for the operands.
pub(super) const X_ROWS: usize = 6;

/// A source of the codes and scales of 16 rows.
pub(super) trait SourceNeon: Copy {
    /// Columns of a scale: 16 or 32.
    const GROUP: usize;
    /// True if groups have an offset.
    const HAS_OFFSET: bool;
    /// Binary logarithm of the factor by which codes are too large.
    const SHIFT: usize;

    /// Codes of four rows (or of two: see [`Order`]) of a step of block `b` of 32 columns, in
    /// register 0 to 3 of the step.
    ///
    /// # Safety
    /// The source has the block.
    unsafe fn codes<const STEP: usize>(self, b: usize, register: usize) -> int8x16_t;

    /// Scales and offsets of a group for rows `8 half..8 half + 8`; the offsets are undefined for a
    /// type without them.
    ///
    /// # Safety
    /// The source has the group.
    unsafe fn scales(self, group: usize, half: usize) -> ([float32x4_t; 2], [float32x4_t; 2]);

    /// Like [`Self::scales`], with the numbers of rows `2 i` and `2 i + 1` twice, in the order of
    /// `smmla`'s sums: rows `2i, 2i + 1, 2i, 2i + 1`.
    ///
    /// # Safety
    /// As [`Self::scales`].
    #[inline(always)]
    unsafe fn scales_twice(self, group: usize, half: usize) -> ([float32x4_t; 4], [float32x4_t; 4]) {
        // SAFETY: by the caller, the source has the group.
        unsafe {
            let (scale, offset) = self.scales(group, half);
            (twice(scale), twice(offset))
        }
    }
}

/// Both halves of two registers, each half twice.
///
/// # Safety
/// NEON is available.
#[inline(always)]
unsafe fn twice([a, b]: [float32x4_t; 2]) -> [float32x4_t; 4] {
    // SAFETY: NEON is the baseline of this architecture.
    unsafe {
        let (a, b) = (vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b));
        [
            vreinterpretq_f32_f64(vdupq_laneq_f64::<0>(a)),
            vreinterpretq_f32_f64(vdupq_laneq_f64::<1>(a)),
            vreinterpretq_f32_f64(vdupq_laneq_f64::<0>(b)),
            vreinterpretq_f32_f64(vdupq_laneq_f64::<1>(b)),
        ]
    }
}

/// Activation rows, and the destination of their products with 16 weight rows.
#[derive(Clone, Copy)]
pub(super) struct RowsNeon {
    /// Columns, a multiple of 32 and of the block's length.
    pub n: usize,
    /// Arrays of the first row, from the first of these columns on.
    pub x: Q8Row,
    /// Bytes from one row to the next.
    pub stride: usize,
    /// True if products are stored, false if they are added to `out`.
    pub first: bool,
    /// `(rows, 16)`
    pub out: *mut f32,
}

/// A kind of product.
pub(super) trait MultiplyNeon {
    /// Order of the codes.
    type Order: Order;

    /// Multiplies `C` activation rows with the source's 16 rows.
    ///
    /// # Safety
    /// The instructions are available; the source and the activations have the columns; `C` is at
    /// most [`X_ROWS`].
    unsafe fn rows<S: SourceNeon, const C: usize>(source: S, rows: RowsNeon);

    /// Adds 16 products, in any four groups of four.
    ///
    /// # Safety
    /// The instructions are available.
    unsafe fn sixteen(sum: int32x4_t, codes: int8x16_t, q: int8x16_t) -> int32x4_t;
}

/// Products of four columns of four weight rows with those of one activation row.
trait FourColumns {
    /// Computes `sum[r] += sum_j codes[4 r + j] q[4 LANE + j]`.
    ///
    /// # Safety
    /// The instructions are available.
    unsafe fn four<const LANE: i32>(sum: int32x4_t, codes: int8x16_t, q: int8x16_t) -> int32x4_t;
}

/// Products by instructions of the baseline.
pub(super) struct Mull;

impl FourColumns for Mull {
    #[inline(always)]
    unsafe fn four<const LANE: i32>(sum: int32x4_t, codes: int8x16_t, q: int8x16_t) -> int32x4_t {
        // SAFETY: NEON is the baseline of this architecture.
        unsafe {
            let q = vreinterpretq_s8_s32(vdupq_laneq_s32::<LANE>(vreinterpretq_s32_s8(q)));
            let low = vmull_s8(vget_low_s8(codes), vget_low_s8(q));
            vpadalq_s16(sum, vpaddq_s16(low, vmull_high_s8(codes, q)))
        }
    }
}

impl MultiplyNeon for Mull {
    type Order = ArmFours;

    #[inline(always)]
    unsafe fn rows<S: SourceNeon, const C: usize>(source: S, rows: RowsNeon) {
        #[inline(never)]
        unsafe fn run<S: SourceNeon, const C: usize>(source: S, rows: RowsNeon) {
            // SAFETY: the caller guarantees the columns of `source` and of `C <= X_ROWS` rows from
            // `rows.x` on, and room at `rows.out`; NEON is the baseline.
            unsafe { fours::<S, Mull, C>(source, rows) }
        }
        // SAFETY: the caller guarantees the columns of `source` and of `C <= X_ROWS` rows, and room
        // at `rows.out`; NEON is the baseline.
        unsafe { run::<S, C>(source, rows) }
    }

    #[inline(always)]
    unsafe fn sixteen(sum: int32x4_t, codes: int8x16_t, q: int8x16_t) -> int32x4_t {
        // SAFETY: NEON is the baseline of this architecture.
        unsafe {
            let low = vmull_s8(vget_low_s8(codes), vget_low_s8(q));
            vpadalq_s16(sum, vmlal_high_s8(low, codes, q))
        }
    }
}

/// Like [`chains_of_sdot`], for [`Mull`].
pub(super) fn chains_of_mull(n: usize) -> usize {
    // SAFETY: NEON is the baseline of this architecture.
    unsafe {
        let b = black_box(vdupq_n_s8(5));
        let mut chains = black_box([vdupq_n_s32(0); 24]);
        for _ in 0..n {
            for chain in &mut chains {
                // A product that changes each time is not moved out of the loop.
                *chain = Mull::sixteen(*chain, vreinterpretq_s8_s32(*chain), b);
            }
        }
        black_box(chains);
    }
    24 * 16 * 2
}

/// Products by `sdot`.
pub(super) struct Sdot;

/// Computes `sum[i] += sum_j a[4 i + j] b[4 i + j]`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
pub(super) fn sdot(mut sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: the function has the features of the instruction, which touches registers only.
    unsafe {
        asm!(
            "sdot {sum:v}.4s, {a:v}.16b, {b:v}.16b",
            sum = inout(vreg) sum,
            a = in(vreg) a,
            b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

/// Computes `sum[i] += sum_j a[4 i + j] b[4 LANE + j]`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn sdot_lane<const LANE: i32>(mut sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: the function has the features of the instruction, which touches registers only.
    unsafe {
        asm!(
            "sdot {sum:v}.4s, {a:v}.16b, {b:v}.4b[{lane}]",
            sum = inout(vreg) sum,
            a = in(vreg) a,
            b = in(vreg) b,
            lane = const LANE,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

/// Runs 24 chains of `n` instructions, and returns the operations of one of the `n`.
#[target_feature(enable = "neon,dotprod")]
pub(super) fn chains_of_sdot(n: usize) -> usize {
    let (a, b) = black_box((vdupq_n_s8(3), vdupq_n_s8(5)));
    let mut chains = black_box([vdupq_n_s32(0); 24]);
    for _ in 0..n {
        for chain in &mut chains {
            *chain = sdot(*chain, a, b);
        }
    }
    black_box(chains);
    24 * 16 * 2
}

impl FourColumns for Sdot {
    #[inline(always)]
    unsafe fn four<const LANE: i32>(sum: int32x4_t, codes: int8x16_t, q: int8x16_t) -> int32x4_t {
        // SAFETY: the caller guarantees the instruction of `sdot_lane`.
        unsafe { sdot_lane::<LANE>(sum, codes, q) }
    }
}

impl MultiplyNeon for Sdot {
    type Order = ArmFours;

    #[inline(always)]
    unsafe fn rows<S: SourceNeon, const C: usize>(source: S, rows: RowsNeon) {
        #[inline(never)]
        #[target_feature(enable = "neon,dotprod")]
        unsafe fn run<S: SourceNeon, const C: usize>(source: S, rows: RowsNeon) {
            // SAFETY: the caller guarantees the instructions of `Sdot`, the columns of `source` and
            // of `C` rows (at most [`X_ROWS`]) from `rows.x` on, and room at `rows.out`.
            unsafe { fours::<S, Sdot, C>(source, rows) }
        }
        // SAFETY: the caller guarantees the instructions that `run` names, the columns of `source`
        // and of `C` rows, and room at `rows.out`.
        unsafe { run::<S, C>(source, rows) }
    }

    #[inline(always)]
    unsafe fn sixteen(sum: int32x4_t, codes: int8x16_t, q: int8x16_t) -> int32x4_t {
        // SAFETY: the caller guarantees the instruction `sdot`.
        unsafe { sdot(sum, codes, q) }
    }
}

/// [`MultiplyNeon::rows`] for steps of four columns: all 16 weight rows at once for up to two
/// activation rows, otherwise one half after the other.
///
/// # Safety
/// As [`MultiplyNeon::rows`].
#[inline(always)]
unsafe fn fours<S: SourceNeon, M: FourColumns, const C: usize>(source: S, rows: RowsNeon) {
    // SAFETY: the caller guarantees the instructions of `M`, the columns of `source` and of `C <=
    // X_ROWS` rows from `rows.x` on, and room at `rows.out`.
    unsafe {
        if C <= 2 {
            fours_of::<S, M, 4, C>(source, 0, rows);
        } else {
            fours_of::<S, M, 2, C>(source, 0, rows);
            fours_of::<S, M, 2, C>(source, 2, rows);
        }
    }
}

/// Multiplies weight rows `4 at..4 at + 4 R` of the 16.
///
/// # Safety
/// As [`MultiplyNeon::rows`].
#[inline(always)]
unsafe fn fours_of<S: SourceNeon, M: FourColumns, const R: usize, const C: usize>(
    source: S,
    at: usize,
    rows: RowsNeon,
) {
    let RowsNeon { n, x, stride, first, out } = rows;
    // SAFETY: the caller guarantees the instructions of `M`, `n` columns of `source` and of `C`
    // rows from `x` on, and room at `out`; `at + R` is at most 4.
    unsafe {
        let out = out.add(4 * at);
        let mut sums = [[vdupq_n_f32(0.0); R]; C];
        if !first {
            for c in 0..C {
                for r in 0..R {
                    sums[c][r] = vld1q_f32(out.add(c * TILE_ROWS + 4 * r));
                }
            }
        }
        for b in 0..n / 32 {
            if at == 0 {
                prefetch_next_rows::<C>(x, stride, b);
            }
            let mut products = [[vdupq_n_s32(0); R]; C];
            let mut q = [vdupq_n_s8(0); C];
            macro_rules! load {
                ($column:literal) => {
                    for c in 0..C {
                        q[c] = vld1q_s8(x.q.byte_add(c * stride).add(b * 32 + $column));
                    }
                };
            }
            macro_rules! step {
                ($step:literal $lane:literal) => {
                    for r in 0..R {
                        let codes = source.codes::<$step>(b, at + r);
                        for c in 0..C {
                            products[c][r] = M::four::<$lane>(products[c][r], codes, q[c]);
                        }
                    }
                };
            }
            load!(0);
            step!(0 0);
            step!(1 1);
            step!(2 2);
            step!(3 3);
            if S::GROUP == 16 {
                add_group::<S, R, C>(source, 2 * b, at, &products, x, stride, &mut sums);
                products = [[vdupq_n_s32(0); R]; C];
            }
            load!(16);
            step!(4 0);
            step!(5 1);
            step!(6 2);
            step!(7 3);
            let group = if S::GROUP == 16 { 2 * b + 1 } else { b };
            add_group::<S, R, C>(source, group, at, &products, x, stride, &mut sums);
        }
        for c in 0..C {
            for r in 0..R {
                vst1q_f32(out.add(c * TILE_ROWS + 4 * r), sums[c][r]);
            }
        }
    }
}

/// Scales and adds the products of a group.
///
/// # Safety
/// As [`MultiplyNeon::rows`].
#[inline(always)]
unsafe fn add_group<S: SourceNeon, const R: usize, const C: usize>(
    source: S,
    group: usize,
    at: usize,
    products: &[[int32x4_t; R]; C],
    x: Q8Row,
    stride: usize,
    sums: &mut [[float32x4_t; R]; C],
) {
    // SAFETY: the caller guarantees the group in `source` and in `C` rows from `x` on; NEON is the
    // baseline.
    unsafe {
        for half in 0..R / 2 {
            let (scale, offset) = source.scales(group, at / 2 + half);
            for c in 0..C {
                let x_scale = x_scale::<S>(x, c * stride, group);
                for i in 0..2 {
                    let r = 2 * half + i;
                    let t = vmulq_n_f32(to_f32::<S>(products[c][r]), x_scale);
                    sums[c][r] = vfmaq_f32(sums[c][r], scale[i], t);
                    if S::HAS_OFFSET {
                        sums[c][r] = vfmaq_n_f32(sums[c][r], offset[i], x_sum::<S>(x, c * stride, group));
                    }
                }
            }
        }
    }
}

/// Scale of a group of the activation row `bytes` after `x`.
///
/// # Safety
/// The row has the group.
#[inline(always)]
pub(super) unsafe fn x_scale<S: SourceNeon>(x: Q8Row, bytes: usize, group: usize) -> f32 {
    // SAFETY: the caller guarantees that the row `bytes` after `x` has the group.
    unsafe { *x.scale.byte_add(bytes).add(group * S::GROUP / 32) }
}

/// Scaled sum of a group of the activation row `bytes` after `x`.
///
/// # Safety
/// The row has the group.
#[inline(always)]
pub(super) unsafe fn x_sum<S: SourceNeon>(x: Q8Row, bytes: usize, group: usize) -> f32 {
    let sums = if S::GROUP == 16 { x.sum16 } else { x.sum32 };
    // SAFETY: the caller guarantees that the row `bytes` after `x` has the group.
    unsafe { *sums.byte_add(bytes).add(group) }
}

/// Converts sums of products whose codes are `2^SHIFT` times too large.
///
/// # Safety
/// NEON is available.
#[inline(always)]
pub(super) unsafe fn to_f32<S: SourceNeon>(sum: int32x4_t) -> float32x4_t {
    // SAFETY: NEON is the baseline of this architecture.
    unsafe {
        match S::SHIFT {
            0 => vcvtq_f32_s32(sum),
            2 => vcvtq_n_f32_s32::<2>(sum),
            3 => vcvtq_n_f32_s32::<3>(sum),
            4 => vcvtq_n_f32_s32::<4>(sum),
            5 => vcvtq_n_f32_s32::<5>(sum),
            _ => unreachable!("codes of 3 to 6 bits, or of 8"),
        }
    }
}

/// Inner product of one decoded row, for the GEMV of types whose scales are stored apart.
pub(super) struct ByRow<M>(PhantomData<M>);

/// Lanes of the products of codes, and of the products of offsets.
#[derive(Clone, Copy)]
pub(super) struct DotAndOffsets {
    dot: float32x4_t,
    offsets: float32x4_t,
}

impl<M: MultiplyNeon> Dot for ByRow<M> {
    type Sum = DotAndOffsets;

    #[inline(always)]
    unsafe fn zero() -> DotAndOffsets {
        // SAFETY: NEON is the baseline of this architecture.
        unsafe { DotAndOffsets { dot: vdupq_n_f32(0.0), offsets: vdupq_n_f32(0.0) } }
    }

    #[inline(always)]
    unsafe fn add<F: Groups>(
        sum: DotAndOffsets,
        codes: &[i8],
        scale: &[f32],
        offset: &[f32],
        x: Q8Row,
    ) -> DotAndOffsets {
        const { assert!(F::GROUP == Groups32::GROUP && F::HAS_OFFSET) };
        let DotAndOffsets { mut dot, mut offsets } = sum;
        // SAFETY: the caller guarantees that `x` has the columns of `codes`, and the slices their
        // groups; NEON is the baseline.
        unsafe {
            for i in 0..codes.len() / 32 {
                let mut fours = vdupq_n_s32(0);
                for at in [i * 32, i * 32 + 16] {
                    fours = M::sixteen(fours, vld1q_s8(codes.as_ptr().add(at)), vld1q_s8(x.q.add(at)));
                }
                let factor = *scale.get_unchecked(i) * *x.scale.add(i);
                dot = vfmaq_n_f32(dot, vcvtq_f32_s32(fours), factor);
            }
            let fours = offset.len() / 4 * 4;
            for g in (0..fours).step_by(4) {
                let o = vld1q_f32(offset.as_ptr().add(g));
                offsets = vfmaq_f32(offsets, o, vld1q_f32(x.sum32.add(g)));
            }
            for (g, &o) in offset.iter().enumerate().skip(fours) {
                let product = vsetq_lane_f32::<0>(o * *x.sum32.add(g), vdupq_n_f32(0.0));
                offsets = vaddq_f32(offsets, product);
            }
        }
        DotAndOffsets { dot, offsets }
    }

    #[inline(always)]
    unsafe fn finish(sum: DotAndOffsets) -> f32 {
        // SAFETY: NEON is the baseline of this architecture.
        unsafe { vaddvq_f32(vaddq_f32(sum.dot, sum.offsets)) }
    }
}
