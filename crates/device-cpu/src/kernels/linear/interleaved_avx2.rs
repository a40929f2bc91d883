//! AVX2 kernels of interleaved weights: lanes are 8 weight rows, two registers a tile, activations
//! broadcast.
//!
//! `vpmaddubsw` multiplies unsigned with signed bytes and adds two neighbours in 16 bits. Small
//! codes allow several products to be added there before one `vpmaddwd` widens: 8 for codes to 15
//! (8 * 2 * 15 * 127 = 30,480), 4 for codes to 31. In groups of 16 `vpmaddwd` multiplies with the
//! integer scales. Their sums start at minus the zero point's product with the activations. Only
//! the distance of codes from the zero point then counts, and an intermediate overflow of 16 bits
//! cancels out. Codes beyond 127 stay signed and pass their sign to the activations, `|c| *
//! (sign(c) q)`, at most 2 * 128 * 127 = 32,512; each of these products is widened separately.
//!
//! Up to [`x_rows`] activation rows are multiplied with codes as they are unpacked. With more rows,
//! [`PASS`] columns are unpacked first into a panel of bytes and f32 scales, which stays in the
//! first-level cache. Order of accumulation: `interleaved`.
//!
//! The file is past 600 lines, since the loops differ by codes and groups, but share unpacking,
//! panels and registers.

use super::activation::{ActRow, ActRows, Q8Row};
use super::interleaved::{
    Interleaved, ScaleFields, Tile, activations, for_tiles, is_signed, n_groups, prefetch_next_rows,
};
use super::order::Fours;
use super::{Part, TILE_ROWS, WeightRows};
use std::arch::x86_64::*;

/// Columns of a panel; a multiple of 256.
pub(super) const PASS: usize = 512;

/// Activation rows that are multiplied at once, for both halves of a tile. Their sums of 16 bits
/// fill the registers, and those in f32 are in memory. Groups of 32 have fewer rows: a group is
/// long, and keeping its last sums in registers is faster (measured).
const fn x_rows<F: Interleaved>() -> usize {
    if F::GROUP == 16 || is_signed::<F>() { 4 } else { 3 }
}

/// Least number of activation rows for which a panel pays.
const PANEL_ROWS: usize = 7;

/// Bytes of a panel's codes, of its scales in groups of 16, of its offsets, and of the scales of
/// its blocks of 256.
const PANEL: [usize; 4] =
    [PASS * TILE_ROWS, PASS / 16 * TILE_ROWS * 4, PASS / 32 * TILE_ROWS * 4, PASS / 256 * 2 * TILE_ROWS * 4];

/// Bytes of scratch; the same for any number of columns.
pub(super) fn scratch_bytes(_n_cols: usize) -> usize {
    64 + PANEL[0] + PANEL[1] + PANEL[2] + PANEL[3]
}

/// [`super::make_tile::interleave`] with AVX2. AVX-512 uses it too, since the compiler's loops over
/// wider vectors are slower.
///
/// # Safety
/// As [`super::make_tile::interleave`]; AVX2 is available.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn interleave<F: Interleaved>(
    w: WeightRows,
    n_cols: usize,
    r0: usize,
    n_rows: usize,
    out: *mut u8,
) {
    // SAFETY: the caller guarantees `n_rows` rows of `w` from `r0` on, a tile's bytes at `out`, and
    // AVX2, which `Fours` needs.
    unsafe { super::make_tile::interleave::<F, Fours>(w, n_cols, r0, n_rows, out) }
}

/// # Safety
/// As [`super::Gemv`], for interleaved weights; AVX2, FMA and F16C are available.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn gemv<F: Interleaved>(
    w: WeightRows,
    n_cols: usize,
    r0: usize,
    r1: usize,
    x: ActRow,
    out: *mut f32,
) {
    let xs = ActRows { base: x.0, stride: 0, n: 1 };
    // SAFETY: the caller guarantees interleaved rows `r0..r1`, `n_cols` activations at `x`, room at
    // `out`, and the instruction set; `for_tiles` passes room for a tile.
    unsafe {
        let x = activations(xs, 0, n_cols, 0);
        for_tiles(r0, r1, out, |r, out| {
            let source = StoredTileAvx2::<F>(Tile::new(w, r), std::marker::PhantomData);
            rows::<F, _, 1>(source, n_cols, x, 0, true, out);
        });
    }
}

