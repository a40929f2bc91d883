//! Interleaved weights on Arm: sources of codes and scales, and the GEMV and GEMM over them. The
//! products are those of `neon` and `interleaved_i8mm`.
//!
//! Up to [`FEW`] activation rows are multiplied with codes as they are unpacked. With more rows,
//! [`PASS`] columns are unpacked first into a panel of signed bytes and f32 scales, which stays in
//! the first-level cache. A panel depends only on the length of its groups and on whether they have
//! an offset. Its scales are those of codes at the top of their byte. Order of accumulation:
//! `interleaved`. One row and many, and all three kinds of products, have the same bits. A factor
//! that is a power of two is exact wherever it is applied.
//!
//! Codes around zero are moved to the top of their byte by shifts that also insert (`sri`), one to
//! three instructions for 16 codes. Codes with an offset are moved to the bottom. Values of a table
//! are looked up by `tbl`.

use super::activation::{ActRow, ActRows};
use super::interleaved::{
    Interleaved, ScaleFields, Tile, activations, for_tiles, is_centered, is_signed, n_groups,
};
use super::neon::{MultiplyNeon, RowsNeon, SourceNeon, X_ROWS};
use super::{Part, TILE_ROWS, WeightRows};
use std::arch::aarch64::*;
use std::arch::asm;
use std::marker::PhantomData;

/// Maximum number of activation rows that are multiplied without a panel.
const FEW: usize = 3;

/// Columns of a panel; a multiple of 256.
pub(super) const PASS: usize = 512;

/// Bytes of a panel's codes, then of its scales (and of its offsets), for groups of 16.
const PANEL: [usize; 2] = [PASS * TILE_ROWS, PASS / 16 * TILE_ROWS * 4];

/// Bytes of scratch; the same for any number of columns.
pub(super) fn scratch_bytes(_n_cols: usize) -> usize {
    64 + PANEL[0] + 2 * PANEL[1]
}

/// # Safety
/// As [`super::Gemv`], for weights interleaved in the order of `M`, whose instructions are
/// available.
pub(super) unsafe fn gemv<F: Interleaved, M: MultiplyNeon>(
    w: WeightRows,
    n_cols: usize,
    r0: usize,
    r1: usize,
    x: ActRow,
    out: *mut f32,
) {
    let xs = ActRows { base: x.0, stride: 0, n: 1 };
    // SAFETY: the caller guarantees interleaved rows `r0..r1`, `n_cols` activations at `x`, room at
    // `out`, and the instructions of `M`; `for_tiles` passes room for a tile.
    unsafe {
        let x = activations(xs, 0, n_cols, 0);
        for_tiles(r0, r1, out, |r, out| {
            let source = StoredTileNeon::<F>(Tile::new(w, r), PhantomData);
            M::rows::<_, 1>(source, RowsNeon { n: n_cols, x, stride: 0, first: true, out });
        });
    }
}

/// # Safety
/// As [`super::GemmTile`], for weights interleaved in the order of `M`, whose instructions are
/// available.
pub(super) unsafe fn gemm_tile<F: Interleaved, M: MultiplyNeon>(
    w: WeightRows,
    n_cols: usize,
    part: Part,
    xs: ActRows,
    scratch: *mut u8,
    out: *mut f32,
) {
    // SAFETY: by the caller, `w` has the weight rows and columns of the part, and `xs` as many
    // activations in each row. `scratch` has the kernel's `gemm_scratch_bytes`, and `out` has `xs.n
    // * TILE_ROWS` values. The caller checked the instruction set. Each pass is within the part.
    unsafe {
        let tile = Tile::new(w, part.r0);
        if xs.n <= FEW {
            let source = StoredTileNeon::<F>(tile.from::<F>(part.k), PhantomData);
            let x = activations(xs, 0, n_cols, part.k);
            let rows = RowsNeon { n: part.n, x, stride: xs.stride, first: part.k == 0, out };
            return match xs.n {
                0 => {}
                1 => M::rows::<_, 1>(source, rows),
                2 => M::rows::<_, 2>(source, rows),
                _ => M::rows::<_, FEW>(source, rows),
            };
        }
        for (k, n) in part.passes(PASS) {
            let source = StoredTileNeon::<F>(tile.from::<F>(k), PhantomData);
            macro_rules! by_panel {
                ($group:literal $has_offset:literal) => {{
                    let panel = PanelNeon::<$group, $has_offset>::new(scratch);
                    panel.fill(source, n);
                    all_rows::<_, M>(panel, xs, n_cols, k, n, out);
                }};
            }
            match (F::GROUP, F::HAS_OFFSET) {
                (16, false) => by_panel!(16 false),
                (16, true) => by_panel!(16 true),
                (_, false) => by_panel!(32 false),
                (_, true) => by_panel!(32 true),
            }
        }
    }
}

