//! Products with weights: GEMV for few rows, tensor cores for many.

use super::primitives::activation;
use super::{Call, Draft, ONE, blocks, each, failed};
use crate::arguments::{GemmArguments, InputArguments, LinearArguments, MatrixArguments, RowsArguments};
use crate::driver::Address;
use crate::layout::{COUNTERS, HALVES, SCALES, SUMS};
use crate::packs::Pack;
use crate::products::{AtLaunch, MOST_TILES, PackedProduct, Tile, groups};
use crate::stored::{Kind, Stored};
use device::{Result, RowCount, ValueId, WeightId};
use device_lower::fields::{MatrixOf, Norm, Projection, Tail};
use device_lower::lifetimes::max_rows;
use device_lower::table::{Extent, RowClass};
use weights::BlockType;

/// `TAIL_*` (linear/arguments.h)
pub(super) const TAIL_STORE: u32 = 0;
pub(super) const TAIL_ADD: u32 = 1;
pub(super) const TAIL_GATE: u32 = 2;

/// Warps per block of GEMV.
pub(super) const WARPS: usize = 8;

/// Columns and rows of a tile of GEMM.
const TILE: usize = 64;

/// Warps per block of one-row GEMV (`ONE_WARPS`, linear/gemv_one.cuh).
pub(super) const ONE_WARPS: usize = 16;

/// Maximum number of rows of a small F32 matrix; then rows and columns of a tile of its product
/// (linear/small.cuh).
const MOST_SMALL: u32 = 4096;
const SMALL_ROWS: u32 = 32;
const SMALL_COLUMNS: usize = 16;

/// Maximum rows of a small F32 matrix, such as a router's, for which 2 to 32 input rows use the
/// kernel of one row. It has a block for each result.
const MOST_ROUTER: u32 = 512;

/// Bytes of shared memory of GEMV, for input rows in 8 bits with scales, then for rows in f32.
pub(super) const STAGED: u32 = 1024 * 40;
pub(super) const STAGED_FLOATS: u32 = 8192 * 4;

/// Number of weights from which a one-row product is faster with two blocks per multiprocessor than
/// with one (kernels/linear/NOTES.md).
const LARGE: usize = 12 << 20;

/// Bytes of shared memory that a block has on every chip without raising the kernel's limit.
pub(super) const MOST_SHARED: u32 = 48 << 10;

/// Distribution of a one-row product over the chip (linear/gemv_one.cuh).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spread {
    /// Output columns that a team of warps computes at a time.
    pub(super) set: usize,
    /// Groups of 32 of K that a lane reads for each column.
    pub(super) steps: usize,
    /// Number of warps of a team. Each warp reads one part of K.
    pub(super) k_parts: usize,
    pub(super) n_blocks: usize,
    /// Bytes of shared memory.
    pub(super) shared: u32,
}

impl Spread {
    /// The fastest distribution by a model of the instruction chain; `None`: K is too long.
    fn of_one_row(n_columns: usize, n_in: usize, n_processors: usize) -> Option<Spread> {
        Self::of_sets(&[1, 2, 4], n_columns, n_in, n_processors)
    }

