//! AVX-512 kernels of interleaved weights: reading of a tile's codes and scales, for the loop of
//! `tile_avx512`.
//!
//! Codes without an offset are moved to the top of their byte as they are unpacked, where their
//! zero is 128. Up to [`X_ROWS`] activation rows are multiplied with codes as they are unpacked.
//! With many rows a pass is unpacked once into a [`PanelAvx512`], since unpacking takes 16 to 32 of
//! the 132 cycles that the other ports have. The [`NextTile`] is prefetched meanwhile. With up to
//! [`FEW_ROWS`] rows every line of the weights is prefetched some KB ahead; with one row on Intel's
//! processors only. Passes of [`PASS`] columns keep a tile and its activations in the near caches.
//! Order of accumulation: `interleaved`.

use super::activation::{ActRow, ActRows};
use super::interleaved::{
    Interleaved, ScaleFields, Tile, activations, for_tiles, is_centered, is_signed, n_groups, strip_bytes,
    strip_cols, tile_bytes,
};
use super::tile_avx512::{
    Prefetched, SourceAvx512, X_ROWS, XRows, chunk_of, most_rows, panel_codes, rows, some_rows,
};
use super::{FEW_ROWS, Part, TILE_ROWS, WeightRows};
use crate::prefetch::prefetch_far;
use std::arch::x86_64::*;
use std::marker::PhantomData;

/// Columns of a pass; a multiple of 256.
pub(super) const PASS: usize = 1024;

/// Maximum number of activation rows with which the common factors of a block's groups stay in
/// registers; twelve rows would spill sums.
const HOISTING: usize = 4;

/// Bytes that weights are prefetched ahead while one row or a few rows are multiplied.
const AHEAD: usize = 8 << 10;

/// Least number of activation rows for which a panel pays: unpacking into it costs as much as 40 to
/// 90 rows save (measured).
const PANEL_ROWS: usize = 96;

/// True if a panel can pay: not if there is little to unpack, and not in groups of 16 (measured).
const fn has_panel<F: Interleaved>() -> bool {
    F::BITS < 8 && F::GROUP == 32
}

/// Bytes of scratch: a panel.
pub(super) fn scratch_bytes(n_cols: usize) -> usize {
    PASS.min(n_cols) * TILE_ROWS + 64
}

/// A tile as it is stored.
pub(super) struct StoredTile<F>(Tile, PhantomData<F>);

impl<F> StoredTile<F> {
    /// The tile, of type `F`.
    #[inline(always)]
    pub(super) fn new(tile: Tile) -> StoredTile<F> {
        StoredTile(tile, PhantomData)
    }
}

impl<F> Clone for StoredTile<F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F> Copy for StoredTile<F> {}

impl<F: Interleaved> SourceAvx512 for StoredTile<F> {
    const GROUP: usize = F::GROUP;
    const HAS_OFFSET: bool = F::HAS_OFFSET;
    const KEEPS_ORDER: bool = false;

    #[inline(always)]
    unsafe fn codes(self, b: usize, step: usize) -> __m512i {
        // SAFETY: the caller guarantees AVX-512 and block `b` of the tile.
        unsafe { codes::<F>(self.0, b, step) }
    }

    #[inline(always)]
    unsafe fn scale(self, group: usize) -> (__m512, __m512) {
        let (block, g) = (group / n_groups::<F>(), group % n_groups::<F>());
        // SAFETY: the caller guarantees AVX-512 and the group, whose block is in the tile.
        unsafe { group_scale::<F>(self.0, block, g, block_scale::<F>(self.0, block)) }
    }

    #[inline(always)]
    unsafe fn scale_in_turn<const C: usize>(
        self,
        group: usize,
        common: &mut (__m512, __m512),
    ) -> (__m512, __m512) {
        // SAFETY: the caller guarantees AVX-512 and the group, whose block is in the tile.
        unsafe {
            if C > HOISTING {
                return self.scale(group);
            }
            let (block, g) = (group / n_groups::<F>(), group % n_groups::<F>());
            if g == 0 {
                *common = block_scale::<F>(self.0, block);
            }
            group_scale::<F>(self.0, block, g, *common)
        }
    }

    #[inline(always)]
    fn prefetch(self, b: usize) {
        let later = self.0.scales::<F>(0).wrapping_add(AHEAD + b * const { block_bytes::<F>() });
        for at in (0..const { block_bytes::<F>() }).step_by(64) {
            prefetch_far(later.wrapping_add(at));
        }
    }
}

