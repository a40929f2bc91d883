//! AVX-512 products of the types of `affine`, whose codes are a stream of bits and whose scales
//! were decoded before. There is a loop for one row, and a panel for the loop of `tile_avx512`.
//!
//! # Unpacking
//!
//! 64 unsigned codes fill a register, in the order of their columns. Bytes are loaded, with 128
//! added to signed ones. Nibbles are widened to words, in which a shift and a mask move the second
//! nibble to the upper byte. Other widths copy 16 codes, `2 BITS` bytes, to each 128-bit lane. One
//! byte shuffle moves the two bytes of an even code to its word, another one moves the bytes of an
//! odd code. Shifts by different amounts align both.
//!
//! # Order of accumulation
//!
//! GEMV has 16 lanes of f32. Lane `l` of a register of 64 columns holds columns `4l..4l + 4`, whose
//! integer sum is exact. For each 256 columns eight products of offsets and activation sums are
//! added to lanes 8..16, then one fused multiply-add a register. Lanes are added at the end, 8
//! apart first. The order is the same for four rows together and for one. GEMM accumulates like
//! `interleaved` for a type with an offset, so the bits differ from GEMV's.
//!
//! Bytes moved: the weights and their planes, once. Measured rates are in `NOTES.md`.

use super::activation::{ActRow, ActRows};
use super::affine::{Codes, PIECE, Scales};
use super::avx512::{group_lanes, horizontal_sum, load_rows, load512, transpose};
use super::interleaved::activations;
use super::tile_avx512::{Prefetched, SourceAvx512, XRows, chunk_of, panel_codes, some_rows};
use super::weight_rows::{by_groups, row_addresses};
use super::{Part, TILE_ROWS, WeightRows};
use crate::prefetch::{groups_ahead, prefetch_far};
use std::arch::x86_64::*;

/// Index of each lane's group of 32 columns, for the four registers of a block.
const GROUP_32: [[u32; 16]; 4] = group_lanes(32);

#[inline(always)]
fn zero() -> __m512 {
    // SAFETY: all zeros is a value of this type.
    unsafe { std::mem::zeroed() }
}

/// Weight rows that share a load of activations.
const ROWS: usize = 4;

/// Positions of the bytes of 64 codes of one width.
struct UnpackAvx512<const BITS: usize>;

impl<const BITS: usize> UnpackAvx512<BITS> {
    /// Index for `vpermw`: the words of 16 codes, from the first word of each lane on.
    const LANES: [u16; 32] = {
        let mut words = [0; 32];
        let mut i = 0;
        while i < 32 {
            words[i] = ((i / 8) * BITS + i % 8) as u16 & 31;
            i += 1;
        }
        words
    };
    /// Index for `vpshufb`: for each word the two bytes with its even code (`ODD`: odd code); a
    /// zero if one byte has the whole code.
    const EVEN: [u8; 64] = Self::bytes(0);
    const ODD: [u8; 64] = Self::bytes(1);
    /// Right shifts that move even codes to bit 0 of their words.
    const RIGHT: [u16; 32] = {
        let mut shifts = [0; 32];
        let mut i = 0;
        while i < 32 {
            shifts[i] = (2 * i * BITS % 8) as u16;
            i += 1;
        }
        shifts
    };
    /// Left shifts that move odd codes to bit 8 of their words.
    const LEFT: [u16; 32] = {
        let mut shifts = [0; 32];
        let mut i = 0;
        while i < 32 {
            shifts[i] = 8 - ((2 * i + 1) * BITS % 8) as u16;
            i += 1;
        }
        shifts
    };

    const fn bytes(odd: usize) -> [u8; 64] {
        let mut index = [0x80; 64];
        let mut i = 0;
        while i < 32 {
            let bit = (2 * (i % 8) + odd) * BITS;
            index[2 * i] = (bit / 8) as u8;
            if bit % 8 + BITS > 8 {
                index[2 * i + 1] = (bit / 8 + 1) as u8;
            }
            i += 1;
        }
        index
    }

