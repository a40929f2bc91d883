//! AVX2 products of the types of `affine`, whose codes are a stream of bits and whose scales were
//! decoded before.
//!
//! Unpacking follows `affine_avx512`, for 32 codes. Multiplications replace the shifts by different
//! amounts, which AVX2 lacks for words. Codes of 8 bits are signed here, 128 less, since two
//! products of 255 and 127 do not fit the 16 bits of `vpmaddubsw`.
//!
//! Order of accumulation: GEMV has 8 lanes of f32 for groups of 32 columns. Offsets are summed in
//! one number, in the order of the columns, and added last. GEMM is that of `gemm_avx2`.

use super::activation::{ActRow, ActRows};
use super::affine::{Codes, PIECE, Scales};
use super::avx2::{horizontal_sum, transpose};
use super::gemm_avx2::multiply;
use super::gemm_words_avx2 as words;
use super::panel_avx2::{AffinePanelAvx2, HALF, PASS};
use super::weight_rows::{by_groups, row_addresses};
use super::{Part, TILE_ROWS, WeightRows};
use crate::prefetch::{groups_ahead, prefetch_far};
use std::arch::x86_64::*;

/// Weight rows that share a load of activations.
const ROWS: usize = 4;

/// Positions of the bytes of 32 codes of one width, 16 codes a lane.
struct UnpackAvx2<const BITS: usize>;

impl<const BITS: usize> UnpackAvx2<BITS> {
    /// Bytes that are loaded for a lane, at most the bytes of 32 codes.
    const LOAD: usize = if 4 * BITS < 16 { 8 } else { 16 };
    /// Index for `vpshufb`: for each word the two bytes with its even code (`ODD`: odd code); a
    /// zero if one byte has the whole code.
    const EVEN: [u8; 32] = Self::bytes(0);
    const ODD: [u8; 32] = Self::bytes(1);
    /// Factors that move even codes (`ODD_FACTOR`: odd codes) to bit 8 of their words.
    const EVEN_FACTOR: [u16; 16] = Self::factors(0);
    const ODD_FACTOR: [u16; 16] = Self::factors(1);

    const fn bytes(odd: usize) -> [u8; 32] {
        let mut index = [0x80; 32];
        let mut i = 0;
        while i < 16 {
            // The load of the upper lane ends with the last byte of the codes.
            let first = if i < 8 { 0 } else { Self::LOAD - 2 * BITS };
            let bit = (2 * (i % 8) + odd) * BITS;
            index[2 * i] = (first + bit / 8) as u8;
            if bit % 8 + BITS > 8 {
                index[2 * i + 1] = (first + bit / 8 + 1) as u8;
            }
            i += 1;
        }
        index
    }

    const fn factors(odd: usize) -> [u16; 16] {
        let mut factors = [0; 16];
        let mut i = 0;
        while i < 16 {
            factors[i] = 1 << (8 - (2 * i + odd) * BITS % 8);
            i += 1;
        }
        factors
    }

    /// # Safety
    /// AVX2 is available; `4 BITS` bytes are readable.
    #[inline(always)]
    unsafe fn unpack(p: *const u8) -> __m256i {
        // SAFETY: the caller guarantees AVX2 and `4 BITS` bytes at `p`; both loads are within them,
        // since `LOAD` is at most `4 BITS`.
        unsafe {
            let load = |p: *const u8| match Self::LOAD {
                8 => _mm_loadl_epi64(p.cast()),
                _ => _mm_loadu_si128(p.cast()),
            };
            let lanes = _mm256_set_m128i(load(p.add(4 * BITS - Self::LOAD)), load(p));
            let place = |index: &'static [u8; 32], factors: &'static [u16; 16]| {
                let words = _mm256_shuffle_epi8(lanes, _mm256_loadu_si256(index.as_ptr().cast()));
                _mm256_mullo_epi16(words, _mm256_loadu_si256(factors.as_ptr().cast()))
            };
            let even = _mm256_srli_epi16::<8>(place(&Self::EVEN, &Self::EVEN_FACTOR));
            let odd = place(&Self::ODD, &Self::ODD_FACTOR);
            let codes = _mm256_blendv_epi8(even, odd, _mm256_set1_epi16(0xff00u16 as i16));
            _mm256_and_si256(codes, _mm256_set1_epi8(((1 << BITS) - 1) as i8))
        }
    }
}