/// A tile with the unpacked codes of a pass, 64 bytes a step.
struct PanelAvx512<F> {
    codes: *const u8,
    tile: StoredTile<F>,
}

impl<F> Clone for PanelAvx512<F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F> Copy for PanelAvx512<F> {}

impl<F: Interleaved> SourceAvx512 for PanelAvx512<F> {
    const GROUP: usize = F::GROUP;
    const HAS_OFFSET: bool = F::HAS_OFFSET;
    const KEEPS_ORDER: bool = true;

    #[inline(always)]
    unsafe fn codes(self, b: usize, step: usize) -> __m512i {
        // SAFETY: the caller guarantees AVX-512 and block `b`; `self.codes` is aligned to 64.
        unsafe { panel_codes(self.codes, b, step) }
    }

    #[inline(always)]
    unsafe fn scale(self, group: usize) -> (__m512, __m512) {
        // SAFETY: the caller guarantees AVX-512 and the group, whose block is in the tile.
        unsafe { self.tile.scale(group) }
    }
}

/// Unpacks the codes of `n` columns to `panel` in the form of [`codes`], 64 bytes a step.
///
/// # Safety
/// AVX-512 is available; the tile has the columns; `panel` has room for them and is aligned to 64
/// bytes.
#[inline(always)]
pub(super) unsafe fn unpack<F: Interleaved>(tile: Tile, n: usize, panel: *mut u8) {
    for step in 0..n / 4 {
        // SAFETY: the caller guarantees AVX-512, `n` columns of the tile, and room for them at
        // `panel`, aligned to 64.
        unsafe { _mm512_store_si512(panel.add(step * 64).cast(), codes::<F>(tile, step / 8, step % 8)) };
    }
}

/// Prefetch state of the next tile, whose lines are prefetched in shares while this tile is
/// multiplied with many activation rows.
struct NextTile {
    /// Start of the next share.
    start: *const u8,
    /// Cache lines of a share.
    n_lines: usize,
}

impl NextTile {
    /// State for the tile after `tile`, whose next `n` columns are prefetched in `n_shares` shares;
    /// rows have `n_cols` columns.
    #[inline(always)]
    fn new<F: Interleaved>(tile: Tile, n_cols: usize, n: usize, n_shares: usize) -> NextTile {
        NextTile {
            start: tile.scales::<F>(0).wrapping_add(tile_bytes::<F>(n_cols)),
            n_lines: tile_bytes::<F>(n).div_ceil(64 * n_shares.max(1)),
        }
    }

    /// Prefetches a share.
    #[inline(always)]
    fn prefetch(&mut self) {
        for _ in 0..self.n_lines {
            prefetch_far(self.start);
            self.start = self.start.wrapping_add(64);
        }
    }
}

/// Bytes of a tile for 32 columns.
const fn block_bytes<F: Interleaved>() -> usize {
    const { strip_bytes::<F>() * 32 / strip_cols::<F>() }
}

/// Kernel for one activation row. `PREFETCH`: true if every line of the weights is prefetched.
///
/// # Safety
/// As [`super::Gemv`], for interleaved weights; AVX-512 with VNNI is available.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn gemv<F: Interleaved, const PREFETCH: bool>(
    w: WeightRows,
    n_cols: usize,
    r0: usize,
    r1: usize,
    x: ActRow,
    out: *mut f32,
) {
    let xs = ActRows { base: x.0, stride: 0, n: 1 };
    let prefetched = if PREFETCH { Prefetched::Weights } else { Prefetched::Nothing };
    // SAFETY: the caller guarantees interleaved rows `r0..r1`, `n_cols` activations at `x`, room at
    // `out`, and the instruction set; `for_tiles` passes room for a tile.
    unsafe {
        let x = XRows { first: activations(xs, 0, n_cols, 0), stride: 0, prefetched };
        for_tiles(r0, r1, out, |r, out| {
            rows::<_, 1>(StoredTile::<F>::new(Tile::new(w, r)), n_cols, x, true, out)
        });
    }
}