    /// The fastest distribution whose `set` is one of `sets`; `None`: K is too long.
    pub(super) fn of_sets(
        sets: &[usize],
        n_columns: usize,
        n_in: usize,
        n_processors: usize,
    ) -> Option<Spread> {
        let groups = n_in.div_ceil(32);
        // Large products are bound by memory: twice the blocks, with fewer registers each, keep
        // more loads in flight.
        let is_large = n_columns * n_in >= LARGE;
        let n_blocks = if is_large { 2 * n_processors } else { n_processors };
        let n_blocks = n_blocks.min(n_columns.div_ceil(4)).max(1);
        let (sets, all_steps) = match is_large {
            true => (&[1][..], if groups > 32 { &[2][..] } else { &[1][..] }),
            false => (sets, &[1, 2][..]),
        };
        let mut best: Option<(usize, Spread)> = None;
        for &steps in all_steps {
            let k_parts = groups.div_ceil(32 * steps).max(1);
            if k_parts > ONE_WARPS {
                continue;
            }
            for &set in sets {
                // Columns of the largest block: whole sets, and whole pairs.
                let unit = set.max(2);
                let columns = n_columns.div_ceil(unit).div_ceil(n_blocks) * unit;
                let rounds = columns.div_ceil(set).div_ceil(ONE_WARPS / k_parts);
                // Instructions of a round: 20, plus 25 per column, 12 more per column in each step,
                // and 12 per column for the sum over lanes.
                let cost = rounds * (steps * (25 * set + 12) + 12 * set + 20);
                if best.is_none_or(|(least, _)| cost < least) {
                    let shared = (k_parts * (32 * steps * 40 + 4 * columns)) as u32;
                    best = Some((cost, Spread { set, steps, k_parts, n_blocks, shared }));
                }
            }
        }
        best.map(|(_, spread)| spread).filter(|spread| spread.shared <= MOST_SHARED)
    }
}

/// One product to compile: matrices of one kind that read the same rows.
#[derive(Clone, Copy)]
pub(super) struct Product<'a> {
    pub(super) x: ValueId,
    pub(super) norm: Option<Norm>,
    pub(super) matrices: &'a [(Stored, MatrixArguments)],
    pub(super) ids: &'a [WeightId],
    pub(super) tail: u32,
    pub(super) activation: u32,
    pub(super) residual: Option<ValueId>,
    /// The result, if the tail has a single one.
    pub(super) out: Option<ValueId>,
    pub(super) writes: &'a [ValueId],
    pub(super) weight_bytes: u64,
}

/// The kernel that converts rows of `n_cols` columns to the input layout of tensor cores, and its
/// threads per block (gemm/input.cu).
pub(super) fn rows_input(n_cols: u32) -> (&'static str, u32) {
    match n_cols {
        0..=1024 => ("rows_input_1024", 128),
        1025..=2048 => ("rows_input_2048", 256),
        2049..=4096 => ("rows_input_4096", 256),
        _ => ("rows_input", 256),
    }
}