/// # Safety
/// As [`super::GemmTile`], for interleaved weights; AVX2, FMA and F16C are available.
#[target_feature(enable = "avx2,fma,f16c")]
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
    // * TILE_ROWS` values. The caller checked the instruction set. Each pass is within the part.
    unsafe {
        let tile = Tile::new(w, part.r0);
        if xs.n < PANEL_ROWS {
            let source = StoredTileAvx2::<F>(tile.from::<F>(part.k), std::marker::PhantomData);
            return all_rows::<F, _>(source, xs, n_cols, part.k, part.n, out);
        }
        let panel = PanelAvx2::new(scratch);
        for (k, n) in part.passes(PASS) {
            panel.fill::<F>(tile.from::<F>(k), n);
            all_rows::<F, _>(panel, xs, n_cols, k, n, out);
        }
    }
}

/// Multiplies columns `k..k + n` with all activation rows, in groups that fit the registers.
///
/// # Safety
/// As [`rows`].
#[inline(always)]
unsafe fn all_rows<F: Interleaved, S: SourceAvx2<F>>(
    source: S,
    xs: ActRows,
    n_cols: usize,
    k: usize,
    n: usize,
    out: *mut f32,
) {
    // SAFETY: the caller guarantees the source's columns, `xs` and `out`; `i` plus the rows of each
    // call is at most `xs.n`.
    unsafe {
        for i in (0..xs.n).step_by(const { x_rows::<F>() }) {
            let (x, out) = (activations(xs, i, n_cols, k), out.add(i * TILE_ROWS));
            match (xs.n - i).min(const { x_rows::<F>() }) {
                1 => rows::<F, S, 1>(source, n, x, xs.stride, k == 0, out),
                2 => rows::<F, S, 2>(source, n, x, xs.stride, k == 0, out),
                3 => rows::<F, S, 3>(source, n, x, xs.stride, k == 0, out),
                _ => rows::<F, S, 4>(source, n, x, xs.stride, k == 0, out),
            }
        }
    }
}

/// A source of codes and scales. `half` selects 8 of the 16 rows.
trait SourceAvx2<F>: Copy {
    /// Codes of a step of block `b` of 32 columns: unsigned, or signed if [`is_signed`].
    ///
    /// # Safety
    /// AVX2 is available; the source has the block.
    unsafe fn codes(self, b: usize, step: usize, half: usize) -> __m256i;

    /// Scale and offset of a group of 32; the offset is undefined for a type without one.
    ///
    /// # Safety
    /// AVX2 and F16C are available; the source has the group.
    unsafe fn scale(self, group: usize, half: usize) -> (__m256, __m256);

    /// Integer scale of a group of 16, twice in 16 bits.
    ///
    /// # Safety
    /// As [`Self::scale`].
    unsafe fn small_scale(self, group: usize, half: usize) -> __m256i;

    /// Integer minima of both groups of 16 in a block of 32 columns, in 16 bits each.
    ///
    /// # Safety
    /// As [`Self::scale`].
    unsafe fn minima(self, b: usize, half: usize) -> __m256i;

    /// Scale, and negated scale of minima, of the file's block that contains block `b` of 32
    /// columns, for groups of 16. The second is undefined for a type without minima.
    ///
    /// # Safety
    /// As [`Self::scale`].
    unsafe fn block_scale(self, b: usize, half: usize) -> (__m256, __m256);
}

/// Spreads the bytes of 8 rows, each to the upper half of two lanes of 16 bits.
///
/// # Safety
/// AVX2 is available; 8 bytes are readable at `bytes`.
#[inline(always)]
unsafe fn spread(bytes: *const u8) -> __m256i {
    // SAFETY: the caller guarantees AVX2 and 8 bytes at `bytes`.
    unsafe {
        const NONE: i8 = -128;
        let order = _mm256_setr_epi8(
            NONE, 0, NONE, 0, NONE, 1, NONE, 1, NONE, 2, NONE, 2, NONE, 3, NONE, 3, //
            NONE, 4, NONE, 4, NONE, 5, NONE, 5, NONE, 6, NONE, 6, NONE, 7, NONE, 7,
        );
        _mm256_shuffle_epi8(_mm256_set1_epi64x(bytes.cast::<i64>().read_unaligned()), order)
    }
}

