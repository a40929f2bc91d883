//! Projections. Up to eight rows use GEMV, with norm, bias, gate and residual in one dispatch. More
//! rows use tiles of matrices, after a dispatch for the norm. And Embed, which decodes rows of the
//! same weights. A row that attention made in parts: `merged`.
//!
//! The contracts are the headers `kernels/linear/gemv.h`, `kernels/linear/gemm.h` and
//! `kernels/embed.h`.

use super::call::{Call, ONE, each, per_token};
use super::draft::{Draft, Schedule};
use super::join::join_name;
use super::products::{
    BIASES_AT, CODES_AT, NORM_AT, OFFSETS_AT, OTHER_AT, OUTPUTS_AT, PARTIALS_AT, SCALES_AT, SHARED, STEP_AT,
    X_AT,
};
use crate::arguments::{EmbedArguments, JoinedArguments, LinearArguments};
use crate::geometry::{BEST_BYTES, GEMM_ROWS, GEMM_THREADS, GEMV_ROWS, SPAN_COLUMNS};
use crate::gpu::{Fewer, MetalGpu};
use crate::kernels::{self, Kernel, linear};
use crate::layout::BESTS;
use device::{Activation, Op, Result, RowCount, ValueId, Weight, WeightId};
use device_lower::fields::{MatrixOf, Norm, Projection, Tail};
use device_lower::table::{Extent, Location, When};
use device_lower::units::{GivenUp, Join, LoweredUnit, RowGate, Unit};
use weights::BlockType;

/// Matrices that one dispatch multiplies by.
struct Product<'a> {
    x: ValueId,
    norm: Option<Norm>,
    matrices: &'a [MatrixOf],
    /// The types in the kernel's name, where the last matrix has another type.
    mixed: Option<String>,
    /// Gate: the activation and the output.
    gate: Option<(Activation, ValueId)>,
    /// The rows that the product gates.
    given_up: Option<GivenUp>,
    /// The residual and the output of the sum.
    add: Option<(ValueId, ValueId)>,
    /// The gate that scales a row's products. With `add`.
    row_gate: Option<ValueId>,
    /// The bound of softcap, and the value that is bounded.
    softcap: Option<(f32, ValueId)>,
    /// True if each threadgroup also writes its largest product.
    bests: bool,
    /// True if a half holds all values of x. For tiles.
    bounded: bool,
    /// The join that computes the row x.
    join: Option<Join>,
    /// Steps in which the product runs.
    when: When,
}

impl<'a> Product<'a> {
    /// A projection without a norm before it or an operation after it.
    fn new(x: ValueId, matrices: &'a [MatrixOf]) -> Product<'a> {
        Product {
            x,
            norm: None,
            matrices,
            mixed: None,
            gate: None,
            given_up: None,
            add: None,
            row_gate: None,
            softcap: None,
            bests: false,
            bounded: false,
            join: None,
            when: When::Always,
        }
    }

    /// The values that it writes.
    fn outs(&self) -> Vec<ValueId> {
        match (self.gate, self.add, self.given_up, self.softcap) {
            (Some((_, out)), ..)
            | (_, Some((_, out)), ..)
            | (_, _, Some(GivenUp { out, .. }), _)
            | (.., Some((_, out))) => vec![out],
            (None, None, None, None) => self.matrices.iter().map(|m| m.out).collect(),
        }
    }
}

impl<G: MetalGpu> Draft<'_, G> {
    /// Type of a matrix, and whether it has a bias: those that share them go together.
    fn kind(&self, m: &MatrixOf) -> (BlockType, bool) {
        (self.compiler.plan.weight(m.weight).block, m.bias.is_some())
    }

    /// The types in the name of the kernel of one row of three, the last of another type.
    fn mixed(&self, p: &Projection) -> Option<String> {
        let [q, k, v] = &p.matrices[..] else { return None };
        let fits = self.schedule(p.x) == Schedule::Gemv(1)
            && self.kind(q) == self.kind(k)
            && self.kind(k).1 == self.kind(v).1;
        kernels::mixed_linear(self.kind(k).0, self.kind(v).0).filter(|_| fits)
    }