    /// Unpacks 64 codes from the `BITS` words of each lane; other words are ignored.
    ///
    /// # Safety
    /// AVX-512 is available.
    #[inline(always)]
    unsafe fn unpack(bytes: __m512i) -> __m512i {
        // SAFETY: by the caller, AVX-512 is available.
        unsafe {
            let lanes = _mm512_permutexvar_epi16(load512(&Self::LANES), bytes);
            let even =
                _mm512_srlv_epi16(_mm512_shuffle_epi8(lanes, load512(&Self::EVEN)), load512(&Self::RIGHT));
            let odd =
                _mm512_sllv_epi16(_mm512_shuffle_epi8(lanes, load512(&Self::ODD)), load512(&Self::LEFT));
            let codes = _mm512_ternarylogic_epi32::<0xca>(_mm512_set1_epi16(0xff), even, odd);
            _mm512_and_si512(codes, _mm512_set1_epi8(((1 << BITS) - 1) as i8))
        }
    }
}

/// Loads 64 unsigned codes at `p`; with `HALF`, 32 codes followed by undefined ones.
///
/// # Safety
/// AVX-512 is available; the bytes of these 64 or 32 codes are readable.
#[inline(always)]
unsafe fn codes64<F: Codes, const HALF: bool>(p: *const u8) -> __m512i {
    // SAFETY: the caller guarantees AVX-512 and the bytes of 64 codes, or of 32 with `HALF`, at
    // `p`; bytes outside a mask are not read.
    unsafe {
        if F::BITS == 8 {
            let bytes = match HALF {
                true => _mm512_zextsi256_si512(_mm256_loadu_si256(p.cast())),
                false => _mm512_loadu_si512(p.cast()),
            };
            return if F::SIGNED { _mm512_xor_si512(bytes, _mm512_set1_epi8(-128)) } else { bytes };
        }
        if F::BITS == 4 {
            let bytes = match HALF {
                true => _mm256_zextsi128_si256(_mm_loadu_si128(p.cast())),
                false => _mm256_loadu_si256(p.cast()),
            };
            let words = _mm512_cvtepu8_epi16(bytes);
            let both = _mm512_or_si512(words, _mm512_slli_epi16::<4>(words));
            return _mm512_and_si512(both, _mm512_set1_epi8(15));
        }
        let n_words = if HALF { 2 } else { 4 } * F::BITS;
        let bytes = _mm512_maskz_loadu_epi16((1 << n_words) - 1, p.cast());
        match F::BITS {
            2 => UnpackAvx512::<2>::unpack(bytes),
            3 => UnpackAvx512::<3>::unpack(bytes),
            5 => UnpackAvx512::<5>::unpack(bytes),
            _ => UnpackAvx512::<6>::unpack(bytes),
        }
    }
}

/// Index for `vpermt2ps` of scales and offsets, for groups of 1, 2, 4 or 8 times 32 columns. The
/// result is eight scales, one for each 32 columns, then eight offsets.
static SPREAD: [[u32; 16]; 4] = {
    let mut index = [[0; 16]; 4];
    let mut shift = 0;
    while shift < 4 {
        let mut i = 0;
        while i < 8 {
            index[shift][i] = (i >> shift) as u32;
            index[shift][8 + i] = 16 + (i >> shift) as u32;
            i += 1;
        }
        shift += 1;
    }
    index
};

/// Scales and offsets of 256 columns, block `b` of a piece.
///
/// # Safety
/// AVX-512 is available; `spread` is the entry of [`SPREAD`] for `shift`; the piece has block `b`.
#[inline(always)]
unsafe fn spread_scales(scales: &Scales, b: usize, shift: usize, spread: __m512i) -> __m512 {
    let at = b * (8 >> shift);
    // SAFETY: the caller guarantees AVX-512 and block `b`; both arrays of `scales` have 16 values
    // after the last group.
    unsafe {
        let scale = _mm512_loadu_ps(scales.scale.as_ptr().add(at));
        let offset = _mm512_loadu_ps(scales.offset.as_ptr().add(at));
        _mm512_permutex2var_ps(scale, spread, offset)
    }
}

