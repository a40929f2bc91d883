//! The parts of a layer: attention, cross-attention, and the feed-forward network.

use device::{Activation, DType, KvLayerId, Op, RowCount, ValueId, Weight, WeightId};

use super::Builder;
use crate::descriptor::{ExpertPlace, QkNorm};
use crate::error::Result;
use crate::names::TensorRole;
use crate::rope::RopeSpec;
use crate::spec::{ExpertSpec, LatentSpec, LayerSpec, TemperatureSpec};

impl Builder<'_, '_> {
    /// `x + post_norm(mixer(pre_norm(x)))`, or `post_norm(x + mixer(pre_norm(x)))` if the family
    /// normalises sums. The mixer is attention, a recurrence, or the sum of both. If the pass
    /// `ends` here, only output rows are computed, because no later row reads another.
    pub fn mix(&mut self, x: ValueId, kv_layer: KvLayerId, layer: &LayerSpec, ends: bool) -> Result<ValueId> {
        let norms = self.spec.family.norms;
        let residual = if ends { self.output_rows(x, "output rows") } else { x };
        let has_norm = norms.pre_attention && !(self.spec.family.first_norm_missing && self.layer == Some(0));
        let input = self.maybe_norm(has_norm, x, TensorRole::AttnNorm, "attention norm")?;
        let attended =
            if layer.attends { Some(self.attention_branch(input, kv_layer, layer, ends)?) } else { None };
        let branch = match (attended, &layer.recurrent) {
            (Some(attended), Some(recurrent)) => {
                let recurred = self.recurrence(input, recurrent, ends)?;
                self.sum(attended, recurred, "attention and recurrence")
            }
            (Some(attended), None) => attended,
            (None, Some(recurrent)) => self.recurrence(input, recurrent, ends)?,
            (None, None) => return Ok(residual),
        };
        let (role, name) = (TensorRole::PostAttnNorm, "post-attention norm");
        self.join(residual, branch, norms.post_attention.then_some((role, name)), "attention residual")
    }

    /// `x + attention(norm(x)) + network(norm(x))`. `ends` is that of [`mix`](Self::mix).
    pub fn parallel(
        &mut self,
        x: ValueId,
        kv_layer: KvLayerId,
        layer: &LayerSpec,
        ends: bool,
    ) -> Result<ValueId> {
        let norms = self.spec.family.norms;
        let mut input = self.maybe_norm(norms.pre_attention, x, TensorRole::AttnNorm, "attention norm")?;
        let branch = self.attention_branch(input, kv_layer, layer, ends)?;
        let residual = if ends { self.output_rows(x, "output rows") } else { x };
        if norms.pre_ffn {
            input = self.norm(residual, TensorRole::FfnNorm, self.spec.hidden, "ffn norm")?;
        } else if ends {
            input = self.output_rows(input, "norm of output rows");
        }
        let sum = self.add_branch(residual, branch, "attention residual");
        let branch = self.network(input, layer)?;
        Ok(self.add_branch(sum, branch, "ffn residual"))
    }

