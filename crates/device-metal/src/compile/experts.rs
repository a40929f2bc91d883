//! Mixtures of experts. Few rows: each pair of a row and an expert by itself. Many: pairs sorted by
//! expert, in tiles.
//!
//! The contracts are the headers `kernels/expert_linear.h` and `kernels/expert_groups.metal`.

use super::call::{Call, ONE, each, per_token};
use super::draft::Draft;
use super::products::{NORM_AT, OTHER_AT, OUTPUTS_AT, SHARED, STEP_AT, X_AT};
use crate::arguments::{ExpertArguments, ExpertSumArguments, LinearArguments, RouteArguments};
use crate::geometry::{GEMM_ROWS, GEMM_THREADS, GEMV_ROWS, TILE_PAIRS};
use crate::gpu::{Fewer, MetalGpu};
use crate::kernels::{self, Kernel, constant, linear};
use crate::layout::{ORDER, TILES};
use device::{Activation, Error, Op, Result, RouterGroups, RouterScores, ValueId, Weight, WeightId};
use device_gpu::replayer::TABLES;
use device_lower::fields::{Norm, Projection};
use device_lower::table::{Extent, Location, RowClass};
use device_lower::units::{Beside, Join, Unit, parts_of};

/// Maximum number of experts that `expert_groups.metal` orders.
const MAX_ORDERED: usize = 1024;

/// Maximum number of experts of a row that `route.h` chooses, and most groups of experts: one for
/// each lane.
const MAX_ROUTED: usize = 32;

/// Threads of a threadgroup of `expert_groups.metal`, which has an expert for each SIMD-group.
const GROUP_THREADS: u32 = 256;

/// A product with the matrices of chosen experts.
struct Experts {
    x: ValueId,
    /// Norm of each row of x, with few rows.
    norm: Option<Norm>,
    /// True if a half holds all values of x.
    bounded: bool,
    ids: ValueId,
    weight: WeightId,
    /// Up projection; `weight` is then its gate.
    up: Option<(WeightId, Activation)>,
    /// Weights of the experts' products, and the residual to which their sum is added.
    sum: Option<(ValueId, Option<ValueId>)>,
    /// The product runs in the same dispatch, for one row.
    beside: Option<Dense>,
    out: ValueId,
}

/// A dense product, or a gate and an up projection.
struct Dense {
    x: ValueId,
    weights: Vec<WeightId>,
    out: ValueId,
}

impl Experts {
    /// A product by itself.
    fn new(x: ValueId, ids: ValueId, weight: WeightId, out: ValueId) -> Experts {
        Experts { x, norm: None, bounded: false, ids, weight, up: None, sum: None, beside: None, out }
    }
}

