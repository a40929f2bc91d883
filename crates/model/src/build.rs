//! The plan builder: a spec's layers as Ops, in the order that the fusion rules look for.

use std::collections::HashMap;

use device::{
    Activation, DType, KvLayer, KvLayerId, KvLayout, Node, Op, Output, Plan, Rows, Value, ValueId, Weight,
    WeightId,
};

use crate::descriptor::{ExpertPlace, NormKind, QkNorm};
use crate::embedding::EmbeddingSpec;
use crate::error::Result;
use crate::names::TensorRole;
use crate::rope::RopeSpec;
use crate::spec::{ExpertSpec, LayerSpec, ModelSpec};
use crate::tensors::Tensors;

/// Where a forward pass ends.
#[derive(Clone, Copy)]
pub(crate) enum End<'a> {
    /// As the family does: logits, or the hidden states of the rows asked for.
    Own,
    /// One vector for each sequence.
    Embedding(&'a EmbeddingSpec),
}

/// Build the forward pass for contexts up to `n_ctx`.
pub(crate) fn build(spec: &ModelSpec, tensors: &mut Tensors<'_>, n_ctx: usize) -> Result<Plan> {
    build_to(spec, tensors, n_ctx, End::Own)
}

/// Build the forward pass for contexts up to `n_ctx`, to an end.
pub(crate) fn build_to(
    spec: &ModelSpec,
    tensors: &mut Tensors<'_>,
    n_ctx: usize,
    end: End<'_>,
) -> Result<Plan> {
    let mut builder = Builder {
        spec,
        tensors,
        n_ctx,
        layer: None,
        values: Vec::new(),
        weights: Vec::new(),
        by_name: HashMap::new(),
        ropes: Vec::new(),
        nodes: Vec::new(),
    };
    let mut x = builder.embed()?;
    let inputs = if spec.per_layer_width > 0 { Some(builder.per_layer_inputs(x)?) } else { None };
    let (kv, kv_of) = kv_layers(spec);
    for (l, layer) in spec.layers.iter().enumerate() {
        builder.layer = Some(l);
        let kv = kv_of.get(l).copied().unwrap_or(KvLayerId(l as u32));
        x = builder.attention(x, kv, layer)?;
        x = builder.feed_forward(x, layer)?;
        if let Some(inputs) = inputs {
            x = builder.per_layer_branch(x, inputs, l)?;
        }
        x = builder.layer_scale(x)?;
    }
    builder.layer = None;
    let output = if matches!(end, End::Embedding(_)) { Output::Hidden } else { spec.family.output };
    let (logits, argmax) = match (end, output) {
        (End::Embedding(embedding), _) => builder.embedding(x, embedding)?,
        (End::Own, Output::Logits) => builder.head(x)?,
        (End::Own, Output::Hidden) => builder.hidden(x)?,
    };

    // What looks both ways looks at the rows of its step, and keeps nothing.
    let kv = KvLayout::new(if spec.family.bidirectional { Vec::new() } else { kv });
    let Builder { values, weights, nodes, .. } = builder;
    let plan = Plan { values, weights, nodes, kv, logits, argmax, output, kept: Vec::new() };
    plan.check()?;
    Ok(plan)
}

/// The layers of the cache, one for each layer that has keys of its own, and which of them each layer reads.
fn kv_layers(spec: &ModelSpec) -> (Vec<KvLayer>, Vec<KvLayerId>) {
    let mut kv = Vec::new();
    let mut ids: Vec<KvLayerId> = Vec::with_capacity(spec.layers.len());
    for layer in &spec.layers {
        match layer.kv_from.and_then(|from| ids.get(from)) {
            Some(id) => ids.push(*id),
            None => {
                ids.push(KvLayerId(kv.len() as u32));
                let LayerSpec { n_kv_heads, head_dim, window, .. } = *layer;
                kv.push(KvLayer { n_kv_heads, head_dim, window, memory: None });
            }
        }
    }
    (kv, ids)
}

struct Builder<'a, 'f> {
    spec: &'a ModelSpec,
    tensors: &'a mut Tensors<'f>,
    n_ctx: usize,
    layer: Option<usize>,
    values: Vec<Value>,
    weights: Vec<Weight>,
    /// So that a tied head is the embedding's weight.
    by_name: HashMap<String, WeightId>,
    /// One table of frequencies for all layers that rotate alike.
    ropes: Vec<(RopeSpec, WeightId)>,
    nodes: Vec<Node>,
}

