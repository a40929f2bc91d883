//! Products with the matrices of each row's experts.

use super::linear::{
    MOST_SHARED, Product, STAGED, STAGED_FLOATS, Spread, TAIL_ADD, TAIL_GATE, TAIL_STORE, WARPS, rows_input,
};
use super::primitives::activation;
use super::{Call, Draft, ONE, blocks};
use crate::arguments::{
    ExpertTilesArguments, GemmArguments, InputArguments, LinearArguments, MatrixArguments,
};
use crate::driver::Address;
use crate::layout::{PAIRS, TILES, TILES_AT};
use crate::packs::Pack;
use crate::products::{AtLaunch, ExpertSizes};
use crate::stored::Stored;
use device::{Activation, Result, RowCount, ValueId, WeightId};
use device_lower::fields::{MatrixOf, Norm};
use device_lower::lifetimes::max_rows;
use device_lower::table::{Extent, RowClass};

/// Maximum number of experts of a row whose products run in one launch (linear/gemv_one.cuh).
const ONE_EXPERTS: usize = 64;

impl Draft<'_> {
    pub(super) fn expert_linear(
        &mut self,
        x: ValueId,
        ids: ValueId,
        weight: WeightId,
        out: ValueId,
    ) -> Result<()> {
        self.experts(x, None, ids, &[weight], None, out)
    }

    /// Returns true if `gemv_experts` computes these products.
    fn are_of_one(&self, rows: RowCount, ids: ValueId, stored: Stored) -> bool {
        let is_one = self.class(rows) == RowClass::One && !self.c.is_deterministic();
        is_one && !stored.kind.is_float() && self.c.cols(ids) <= ONE_EXPERTS
    }

    /// Adds one launch for a single row: the product of each of its experts with that expert's
    /// input, and the weighted sum of the products. Returns false if no kernel fits.
    pub(super) fn sum_of_one(
        &mut self,
        x: ValueId,
        ids: ValueId,
        stack: WeightId,
        weights: ValueId,
        residual: Option<ValueId>,
        out: ValueId,
    ) -> Result<bool> {
        let c = self.c;
        let (rows, k) = (c.rows(x), c.cols(ids));
        let of_stack = [MatrixOf { weight: stack, bias: None, out }];
        let matrices = [self.matrix(&of_stack[0], true)?];
        let (stored, MatrixArguments { n_out, .. }) = matrices[0];
        // A group of 32 columns must belong to one expert.
        if !stored.n_cols.is_multiple_of(32) || !self.are_of_one(rows, ids, stored) {
            return Ok(false);
        }
        let spread = Spread::of_sets(&[1], n_out as usize, k * stored.n_cols, c.profile.n_processors);
        let Some(spread) = spread else { return Ok(false) };
        let n_experts = c.plan.weight(stack).parts.len().max(1) as u64;
        let p = Product {
            x,
            norm: None,
            matrices: &matrices,
            ids: &[stack],
            tail: if residual.is_some() { TAIL_ADD } else { TAIL_STORE },
            activation: 0,
            residual,
            out: Some(out),
            writes: &[out],
            weight_bytes: self.bytes_of(&of_stack) / n_experts * k as u64,
        };
        let arguments = LinearArguments {
            n_in: (k * stored.n_cols) as u32,
            k: k as u32,
            x_per_pair: 1,
            ids: c.value(ids)?,
            pair_weights: c.value(weights)?,
            ..self.arguments(&p)?
        };
        self.gemv_one(arguments, &p, rows, stored.kind, spread);
        Ok(true)
    }

    /// Adds products with packed stacks on tensor cores, with rows grouped by expert.
    fn grouped(
        &mut self,
        p: &Product,
        rows: RowCount,
        ids: ValueId,
        pack: &Pack,
        weights: Address,
    ) -> Result<()> {
        let c = self.c;
        let (profile, k) = (c.profile, c.cols(ids));
        let experts =
            ExpertSizes { products: profile.products, n: pack.n_experts, k, only: profile.only_tile };
        let (pairs, n_tiles) = (c.scratch_place(PAIRS), c.scratch_place(TILES));
        let tiles = n_tiles + TILES_AT as u64;
        if self.grouped.replace(ids) != Some(ids) {
            let arguments = ExpertTilesArguments {
                n_rows: 0,
                k: k as u32,
                n_experts: experts.n as u32,
                // The launcher sets it.
                width: 0,
                ids: c.value(ids)?,
                pairs,
                tiles,
                n_tiles,
            };
            // Each warp needs a counter for each expert in shared memory.
            let n_warps = (MOST_SHARED / (4 * experts.n as u32)).saturating_sub(1).clamp(1, 32);
            let call = Call::new("gemm/input.cu", rows, [ONE; 3], 32 * n_warps, &[]);
            let shared = 4 * experts.n as u32 * (n_warps + 1);
            let at_launch = AtLaunch::Width(experts);
            self.push(Call { name: "expert_tiles", shared, at_launch, ..call }, &arguments);
        }
        let n_cols = p.matrices[0].0.n_cols;
        let k_tiles = pack.k_tiles as u32;
        let row_groups = ExpertSizes::packed_rows(experts.n, k, max_rows(c.limits, rows)).div_ceil(8) as u32;
        let pairs_a_row = if c.cols(p.x) == n_cols { k as u32 } else { 1 };
        let input = InputArguments { pairs, pairs_a_row, k_tiles, row_groups, ..self.input(p)? };
        let grid = Extent::Tiles { rows, k: k as u32, pairs: 1, n_experts: 7 * experts.n as u32 };
        let (name, threads) = rows_input(input.n_cols);
        let call = Call::new("gemm/input.cu", rows, [grid, ONE, ONE], threads, &[]);
        self.push(Call { name, ..call }, &input);
        // The grouped input overwrites a projection's rows in scratch.
        self.is_tiled = false;
        let arguments = GemmArguments {
            n_out: pack.n_out as u32,
            weights,
            x: input.out,
            x_scales: input.scales,
            y: p.out.map_or(Ok(p.matrices[0].1.out), |id| c.value(id))?,
            tiles,
            n_tiles,
            pairs,
            expert_bytes: pack.expert_bytes() as u64,
            k_tiles,
            row_groups,
            y_stride: p.matrices[0].1.n_out,
            n_splits: 1,
            epilogue: p.tail,
            activation: p.activation,
            ..Default::default()
        };
        self.push_packed(p, rows, pack, |product| AtLaunch::Grouped(product, experts), &arguments);
        Ok(())
    }

    /// Adds products with the matrices of each row's experts. Many rows are grouped by expert; with
    /// few rows each block computes one pair of a row and an expert.
    pub(super) fn experts(
        &mut self,
        x: ValueId,
        norm: Option<Norm>,
        ids: ValueId,
        stacks: &[WeightId],
        gate: Option<Activation>,
        out: ValueId,
    ) -> Result<()> {
        let c = self.c;
        let (rows, k) = (c.rows(x), c.cols(ids));
        let store = gate.is_none();
        let of_stacks: Vec<MatrixOf> =
            stacks.iter().map(|id| MatrixOf { weight: *id, bias: None, out }).collect();
        let matrices = of_stacks.iter().map(|m| self.matrix(m, store)).collect::<Result<Vec<_>>>()?;
        let stored = matrices[0].0;
        let n_experts = c.plan.weight(stacks[0]).parts.len().max(1) as u64;
        let writes = [out];
        let p = Product {
            x,
            norm,
            matrices: &matrices,
            ids: stacks,
            tail: if store { TAIL_STORE } else { TAIL_GATE },
            activation: gate.map_or(0, activation),
            residual: None,
            out: if store { None } else { Some(out) },
            writes: &writes,
            weight_bytes: self.bytes_of(&of_stacks) / n_experts * k as u64,
        };
        if self.class(rows) >= c.profile.packed_rows
            && let Some((pack, weights)) = c.packs.find(c.plan, stacks, !store)
        {
            return self.grouped(&p, rows, ids, pack, weights);
        }
        let n: usize = matrices.iter().map(|(_, m)| m.n_out as usize).sum();
        if c.cols(x) == stored.n_cols && self.are_of_one(rows, ids, stored) {
            let spread = Spread::of_sets(&[1], n * k, stored.n_cols, c.profile.n_processors);
            if let Some(spread) = spread {
                let arguments = LinearArguments { k: k as u32, ids: c.value(ids)?, ..self.arguments(&p)? };
                self.gemv_one(arguments, &p, rows, stored.kind, spread);
                return Ok(());
            }
        }
        let columns = self.columns_of_warp(n * k, !store).max(2);
        let n_warps = n.div_ceil(columns);
        let arguments = LinearArguments {
            k: k as u32,
            x_per_pair: u32::from(c.cols(x) != stored.n_cols),
            ids: c.value(ids)?,
            n_warps: n_warps as u32,
            ..self.arguments(&p)?
        };
        let (file, name) = (stored.kind.file(), format!("gemv_r1_n{columns}"));
        let y = Extent::PerRow { rows, multiple: k as u32, divisor: 1 };
        let call = Call::new(&file, rows, [blocks(n_warps, WARPS), y, ONE], 32 * WARPS as u32, &writes);
        let shared = if stored.kind.is_float() { STAGED_FLOATS } else { STAGED };
        self.push(Call { name: &name, shared, weight_bytes: p.weight_bytes, ..call }, &arguments);
        Ok(())
    }
}