impl<G: MetalGpu> Draft<'_, G> {
    /// ExpertLinear by itself.
    pub(super) fn expert_linear(
        &mut self,
        x: ValueId,
        ids: ValueId,
        weight: WeightId,
        out: ValueId,
    ) -> Result<()> {
        self.expert_product(&Experts::new(x, ids, weight, out))
    }

    /// Lowers a fused unit of experts.
    pub(super) fn expert_unit(&mut self, unit: &Unit) -> Result<()> {
        match *unit {
            Unit::ExpertGateUp { mut x, norm, ids, gate, up, kind, ref beside, out } => {
                let (mut norm_of, mut bounded) = (norm.map(|(norm, _)| norm), false);
                if let (true, Some((norm, out))) = (self.is_by_tiles(ids, gate), norm) {
                    self.norm_once(x, norm, out)?;
                    (x, norm_of, bounded) = (out, None, self.half_holds(norm, out));
                }
                let up = Some((up, kind));
                let product = Experts { norm: norm_of, bounded, up, ..Experts::new(x, ids, gate, out) };
                match beside {
                    Some(dense) if self.is_one_row(x) => {
                        let weights = dense.matrices.iter().map(|m| m.weight).collect();
                        let beside = dense.writes().first().map(|out| Dense { x, weights, out: *out });
                        self.expert_product(&Experts { beside, ..product })
                    }
                    beside => {
                        self.expert_product(&product)?;
                        beside.as_ref().map_or(Ok(()), |dense| self.projection(dense))
                    }
                }
            }
            Unit::ExpertDownSum { x, ids, weight, weights, parts, residual, beside, out } => {
                let product = Experts::new(x, ids, weight, out);
                if self.is_one_row(x) {
                    let sum = Some((weights, residual));
                    let beside = beside.map(|b| Dense { x: b.x, weights: vec![b.weight], out: b.out });
                    return self.expert_product(&Experts { sum, beside, ..product });
                }
                if let Some(Beside { x, weight, out }) = beside {
                    self.projection(&Projection::single(x, weight, None, out))?;
                }
                self.expert_product(&Experts { out: parts, ..product })?;
                self.expert_parts = parts_of(unit, self.rest).filter(|_| self.compiler.is_read_once(out));
                if self.expert_parts.is_some() {
                    return Ok(());
                }
                let norms = self.norms_with(out);
                if let (Some(residual), false) = (residual, norms.is_empty()) {
                    self.expert_parts = Some((parts, weights));
                    let join = Join { x: parts, pair: None, norm: None, residual, factor: 1.0, out };
                    return self.join_dispatch(&join, &norms);
                }
                self.expert_sum(parts, weights, residual, out)
            }
            Unit::Primitive(_)
            | Unit::Projection(_)
            | Unit::Gated { .. }
            | Unit::RowGated { .. }
            | Unit::Join(_)
            | Unit::QkRopeKv(_)
            | Unit::QRope(_) => Ok(()),
        }
    }

    /// Returns true if dispatches may use the fusions of a single row.
    fn is_one_row(&self, x: ValueId) -> bool {
        self.class(x) == RowClass::One && !self.compiler.is_deterministic()
    }

    pub(super) fn expert_sum(
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
            .write(4, self.value(out))
            .read_or_any(5, residual.map(|residual| self.value(residual)), c.anything());
        self.push(call.elements(rows, cols))
    }

    /// The place and the bytes of a part of scratch.
    fn scratch(&self, part: usize) -> (Location, usize) {
        (self.compiler.scratch_place(part), self.compiler.scratch.0[part])
    }

    /// Choose experts.
    pub(super) fn route(&mut self, op: &Op) -> Result<()> {
        let Op::Route { x, normalise, factor, scores, bias, groups, scales, ids, weights } = op else {
            return Ok(());
        };
        let c = self.compiler;
        let k = c.cols(*ids);
        if k > MAX_ROUTED {
            let what = format!("a router that chooses {k} experts");
            return Err(c.unsupported(what, "this device chooses at most 32; use --device cpu"));
        }
        let of_groups = groups.unwrap_or(RouterGroups { n: 1, n_used: 1, n_best: 1 });
        if of_groups.n > MAX_ROUTED {
            let what = format!("a router with {} groups of experts", of_groups.n);
            return Err(c.unsupported(what, "this device has at most 32; use --device cpu"));
        }
        let args = RouteArguments {
            per_token: per_token(c.rows(*x)),
            n_experts: c.cols(*x) as u32,
            k: k as u32,
            factor: *factor,
            n_groups: of_groups.n as u32,
            n_used: of_groups.n_used as u32,
            n_best: of_groups.n_best as u32,
            reserved: 0,
        };
        let call = self
            .step_call("route.metal", &args)
            .bool(constant::NORMALISE, *normalise)
            .bool(constant::HAS_WEIGHT, scales.is_some())
            .bool(constant::SIGMOID, *scores == RouterScores::Sigmoid)
            .bool(constant::HAS_BIAS, bias.is_some())
            .bool(constant::GROUPS, groups.is_some())
            .read(2, self.value(*x))
            .write(3, self.value(*ids))
            .write(4, self.value(*weights))
            .bind(5, c.weight_or_any(*scales)?)
            .bind(6, c.weight_or_any(*bias)?)
            .grid([each(c.rows(*x)), ONE, ONE], 32);
        self.push(call)
    }

    /// Bring the pairs of a step into the order of their experts, unless they are.
    fn order(&mut self, ids: ValueId, n_experts: usize) -> Result<()> {
        if self.ordered == Some(ids) {
            return Ok(());
        }
        let c = self.compiler;
        let (per_token, k) = (per_token(c.rows(ids)), c.cols(ids) as u32);
        let n_experts = n_experts as u32;
        let args = RouteArguments { per_token, n_experts, k, ..Default::default() };
        let groups = Extent::Fixed(n_experts.div_ceil(GROUP_THREADS / 32));
        let call = self
            .step_call("expert_groups.metal", &args)
            .read(3, self.value(ids))
            .write(23, self.scratch(ORDER))
            .write(24, self.scratch(TILES))
            .flexible([groups, ONE, ONE], GROUP_THREADS);
        self.push(call)?;
        self.ordered = Some(ids);
        Ok(())
    }

    /// The table of the places of a stack's matrices.
    fn stack(&self, id: WeightId) -> Result<(Location, Location)> {
        let c = self.compiler;
        let missing =
            || Error::Failed { device: G::NAME, reason: "a stack of experts has no place".to_owned() };
        let table = c.tables.stack(TABLES, c.index, id).ok_or_else(missing)?;
        let part = c.plan.weight(id).parts.first().ok_or_else(missing)?;
        let buffer = Location { buffer: c.bytes_of(&part.data)?.buffer, offset: 0 };
        Ok((buffer, table))
    }

    /// Returns true if pairs of rows and experts are multiplied by tiles.
    fn is_by_tiles(&self, ids: ValueId, weight: WeightId) -> bool {
        let c = self.compiler;
        self.class(ids) >= RowClass::Tile
            && !c.is_deterministic()
            && c.plan.weight(weight).parts.len() <= MAX_ORDERED
    }

    /// A dispatch with a unit of an expert's rows for each pair of a row and an expert, and a dense
    /// product beside them. `units`: their number, and the rows of each.
    fn pairs(
        &self,
        e: &Experts,
        kernel: Kernel,
        args: LinearArguments,
        (n_units, rows_of_unit): (usize, usize),
    ) -> Result<Call> {
        let c = self.compiler;
        let (block, k, rows) = (c.plan.weight(e.weight).block, c.cols(e.ids), c.rows(e.x));
        let (simdgroups, _) = c.profile.gemv_shape(usize::MAX >> 32, 1);
        let dense = |index: usize| {
            let weight = e.beside.as_ref().and_then(|dense| dense.weights.get(index));
            weight.map(|id| c.plan.weight(*id))
        };
        let n_groups = n_units.div_ceil(simdgroups as usize);
        let beside_n_out = dense(0).map_or(0, Weight::n_rows);
        let n_beside = beside_n_out.div_ceil(rows_of_unit).div_ceil(n_groups * simdgroups as usize);
        let args = ExpertArguments {
            experts: args,
            beside_n_in: dense(0).map_or(0, |w| w.n_cols() as u32),
            beside_row_bytes: dense(0).map_or(0, |w| w.row_bytes() as u32),
            beside_scale_bytes: dense(0).map_or(0, |w| block.row_scale_bytes(w.n_cols()) as u32),
            beside_n_out: beside_n_out as u32,
        };
        let residual = e.sum.and_then(|(_, residual)| residual);
        let call = Call::new(kernel, &args)
            .bool(linear::NORM, e.norm.is_some())
            .bool(linear::EXPERTS_BESIDE, e.beside.is_some())
            .bool(linear::RESIDUAL, residual.is_some())
            .bool(linear::EXPERTS_SUM, e.sum.is_some())
            .bind(NORM_AT, c.weight_or_any(e.norm.and_then(|norm| norm.weight))?)
            .read(21, self.value(e.ids));
        let beside = e.beside.as_ref();
        let mut call = call
            .read_or_any(29, beside.map(|dense| self.value(dense.x)), c.anything())
            .write_or_any(OUTPUTS_AT + 1, beside.map(|dense| self.value(dense.out)), c.anything());
        for (index, weight) in (0..).zip([dense(0), dense(1)].into_iter().flatten()) {
            call = self.bind_planes(call, index, weight)?;
        }
        let call = call
            .read_or_any(22, e.sum.map(|(weights, _)| self.value(weights)), c.anything())
            .read_or_any(OTHER_AT, residual.map(|residual| self.value(residual)), c.anything());
        let n_places = if e.sum.is_some() { 1 } else { k };
        let places = Extent::PerRow { rows, multiple: (n_places + n_beside) as u32, divisor: 1 };
        let grid = [Extent::Fixed(n_groups as u32), places, ONE];
        Ok(call.grid(grid, 32 * simdgroups).fewer(Fewer::MoreGroups(32)))
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
            eps: e.norm.map_or(0.0, |norm| norm.eps),
            n_experts: n_experts as u32,
            experts_per_row: k as u32,
            ..Default::default()
        };
        let tiles = e.sum.is_none() && self.is_by_tiles(e.ids, e.weight);
        if tiles {
            self.order(e.ids, n_experts)?;
        }
        let name = kernels::type_name(block);
        let kernel = |what: &str| -> Result<Kernel> {
            Ok(Kernel { file: self.linear_file(block)?, function: format!("expert_linear_{name}_{what}") })
        };
        let halves = e.up.map_or(1, |_| 2);
        let rows_of_unit = match (tiles, e.norm) {
            (true, _) => GEMM_ROWS,
            // The norm doubles the loads that rows of weights share.
            (false, Some(_)) => c.profile.weight_rows(k * halves * n_out),
            (false, None) => GEMV_ROWS,
        };
        let gemv =
            if rows_of_unit == GEMV_ROWS { "gemv".to_owned() } else { format!("gemv_x{rows_of_unit}") };
        let n_units = n_out.div_ceil(rows_of_unit / halves);
        let mut call = match tiles {
            true => Call::new(kernel("gemm")?, &args)
                .bool(linear::TENSOR, c.profile.tensor)
                .bool(linear::BOUNDED, e.bounded)
                .read(23, self.scratch(ORDER))
                .read(24, self.scratch(TILES))
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
            false => self.pairs(e, kernel(&gemv)?, args, (n_units, rows_of_unit / halves))?,
        };
        let (buffer_0, places_0) = self.stack(e.weight)?;
        let (buffer_1, places_1) = match e.up {
            Some((up, _)) => self.stack(up)?,
            None => (c.anything(), c.anything()),
        };
        call = call
            .bool(linear::GATE, e.up.is_some())
            .uint(linear::ACTIVATION, e.up.map_or(0, |(_, kind)| kernels::activation(kind)))
            .bool(linear::EXPERTS_OWN_INPUT, c.cols(e.x) != n_in)
            .bind(STEP_AT, c.step_place(0))
            .bind(25, buffer_0)
            .bind(26, buffer_1)
            .bind(27, places_0)
            .bind(28, places_1)
            .read(X_AT, self.value(e.x))
            .write(OUTPUTS_AT, self.value(e.out))
            .fill(SHARED, c.anything());
        let others = e.up.iter().map(|(up, _)| up).chain(e.beside.iter().flat_map(|dense| &dense.weights));
        let weights = Vec::from_iter(std::iter::once(weight).chain(others.map(|id| c.plan.weight(*id))));
        call.constants.extend(self.type_constants(&weights)?);
        let bytes = |id: WeightId| {
            c.plan.weight(id).parts.iter().take(k).map(device::WeightPart::n_bytes).sum::<u64>()
        };
        let dense = e.beside.iter().flat_map(|dense| &dense.weights);
        let of_beside: u64 = dense.map(|id| c.plan.weight_bytes(*id)).sum();
        call.weight_bytes = bytes(e.weight) + e.up.map_or(0, |(up, _)| bytes(up)) + of_beside;
        call.name = Some(product_name(e, &name, tiles));
        self.push(call)
    }
}

/// The name of a product of experts in tables of timings.
fn product_name(e: &Experts, name: &str, tiles: bool) -> String {
    let tail = match (e.up, e.sum) {
        (Some((_, kind)), _) => format!(" x2 + gate {kind}"),
        (_, Some((_, Some(_)))) => " + sum + add".to_owned(),
        (None, Some((_, None))) => " + sum".to_owned(),
        (None, None) => String::new(),
    };
    let schedule = if tiles { "tiles" } else { "pairs" };
    let norm = if e.norm.is_some() { "rms_norm + " } else { "" };
    let beside = match (&e.beside, e.up) {
        (None, _) => String::new(),
        (Some(_), None) => format!(", linear_{name}"),
        (Some(_), Some((_, kind))) => format!(", linear_{name} x2 + gate {kind}"),
    };
    format!("{norm}expert_linear_{name}{tail} ({schedule}){beside}")
}