impl Builder<'_, '_> {
    /// `(n, hidden)`
    fn embed(&mut self) -> Result<ValueId> {
        let table = self.matrix(TensorRole::TokenEmbedding)?;
        let out = self.value("embedding", Rows::Tokens, self.spec.hidden);
        self.push(Op::Embed { table, scale: self.spec.embedding_scale, out });
        let mut x = out;
        if self.spec.family.learned_positions {
            let table = self.tensors.positions(self.spec)?;
            let table = self.weight(table);
            let positions = self.like(x, "position embedding");
            self.push(Op::EmbedPositions { table, out: positions });
            let sum = self.like(x, "embedding sum");
            self.push(Op::Add { a: x, b: positions, out: sum });
            x = sum;
        }
        self.maybe_norm(self.spec.family.embedding_norm, x, TensorRole::EmbeddingNorm, "embedding norm")
    }

    /// `x + post_norm(attention(pre_norm(x)))`, or `post_norm(x + attention(pre_norm(x)))`
    fn attention(&mut self, x: ValueId, kv_layer: KvLayerId, layer: &LayerSpec) -> Result<ValueId> {
        let norms = self.spec.family.norms;
        // Keys and values of its own, or those that an earlier layer wrote.
        let own = layer.kv_from.is_none();
        let input = self.maybe_norm(norms.pre_attention, x, TensorRole::AttnNorm, "attention norm")?;
        let mut q = self.linear(input, TensorRole::AttnQ, "q")?;
        let mut kv = if own { Some(self.keys_and_values(input, layer)?) } else { None };
        if let Some(whole_row) = match self.spec.family.qk_norm {
            QkNorm::None => None,
            QkNorm::PerHead => Some(false),
            QkNorm::WholeRow => Some(true),
        } {
            let group = |n_heads: usize| layer.head_dim * if whole_row { n_heads } else { 1 };
            q = self.norm(q, TensorRole::AttnQNorm, group(layer.n_heads), "q norm")?;
            if let Some((k, _)) = &mut kv {
                *k = self.norm(*k, TensorRole::AttnKNorm, group(layer.n_kv_heads), "k norm")?;
            }
        }
        if let Some(rope) = &layer.rope {
            q = self.rope(q, rope, layer.head_dim, "q rope");
            if let Some((k, _)) = &mut kv {
                *k = self.rope(*k, rope, layer.head_dim, "k rope");
            }
        }
        let mixed = self.value("attention", Rows::Tokens, layer.n_heads * layer.head_dim);
        let (n_heads, scale) = (layer.n_heads, layer.attention_scale);
        match kv {
            Some((k, v)) if self.spec.family.bidirectional => {
                self.push(Op::SelfAttention { q, k, v, n_heads, scale, out: mixed });
            }
            kv => {
                if let Some((k, v)) = kv {
                    self.push(Op::KvWrite { k, v, layer: kv_layer });
                }
                self.push(Op::Attention {
                    q,
                    layer: kv_layer,
                    n_heads,
                    scale,
                    softcap: self.spec.attention_softcap,
                    window: layer.window,
                    sinks: None,
                    out: mixed,
                });
            }
        }
        let branch = self.linear(mixed, TensorRole::AttnOut, "attention out")?;
        let (role, name) = (TensorRole::PostAttnNorm, "post-attention norm");
        self.join(x, branch, norms.post_attention.then_some((role, name)), "attention residual")
    }

    /// `x + post_norm(branch)` or `post_norm(x + branch)`, as the family says.
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

