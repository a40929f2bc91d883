//! AVX-512 kernels of interleaved weights: lanes are 16 weight rows, a register a step, activations broadcast by
//! `vpdpbusd` itself.
//!
//! `vpdpbusd` multiplies unsigned with signed bytes and adds four neighbours to 32 bits. Codes without an offset are brought to
//! the top of their byte as they are unpacked, where their zero is 128, and a group's products begin with `-128` times the sum
//! of its activations, a word of the activation row: taking the zero out costs no instruction of the ports that multiply. Up to
//! [`X_ROWS`] activation rows meet the codes as they are unpacked; where many follow, a pass is unpacked once, into a [`Panel`], for
//! unpacking takes 16 to 32 of the 132 cycles that the other ports have; the [`NextTile`] is asked for meanwhile. Up to [`FEW_ROWS`] every
//! line of the weights is asked for some KB before it is read; for one row only on Intel's processors.
//! Passes of [`PASS`] columns keep a tile and the activations that it meets near. Order of accumulation: `interleaved`; two groups
//! of 16 add at once, which saves one multiplication in twelve, and their first half takes registers from three activation rows.

use super::activation::{ActRow, ActRows, Q8Row};
use super::interleaved::{
    Interleaved, Scales, Tile, activations, ask_next_rows, is_centered, is_signed, n_groups, strip_bytes,
    strip_cols, tile_bytes,
};
use super::{FEW_ROWS, Part, TILE_ROWS, WeightRows};
use crate::prefetch::prefetch_far;
use std::arch::x86_64::*;

/// Columns of a pass; a multiple of 256.
pub(super) const PASS: usize = 1024;

/// Activation rows whose sums fit the registers: 12 integer, 12 float, and the operands.
const X_ROWS: usize = 12;

/// The same with groups of 16, of which two are under way.
const X_ROWS_BY_16: usize = 9;

/// Activation rows up to which what a block's groups have in common stays in registers; with twelve it would push sums out.
const HOISTING: usize = 4;

/// How many bytes before they are read weights are prefetched while one row or a few pass.
const AHEAD: usize = 8 << 10;

/// From how many activation rows on a panel pays: unpacking into it costs as much as 40 to 90 rows save (measured).
const PANEL_ROWS: usize = 96;

/// Whether a panel pays at all: not where there is little to unpack, and not in groups of 16 (measured).
const fn has_panel<F: Interleaved>() -> bool {
    F::BITS < 8 && F::GROUP == 32
}

/// Bytes of scratch: a panel.
pub(super) fn scratch_bytes(n_cols: usize) -> usize {
    PASS.min(n_cols) * TILE_ROWS + 64
}

/// Where codes come from.
trait Source: Copy {
    /// Whether [`keep_order`] is called for.
    const KEEPS_ORDER: bool;

    /// As [`codes`].
    ///
    /// # Safety
    /// AVX-512 is available; the source has the block.
    unsafe fn codes<F: Interleaved>(self, b: usize, step: usize) -> __m512i;
}

impl Source for Tile {
    const KEEPS_ORDER: bool = false;

    #[inline(always)]
    unsafe fn codes<F: Interleaved>(self, b: usize, step: usize) -> __m512i {
        // SAFETY: by the caller, AVX-512 is available; the tile has the block.
        unsafe { codes::<F>(self, b, step) }
    }
}

/// The codes of a pass as [`codes`] gives them, 64 bytes a step.
#[derive(Clone, Copy)]
struct Panel(*const u8);

impl Source for Panel {
    const KEEPS_ORDER: bool = true;

    #[inline(always)]
    unsafe fn codes<F: Interleaved>(self, b: usize, step: usize) -> __m512i {
        // SAFETY: by the caller, AVX-512 is available; the tile has the block.
        unsafe { _mm512_load_si512(self.0.add((b * 8 + step) * 64).cast()) }
    }
}

/// The codes of `n` columns as [`codes`] gives them, 64 bytes a step, to `panel`.
///
/// # Safety
/// AVX-512 is available; the tile has the columns; `panel` has room for them and is aligned to 64 bytes.
#[inline(always)]
pub(super) unsafe fn unpack<F: Interleaved>(tile: Tile, n: usize, panel: *mut u8) {
    for step in 0..n / 4 {
        // SAFETY: by the caller, AVX-512 is available; the tile has the columns; `panel` has room for them
        // and is aligned to 64 bytes.
        unsafe { _mm512_store_si512(panel.add(step * 64).cast(), codes::<F>(tile, step / 8, step % 8)) };
    }
}

