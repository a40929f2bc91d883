//! One to three matrices that read the same rows, and what is done with their products at once.
//!
//! `y_m = x W_m^T + bias_m` for `m < n_matrices`; then, by [`Epilogue`]: each product goes to its own value, or
//! `out = y_0 + residual`, or `out = kind(y_0) * y_1` (the gated feed-forward). x `(n, cols)`, W_m `(n_out_m, cols)`.
//!
//! Two schedules:
//!
//! - [`one_row`]: every worker normalises and quantises the row for itself, which costs less than a barrier, then takes
//!   pieces of `piece_rows` weight rows, multiplies them with the row, and applies the epilogue.
//! - [`many_rows`]: the rows were prepared by [`activation_rows`](super::activation_rows). A unit is a block of rows
//!   times a group of tiles of 16 weight rows; a tile's products, (rows, 16), stay in the first cache for the epilogue.
//!
//! With one row, which is bound by memory, a worker's pieces are neighbours, for long streams are read fastest; it helps
//! others when its own are done. With many, units are handed out by one counter. Either way a worker that the system has
//! slowed down does less. Order of accumulation is
//! the matrix kernel's ([`linear`](super::linear)). Bytes: the weights once for each block of rows.

use super::activation_rows::{Source, normalised};
use super::elementwise::{Same, Sum, combine};
use super::gate::Gated;
use super::linear::{ActRow, ActRows, ActivationKind, Multiply, Part, TILE_ROWS, WeightRows, q8_row_bytes};
use super::round_up;
use crate::command::Worker;
use crate::simd::math::{GeluErf, GeluTanh, Relu, Sigmoid, Silu};
use crate::simd::{Simd, variants};
use device::Activation;
use std::marker::PhantomData;

/// Most tiles of a unit of [`many_rows`]: enough that taking a unit costs nothing.
const TILES_PER_UNIT: usize = 4;
/// Units a worker of [`many_rows`], at least, where there are enough tiles: so many that all end at about the same time.
const UNITS_PER_WORKER: usize = 4;

/// One matrix.
#[derive(Clone, Copy)]
pub struct Matrix {
    /// `(n_out, cols)`
    pub weight: WeightRows,
    /// `(n_out)`; null: none.
    pub bias: *const f32,
    /// `(n, n_out)`, where the epilogue stores products.
    pub out: *mut f32,
    /// Weight rows.
    pub n_out: usize,
    /// What multiplies it.
    pub multiply: Multiply,
}

/// What happens to the products.
#[derive(Clone, Copy)]
pub enum Epilogue {
    /// `matrix.out = y`
    Store,
    /// `matrices[0].out = y_0 + residual`, both `(n, n_out)`; may be the same.
    Add {
        /// What is added.
        residual: *const f32,
    },
    /// `matrices[0].out = kind(y_0) * y_1`: the first matrix is the gate's.
    Gate {
        /// The function on the gate.
        kind: Activation,
    },
}

/// Parameters of both schedules.
#[derive(Clone, Copy)]
pub struct Params {
    /// The rows.
    pub source: Source,
    /// The first `n_matrices` count.
    pub matrices: [Matrix; 3],
    /// 1 to 3; 2 with [`Epilogue::Gate`], 1 with [`Epilogue::Add`].
    pub n_matrices: usize,
    /// What happens to the products.
    pub epilogue: Epilogue,
    /// [`many_rows`]: prepared rows of each form that a matrix reads, by its number.
    pub rows: [*const u8; 3],
    /// [`one_row`]: weight rows of a piece, a multiple of 16. [`many_rows`]: activation rows of a block.
    pub block: usize,
}

impl Params {
    fn matrices(&self) -> &[Matrix] {
        &self.matrices[..self.n_matrices]
    }

    /// Units of work along the weight rows, in pieces of `rows` rows. With a gate, both matrices are one.
    fn n_pieces(&self, rows: usize) -> usize {
        match self.epilogue {
            Epilogue::Gate { .. } => self.matrices[0].n_out.div_ceil(rows),
            _ => self.matrices().iter().map(|m| m.n_out.div_ceil(rows)).sum(),
        }
    }

