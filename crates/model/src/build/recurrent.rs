//! Recurrent layers: a short convolution, the gated delta rule, or a selective scan.

use device::{Activation, Op, Place, RowCount, StateId, ValueId, Weight, WeightId};

use super::Builder;
use crate::descriptor::RecurrentKind;
use crate::error::Result;
use crate::names::TensorRole;
use crate::recurrent::RecurrentSpec;

/// Epsilon added to the sum of squares when queries and keys are normalised to length 1.
const UNIT_EPS: f32 = 1e-6;

impl Builder<'_, '_> {
    /// `out(recurrence(input))`. If the pass `ends` here, only output rows are projected.
    pub fn recurrence(&mut self, input: ValueId, recurrent: &RecurrentSpec, ends: bool) -> Result<ValueId> {
        let mixed = match recurrent.kind {
            RecurrentKind::ShortConv => self.short_convolution(input, recurrent)?,
            RecurrentKind::GatedDelta => self.gated_delta(input, recurrent)?,
            RecurrentKind::SelectiveScan => self.selective_scan(input, recurrent)?,
        };
        let mixed = if ends { self.output_rows(mixed, "recurrence of output rows") } else { mixed };
        self.linear(mixed, TensorRole::RecurrentOut, "recurrence out")
    }

    /// `q * convolution(k * v)`.
    fn short_convolution(&mut self, input: ValueId, recurrent: &RecurrentSpec) -> Result<ValueId> {
        let k = self.linear(input, TensorRole::RecurrentK, "gate before")?;
        let q = self.linear(input, TensorRole::RecurrentQ, "gate after")?;
        let v = self.linear(input, TensorRole::RecurrentV, "convolution input")?;
        let x = self.gated(k, v, Activation::Identity, "gated input");
        let y = self.convolution(x, TensorRole::ConvV, recurrent, 1.0, "convolution")?;
        Ok(self.gated(q, y, Activation::Identity, "gated convolution"))
    }

    /// `norm(delta rule) * silu(gate)`, over convolved q, k and v.
    fn gated_delta(&mut self, input: ValueId, recurrent: &RecurrentSpec) -> Result<ValueId> {
        let RecurrentSpec { n_heads, n_groups, rows, .. } = *recurrent;
        let [q, k, v, gate] = self.delta_projections(input, recurrent)?;
        let [beta, step] = self.delta_gates(input, recurrent)?;
        let q = self.convolved(q, TensorRole::ConvQ, recurrent, 1.0, "q")?;
        let k = self.convolved(k, TensorRole::ConvK, recurrent, 1.0, "k")?;
        let v = self.convolved(v, TensorRole::ConvV, recurrent, 1.0, "v")?;
        let (q, k) = (self.unit(q, rows, "q of length 1"), self.unit(k, rows, "k of length 1"));
        let beta = self.activated(beta, Activation::Sigmoid, "beta");
        let step = self.activated(step, Activation::Softplus, "step");
        let rate = self.rate()?;
        let state = self.state(n_heads * rows * recurrent.head_dim);
        let (scale, tiled, n_key_heads) = ((rows as f32).sqrt().recip(), recurrent.tiled, n_groups);
        let out = self.like(v, "delta rule");
        self.push(Op::GatedDelta {
            q,
            k,
            v,
            step,
            beta,
            rate,
            n_key_heads,
            n_heads,
            tiled,
            scale,
            state,
            out,
        });
        self.gate_and_norm(out, gate, recurrent)
    }

    /// `gated norm(scan)`, over convolved v, k and q.
    fn selective_scan(&mut self, input: ValueId, recurrent: &RecurrentSpec) -> Result<ValueId> {
        let RecurrentSpec { n_heads, n_groups, rows, .. } = *recurrent;
        let factor = self.spec.multipliers.scan_in;
        let parts = self.spec.multipliers.scan_parts.map(|part| part * factor);
        let gate = self.linear(input, TensorRole::RecurrentGate, "gate")?;
        let v = self.linear(input, TensorRole::RecurrentV, "scan input")?;
        let k = self.linear(input, TensorRole::RecurrentK, "scan k")?;
        let q = self.linear(input, TensorRole::RecurrentQ, "scan q")?;
        let step = self.step(input, parts[4])?;
        let gate = self.scaled(gate, parts[0], "gate scaled");
        let v = self.convolved(v, TensorRole::ConvV, recurrent, parts[1], "scan input")?;
        let k = self.convolved(k, TensorRole::ConvK, recurrent, parts[2], "scan k")?;
        let q = self.convolved(q, TensorRole::ConvQ, recurrent, parts[3], "scan q")?;
        let step = self.activated(step, Activation::Softplus, "step");
        let rate = self.rate()?;
        let skip = self.tensors.flat(self.spec, TensorRole::Skip, self.layer, 1.0)?;
        let skip = Some(self.weight(skip));
        let state = self.state(n_heads * rows * recurrent.head_dim);
        let out = self.like(v, "scan");
        let (x, b, c) = (v, k, q);
        self.push(Op::SelectiveScan { x, b, c, step, rate, skip, n_groups, n_heads, state, out });
        let out = self.gate_and_norm(out, gate, recurrent)?;
        Ok(self.scaled(out, self.spec.multipliers.scan_out, "scan scaled"))
    }

