//! One to three matrices that read the same rows, fused with an epilogue on their products.
//!
//! `y_m = x W_m^T + bias_m` for `m < n_matrices`; x `(n, cols)`, W_m `(n_out_m, cols)`. The
//! [`Epilogue`] stores each product in its own value, or computes `out = y_0 + residual`, or `out =
//! kind(y_0) * y_1` (the gated feed-forward).
//!
//! There are three schedules:
//!
//! - [`one_row`]: every worker normalises and quantises the row itself, which costs less than a
//!   barrier. It then takes pieces of `piece_rows` weight rows, multiplies them with the row, and
//!   applies the epilogue.
//! - [`many_rows`]: [`activation_rows`](super::activation_rows) prepared the rows. A unit is a
//!   block of rows times a group of tiles of 16 weight rows. A tile's products, (rows, 16), stay in
//!   the first-level cache for the epilogue.
//! - [`few_rows`]: the variant of [`many_rows`] for up to [`FEW_ROWS`] rows. A unit is a piece of
//!   some tiles, each with all rows and all columns.
//!
//! One row is bound by memory, and few rows nearly so. Long streams are read fastest, so a worker's
//! pieces are neighbours; it helps the other workers when its own are done. With many rows, units
//! are taken from one counter. In all schedules a worker that the system slows down computes less.
//! Order of accumulation: that of the matrix kernel ([`linear`](super::linear)). Bytes: the weights
//! once for each block of rows.

use super::activation_rows::{RowSource, normalised};
use super::elementwise::{Function, Same, Sum, combine};
use super::gate::Gated;
use super::linear::{
    ActRow, ActRows, ActivationKind, FEW_ROWS, Multiply, Part, TILE_ROWS, WeightRows, q8_row_bytes,
};
use super::round_up;
use crate::command::Worker;
use crate::simd::math::{Curve, GeluErf, GeluTanh, Identity, Relu, ReluSquared, Sigmoid, Silu, Softplus};
use crate::simd::{Simd, variants};
use device::Activation;
use std::marker::PhantomData;
use std::ops::Range;

/// Maximum number of tiles of a unit of [`many_rows`], enough that the cost of taking a unit does
/// not matter.
const TILES_PER_UNIT: usize = 4;
/// Least units of a worker in [`many_rows`], if there are enough tiles, so that all workers end at
/// about the same time.
const UNITS_PER_WORKER: usize = 4;

/// Maximum number of tiles of a piece of [`few_rows`]; their products stay in the first-level
/// cache.
const TILES_PER_PIECE: usize = 16;

/// One matrix of a projection.
#[derive(Clone, Copy)]
pub struct Matrix {
    /// `(n_out, cols)`
    pub weight: WeightRows,
    /// `(n_out)`; null for no bias.
    pub bias: *const f32,
    /// `(n, n_out)`, the destination of the products.
    pub out: *mut f32,
    /// Weight rows.
    pub n_out: usize,
    /// Functions that multiply.
    pub multiply: Multiply,
}

/// Operation on the products.
#[derive(Clone, Copy)]
pub enum Epilogue {
    /// `matrix.out = y`
    Store,
    /// `matrices[0].out = y_0 + residual`, both `(n, n_out)`; the two may alias.
    Add {
        /// The values to add.
        residual: *const f32,
    },
    /// `matrices[0].out = kind(y_0) * y_1`; the first matrix is the gate's.
    Gate {
        /// Activation of the gate.
        kind: Activation,
    },
}

/// Parameters of all schedules.
#[derive(Clone, Copy)]
pub struct ProjectionParams {
    /// The rows.
    pub source: RowSource,
    /// Matrices, of which the first `n_matrices` are used.
    pub matrices: [Matrix; 3],
    /// 1 to 3; 2 with [`Epilogue::Gate`], 1 with [`Epilogue::Add`].
    pub n_matrices: usize,
    /// Operation on the products.
    pub epilogue: Epilogue,
    /// [`many_rows`]: prepared rows of each form that a matrix reads, by [`ActivationKind`].
    pub rows: [*const u8; 3],
    /// [`one_row`]: weight rows of a piece, a multiple of 16. [`many_rows`]: activation rows of a
    /// block.
    pub block: usize,
}

