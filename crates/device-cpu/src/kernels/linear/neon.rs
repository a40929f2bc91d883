//! The inner product in NEON: 16 codes a register, `smull`, `smlal` and pairwise widening adds.
//!
//! Two products of signed bytes fit 16 bits (2 * 128 * 127 = 32,512), so a multiply and a multiply-add of the halves of
//! a register come before each widening. Only instructions of the baseline are used; with `dotprod`, one `sdot` would
//! replace three of them.

use super::activation::{ActRow, ActRows, Q8Row};
use super::affine::{self, Codes};
use super::portable::{self, Dot, Format, Groups};
use super::{Part, WeightRows};
use std::arch::aarch64::*;

/// The baseline of 64-bit Arm.
pub(super) struct Neon;

/// Lanes of the codes' part and of the offsets' part.
#[derive(Clone, Copy)]
pub(super) struct Sum {
    dot: float32x4_t,
    offsets: float32x4_t,
}

/// The products of 16 codes and 16 activations, added in twos: 8 sums.
///
/// # Safety
/// 16 bytes are readable at both addresses.
#[inline(always)]
unsafe fn products(codes: *const i8, q: *const i8) -> int16x8_t {
    // SAFETY: the caller's promise; NEON is the baseline.
    unsafe {
        let (c, q) = (vld1q_s8(codes), vld1q_s8(q));
        vmlal_s8(vmull_s8(vget_low_s8(c), vget_low_s8(q)), vget_high_s8(c), vget_high_s8(q))
    }
}

impl Dot for Neon {
    type Sum = Sum;

    #[inline(always)]
    unsafe fn zero() -> Sum {
        // SAFETY: NEON is the baseline.
        unsafe { Sum { dot: vdupq_n_f32(0.0), offsets: vdupq_n_f32(0.0) } }
    }

    #[inline(always)]
    unsafe fn add<F: Groups>(sum: Sum, codes: &[i8], scale: &[f32], offset: &[f32], x: Q8Row) -> Sum {
        let Sum { mut dot, mut offsets } = sum;
        // SAFETY: NEON is the baseline; `x` has the columns of `codes`, and slices hold all their groups.
        unsafe {
            for i in 0..codes.len() / 32 {
                let low = products(codes.as_ptr().add(i * 32), x.q.add(i * 32));
                let high = products(codes.as_ptr().add(i * 32 + 16), x.q.add(i * 32 + 16));
                let x_scale = *x.scale.add(i);
                if F::GROUP == 32 {
                    let fours = vcvtq_f32_s32(vpadalq_s16(vpaddlq_s16(low), high));
                    dot = vfmaq_n_f32(dot, fours, *scale.get_unchecked(i) * x_scale);
                } else {
                    let (s0, s1) = (*scale.get_unchecked(2 * i), *scale.get_unchecked(2 * i + 1));
                    dot = vfmaq_n_f32(dot, vcvtq_f32_s32(vpaddlq_s16(low)), s0 * x_scale);
                    dot = vfmaq_n_f32(dot, vcvtq_f32_s32(vpaddlq_s16(high)), s1 * x_scale);
                }
            }
            if F::HAS_OFFSET {
                let sums = if F::GROUP == 32 { x.sum32 } else { x.sum16 };
                let fours = offset.len() / 4 * 4;
                for g in (0..fours).step_by(4) {
                    let o = vld1q_f32(offset.as_ptr().add(g));
                    offsets = vfmaq_f32(offsets, o, vld1q_f32(sums.add(g)));
                }
                for (g, &o) in offset.iter().enumerate().skip(fours) {
                    let product = vsetq_lane_f32::<0>(o * *sums.add(g), vdupq_n_f32(0.0));
                    offsets = vaddq_f32(offsets, product);
                }
            }
        }
        Sum { dot, offsets }
    }

    #[inline(always)]
    unsafe fn finish(sum: Sum) -> f32 {
        // SAFETY: NEON is the baseline.
        unsafe { vaddvq_f32(vaddq_f32(sum.dot, sum.offsets)) }
    }
}

/// # Safety
/// As [`super::Gemv`].
#[target_feature(enable = "neon")]
pub(super) unsafe fn gemv<F: Format>(
    w: WeightRows,
    n_cols: usize,
    r0: usize,
    r1: usize,
    x: ActRow,
    out: *mut f32,
) {
    // SAFETY: the caller's promises.
    unsafe { portable::gemv::<F, Neon>(w, n_cols, r0, r1, x, out) }
}

/// # Safety
/// As [`super::GemmTile`].
#[target_feature(enable = "neon")]
pub(super) unsafe fn gemm_tile<F: Format>(
    w: WeightRows,
    n_cols: usize,
    part: Part,
    xs: ActRows,
    scratch: *mut u8,
    out: *mut f32,
) {
    // SAFETY: the caller's promises.
    unsafe { portable::gemm_tile::<F, Neon>(w, n_cols, part, xs, scratch, out) }
}

/// [`gemv`] for the types of `affine`.
///
/// # Safety
/// As [`super::Gemv`].
#[target_feature(enable = "neon")]
pub(super) unsafe fn affine_gemv<F: Codes>(
    w: WeightRows,
    n_cols: usize,
    r0: usize,
    r1: usize,
    x: ActRow,
    out: *mut f32,
) {
    // SAFETY: the caller's promises.
    unsafe { affine::gemv::<F, Neon>(w, n_cols, r0, r1, x, out) }
}

/// [`gemm_tile`] for the types of `affine`.
///
/// # Safety
/// As [`super::GemmTile`].
#[target_feature(enable = "neon")]
pub(super) unsafe fn affine_gemm_tile<F: Codes>(
    w: WeightRows,
    n_cols: usize,
    part: Part,
    xs: ActRows,
    scratch: *mut u8,
    out: *mut f32,
) {
    // SAFETY: the caller's promises.
    unsafe { affine::gemm_tile::<F, Neon>(w, n_cols, part, xs, scratch, out) }
}