/// Bits `from..from + width` of each byte, moved to bit `to`.
///
/// # Safety
/// AVX2 is available.
#[inline(always)]
unsafe fn bits(bytes: __m256i, from: usize, width: usize, to: usize) -> __m256i {
    // SAFETY: by the caller, AVX2 is available.
    unsafe {
        let moved = if from > to {
            _mm256_srl_epi16(bytes, _mm_cvtsi32_si128((from - to) as i32))
        } else {
            _mm256_sll_epi16(bytes, _mm_cvtsi32_si128((to - from) as i32))
        };
        _mm256_and_si256(moved, _mm256_set1_epi8((((1u32 << width) - 1) << to) as i8))
    }
}

/// Loads four bits of a step from their plane.
///
/// # Safety
/// AVX2 is available; the plane has the step and is aligned to 32.
#[inline(always)]
unsafe fn four(plane: *const u8, step: usize) -> __m256i {
    // SAFETY: the caller guarantees AVX2 and the step in `plane`, aligned to 32.
    unsafe { bits(_mm256_load_si256(plane.add(64 * (step / 2)).cast()), 4 * (step % 2), 4, 0) }
}

/// Loads two bits of a step from their plane, moved to bit `to`.
///
/// # Safety
/// As [`four`].
#[inline(always)]
unsafe fn two(plane: *const u8, step: usize, to: usize) -> __m256i {
    // SAFETY: the caller guarantees AVX2 and the step in `plane`, aligned to 32.
    unsafe { bits(_mm256_load_si256(plane.add(64 * (step / 4)).cast()), 2 * (step % 4), 2, to) }
}

/// Loads one bit of a step from its plane, moved to bit `to`.
///
/// # Safety
/// As [`four`].
#[inline(always)]
unsafe fn one(plane: *const u8, step: usize, to: usize) -> __m256i {
    // SAFETY: the caller guarantees AVX2 and the step in `plane`, aligned to 32.
    unsafe { bits(_mm256_load_si256(plane.cast()), step, 1, to) }
}

/// A tile as it is stored.
struct StoredTileAvx2<F>(Tile, std::marker::PhantomData<F>);

impl<F> Clone for StoredTileAvx2<F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F> Copy for StoredTileAvx2<F> {}

