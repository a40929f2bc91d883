//! Mixtures of experts. Few rows: each pair of a row and an expert by itself. Many: pairs in the order of the experts, in tiles.
//!
//! The contracts are the headers `kernels/expert_linear.h` and `kernels/expert_groups.metal`.

use super::linear::{GEMM_ROWS, GEMM_THREADS, GEMV_ROWS, STEP_AT, type_constants};
use super::{Call, Draft, ONE, per_token};
use crate::arguments::{ExpertSumArguments, LinearArguments};
use crate::gpu::{Gpu, Place};
use crate::kernels::{self, Kernel, constant, linear};
use crate::lower::Unit;
use crate::table::{Extent, RowClass};
use device::{Activation, Error, Op, Result, ValueId, WeightId};

/// Pairs of a tile.
pub const TILE_PAIRS: usize = 32;

/// Bytes of what describes a tile.
pub const TILE_BYTES: usize = 16;

/// Most experts that `expert_groups.metal` orders.
const MAX_ORDERED: usize = 1024;

/// Tiles of so many pairs.
pub fn n_tiles(n_experts: usize, n_pairs: usize) -> usize {
    n_experts + n_pairs / TILE_PAIRS
}

/// A product with the matrices of chosen experts.
struct Experts {
    x: ValueId,
    ids: ValueId,
    weight: WeightId,
    /// Up, of which `weight` is the gate.
    up: Option<(WeightId, Activation)>,
    /// What the experts' products are weighed with and added to.
    sum: Option<(ValueId, Option<ValueId>)>,
    out: ValueId,
}