/// The tile after one that meets many activation rows, asked for in shares meanwhile, so that it has come when its turn is.
struct NextTile {
    /// Where the next share begins.
    start: *const u8,
    /// Cache lines of a share.
    n_lines: usize,
}

impl NextTile {
    /// That after `tile`, as many columns of it, `n`, in `n_shares` shares; rows have `n_cols` columns.
    #[inline(always)]
    fn new<F: Interleaved>(tile: Tile, n_cols: usize, n: usize, n_shares: usize) -> NextTile {
        NextTile {
            start: tile.scales::<F>(0).wrapping_add(tile_bytes::<F>(n_cols)),
            n_lines: tile_bytes::<F>(n).div_ceil(64 * n_shares.max(1)),
        }
    }

    /// Ask for a share.
    #[inline(always)]
    fn ask(&mut self) {
        for _ in 0..self.n_lines {
            prefetch_far(self.start);
            self.start = self.start.wrapping_add(64);
        }
    }
}

/// What is asked for while columns pass.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ask {
    /// Nothing.
    Nothing,
    /// The weights that follow some KB later, every line. Few rows are too slow a stream for the hardware prefetcher; one row is such a
    /// stream for AMD's, but not for Intel's (measured, see `NOTES.md`).
    Weights,
    /// The activation rows that come next.
    Rows,
}

/// Activation rows that meet a tile together.
#[derive(Clone, Copy)]
struct XRows {
    first: Q8Row,
    /// Bytes from a row to the next.
    stride: usize,
    ask: Ask,
}

/// Bytes of a tile for 32 columns.
const fn block_bytes<F: Interleaved>() -> usize {
    const { strip_bytes::<F>() * 32 / strip_cols::<F>() }
}