/// # Safety
/// As [`super::Gemv`]; AVX-512 is available.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn gemv<F: Codes>(
    w: WeightRows,
    n_cols: usize,
    r0: usize,
    r1: usize,
    x: ActRow,
    out: *mut f32,
) {
    let mut scales = [Scales::NONE; ROWS];
    // SAFETY: the caller guarantees rows `r0..r1` of `w`, activations at `x`, room at `out`, and
    // the instruction set; each group of `N` rows is within `r0..r1`.
    unsafe {
        by_groups!(r0..r1, ROWS, |r, N| rows::<F, N>(w, r, n_cols, x, &mut scales, out.add(r - r0)));
    }
}

/// Computes `R` neighbouring rows from row `r` on.
///
/// # Safety
/// As [`gemv`], for these rows.
#[inline(always)]
unsafe fn rows<F: Codes, const R: usize>(
    w: WeightRows,
    r: usize,
    n_cols: usize,
    x: ActRow,
    scales: &mut [Scales; ROWS],
    out: *mut f32,
) {
    // SAFETY: the caller guarantees `R` rows from `r` on, room for them at `out`, and AVX-512;
    // blocks are within the piece of `n` columns.
    unsafe {
        let mut sums = [zero(); R];
        for piece in (0..n_cols).step_by(PIECE) {
            let n = PIECE.min(n_cols - piece);
            let mut shift = 0;
            for i in 0..R {
                shift = scales[i].read(w, r + i, piece, n, 0);
            }
            let spread = load512(&SPREAD[shift.min(3)]);
            for b in 0..n / 256 {
                let at = (piece, b);
                block::<F, R, true>(w, r, n_cols, x, at, 256, scales, (shift, spread), &mut sums);
            }
            if !n.is_multiple_of(256) {
                let at = (piece, n / 256);
                block::<F, R, false>(w, r, n_cols, x, at, n % 256, scales, (shift, spread), &mut sums);
            }
        }
        for (i, sum) in sums.into_iter().enumerate() {
            out.add(i).write(horizontal_sum(sum));
        }
    }
}

/// Accumulates block `b` of 256 columns of `R` rows, or its first `n` columns unless `FULL`, in the
/// piece that begins at column `piece`.
///
/// # Safety
/// As [`rows`].
#[allow(clippy::too_many_arguments)]
#[inline(always)]
unsafe fn block<F: Codes, const R: usize, const FULL: bool>(
    w: WeightRows,
    r: usize,
    n_cols: usize,
    x: ActRow,
    (piece, b): (usize, usize),
    n: usize,
    scales: &[Scales; ROWS],
    (shift, spread): (usize, __m512i),
    sums: &mut [__m512; R],
) {
    let k = piece + b * 256;
    // SAFETY: the caller guarantees `R` rows with columns `k..k + n`. The activations' arrays are
    // padded with zeros to 64 bytes, which whole registers of codes, scales and sums do not exceed.
    unsafe {
        let x = x.q8(n_cols);
        let x_scale = _mm512_castps256_ps512(_mm256_loadu_ps(x.scale.add(k / 32)));
        let x_factors = _mm512_insertf32x8::<1>(x_scale, _mm256_loadu_ps(x.sum32.add(k / 32)));
        let mut q = [_mm512_setzero_si512(); 4];
        for z in 0..4 {
            if FULL || z * 64 < n {
                q[z] = _mm512_loadu_si512(x.q.add(k + z * 64).cast());
            }
        }
        for i in 0..R {
            let p = w.values.add((r + i) * w.row_bytes + k / 32 * F::BYTES_32);
            for line in 0..F::BITS.div_ceil(2) {
                prefetch_far(p.wrapping_add(groups_ahead(R * w.row_bytes) + line * 64));
            }
            let factors = _mm512_mul_ps(spread_scales(&scales[i], b, shift, spread), x_factors);
            sums[i] = _mm512_mask_add_ps(sums[i], 0xff00, sums[i], factors);
            for z in 0..4 {
                if !FULL && z * 64 >= n {
                    break;
                }
                let p = p.add(z * 2 * F::BYTES_32);
                let codes = match !FULL && z * 64 + 32 == n {
                    true => codes64::<F, true>(p),
                    false => codes64::<F, false>(p),
                };
                let products = _mm512_dpbusd_epi32(_mm512_setzero_si512(), codes, q[z]);
                let scale = _mm512_permutexvar_ps(load512(&GROUP_32[z]), factors);
                sums[i] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(products), sums[i]);
            }
        }
    }
}