impl<G: Gpu> Draft<'_, G> {
    /// ExpertLinear and ExpertSum by themselves.
    pub(super) fn expert_op(&mut self, op: &Op) -> Result<()> {
        match op {
            Op::ExpertLinear { x, ids, weight, out } => {
                let (x, ids, weight, out) = (*x, *ids, *weight, *out);
                self.expert_product(&Experts { x, ids, weight, up: None, sum: None, out })
            }
            Op::ExpertSum { x, weights, out } => self.expert_sum(*x, *weights, None, *out),
            _ => Ok(()),
        }
    }

    /// What was joined.
    pub(super) fn expert_unit(&mut self, unit: &Unit) -> Result<()> {
        match *unit {
            Unit::ExpertGateUp { x, ids, gate, up, kind, out } => {
                self.expert_product(&Experts { x, ids, weight: gate, up: Some((up, kind)), sum: None, out })
            }
            Unit::ExpertDownSum { x, ids, weight, weights, parts, residual, out } => {
                if self.class(x) == RowClass::One && !self.compiler.is_deterministic() {
                    let sum = Some((weights, residual));
                    return self.expert_product(&Experts { x, ids, weight, up: None, sum, out });
                }
                self.expert_product(&Experts { x, ids, weight, up: None, sum: None, out: parts })?;
                self.expert_sum(parts, weights, residual, out)
            }
            _ => Ok(()),
        }
    }

    fn expert_sum(
        &mut self,
        x: ValueId,
        weights: ValueId,
        residual: Option<ValueId>,
        out: ValueId,
    ) -> Result<()> {
        let c = self.compiler;
        let (rows, cols) = (c.rows(out), c.cols(out));
        let args = ExpertSumArguments {
            per_token: per_token(rows),
            cols: cols as u32,
            k: c.cols(weights) as u32,
            reserved: 0,
        };
        let call = self
            .step_call("expert_sum.metal", &args)
            .bool(constant::HAS_RESIDUAL, residual.is_some())
            .read(2, self.value(x))
            .read(3, self.value(weights))
            .write(4, self.value(out));
        let call = match residual {
            Some(residual) => call.read(5, self.value(residual)),
            None => call.bind(5, c.anything()),
        };
        self.push(call.elements(rows, cols))
    }

    fn scratch(&self, offset: usize, bytes: usize) -> (Place, usize) {
        (Place { buffer: self.compiler.buffers.scratch, offset: offset as u64 }, bytes)
    }

    /// Bring the pairs of a step into the order of their experts, unless they are.
    fn order(&mut self, ids: ValueId, args: &LinearArguments) -> Result<()> {
        if self.ordered == Some(ids) {
            return Ok(());
        }
        let s = self.compiler.scratch;
        let call = Call::new(Kernel::of("expert_groups.metal"), args)
            .bind(STEP_AT, self.compiler.step_place(0))
            .read(21, self.value(ids))
            .write(23, self.scratch(s.order_at(), s.order))
            .write(24, self.scratch(s.tiles_at(), s.tiles))
            .grid([ONE; 3], 256);
        self.push(call)?;
        self.ordered = Some(ids);
        Ok(())
    }

    /// The table of the places of a stack's matrices.
    fn stack(&self, id: WeightId) -> Result<(Place, Place)> {
        let c = self.compiler;
        let missing =
            || Error::Failed { device: G::NAME, reason: "a stack of experts has no place".to_owned() };
        let table = c.tables.stack(c.buffers.tables, c.index, id).ok_or_else(missing)?;
        let part = c.plan.weight(id).parts.first().ok_or_else(missing)?;
        let buffer = Place { buffer: c.bytes_of(&part.data)?.buffer, offset: 0 };
        Ok((buffer, table))
    }

    fn expert_product(&mut self, e: &Experts) -> Result<()> {
        let c = self.compiler;
        let weight = c.plan.weight(e.weight);
        let (block, n_in, n_experts) = (weight.block, weight.n_cols(), weight.parts.len());
        let n_out = weight.n_rows() / n_experts.max(1);
        let (k, rows) = (c.cols(e.ids), c.rows(e.x));
        let args = LinearArguments {
            n_in: n_in as u32,
            per_token: per_token(rows),
            x_stride: n_in as u32,
            row_bytes: weight.row_bytes() as u32,
            scale_bytes: block.row_scale_bytes(n_in) as u32,
            n_out_0: n_out as u32,
            n_experts: n_experts as u32,
            experts_per_row: k as u32,
            ..Default::default()
        };
        let many = self.class(e.x) >= RowClass::Tile && !c.is_deterministic();
        let tiles = many && e.sum.is_none() && n_experts <= MAX_ORDERED;
        if tiles {
            self.order(e.ids, &args)?;
        }
        let name = kernels::type_name(block);
        let kernel = |what: &str| -> Result<Kernel> {
            Ok(Kernel { file: self.linear_file(block)?, function: format!("expert_linear_{name}_{what}") })
        };
        let (rows_of_unit, halves) = (if tiles { GEMM_ROWS } else { GEMV_ROWS }, e.up.map_or(1, |_| 2));
        let n_units = n_out.div_ceil(rows_of_unit / halves);
        let s = c.scratch;
        let pairs = |divisor: u32| Extent::PerRow { rows, multiple: k as u32, divisor };
        let mut call = match tiles {
            true => Call::new(kernel("gemm")?, &args)
                .read(23, self.scratch(s.order_at(), s.order))
                .read(24, self.scratch(s.tiles_at(), s.tiles))
                .grid(
                    [
                        Extent::Fixed(n_units as u32),
                        Extent::Tiles {
                            rows,
                            k: k as u32,
                            pairs: TILE_PAIRS as u32,
                            n_experts: n_experts as u32,
                        },
                        ONE,
                    ],
                    GEMM_THREADS,
                ),
            false => {
                let (simdgroups, _) = c.profile.gemv_shape(usize::MAX >> 32, 1);
                let call = Call::new(kernel("gemv")?, &args)
                    .bool(linear::NORM, false)
                    .bool(linear::RESIDUAL, e.sum.is_some_and(|(_, residual)| residual.is_some()))
                    .bool(linear::EXPERTS_SUM, e.sum.is_some())
                    .bind(2, c.anything())
                    .read(21, self.value(e.ids));
                let call = match e.sum {
                    Some((weights, Some(residual))) => {
                        call.read(22, self.value(weights)).read(15, self.value(residual))
                    }
                    Some((weights, None)) => call.read(22, self.value(weights)).bind(15, c.anything()),
                    None => call.bind(22, c.anything()).bind(15, c.anything()),
                };
                let places = match e.sum {
                    Some(_) => Extent::PerRow { rows, multiple: 1, divisor: 1 },
                    None => pairs(1),
                };
                let groups = n_units.div_ceil(simdgroups as usize) as u32;
                call.grid([Extent::Fixed(groups), places, ONE], 32 * simdgroups)
            }
        };
        let (buffer_0, places_0) = self.stack(e.weight)?;
        let (buffer_1, places_1) = match e.up {
            Some((up, _)) => self.stack(up)?,
            None => (c.anything(), c.anything()),
        };
        call = call
            .bool(linear::GATE, e.up.is_some())
            .uint(linear::ACTIVATION, e.up.map_or(0, |(_, kind)| kernels::activation(kind)))
            .bool(linear::OWN_INPUT, c.cols(e.x) != n_in)
            .bind(STEP_AT, c.step_place(0))
            .bind(3, buffer_0)
            .bind(4, buffer_1)
            .bind(5, places_0)
            .bind(6, places_1)
            .read(1, self.value(e.x))
            .write(16, self.value(e.out));
        call.constants.extend(type_constants(block, n_in));
        let bytes = |id: WeightId| {
            c.plan.weight(id).parts.iter().take(k).map(device::WeightPart::n_bytes).sum::<u64>()
        };
        call.weight_bytes = bytes(e.weight) + e.up.map_or(0, |(up, _)| bytes(up));
        let tail = match (e.up, e.sum) {
            (Some((_, kind)), _) => format!(" x2 + gate {kind}"),
            (_, Some((_, Some(_)))) => " + sum + add".to_owned(),
            (_, Some(_)) => " + sum".to_owned(),
            _ => String::new(),
        };
        let schedule = if tiles { "tiles" } else { "pairs" };
        call.name = Some(format!("expert_linear_{name}{tail} ({schedule})"));
        self.push(call)
    }
}