    /// `x + post_norm(network(pre_norm(x)))`, the network dense, of experts, or both next to each other
    fn feed_forward(&mut self, x: ValueId, layer: &LayerSpec) -> Result<ValueId> {
        let norms = self.spec.family.norms;
        let input = self.maybe_norm(norms.pre_ffn, x, TensorRole::FfnNorm, "ffn norm")?;
        let branch = match (layer.experts, self.spec.family.experts) {
            (None, _) | (_, ExpertPlace::Nowhere) => self.network(input, layer)?,
            (Some(experts), ExpertPlace::Instead) => self.experts(input, input, experts)?,
            (Some(experts), ExpertPlace::WithShared) => {
                let routed = self.experts(input, input, experts)?;
                let shared = self.network(input, layer)?;
                let weight = self.linear(input, TensorRole::SharedWeight, "shared weight")?;
                let weights = self.like(weight, "shared weight sigmoid");
                self.push(Op::Activate { x: weight, kind: Activation::Sigmoid, out: weights });
                let weighed = self.like(shared, "shared expert");
                self.push(Op::ExpertSum { x: shared, weights, out: weighed });
                self.sum(routed, weighed, "experts and shared expert")
            }
            (Some(experts), ExpertPlace::Beside) => {
                let dense = self.network(input, layer)?;
                let dense = self.norm(dense, TensorRole::PostDenseNorm, self.spec.hidden, "dense norm")?;
                let factor = (self.spec.hidden as f32).sqrt().recip();
                let scale = self.tensors.scaled(self.spec, TensorRole::RouterScale, self.layer, factor)?;
                let scale = self.weight(scale);
                let routed = self.plain_norm(x, Some(scale), self.spec.hidden, "router norm");
                let input = self.norm(x, TensorRole::ExpertNorm, self.spec.hidden, "expert norm")?;
                let sparse = self.experts(routed, input, experts)?;
                let sparse =
                    self.norm(sparse, TensorRole::PostExpertNorm, self.spec.hidden, "experts norm")?;
                self.sum(dense, sparse, "dense and experts")
            }
        };
        let norm = norms.post_ffn.then_some((TensorRole::PostFfnNorm, "post-ffn norm"));
        self.join(x, branch, norm, "ffn residual")
    }