    /// `attention(input)` with its output projection. `ends` is that of [`mix`](Self::mix).
    pub(super) fn attention_branch(
        &mut self,
        input: ValueId,
        kv_layer: KvLayerId,
        layer: &LayerSpec,
        ends: bool,
    ) -> Result<ValueId> {
        if let Some(latent) = layer.latent {
            return self.latent_branch(input, kv_layer, layer, latent, ends);
        }
        // The layer has its own keys and values, or reads those of an earlier layer.
        let own = layer.kv_from.is_none();
        let (mut q, gate) = self.queries(input, layer.head_dim)?;
        let mut kv = if own { Some(self.keys_and_values(input, layer)?) } else { None };
        let after = self.spec.family.qk_norm_after_rope;
        if !after {
            self.qk_norm(&mut q, &mut kv, layer)?;
        }
        if let Some(rope) = &layer.rope {
            q = self.rope(q, rope, layer.head_dim, "q rope")?;
            if let Some((k, _)) = &mut kv {
                *k = self.rope(*k, rope, layer.head_dim, "k rope")?;
            }
        }
        if after {
            self.qk_norm(&mut q, &mut kv, layer)?;
        }
        if let Some(temperature) = &layer.temperature {
            let weights = self.temperature(temperature);
            let out = self.like(q, "q scaled by position");
            self.push(Op::ExpertSum { x: q, weights, out });
            q = out;
        }
        let mixed = self.value("attention", RowCount::Tokens, layer.n_heads * layer.head_dim);
        let (n_heads, scale) = (layer.n_heads, layer.attention_scale);
        match kv {
            Some((k, v)) if self.spec.family.bidirectional => {
                let window = layer.window.map(|n| n / 2);
                self.push(Op::SelfAttention { q, k, v, n_heads, scale, window, out: mixed });
            }
            kv => {
                if let Some((k, v)) = kv {
                    self.push(Op::KvWrite { k, v, layer: kv_layer });
                }
                let sinks = self.vectors(TensorRole::AttnSinks)?;
                self.push(Op::Attention {
                    q,
                    layer: kv_layer,
                    n_heads,
                    scale,
                    softcap: self.spec.attention_softcap,
                    window: layer.window,
                    chunked: self.spec.family.chunked && layer.window.is_some(),
                    both_ways: self.given.as_ref().is_some_and(|given| given.sees_both_ways(layer)),
                    sinks,
                    out: mixed,
                });
            }
        }
        let mixed = gate.map_or(mixed, |gate| self.gate_attention(mixed, gate));
        let mixed = if ends { self.output_rows(mixed, "attention of output rows") } else { mixed };
        let out = self.linear(mixed, TensorRole::AttnOut, "attention out")?;
        let factors = self.spec.multipliers;
        Ok(self.scaled(out, factors.attention_in * factors.attention_out, "attention scaled"))
    }

    /// Latent attention. Queries are projected to the latent, and the attention's result from the
    /// latent to values, head by head. The KV cache holds the latent and the rotated key columns,
    /// one vector for all heads.
    fn latent_branch(
        &mut self,
        input: ValueId,
        kv_layer: KvLayerId,
        layer: &LayerSpec,
        latent: LatentSpec,
        ends: bool,
    ) -> Result<ValueId> {
        let LatentSpec { rank, plain, turning, .. } = latent;
        let n_heads = layer.n_heads;
        let q = match latent.query_rank {
            Some(query_rank) => {
                let q = self.linear(input, TensorRole::AttnQA, "latent q")?;
                let q = self.norm(q, TensorRole::AttnQANorm, query_rank, "latent q norm")?;
                self.linear(q, TensorRole::AttnQB, "q")?
            }
            None => self.linear(input, TensorRole::AttnQ, "q")?,
        };
        let kv = self.linear(input, TensorRole::AttnKvA, "latent kv")?;
        let c = self.part(kv, (0, rank), rank + turning, "latent")?;
        let c = self.norm(c, TensorRole::AttnKvANorm, rank, "latent norm")?;
        let mut k_turning = self.part(kv, (rank, turning), rank + turning, "k turning")?;
        let q_plain = self.part(q, (0, plain), plain + turning, "q plain")?;
        let mut q_turning = self.part(q, (plain, turning), plain + turning, "q turning")?;
        if let Some(rope) = &layer.rope {
            q_turning = self.rope(q_turning, rope, turning, "q rope")?;
            k_turning = self.rope(k_turning, rope, turning, "k rope")?;
        }
        let k = self.join_heads(c, k_turning, 1, "k");
        self.push(Op::KvWrite { k, v: k, layer: kv_layer });
        let (of_keys, of_values) = self.tensors.latent_heads(self.spec, self.layer)?;
        let (of_keys, of_values) = (self.weight(of_keys), self.weight(of_values));
        let q = self.each_head(q_plain, of_keys, n_heads, rank, "q to the latent");
        let q = self.join_heads(q, q_turning, n_heads, "q joined");
        let mixed = self.value("attention", RowCount::Tokens, n_heads * layer.head_dim);
        self.push(Op::Attention {
            q,
            layer: kv_layer,
            n_heads,
            scale: layer.attention_scale,
            softcap: self.spec.attention_softcap,
            window: layer.window,
            chunked: false,
            both_ways: false,
            sinks: None,
            out: mixed,
        });
        let mixed = if ends { self.output_rows(mixed, "attention of output rows") } else { mixed };
        let mixed = self.part(mixed, (0, rank), layer.head_dim, "latents mixed")?;
        let values = self.each_head(mixed, of_values, n_heads, latent.value, "values");
        self.linear(values, TensorRole::AttnOut, "attention out")
    }