    /// Projections to q, k, v and the gate, from separate matrices or from one that is grouped by
    /// key head.
    fn delta_projections(&mut self, input: ValueId, recurrent: &RecurrentSpec) -> Result<[ValueId; 4]> {
        if !self.layer.is_some_and(|l| self.tensors.has_in(TensorRole::RecurrentAll, l)) {
            let q = self.linear(input, TensorRole::RecurrentQ, "q")?;
            let k = self.linear(input, TensorRole::RecurrentK, "k")?;
            let v = self.linear(input, TensorRole::RecurrentV, "v")?;
            let narrow = match recurrent.by_rows {
                true => self.linear(input, TensorRole::GateDown, "gate of few columns")?,
                false => input,
            };
            return Ok([q, k, v, self.linear(narrow, TensorRole::RecurrentGate, "gate")?]);
        }
        let all = self.linear(input, TensorRole::RecurrentAll, "q, k, v and gate")?;
        let (rows, n) = (recurrent.rows, recurrent.n_groups);
        let value = recurrent.inner() / n;
        let group = 2 * (rows + value);
        let mut first = 0;
        Ok([("q", rows), ("k", rows), ("v", value), ("gate", value)].map(|(name, taken)| {
            let out = self.value(name, self.rows(all), n * taken);
            self.push(Op::Columns { x: all, first, group, out });
            first += taken;
            out
        }))
    }

    /// Beta and the time step before their activations, from separate matrices or from one that is
    /// grouped by key head.
    fn delta_gates(&mut self, input: ValueId, recurrent: &RecurrentSpec) -> Result<[ValueId; 2]> {
        if !self.layer.is_some_and(|l| self.tensors.has_in(TensorRole::RecurrentBetaStep, l)) {
            let beta = self.linear(input, TensorRole::RecurrentBeta, "beta")?;
            let narrow = match recurrent.by_rows {
                true => self.linear(input, TensorRole::StepDown, "step of few columns")?,
                false => input,
            };
            return Ok([beta, self.step(narrow, 1.0)?]);
        }
        let n = recurrent.n_heads / recurrent.n_groups;
        let own = self.tensors.flat_values(self.spec, TensorRole::StepBias, self.layer)?.1;
        let bias: Vec<f32> = own
            .chunks(n)
            .flat_map(|steps| std::iter::repeat_n(0.0, n).chain(steps.iter().copied()))
            .collect();
        let weight = self.matrix(TensorRole::RecurrentBetaStep)?;
        let bias = self.layer_vector("bias of beta and step", &bias);
        let all = self.value("beta and step", self.rows(input), 2 * recurrent.n_heads);
        self.push(Op::Linear { x: input, weight, bias: Some(bias), out: all });
        let all = self.adapted(input, TensorRole::RecurrentBetaStep, all, "beta and step")?;
        Ok([("beta", 0), ("step", n)].map(|(name, first)| {
            let out = self.value(name, self.rows(all), recurrent.n_heads);
            self.push(Op::Columns { x: all, first, group: 2 * n, out });
            out
        }))
    }

    /// The time step before its activation: `factor * projection + bias`.
    fn step(&mut self, input: ValueId, factor: f32) -> Result<ValueId> {
        let weight = self.matrix(TensorRole::RecurrentStep)?;
        let mut bias = self.tensors.flat_values(self.spec, TensorRole::StepBias, self.layer)?.1;
        bias.iter_mut().for_each(|bias| *bias /= factor);
        if let Some(more) = self.tensors.bias(self.spec, TensorRole::RecurrentStep, self.layer)? {
            let mut values = vec![0.0; bias.len()];
            more.decode_rows(0..1, &mut values);
            bias.iter_mut().zip(&values).for_each(|(bias, more)| *bias += more);
        }
        let out = self.value("step before", self.rows(input), bias.len());
        let bias = Some(self.layer_vector("bias of step", &bias));
        self.push(Op::Linear { x: input, weight, bias, out });
        let out = self.adapted(input, TensorRole::RecurrentStep, out, "step before")?;
        Ok(self.scaled(out, factor, "step scaled"))
    }

    /// `silu(convolution(factor * x))`.
    fn convolved(
        &mut self,
        x: ValueId,
        role: TensorRole,
        recurrent: &RecurrentSpec,
        factor: f32,
        name: &str,
    ) -> Result<ValueId> {
        let y = self.convolution(x, role, recurrent, factor, &format!("{name} convolved"))?;
        Ok(self.activated(y, Activation::Silu, &format!("{name} activated")))
    }

