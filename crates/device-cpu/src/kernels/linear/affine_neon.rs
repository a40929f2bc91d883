//! Products of the types of `affine` on Arm: GEMV row by row in place, GEMM through the panels of
//! `interleaved_neon`.
//!
//! Codes are signed bytes; those of 8 bits are 128 less. Order of accumulation: GEMV like `affine`,
//! with four lanes for the columns that `sdot` (or `smull`) adds in one lane. GEMM accumulates like
//! `interleaved` for a type with an offset, so the bits differ from GEMV's.

use super::activation::{ActRow, ActRows};
use super::affine::{self, Codes, PART, Scales, decode};
use super::interleaved_neon::{PASS, PanelNeon, all_rows};
use super::neon::{ByRow, Mull, MultiplyNeon, Sdot};
use super::order::Order;
use super::{Part, TILE_ROWS, WeightRows};

/// # Safety
/// As [`super::Gemv`].
pub(super) unsafe fn gemv<F: Codes>(
    w: WeightRows,
    n_cols: usize,
    r0: usize,
    r1: usize,
    x: ActRow,
    out: *mut f32,
) {
    // SAFETY: by the caller, `w` has rows `r0..r1` of `n_cols` columns, `x` as many activations,
    // and `out` room for the products. The caller checked the instruction set.
    unsafe { affine::gemv::<F, ByRow<Mull>>(w, n_cols, r0, r1, x, out) }
}

/// # Safety
/// As [`super::Gemv`]; `dotprod` is available.
#[target_feature(enable = "neon,dotprod")]
pub(super) unsafe fn gemv_by_sdot<F: Codes>(
    w: WeightRows,
    n_cols: usize,
    r0: usize,
    r1: usize,
    x: ActRow,
    out: *mut f32,
) {
    // SAFETY: by the caller, `w` has rows `r0..r1` of `n_cols` columns, `x` as many activations,
    // and `out` room for the products. The caller checked the instruction set.
    unsafe { affine::gemv::<F, ByRow<Sdot>>(w, n_cols, r0, r1, x, out) }
}

/// Panel of codes with an offset for each 32 columns.
type Codes32 = PanelNeon<32, true>;

/// # Safety
/// As [`super::GemmTile`]; the instructions of `M` are available.
pub(super) unsafe fn gemm_tile<F: Codes, M: MultiplyNeon>(
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
        let panel = Codes32::new(scratch);
        for (k, n) in part.passes(PASS) {
            fill::<F, M::Order>(panel, w, Part { k, n, ..part });
            all_rows::<_, M>(panel, xs, n_cols, k, n, out);
        }
    }
}

/// Decodes the rows and columns of a part into a panel; other rows of the panel keep their
/// contents.
///
/// # Safety
/// The matrix has the rows and columns; `k` is a multiple of [`PASS`], `n` at most [`PASS`].
unsafe fn fill<F: Codes, O: Order>(panel: Codes32, w: WeightRows, part: Part) {
    const { assert!(PASS.is_multiple_of(PART)) };
    let mut groups = Scales::NONE;
    let mut codes = [0i8; PART];
    let (mut scale, mut offset) = ([0f32; PART / 32], [0f32; PART / 32]);
    // SAFETY: the caller guarantees the rows and columns of `part`. The panel has room for `PASS`
    // columns; `O::place` and the steps of `n` columns are within it.
    unsafe {
        for r in 0..part.n_rows {
            let (first, at_byte) = O::place(r);
            for from in (0..part.n).step_by(PART) {
                let n = PART.min(part.n - from);
                let (codes, scale, offset) = (&mut codes[..n], &mut scale[..n / 32], &mut offset[..n / 32]);
                decode::<F>(w, part.r0 + r, part.k + from, &mut groups, codes, scale, offset);
                for (b, codes) in (from / 32..).zip(codes.chunks_exact(32)) {
                    for (step, codes) in (b * 8 + first..).zip(codes.chunks_exact(O::COLS)) {
                        let to = panel.codes.add(step * 64 + at_byte);
                        to.copy_from_nonoverlapping(codes.as_ptr(), O::COLS);
                    }
                }
                for (b, (&scale, &offset)) in (from / 32..).zip(scale.iter().zip(&*offset)) {
                    panel.scale.add(b * TILE_ROWS + r).write(scale);
                    panel.offset.add(b * TILE_ROWS + r).write(offset);
                }
            }
        }
    }
}