impl ProjectionParams {
    fn matrices(&self) -> &[Matrix] {
        &self.matrices[..self.n_matrices]
    }

    /// Number of pieces of `rows` weight rows. With a gate, both matrices count as one.
    fn n_pieces(&self, rows: usize) -> usize {
        match self.epilogue {
            Epilogue::Gate { .. } => self.matrices[0].n_out.div_ceil(rows),
            Epilogue::Store | Epilogue::Add { .. } => {
                self.matrices().iter().map(|m| m.n_out.div_ceil(rows)).sum()
            }
        }
    }

    /// Matrix of a piece, and the piece's index within it.
    fn piece(&self, mut piece: usize, rows: usize) -> (usize, usize) {
        for (index, matrix) in self.matrices().iter().enumerate() {
            let n = matrix.n_out.div_ceil(rows);
            if piece < n {
                return (index, piece);
            }
            piece -= n;
        }
        unreachable!("a piece beyond the last matrix")
    }
}

/// Weight rows of a piece of [`one_row`]: about four pieces a worker, at least a tile, at most what
/// stays in the cache.
pub fn piece_rows(n_out_total: usize, n_workers: usize) -> usize {
    (n_out_total / (4 * n_workers)).next_multiple_of(TILE_ROWS).clamp(TILE_ROWS, 8192)
}

/// Activation rows of a block of [`many_rows`]. A pass of their columns stays in the second-level
/// cache, with the products of a unit's tiles.
pub fn row_block(max_rows: usize) -> usize {
    const ROWS: usize = 192;
    ROWS.min(max_rows.max(1))
}

/// Bytes of scratch of [`one_row`]: the row in all forms, and the products of two pieces.
pub fn one_row_scratch_bytes(cols: usize, piece_rows: usize) -> usize {
    one_row_products(cols) + 2 * round_up(piece_rows * 4)
}

/// Offsets of the row in the scratch of [`one_row`] in forms other than f32, which comes first.
#[inline(always)]
fn one_row_forms(cols: usize) -> [(ActivationKind, usize); 2] {
    let q8 = round_up(cols * 4);
    let bf16 = q8 + round_up(q8_row_bytes(cols.next_multiple_of(32)));
    [(ActivationKind::Q8, q8), (ActivationKind::Bf16, bf16)]
}

/// Offset of the products in the scratch of [`one_row`].
fn one_row_products(cols: usize) -> usize {
    let [.., (kind, last)] = one_row_forms(cols);
    last + round_up(kind.row_bytes(cols))
}

/// Bytes of scratch of [`many_rows`]: the products of a unit's tiles, twice for a gate, and the
/// matrix kernel's scratch.
pub fn many_rows_scratch_bytes(row_block: usize, gemm_scratch: usize) -> usize {
    2 * TILES_PER_UNIT * row_block * TILE_ROWS * 4 + round_up(gemm_scratch)
}