    /// The factor on the input is multiplied into the taps.
    fn convolution(
        &mut self,
        x: ValueId,
        role: TensorRole,
        recurrent: &RecurrentSpec,
        factor: f32,
        name: &str,
    ) -> Result<ValueId> {
        let taps = self.tensors.flat(self.spec, role, self.layer, factor)?;
        let weight = self.weight(taps);
        let bias = self.bias(role)?;
        let cols = self.values.get(x.0 as usize).map_or(0, |v| v.cols);
        let state = self.state((recurrent.conv_size - 1) * cols);
        let out = self.like(x, name);
        self.push(Op::ShortConv { x, weight, bias, state, out });
        Ok(out)
    }

    /// Applies the norm, if the layer has one, and the gate before or after it.
    fn gate_and_norm(&mut self, x: ValueId, gate: ValueId, recurrent: &RecurrentSpec) -> Result<ValueId> {
        let has_norm = self.layer.is_some_and(|l| self.tensors.has_in(TensorRole::RecurrentNorm, l));
        let group = match recurrent.kind {
            RecurrentKind::GatedDelta => recurrent.head_dim,
            RecurrentKind::ShortConv | RecurrentKind::SelectiveScan => recurrent.inner() / recurrent.n_groups,
        };
        let gate_first = has_norm && !recurrent.gate_after_norm;
        let kind = if recurrent.by_rows { Activation::Sigmoid } else { Activation::Silu };
        let mut x = x;
        if gate_first || !has_norm {
            x = self.gated(gate, x, kind, "recurrence gated");
        }
        if has_norm || recurrent.kind == RecurrentKind::GatedDelta {
            let weight = self.tensors.flat(self.spec, TensorRole::RecurrentNorm, self.layer, 1.0)?;
            let weight = self.weight(weight);
            x = self.plain_norm(x, Some(weight), group, "recurrence norm");
        }
        if has_norm && !gate_first {
            x = self.gated(gate, x, kind, "recurrence gated");
        }
        Ok(x)
    }

    /// `x / sqrt(sum of squares + eps)` of each head of `cols` columns, computed as `x / sqrt(mean
    /// + eps / cols) / sqrt(cols)`.
    fn unit(&mut self, x: ValueId, cols: usize, name: &str) -> ValueId {
        let weight = self.shared_vector("head of length 1", &vec![(cols as f32).sqrt().recip(); cols]);
        let out = self.like(x, name);
        let eps = UNIT_EPS / cols as f32;
        self.push(Op::RmsNorm { x, weight: Some(weight), eps, group: cols, out });
        out
    }

    fn rate(&mut self) -> Result<WeightId> {
        let rate = self.tensors.rate(self.spec, self.layer)?;
        Ok(self.weight(rate))
    }

    fn gated(&mut self, gate: ValueId, up: ValueId, kind: Activation, name: &str) -> ValueId {
        let out = self.like(up, name);
        self.push(Op::Gate { gate, up, kind, out });
        out
    }

    fn activated(&mut self, x: ValueId, kind: Activation, name: &str) -> ValueId {
        let out = self.like(x, name);
        self.push(Op::Activate { x, kind, out });
        out
    }

    /// `factor * x`, or `x` if the factor is 1.
    pub fn scaled(&mut self, x: ValueId, factor: f32, name: &str) -> ValueId {
        if factor == 1.0 { x } else { self.scale(x, factor, name) }
    }

    /// A vector of this layer that is computed at load.
    fn layer_vector(&mut self, name: &str, values: &[f32]) -> WeightId {
        let name = self.layer.map_or_else(|| name.to_owned(), |l| format!("layer {l} {name}"));
        self.weight(Weight::vector(name, values))
    }

    /// A vector that is computed at load and shared by all layers.
    fn shared_vector(&mut self, name: &str, values: &[f32]) -> WeightId {
        self.weight(Weight::vector(format!("{name} ({})", values.len()), values))
    }

    /// A new recurrent state of `len` numbers.
    fn state(&mut self, len: usize) -> StateId {
        self.states.push(len);
        StateId(self.states.len() as u32 - 1)
    }

    /// The queries, and the gates of their heads if the projection outputs both.
    pub fn queries(&mut self, input: ValueId, head_dim: usize) -> Result<(ValueId, Option<ValueId>)> {
        let all = self.linear(input, TensorRole::AttnQ, "q")?;
        if !self.spec.family.attention_gate {
            return Ok((all, None));
        }
        let cols = self.values.get(all.0 as usize).map_or(0, |v| v.cols) / 2;
        let part = |builder: &mut Self, name: &str, first: usize| {
            let out = builder.value(name, RowCount::Tokens, cols);
            builder.push(Op::Columns { x: all, first, group: 2 * head_dim, out });
            out
        };
        let queries = part(self, "queries", 0);
        self.at(Place::AttentionGate);
        Ok((queries, Some(part(self, "attention gate", head_dim))))
    }

    /// `x * sigmoid(gate)`.
    pub fn gate_attention(&mut self, x: ValueId, gate: ValueId) -> ValueId {
        self.gated(gate, x, Activation::Sigmoid, "gated attention")
    }
}