impl<F: Interleaved> SourceAvx2<F> for StoredTileAvx2<F> {
    #[inline(always)]
    unsafe fn codes(self, b: usize, step: usize, half: usize) -> __m256i {
        // SAFETY: the caller guarantees AVX2 and block `b`, whose planes have `code_bytes` from
        // `block` on.
        unsafe {
            let block = self.0.codes::<F>(b).add(32 * half);
            let codes = match F::BITS {
                2 => two(block, step, 0),
                3 => _mm256_or_si256(two(block.add(64), step, 0), one(block, step, 2)),
                4 => four(block, step),
                5 => _mm256_or_si256(four(block.add(64), step), one(block, step, 4)),
                6 => _mm256_or_si256(four(block, step), two(block.add(256), step, 4)),
                _ => _mm256_load_si256(block.add(64 * step).cast()),
            };
            match F::VALUES {
                None => codes,
                Some(values) => {
                    let table = _mm_loadu_si128(values.as_ptr().cast());
                    let values = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), codes);
                    if is_signed::<F>() {
                        values
                    } else {
                        _mm256_add_epi8(values, _mm256_set1_epi8(F::ZERO as i8))
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn scale(self, group: usize, half: usize) -> (__m256, __m256) {
        let (block, g) = (group / n_groups::<F>(), group % n_groups::<F>());
        // SAFETY: the caller guarantees AVX2, F16C and the group, so the tile has the fields of its
        // block.
        unsafe {
            let fields = self.0.scales::<F>(block);
            let f16s = |at: usize| _mm256_cvtph_ps(_mm_loadu_si128(fields.add(at + 16 * half).cast()));
            let bytes = |at: usize| _mm_loadl_epi64(fields.add(at + 8 * half).cast());
            let unsigned = |bytes: __m128i| _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
            let negated = |v: __m256| _mm256_xor_ps(v, _mm256_set1_ps(-0.0));
            match F::SCALES {
                ScaleFields::F16 => (f16s(0), _mm256_setzero_ps()),
                ScaleFields::F16Offset => (f16s(0), f16s(32)),
                ScaleFields::Exponent => {
                    // 2^(e - 128) is subnormal for e below 2, which a shift of its bits computes.
                    let e = _mm256_cvtepu8_epi32(bytes(0));
                    let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(e, _mm256_set1_epi32(1)));
                    let small = _mm256_sllv_epi32(_mm256_set1_epi32(0x0020_0000), e);
                    let is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
                    let value = _mm256_blendv_epi8(normal, small, is_small);
                    (_mm256_castsi256_ps(value), _mm256_setzero_ps())
                }
                ScaleFields::Signed => {
                    let s = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes(32 + 16 * g)));
                    (_mm256_mul_ps(f16s(0), s), _mm256_setzero_ps())
                }
                ScaleFields::Minima => {
                    let (s, m) = (bytes(64 + 16 * g), bytes(64 + 16 * (n_groups::<F>() + g)));
                    let offset = _mm256_mul_ps(f16s(32), unsigned(m));
                    (_mm256_mul_ps(f16s(0), unsigned(s)), negated(offset))
                }
                ScaleFields::Nibbles => unreachable!("groups of 16 only"),
            }
        }
    }