    /// `taken` columns from `first` of each group of columns.
    pub(super) fn part(
        &mut self,
        x: ValueId,
        (first, taken): (usize, usize),
        group: usize,
        name: &str,
    ) -> Result<ValueId> {
        let out = self.value(name, self.rows(x), self.cols(x) / group.max(1) * taken);
        self.push(Op::Columns { x, first, group, out });
        Ok(out)
    }

    pub(super) fn join_heads(&mut self, a: ValueId, b: ValueId, n_heads: usize, name: &str) -> ValueId {
        let out = self.value(name, self.rows(a), self.cols(a) + self.cols(b));
        self.push(Op::Join { a, b, n_heads, out });
        out
    }

    /// Multiplies each head by its own matrix of a stack. If `x` has the columns of one head, every
    /// matrix multiplies it.
    pub(super) fn each_head(
        &mut self,
        x: ValueId,
        weight: WeightId,
        n_heads: usize,
        n_out: usize,
        name: &str,
    ) -> ValueId {
        let rows = self.rows(x);
        let known = self.ordinals.iter().find(|(of, n, _)| (*of, *n) == (rows, n_heads));
        let ids = match known {
            Some((.., ids)) => *ids,
            None => {
                let ids = self.new_value("heads", rows, n_heads, DType::U32);
                self.push(Op::Ordinals { out: ids });
                self.ordinals.push((rows, n_heads, ids));
                ids
            }
        };
        let out = self.value(name, rows, n_heads * n_out);
        self.push(Op::ExpertLinear { x, ids, weight, out });
        out
    }

    /// The vectors of a role, if the file has them.
    fn vectors(&mut self, role: TensorRole) -> Result<Option<WeightId>> {
        Ok(self.tensors.vectors(self.spec, role, self.layer)?.map(|weight| self.weight(weight)))
    }

    /// Norms of queries and keys.
    fn qk_norm(
        &mut self,
        q: &mut ValueId,
        kv: &mut Option<(ValueId, ValueId)>,
        layer: &LayerSpec,
    ) -> Result<()> {
        let whole_row = match self.spec.qk_norm {
            QkNorm::None => return Ok(()),
            QkNorm::PerHead => false,
            QkNorm::WholeRow => true,
            QkNorm::PlainWhereTurning => {
                if layer.rope.is_some() {
                    *q = self.plain_norm(*q, None, layer.head_dim, "q norm");
                    if let Some((k, _)) = kv {
                        *k = self.plain_norm(*k, None, layer.head_dim, "k norm");
                    }
                }
                return Ok(());
            }
        };
        let group = |n_heads: usize| layer.head_dim * if whole_row { n_heads } else { 1 };
        *q = self.norm(*q, TensorRole::AttnQNorm, group(layer.n_heads), "q norm")?;
        if let Some((k, _)) = kv {
            *k = self.norm(*k, TensorRole::AttnKNorm, group(layer.n_kv_heads), "k norm")?;
        }
        Ok(())
    }

    /// `(n, 1)`: the factor on each row's queries, from a table of all positions.
    fn temperature(&mut self, temperature: &TemperatureSpec) -> ValueId {
        if let Some((_, id)) = self.temperatures.iter().find(|(known, _)| known == temperature) {
            return *id;
        }
        let factors: Vec<f32> = (0..self.n_ctx).map(|position| temperature.factor(position)).collect();
        let table = Weight {
            shape: vec![self.n_ctx, 1],
            ..Weight::vector("factors on queries by position", &factors)
        };
        let table = self.weight(table);
        let out = self.value("factor on queries", RowCount::Tokens, 1);
        self.push(Op::EmbedPositions { table, out });
        self.temperatures.push((*temperature, out));
        out
    }