/// Multiplies columns `k..k + n` with all activation rows.
///
/// # Safety
/// As [`MultiplyNeon::rows`].
pub(super) unsafe fn all_rows<S: SourceNeon, M: MultiplyNeon>(
    source: S,
    xs: ActRows,
    n_cols: usize,
    k: usize,
    n: usize,
    out: *mut f32,
) {
    // SAFETY: the caller guarantees the columns of `source` and `xs`, `xs.n * TILE_ROWS` values at
    // `out`, and the instructions of `M`.
    unsafe {
        for i in (0..xs.n).step_by(X_ROWS) {
            let x = activations(xs, i, n_cols, k);
            let rows = RowsNeon { n, x, stride: xs.stride, first: k == 0, out: out.add(i * TILE_ROWS) };
            match xs.n - i {
                1 => M::rows::<S, 1>(source, rows),
                2 => M::rows::<S, 2>(source, rows),
                3 => M::rows::<S, 3>(source, rows),
                4 => M::rows::<S, 4>(source, rows),
                5 => M::rows::<S, 5>(source, rows),
                _ => M::rows::<S, X_ROWS>(source, rows),
            }
        }
    }
}

/// A tile as it is stored.
struct StoredTileNeon<F>(Tile, PhantomData<F>);

impl<F> Clone for StoredTileNeon<F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F> Copy for StoredTileNeon<F> {}

/// Shifts each byte left by `n` bits, a constant.
///
/// # Safety
/// NEON is available.
#[inline(always)]
unsafe fn left(v: uint8x16_t, n: usize) -> uint8x16_t {
    // SAFETY: NEON is the baseline of this architecture.
    unsafe {
        match n {
            0 => v,
            1 => vshlq_n_u8::<1>(v),
            2 => vshlq_n_u8::<2>(v),
            3 => vshlq_n_u8::<3>(v),
            4 => vshlq_n_u8::<4>(v),
            5 => vshlq_n_u8::<5>(v),
            6 => vshlq_n_u8::<6>(v),
            _ => vshlq_n_u8::<7>(v),
        }
    }
}

/// Shifts each byte right by `n` bits, an even constant.
///
/// # Safety
/// NEON is available.
#[inline(always)]
unsafe fn right(v: uint8x16_t, n: usize) -> uint8x16_t {
    // SAFETY: NEON is the baseline of this architecture.
    unsafe {
        match n {
            0 => v,
            2 => vshrq_n_u8::<2>(v),
            4 => vshrq_n_u8::<4>(v),
            _ => vshrq_n_u8::<6>(v),
        }
    }
}

