//! Making a tile of [`super::interleaved`] of rows as they lie in the file.
//!
//! For each block of columns: the codes of 16 rows as bytes, one row after the other; then, 32 columns at a time, the *steps*, 64
//! bytes of which each row has its own few (a transposition of words); then the planes, in which the steps share bytes (shifts
//! of whole registers). The first and the last are loops that the compiler vectorises for the instruction set of the function
//! that this is inlined into; the transposition is the order's ([`Order::steps`]).
//!
//! Each byte of a tile is written once and none is read, for most of the time of loading is that of memory. Bytes moved: a file's
//! rows and a tile. Rates: `NOTES.md`.

use super::interleaved::{
    Interleaved, Order, code_bytes, flip, scale_bytes, strip_blocks, strip_bytes, strip_scale_bytes,
    tile_bytes,
};
use super::{TILE_ROWS, WeightRows};

/// The codes of a block for each row of a tile: zeros for rows that there are not.
#[repr(align(64))]
pub(super) struct Codes(pub(super) [[i8; 256]; TILE_ROWS]);

/// The codes of 32 columns in the order of the tile, a byte each, four in a little-endian word.
#[repr(align(64))]
pub(super) struct Steps(pub(super) [[u32; 16]; 8]);

/// Interleave a tile: `n_rows` (at most [`TILE_ROWS`]) rows of `n_cols` from row `r0` on, as they lie in the file, into
/// [`tile_bytes`] at `out`.
///
/// # Safety
/// The rows are readable and of type `F`; `out` is writable and overlaps nothing; the instructions of `O` are available.
#[inline(always)]
pub(super) unsafe fn interleave<F: Interleaved, O: Order>(
    w: WeightRows,
    n_cols: usize,
    r0: usize,
    n_rows: usize,
    out: *mut u8,
) {
    let (len, block_bytes) = const { (F::BLOCK.block_len(), F::BLOCK.block_bytes()) };
    let (of_codes, of_scales) = const { (code_bytes::<F>(), scale_bytes::<F>()) };
    let (strip_blocks, strip_scales) = const { (strip_blocks::<F>(), strip_scale_bytes::<F>()) };
    let mut codes = Codes([[0; 256]; TILE_ROWS]);
    let mut steps = Steps([[0; 16]; 8]);
    // SAFETY: a tile's bytes at `out`.
    let out = unsafe { std::slice::from_raw_parts_mut(out, tile_bytes::<F>(n_cols)) };
    for (s, strip) in out.chunks_mut(const { strip_bytes::<F>() }).enumerate() {
        let (scales, planes) = strip.split_at_mut(strip_scales);
        let n_blocks = planes.len() / (len / 32 * of_codes);
        // The scales of rows that there are not, and what fills up the last line.
        let written = if n_rows == TILE_ROWS { n_blocks * of_scales } else { 0 };
        scales[written..].fill(0);
        let blocks = planes.chunks_exact_mut(len / 32 * of_codes).zip(scales.chunks_exact_mut(of_scales));
        for (b, (planes, scales)) in blocks.enumerate() {
            for (r, codes) in codes.0.iter_mut().enumerate().take(n_rows) {
                // SAFETY: a block of a row that there is.
                let block = unsafe {
                    let block = w.values.add((r0 + r) * w.row_bytes + (s * strip_blocks + b) * block_bytes);
                    std::slice::from_raw_parts(block, block_bytes)
                };
                F::store_scales(block, r, scales);
                let codes = &mut codes[..len];
                F::stored(block, codes);
                if const { flip::<F, O>() } != 0 {
                    codes.iter_mut().for_each(|c| *c ^= const { flip::<F, O>() });
                }
            }
            for (i, planes) in planes.chunks_exact_mut(of_codes).enumerate() {
                // SAFETY: by the caller, the rows are readable and of type `F`; `out` is writable and
                // overlaps nothing; the instructions of `O` are available; the columns are within the block.
                unsafe { O::steps(&codes, 32 * i, &mut steps) };
                share_bytes::<F>(&steps, planes);
            }
        }
    }
}