/// # Safety
/// As [`crate::command::Kernel`].
#[inline(always)]
unsafe fn one_row_body<S: Simd>(p: &ProjectionParams, worker: &Worker<'_>) {
    if worker.step.n_rows(p.source.rows) == 0 {
        return;
    }
    let cols = p.source.cols;
    let n = p.n_pieces(p.block);
    // A worker without a unit does not prepare the row.
    let mut helped = 0;
    let Some(mut unit) = worker.take_near(n, &mut helped) else { return };
    // SAFETY: the scratch has the layout of `one_row_scratch_bytes`; pieces are within their
    // matrices; the caller guarantees the pointers of `p`.
    unsafe {
        let forms = one_row_forms(cols).map(|(kind, at)| (kind, worker.scratch.add(at)));
        let products: *mut f32 = worker.scratch.add(one_row_products(cols)).cast();
        let others = products.add(p.block.next_multiple_of(TILE_ROWS));
        let x = normalised::<S>(&p.source, 0, worker.scratch.cast());
        for (kind, out) in forms {
            if p.matrices().iter().any(|m| m.multiply.activation == kind) {
                kind.write_row(p.source.isa, x, cols, out);
            }
        }
        let row = |m: &Matrix| {
            let form = forms.iter().find(|(kind, _)| *kind == m.multiply.activation);
            ActRow(form.map_or(x.cast(), |(_, row)| *row))
        };
        loop {
            let (index, piece) = match p.epilogue {
                Epilogue::Gate { .. } => (0, unit),
                Epilogue::Store | Epilogue::Add { .. } => p.piece(unit, p.block),
            };
            let m = &p.matrices[index];
            let (r0, r1) = (piece * p.block, ((piece + 1) * p.block).min(m.n_out));
            (m.multiply.gemv)(m.weight, cols, r0, r1, row(m), products);
            if matches!(p.epilogue, Epilogue::Gate { .. }) {
                let up = &p.matrices[1];
                (up.multiply.gemv)(up.weight, cols, r0, r1, row(up), others);
            }
            finish::<S>(p, m, 0..1, r0, r1 - r0, products, others);
            match worker.take_near(n, &mut helped) {
                Some(next) => unit = next,
                None => return,
            }
        }
    }
}

variants!(
    /// The schedule for one row.
    one_row, one_row_body, ProjectionParams
);

/// # Safety
/// As [`crate::command::Kernel`].
#[inline(always)]
unsafe fn many_rows_body<S: Simd>(p: &ProjectionParams, worker: &Worker<'_>) {
    let n = worker.step.n_rows(p.source.rows);
    if n <= FEW_ROWS {
        // SAFETY: the caller guarantees the pointers of `p` for the step's `n` rows, and the
        // instruction set.
        return unsafe { few_rows::<S>(p, worker, n) };
    }
    let n_tiles = p.n_pieces(TILE_ROWS);
    let tiles_per_unit = (n_tiles / (UNITS_PER_WORKER * worker.n)).clamp(1, TILES_PER_UNIT);
    let n_groups = n_tiles.div_ceil(tiles_per_unit);
    // SAFETY: the scratch has the layout of `many_rows_scratch_bytes`; tiles are within their
    // matrices; the caller guarantees the pointers of `p`.
    unsafe {
        let products: *mut f32 = worker.scratch.cast();
        let others = products.add(TILES_PER_UNIT * p.block * TILE_ROWS);
        let scratch: *mut u8 = others.add(TILES_PER_UNIT * p.block * TILE_ROWS).cast();
        let cols = p.source.cols;
        let rows_of = |m: &Matrix, rows: &std::ops::Range<usize>| {
            let kind = m.multiply.activation;
            let stride = kind.row_bytes(cols);
            ActRows { base: p.rows[kind as usize].add(rows.start * stride), stride, n: rows.len() }
        };
        let is_gate = matches!(p.epilogue, Epilogue::Gate { .. });
        let pass = p.matrices().iter().map(|m| m.multiply.gemm_pass).min().unwrap_or(usize::MAX);
        // Blocks have equal sizes, so that the last one is not a small rest.
        let n_blocks = n.div_ceil(p.block);
        let block_len = n.div_ceil(n_blocks.max(1));
        while let Some(unit) = worker.take(n_blocks * n_groups) {
            let (block, group) = (unit / n_groups, unit % n_groups);
            let rows = block * block_len..((block + 1) * block_len).min(n);
            let first = group * tiles_per_unit;
            let tiles = (first..(first + tiles_per_unit).min(n_tiles)).map(|tile| {
                let (index, of_matrix) = if is_gate { (0, tile) } else { p.piece(tile, TILE_ROWS) };
                let r0 = of_matrix * TILE_ROWS;
                (
                    index,
                    r0,
                    (p.matrices[index].n_out - r0).min(TILE_ROWS),
                    (tile - first) * p.block * TILE_ROWS,
                )
            });
            for k in (0..cols).step_by(pass) {
                for (index, r0, n_rows, at) in tiles.clone() {
                    let part = Part { r0, n_rows, k, n: cols - k };
                    let multiply = |m: &Matrix, out: *mut f32| {
                        m.multiply.tile(m.weight, cols, part, rows_of(m, &rows), scratch, out);
                    };
                    multiply(&p.matrices[index], products.add(at));
                    if is_gate {
                        multiply(&p.matrices[1], others.add(at));
                    }
                }
            }
            for (index, r0, n_rows, at) in tiles {
                let m = &p.matrices[index];
                finish::<S>(p, m, rows.clone(), r0, n_rows, products.add(at), others.add(at));
            }
        }
    }
}