/// Inserts `low`, shifted right by `N` bits, below the upper `N` bits of `high`. (The intrinsic
/// compiles to two masks, a shift and an or.)
///
/// # Safety
/// NEON is available.
#[inline(always)]
unsafe fn insert_right<const N: i32>(mut high: uint8x16_t, low: uint8x16_t) -> uint8x16_t {
    // SAFETY: the instruction is part of the baseline and touches registers only.
    unsafe {
        asm!(
            "sri {high:v}.16b, {low:v}.16b, #{n}",
            high = inout(vreg) high,
            low = in(vreg) low,
            n = const N,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    high
}

/// Four bits of a step at the top of each byte, with zeros below.
///
/// # Safety
/// `plane` is a register of the step's plane.
#[inline(always)]
unsafe fn four_at_top<const STEP: usize>(plane: uint8x16_t) -> uint8x16_t {
    // SAFETY: NEON is the baseline of this architecture.
    unsafe { if STEP.is_multiple_of(2) { vshlq_n_u8::<4>(plane) } else { vandq_u8(plane, vdupq_n_u8(0xf0)) } }
}

/// Two bits of a step at the top of each byte, with other bits of the plane below.
///
/// # Safety
/// As [`four_at_top`].
#[inline(always)]
unsafe fn two_at_top<const STEP: usize>(plane: uint8x16_t) -> uint8x16_t {
    // SAFETY: NEON is the baseline of this architecture.
    unsafe { left(plane, 6 - 2 * (STEP % 4)) }
}

/// One bit of a step at the top of each byte, with other bits of the plane below.
///
/// # Safety
/// As [`four_at_top`].
#[inline(always)]
unsafe fn one_at_top<const STEP: usize>(plane: uint8x16_t) -> uint8x16_t {
    // SAFETY: NEON is the baseline of this architecture.
    unsafe { left(plane, 7 - STEP) }
}

impl<F: Interleaved> SourceNeon for StoredTileNeon<F> {
    const GROUP: usize = F::GROUP;
    const HAS_OFFSET: bool = F::HAS_OFFSET;
    const SHIFT: usize = if is_centered::<F>() { 8 - F::BITS } else { 0 };

    #[inline(always)]
    unsafe fn codes<const STEP: usize>(self, b: usize, register: usize) -> int8x16_t {
        const { assert!(!is_signed::<F>() || F::BITS == 8 || F::VALUES.is_some()) };
        // SAFETY: the caller guarantees block `b`, whose planes have `code_bytes` from `block` on.
        unsafe {
            let block = self.0.codes::<F>(b).add(16 * register);
            // Loads from the planes that begin `at` bytes into the block.
            let eight = || vld1q_u8(block.add(64 * STEP));
            let four = |at: usize| vld1q_u8(block.add(at + 64 * (STEP / 2)));
            let two = |at: usize| vld1q_u8(block.add(at + 64 * (STEP / 4)));
            let one = || vld1q_u8(block);
            let codes = match (F::BITS, is_centered::<F>()) {
                (2, _) => {
                    let codes = right(two(0), 2 * (STEP % 4));
                    if STEP % 4 == 3 { codes } else { vandq_u8(codes, vdupq_n_u8(3)) }
                }
                (3, _) => {
                    let low = vandq_u8(two_at_top::<STEP>(two(64)), vdupq_n_u8(0xc0));
                    insert_right::<1>(one_at_top::<STEP>(one()), low)
                }
                (4, true) => four_at_top::<STEP>(four(0)),
                (4, false) if STEP.is_multiple_of(2) => vandq_u8(four(0), vdupq_n_u8(15)),
                (4, false) => vshrq_n_u8::<4>(four(0)),
                (5, centered) => {
                    let codes = insert_right::<1>(one_at_top::<STEP>(one()), four_at_top::<STEP>(four(64)));
                    if centered { codes } else { vshrq_n_u8::<3>(codes) }
                }
                (6, _) => insert_right::<2>(two_at_top::<STEP>(two(256)), four_at_top::<STEP>(four(0))),
                _ => eight(),
            };
            match F::VALUES {
                None => vreinterpretq_s8_u8(codes),
                Some(values) => vqtbl1q_s8(vld1q_s8(values.as_ptr()), codes),
            }
        }
    }

    #[inline(always)]
    unsafe fn scales(self, group: usize, half: usize) -> ([float32x4_t; 2], [float32x4_t; 2]) {
        let (block, g) = (group / n_groups::<F>(), group % n_groups::<F>());
        // SAFETY: the caller guarantees the group, so the tile has the fields of its block.
        unsafe {
            let fields = self.0.scales::<F>(block).add(8 * half);
            let f16s = |at: usize| {
                let halves = vreinterpretq_f16_u16(vld1q_u16(fields.add(at + 8 * half).cast()));
                [vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves)]
            };
            let unsigned = |bytes: uint8x8_t| {
                let words = vmovl_u8(bytes);
                [vcvtq_f32_u32(vmovl_u16(vget_low_u16(words))), vcvtq_f32_u32(vmovl_high_u16(words))]
            };
            let times = |[a0, a1]: [float32x4_t; 2], [b0, b1]: [float32x4_t; 2]| {
                [vmulq_f32(a0, b0), vmulq_f32(a1, b1)]
            };
            let negated = |[a, b]: [float32x4_t; 2]| [vnegq_f32(a), vnegq_f32(b)];
            let none = [vdupq_n_f32(0.0); 2];
            match F::SCALES {
                ScaleFields::F16 => (f16s(0), none),
                ScaleFields::F16Offset => (f16s(0), f16s(32)),
                ScaleFields::Exponent => {
                    // 2^(e - 128) is subnormal for e below 2.
                    let words = vmovl_u8(vld1_u8(fields));
                    let power = |e: uint32x4_t| {
                        let normal = vshlq_n_u32::<23>(vsubq_u32(e, vdupq_n_u32(1)));
                        let small = vshlq_u32(vdupq_n_u32(0x0020_0000), vreinterpretq_s32_u32(e));
                        vreinterpretq_f32_u32(vbslq_u32(vcltq_u32(e, vdupq_n_u32(2)), small, normal))
                    };
                    ([power(vmovl_u16(vget_low_u16(words))), power(vmovl_high_u16(words))], none)
                }
                ScaleFields::Signed => {
                    let words = vmovl_s8(vld1_s8(fields.add(32 + 16 * g).cast()));
                    let s =
                        [vcvtq_f32_s32(vmovl_s16(vget_low_s16(words))), vcvtq_f32_s32(vmovl_high_s16(words))];
                    (times(f16s(0), s), none)
                }
                ScaleFields::Minima => {
                    let s = unsigned(vld1_u8(fields.add(64 + 16 * g)));
                    let m = unsigned(vld1_u8(fields.add(64 + 16 * (n_groups::<F>() + g))));
                    (times(f16s(0), s), negated(times(f16s(32), m)))
                }
                ScaleFields::Nibbles => {
                    let both = vld1_u8(fields.add(64 + 16 * g));
                    let s = unsigned(vand_u8(both, vdup_n_u8(15)));
                    let m = unsigned(vshr_n_u8::<4>(both));
                    (times(f16s(0), s), negated(times(f16s(32), m)))
                }
            }
        }
    }
}

/// Unpacked columns of a tile: codes as bytes in the order of their steps, scales and offsets in
/// f32, `[groups][16 rows]`.
#[derive(Clone, Copy)]
pub(super) struct PanelNeon<const GROUP: usize, const HAS_OFFSET: bool> {
    /// `[PASS / 32][8 steps][64]`
    pub codes: *mut i8,
    /// `[PASS / GROUP][16]`
    pub scale: *mut f32,
    /// `[PASS / GROUP][16]`
    pub offset: *mut f32,
}

impl<const GROUP: usize, const HAS_OFFSET: bool> PanelNeon<GROUP, HAS_OFFSET> {
    /// # Safety
    /// `scratch` has [`scratch_bytes`].
    pub(super) unsafe fn new(scratch: *mut u8) -> Self {
        // SAFETY: the caller guarantees `scratch_bytes` at `scratch`, which is the sum of the parts
        // and of the alignment.
        unsafe {
            let codes = scratch.add(scratch.align_offset(64));
            let scale: *mut f32 = codes.add(PANEL[0]).cast();
            PanelNeon { codes: codes.cast(), scale, offset: scale.byte_add(PANEL[1]) }
        }
    }

    /// Unpacks `n` columns, at most [`PASS`].
    ///
    /// # Safety
    /// The source has `n` columns; the panel has room for them.
    #[inline(never)]
    unsafe fn fill<S: SourceNeon>(self, source: S, n: usize) {
        debug_assert!(S::GROUP == GROUP && S::HAS_OFFSET == HAS_OFFSET);
        let factor = 1.0 / (1 << S::SHIFT) as f32;
        // SAFETY: the caller guarantees `n` columns of `source`, and room for `PASS` columns in the
        // panel.
        unsafe {
            for b in 0..n / 32 {
                macro_rules! steps {
                    ($($step:literal)*) => {
                        $(for register in 0..4 {
                            let to = self.codes.add((b * 8 + $step) * 64 + 16 * register);
                            vst1q_s8(to, source.codes::<$step>(b, register));
                        })*
                    };
                }
                steps!(0 1 2 3 4 5 6 7);
            }
            for group in 0..n / S::GROUP {
                for half in 0..2 {
                    let (scale, offset) = source.scales(group, half);
                    for i in 0..2 {
                        let at = group * TILE_ROWS + 8 * half + 4 * i;
                        vst1q_f32(self.scale.add(at), vmulq_n_f32(scale[i], factor));
                        if S::HAS_OFFSET {
                            vst1q_f32(self.offset.add(at), offset[i]);
                        }
                    }
                }
            }
        }
    }
}

/// Loads eight numbers from `p` on.
///
/// # Safety
/// Eight numbers are readable at `p`.
#[inline(always)]
unsafe fn load8(p: *const f32) -> [float32x4_t; 2] {
    // SAFETY: by the caller, eight numbers are readable at `p`.
    unsafe { [vld1q_f32(p), vld1q_f32(p.add(4))] }
}

/// Loads eight numbers from `p` on, each pair twice.
///
/// # Safety
/// Eight numbers are readable at `p`.
#[inline(always)]
unsafe fn load8_twice(p: *const f32) -> [float32x4_t; 4] {
    // SAFETY: by the caller, eight numbers are readable at `p`.
    unsafe {
        let pair = |i: usize| vreinterpretq_f32_f64(vld1q_dup_f64(p.add(2 * i).cast()));
        [pair(0), pair(1), pair(2), pair(3)]
    }
}

impl<const GROUP: usize, const HAS_OFFSET: bool> SourceNeon for PanelNeon<GROUP, HAS_OFFSET> {
    const GROUP: usize = GROUP;
    const HAS_OFFSET: bool = HAS_OFFSET;
    const SHIFT: usize = 0;

    #[inline(always)]
    unsafe fn codes<const STEP: usize>(self, b: usize, register: usize) -> int8x16_t {
        // SAFETY: the caller guarantees block `b` of the panel.
        unsafe { vld1q_s8(self.codes.add((b * 8 + STEP) * 64 + 16 * register)) }
    }

    #[inline(always)]
    unsafe fn scales(self, group: usize, half: usize) -> ([float32x4_t; 2], [float32x4_t; 2]) {
        let at = group * TILE_ROWS + 8 * half;
        // SAFETY: the caller guarantees the group, in the panel's scales and offsets.
        unsafe {
            let scale = load8(self.scale.add(at));
            (scale, if HAS_OFFSET { load8(self.offset.add(at)) } else { scale })
        }
    }

    #[inline(always)]
    unsafe fn scales_twice(self, group: usize, half: usize) -> ([float32x4_t; 4], [float32x4_t; 4]) {
        let at = group * TILE_ROWS + 8 * half;
        // SAFETY: the caller guarantees the group, in the panel's scales and offsets.
        unsafe {
            let scale = load8_twice(self.scale.add(at));
            (scale, if HAS_OFFSET { load8_twice(self.offset.add(at)) } else { scale })
        }
    }
}
