//! Interleaving of the file's rows into a tile of [`super::interleaved`].
//!
//! Each block of columns has three phases. First the codes of 16 rows are unpacked as bytes, one
//! row after the other. Then, for each 32 columns, they become *steps* of 64 bytes, in which each
//! row has a few (a transposition of words). Last the steps share bytes in planes (shifts of whole
//! registers). The first and the last phase are loops that the compiler vectorises for the calling
//! function; the transposition depends on the order ([`Order::steps`]).
//!
//! Each byte of a tile is written once and none is read, since loading is bound by memory. Bytes
//! moved: a file's rows and a tile. Rates: `NOTES.md`.

use super::interleaved::{
    Interleaved, code_bytes, flip, scale_bytes, strip_blocks, strip_bytes, strip_scale_bytes, tile_bytes,
};
use super::order::{Order, TileCodes, TileSteps};
use super::{TILE_ROWS, WeightRows};

/// Interleaves a tile: `n_rows` (at most [`TILE_ROWS`]) of the file's rows of `n_cols`, from row
/// `r0` on, into [`tile_bytes`] at `out`.
///
/// # Safety
/// The rows are readable and of type `F`; `out` is writable and overlaps nothing; the instructions
/// of `O` are available.
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
    let mut codes = TileCodes([[0; 256]; TILE_ROWS]);
    let mut steps = TileSteps([[0; 16]; 8]);
    // SAFETY: the caller guarantees a tile's bytes at `out`, which nothing else uses.
    let out = unsafe { std::slice::from_raw_parts_mut(out, tile_bytes::<F>(n_cols)) };
    for (s, strip) in out.chunks_mut(const { strip_bytes::<F>() }).enumerate() {
        let (scales, planes) = strip.split_at_mut(strip_scales);
        let n_blocks = planes.len() / (len / 32 * of_codes);
        // Scales of missing rows, and the padding of the last cache line.
        let written = if n_rows == TILE_ROWS { n_blocks * of_scales } else { 0 };
        scales[written..].fill(0);
        let blocks = planes.chunks_exact_mut(len / 32 * of_codes).zip(scales.chunks_exact_mut(of_scales));
        for (b, (planes, scales)) in blocks.enumerate() {
            for (r, codes) in codes.0.iter_mut().enumerate().take(n_rows) {
                // SAFETY: `r` is below `n_rows`, so the caller guarantees the row; the tile's
                // blocks are those of a row.
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
                // SAFETY: the caller guarantees the instructions of `O`; the columns are within a
                // block, so `32 * i + 32` is at most 256.
                unsafe { O::steps(&codes, 32 * i, &mut steps) };
                share_bytes::<F>(&steps, planes);
            }
        }
    }
}

/// Packs the steps of 32 columns into planes.
#[inline(always)]
fn share_bytes<F: Interleaved>(steps: &TileSteps, planes: &mut [u8]) {
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

/// Packs the plane of `WIDTH` bits of every code, from bit `FIRST` on; `8 / WIDTH` steps share a
/// byte.
#[inline(always)]
fn plane<const WIDTH: usize, const FIRST: usize>(steps: &TileSteps, planes: &mut [[u8; 64]]) {
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