    /// `x + cross_attention(norm(x))` over all encoder states. Keeps the scores of the heads
    /// `aligned`. `ends` is that of [`mix`](Self::mix).
    pub fn cross_attention(
        &mut self,
        x: ValueId,
        states: KvLayerId,
        layer: &LayerSpec,
        aligned: &[usize],
        ends: bool,
    ) -> Result<ValueId> {
        let residual = if ends { self.output_rows(x, "output rows") } else { x };
        let (n_heads, scale) = (layer.n_heads, layer.attention_scale);
        let input = self.norm(x, TensorRole::CrossNorm, self.spec.hidden, "cross-attention norm")?;
        let q = self.linear(input, TensorRole::CrossQ, "cross q")?;
        if let (false, Some(encoder)) = (aligned.is_empty(), &self.spec.encoder) {
            let out = self.value("alignment", RowCount::Tokens, aligned.len() * encoder.n_ctx_train);
            self.push(Op::CrossScores { q, layer: states, n_heads, heads: aligned.to_vec(), scale, out });
            self.kept.push(out);
        }
        let mixed = self.value("cross-attention", RowCount::Tokens, n_heads * layer.head_dim);
        self.push(Op::CrossAttention { q, layer: states, n_heads, scale, out: mixed });
        let mixed = if ends { self.output_rows(mixed, "cross-attention of output rows") } else { mixed };
        let branch = self.linear(mixed, TensorRole::CrossOut, "cross-attention out")?;
        Ok(self.add_branch(residual, branch, "cross-attention residual"))
    }

    /// `x + post_norm(branch)`, or `post_norm(x + branch)` if the family normalises sums.
    fn join(
        &mut self,
        x: ValueId,
        branch: ValueId,
        norm: Option<(TensorRole, &str)>,
        name: &str,
    ) -> Result<ValueId> {
        let Some((role, norm_name)) = norm else { return Ok(self.add_branch(x, branch, name)) };
        if self.spec.family.norm_on_sum {
            let sum = self.add_branch(x, branch, name);
            return self.norm(sum, role, self.spec.hidden, norm_name);
        }
        let branch = self.norm(branch, role, self.spec.hidden, norm_name)?;
        Ok(self.add_branch(x, branch, name))
    }

    /// Keys before their norm, and values.
    fn keys_and_values(&mut self, input: ValueId, layer: &LayerSpec) -> Result<(ValueId, ValueId)> {
        let k = self.linear(input, TensorRole::AttnK, "k")?;
        let mut v = if layer.keys_are_values { k } else { self.linear(input, TensorRole::AttnV, "v")? };
        if self.spec.family.v_norm {
            v = self.plain_norm(v, None, layer.head_dim, "v norm");
        }
        Ok((k, v))
    }

    /// `x + post_norm(network(pre_norm(x)))`, with a dense network, experts, or both.
    pub fn feed_forward(&mut self, x: ValueId, layer: &LayerSpec) -> Result<ValueId> {
        let norms = self.spec.family.norms;
        let (x, branch) = match (layer.experts, self.spec.family.experts) {
            (Some(experts), ExpertPlace::Beside) => (x, self.dense_and_experts(x, layer, experts)?),
            (experts, place) => {
                let input = self.maybe_norm(norms.pre_ffn, x, TensorRole::FfnNorm, "ffn norm")?;
                match (experts, place) {
                    (Some(experts), ExpertPlace::Instead) => (x, self.experts(input, experts)?),
                    (Some(experts), ExpertPlace::WithPlainShared) => {
                        let routed = self.experts(input, experts)?;
                        if layer.ffn == 0 {
                            (x, routed)
                        } else {
                            let shared = self.network(input, layer)?;
                            (self.add_branch(x, shared, "shared experts residual"), routed)
                        }
                    }
                    (Some(experts), ExpertPlace::WithShared) => self.shared(x, input, layer, experts)?,
                    (Some(experts), ExpertPlace::BesideShared) => {
                        (x, self.beside_shared(input, layer, experts)?)
                    }
                    (Some(_), ExpertPlace::Nowhere | ExpertPlace::Beside) | (None, _) => {
                        (x, self.network(input, layer)?)
                    }
                }
            }
        };
        let norm = norms.post_ffn.then_some((TensorRole::PostFfnNorm, "post-ffn norm"));
        self.join(x, branch, norm, "ffn residual")
    }