variants!(
    /// The schedule for many rows.
    many_rows, many_rows_body, ProjectionParams
);

/// The schedule for a few rows. A worker's pieces are neighbours, and every tile is read once, from
/// start to end.
///
/// # Safety
/// As [`many_rows_body`].
#[inline(always)]
unsafe fn few_rows<S: Simd>(p: &ProjectionParams, worker: &Worker<'_>, n: usize) {
    if n == 0 {
        return;
    }
    let cols = p.source.cols;
    let is_gate = matches!(p.epilogue, Epilogue::Gate { .. });
    // Pieces have as many tiles as the scratch has room for, but few enough that workers end at
    // about the same time.
    let n_tiles = p.n_pieces(TILE_ROWS);
    let room = (TILES_PER_UNIT * p.block / n).clamp(1, TILES_PER_PIECE);
    let piece_rows = TILE_ROWS * (n_tiles / (UNITS_PER_WORKER * worker.n)).clamp(1, room);
    let n_pieces = p.n_pieces(piece_rows);
    let mut helped = 0;
    // SAFETY: the scratch has the layout of `many_rows_scratch_bytes`, with room for
    // `TILES_PER_UNIT` tiles of `p.block >= n` rows, twice. `room` keeps a piece within it, and
    // pieces are within their matrices.
    unsafe {
        let products: *mut f32 = worker.scratch.cast();
        let others = products.add(TILES_PER_UNIT * p.block * TILE_ROWS);
        let scratch: *mut u8 = others.add(TILES_PER_UNIT * p.block * TILE_ROWS).cast();
        while let Some(unit) = worker.take_near(n_pieces, &mut helped) {
            let (index, piece) = if is_gate { (0, unit) } else { p.piece(unit, piece_rows) };
            let m = &p.matrices[index];
            let (r0, r1) = (piece * piece_rows, ((piece + 1) * piece_rows).min(m.n_out));
            let multiply = |m: &Matrix, products: *mut f32| {
                let kind = m.multiply.activation;
                let xs = ActRows { base: p.rows[kind as usize], stride: kind.row_bytes(cols), n };
                for r in (r0..r1).step_by(TILE_ROWS) {
                    let out = products.add((r - r0) * n);
                    let tile = (r, (r1 - r).min(TILE_ROWS));
                    m.multiply.whole_tile(m.weight, cols, tile, xs, scratch, out);
                }
            };
            multiply(m, products);
            if is_gate {
                multiply(&p.matrices[1], others);
            }
            for r in (r0..r1).step_by(TILE_ROWS) {
                let at = (r - r0) * n;
                let n_rows = (r1 - r).min(TILE_ROWS);
                finish::<S>(p, m, 0..n, r, n_rows, products.add(at), others.add(at));
            }
        }
    }
}