    /// The matrices of each dispatch.
    pub(super) fn parts_of<'p>(&self, p: &'p Projection) -> Vec<&'p [MatrixOf]> {
        match self.mixed(p) {
            Some(_) => vec![&p.matrices],
            None => p.matrices.chunk_by(|a, b| self.kind(a) == self.kind(b)).collect(),
        }
    }

    /// One to three matrices with the norm before and the tail after them.
    pub(super) fn projection(&mut self, p: &Projection) -> Result<()> {
        let schedule = self.schedule(p.x);
        let join = self.join.take();
        let when = match self.merged_projection(p)? {
            // A merged projection runs in steps with a long sequence, this one in all others.
            Some(When::Long) => When::Short,
            Some(_) => return Ok(()),
            None => When::Always,
        };
        let mut x = p.x;
        let (mut norm, mut bounded) = (p.norm.map(|(norm, _)| norm), false);
        if let (Schedule::Gemm(_), Some((norm_of, out))) = (schedule, p.norm) {
            self.norm_once(p.x, norm_of, out)?;
            (x, norm, bounded) = (out, None, self.half_holds(norm_of, out));
        }
        let (parts, mixed) = (self.parts_of(p), self.mixed(p));
        let together = p.matrices.windows(2).all(|pair| self.kind(&pair[0]) == self.kind(&pair[1]));
        let (mut gate, mut add) = (None, None);
        match p.tail {
            Tail::Add { residual, out } => add = Some((residual, out)),
            Tail::Gate { kind, out } if together => gate = Some((kind, out)),
            Tail::Gate { .. } | Tail::Store => {}
        }
        // A product that runs only in some steps is not fused with the units that follow it.
        let (softcap, bests) = match when {
            When::Always => self.after_head(schedule, p),
            When::Short | When::Long => (None, false),
            // Products run for any choice of experts.
            When::Penalties
            | When::Masks
            | When::Best
            | When::BestOfPlain
            | When::BestOfChanged
            | When::Sample => (None, false),
        };
        for matrices in parts {
            let mixed = mixed.clone();
            let product = Product {
                norm,
                mixed,
                gate,
                add,
                softcap,
                bests,
                bounded,
                join,
                when,
                ..Product::new(x, matrices)
            };
            self.product(schedule, &product)?;
        }
        match p.tail {
            Tail::Gate { kind, out } if !together => {
                let (gate, up) = (p.matrices[0].out, p.matrices[1].out);
                self.primitive(&Op::Gate { gate, up, kind, out })
            }
            Tail::Gate { .. } | Tail::Store | Tail::Add { .. } => Ok(()),
        }
    }

    /// A matrix whose products are a gate of columns of another value.
    pub(super) fn gated(&mut self, p: &Projection, by: &GivenUp) -> Result<()> {
        let join = self.join.take();
        let product = Product { given_up: Some(*by), join, ..Product::new(p.x, &p.matrices) };
        self.product(self.schedule(p.x), &product)
    }

    /// A matrix whose products are scaled by a gate of their row.
    pub(super) fn row_gated(&mut self, p: &Projection, by: &RowGate) -> Result<()> {
        let (add, row_gate) = (Some((by.residual, by.out)), Some(by.gate));
        self.product(self.schedule(p.x), &Product { add, row_gate, ..Product::new(p.x, &p.matrices) })
    }

    /// Operations that the dispatch of a product can do: the softcap, whose unit is then skipped,
    /// and the search for the largest output (true if it does).
    fn after_head(&mut self, schedule: Schedule, p: &Projection) -> (Option<(f32, ValueId)>, bool) {
        let ([matrix], Tail::Store) = (&p.matrices[..], p.tail) else { return (None, false) };
        let (mut out, mut softcap, mut rest) = (matrix.out, None, self.rest);
        if let [LoweredUnit { unit: Unit::Primitive(Op::Softcap { x, cap, out: capped }), .. }, after @ ..] = rest
            && *x == out
            && self.compiler.is_read_once(out)
            // The product may write the capped value directly: both values are at the same place.
            && self.value(*capped).location == self.value(out).location
        {
            (out, softcap, rest, self.n_done) = (*capped, Some((*cap, *capped)), after, 1);
        }
        let is_next = matches!(rest, [LoweredUnit { unit: Unit::Primitive(Op::Argmax { x, .. }), .. }, ..] if *x == out);
        (softcap, is_next && schedule == Schedule::Gemv(1))
    }

    /// Arguments of a product. `front` is its first matrix, `n_out` has the rows of each.
    fn linear_arguments(&self, product: &Product, front: &Weight, n_out: [usize; 3]) -> LinearArguments {
        let c = self.compiler;
        let n_in = front.n_cols();
        LinearArguments {
            n_in: n_in as u32,
            per_token: per_token(c.rows(product.x)),
            x_stride: n_in as u32,
            row_bytes: front.row_bytes() as u32,
            scale_bytes: front.block.row_scale_bytes(n_in) as u32,
            n_out_0: n_out[0] as u32,
            n_out_1: n_out[1] as u32,
            n_out_2: n_out[2] as u32,
            eps: product.norm.map_or(0.0, |norm| norm.eps),
            softcap: product.softcap.map_or(0.0, |(cap, _)| cap),
            up_stride: product.given_up.map_or(0, |by| c.cols(by.up) as u32),
            ..Default::default()
        }
    }

    /// Rows of weights that a SIMD-group of a GEMV computes at once.
    fn weight_rows(&self, schedule: Schedule, product: &Product) -> usize {
        let c = self.compiler;
        let n_rows = product.matrices.iter().map(|m| c.plan.weight(m.weight).n_rows()).sum();
        match schedule {
            Schedule::Gemv(1) if product.join.is_none() => c.profile.weight_rows(n_rows),
            Schedule::Gemv(_) | Schedule::Gemm(_) => GEMV_ROWS,
        }
    }

    fn product(&mut self, schedule: Schedule, product: &Product) -> Result<()> {
        let c = self.compiler;
        let schedule = match schedule {
            Schedule::Gemv(n) => Schedule::Gemv(n.min(c.profile.product_rows)),
            tiles @ Schedule::Gemm(_) => tiles,
        };
        let weight = |index: usize| product.matrices.get(index).map(|m| c.plan.weight(m.weight));
        let Some(front) = weight(0) else { return Ok(()) };
        let (block, n_in, rows) = (front.block, front.n_cols(), c.rows(product.x));
        let n_out = |index: usize| weight(index).map_or(0, Weight::n_rows);
        let args = self.linear_arguments(product, front, [0, 1, 2].map(n_out));
        // Units of rows of weights that a SIMD-group, or a tile, makes.
        let n_units = |rows: usize| match product.gate {
            Some(_) => n_out(0).div_ceil(rows / 2),
            None => (0..product.matrices.len()).map(|index| n_out(index).div_ceil(rows)).sum(),
        };
        let name = kernels::type_name(block);
        let kernel = |what: String| -> Result<Kernel> {
            if let Some(pair) = &product.mixed {
                return Ok(Kernel { file: "linear/mixed.metal", function: format!("linear_{pair}_{what}") });
            }
            Ok(Kernel { file: self.linear_file(block)?, function: format!("linear_{name}_{what}") })
        };
        let tiles = |divisor: u32| Extent::PerRow { rows, multiple: 1, divisor };
        let weight_rows = self.weight_rows(schedule, product);
        let n_blocks = n_units(weight_rows);
        let (simdgroups, split) = c.profile.gemv_shape(n_blocks, n_in.div_ceil(SPAN_COLUMNS));
        let passes = if product.join.is_some() { c.profile.passes(n_blocks * split as usize) } else { 1 };
        let mut call = match schedule {
            Schedule::Gemv(n) => {
                let call = match &product.join {
                    Some(join) => {
                        let args = JoinedArguments {
                            linear: args,
                            join: self.join_arguments(join, product.norm),
                            passes: passes as u32,
                            ..Default::default()
                        };
                        let call = Call::new(kernel("joined".to_owned())?, &args).bool(linear::NORM, false);
                        self.bind_join(call, join, product.norm)?
                    }
                    None => Call::new(kernel(gemv_name(n, weight_rows))?, &args)
                        .bool(linear::NORM, product.norm.is_some())
                        .bind(NORM_AT, c.weight_or_any(product.norm.and_then(|norm| norm.weight))?),
                };
                call.uint(linear::SPLIT, split).bool(linear::ARGMAX, product.bests)
            }
            Schedule::Gemm(n) => Call::new(kernel(format!("gemm_{n}"))?, &args)
                .bool(linear::TENSOR, c.profile.tensor)
                .bool(linear::BOUNDED, product.bounded)
                .grid([tiles(n), Extent::Fixed(n_units(GEMM_ROWS) as u32), ONE], GEMM_THREADS),
        };
        call = with_epilogue(call, product);
        let up = product.given_up.map(|by| self.columns_from(by.up, by.first));
        call = match (&product.join, product.add) {
            (Some(_), _) => call.read_or_any(25, up, c.anything()),
            (None, add) => {
                let other = up.or(add.map(|(residual, _)| self.value(residual)));
                let call = call.bind(STEP_AT, c.step_place(0)).read(X_AT, self.value(product.x));
                let row_gate = product.row_gate.map(|gate| self.value(gate));
                call.read_or_any(OTHER_AT, other, c.anything()).read_or_any(21, row_gate, c.anything())
            }
        };
        let weights: Vec<&Weight> = product.matrices.iter().map(|m| c.plan.weight(m.weight)).collect();
        call.constants.extend(self.type_constants(&weights)?);
        for (index, matrix) in (0..).zip(product.matrices) {
            call = self.bind_planes(call, index, c.plan.weight(matrix.weight))?;
            if let Some(bias) = matrix.bias {
                call = call.bind(BIASES_AT + index, c.weight(bias)?);
            }
        }
        for (index, out) in (0..).zip(product.outs()) {
            call = call.write(OUTPUTS_AT + index, self.value(out));
        }
        if let Schedule::Gemv(n) = schedule {
            let simdgroups = match &product.join {
                Some(_) => self.most_simdgroups(split, product.bests),
                None => simdgroups,
            };
            let groups = n_blocks.div_ceil((simdgroups / split) as usize * passes);
            if product.bests {
                let place = c.scratch_place(BESTS);
                self.bests = Some((place, groups));
                call = call.write(PARTIALS_AT, (place, groups * BEST_BYTES));
            }
            let grid = [Extent::Fixed(groups as u32), tiles(n), ONE];
            call = call.grid(grid, 32 * simdgroups).fewer(fewer_threads(split, product.bests));
        }
        call.weight_bytes = product.matrices.iter().map(|m| c.plan.weight_bytes(m.weight)).sum();
        call.name = Some(product_name(product, &name, schedule));
        call.when = product.when;
        self.push(call.fill(SHARED, c.anything()))
    }

    /// SIMD-groups of a threadgroup that first makes its row. `bests`: it leaves its best.
    pub(super) fn most_simdgroups(&self, split: u32, bests: bool) -> u32 {
        let c = self.compiler;
        let most = if bests { BEST_SIMDGROUPS } else { c.gpu.facts().max_threads / 32 };
        (c.profile.merged_simdgroups.min(most) / split * split).max(split)
    }

    /// The file with the kernels of a type.
    pub(super) fn linear_file(&self, block: BlockType) -> Result<&'static str> {
        kernels::linear_file(block).ok_or_else(|| {
            let what = format!("a weight of type {block}");
            self.compiler.unsupported(what, "use --device cpu, or convert the model to another type")
        })
    }

    /// Bind the codes, scales and offsets of weight `index` of a product.
    pub(super) fn bind_planes(&self, call: Call, index: u8, weight: &Weight) -> Result<Call> {
        let [codes, scales, offsets] = self.planes(weight)?;
        let call = call.bind(CODES_AT + index, codes);
        Ok(call.bind(SCALES_AT + index, scales).bind(OFFSETS_AT + index, offsets))
    }

    /// Codes, scales and offsets of a weight that is not a stack.
    fn planes(&self, weight: &Weight) -> Result<[Location; 3]> {
        let c = self.compiler;
        let plane = |bytes: &Option<weights::Bytes>| match bytes {
            Some(bytes) => c.bytes_of(bytes),
            None => Ok(c.anything()),
        };
        Ok([c.bytes_of(&weight.data)?, plane(&weight.planes.scales)?, plane(&weight.planes.biases)?])
    }

    /// Rows of a table, chosen by the tokens or the positions of the step.
    pub(super) fn embed(
        &mut self,
        table: WeightId,
        scale: f32,
        chosen_by: usize,
        out: ValueId,
    ) -> Result<()> {
        let c = self.compiler;
        let weight = c.plan.weight(table);
        let (block, n_cols) = (weight.block, weight.n_cols());
        let turns = self.new_turns();
        let args = EmbedArguments {
            n_cols: n_cols as u32,
            row_bytes: weight.row_bytes() as u32,
            scale_bytes: block.row_scale_bytes(n_cols) as u32,
            scale,
            n_turns: turns.as_ref().map_or(0, |turns| turns.n_pairs as u32),
            ..Default::default()
        };
        let name = kernels::type_name(block);
        let kernel = Kernel { file: self.linear_file(block)?, function: format!("embed_{name}") };
        let call = Call::new(kernel, &args)
            .bind(1, c.step_place(chosen_by))
            .bind(CHOSEN_AT, c.chosen_tokens())
            .bind(4, c.step_place(c.step.positions))
            .bind(5, turns.as_ref().map_or(c.anything(), |turns| turns.pairs))
            .bind(STEP_AT, c.step_place(0))
            .write(16, self.value(out))
            .write_or_any(17, turns.map(|turns| turns.tables), c.anything());
        let mut call = self.bind_planes(call, 0, weight)?;
        call.constants = self.type_constants(&[weight])?;
        call.weight_bytes = weight.n_bytes_of_row() as u64;
        let groups = n_cols.div_ceil(16 * EMBED_THREADS as usize) as u32;
        self.push(call.grid([Extent::Fixed(groups), each(RowCount::Tokens), ONE], EMBED_THREADS))
    }
}

