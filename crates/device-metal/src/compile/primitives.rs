//! The kernels of single Ops: norms, element-wise Ops, and what has a file of its own.

use super::call::{Call, ONE, each, per_token};
use super::draft::Draft;
use crate::arguments::{
    ClampArguments, ColumnsArguments, ElementArguments, ExpertSumArguments, JoinHeadsArguments,
    NormArguments, RopeArguments, TurnArguments, UnfoldArguments,
};
use crate::gpu::MetalGpu;
use crate::kernels::{self, constant};
use device::{Error, Op, Result, ValueId};
use device_lower::lower::Norm;
use device_lower::table::Extent;

impl<G: MetalGpu> Draft<'_, G> {
    pub(super) fn element(&self, file: &'static str, x: ValueId, factor: f32) -> Call {
        self.bounded(file, x, [factor, 0.0])
    }

    fn bounded(&self, file: &'static str, x: ValueId, [factor, most]: [f32; 2]) -> Call {
        let (rows, cols) = (self.compiler.rows(x), self.compiler.cols(x));
        let args = ElementArguments { per_token: per_token(rows), cols: cols as u32, factor, most };
        self.step_call(file, &args).elements(rows, cols)
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
                let turn = TurnArguments {
                    n_heads: n_heads as u32,
                    n_dims: *n_dims as u32,
                    scale: *scale,
                    eps: 0.0,
                };
                let args = RopeArguments { head_dim: *head_dim as u32, turn, ..Default::default() };
                let call = self
                    .step_call("rope.metal", &args)
                    .uint(constant::ROPE, kernels::rope(Some(*style)))
                    .read(2, self.value(*x))
                    .write(3, self.value(*out))
                    .bind(4, c.step_place(c.step.positions))
                    .bind(5, c.weight(*frequencies)?);
                self.push(call.elements(c.rows(*x), n_heads * head_dim.div_ceil(2)))
            }
            Op::Activate { x, kind, out } => {
                let call = self
                    .element("activate.metal", *x, 1.0)
                    .uint(constant::ACTIVATION, kernels::activation(*kind))
                    .read(2, self.value(*x))
                    .write(3, self.value(*out));
                self.push(call)
            }
            Op::Gate { gate, up, kind, out } => {
                let call = self
                    .element("gate.metal", *gate, 1.0)
                    .uint(constant::ACTIVATION, kernels::activation(*kind))
                    .read(2, self.value(*gate))
                    .read(3, self.value(*up))
                    .write(4, self.value(*out));
                self.push(call)
            }
            Op::Add { a, b, out } => {
                let call = self.element("add.metal", *a, 1.0);
                self.push(call.read(2, self.value(*a)).read(3, self.value(*b)).write(4, self.value(*out)))
            }
            Op::Scale { x, factor, out } => {
                let call = self.element("scale.metal", *x, *factor);
                self.push(call.read(2, self.value(*x)).write(3, self.value(*out)))
            }
            Op::Softcap { x, cap, out } => {
                let call = self.element("softcap.metal", *x, *cap);
                self.push(call.read(2, self.value(*x)).write(3, self.value(*out)))
            }
            Op::Clamp { x, min, max, out } => {
                let call = self.bounded("clamped.metal", *x, [*min, *max]);
                self.push(call.read(2, self.value(*x)).write(3, self.value(*out)))
            }
            Op::Columns { x, first, group, out } => {
                let (rows, cols) = (c.rows(*x), c.cols(*out));
                let args = ColumnsArguments {
                    per_token: per_token(rows),
                    cols: cols as u32,
                    from: *group as u32,
                    first: *first as u32,
                    to: (cols / (c.cols(*x) / group)) as u32,
                    ..Default::default()
                };
                let call = self.step_call("columns.metal", &args).elements(rows, cols);
                self.push(call.read(2, self.value(*x)).write(3, self.value(*out)))
            }
            Op::Route { .. } => self.route(op),
            Op::SelectRows { out, .. } if self.alias.contains_key(out) => Ok(()),
            Op::SelectRows { x, out } => {
                let call = self
                    .element("select_rows.metal", *out, 1.0)
                    .read(2, self.value(*x))
                    .write(3, self.value(*out))
                    .bind(4, c.step_place(c.step.outputs));
                self.push(call)
            }
            Op::Pool { x, kind, out } => {
                let call = self
                    .element("pool.metal", *out, 1.0)
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
                    .element("adapters.metal", *out, 1.0)
                    .write(2, self.value(*out))
                    .bind(3, c.step_place(c.step.outputs))
                    .bind(4, c.step_place(c.step.row_spans))
                    .bind(5, c.step_place(c.step.spans));
                self.push(call)
            }
            Op::Input { out } => {
                let call = self
                    .element("input.metal", *out, 1.0)
                    .bind(2, c.step_place(c.step.input))
                    .write(3, self.value(*out));
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
            Op::Attention { .. }
            | Op::SelfAttention { .. }
            | Op::CrossAttention { .. }
            | Op::CrossScores { .. } => self.attention(op),
            Op::ShortConv { x, weight, bias, state, out } => {
                self.short_conv(*x, *weight, *bias, *state, *out)
            }
            Op::GatedDelta { .. } | Op::SelectiveScan { .. } => self.recurrence(op),
            Op::ExpertLinear { x, ids, weight, out } => self.expert_linear(*x, *ids, *weight, *out),
            Op::ExpertBias { x, ids, bias, out } => {
                let (rows, k) = (c.rows(*x), c.cols(*ids));
                let args = ExpertSumArguments {
                    per_token: per_token(rows),
                    cols: (c.cols(*x) / k) as u32,
                    k: k as u32,
                    reserved: 0,
                };
                let call = self
                    .step_call("expert_bias.metal", &args)
                    .read(2, self.value(*x))
                    .read(3, self.value(*ids))
                    .bind(4, c.weight(*bias)?)
                    .write(5, self.value(*out))
                    .elements(rows, c.cols(*x));
                self.push(call)
            }
            Op::GateClamped { gate, up, alpha, limit, out } => {
                let (rows, cols) = (c.rows(*gate), c.cols(*gate));
                let args = ClampArguments {
                    per_token: per_token(rows),
                    cols: cols as u32,
                    alpha: *alpha,
                    limit: *limit,
                };
                let call = self
                    .step_call("gate_clamped.metal", &args)
                    .read(2, self.value(*gate))
                    .read(3, self.value(*up))
                    .write(4, self.value(*out))
                    .elements(rows, cols);
                self.push(call)
            }
            Op::Join { a, b, n_heads, out } => {
                let rows = c.rows(*a);
                let args = JoinHeadsArguments {
                    per_token: per_token(rows),
                    n_heads: *n_heads as u32,
                    a_dim: (c.cols(*a) / n_heads) as u32,
                    b_dim: (c.cols(*b) / n_heads) as u32,
                };
                let call = self
                    .step_call("join_heads.metal", &args)
                    .read(2, self.value(*a))
                    .read(3, self.value(*b))
                    .write(4, self.value(*out))
                    .elements(rows, c.cols(*out));
                self.push(call)
            }
            Op::Ordinals { out } => {
                let call = self.element("ordinals.metal", *out, 1.0).write(2, self.value(*out));
                self.push(call)
            }
            Op::ExpertSum { x, weights, out } => self.expert_sum(*x, *weights, None, *out),
            Op::Linear { .. } | Op::Fused { .. } | Op::Collective { .. } => Err(self.not_lowered(op)),
        }
    }
}