/// Loads 32 codes in the order of their columns: unsigned, or signed if they have 8 bits.
///
/// # Safety
/// AVX2 is available; `F::BYTES_32` bytes are readable at `p`.
#[inline(always)]
unsafe fn codes32<F: Codes>(p: *const u8) -> __m256i {
    // SAFETY: the caller guarantees AVX2 and `F::BYTES_32` bytes at `p`.
    unsafe {
        match F::BITS {
            8 => {
                let bytes = _mm256_loadu_si256(p.cast());
                if F::SIGNED { bytes } else { _mm256_xor_si256(bytes, _mm256_set1_epi8(-128)) }
            }
            4 => {
                let words = _mm256_cvtepu8_epi16(_mm_loadu_si128(p.cast()));
                let both = _mm256_or_si256(words, _mm256_slli_epi16::<4>(words));
                _mm256_and_si256(both, _mm256_set1_epi8(15))
            }
            2 => UnpackAvx2::<2>::unpack(p),
            3 => UnpackAvx2::<3>::unpack(p),
            5 => UnpackAvx2::<5>::unpack(p),
            _ => UnpackAvx2::<6>::unpack(p),
        }
    }
}

/// # Safety
/// As [`super::Gemv`]; AVX2, FMA and F16C are available.
#[target_feature(enable = "avx2,fma,f16c")]
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
    // SAFETY: the caller guarantees `R` rows from `r` on and `n_cols` activations; `block` is below
    // `n_cols / 32`, and `b >> shift` below the number of groups of a piece.
    unsafe {
        let x = x.q8(n_cols);
        let ones = _mm256_set1_epi16(1);
        let mut sums = [_mm256_setzero_ps(); R];
        let mut offset_sums = [0f32; R];
        for piece in (0..n_cols).step_by(PIECE) {
            let n = PIECE.min(n_cols - piece);
            let mut shift = 0;
            for i in 0..R {
                shift = scales[i].read(w, r + i, piece, n, F::ZERO);
            }
            for b in 0..n / 32 {
                let block = piece / 32 + b;
                let q = _mm256_loadu_si256(x.q.add(block * 32).cast());
                let (x_scale, x_sum) = (*x.scale.add(block), *x.sum32.add(block));
                for i in 0..R {
                    let p = w.values.add((r + i) * w.row_bytes + block * F::BYTES_32);
                    prefetch_far(p.wrapping_add(groups_ahead(R * w.row_bytes)));
                    let codes = codes32::<F>(p);
                    let pairs = match F::BITS {
                        8 => _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(q, codes)),
                        _ => _mm256_maddubs_epi16(codes, q),
                    };
                    let products = _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, ones));
                    let scale = *scales[i].scale.get_unchecked(b >> shift);
                    let offset = *scales[i].offset.get_unchecked(b >> shift);
                    sums[i] = _mm256_fmadd_ps(_mm256_set1_ps(scale * x_scale), products, sums[i]);
                    offset_sums[i] += offset * x_sum;
                }
            }
        }
        for i in 0..R {
            out.add(i).write(horizontal_sum(sums[i]) + offset_sums[i]);
        }
    }
}

/// # Safety
/// As [`super::GemmTile`]; AVX2, FMA and F16C are available.
#[target_feature(enable = "avx2,fma,f16c")]
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
        let panel = AffinePanelAvx2::new(scratch);
        let rows = row_addresses(w.values, w.row_bytes, r0, n_rows);
        let mut k = 0;
        while k < n_cols {
            let n = PASS.min(n_cols - k);
            for b in 0..n / 32 {
                let at = (k / 32 + b) * F::BYTES_32;
                for half in 0..2 {
                    let mut registers = [_mm256_setzero_si256(); 8];
                    for (r, register) in registers.iter_mut().enumerate() {
                        *register = codes32::<F>(rows[half * 8 + r].add(at));
                    }
                    let columns = transpose(registers);
                    if F::BITS == 8 {
                        words::store(panel, half, b, columns);
                        continue;
                    }
                    let to = panel.codes.add(half * HALF + b * 256);
                    for (c, column) in columns.into_iter().enumerate() {
                        _mm256_store_si256(to.add(c * 32).cast(), column);
                    }
                }
            }
            for r in 0..TILE_ROWS {
                let shift = scales.read(w, r0 + r.min(n_rows - 1), k, n, F::ZERO);
                for b in 0..n / 32 {
                    let to = b * TILE_ROWS + r;
                    panel.scale.add(to).write(*scales.scale.get_unchecked(b >> shift));
                    panel.offset.add(to).write(*scales.offset.get_unchecked(b >> shift));
                }
            }
            match F::BITS {
                2..=4 => multiply::<32, 8, true>(panel, k, n, n_cols, xs, out),
                5 => multiply::<32, 4, true>(panel, k, n, n_cols, xs, out),
                6 => multiply::<32, 2, true>(panel, k, n, n_cols, xs, out),
                _ => words::multiply::<true>(panel, k, n, n_cols, xs, out),
            }
            k += n;
        }
    }
}