/// Adds the bias and applies the epilogue to the products of some activation rows with `n`
/// neighbouring weight rows from `r0` on. Rows of products are [`TILE_ROWS`] apart, so `n` may be
/// larger only for a single row.
///
/// # Safety
/// The products at `y` and `others`, and the values of `p` and `m`, are valid for these rows.
#[inline(always)]
unsafe fn finish<S: Simd>(
    p: &ProjectionParams,
    m: &Matrix,
    rows: Range<usize>,
    r0: usize,
    n: usize,
    y: *mut f32,
    others: *mut f32,
) {
    let block = Block { n_rows: rows.len(), n, stride: m.n_out };
    let at = rows.start * m.n_out + r0;
    // SAFETY: the caller guarantees the products, and the values from row `rows.start` and column
    // `r0` on.
    unsafe {
        block.add_bias::<S>(m, r0, y);
        let out = m.out.add(at);
        match p.epilogue {
            Epilogue::Store => block.each::<S>(y, y, TILE_ROWS, out, Same),
            Epilogue::Add { residual } => block.each::<S>(y, residual.add(at), m.n_out, out, Sum),
            Epilogue::Gate { kind } => {
                block.add_bias::<S>(&p.matrices[1], r0, others);
                match kind {
                    Activation::Silu => block.gate::<S, Silu>(y, others, out),
                    Activation::GeluTanh => block.gate::<S, GeluTanh>(y, others, out),
                    Activation::GeluErf => block.gate::<S, GeluErf>(y, others, out),
                    Activation::Relu => block.gate::<S, Relu>(y, others, out),
                    Activation::Sigmoid => block.gate::<S, Sigmoid>(y, others, out),
                    Activation::Identity => block.gate::<S, Identity>(y, others, out),
                    Activation::ReluSquared => block.gate::<S, ReluSquared>(y, others, out),
                    Activation::Softplus => block.gate::<S, Softplus>(y, others, out),
                }
            }
        }
    }
}

/// Products of `n_rows` activation rows with `n` weight rows; rows of products are [`TILE_ROWS`]
/// apart.
struct Block {
    n_rows: usize,
    n: usize,
    /// Values from a row to the next in the destination.
    stride: usize,
}

impl Block {
    /// Computes `out[i] = f(a[i], b[i])` for every row `i`; rows of `b` are `b_stride` apart.
    ///
    /// # Safety
    /// `a` is valid for the products, `b` and `out` for `n` values of each row; the instruction set
    /// is available.
    #[inline(always)]
    unsafe fn each<S: Simd>(
        &self,
        a: *const f32,
        b: *const f32,
        b_stride: usize,
        out: *mut f32,
        f: impl Function + Copy,
    ) {
        for i in 0..self.n_rows {
            // SAFETY: `i` is below `n_rows`, so the caller guarantees row `i` of `a`, `b` and
            // `out`.
            unsafe {
                let (a, b, out) = (a.add(i * TILE_ROWS), b.add(i * b_stride), out.add(i * self.stride));
                // Nearly all calls are for a whole tile, whose loop is unrolled.
                match self.n {
                    TILE_ROWS => combine::<S>(a, b, out, TILE_ROWS, f),
                    n => combine::<S>(a, b, out, n, f),
                }
            }
        }
    }

    /// Computes `out[i] = C(y[i]) * others[i]` for every row.
    ///
    /// # Safety
    /// As [`Self::each`].
    #[inline(always)]
    unsafe fn gate<S: Simd, C: Curve>(&self, y: *const f32, others: *const f32, out: *mut f32) {
        // SAFETY: the caller guarantees the products at `y` and `others`, room for each row at
        // `out`, and the instruction set.
        unsafe { self.each::<S>(y, others, TILE_ROWS, out, Gated::<C>(PhantomData)) }
    }

    /// Adds the bias of the weight rows from `r0` on, if there is one.
    ///
    /// # Safety
    /// `y` is valid for the products; the instruction set is available.
    #[inline(always)]
    unsafe fn add_bias<S: Simd>(&self, m: &Matrix, r0: usize, y: *mut f32) {
        if m.bias.is_null() {
            return;
        }
        let to_self = Block { stride: TILE_ROWS, ..*self };
        // SAFETY: the caller guarantees the products at `y` and the instruction set; `m.bias` has a
        // value for each weight row.
        unsafe { to_self.each::<S>(y, m.bias.add(r0), 0, y, Sum) }
    }
}
