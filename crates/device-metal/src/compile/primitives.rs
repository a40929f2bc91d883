//! The kernels of single Ops: norms, element-wise Ops, and Ops with a kernel file of their own.

use super::call::{Call, ONE, each, per_token};
use super::draft::Draft;
use super::recurrent::Scan;
use crate::arguments::{ElementArguments, NormArguments, RopeArguments, TurnArguments, UnfoldArguments};
use crate::gpu::MetalGpu;
use crate::kernels::{self, Kernel, constant};
use device::{Error, Op, Result, ValueId};
use device_gpu::signature::{Signature, Source, signature};
use device_lower::fields::Norm;
use device_lower::table::Extent;

impl<G: MetalGpu> Draft<'_, G> {
    /// A kernel with a thread for each column of each row of a value.
    fn columns_of(&self, file: &'static str, out: ValueId) -> Call {
        let (rows, cols) = (self.compiler.rows(out), self.compiler.cols(out));
        let args = ElementArguments { per_token: per_token(rows), cols: cols as u32, ..Default::default() };
        self.step_call(file, &args).elements(rows, cols)
    }

    /// A kernel whose signature is the same on every GPU. Parameters from 2 on are the operands, in
    /// the order of [`Signature`]'s fields.
    fn element(&mut self, of: &Signature) -> Result<()> {
        let c = self.compiler;
        let (rows, cols, n) = (c.rows(of.out), c.cols(of.out), of.numbers);
        let args = ElementArguments {
            per_token: per_token(rows),
            cols: cols as u32,
            first: n.first as u32,
            group: n.group as u32,
            taken: n.taken as u32,
            factor: n.factor,
            limit: n.limit,
            reserved: 0,
        };
        let Some(kernel) = Kernel::named(of.kernel) else {
            return Err(c.unsupported(format!("the kernel {}", of.kernel), "use --device cpu"));
        };
        let mut call = Call::new(kernel, &args).bind(1, c.step_place(0)).elements(rows, cols);
        if let Some(kind) = of.activation {
            call = call.uint(constant::ACTIVATION, kernels::activation(kind));
        }
        let mut index = 2;
        for source in [of.a, of.rows, of.b].into_iter().flatten() {
            call = match source {
                Source::Value(id) => call.read(index, self.value(id)),
                Source::Weight(id) => call.bind(index, c.weight(id)?),
                Source::Outputs => call.bind(index, c.step_place(c.step.outputs)),
                Source::Input => call.bind(index, c.step_place(c.step.input)),
            };
            index += 1;
        }
        self.push(call.write(index, self.value(of.out)))
    }

    pub(super) fn rms_norm(&mut self, x: ValueId, norm: Norm, group: usize, out: ValueId) -> Result<()> {
        let c = self.compiler;
        let (rows, cols) = (c.rows(x), c.cols(x));
        let args = NormArguments {
            per_token: per_token(rows),
            cols: cols as u32,
            group: group as u32,
            eps: norm.eps,
            weights: norm.weight.map_or(group, |weight| c.plan.weight(weight).n_cols()) as u32,
            ..Default::default()
        };
        let call = self
            .step_call("rms_norm.metal", &args)
            .bool(constant::HAS_WEIGHT, norm.weight.is_some())
            .read(2, self.value(x))
            .write(3, self.value(out))
            .bind(4, c.weight_or_any(norm.weight)?);
        let grid = [Extent::Fixed((cols / group.max(1)) as u32), each(rows), ONE];
        self.push(call.flexible(grid, c.profile.norm_threads(group)))
    }

    /// The norm of whole rows, unless it was made.
    pub(super) fn norm_once(&mut self, x: ValueId, norm: Norm, out: ValueId) -> Result<()> {
        if self.normed.contains(&out) {
            return Ok(());
        }
        self.normed.push(out);
        self.rms_norm(x, norm, self.compiler.cols(x), out)
    }

    /// Returns true if a half holds every output of a norm: no column is more than sqrt(columns)
    /// times its weight.
    pub(super) fn half_holds(&self, norm: Norm, out: ValueId) -> bool {
        let c = self.compiler;
        let most = norm.weight.map_or(1.0, |id| {
            let weight = c.plan.weight(id);
            let mut values = vec![0.0; weight.n_cols()];
            weight.decode_rows(0..1, &mut values);
            values.iter().fold(0.0f32, |most, value| most.max(value.abs()))
        });
        most * (c.cols(out) as f32).sqrt() < 65_000.0
    }

    /// The error of an Op that no unit should have left as it is.
    pub(super) fn not_lowered(&self, op: &Op) -> Error {
        Error::Failed { device: G::NAME, reason: format!("{} was not lowered", op.kind()) }
    }

    pub(super) fn primitive(&mut self, op: &Op) -> Result<()> {
        let c = self.compiler;
        match op {
            Op::Embed { table, scale, out } => self.embed(*table, *scale, c.step.tokens, *out),
            Op::EmbedPositions { table, out } => self.embed(*table, 1.0, c.step.positions, *out),
            Op::RmsNorm { x, weight, eps, group, out } => {
                self.rms_norm(*x, Norm { weight: *weight, eps: *eps }, *group, *out)
            }
            Op::LayerNorm { x, weight, bias, eps, out } => {
                let (rows, cols) = (c.rows(*x), c.cols(*x));
                let (cols32, per_token) = (cols as u32, per_token(rows));
                let args =
                    NormArguments { per_token, cols: cols32, group: cols32, eps: *eps, ..Default::default() };
                let call = self
                    .step_call("layer_norm.metal", &args)
                    .bool(constant::HAS_BIAS, bias.is_some())
                    .read(2, self.value(*x))
                    .write(3, self.value(*out))
                    .bind(4, c.weight(*weight)?)
                    .bind(5, c.weight_or_any(*bias)?);
                self.push(call.flexible([ONE, each(rows), ONE], c.profile.norm_threads(cols)))
            }
            Op::Rope { x, head_dim, n_dims, style, frequencies, scale, out } => {
                let n_heads = c.cols(*x) / head_dim;
                let turn =
                    TurnArguments { n_heads: n_heads as u32, n_dims: *n_dims as u32, ..Default::default() };
                let turns = self.turns_of(*frequencies, *scale)?;
                let args = RopeArguments { head_dim: *head_dim as u32, turn, ..Default::default() };
                let call = self
                    .step_call("rope.metal", &args)
                    .uint(constant::ROPE, kernels::rope(Some(*style)))
                    .read(2, self.value(*x))
                    .write(3, self.value(*out))
                    .read(4, turns);
                self.push(call.elements(c.rows(*x), n_heads * head_dim.div_ceil(2)))
            }
            Op::Route { .. } => self.route(op),
            Op::SelectRows { out, .. } if self.alias.contains_key(out) => Ok(()),
            Op::Pool { x, kind, out } => {
                let call = self
                    .columns_of("pool.metal", *out)
                    .uint(constant::POOLING, kernels::pooling(*kind))
                    .read(2, self.value(*x))
                    .write(3, self.value(*out))
                    .bind(4, c.step_place(c.step.outputs))
                    .bind(5, c.step_place(c.step.row_spans))
                    .bind(6, c.step_place(c.step.spans));
                self.push(call)
            }
            Op::Adapters { out, .. } => {
                let call = self
                    .columns_of("adapters.metal", *out)
                    .write(2, self.value(*out))
                    .bind(3, c.step_place(c.step.outputs))
                    .bind(4, c.step_place(c.step.row_spans))
                    .bind(5, c.step_place(c.step.spans));
                self.push(call)
            }
            Op::Unfold { x, size, stride, out } => {
                let rows = c.rows(*out);
                let args = UnfoldArguments {
                    per_token: per_token(rows),
                    cols: c.cols(*x) as u32,
                    size: *size as u32,
                    stride: *stride as u32,
                };
                let call = self
                    .step_call("unfold.metal", &args)
                    .read(2, self.value(*x))
                    .write(3, self.value(*out))
                    .bind(4, c.step_place(c.step.row_spans))
                    .bind(5, c.step_place(c.step.spans))
                    .elements(rows, c.cols(*out));
                self.push(call)
            }
            Op::Argmax { x, .. } => self.choose(*x),
            Op::KvWrite { k, v, layer } => self.kv_write(*k, *v, *layer),
            Op::Attention { .. } => self.attention(op),
            Op::SelfAttention { .. } => self.self_attention(op),
            Op::CrossAttention { .. } => self.cross_attention(op),
            Op::CrossScores { q, layer, n_heads, heads, scale, out } => {
                self.cross_scores(*q, *layer, *n_heads, heads, *scale, *out)
            }
            Op::ShortConv { x, weight, bias, state, out } => {
                self.short_conv(*x, *weight, *bias, *state, *out)
            }
            Op::GatedDelta { q, k, v, step, beta, rate, n_key_heads, n_heads, tiled, scale, state, out } => {
                let scan = Scan {
                    name: "gated_delta",
                    x: *v,
                    keys: *k,
                    queries: *q,
                    step: *step,
                    rate: *rate,
                    n_shared: *n_key_heads,
                    n_heads: *n_heads,
                    scale: *scale,
                    state: *state,
                    out: *out,
                    per_row: c.cols(*step) != *n_heads,
                };
                self.gated_delta(&scan, *beta, *tiled)
            }
            Op::SelectiveScan { x, b, c, step, rate, skip, n_groups, n_heads, state, out } => {
                let scan = Scan {
                    name: "selective_scan",
                    x: *x,
                    keys: *b,
                    queries: *c,
                    step: *step,
                    rate: *rate,
                    n_shared: *n_groups,
                    n_heads: *n_heads,
                    scale: 1.0,
                    state: *state,
                    out: *out,
                    per_row: false,
                };
                self.selective_scan(&scan, *skip)
            }
            Op::ExpertLinear { x, ids, weight, out } => self.expert_linear(*x, *ids, *weight, *out),
            Op::ExpertSum { x, weights, out } => self.expert_sum(*x, *weights, None, *out),
            Op::Activate { .. }
            | Op::Gate { .. }
            | Op::GateClamped { .. }
            | Op::Add { .. }
            | Op::Scale { .. }
            | Op::Softcap { .. }
            | Op::Clamp { .. }
            | Op::Columns { .. }
            | Op::Join { .. }
            | Op::ExpertBias { .. }
            | Op::SelectRows { .. }
            | Op::Input { .. }
            | Op::Ordinals { .. } => match signature(c.plan, op) {
                Some(of) => self.element(&of),
                None => Err(self.not_lowered(op)),
            },
            Op::Linear { .. } | Op::Fused { .. } | Op::Collective { .. } => Err(self.not_lowered(op)),
        }
    }
}
