//! The panel of AVX2's matrix product: 16 weight rows, unpacked once for all activation rows.

use super::TILE_ROWS;

/// Columns of a panel, few enough that it stays in the first-level cache with its activations; a
/// multiple of 256.
pub(super) const PASS: usize = 512;

/// Activation rows that are widened to words at a time, for which `gemm_words_avx2` has
/// accumulators.
pub(super) const WORD_ROWS: usize = 6;

/// Bytes of the panel's codes for 8 rows.
pub(super) const HALF: usize = PASS * 8;

/// Values of the panel's scales, enough for groups of 16 columns.
const SCALES: usize = PASS / 16 * TILE_ROWS;

/// Bytes of scratch; the same for any number of columns.
pub(super) fn scratch_bytes(_n_cols: usize) -> usize {
    64 + 4 * HALF + 2 * SCALES * 4 + WORD_ROWS * PASS * 2
}

/// Addresses of the scratch's parts.
#[derive(Clone, Copy)]
pub(super) struct AffinePanelAvx2 {
    /// `[2][PASS/4][8 rows][4]` bytes, or words in the order of `gemm_words_avx2::store`
    pub codes: *mut u8,
    /// `[PASS/GROUP][16 rows]`
    pub scale: *mut f32,
    /// `[PASS/GROUP][16 rows]`
    pub offset: *mut f32,
    /// `[WORD_ROWS][PASS]` activations as words
    pub x: *mut i16,
}

impl AffinePanelAvx2 {
    /// # Safety
    /// `scratch` has [`scratch_bytes`].
    #[inline(always)]
    pub(super) unsafe fn new(scratch: *mut u8) -> AffinePanelAvx2 {
        // SAFETY: the caller guarantees `scratch_bytes` at `scratch`, which is the sum of the parts
        // and of the alignment.
        unsafe {
            let codes = scratch.add(scratch.align_offset(64));
            let scale: *mut f32 = codes.add(4 * HALF).cast();
            AffinePanelAvx2 { codes, scale, offset: scale.add(SCALES), x: scale.add(2 * SCALES).cast() }
        }
    }
}