/// # Safety
/// As [`super::GemmTile`], for interleaved weights; AVX-512 with VNNI is available.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn gemm_tile<F: Interleaved>(
    w: WeightRows,
    n_cols: usize,
    part: Part,
    xs: ActRows,
    scratch: *mut u8,
    out: *mut f32,
) {
    // SAFETY: by the caller, `w` has the weight rows and columns of the part, and `xs` as many
    // activations in each row. `scratch` has the kernel's `gemm_scratch_bytes`, and `out` has `xs.n
    // * TILE_ROWS` values. The caller checked the instruction set. Each pass is within the part,
    // and the last of the activation rows taken together is below `xs.n`.
    unsafe {
        let most = const { most_rows::<StoredTile<F>>() };
        // Activation rows that are multiplied with a panel.
        let by_panel =
            if const { has_panel::<F>() } && xs.n >= PANEL_ROWS { xs.n / X_ROWS * X_ROWS } else { 0 };
        let tile = Tile::new(w, part.r0);
        for (k, n) in part.passes(PASS) {
            let tile = tile.from::<F>(k);
            let mut next = NextTile::new::<F>(tile, n_cols, n, xs.n / most);
            if by_panel > 0 {
                let codes = scratch.add(scratch.align_offset(64));
                unpack::<F>(tile, n, codes);
                let panel = PanelAvx512::<F> { codes, tile: StoredTile::new(tile) };
                for i in (0..by_panel).step_by(X_ROWS) {
                    next.prefetch();
                    let x = XRows {
                        first: activations(xs, i, n_cols, k),
                        stride: xs.stride,
                        prefetched: Prefetched::Rows,
                    };
                    rows::<_, X_ROWS>(panel, n, x, k == 0, out.add(i * TILE_ROWS));
                }
            }
            let len = chunk_of::<StoredTile<F>>(xs.n - by_panel);
            for i in (by_panel..xs.n).step_by(len) {
                if xs.n - i >= most {
                    next.prefetch();
                }
                let prefetched = match xs.n {
                    0..=FEW_ROWS if i == 0 && xs.n > 1 => Prefetched::Weights,
                    _ if i + len < xs.n => Prefetched::Rows,
                    _ => Prefetched::Nothing,
                };
                let x = XRows { first: activations(xs, i, n_cols, k), stride: xs.stride, prefetched };
                let n_rows = (xs.n - i).min(len);
                some_rows(StoredTile::<F>::new(tile), n, x, n_rows, k == 0, out.add(i * TILE_ROWS));
            }
        }
    }
}

/// Bits `from..from + width` of each byte, moved to bit `to`.
///
/// # Safety
/// AVX-512 is available.
#[inline(always)]
unsafe fn bits(bytes: __m512i, from: usize, width: usize, to: usize) -> __m512i {
    // SAFETY: by the caller, AVX-512 is available.
    unsafe {
        let moved = if from > to {
            _mm512_srl_epi16(bytes, _mm_cvtsi32_si128((from - to) as i32))
        } else {
            _mm512_sll_epi16(bytes, _mm_cvtsi32_si128((to - from) as i32))
        };
        _mm512_and_si512(moved, _mm512_set1_epi8((((1u32 << width) - 1) << to) as i8))
    }
}

/// Loads four bits of a step from their plane, moved to bit `to`.
///
/// # Safety
/// AVX-512 is available; the plane has the step and is aligned to 64.
#[inline(always)]
unsafe fn four(plane: *const u8, step: usize, to: usize) -> __m512i {
    // SAFETY: the caller guarantees AVX-512 and the step in `plane`, aligned to 64.
    unsafe { bits(_mm512_load_si512(plane.add(64 * (step / 2)).cast()), 4 * (step % 2), 4, to) }
}

/// Loads two bits of a step from their plane, moved to bit `to`.
///
/// # Safety
/// As [`four`].
#[inline(always)]
unsafe fn two(plane: *const u8, step: usize, to: usize) -> __m512i {
    // SAFETY: the caller guarantees AVX-512 and the step in `plane`, aligned to 64.
    unsafe { bits(_mm512_load_si512(plane.add(64 * (step / 4)).cast()), 2 * (step % 4), 2, to) }
}

/// Loads one bit of a step from its plane, moved to bit `to`.
///
/// # Safety
/// As [`four`].
#[inline(always)]
unsafe fn one(plane: *const u8, step: usize, to: usize) -> __m512i {
    // SAFETY: the caller guarantees AVX-512 and the step in `plane`, aligned to 64.
    unsafe { bits(_mm512_load_si512(plane.cast()), step, 1, to) }
}

/// Bits that a code is moved up in its byte, so that its zero is 128.
const fn moved<F: Interleaved>() -> usize {
    if is_centered::<F>() { 7 - F::ZERO.ilog2() as usize } else { 0 }
}

