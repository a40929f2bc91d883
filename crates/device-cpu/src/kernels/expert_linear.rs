//! Matrices of the chosen experts: `out[:, j] = x_j W[ids[:, j]]^T`; x `(n, n_in)` or `(n, k *
//! n_in)`, W `(n_experts, n_out, n_in)` with matrices at any addresses, out `(n, k * n_out)`.
//!
//! There are two schedules:
//!
//! - [`one_row`]: a unit is a piece of the weight rows of one of the `k` chosen experts. A worker
//!   quantises an expert's input when it starts its first unit of it. Bytes: the chosen experts'
//!   weights.
//! - [`many_rows`]: rows are in the order of [`expert_groups`](super::expert_groups). A unit is a
//!   few tiles of 16 weight rows of one expert, with all of its rows. Bytes: each used expert's
//!   weights once for each block of its rows.
//!
//! Units are taken from a counter. Order of accumulation: that of the matrix kernel
//! ([`linear`](super::linear)).

use super::expert_groups::ExpertGroups;
use super::linear::{
    ActRow, ActRows, ActivationKind, FEW_ROWS, Multiply, Part, TILE_ROWS, WeightRows, bf16_row_bytes,
    q8_row_bytes,
};
use super::round_up;
use crate::command::Worker;
use crate::isa::Isa;
use device::RowCount;

/// Tiles of a unit of [`many_rows`].
const TILES_PER_UNIT: usize = 4;

/// Parameters of both schedules.
#[derive(Clone, Copy)]
pub struct ExpertLinearParams {
    /// `(n, n_in)`, or `(n, k * n_in)` if each chosen expert has its own row.
    pub x: *const f32,
    /// True if each chosen expert has its own input row.
    pub own: bool,
    /// `(n, k)`, each below `n_experts`.
    pub ids: *const u32,
    /// Experts of a row.
    pub k: usize,
    /// `(n_experts)` rows of each expert's matrix.
    pub matrices: *const WeightRows,
    /// Experts.
    pub n_experts: usize,
    /// Columns of a matrix.
    pub n_in: usize,
    /// Rows of a matrix.
    pub n_out: usize,
    /// `(n, k * n_out)`
    pub out: *mut f32,
    /// Kind of rows (tokens or outputs).
    pub rows: RowCount,
    /// Functions that multiply.
    pub multiply: Multiply,
    /// [`many_rows`]: `n * k` prepared rows in the order of the groups.
    pub prepared: *const u8,
    /// [`many_rows`]: the groups.
    pub groups: ExpertGroups,
    /// [`one_row`]: weight rows of a piece. [`many_rows`]: activation rows of a block.
    pub block: usize,
    /// Instruction set of the quantiser.
    pub isa: Isa,
}

/// Bytes of scratch of [`one_row`]: a row in the form that the kernel reads.
pub fn one_row_scratch_bytes(n_in: usize) -> usize {
    round_up(q8_row_bytes(n_in.next_multiple_of(32)).max(bf16_row_bytes(n_in)))
}

/// Bytes of scratch of [`many_rows`]: the products of a unit's tiles and what the matrix kernel
/// needs.
pub fn many_rows_scratch_bytes(row_block: usize, gemm_scratch: usize) -> usize {
    TILES_PER_UNIT * row_block * TILE_ROWS * 4 + round_up(gemm_scratch)
}

/// The schedule for one row.
///
/// # Safety
/// As [`crate::command::Kernel`].
pub unsafe fn one_row(p: &ExpertLinearParams, worker: &Worker<'_>) {
    if worker.step.n_rows(p.rows) == 0 {
        return;
    }
    let n_pieces = p.n_out.div_ceil(p.block);
    // Expert whose input row is in the scratch.
    let mut prepared = None;
    while let Some(unit) = worker.take(p.k * n_pieces) {
        let (j, piece) = (unit / n_pieces, unit % n_pieces);
        let input = if p.own { j } else { 0 };
        // SAFETY: the route kernel wrote ids below the number of experts; pieces are within their
        // matrices; the scratch has room for a prepared row.
        unsafe {
            let x = p.x.add(input * p.n_in);
            let row = match p.multiply.activation {
                ActivationKind::F32 => ActRow(x.cast()),
                kind => {
                    if prepared.replace(input) != Some(input) {
                        kind.write_row(p.isa, x, p.n_in, worker.scratch);
                    }
                    ActRow(worker.scratch)
                }
            };
            let matrix = *p.matrices.add(*p.ids.add(j) as usize);
            let (r0, r1) = (piece * p.block, ((piece + 1) * p.block).min(p.n_out));
            (p.multiply.gemv)(matrix, p.n_in, r0, r1, row, p.out.add(j * p.n_out + r0));
        }
    }
}

/// The schedule for many rows.
///
/// # Safety
/// As [`crate::command::Kernel`].
pub unsafe fn many_rows(p: &ExpertLinearParams, worker: &Worker<'_>) {
    let n_tiles = p.n_out.div_ceil(TILE_ROWS);
    let n_units = n_tiles.div_ceil(TILES_PER_UNIT);
    let stride = p.multiply.activation.row_bytes(p.n_in);
    let products: *mut f32 = worker.scratch.cast();
    while let Some(unit) = worker.take(p.n_experts * n_units) {
        let (expert, unit) = (unit / n_units, unit % n_units);
        // SAFETY: tiles are within their matrices, and `places` within the prepared rows, since the
        // groups are pairs of the step. The scratch has the layout of `many_rows_scratch_bytes`.
        unsafe {
            let places = p.groups.of(expert);
            let matrix = *p.matrices.add(expert);
            let scratch: *mut u8 = products.add(TILES_PER_UNIT * p.block * TILE_ROWS).cast();
            let tiles = (unit * TILES_PER_UNIT..((unit + 1) * TILES_PER_UNIT).min(n_tiles)).map(|tile| {
                let r0 = tile * TILE_ROWS;
                let at = (tile % TILES_PER_UNIT) * p.block * TILE_ROWS;
                (r0, (p.n_out - r0).min(TILE_ROWS), products.add(at))
            });
            for start in places.clone().step_by(p.block) {
                let n = (places.end - start).min(p.block);
                let xs = ActRows { base: p.prepared.add(start * stride), stride, n };
                if n <= FEW_ROWS {
                    for (r0, n_rows, products) in tiles.clone() {
                        p.multiply.whole_tile(matrix, p.n_in, (r0, n_rows), xs, scratch, products);
                    }
                } else {
                    for k in (0..p.n_in).step_by(p.multiply.gemm_pass) {
                        for (r0, n_rows, products) in tiles.clone() {
                            let part = Part { r0, n_rows, k, n: p.n_in - k };
                            p.multiply.tile(matrix, p.n_in, part, xs, scratch, products);
                        }
                    }
                }
                for (r0, n_rows, products) in tiles.clone() {
                    for i in 0..n {
                        let pair = *p.groups.order.add(start + i) as usize;
                        let out = p.out.add(pair * p.n_out + r0);
                        out.copy_from_nonoverlapping(products.add(i * TILE_ROWS), n_rows);
                    }
                }
            }
        }
    }
}