/// Columns of a panel; a multiple of 256.
const PASS: usize = 1024;

/// Values of a panel's scales.
const SCALES: usize = PASS / 32 * TILE_ROWS;

/// Bytes of the scales and offsets of 16 rows before they are transposed: 64 for each row and block
/// of 256 columns.
const STAGE: usize = PASS / 256 * 64 * TILE_ROWS;

/// Bytes of scratch; the same for any number of columns.
pub(super) fn scratch_bytes(_n_cols: usize) -> usize {
    64 + PASS * TILE_ROWS + 2 * SCALES * 4 + STAGE
}

/// [`PASS`] columns of 16 weight rows, decoded and transposed. It has 20 KB and stays in the
/// nearest caches while all activation rows are multiplied.
#[derive(Clone, Copy)]
struct AffinePanelAvx512 {
    /// `[PASS/4][16 rows][4]` unsigned bytes
    codes: *mut u8,
    /// `[PASS/32][16 rows]`
    scale: *mut f32,
    /// `[PASS/32][16 rows]`
    offset: *mut f32,
    /// [`STAGE`] bytes, aligned to 64.
    stage: *mut u8,
}

impl AffinePanelAvx512 {
    /// # Safety
    /// `scratch` has [`scratch_bytes`].
    #[inline(always)]
    unsafe fn new(scratch: *mut u8) -> AffinePanelAvx512 {
        // SAFETY: the caller guarantees `scratch_bytes` at `scratch`, which is the sum of the parts
        // and of the alignment.
        unsafe {
            let codes = scratch.add(scratch.align_offset(64));
            let scale: *mut f32 = codes.add(PASS * TILE_ROWS).cast();
            let offset = scale.add(SCALES);
            AffinePanelAvx512 { codes, scale, offset, stage: offset.add(SCALES).cast() }
        }
    }
}

impl SourceAvx512 for AffinePanelAvx512 {
    const GROUP: usize = 32;
    const HAS_OFFSET: bool = true;
    const KEEPS_ORDER: bool = true;

    #[inline(always)]
    unsafe fn codes(self, b: usize, step: usize) -> __m512i {
        // SAFETY: the caller guarantees AVX-512 and block `b` of the panel; `codes` is aligned to
        // 64.
        unsafe { panel_codes(self.codes, b, step) }
    }

    #[inline(always)]
    unsafe fn scale(self, group: usize) -> (__m512, __m512) {
        let at = group * TILE_ROWS;
        // SAFETY: the caller guarantees AVX-512 and group `group` of the panel; `scale` and
        // `offset` are aligned to 64.
        unsafe { (_mm512_load_ps(self.scale.add(at)), _mm512_load_ps(self.offset.add(at))) }
    }
}