impl Draft<'_> {
    /// A matrix with its bias; with `store`, also with the address of its product.
    pub(super) fn matrix(&self, of: &MatrixOf, store: bool) -> Result<(Stored, MatrixArguments)> {
        let weight = self.c.plan.weight(of.weight);
        let Some((stored, arguments)) = self.c.weights.matrix(weight) else {
            return failed(format!("{} was not loaded", weight.name));
        };
        let bias = self.c.vector_or_null(of.bias)?;
        let out = if store { self.c.value(of.out)? } else { 0 };
        Ok((stored, MatrixArguments { bias, out, ..arguments }))
    }

    pub(super) fn bytes_of(&self, matrices: &[MatrixOf]) -> u64 {
        matrices.iter().map(|m| self.c.plan.weight(m.weight).n_bytes()).sum()
    }

    pub(super) fn projection(&mut self, p: &Projection) -> Result<()> {
        let all = |draft: &Self, store| -> Result<Vec<_>> {
            p.matrices.iter().map(|m| draft.matrix(m, store)).collect()
        };
        let unstored = all(self, false)?;
        let kinds: Vec<Kind> = unstored.iter().map(|(stored, _)| stored.kind).collect();
        let same = kinds.iter().all(|kind| *kind == kinds[0]);
        let ids: Vec<WeightId> = p.matrices.iter().map(|m| m.weight).collect();
        self.is_tiled = false;
        let base = Product {
            x: p.x,
            norm: p.norm.map(|(norm, _)| norm),
            matrices: &unstored,
            ids: &ids,
            tail: TAIL_STORE,
            activation: 0,
            residual: None,
            out: None,
            writes: &[],
            weight_bytes: self.bytes_of(&p.matrices),
        };
        match p.tail {
            Tail::Gate { kind, out } if same => {
                let activation = activation(kind);
                self.product(Product { tail: TAIL_GATE, activation, out: Some(out), writes: &[out], ..base })
            }
            Tail::Add { residual, out } => {
                let residual = Some(residual);
                self.product(Product { tail: TAIL_ADD, residual, out: Some(out), writes: &[out], ..base })
            }
            Tail::Store | Tail::Gate { .. } => {
                let stored = all(self, true)?;
                for group in groups(p, &kinds) {
                    let mine = &group.matrices;
                    let matrices: Vec<_> = mine.iter().map(|i| stored[*i]).collect();
                    let of: Vec<MatrixOf> = mine.iter().map(|i| p.matrices[*i]).collect();
                    let ids: Vec<WeightId> = of.iter().map(|m| m.weight).collect();
                    let writes: Vec<ValueId> = of.iter().map(|m| m.out).collect();
                    let (matrices, ids, writes) = (&matrices[..], &ids[..], &writes[..]);
                    self.product(Product {
                        matrices,
                        ids,
                        writes,
                        weight_bytes: self.bytes_of(&of),
                        ..base
                    })?;
                }
                match p.tail {
                    Tail::Gate { kind, out } => self.gate(p.matrices[0].out, p.matrices[1].out, kind, out),
                    Tail::Store | Tail::Add { .. } => Ok(()),
                }
            }
        }
    }

    pub(super) fn arguments(&self, p: &Product) -> Result<LinearArguments> {
        let c = self.c;
        let of = |index: usize| p.matrices.get(index).map(|(_, m)| *m).unwrap_or_default();
        Ok(LinearArguments {
            n_in: p.matrices.first().map_or(0, |(stored, _)| stored.n_cols) as u32,
            n_matrices: p.matrices.len() as u32,
            tail: p.tail,
            activation: p.activation,
            has_norm: u32::from(p.norm.is_some()),
            eps: p.norm.map_or(0.0, |norm| norm.eps),
            x: c.value(p.x)?,
            norm: c.vector_or_null(p.norm.and_then(|norm| norm.weight))?,
            residual: p.residual.map_or(Ok(0), |id| c.value(id))?,
            out: p.out.map_or(Ok(0), |id| c.value(id))?,
            m0: of(0),
            m1: of(1),
            m2: of(2),
            ..Default::default()
        })
    }

    fn product(&mut self, p: Product) -> Result<()> {
        let rows = self.c.rows(p.x);
        let class = self.class(rows);
        let kind = p.matrices[0].0.kind;
        // F32 matrices are small and need f32 precision.
        let exact = kind == Kind::Block(BlockType::F32) || self.c.is_deterministic();
        if class >= self.c.profile.packed_rows
            && !exact
            && let Some((pack, weights)) = self.c.packs.find(self.c.plan, p.ids, p.tail == TAIL_GATE)
        {
            return self.packed(&p, rows, pack, weights);
        }
        self.planes_product(&p, rows, class, kind, exact)
    }

    /// Adds a product that reads the planes of `weights`.
    fn planes_product(
        &mut self,
        p: &Product,
        rows: RowCount,
        class: RowClass,
        kind: Kind,
        exact: bool,
    ) -> Result<()> {
        if class == RowClass::Many && !exact {
            return self.gemm(p, rows, kind);
        }
        let arguments = self.arguments(p)?;
        if kind == Kind::Block(BlockType::F32) && self.small_product(&arguments, p, rows, class) {
            return Ok(());
        }
        let n = p.matrices.iter().map(|(_, m)| m.n_out as usize).sum();
        let spread = Spread::of_one_row(n, p.matrices[0].0.n_cols, self.c.profile.n_processors);
        match spread.filter(|_| class == RowClass::One && !kind.is_float() && !exact) {
            Some(spread) => self.gemv_one(arguments, p, rows, kind, spread),
            None => self.gemv(arguments, p, rows, class, kind),
        }
        Ok(())
    }

    /// Adds the product of a single small F32 matrix, such as a router's, with any number of rows.
    /// Returns false if another kernel must compute it.
    fn small_product(
        &mut self,
        arguments: &LinearArguments,
        p: &Product,
        rows: RowCount,
        class: RowClass,
    ) -> bool {
        let n_out = p.matrices[0].1.n_out;
        let fits = p.matrices.len() == 1 && p.tail == TAIL_STORE && n_out <= MOST_SMALL;
        if !fits || self.c.is_deterministic() {
            return false;
        }
        let (name, grid, threads) = match class {
            RowClass::Many => {
                let y = Extent::PerRow { rows, multiple: 1, divisor: SMALL_ROWS };
                ("small_rows", [blocks(n_out as usize, SMALL_COLUMNS), y, ONE], 128)
            }
            RowClass::Two | RowClass::Four | RowClass::Eight | RowClass::Tile if n_out > MOST_ROUTER => {
                return false;
            }
            RowClass::One | RowClass::Two | RowClass::Four | RowClass::Eight | RowClass::Tile => {
                ("small_row", [Extent::Fixed(n_out), each(rows), ONE], 256)
            }
        };
        let call = Call::new("linear/f32.cu", rows, grid, threads, p.writes);
        self.push(Call { name, weight_bytes: p.weight_bytes, ..call }, arguments);
        true
    }

    /// Adds the product of one row, or of one row's experts, spread over the multiprocessors.
    pub(super) fn gemv_one(
        &mut self,
        mut arguments: LinearArguments,
        p: &Product,
        rows: RowCount,
        kind: Kind,
        spread: Spread,
    ) {
        let Spread { set, steps, k_parts, n_blocks, shared } = spread;
        arguments.k_parts = k_parts as u32;
        let name = match arguments.k {
            0 => format!("gemv_one_n{set}_l{steps}"),
            _ => format!("gemv_experts_l{steps}"),
        };
        let file = kind.file();
        let grid = [Extent::Fixed(n_blocks as u32), ONE, ONE];
        let call = Call::new(&file, rows, grid, 32 * ONE_WARPS as u32, p.writes);
        self.push(Call { name: &name, shared, weight_bytes: p.weight_bytes, ..call }, &arguments);
    }

    /// Number of the `n` output columns that one warp computes. Each column is a row of a matrix.
    pub(super) fn columns_of_warp(&self, n: usize, gate: bool) -> usize {
        match n {
            n if n / 4 >= self.c.profile.n_warps => 4,
            n if gate || n / 2 >= self.c.profile.n_warps => 2,
            _ => 1,
        }
    }

    fn gemv(
        &mut self,
        mut arguments: LinearArguments,
        p: &Product,
        rows: RowCount,
        class: RowClass,
        kind: Kind,
    ) {
        let n: usize = p.matrices.iter().map(|(_, m)| m.n_out as usize).sum();
        let (of_rows, columns) = match class {
            RowClass::One => (1, self.columns_of_warp(n, p.tail == TAIL_GATE)),
            RowClass::Two => (2, 2),
            RowClass::Four => (4, 2),
            RowClass::Eight | RowClass::Tile | RowClass::Many => (8, 2),
        };
        let n_warps = n.div_ceil(columns);
        arguments.n_warps = n_warps as u32;
        let y = Extent::PerRow { rows, multiple: 1, divisor: of_rows };
        let (file, name) = (kind.file(), format!("gemv_r{of_rows}_n{columns}"));
        let call = Call::new(&file, rows, [blocks(n_warps, WARPS), y, ONE], 32 * WARPS as u32, p.writes);
        let shared = if kind.is_float() { STAGED_FLOATS } else { STAGED };
        self.push(Call { name: &name, shared, weight_bytes: p.weight_bytes, ..call }, &arguments);
    }

    /// Adds a product with packed weights on tensor cores.
    fn packed(&mut self, p: &Product, rows: RowCount, pack: &Pack, weights: Address) -> Result<()> {
        let c = self.c;
        let (x, x_scales) = (c.scratch_place(HALVES), c.scratch_place(SCALES));
        let (k_tiles, row_groups) = (pack.k_tiles as u32, max_rows(c.limits, rows).div_ceil(8) as u32);
        if !self.is_tiled {
            let input = InputArguments { k_tiles, row_groups, ..self.input(p)? };
            let (name, threads) = rows_input(input.n_cols);
            let call = Call::new("gemm/input.cu", rows, [each(rows), ONE, ONE], threads, &[]);
            self.push(Call { name, ..call }, &input);
            self.is_tiled = true;
        }
        let of = |index: usize| p.matrices.get(index).map(|(_, m)| *m).unwrap_or_default();
        let first = |index: usize| pack.first.get(index).map_or(0, |first| *first as u32);
        let gate = p.tail == TAIL_GATE;
        let more = |index: usize| if gate { MatrixArguments::default() } else { of(index) };
        let arguments = GemmArguments {
            n_rows: 0,
            n_out: pack.n_out as u32,
            weights,
            x,
            y: p.out.map_or(Ok(of(0).out), |id| c.value(id))?,
            residual: p.residual.map_or(Ok(0), |id| c.value(id))?,
            bias: of(0).bias,
            x_scales,
            y1: more(1).out,
            y2: more(2).out,
            bias1: more(1).bias,
            bias2: more(2).bias,
            partials: c.scratch_place(SUMS),
            counters: c.scratch_place(COUNTERS),
            k_tiles,
            row_groups,
            y_stride: of(0).n_out,
            // The launcher sets it.
            n_splits: 1,
            epilogue: p.tail,
            activation: p.activation,
            first1: if gate { 0 } else { first(1) },
            first2: if gate { 0 } else { first(2) },
            y_stride1: more(1).n_out,
            y_stride2: more(2).n_out,
            ..Default::default()
        };
        self.push_packed(p, rows, pack, AtLaunch::Cut, &arguments);
        Ok(())
    }

    /// Arguments of the kernel that writes the input of packed products, without its size.
    pub(super) fn input(&self, p: &Product) -> Result<InputArguments> {
        let c = self.c;
        Ok(InputArguments {
            n_cols: p.matrices[0].0.n_cols as u32,
            x: c.value(p.x)?,
            weight: c.vector_or_null(p.norm.and_then(|norm| norm.weight))?,
            out: c.scratch_place(HALVES),
            scales: c.scratch_place(SCALES),
            has_norm: u32::from(p.norm.is_some()),
            eps: p.norm.map_or(0.0, |norm| norm.eps),
            ..Default::default()
        })
    }

    /// Adds a product with packed weights, and each kernel that the launcher may choose for it.
    pub(super) fn push_packed(
        &mut self,
        p: &Product,
        rows: RowCount,
        pack: &Pack,
        at_launch: impl Fn(PackedProduct) -> AtLaunch,
        arguments: &GemmArguments,
    ) {
        let c = self.c;
        let mut kernels = [0; MOST_TILES];
        let tiles = Tile::all(c.profile.products);
        for (kernel, tile) in kernels.iter_mut().zip(tiles) {
            *kernel =
                self.kernels.add(&tile.file(pack.codec), &tile.kernel(pack.codec), tile.shared(pack.codec));
        }
        let products = c.profile.products;
        let (n_out, k_tiles) = (pack.n_out, pack.k_tiles);
        let only = c.profile.only_tile;
        let product = PackedProduct { products, codec: pack.codec, kernels, n_out, k_tiles, only };
        let (file, name) = (tiles[0].file(pack.codec), tiles[0].kernel(pack.codec));
        let call = Call::new(&file, rows, [each(rows), ONE, ONE], tiles[0].threads(), p.writes);
        let call = Call { name: &name, at_launch: at_launch(product), weight_bytes: p.weight_bytes, ..call };
        self.push(Call { shared: tiles[0].shared(pack.codec), ..call }, arguments);
    }

    fn gemm(&mut self, p: &Product, rows: RowCount, kind: Kind) -> Result<()> {
        let c = self.c;
        let n_in = p.matrices[0].0.n_cols;
        self.is_tiled = false;
        let (x_f16, x_scales) = (c.scratch_place(HALVES), c.scratch_place(SCALES));
        let of_rows = RowsArguments {
            n_rows: 0,
            n_in: n_in as u32,
            stride: n_in.next_multiple_of(32) as u32,
            has_norm: u32::from(p.norm.is_some()),
            eps: p.norm.map_or(0.0, |norm| norm.eps),
            reserved: 0,
            x: c.value(p.x)?,
            norm: c.vector_or_null(p.norm.and_then(|norm| norm.weight))?,
            x_f16,
            x_scales,
            normed: 0,
        };
        let call = Call::new("linear/rows_f16.cu", rows, [each(rows), ONE, ONE], 256, &[]);
        self.push(Call { name: "rows_f16", ..call }, &of_rows);
        let arguments = LinearArguments { x_f16, x_scales, ..self.arguments(p)? };
        let tiles: usize = match p.tail {
            TAIL_GATE => (p.matrices[0].1.n_out as usize).div_ceil(TILE / 2),
            _ => p.matrices.iter().map(|(_, m)| (m.n_out as usize).div_ceil(TILE)).sum(),
        };
        let y = Extent::PerRow { rows, multiple: 1, divisor: TILE as u32 };
        let file = kind.file();
        let call = Call::new(&file, rows, [Extent::Fixed(tiles as u32), y, ONE], 128, p.writes);
        self.push(Call { name: "gemm_64", weight_bytes: p.weight_bytes, ..call }, &arguments);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The requirements of linear/gemv_one.cuh: all of K is covered, a team fits a block, and
    /// shared memory suffices for the largest block.
    #[test]
    fn one_row_is_spread_over_all_of_k() {
        for n_columns in [1, 7, 64, 1024, 2048, 3072, 16_384, 151_936] {
            for n_in in [32, 96, 320, 1024, 3072, 8192, 28_672, 32_768] {
                for n_processors in [1, 20, 132] {
                    let Some(s) = Spread::of_one_row(n_columns, n_in, n_processors) else { continue };
                    assert!(s.k_parts * s.steps * 32 >= n_in.div_ceil(32) && s.k_parts <= ONE_WARPS, "{s:?}");
                    let unit = s.set.max(2);
                    let n_units = n_columns.div_ceil(unit);
                    let of_block = |i: usize| n_units * (i + 1) / s.n_blocks - n_units * i / s.n_blocks;
                    let largest = (0..s.n_blocks).map(of_block).max().unwrap_or(0) * unit;
                    let needed = s.k_parts * (s.steps * 32 * 40 + 4 * largest);
                    assert!(
                        needed <= s.shared as usize && s.shared <= MOST_SHARED,
                        "{n_columns} {n_in}: {s:?}"
                    );
                }
            }
        }
        let of = |n, k| Spread::of_one_row(n, k, 132).map(|s| (s.set, s.steps, s.k_parts, s.n_blocks));
        // The fastest measured distributions (kernels/linear/NOTES.md).
        assert_eq!(of(16_384, 2048), Some((1, 2, 1, 264)));
        assert_eq!(of(2048, 8192), Some((1, 2, 4, 264)));
        assert_eq!(of(6144, 1024), Some((4, 1, 1, 132)));
        assert_eq!(of(2048, 40_000), None, "K needs more warps than a block has");
    }
}