/// Index of the chosen tokens that an embedding looks up.
const CHOSEN_AT: u8 = 2;

/// SIMD-groups, at most, of a threadgroup that first makes its row and leaves its best. It cannot
/// have fewer, so that any GPU must run this number.
const BEST_SIMDGROUPS: u32 = 8;

/// The way in which a GEMV runs with fewer threads. The best of each threadgroup has a place, so
/// that their number is fixed.
fn fewer_threads(split: u32, bests: bool) -> Fewer {
    if bests { Fewer::Never } else { Fewer::MoreGroups(32 * split) }
}

/// Threads of a threadgroup of an embedding.
const EMBED_THREADS: u32 = 64;

/// The end of the name of a GEMV's function.
fn gemv_name(n: u32, weight_rows: usize) -> String {
    if weight_rows == GEMV_ROWS { format!("gemv_{n}") } else { format!("gemv_{n}x{weight_rows}") }
}

/// The call with the flags of the product's epilogue.
fn with_epilogue(call: Call, product: &Product) -> Call {
    let kind = product.gate.map(|(kind, _)| kind).or(product.given_up.map(|by| by.kind));
    call.bool(linear::BIAS, product.matrices.iter().any(|m| m.bias.is_some()))
        .bool(linear::RESIDUAL, product.add.is_some())
        .bool(linear::GATE, product.gate.is_some())
        .bool(linear::UP, product.given_up.is_some())
        .bool(linear::ROW_GATE, product.row_gate.is_some())
        .uint(linear::ACTIVATION, kind.map_or(0, kernels::activation))
        .uint(linear::WEIGHTS, product.matrices.len() as u32)
        .bool(linear::SOFTCAP, product.softcap.is_some())
}