    /// `x + sigmoid(weight) * shared expert`, and the output of the routed experts, which is added
    /// later without a norm. Ops that devices fuse are adjacent: those that read the input, the
    /// gates, and the end of the shared expert.
    fn shared(
        &mut self,
        x: ValueId,
        input: ValueId,
        layer: &LayerSpec,
        experts: ExpertSpec,
    ) -> Result<(ValueId, ValueId)> {
        let router = self.linear(input, TensorRole::Router, "router")?;
        let weight = self.linear(input, TensorRole::SharedWeight, "shared weight")?;
        let (ids, weights) = self.choose(router, experts)?;
        let routed = self.experts_inner(input, ids, experts)?;
        let shared = self.network(input, layer)?;
        let open = self.like(weight, "shared weight sigmoid");
        self.push(Op::Activate { x: weight, kind: Activation::Sigmoid, out: open });
        let weighed = self.like(shared, "shared expert");
        self.push(Op::ExpertSum { x: shared, weights: open, out: weighed });
        let sum = self.add_branch(x, weighed, "shared expert residual");
        Ok((sum, self.experts_sum(routed, ids, weights, experts)?))
    }

    /// The sum of the routed experts and the shared network.
    fn beside_shared(&mut self, input: ValueId, layer: &LayerSpec, experts: ExpertSpec) -> Result<ValueId> {
        let sparse = self.experts(input, experts)?;
        if layer.ffn == 0 {
            return Ok(sparse);
        }
        let dense = self.network(input, layer)?;
        Ok(self.sum(sparse, dense, "experts and shared"))
    }

    /// `norm(network(norm(x))) + norm(experts(norm(x)))`. Ops that devices fuse are adjacent: the
    /// router after its norm and the Op that writes `x`, the products of both branches, and their
    /// post-norms.
    fn dense_and_experts(&mut self, x: ValueId, layer: &LayerSpec, experts: ExpertSpec) -> Result<ValueId> {
        let hidden = self.spec.hidden;
        let factor = (hidden as f32).sqrt().recip();
        let scale = self.tensors.scaled(self.spec, TensorRole::RouterScale, self.layer, factor)?;
        let scale = self.weight(scale);
        let routed = self.plain_norm(x, Some(scale), hidden, "router norm");
        let (ids, weights) = self.route(routed, experts)?;
        let input = self.maybe_norm(self.spec.family.norms.pre_ffn, x, TensorRole::FfnNorm, "ffn norm")?;
        let dense = self.inner(input, layer)?;
        let input = self.norm(x, TensorRole::ExpertNorm, hidden, "expert norm")?;
        let sparse = self.experts_inner(input, ids, experts)?;
        let dense = self.linear(dense, TensorRole::FfnDown, "down")?;
        let sparse = self.experts_sum(sparse, ids, weights, experts)?;
        let dense = self.norm(dense, TensorRole::PostDenseNorm, hidden, "dense norm")?;
        let sparse = self.norm(sparse, TensorRole::PostExpertNorm, hidden, "experts norm")?;
        Ok(self.sum(dense, sparse, "dense and experts"))
    }

    /// The output of the routed experts, weighted and summed.
    fn experts(&mut self, input: ValueId, experts: ExpertSpec) -> Result<ValueId> {
        let (ids, weights) = self.route(input, experts)?;
        if self.spec.family.experts_weigh_input {
            let weighed = self.like(input, "input weighed");
            self.push(Op::ExpertSum { x: input, weights, out: weighed });
            let gated = self.experts_inner(weighed, ids, experts)?;
            return self.expert_linear(gated, ids, TensorRole::ExpertDown, self.spec.hidden, "expert down");
        }
        let latent = experts.latent.is_some();
        let input = if latent { self.linear(input, TensorRole::LatentDown, "latent input")? } else { input };
        let gated = self.experts_inner(input, ids, experts)?;
        let sum = self.experts_sum(gated, ids, weights, experts)?;
        if latent { self.linear(sum, TensorRole::LatentUp, "latent output") } else { Ok(sum) }
    }

