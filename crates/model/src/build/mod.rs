//! The plan builder: writes a spec's layers as Ops.
//!
//! It may emit the Ops of a layer in any order: their places say which Ops are neighbours.
//!
//! This file has the loop over layers, the layout of the KV cache, and small helpers. `begin.rs`
//! builds the residual stream from the input, `layer.rs` attention, `network.rs` the feed-forward
//! network, and `altup.rs` layers over several streams. `end.rs` builds the result, and `next.rs`
//! the layer for multi-token prediction.

mod altup;
mod begin;
mod end;
mod given;
mod layer;
mod network;
mod next;
mod recurrent;

use std::collections::HashMap;

use device::{
    DType, KvLayer, KvLayerId, KvLayout, Node, Op, OutputKind, Place, Plan, RowCount, Value, ValueId, Weight,
    WeightId,
};

use crate::adapters::{Adapters, Target};
use crate::descriptor::NormKind;
use crate::embedding::EmbeddingSpec;
use crate::error::Result;
use crate::names::TensorRole;
use crate::rope::RopeSpec;
use crate::spec::{LayerSpec, ModelSpec, TemperatureSpec};
use crate::tensors::Tensors;
use crate::vision::BothWays;
pub(crate) use next::build_next;

/// The result of a forward pass.
#[derive(Clone, Copy)]
pub(crate) enum End<'a> {
    /// The family's own result: logits or hidden states of the output rows.
    Own,
    /// One vector for each sequence.
    Embedding(&'a EmbeddingSpec),
    /// The keys and values of encoder states for the layers of this decoder, written to the KV
    /// cache.
    EncoderStates(&'a ModelSpec),
    /// Logits, and the kept scores of some heads of cross-attention: ascending layers, each with
    /// ascending heads.
    Alignment(&'a [(usize, Vec<usize>)]),
}

/// Input, result and adapters of a forward pass.
pub(crate) struct Options<'a, 'f> {
    /// Positions of the longest context.
    pub n_ctx: usize,
    pub end: End<'a>,
    /// Layout of the input rows, if the input is embeddings instead of tokens.
    pub given: Option<GivenShape>,
    pub adapters: Option<&'a mut Adapters<'f>>,
}

impl Options<'_, '_> {
    /// A pass from tokens to the family's own result, without adapters.
    pub fn new(n_ctx: usize) -> Self {
        Options { n_ctx, end: End::Own, given: None, adapters: None }
    }
}

/// The layout of an input row, and the attention between rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GivenShape {
    /// Additions after layers, each as wide as the embedding.
    pub n_taps: usize,
    /// Heads with cosines and sines; 0: none.
    pub n_heads: usize,
    /// Column pairs of a head with cosines and sines.
    pub n_pairs: usize,
    /// Layers in which rows of a span attend to each other both ways.
    pub both_ways: BothWays,
}

/// The parts of the input rows.
struct Given {
    taps: Vec<ValueId>,
    /// Cosines and sines `(n, n_heads * n_pairs)`.
    turns: Option<(ValueId, ValueId)>,
    both_ways: BothWays,
}

impl Given {
    /// True if rows of a span attend to each other both ways in a layer.
    fn sees_both_ways(&self, layer: &LayerSpec) -> bool {
        match self.both_ways {
            BothWays::Never => false,
            BothWays::Always => true,
            BothWays::InWindowsIfSaid => layer.window.is_some(),
        }
    }
}

/// Builds a forward pass.
pub(crate) fn build<'a, 'f>(
    spec: &'a ModelSpec,
    tensors: &'a mut Tensors<'f>,
    Options { n_ctx, end, given, adapters }: Options<'a, 'f>,
) -> Result<Plan> {
    tensors.use_names_of(spec.family);
    let kv = KvLayers::of(if let End::EncoderStates(decoder) = end { decoder } else { spec });
    let mut builder = Builder::new(spec, tensors, n_ctx, adapters);
    // After the last layer that mixes positions only output rows are needed, unless a layer for
    // multi-token prediction follows.
    let layers = spec.main_layers();
    let last = layers.iter().rposition(LayerSpec::mixes).filter(|_| spec.n_next == 0);
    let mut x = match given {
        Some(shape) => builder.given(shape)?,
        None if spec.n_inputs > 0 => builder.input()?,
        None => builder.embed()?,
    };
    let inputs = if spec.per_layer_width > 0 { Some(builder.per_layer_inputs(x)?) } else { None };
    if spec.n_streams > 1 {
        x = builder.streams(x)?;
    }
    for (l, layer) in layers.iter().enumerate() {
        builder.layer = Some(l);
        let ends = last == Some(l) && matches!(end, End::Own | End::Alignment(_));
        if let (true, Some(inputs)) = (spec.n_streams > 1, inputs) {
            x = builder.layer_over_streams(x, inputs, (l, kv.own(l)), layer, ends)?;
            continue;
        }
        if spec.family.parallel {
            x = builder.parallel(x, kv.own(l), layer, ends)?;
            x = builder.add_tap(x, l);
            continue;
        }
        if layer.mixes() {
            x = builder.mix(x, kv.own(l), layer, ends && spec.encoder.is_none())?;
        }
        if spec.encoder.is_some() {
            let aligned = if let End::Alignment(heads) = end { heads } else { &[] };
            let aligned = aligned.iter().find(|(layer, _)| *layer == l).map_or(&[][..], |(_, heads)| heads);
            x = builder.cross_attention(x, kv.encoder_states(l), layer, aligned, ends)?;
        }
        if layer.ffn > 0 || layer.experts.is_some() {
            x = builder.feed_forward(x, layer)?;
        }
        if let Some(inputs) = inputs {
            x = builder.per_layer_branch(x, inputs, l)?;
        }
        x = builder.layer_scale(x)?;
        x = builder.add_tap(x, l);
    }
    builder.layer = None;
    if spec.n_streams > 1 {
        x = builder.mean_of_streams(x)?;
    }
    let output_kind = if matches!(end, End::Embedding(_)) { OutputKind::Hidden } else { spec.family.output };
    let (output, argmax) = match (end, output_kind) {
        (End::Embedding(embedding), _) => builder.embedding(x, embedding)?,
        (End::EncoderStates(decoder), _) => builder.encoder_states(x, decoder, &kv)?,
        (End::Own | End::Alignment(_), OutputKind::Logits) => builder.head(x)?,
        (End::Own | End::Alignment(_), OutputKind::Hidden) => builder.hidden(x)?,
    };
    builder.finish(kv, output, argmax, output_kind)
}

/// The layers of the KV cache, and the one that each layer of the model uses.
struct KvLayers {
    layers: Vec<KvLayer>,
    own: Vec<KvLayerId>,
    n_own: usize,
}

impl KvLayers {
    /// Adds a cache layer for each layer with keys of its own. If there is an encoder, adds one
    /// more for each layer, with the encoder's states.
    fn of(spec: &ModelSpec) -> KvLayers {
        let mut kv = KvLayers { layers: Vec::new(), own: Vec::with_capacity(spec.layers.len()), n_own: 0 };
        // Bidirectional attention reads the rows of its step and caches nothing.
        let cached = if spec.family.bidirectional { &[][..] } else { &spec.layers };
        for layer in cached {
            if !layer.attends {
                // A layer without attention never uses its id.
                kv.own.push(KvLayerId(u32::MAX));
                continue;
            }
            match layer.kv_from.and_then(|from| kv.own.get(from)) {
                Some(id) => kv.own.push(*id),
                None => {
                    kv.own.push(KvLayerId(kv.layers.len() as u32));
                    let LayerSpec { n_kv_heads, head_dim, window, latent, .. } = *layer;
                    let values_are_keys = latent.is_some();
                    kv.layers.push(KvLayer {
                        n_kv_heads,
                        head_dim,
                        window,
                        encoder_states: None,
                        values_are_keys,
                    });
                }
            }
        }
        kv.n_own = kv.layers.len();
        if let Some(encoder) = &spec.encoder {
            let encoder_states = |layer: &LayerSpec| {
                let LayerSpec { n_kv_heads, head_dim, .. } = *layer;
                KvLayer {
                    n_kv_heads,
                    head_dim,
                    window: None,
                    encoder_states: Some(encoder.n_ctx_train),
                    values_are_keys: false,
                }
            };
            kv.layers.extend(spec.layers.iter().map(encoder_states));
        }
        kv
    }

    /// The cache layer with a layer's keys and values of the sequence.
    fn own(&self, layer: usize) -> KvLayerId {
        self.own.get(layer).copied().unwrap_or(KvLayerId(layer as u32))
    }

    /// The cache layer with a layer's keys and values of the encoder's states.
    fn encoder_states(&self, layer: usize) -> KvLayerId {
        KvLayerId((self.n_own + layer) as u32)
    }
}

struct Builder<'a, 'f> {
    spec: &'a ModelSpec,
    tensors: &'a mut Tensors<'f>,
    n_ctx: usize,
    layer: Option<usize>,
    /// Place of the next Ops.
    place: Option<Place>,
    values: Vec<Value>,
    weights: Vec<Weight>,
    /// Weights by name, so that a tied head is the embedding's weight.
    by_name: HashMap<String, WeightId>,
    /// RoPE tables, one for all layers with equal RoPE.
    ropes: Vec<(RopeSpec, WeightId)>,
    /// Temperature factors, one column for all layers with equal temperatures.
    temperatures: Vec<(TemperatureSpec, ValueId)>,
    /// Ids of all heads, for token rows and for output rows.
    ordinals: Vec<(RowCount, usize, ValueId)>,
    nodes: Vec<Node>,
    kept: Vec<ValueId>,
    /// Length of each recurrent state, in numbers.
    states: Vec<usize>,
    /// Parts of the input rows, if the input is embeddings instead of tokens.
    given: Option<Given>,
    adapters: Option<&'a mut Adapters<'f>>,
    /// The adapter id of each row, for token rows and for output rows.
    adapter_ids: Vec<(RowCount, ValueId)>,
}

impl<'a, 'f> Builder<'a, 'f> {
    /// An empty builder.
    fn new(
        spec: &'a ModelSpec,
        tensors: &'a mut Tensors<'f>,
        n_ctx: usize,
        adapters: Option<&'a mut Adapters<'f>>,
    ) -> Builder<'a, 'f> {
        Builder {
            spec,
            tensors,
            n_ctx,
            layer: None,
            place: None,
            values: Vec::new(),
            weights: Vec::new(),
            by_name: HashMap::new(),
            ropes: Vec::new(),
            temperatures: Vec::new(),
            ordinals: Vec::new(),
            nodes: Vec::new(),
            kept: Vec::new(),
            states: Vec::new(),
            given: None,
            adapters,
            adapter_ids: Vec::new(),
        }
    }

    /// The finished plan, after its check.
    fn finish(self, kv: KvLayers, output: ValueId, argmax: ValueId, output_kind: OutputKind) -> Result<Plan> {
        let Builder { values, weights, nodes, kept, states, .. } = self;
        let kv = KvLayout { states, ..KvLayout::new(kv.layers) };
        let mut plan = Plan { values, weights, nodes, kv, output, argmax, output_kind, kept };
        plan.arrange();
        plan.check()?;
        Ok(plan)
    }
}

/// Helpers of all parts.
impl Builder<'_, '_> {
    fn maybe_norm(&mut self, there: bool, x: ValueId, role: TensorRole, name: &str) -> Result<ValueId> {
        if there { self.norm(x, role, self.spec.hidden, name) } else { Ok(x) }
    }

    fn norm(&mut self, x: ValueId, role: TensorRole, group: usize, name: &str) -> Result<ValueId> {
        let weight = self.tensors.norm(self.spec, role, self.layer)?;
        let weight = self.weight(weight);
        if self.spec.family.norm_kind == NormKind::Rms {
            return Ok(self.plain_norm(x, Some(weight), group, name));
        }
        let bias = self.bias(role)?;
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
        let bias = self.bias(role)?;
        let rows = self.rows(x);
        let n_out = self.weights.get(weight.0 as usize).map_or(0, Weight::n_rows);
        let out = self.value(name, rows, n_out);
        self.push(Op::Linear { x, weight, bias, out });
        self.adapted(x, role, out, name)
    }

    /// Adds the contributions of adapters to `out`, the product of `x` with the matrix of a role.
    fn adapted(&mut self, x: ValueId, role: TensorRole, out: ValueId, name: &str) -> Result<ValueId> {
        let Some(adapters) = &mut self.adapters else { return Ok(out) };
        let cols = |id: ValueId| self.values.get(id.0 as usize).map_or(0, |v| v.cols);
        let (n_out, n_in, n) = (cols(out), cols(x), adapters.n());
        let target = Target { spec: self.spec, tensors: self.tensors, role, layer: self.layer, n_out, n_in };
        let Some([a, b]) = adapters.stacks(&target)? else { return Ok(out) };
        let rows = self.rows(x);
        let rank = a.shape.get(1).copied().unwrap_or(0);
        let (a, b) = (self.weight(a), self.weight(b));
        let known = self.adapter_ids.iter().find(|(of, _)| *of == rows);
        let ids = match known {
            Some((_, ids)) => *ids,
            None => {
                let ids = self.new_value("adapters", rows, 1, DType::U32);
                self.push(Op::Adapters { n, out: ids });
                self.adapter_ids.push((rows, ids));
                ids
            }
        };
        let low = self.value(&format!("{name} adapter in"), rows, rank);
        self.push(Op::ExpertLinear { x, ids, weight: a, out: low });
        let change = self.like(out, &format!("{name} adapter out"));
        self.push(Op::ExpertLinear { x: low, ids, weight: b, out: change });
        Ok(self.sum(out, change, &format!("{name} adapted")))
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

    /// The bias of a role, if the file has one; an error if the family requires it.
    fn bias(&mut self, role: TensorRole) -> Result<Option<WeightId>> {
        match self.tensors.bias(self.spec, role, self.layer)? {
            Some(bias) => Ok(Some(self.weight(bias))),
            None if self.spec.family.biases.contains(&role) => {
                Err(self.tensors.missing_bias(self.spec, role, self.layer))
            }
            None => Ok(None),
        }
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

    fn value(&mut self, name: &str, rows: RowCount, cols: usize) -> ValueId {
        self.new_value(name, rows, cols, DType::F32)
    }

    fn new_value(&mut self, name: &str, rows: RowCount, cols: usize, dtype: DType) -> ValueId {
        let name = self.layer.map_or_else(|| name.to_owned(), |l| format!("layer {l} {name}"));
        self.values.push(Value { name, rows, cols, dtype });
        ValueId(self.values.len() as u32 - 1)
    }

    /// A new value with the rows and columns of another.
    fn like(&mut self, x: ValueId, name: &str) -> ValueId {
        let (rows, cols) = self.values.get(x.0 as usize).map_or((RowCount::Tokens, 0), |v| (v.rows, v.cols));
        self.value(name, rows, cols)
    }

    /// The output rows of a value, `(n_outputs, columns)`; the value itself if it has no other
    /// rows.
    fn output_rows(&mut self, x: ValueId, name: &str) -> ValueId {
        if self.rows(x) == RowCount::Outputs {
            return x;
        }
        let out = self.value(name, RowCount::Outputs, self.cols(x));
        self.push(Op::SelectRows { x, out });
        out
    }

    fn cols(&self, x: ValueId) -> usize {
        self.values.get(x.0 as usize).map_or(0, |v| v.cols)
    }

    fn rows(&self, x: ValueId) -> RowCount {
        self.values.get(x.0 as usize).map_or(RowCount::Tokens, |v| v.rows)
    }

    fn push(&mut self, op: Op) {
        self.nodes.push(Node { op, layer: self.layer.map(|l| l as u32), place: self.place });
    }

    /// Sets the place of the next Ops.
    fn at(&mut self, place: Place) {
        self.place = Some(place);
    }
}