fn product_name(product: &Product, name: &str, schedule: Schedule) -> String {
    let norm = match (&product.join, product.norm) {
        (Some(join), norm) => join_name(join, usize::from(norm.is_some())) + " + ",
        (None, Some(_)) => "rms_norm + ".to_owned(),
        (None, None) => String::new(),
    };
    let many = match product.matrices.len() {
        1 => String::new(),
        n => format!(" x{n}"),
    };
    let tail = match (product.gate, product.add, product.given_up) {
        (Some((kind, _)), ..) | (.., Some(GivenUp { kind, .. })) => format!(" + gate {kind}"),
        (_, Some(_), _) if product.row_gate.is_some() => " + row gate + add".to_owned(),
        (_, Some(_), _) => " + add".to_owned(),
        (None, None, None) => String::new(),
    };
    let softcap = if product.softcap.is_some() { " + softcap" } else { "" };
    let argmax = if product.bests { " + argmax" } else { "" };
    let schedule = match schedule {
        Schedule::Gemv(1) => "1 row".to_owned(),
        Schedule::Gemv(n) => format!("{n} rows"),
        Schedule::Gemm(n) => format!("tiles of {n} rows"),
    };
    format!("{norm}linear_{name}{many}{tail}{softcap}{argmax} ({schedule})")
}