    /// Routes each row: the ids of its experts, and their weights.
    fn route(&mut self, routed: ValueId, experts: ExpertSpec) -> Result<(ValueId, ValueId)> {
        let x = self.linear(routed, TensorRole::Router, "router")?;
        self.choose(x, experts)
    }

    /// Chooses experts by the router's logits.
    fn choose(&mut self, x: ValueId, experts: ExpertSpec) -> Result<(ValueId, ValueId)> {
        let ExpertSpec { n_used, normalise, factor, scores, groups, .. } = experts;
        let bias = self.vectors(TensorRole::RouterBias)?;
        let scaled = self.layer.is_some_and(|l| self.tensors.has_in(TensorRole::ExpertScale, l));
        let scales = match scaled {
            true => {
                let scales = self.tensors.scaled(self.spec, TensorRole::ExpertScale, self.layer, 1.0)?;
                Some(self.weight(scales))
            }
            false => None,
        };
        let rows = self.rows(x);
        let ids = self.new_value("experts", rows, n_used, DType::U32);
        let weights = self.value("expert weights", rows, n_used);
        self.push(Op::Route { x, normalise, factor, scores, bias, groups, scales, ids, weights });
        Ok((ids, weights))
    }

    /// `f(gate) * up` of the chosen experts.
    fn experts_inner(&mut self, input: ValueId, ids: ValueId, experts: ExpertSpec) -> Result<ValueId> {
        let ExpertSpec { n_used, ffn, .. } = experts;
        if !self.spec.family.gated {
            let up = self.expert_linear(input, ids, TensorRole::ExpertUp, n_used * ffn, "expert up")?;
            let out = self.like(up, "expert activated");
            self.push(Op::Activate { x: up, kind: self.spec.activation, out });
            return Ok(out);
        }
        let gate = self.expert_linear(input, ids, TensorRole::ExpertGate, n_used * ffn, "expert gate")?;
        let up = self.expert_linear(input, ids, TensorRole::ExpertUp, n_used * ffn, "expert up")?;
        let gate = self.expert_bias(gate, ids, TensorRole::ExpertGateBias, "expert gate biased")?;
        let up = self.expert_bias(up, ids, TensorRole::ExpertUpBias, "expert up biased")?;
        let gated = self.like(gate, "expert gated");
        self.push(match experts.clamp {
            Some((alpha, limit)) => Op::GateClamped { gate, up, alpha, limit, out: gated },
            None => Op::Gate { gate, up, kind: self.spec.activation, out: gated },
        });
        Ok(gated)
    }

    /// The down projections of the chosen experts, weighted and summed.
    fn experts_sum(
        &mut self,
        gated: ValueId,
        ids: ValueId,
        weights: ValueId,
        experts: ExpertSpec,
    ) -> Result<ValueId> {
        let hidden = experts.latent.unwrap_or(self.spec.hidden);
        let cols = experts.n_used * hidden;
        let down = self.expert_linear(gated, ids, TensorRole::ExpertDown, cols, "expert down")?;
        let down = self.expert_bias(down, ids, TensorRole::ExpertDownBias, "expert down biased")?;
        let out = self.value("experts sum", self.rows(gated), hidden);
        self.push(Op::ExpertSum { x: down, weights, out });
        Ok(out)
    }

    /// Adds the biases of the chosen experts, if the file has them.
    fn expert_bias(&mut self, x: ValueId, ids: ValueId, role: TensorRole, name: &str) -> Result<ValueId> {
        let Some(bias) = self.vectors(role)? else { return Ok(x) };
        let out = self.like(x, name);
        self.push(Op::ExpertBias { x, ids, bias, out });
        Ok(out)
    }

    fn expert_linear(
        &mut self,
        x: ValueId,
        ids: ValueId,
        role: TensorRole,
        cols: usize,
        name: &str,
    ) -> Result<ValueId> {
        let weight = self.tensors.experts(self.spec, role, self.layer)?;
        let weight = self.weight(weight);
        let out = self.value(name, self.rows(x), cols);
        self.push(Op::ExpertLinear { x, ids, weight, out });
        Ok(out)
    }