/// The planes of 32 columns.
#[inline(always)]
fn share_bytes<F: Interleaved>(steps: &Steps, planes: &mut [u8]) {
    let planes = planes.as_chunks_mut().0;
    match const { F::BITS } {
        1 => plane::<1, 0>(steps, planes),
        2 => plane::<2, 0>(steps, planes),
        3 => {
            plane::<1, 2>(steps, planes);
            plane::<2, 0>(steps, &mut planes[1..]);
        }
        4 => plane::<4, 0>(steps, planes),
        5 => {
            plane::<1, 4>(steps, planes);
            plane::<4, 0>(steps, &mut planes[1..]);
        }
        6 => {
            plane::<4, 0>(steps, planes);
            plane::<2, 4>(steps, &mut planes[4..]);
        }
        _ => plane::<8, 0>(steps, planes),
    }
}

/// The plane of `WIDTH` bits of every code, from bit `FIRST` on: `8 / WIDTH` steps share a byte.
#[inline(always)]
fn plane<const WIDTH: usize, const FIRST: usize>(steps: &Steps, planes: &mut [[u8; 64]]) {
    let low = const { 0x0101_0101 * ((1u64 << WIDTH) - 1) as u32 };
    for (steps, plane) in steps.0.chunks_exact(8 / WIDTH).zip(planes) {
        let mut words = [0u32; 16];
        for (s, step) in steps.iter().enumerate() {
            for i in 0..16 {
                words[i] |= ((step[i] >> FIRST) & low) << (WIDTH * s);
            }
        }
        for (bytes, word) in plane.as_chunks_mut().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
    }
}

/// [`Order::steps`] for any order.
#[inline(always)]
pub(super) fn steps<O: Order>(codes: &Codes, k: usize, steps: &mut Steps) {
    for (r, codes) in codes.0.iter().enumerate() {
        let (first, at_byte) = O::place(r);
        for (step, codes) in steps.0[first..].iter_mut().zip(codes[k..k + 32].chunks_exact(O::COLS)) {
            for (word, codes) in step[at_byte / 4..].iter_mut().zip(codes.as_chunks::<4>().0) {
                *word = u32::from_le_bytes(codes.map(|code| code as u8));
            }
        }
    }
}

/// [`Order::steps`] for steps of four columns: two transpositions of eight rows by eight words. A register has rows `i` and
/// `i + 4` of a half, so that the usual four by four in each 128 bits leave eight rows of a step side by side.
///
/// # Safety
/// AVX2 is available; `k + 32` is at most 256.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) unsafe fn steps_of_fours(codes: &Codes, k: usize, steps: &mut Steps) {
    use std::arch::x86_64::*;
    debug_assert!(k + 32 <= 256);
    for eight in 0..2 {
        for half in 0..2 {
            // SAFETY: AVX2 is available by the caller, and a row has the 16 codes from column `k + 16 * half` on.
            unsafe {
                let row = |r: usize| codes.0[8 * eight + r].as_ptr().add(k + 16 * half).cast::<__m128i>();
                let a = _mm256_loadu2_m128i(row(4), row(0));
                let b = _mm256_loadu2_m128i(row(5), row(1));
                let c = _mm256_loadu2_m128i(row(6), row(2));
                let d = _mm256_loadu2_m128i(row(7), row(3));
                let (ab0, ab2) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
                let (cd0, cd2) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
                let out = [
                    _mm256_unpacklo_epi64(ab0, cd0),
                    _mm256_unpackhi_epi64(ab0, cd0),
                    _mm256_unpacklo_epi64(ab2, cd2),
                    _mm256_unpackhi_epi64(ab2, cd2),
                ];
                for s in 0..4 {
                    let step = steps.0[4 * half + s].as_mut_ptr().add(8 * eight);
                    _mm256_storeu_si256(step.cast(), out[s]);
                }
            }
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::super::interleaved::Fours;
    use super::*;

    #[test]
    fn vectors_bring_codes_into_the_same_steps() {
        let mut codes = Codes([[0; 256]; TILE_ROWS]);
        for (r, row) in codes.0.iter_mut().enumerate() {
            for (k, code) in row.iter_mut().enumerate() {
                *code = (r * 73 + k * 31 + k / 8) as i8;
            }
        }
        if !crate::isa::Isa::Avx2.is_available() {
            return eprintln!("no AVX2 on this machine: nothing to compare");
        }
        for k in (0..256).step_by(32) {
            let (mut expected, mut found) = (Steps([[1; 16]; 8]), Steps([[2; 16]; 8]));
            steps::<Fours>(&codes, k, &mut expected);
            // SAFETY: AVX2 is available.
            unsafe { steps_of_fours(&codes, k, &mut found) };
            assert_eq!(found.0, expected.0, "columns from {k}");
        }
    }
}