/// `ASK`: whether every line of the weights is prefetched.
///
/// # Safety
/// As [`super::Gemv`], for interleaved weights; AVX-512 with VNNI is available.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn gemv<F: Interleaved, const ASK: bool>(
    w: WeightRows,
    n_cols: usize,
    r0: usize,
    r1: usize,
    x: ActRow,
    out: *mut f32,
) {
    let xs = ActRows { base: x.0, stride: 0, n: 1 };
    let ask = if ASK { Ask::Weights } else { Ask::Nothing };
    // SAFETY: tiles within the rows; a last tile in part goes through `products`.
    unsafe {
        for r in (r0..r1).step_by(TILE_ROWS) {
            let tile = Tile::new(w, r);
            let x = XRows { first: activations(xs, 0, n_cols, 0), stride: 0, ask };
            if r1 - r >= TILE_ROWS {
                rows::<F, _, 1>(tile, tile, n_cols, x, true, out.add(r - r0));
            } else {
                let mut products = [0f32; TILE_ROWS];
                rows::<F, _, 1>(tile, tile, n_cols, x, true, products.as_mut_ptr());
                out.add(r - r0).copy_from_nonoverlapping(products.as_ptr(), r1 - r);
            }
        }
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
    // SAFETY: by the caller, `w` has the weight rows and columns of the part, `xs` as many
    // activations in each row, `scratch` has the kernel's `gemm_scratch_bytes`, `out` has
    // `xs.n * TILE_ROWS` values, and the instruction set is available; each pass lies within the
    // part, and the last of the activation rows taken together is below `xs.n`.
    unsafe {
        let most = const { x_rows::<F>() };
        // Activation rows that meet a panel.
        let by_panel =
            if const { has_panel::<F>() } && xs.n >= PANEL_ROWS { xs.n / X_ROWS * X_ROWS } else { 0 };
        let tile = Tile::new(w, part.r0);
        let end = part.k + part.n;
        for k in (part.k..end).step_by(PASS) {
            let n = PASS.min(end - k);
            let tile = tile.from::<F>(k);
            let mut next = NextTile::new::<F>(tile, n_cols, n, xs.n / most);
            if by_panel > 0 {
                let panel = scratch.add(scratch.align_offset(64));
                unpack::<F>(tile, n, panel);
                for i in (0..by_panel).step_by(X_ROWS) {
                    next.ask();
                    let x = XRows { first: activations(xs, i, n_cols, k), stride: xs.stride, ask: Ask::Rows };
                    rows::<F, _, X_ROWS>(tile, Panel(panel), n, x, k == 0, out.add(i * TILE_ROWS));
                }
            }
            // Chunks of about equal size: a small last one would unpack for few.
            let n_left = xs.n - by_panel;
            let len = n_left.div_ceil(n_left.div_ceil(most).max(1)).max(1);
            for i in (by_panel..xs.n).step_by(len) {
                if xs.n - i >= most {
                    next.ask();
                }
                let ask = match xs.n {
                    0..=FEW_ROWS if i == 0 && xs.n > 1 => Ask::Weights,
                    _ if i + len < xs.n => Ask::Rows,
                    _ => Ask::Nothing,
                };
                let x = XRows { first: activations(xs, i, n_cols, k), stride: xs.stride, ask };
                let out = out.add(i * TILE_ROWS);
                macro_rules! of {
                    ($($c:literal)*, $most:ident) => {
                        match (xs.n - i).min(len) {
                            $($c => rows::<F, _, $c>(tile, tile, n, x, k == 0, out),)*
                            _ => rows::<F, _, $most>(tile, tile, n, x, k == 0, out),
                        }
                    };
                }
                if F::GROUP == 16 {
                    of!(1 2 3 4 5 6 7 8, X_ROWS_BY_16)
                } else {
                    of!(1 2 3 4 5 6 7 8 9 10 11, X_ROWS)
                }
            }
        }
    }
}

/// Activation rows whose sums fit the registers.
const fn x_rows<F: Interleaved>() -> usize {
    if F::GROUP == 16 { X_ROWS_BY_16 } else { X_ROWS }
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

/// Four bits of a step from their plane, at bit `to`.
///
/// # Safety
/// AVX-512 is available; the plane is readable.
#[inline(always)]
unsafe fn four(plane: *const u8, step: usize, to: usize) -> __m512i {
    // SAFETY: by the caller, AVX-512 is available; the plane is readable.
    unsafe { bits(_mm512_load_si512(plane.add(64 * (step / 2)).cast()), 4 * (step % 2), 4, to) }
}

/// Two bits of a step from their plane, at bit `to`.
///
/// # Safety
/// As [`four`].
#[inline(always)]
unsafe fn two(plane: *const u8, step: usize, to: usize) -> __m512i {
    // SAFETY: by the caller, the plane is readable and aligned, and the instruction set is available.
    unsafe { bits(_mm512_load_si512(plane.add(64 * (step / 4)).cast()), 2 * (step % 4), 2, to) }
}

/// One bit of a step from its plane, at bit `to`.
///
/// # Safety
/// As [`four`].
#[inline(always)]
unsafe fn one(plane: *const u8, step: usize, to: usize) -> __m512i {
    // SAFETY: by the caller, the plane is readable and aligned, and the instruction set is available.
    unsafe { bits(_mm512_load_si512(plane.cast()), step, 1, to) }
}

/// By how many bits a code is moved up in its byte, so that its zero is 128.
const fn moved<F: Interleaved>() -> usize {
    if is_centered::<F>() { 7 - F::ZERO.ilog2() as usize } else { 0 }
}

/// The codes of a step of block `b` of 32 columns, unsigned; those without an offset around 128, [`moved`].
///
/// # Safety
/// AVX-512 is available; the tile has the block.
#[inline(always)]
pub(super) unsafe fn codes<F: Interleaved>(tile: Tile, b: usize, step: usize) -> __m512i {
    // SAFETY: the block's planes.
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

/// What the scales of a block have in common: those of the codes as [`codes`] gives them, and of the offsets; the latter are anything
/// for a type without.
///
/// # Safety
/// AVX-512 is available; the tile has the block.
#[inline(always)]
unsafe fn block_scale<F: Interleaved>(tile: Tile, block: usize) -> (__m512, __m512) {
    // SAFETY: the fields of the block.
    unsafe {
        let fields = tile.scales::<F>(block);
        let f16s = |at: usize| _mm512_cvtph_ps(_mm256_loadu_si256(fields.add(at).cast()));
        let zeros = _mm512_setzero_ps();
        let negated = |v: __m512| _mm512_xor_ps(v, _mm512_set1_ps(-0.0));
        let (scale, offset) = match F::SCALES {
            Scales::F16 | Scales::Signed => (f16s(0), zeros),
            Scales::F16Offset => (f16s(0), f16s(32)),
            Scales::Minima | Scales::Nibbles => (f16s(0), negated(f16s(32))),
            Scales::Exponent => {
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

/// Scale and offset of group `g` of a block, given what its groups have in common.
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
    // SAFETY: the fields of the block.
    unsafe {
        let fields = tile.scales::<F>(block);
        let bytes = |at: usize| _mm_loadu_si128(fields.add(at).cast());
        let unsigned = |bytes: __m128i| _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
        match F::SCALES {
            Scales::F16 | Scales::F16Offset | Scales::Exponent => (scale, offset),
            Scales::Signed => {
                let s = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes(32 + 16 * g)));
                (_mm512_mul_ps(scale, s), offset)
            }
            Scales::Minima => {
                let (s, m) = (bytes(64 + 16 * g), bytes(64 + 16 * (n_groups::<F>() + g)));
                (_mm512_mul_ps(scale, unsigned(s)), _mm512_mul_ps(offset, unsigned(m)))
            }
            Scales::Nibbles => {
                let both = bytes(64 + 16 * g);
                let low = _mm_set1_epi8(15);
                let s = _mm_and_si128(both, low);
                let m = _mm_and_si128(_mm_srli_epi16::<4>(both), low);
                (_mm512_mul_ps(scale, unsigned(s)), _mm512_mul_ps(offset, unsigned(m)))
            }
        }
    }
}

/// Scale of the codes as [`codes`] gives them, and offset of a group; the offset is anything for a type without.
///
/// # Safety
/// AVX-512 is available; the tile has the group.
#[inline(always)]
pub(super) unsafe fn scale<F: Interleaved>(tile: Tile, group: usize) -> (__m512, __m512) {
    let (block, g) = (group / n_groups::<F>(), group % n_groups::<F>());
    // SAFETY: by the caller, AVX-512 is available; the tile has the group.
    unsafe { group_scale::<F>(tile, block, g, block_scale::<F>(tile, block)) }
}

/// What the products of a group of an activation row begin with; the row begins `row` bytes after `x`.
///
/// # Safety
/// AVX-512 is available; the activations have the group.
#[inline(always)]
pub(super) unsafe fn centre<F: Interleaved>(x: Q8Row, row: usize, group: usize) -> __m512i {
    // SAFETY: by the caller, AVX-512 is available; the activations have the group.
    unsafe {
        match F::GROUP {
            _ if F::HAS_OFFSET => _mm512_setzero_si512(),
            32 => _mm512_set1_epi32(*x.centre32.byte_add(row).add(group)),
            _ => _mm512_set1_epi32(*x.centre16.byte_add(row).add(group)),
        }
    }
}

/// Add the products `t` of a group of 32, their [`centre`] among them, with its scale and offset, and with the scale and the sum of the
/// activations of the row that begins `row` bytes after `x`.
///
/// # Safety
/// AVX-512 is available; the activations have the group.
#[inline(always)]
pub(super) unsafe fn add_scaled<F: Interleaved>(
    sum: &mut __m512,
    t: __m512i,
    (scale, offset): (__m512, __m512),
    x: Q8Row,
    row: usize,
    group: usize,
) {
    // SAFETY: by the caller, AVX-512 is available; the activations have the group.
    unsafe {
        let x_scale = _mm512_set1_ps(*x.scale.byte_add(row).add(group));
        *sum = _mm512_fmadd_ps(scale, _mm512_mul_ps(_mm512_cvtepi32_ps(t), x_scale), *sum);
        if F::HAS_OFFSET {
            let x_sum = _mm512_set1_ps(*x.sum32.byte_add(row).add(group));
            *sum = _mm512_fmadd_ps(offset, x_sum, *sum);
        }
    }
}

/// Add the products of two groups of 16 of block `b`: `half` is those of the first with their scale, `t` those of the second; each with
/// its [`centre`], offset and activations as in [`add_scaled`].
///
/// # Safety
/// AVX-512 is available; the activations have the block.
#[inline(always)]
unsafe fn add_pair<F: Interleaved>(
    sum: &mut __m512,
    (half, first_offset): (__m512, __m512),
    t: __m512i,
    (scale, offset): (__m512, __m512),
    x: Q8Row,
    row: usize,
    b: usize,
) {
    // SAFETY: by the caller, AVX-512 is available; the activations have the block.
    unsafe {
        let both = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(t), half);
        *sum = _mm512_fmadd_ps(both, _mm512_set1_ps(*x.scale.byte_add(row).add(b)), *sum);
        if F::HAS_OFFSET {
            let x_sums = x.sum16.byte_add(row).add(2 * b);
            *sum = _mm512_fmadd_ps(first_offset, _mm512_set1_ps(*x_sums), *sum);
            *sum = _mm512_fmadd_ps(offset, _mm512_set1_ps(*x_sums.add(1)), *sum);
        }
    }
}

/// A tile's `n` columns times `C` activation rows, `stride` bytes apart: to `out`, `(C, 16)`, or added to it unless `first`. Codes
/// come from `source`, scales from the tile.
///
/// # Safety
/// AVX-512 with VNNI is available; the tile, the source and the activations have the columns.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn rows<F: Interleaved, S: Source, const C: usize>(
    tile: Tile,
    source: S,
    n: usize,
    XRows { first: x, stride, ask }: XRows,
    first: bool,
    out: *mut f32,
) {
    // SAFETY: by the caller, AVX-512 with VNNI is available; the tile, the source and the activations have
    // the columns.
    unsafe {
        let later = tile.scales::<F>(0).wrapping_add(AHEAD);
        let mut sums = [_mm512_setzero_ps(); C];
        if !first {
            for c in 0..C {
                sums[c] = _mm512_loadu_ps(out.add(c * TILE_ROWS));
            }
        }
        let mut common = (_mm512_setzero_ps(), _mm512_setzero_ps());
        for b in 0..n / 32 {
            match ask {
                Ask::Nothing => {}
                Ask::Rows => ask_next_rows::<C>(x, stride, b),
                Ask::Weights => {
                    for at in (0..const { block_bytes::<F>() }).step_by(64) {
                        prefetch_far(later.wrapping_add(b * const { block_bytes::<F>() } + at));
                    }
                }
            }
            let t = products::<F, S, C>(source, x, stride, b, 0);
            if F::GROUP == 32 {
                let scale = scale_of::<F, C>(tile, b, &mut common);
                for c in 0..C {
                    add_scaled::<F>(&mut sums[c], t[c], scale, x, c * stride, b);
                }
                continue;
            }
            let first = scale_of::<F, C>(tile, 2 * b, &mut common);
            let mut halves = [_mm512_setzero_ps(); C];
            for c in 0..C {
                halves[c] = _mm512_mul_ps(first.0, _mm512_cvtepi32_ps(t[c]));
            }
            let t = products::<F, S, C>(source, x, stride, b, 4);
            let second = scale_of::<F, C>(tile, 2 * b + 1, &mut common);
            for c in 0..C {
                add_pair::<F>(&mut sums[c], (halves[c], first.1), t[c], second, x, c * stride, b);
            }
        }
        for c in 0..C {
            _mm512_storeu_ps(out.add(c * TILE_ROWS), sums[c]);
        }
    }
}

/// The products of the group of block `b` that begins with step `s0`, for `C` activation rows.
///
/// # Safety
/// As [`rows`].
#[inline(always)]
unsafe fn products<F: Interleaved, S: Source, const C: usize>(
    source: S,
    x: Q8Row,
    stride: usize,
    b: usize,
    s0: usize,
) -> [__m512i; C] {
    // SAFETY: by the caller, AVX-512 with VNNI is available; the tile, the source and the activations have
    // the columns.
    unsafe {
        let mut products = [_mm512_setzero_si512(); C];
        for c in 0..C {
            products[c] = centre::<F>(x, c * stride, (b * 32 + s0 * 4) / F::GROUP);
        }
        for step in s0..s0 + F::GROUP / 4 {
            let codes = source.codes::<F>(b, step);
            for c in 0..C {
                let p = x.q.byte_add(c * stride).add(b * 32 + step * 4);
                let q = _mm512_set1_epi32(p.cast::<i32>().read_unaligned());
                products[c] = _mm512_dpbusd_epi32(products[c], codes, q);
            }
            if S::KEEPS_ORDER {
                keep_order(&mut products);
            }
        }
        products
    }
}

/// Keep the sums of rows in registers, each step's before the next. Left to itself, the compiler brings all steps of one row
/// together, since codes are but loads: chains of products that wait for one another, and sums in memory.
#[inline]
#[target_feature(enable = "avx512f")]
fn keep_order<const C: usize>(sums: &mut [__m512i; C]) {
    for sum in sums {
        // SAFETY: a comment, no instruction.
        unsafe {
            std::arch::asm!("/* {} */", inout(zmm_reg) * sum, options(nomem, nostack, preserves_flags));
        }
    }
}

/// [`scale`] of a group, for up to [`HOISTING`] rows by what its block's groups have in `common`, which groups in order keep there.
///
/// # Safety
/// As [`scale`].
#[inline(always)]
unsafe fn scale_of<F: Interleaved, const C: usize>(
    tile: Tile,
    group: usize,
    common: &mut (__m512, __m512),
) -> (__m512, __m512) {
    // SAFETY: by the caller, AVX-512 is available; the tile has the group.
    unsafe {
        if C > HOISTING {
            return scale::<F>(tile, group);
        }
        let (block, g) = (group / n_groups::<F>(), group % n_groups::<F>());
        if g == 0 {
            *common = block_scale::<F>(tile, block);
        }
        group_scale::<F>(tile, block, g, *common)
    }
}