    /// The experts that the router chooses for each row of `routed`, run on `input`, weighed and added.
    fn experts(&mut self, routed: ValueId, input: ValueId, experts: ExpertSpec) -> Result<ValueId> {
        let ExpertSpec { n_used, ffn, normalise, factor, .. } = experts;
        let x = self.linear(routed, TensorRole::Router, "router")?;
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
        self.push(Op::Route { x, normalise, factor, scales, ids, weights });
        let gate = self.expert_linear(input, ids, TensorRole::ExpertGate, n_used * ffn, "expert gate")?;
        let up = self.expert_linear(input, ids, TensorRole::ExpertUp, n_used * ffn, "expert up")?;
        let gated = self.like(gate, "expert gated");
        self.push(Op::Gate { gate, up, kind: self.spec.activation, out: gated });
        let cols = n_used * self.spec.hidden;
        let down = self.expert_linear(gated, ids, TensorRole::ExpertDown, cols, "expert down")?;
        let out = self.value("experts sum", rows, self.spec.hidden);
        self.push(Op::ExpertSum { x: down, weights, out });
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

    /// `(n, n_layers * per layer)`: what each layer gets besides the residual stream, from the token and its embedding.
    fn per_layer_inputs(&mut self, x: ValueId) -> Result<ValueId> {
        let (width, hidden) = (self.spec.per_layer_width, self.spec.hidden);
        let cols = width * self.spec.layers.len();
        let table = self.matrix(TensorRole::PerLayerEmbedding)?;
        let token = self.value("per-layer embedding", Rows::Tokens, cols);
        self.push(Op::Embed { table, scale: (width as f32).sqrt(), out: token });
        let y = self.linear(x, TensorRole::PerLayerModel, "per-layer projection")?;
        let y = self.scale(y, (hidden as f32).sqrt().recip(), "per-layer projection scaled");
        let y = self.norm(y, TensorRole::PerLayerNorm, width, "per-layer norm")?;
        let y = self.sum(y, token, "per-layer sum");
        Ok(self.scale(y, std::f32::consts::FRAC_1_SQRT_2, "per-layer inputs"))
    }

    /// `x + norm(out(f(gate(x)) * input))`
    fn per_layer_branch(&mut self, x: ValueId, inputs: ValueId, l: usize) -> Result<ValueId> {
        let width = self.spec.per_layer_width;
        let input = self.value("input", Rows::Tokens, width);
        self.push(Op::Columns { x: inputs, first: l * width, out: input });
        let gate = self.linear(x, TensorRole::PerLayerGate, "input gate")?;
        let out = self.like(gate, "input gated");
        self.push(Op::Gate { gate, up: input, kind: self.spec.activation, out });
        let y = self.linear(out, TensorRole::PerLayerOut, "input projection")?;
        let y = self.norm(y, TensorRole::PostPerLayerNorm, self.spec.hidden, "post-input norm")?;
        Ok(self.add_branch(x, y, "input residual"))
    }

    /// `factor * x`, where the layer has a factor.
    fn layer_scale(&mut self, x: ValueId) -> Result<ValueId> {
        match self.tensors.number(self.spec, TensorRole::LayerScale, self.layer)? {
            Some(factor) => Ok(self.scale(x, factor, "scaled")),
            None => Ok(x),
        }
    }

    /// `down(f(gate) * up)`
    fn network(&mut self, input: ValueId, layer: &LayerSpec) -> Result<ValueId> {
        let kind = self.spec.activation;
        let inner = if self.spec.family.gated {
            let gate = self.linear(input, TensorRole::FfnGate, "gate")?;
            let up = self.linear(input, TensorRole::FfnUp, "up")?;
            let out = self.value("gated", Rows::Tokens, layer.ffn);
            self.push(Op::Gate { gate, up, kind, out });
            out
        } else {
            let up = self.linear(input, TensorRole::FfnUp, "up")?;
            let out = self.value("activated", Rows::Tokens, layer.ffn);
            self.push(Op::Activate { x: up, kind, out });
            out
        };
        self.linear(inner, TensorRole::FfnDown, "down")
    }

    /// The hidden states of the output rows `(n_outputs, hidden)`, and the largest column of each.
    fn hidden(&mut self, x: ValueId) -> Result<(ValueId, ValueId)> {
        let selected = self.value("output rows", Rows::Outputs, self.spec.hidden);
        self.push(Op::SelectRows { x, out: selected });
        let out = self.final_norm(selected)?;
        Ok((out, self.argmax(out)))
    }

    /// One vector for the sequence of each output `(n_outputs, hidden)`, and its largest column.
    fn embedding(&mut self, x: ValueId, embedding: &EmbeddingSpec) -> Result<(ValueId, ValueId)> {
        let x = self.final_norm(x)?;
        let hidden = self.spec.hidden;
        let mut out = self.value("pooled", Rows::Outputs, hidden);
        self.push(Op::Pool { x, kind: embedding.pooling, out });
        if embedding.normalize {
            // x / sqrt(sum x^2) is x / sqrt(mean x^2) / sqrt(n). A vector of zeros stays one.
            let even = self.like(out, "evened");
            self.push(Op::RmsNorm {
                x: out,
                weight: None,
                eps: 1e-24 / hidden as f32,
                group: hidden,
                out: even,
            });
            out = self.like(even, "of length 1");
            self.push(Op::Scale { x: even, factor: 1.0 / (hidden as f32).sqrt(), out });
        }
        Ok((out, self.argmax(out)))
    }

    fn final_norm(&mut self, x: ValueId) -> Result<ValueId> {
        self.maybe_norm(self.spec.family.final_norm, x, TensorRole::OutputNorm, "output norm")
    }

    fn argmax(&mut self, x: ValueId) -> ValueId {
        let out = self.new_value("best token", Rows::Outputs, 1, DType::U32);
        self.push(Op::Argmax { x, out });
        out
    }

    /// Logits `(n_outputs, n_vocab)` and the best of each row.
    fn head(&mut self, x: ValueId) -> Result<(ValueId, ValueId)> {
        let (hidden, n_vocab) = (self.spec.hidden, self.spec.n_vocab);
        let selected = self.value("output rows", Rows::Outputs, hidden);
        self.push(Op::SelectRows { x, out: selected });
        let normed = self.final_norm(selected)?;
        let role = if self.spec.tied_head { TensorRole::TokenEmbedding } else { TensorRole::Output };
        let mut logits = self.linear(normed, role, "logits")?;
        if self.spec.logit_scale != 1.0 {
            let out = self.value("scaled logits", Rows::Outputs, n_vocab);
            self.push(Op::Scale { x: logits, factor: self.spec.logit_scale, out });
            logits = out;
        }
        if let Some(cap) = self.spec.logit_softcap {
            let out = self.value("capped logits", Rows::Outputs, n_vocab);
            self.push(Op::Softcap { x: logits, cap, out });
            logits = out;
        }
        Ok((logits, self.argmax(logits)))
    }

    fn maybe_norm(&mut self, there: bool, x: ValueId, role: TensorRole, name: &str) -> Result<ValueId> {
        if there { self.norm(x, role, self.spec.hidden, name) } else { Ok(x) }
    }

    fn norm(&mut self, x: ValueId, role: TensorRole, group: usize, name: &str) -> Result<ValueId> {
        let weight = self.tensors.norm(self.spec, role, self.layer)?;
        let weight = self.weight(weight);
        if self.spec.family.norm_kind == NormKind::Rms {
            return Ok(self.plain_norm(x, Some(weight), group, name));
        }
        let bias = self.tensors.bias(self.spec, role, self.layer)?.map(|b| self.weight(b));
        let out = self.like(x, name);
        self.push(Op::LayerNorm { x, weight, bias, eps: self.spec.norm_eps, out });
        Ok(out)
    }

    fn plain_norm(&mut self, x: ValueId, weight: Option<WeightId>, group: usize, name: &str) -> ValueId {
        let out = self.like(x, name);
        self.push(Op::RmsNorm { x, weight, eps: self.spec.norm_eps, group, out });
        out
    }

    fn scale(&mut self, x: ValueId, factor: f32, name: &str) -> ValueId {
        let out = self.like(x, name);
        self.push(Op::Scale { x, factor, out });
        out
    }

    fn sum(&mut self, a: ValueId, b: ValueId, name: &str) -> ValueId {
        let out = self.like(a, name);
        self.push(Op::Add { a, b, out });
        out
    }

    fn linear(&mut self, x: ValueId, role: TensorRole, name: &str) -> Result<ValueId> {
        let weight = self.matrix(role)?;
        let bias = self.tensors.bias(self.spec, role, self.layer)?;
        let must = self.spec.family.qkv_bias
            && matches!(role, TensorRole::AttnQ | TensorRole::AttnK | TensorRole::AttnV);
        if must && bias.is_none() {
            return Err(self.tensors.missing_bias(self.spec, role, self.layer));
        }
        let bias = bias.map(|b| self.weight(b));
        let rows = self.rows(x);
        let n_out = self.weights.get(weight.0 as usize).map_or(0, Weight::n_rows);
        let out = self.value(name, rows, n_out);
        self.push(Op::Linear { x, weight, bias, out });
        Ok(out)
    }

    fn rope(&mut self, x: ValueId, rope: &RopeSpec, head_dim: usize, name: &str) -> ValueId {
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
        out
    }

    fn add_branch(&mut self, x: ValueId, mut branch: ValueId, name: &str) -> ValueId {
        if self.spec.residual_scale != 1.0 {
            let out = self.like(branch, "scaled branch");
            self.push(Op::Scale { x: branch, factor: self.spec.residual_scale, out });
            branch = out;
        }
        let out = self.like(x, name);
        self.push(Op::Add { a: x, b: branch, out });
        out
    }

    fn matrix(&mut self, role: TensorRole) -> Result<WeightId> {
        let weight = self.tensors.matrix(self.spec, role, self.layer)?;
        Ok(self.weight(weight))
    }

    fn weight(&mut self, weight: Weight) -> WeightId {
        if let Some(id) = self.by_name.get(&weight.name) {
            return *id;
        }
        let id = WeightId(self.weights.len() as u32);
        self.by_name.insert(weight.name.clone(), id);
        self.weights.push(weight);
        id
    }

    fn value(&mut self, name: &str, rows: Rows, cols: usize) -> ValueId {
        self.new_value(name, rows, cols, DType::F32)
    }

    fn new_value(&mut self, name: &str, rows: Rows, cols: usize, dtype: DType) -> ValueId {
        let name = self.layer.map_or_else(|| name.to_owned(), |l| format!("layer {l} {name}"));
        self.values.push(Value { name, rows, cols, dtype });
        ValueId(self.values.len() as u32 - 1)
    }

    /// A new value with the rows and columns of another.
    fn like(&mut self, x: ValueId, name: &str) -> ValueId {
        let (rows, cols) = self.values.get(x.0 as usize).map_or((Rows::Tokens, 0), |v| (v.rows, v.cols));
        self.value(name, rows, cols)
    }

    fn rows(&self, x: ValueId) -> Rows {
        self.values.get(x.0 as usize).map_or(Rows::Tokens, |v| v.rows)
    }

    fn push(&mut self, op: Op) {
        self.nodes.push(Node { op, layer: self.layer.map(|l| l as u32) });
    }
}