/// Unsigned codes of a step of block `b` of 32 columns; codes without an offset are [`moved`]
/// around 128.
///
/// # Safety
/// AVX-512 is available; the tile has the block.
#[inline(always)]
pub(super) unsafe fn codes<F: Interleaved>(tile: Tile, b: usize, step: usize) -> __m512i {
    // SAFETY: the caller guarantees AVX-512 and block `b`, whose planes have `code_bytes` from
    // `block` on.
    unsafe {
        let block = tile.codes::<F>(b);
        let at = const { moved::<F>() };
        let codes = match F::BITS {
            2 => two(block, step, at),
            3 => _mm512_or_si512(two(block.add(64), step, at), one(block, step, 2 + at)),
            4 => four(block, step, at),
            5 => _mm512_or_si512(four(block.add(64), step, at), one(block, step, 4 + at)),
            6 => _mm512_or_si512(four(block, step, at), two(block.add(256), step, 4 + at)),
            _ => _mm512_load_si512(block.add(64 * step).cast()),
        };
        let around_128 = |codes: __m512i| _mm512_xor_si512(codes, _mm512_set1_epi8(-128));
        match F::VALUES {
            None if is_signed::<F>() => around_128(codes),
            None => codes,
            Some(values) => {
                let table = _mm512_broadcast_i32x4(_mm_loadu_si128(values.as_ptr().cast()));
                _mm512_shuffle_epi8(around_128(table), codes)
            }
        }
    }
}

/// Common factors of the scales of a block: that of the codes in the form of [`codes`], and that of
/// the offsets. The second is undefined for a type without offsets.
///
/// # Safety
/// AVX-512 is available; the tile has the block.
#[inline(always)]
unsafe fn block_scale<F: Interleaved>(tile: Tile, block: usize) -> (__m512, __m512) {
    // SAFETY: the caller guarantees AVX-512 and `block`, so the tile has its fields.
    unsafe {
        let fields = tile.scales::<F>(block);
        let f16s = |at: usize| _mm512_cvtph_ps(_mm256_loadu_si256(fields.add(at).cast()));
        let zeros = _mm512_setzero_ps();
        let negated = |v: __m512| _mm512_xor_ps(v, _mm512_set1_ps(-0.0));
        let (scale, offset) = match F::SCALES {
            ScaleFields::F16 | ScaleFields::Signed => (f16s(0), zeros),
            ScaleFields::F16Offset => (f16s(0), f16s(32)),
            ScaleFields::Minima | ScaleFields::Nibbles => (f16s(0), negated(f16s(32))),
            ScaleFields::Exponent => {
                // 2^(e - 128) is subnormal for e below 2.
                let e = _mm512_cvtepu8_epi32(_mm_loadu_si128(fields.cast()));
                let normal = _mm512_slli_epi32::<23>(_mm512_sub_epi32(e, _mm512_set1_epi32(1)));
                let small = _mm512_sllv_epi32(_mm512_set1_epi32(0x0020_0000), e);
                let is_small = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
                (_mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, is_small, small)), zeros)
            }
        };
        match const { moved::<F>() } {
            0 => (scale, offset),
            moved => (_mm512_mul_ps(scale, _mm512_set1_ps(1.0 / (1u32 << moved) as f32)), offset),
        }
    }
}

/// Scale and offset of group `g` of a block, with the common factors of its groups.
///
/// # Safety
/// AVX-512 is available; the tile has the block.
#[inline(always)]
unsafe fn group_scale<F: Interleaved>(
    tile: Tile,
    block: usize,
    g: usize,
    (scale, offset): (__m512, __m512),
) -> (__m512, __m512) {
    // SAFETY: the caller guarantees AVX-512 and `block`, so the tile has its fields.
    unsafe {
        let fields = tile.scales::<F>(block);
        let bytes = |at: usize| _mm_loadu_si128(fields.add(at).cast());
        let unsigned = |bytes: __m128i| _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
        match F::SCALES {
            ScaleFields::F16 | ScaleFields::F16Offset | ScaleFields::Exponent => (scale, offset),
            ScaleFields::Signed => {
                let s = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes(32 + 16 * g)));
                (_mm512_mul_ps(scale, s), offset)
            }
            ScaleFields::Minima => {
                let (s, m) = (bytes(64 + 16 * g), bytes(64 + 16 * (n_groups::<F>() + g)));
                (_mm512_mul_ps(scale, unsigned(s)), _mm512_mul_ps(offset, unsigned(m)))
            }
            ScaleFields::Nibbles => {
                let both = bytes(64 + 16 * g);
                let low = _mm_set1_epi8(15);
                let s = _mm_and_si128(both, low);
                let m = _mm_and_si128(_mm_srli_epi16::<4>(both), low);
                (_mm512_mul_ps(scale, unsigned(s)), _mm512_mul_ps(offset, unsigned(m)))
            }
        }
    }
}