    #[inline(always)]
    unsafe fn small_scale(self, group: usize, half: usize) -> __m256i {
        let (block, g) = (group / n_groups::<F>(), group % n_groups::<F>());
        // SAFETY: the caller guarantees AVX2 and the group, so the tile has the fields of its
        // block.
        unsafe {
            let fields = self.0.scales::<F>(block).add(8 * half);
            match F::SCALES {
                ScaleFields::Signed => _mm256_srai_epi16::<8>(spread(fields.add(32 + 16 * g))),
                ScaleFields::Nibbles => {
                    let both = _mm256_srli_epi16::<8>(spread(fields.add(64 + 16 * g)));
                    _mm256_and_si256(both, _mm256_set1_epi16(15))
                }
                ScaleFields::F16 | ScaleFields::F16Offset | ScaleFields::Exponent | ScaleFields::Minima => {
                    unreachable!("groups of 32 only")
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn minima(self, b: usize, half: usize) -> __m256i {
        let (block, g) = (2 * b / n_groups::<F>(), 2 * b % n_groups::<F>());
        // SAFETY: the caller guarantees AVX2 and block `b`, so the tile has the fields of the
        // file's block.
        unsafe {
            let fields = self.0.scales::<F>(block).add(64 + 16 * g + 8 * half);
            let both =
                _mm_unpacklo_epi8(_mm_loadl_epi64(fields.cast()), _mm_loadl_epi64(fields.add(16).cast()));
            _mm256_srli_epi16::<4>(_mm256_cvtepu8_epi16(both))
        }
    }

    #[inline(always)]
    unsafe fn block_scale(self, b: usize, half: usize) -> (__m256, __m256) {
        // SAFETY: the caller guarantees AVX2, F16C and block `b`, so the tile has the fields of the
        // file's block.
        unsafe {
            let fields = self.0.scales::<F>(2 * b / n_groups::<F>()).add(16 * half);
            let f16s = |at: usize| _mm256_cvtph_ps(_mm_loadu_si128(fields.add(at).cast()));
            let d = f16s(0);
            (d, if F::HAS_OFFSET { _mm256_xor_ps(f16s(32), _mm256_set1_ps(-0.0)) } else { d })
        }
    }
}

/// Unpacked columns of a tile. Codes are bytes, `[PASS / 4][16 rows][4]`. For groups of 32, scales
/// and offsets are f32, `[PASS / 32][16 rows]`. For groups of 16 they are those of [`SourceAvx2`],
/// each 32 bits wide, with the scales of blocks.
#[derive(Clone, Copy)]
struct PanelAvx2 {
    codes: *mut u8,
    scale: *mut f32,
    offset: *mut f32,
    block_scale: *mut f32,
}

impl PanelAvx2 {
    /// # Safety
    /// `scratch` has [`scratch_bytes`].
    #[inline(always)]
    unsafe fn new(scratch: *mut u8) -> PanelAvx2 {
        // SAFETY: the caller guarantees `scratch_bytes` at `scratch`, which is the sum of the parts
        // and of the alignment.
        unsafe {
            let codes = scratch.add(scratch.align_offset(64));
            let scale: *mut f32 = codes.add(PANEL[0]).cast();
            let offset = scale.byte_add(PANEL[1]);
            PanelAvx2 { codes, scale, offset, block_scale: offset.byte_add(PANEL[2]) }
        }
    }

    /// Unpacks `n` columns.
    ///
    /// # Safety
    /// The tile has `n` columns, at most [`PASS`]; AVX2 and F16C are available.
    #[inline(always)]
    unsafe fn fill<F: Interleaved>(self, tile: Tile, n: usize) {
        let source = StoredTileAvx2::<F>(tile, std::marker::PhantomData);
        // SAFETY: the caller guarantees `n <= PASS` columns of the tile, AVX2 and F16C; the panel
        // has room for `PASS` columns, aligned to a vector.
        unsafe {
            for b in 0..n / 32 {
                for step in 0..8 {
                    for half in 0..2 {
                        let to = self.codes.add((b * 8 + step) * 64 + 32 * half);
                        _mm256_store_si256(to.cast(), source.codes(b, step, half));
                    }
                }
            }
            let at = |group: usize, half: usize| group * TILE_ROWS + 8 * half;
            for (b, half) in (0..n / 32).flat_map(|b| [(b, 0), (b, 1)]) {
                if F::GROUP == 32 {
                    let (scale, offset) = source.scale(b, half);
                    _mm256_store_ps(self.scale.add(at(b, half)), scale);
                    if F::HAS_OFFSET {
                        _mm256_store_ps(self.offset.add(at(b, half)), offset);
                    }
                    continue;
                }
                for group in [2 * b, 2 * b + 1] {
                    _mm256_store_si256(
                        self.scale.add(at(group, half)).cast(),
                        source.small_scale(group, half),
                    );
                }
                if F::HAS_OFFSET {
                    _mm256_store_si256(self.offset.add(at(b, half)).cast(), source.minima(b, half));
                }
                if b.is_multiple_of(8) {
                    let (scale, minima) = source.block_scale(b, half);
                    _mm256_store_ps(self.block_scale.add(at(b / 8, half)), scale);
                    _mm256_store_ps(self.block_scale.add(at(PASS / 256 + b / 8, half)), minima);
                }
            }
        }
    }
}

impl<F: Interleaved> SourceAvx2<F> for PanelAvx2 {
    #[inline(always)]
    unsafe fn codes(self, b: usize, step: usize, half: usize) -> __m256i {
        // SAFETY: the caller guarantees AVX2 and block `b`; the panel's codes are aligned to a
        // vector.
        unsafe { _mm256_load_si256(self.codes.add((b * 8 + step) * 64 + 32 * half).cast()) }
    }

    #[inline(always)]
    unsafe fn scale(self, group: usize, half: usize) -> (__m256, __m256) {
        let at = group * TILE_ROWS + 8 * half;
        // SAFETY: the caller guarantees AVX2 and the group; the panel's scales and offsets are
        // aligned to a vector.
        unsafe {
            let offset =
                if F::HAS_OFFSET { _mm256_load_ps(self.offset.add(at)) } else { _mm256_setzero_ps() };
            (_mm256_load_ps(self.scale.add(at)), offset)
        }
    }

    #[inline(always)]
    unsafe fn small_scale(self, group: usize, half: usize) -> __m256i {
        // SAFETY: the caller guarantees AVX2 and the group; the panel's scales are aligned to a
        // vector.
        unsafe { _mm256_load_si256(self.scale.add(group * TILE_ROWS + 8 * half).cast()) }
    }

    #[inline(always)]
    unsafe fn minima(self, b: usize, half: usize) -> __m256i {
        // SAFETY: the caller guarantees AVX2 and block `b`; the panel's offsets are aligned to a
        // vector.
        unsafe { _mm256_load_si256(self.offset.add(b * TILE_ROWS + 8 * half).cast()) }
    }

    #[inline(always)]
    unsafe fn block_scale(self, b: usize, half: usize) -> (__m256, __m256) {
        let load = |block: usize| {
            // SAFETY: the caller guarantees AVX2 and block `b`; the panel's block scales are
            // aligned to a vector.
            unsafe { _mm256_load_ps(self.block_scale.add(block * TILE_ROWS + 8 * half)) }
        };
        (load(b / 8), load(PASS / 256 + b / 8))
    }
}

/// Number of `vpmaddubsw` that may be added in 16 bits, a divisor of the steps of a group; in
/// groups of 16 all of them.
const fn chunk<F: Interleaved>() -> usize {
    let above = F::MAX_CODE - F::ZERO;
    let from_zero = if above > F::ZERO { above } else { F::ZERO };
    let most = if F::GROUP == 16 { from_zero } else { F::MAX_CODE };
    match 32_767 / (2 * 127 * most as usize) {
        8.. if F::GROUP == 32 => 8,
        4.. => 4,
        _ => panic!("codes of more than 6 bits"),
    }
}

/// Keeps the sums of several rows in registers, and each step's before the next. Without it the
/// compiler moves all steps of one row together, and spills the codes until the next row needs
/// them. That doubles the loads, which are then the bottleneck.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn keep_order<const C: usize>(sums: &mut [[__m256i; 2]; C]) {
    if C == 1 {
        return;
    }
    for sum in sums.as_flattened_mut() {
        // SAFETY: the assembly is a comment without instructions.
        unsafe {
            std::arch::asm!("/* {} */", inout(ymm_reg) * sum, options(nomem, nostack, preserves_flags));
        }
    }
}

/// Multiplies a tile's `n` columns with `C` activation rows, `stride` bytes apart: stores `(C, 16)`
/// to `out`, or adds to it unless `first`.
///
/// # Safety
/// AVX2, FMA and F16C are available; the source and the activations have the columns.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn rows<F: Interleaved, S: SourceAvx2<F>, const C: usize>(
    source: S,
    n: usize,
    x: Q8Row,
    stride: usize,
    first: bool,
    out: *mut f32,
) {
    // SAFETY: the caller guarantees AVX2, FMA and F16C, `n` columns of `source` and of `C` rows
    // from `x` on, and `(C, 16)` values at `out`.
    unsafe {
        let mut sums = [[_mm256_setzero_ps(); 2]; C];
        if !first {
            for c in 0..C {
                for half in 0..2 {
                    sums[c][half] = _mm256_loadu_ps(out.add(c * TILE_ROWS + 8 * half));
                }
            }
        }
        for b in 0..n / 32 {
            prefetch_next_rows::<C>(x, stride, b);
            let products = exact_products::<F, S, C>(source, b, x, stride);
            for half in 0..2 {
                let (scale, offset) =
                    if F::GROUP == 16 { source.block_scale(b, half) } else { source.scale(b, half) };
                for c in 0..C {
                    let x_scale = _mm256_set1_ps(*x.scale.byte_add(c * stride).add(b));
                    let x_sum = _mm256_set1_ps(*x.sum32.byte_add(c * stride).add(b));
                    let scaled = |t: __m256i| _mm256_mul_ps(_mm256_cvtepi32_ps(t), x_scale);
                    let (t, sum) = (products[c][half], &mut sums[c][half]);
                    if F::GROUP == 32 && F::ZERO != 0 && !is_signed::<F>() {
                        let zero = _mm256_mul_ps(_mm256_set1_ps(f32::from(F::ZERO)), x_sum);
                        let t = _mm256_fmsub_ps(_mm256_cvtepi32_ps(t), x_scale, zero);
                        *sum = _mm256_fmadd_ps(scale, t, *sum);
                        continue;
                    }
                    *sum = _mm256_fmadd_ps(scale, scaled(t), *sum);
                    if F::HAS_OFFSET && F::GROUP == 16 {
                        let pairs = x.pairs.byte_add(c * stride).add(2 * b).cast::<i64>().read_unaligned();
                        let pairs = _mm256_set1_epi64x(pairs);
                        let of_groups = _mm256_hadd_epi16(pairs, pairs);
                        let minima = _mm256_madd_epi16(source.minima(b, half), of_groups);
                        *sum = _mm256_fmadd_ps(offset, scaled(minima), *sum);
                    } else if F::HAS_OFFSET {
                        *sum = _mm256_fmadd_ps(offset, x_sum, *sum);
                    }
                }
            }
        }
        for c in 0..C {
            for half in 0..2 {
                _mm256_storeu_ps(out.add(c * TILE_ROWS + 8 * half), sums[c][half]);
            }
        }
    }
}

/// Exact integer products of block `b` of 32 columns: for each activation row and half of the
/// tile's rows, the sum of code times activation. In groups of 16 each group's sum is multiplied
/// with its integer scale.
///
/// # Safety
/// As [`rows`]; the source and the activations have the block.
#[inline(always)]
unsafe fn exact_products<F: Interleaved, S: SourceAvx2<F>, const C: usize>(
    source: S,
    b: usize,
    x: Q8Row,
    stride: usize,
) -> [[__m256i; 2]; C] {
    // SAFETY: the caller guarantees AVX2, and block `b` in `source` and in `C` rows from `x` on.
    unsafe {
        let ones = _mm256_set1_epi16(1);
        let activations = |c: usize, step: usize| {
            let p = x.q.byte_add(c * stride).add(b * 32 + step * 4);
            _mm256_set1_epi32(p.cast::<i32>().read_unaligned())
        };
        let mut products = [[_mm256_setzero_si256(); 2]; C];
        if is_signed::<F>() {
            for step in 0..8 {
                for half in 0..2 {
                    let codes = source.codes(b, step, half);
                    let magnitude = _mm256_abs_epi8(codes);
                    for c in 0..C {
                        let q = _mm256_sign_epi8(activations(c, step), codes);
                        let pairs = _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude, q), ones);
                        products[c][half] = _mm256_add_epi32(products[c][half], pairs);
                    }
                    keep_order(&mut products);
                }
            }
        } else {
            let chunk = const { if is_signed::<F>() { 8 } else { chunk::<F>() } };
            for start in (0..8).step_by(chunk) {
                let group = (b * 8 + start) / const { F::GROUP / 4 };
                let mut pairs = [[_mm256_setzero_si256(); 2]; C];
                if F::ZERO != 0 && F::GROUP == 16 {
                    let minus_zero = _mm256_set1_epi16(-i16::from(F::ZERO));
                    for c in 0..C {
                        let x_sums = _mm256_set1_epi32(*x.pairs.byte_add(c * stride).add(group));
                        pairs[c] = [_mm256_mullo_epi16(x_sums, minus_zero); 2];
                    }
                }
                for step in start..start + chunk {
                    let codes = [source.codes(b, step, 0), source.codes(b, step, 1)];
                    for c in 0..C {
                        let q = activations(c, step);
                        for half in 0..2 {
                            let product = _mm256_maddubs_epi16(codes[half], q);
                            pairs[c][half] = _mm256_add_epi16(pairs[c][half], product);
                        }
                    }
                    keep_order(&mut pairs);
                }
                for half in 0..2 {
                    let factor = if F::GROUP == 16 { source.small_scale(group, half) } else { ones };
                    for c in 0..C {
                        let wide = _mm256_madd_epi16(pairs[c][half], factor);
                        products[c][half] = _mm256_add_epi32(products[c][half], wide);
                    }
                }
            }
        }
        products
    }
}