/// # Safety
/// As [`super::GemmTile`]; AVX-512 is available.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn gemm_tile<F: Codes>(
    w: WeightRows,
    n_cols: usize,
    part: Part,
    xs: ActRows,
    scratch: *mut u8,
    out: *mut f32,
) {
    let mut scales = Scales::NONE;
    let Part { r0, n_rows, .. } = part;
    // SAFETY: by the caller, `w` has the weight rows and columns of the part, and `xs` as many
    // activations in each row. `scratch` has the kernel's `gemm_scratch_bytes`, and `out` has `xs.n
    // * TILE_ROWS` values. The caller checked the instruction set. Each pass is within the part.
    unsafe {
        let panel = AffinePanelAvx512::new(scratch);
        let rows = row_addresses(w.values, w.row_bytes, r0, n_rows);
        let mut k = 0;
        while k < n_cols {
            let n = PASS.min(n_cols - k);
            for c in 0..n / 64 {
                let at = (k / 32 + 2 * c) * F::BYTES_32;
                pack_codes::<F, false>(&rows, at, panel.codes.add(c * 1024));
            }
            if !n.is_multiple_of(64) {
                let at = (k + n / 64 * 64) / 32 * F::BYTES_32;
                pack_codes::<F, true>(&rows, at, panel.codes.add(n / 64 * 1024));
            }
            pack_scales(w, r0, n_rows, k, n, &mut scales, panel);
            let len = chunk_of::<AffinePanelAvx512>(xs.n);
            for i in (0..xs.n).step_by(len) {
                let prefetched = if i + len < xs.n { Prefetched::Rows } else { Prefetched::Nothing };
                let x = XRows { first: activations(xs, i, n_cols, k), stride: xs.stride, prefetched };
                some_rows(panel, n, x, (xs.n - i).min(len), k == 0, out.add(i * TILE_ROWS));
            }
            k += n;
        }
    }
}

/// Packs 64 columns of the panel, or 32 (`HALF`): the codes at byte `at` of 16 rows.
///
/// # Safety
/// AVX-512 is available; the codes are readable at byte `at` of each row; `codes` has room for 64
/// columns and is aligned to 64.
#[inline(always)]
unsafe fn pack_codes<F: Codes, const HALF: bool>(rows: &[*const u8; 16], at: usize, codes: *mut u8) {
    // SAFETY: the caller guarantees AVX-512, the codes of each of the 16 rows, and room for 64
    // columns at `codes`.
    unsafe {
        let mut registers = [_mm512_setzero_si512(); 16];
        for r in 0..16 {
            registers[r] = codes64::<F, HALF>(rows[r].add(at));
        }
        let columns = transpose(registers);
        for i in 0..16 {
            _mm512_store_si512(codes.add(i * 64).cast(), columns[i]);
        }
    }
}

/// Packs scales and offsets of columns `k..k + n` of 16 rows into the panel, for each 32 columns.
///
/// # Safety
/// AVX-512 is available; the rows have these columns; the panel has room.
#[inline(always)]
unsafe fn pack_scales(
    w: WeightRows,
    r0: usize,
    n_rows: usize,
    k: usize,
    n: usize,
    scales: &mut Scales,
    panel: AffinePanelAvx512,
) {
    const { assert!(PASS <= PIECE) };
    let n_blocks = n.div_ceil(256);
    // SAFETY: the caller guarantees AVX-512, the rows and columns, and the panel, whose `stage` has
    // 64 bytes for each row and block.
    unsafe {
        for r in 0..16 {
            let shift = scales.read(w, r0 + r.min(n_rows - 1), k, n, 0);
            let spread = load512(&SPREAD[shift.min(3)]);
            for b in 0..n_blocks {
                let both = spread_scales(scales, b, shift, spread);
                _mm512_store_ps(panel.stage.add((r * n_blocks + b) * 64).cast(), both);
            }
        }
        for b in 0..n_blocks {
            let columns = transpose(load_rows(panel.stage.add(b * 64), n_blocks * 64));
            for g in 0..(n / 32 - b * 8).min(8) {
                let at = (b * 8 + g) * TILE_ROWS;
                _mm512_store_ps(panel.scale.add(at), _mm512_castsi512_ps(columns[g]));
                _mm512_store_ps(panel.offset.add(at), _mm512_castsi512_ps(columns[8 + g]));
            }
        }
    }
}