    /// `x + norm(out(f(gate(x)) * input))`, with the per-layer input.
    pub fn per_layer_branch(&mut self, x: ValueId, inputs: ValueId, l: usize) -> Result<ValueId> {
        let of_outputs = self.rows(x) == RowCount::Outputs;
        let inputs = if of_outputs { self.output_rows(inputs, "inputs of output rows") } else { inputs };
        let gate = self.linear(x, TensorRole::PerLayerGate, "input gate")?;
        let y = self.per_layer_output(gate, inputs, l)?;
        Ok(self.add_branch(x, y, "input residual"))
    }

    /// `norm(out(f(gate) * input))`, with the per-layer input.
    pub(super) fn per_layer_output(&mut self, gate: ValueId, inputs: ValueId, l: usize) -> Result<ValueId> {
        let width = self.spec.per_layer_width;
        let input = self.value("input", self.rows(inputs), width);
        let group = width * self.spec.layers.len();
        self.push(Op::Columns { x: inputs, first: l * width, group, out: input });
        let out = self.like(gate, "input gated");
        self.push(Op::Gate { gate, up: input, kind: self.spec.activation, out });
        let y = self.linear(out, TensorRole::PerLayerOut, "input projection")?;
        self.norm(y, TensorRole::PostPerLayerNorm, self.spec.hidden, "post-input norm")
    }

    /// `factor * x`, if the layer has a factor.
    pub fn layer_scale(&mut self, x: ValueId) -> Result<ValueId> {
        match self.tensors.number(self.spec, TensorRole::LayerScale, self.layer)? {
            Some(factor) => Ok(self.scale(x, factor, "scaled")),
            None => Ok(x),
        }
    }

    /// `down(f(gate) * up)`.
    fn network(&mut self, input: ValueId, layer: &LayerSpec) -> Result<ValueId> {
        let inner = self.inner(input, layer)?;
        let out = self.linear(inner, TensorRole::FfnDown, "down")?;
        Ok(self.scaled(out, self.spec.multipliers.ffn_out, "down scaled"))
    }

    /// `f(gate) * up`, or `f(up)` without a gate.
    fn inner(&mut self, input: ValueId, layer: &LayerSpec) -> Result<ValueId> {
        let kind = self.spec.activation;
        Ok(if self.spec.family.gated {
            let gate = self.linear(input, TensorRole::FfnGate, "gate")?;
            let gate = self.scaled(gate, self.spec.multipliers.ffn_gate, "gate scaled");
            let gate = layer.cutoff.map_or(gate, |cutoff| self.cut_off(gate, cutoff));
            let up = self.linear(input, TensorRole::FfnUp, "up")?;
            let out = self.value("gated", self.rows(input), layer.ffn);
            self.push(Op::Gate { gate, up, kind, out });
            out
        } else {
            let up = self.linear(input, TensorRole::FfnUp, "up")?;
            let out = self.value("activated", self.rows(input), layer.ffn);
            self.push(Op::Activate { x: up, kind, out });
            out
        })
    }

    fn rope(&mut self, x: ValueId, rope: &RopeSpec, head_dim: usize, name: &str) -> Result<ValueId> {
        if let Some(turns) = self.given.as_ref().and_then(|given| given.turns) {
            return self.rotate(x, turns, (rope.n_dims, head_dim), name);
        }
        let frequencies = match self.ropes.iter().find(|(known, _)| known == rope) {
            Some((_, id)) => *id,
            None => {
                let table =
                    Weight::vector(format!("rope frequencies ({rope})"), &rope.frequencies(self.n_ctx));
                let id = self.weight(table);
                self.ropes.push((rope.clone(), id));
                id
            }
        };
        let out = self.like(x, name);
        let (n_dims, style, scale) = (rope.n_dims, self.spec.rope_style, rope.scale());
        self.push(Op::Rope { x, head_dim, n_dims, style, frequencies, scale, out });
        Ok(out)
    }
}