    /// Which matrix a piece belongs to, and the piece's number within it.
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

/// Weight rows of a piece of [`one_row`]: about four pieces a worker, at least a tile, at most what stays in the cache.
pub fn piece_rows(n_out_total: usize, n_workers: usize) -> usize {
    (n_out_total / (4 * n_workers)).next_multiple_of(TILE_ROWS).clamp(TILE_ROWS, 8192)
}

/// Activation rows of a block of [`many_rows`]: with a pass of their columns and the products of a unit's tiles, what stays in
/// the second cache.
pub fn row_block(max_rows: usize) -> usize {
    const ROWS: usize = 192;
    ROWS.min(max_rows.max(1))
}

/// Bytes of scratch of [`one_row`]: the row in all forms and the products of two pieces.
pub fn one_row_scratch_bytes(cols: usize, piece_rows: usize) -> usize {
    one_row_products(cols) + 2 * round_up(piece_rows * 4)
}

/// Offset of the row in the scratch of [`one_row`] in other forms than f32, with which the scratch begins.
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

/// Bytes of scratch of [`many_rows`]: the products of a unit's tiles, twice for a gate, and what the matrix kernel needs.
pub fn many_rows_scratch_bytes(row_block: usize, gemm_scratch: usize) -> usize {
    2 * TILES_PER_UNIT * row_block * TILE_ROWS * 4 + round_up(gemm_scratch)
}

/// # Safety
/// As [`crate::command::Kernel`].
#[inline(always)]
unsafe fn one_row_body<S: Simd>(p: &Params, worker: &Worker<'_>) {
    if worker.step.n_rows(p.source.rows) == 0 {
        return;
    }
    let cols = p.source.cols;
    let n = p.n_pieces(p.block);
    // A worker without work has no use for the row.
    let mut helped = 0;
    let Some(mut unit) = worker.take_near(n, &mut helped) else { return };
    // SAFETY: the scratch has the layout of `one_row_scratch_bytes`; pieces lie within their matrices.
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
                _ => p.piece(unit, p.block),
            };
            let m = &p.matrices[index];
            let (r0, r1) = (piece * p.block, ((piece + 1) * p.block).min(m.n_out));
            (m.multiply.gemv)(m.weight, cols, r0, r1, row(m), products);
            if matches!(p.epilogue, Epilogue::Gate { .. }) {
                let up = &p.matrices[1];
                (up.multiply.gemv)(up.weight, cols, r0, r1, row(up), others);
            }
            finish::<S>(p, m, 0, r0, r1 - r0, products, others);
            match worker.take_near(n, &mut helped) {
                Some(next) => unit = next,
                None => return,
            }
        }
    }
}

variants!(
    /// The schedule for one row.
    one_row, one_row_body, Params
);

/// # Safety
/// As [`crate::command::Kernel`].
#[inline(always)]
unsafe fn many_rows_body<S: Simd>(p: &Params, worker: &Worker<'_>) {
    let n = worker.step.n_rows(p.source.rows);
    let n_tiles = p.n_pieces(TILE_ROWS);
    let tiles_per_unit = (n_tiles / (UNITS_PER_WORKER * worker.n)).clamp(1, TILES_PER_UNIT);
    let n_groups = n_tiles.div_ceil(tiles_per_unit);
    // SAFETY: the scratch has the layout of `many_rows_scratch_bytes`; tiles lie within their matrices.
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
        // Blocks of equal size, so that the last is not a small rest.
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
                for (i, row) in rows.clone().enumerate() {
                    let at = at + i * TILE_ROWS;
                    finish::<S>(p, &p.matrices[index], row, r0, n_rows, products.add(at), others.add(at));
                }
            }
        }
    }
}

variants!(
    /// The schedule for many rows.
    many_rows, many_rows_body, Params
);

/// Bias and epilogue of `n` neighbouring products of an activation row, from weight row `r0` on.
///
/// # Safety
/// The products and the values are valid for them.
#[inline(always)]
unsafe fn finish<S: Simd>(
    p: &Params,
    m: &Matrix,
    row: usize,
    r0: usize,
    n: usize,
    y: *mut f32,
    others: *mut f32,
) {
    let at = row * m.n_out + r0;
    // SAFETY: the caller's promise.
    unsafe {
        let out = m.out.add(at);
        match p.epilogue {
            Epilogue::Store if m.bias.is_null() => combine::<S>(y, y, out, n, Same),
            Epilogue::Store => combine::<S>(y, m.bias.add(r0), out, n, Sum),
            Epilogue::Add { residual } => {
                add_bias::<S>(m, r0, n, y);
                combine::<S>(y, residual.add(at), out, n, Sum);
            }
            Epilogue::Gate { kind } => {
                add_bias::<S>(m, r0, n, y);
                add_bias::<S>(&p.matrices[1], r0, n, others);
                match kind {
                    Activation::Silu => combine::<S>(y, others, out, n, Gated::<Silu>(PhantomData)),
                    Activation::GeluTanh => combine::<S>(y, others, out, n, Gated::<GeluTanh>(PhantomData)),
                    Activation::GeluErf => combine::<S>(y, others, out, n, Gated::<GeluErf>(PhantomData)),
                    Activation::Relu => combine::<S>(y, others, out, n, Gated::<Relu>(PhantomData)),
                    Activation::Sigmoid => combine::<S>(y, others, out, n, Gated::<Sigmoid>(PhantomData)),
                }
            }
        }
    }
}

/// # Safety
/// As [`finish`].
#[inline(always)]
unsafe fn add_bias<S: Simd>(m: &Matrix, r0: usize, n: usize, y: *mut f32) {
    if !m.bias.is_null() {
        // SAFETY: the caller's promise.
        unsafe { combine::<S>(y, m.bias.add(r0), y, n, Sum) }
    }
}
