//! Builder of plans with random weights, Op by Op.

mod recurrent;

use weights::{BlockType, Bytes, Planes};

use super::{Rng, blank, quantized, stored};
use device::{
    Activation, DType, KvLayer, KvLayerId, KvLayout, Node, Op, OutputKind, Plan, Pooling, RopeStyle,
    RouterGroups, RouterScores, RowCount, Value, ValueId, Weight, WeightId, WeightPart,
};

pub use recurrent::RecurrentShape;

/// Distinct rows of an embedding table; longer tables repeat them. So do the matrices of
/// [`PlanBuilder::repeating`].
const N_DIFFERENT: usize = 64;

/// Contents of matrices.
enum Matrices {
    /// Random numbers, quantised.
    Random,
    /// Zero bytes.
    Blank,
    /// A few random rows, repeated; by type and columns.
    Repeated(Vec<Weight>),
}

/// Builds a plan Op by Op. Each method adds one node and returns the value that it writes; shapes
/// follow from the inputs.
pub struct PlanBuilder {
    plan: Plan,
    kv_layers: Vec<KvLayer>,
    /// Length of each recurrent layer's state.
    states: Vec<usize>,
    layer: Option<u32>,
    n_vocab: usize,
    rng: Rng,
    matrices: Matrices,
}

/// Optional parts of an Attention.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttentionOptions {
    /// Same as the field of [`Op::Attention`].
    pub softcap: Option<f32>,
    /// Same as the field of [`Op::Attention`].
    pub window: Option<usize>,
    /// Same as the field of [`Op::Attention`].
    pub chunked: bool,
    /// Same as the field of [`Op::Attention`].
    pub both_ways: bool,
    /// True for sinks of random size.
    pub sinks: bool,
}

impl PlanBuilder {
    /// A builder whose embedding tables have `n_vocab` rows; [`Self::finish`] extends them to the
    /// number of logits.
    pub fn new(seed: u64, n_vocab: usize) -> PlanBuilder {
        PlanBuilder {
            plan: Plan {
                values: vec![],
                weights: vec![],
                nodes: vec![],
                kv: KvLayout::default(),
                output: ValueId(0),
                argmax: ValueId(0),
                output_kind: OutputKind::Logits,
                kept: vec![],
            },
            kv_layers: vec![],
            states: vec![],
            layer: None,
            n_vocab,
            rng: Rng::new(seed),
            matrices: Matrices::Random,
        }
    }

    /// A builder of plans that never run, with matrices of zero bytes.
    pub fn blank(n_vocab: usize) -> PlanBuilder {
        PlanBuilder { matrices: Matrices::Blank, ..PlanBuilder::new(0, n_vocab) }
    }

    /// A builder of plans whose speed is measured. The rows of matrices repeat 64 random ones,
    /// since quantising takes most of the time of building a plan.
    pub fn repeating(seed: u64, n_vocab: usize) -> PlanBuilder {
        PlanBuilder { matrices: Matrices::Repeated(vec![]), ..PlanBuilder::new(seed, n_vocab) }
    }

    /// Sets the layer of the next nodes.
    pub fn layer(&mut self, layer: Option<u32>) {
        self.layer = layer;
    }

    /// Adds a layer of the KV cache.
    pub fn kv_layer(&mut self, layer: KvLayer) -> KvLayerId {
        self.kv_layers.push(layer);
        KvLayerId(self.kv_layers.len() as u32 - 1)
    }

    /// Kind of a value's rows.
    pub fn rows(&self, id: ValueId) -> RowCount {
        self.plan.value(id).rows
    }

    /// Number of a value's columns.
    pub fn cols(&self, id: ValueId) -> usize {
        self.plan.value(id).cols
    }

    /// Adds a weight.
    pub fn weight(&mut self, weight: Weight) -> WeightId {
        self.plan.weights.push(weight);
        WeightId(self.plan.weights.len() as u32 - 1)
    }

    /// Adds a value, without a node that writes it.
    pub fn value(&mut self, rows: RowCount, cols: usize, dtype: DType) -> ValueId {
        let id = ValueId(self.plan.values.len() as u32);
        self.plan.values.push(Value { name: format!("value {}", id.0), rows, cols, dtype });
        id
    }

    /// Adds a node.
    pub fn push(&mut self, op: Op) {
        self.plan.nodes.push(Node { op, layer: self.layer, place: None });
    }

    fn name(&self, what: &str) -> String {
        format!("{what} {}", self.plan.weights.len())
    }

    /// A vector of random numbers around `mean`.
    fn vector(&mut self, what: &str, len: usize, mean: f32, spread: f32) -> WeightId {
        let values: Vec<f32> = (0..len).map(|_| mean + spread * self.rng.normal()).collect();
        let name = self.name(what);
        self.weight(Weight::vector(name, &values))
    }

    fn matrix(&mut self, n_out: usize, n_in: usize, block: BlockType) -> WeightId {
        let name = self.name("matrix");
        let weight = self.numbers(&name, n_out, n_in, block);
        self.weight(weight)
    }

    fn numbers(&mut self, name: &str, n_out: usize, n_in: usize, block: BlockType) -> Weight {
        match &mut self.matrices {
            Matrices::Random => quantized(&mut self.rng, name, n_out, n_in, block),
            Matrices::Blank => blank(name, n_out, n_in, block),
            Matrices::Repeated(known) => {
                let at = known.iter().position(|rows| rows.block == block && rows.n_cols() == n_in);
                let at = at.unwrap_or_else(|| {
                    known.push(quantized(&mut self.rng, "", N_DIFFERENT, n_in, block));
                    known.len() - 1
                });
                Weight { name: name.to_owned(), ..with_rows(&known[at], n_out) }
            }
        }
    }

    /// A value with the shape of `x`, written by the Op that `op` returns for its id.
    fn like(&mut self, x: ValueId, op: impl FnOnce(ValueId) -> Op) -> ValueId {
        let Value { rows, cols, .. } = *self.plan.value(x);
        let out = self.value(rows, cols, DType::F32);
        self.push(op(out));
        out
    }

    /// Random activations: an Embed of an F32 table of variance 1.
    pub fn embed(&mut self, cols: usize) -> ValueId {
        self.embed_from(cols, BlockType::F32, 1.0)
    }

    /// Random activations: an Embed of a table of another block type, with a factor.
    pub fn embed_from(&mut self, cols: usize, block: BlockType, scale: f32) -> ValueId {
        let n_different = self.n_vocab.min(N_DIFFERENT);
        let name = self.name("table");
        let table = stored(&mut self.rng, &name, n_different, cols, block, 1.0);
        let table = self.weight(with_rows(&table, self.n_vocab));
        let out = self.value(RowCount::Tokens, cols, DType::F32);
        self.push(Op::Embed { table, scale, out });
        out
    }

    /// An RmsNorm with a random weight around 1.
    pub fn rms_norm(&mut self, x: ValueId, group: usize) -> ValueId {
        let weight = self.vector("norm", group, 1.0, 0.2);
        self.like(x, |out| Op::RmsNorm { x, weight: Some(weight), eps: 1e-6, group, out })
    }

    /// An RmsNorm with a different weight for each group.
    pub fn rms_norm_of_groups(&mut self, x: ValueId, group: usize) -> ValueId {
        let weight = self.vector("norm", self.plan.value(x).cols, 1.0, 0.2);
        self.like(x, |out| Op::RmsNorm { x, weight: Some(weight), eps: 1e-6, group, out })
    }

    /// An RmsNorm without a weight.
    pub fn rms_norm_plain(&mut self, x: ValueId, group: usize) -> ValueId {
        self.like(x, |out| Op::RmsNorm { x, weight: None, eps: 1e-5, group, out })
    }

    /// A Linear with a random matrix, and a random bias if `bias` is set.
    pub fn linear(&mut self, x: ValueId, n_out: usize, block: BlockType, bias: bool) -> ValueId {
        let Value { rows, cols, .. } = *self.plan.value(x);
        let weight = self.matrix(n_out, cols, block);
        let bias = bias.then(|| self.vector("bias", n_out, 0.0, 1.0));
        let out = self.value(rows, n_out, DType::F32);
        self.push(Op::Linear { x, weight, bias, out });
        out
    }

    /// A Linear with a random F32 matrix, and a bias of numbers of size `spread`.
    pub fn linear_with_bias(&mut self, x: ValueId, n_out: usize, spread: f32) -> ValueId {
        let Value { rows, cols, .. } = *self.plan.value(x);
        let weight = self.matrix(n_out, cols, BlockType::F32);
        let bias = Some(self.vector("bias", n_out, 0.0, spread));
        let out = self.value(rows, n_out, DType::F32);
        self.push(Op::Linear { x, weight, bias, out });
        out
    }

    /// A Rope with frequencies from 1 down to 1/10000.
    pub fn rope(&mut self, x: ValueId, head_dim: usize, n_dims: usize, style: RopeStyle) -> ValueId {
        self.rope_scaled(x, head_dim, n_dims, style, 1.0)
    }

    /// A Rope with a factor on cosine and sine.
    pub fn rope_scaled(
        &mut self,
        x: ValueId,
        head_dim: usize,
        n_dims: usize,
        style: RopeStyle,
        scale: f32,
    ) -> ValueId {
        let frequency = |pair: usize| 10000f32.powf(-2.0 * pair as f32 / n_dims as f32);
        let values: Vec<f32> = (0..n_dims / 2).map(frequency).collect();
        let name = self.name("rope frequencies");
        let frequencies = self.weight(Weight::vector(name, &values));
        self.like(x, |out| Op::Rope { x, head_dim, n_dims, style, frequencies, scale, out })
    }

    /// A KvWrite of keys and values.
    pub fn kv_write(&mut self, k: ValueId, v: ValueId, layer: KvLayerId) {
        self.push(Op::KvWrite { k, v, layer });
    }

    /// An Attention with the usual scale, `1 / sqrt(head_dim)`.
    pub fn attention(
        &mut self,
        q: ValueId,
        layer: KvLayerId,
        n_heads: usize,
        options: AttentionOptions,
    ) -> ValueId {
        let sinks = options.sinks.then(|| self.vector("sinks", n_heads, 0.0, 1.0));
        let scale = (self.kv_layers[layer.0 as usize].head_dim as f32).sqrt().recip();
        let AttentionOptions { softcap, window, chunked, both_ways, .. } = options;
        self.like(q, |out| Op::Attention {
            q,
            layer,
            n_heads,
            scale,
            softcap,
            window,
            chunked,
            both_ways,
            sinks,
            out,
        })
    }

    /// `kind(x)`
    pub fn activate(&mut self, x: ValueId, kind: Activation) -> ValueId {
        self.like(x, |out| Op::Activate { x, kind, out })
    }

    /// `kind(gate) * up`
    pub fn gate(&mut self, gate: ValueId, up: ValueId, kind: Activation) -> ValueId {
        self.like(gate, |out| Op::Gate { gate, up, kind, out })
    }

    /// `a + b`
    pub fn add(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.like(a, |out| Op::Add { a, b, out })
    }

    /// `factor * x`
    pub fn scale(&mut self, x: ValueId, factor: f32) -> ValueId {
        self.like(x, |out| Op::Scale { x, factor, out })
    }

    /// `cap * tanh(x / cap)`
    pub fn softcap(&mut self, x: ValueId, cap: f32) -> ValueId {
        self.like(x, |out| Op::Softcap { x, cap, out })
    }

    /// `max(min, min(x, max))`
    pub fn clamp(&mut self, x: ValueId, min: f32, max: f32) -> ValueId {
        self.like(x, |out| Op::Clamp { x, min, max, out })
    }

    /// A LayerNorm with a random weight around 1, and a random bias if `bias` is set.
    pub fn layer_norm(&mut self, x: ValueId, bias: bool) -> ValueId {
        let weight = self.vector("norm", self.cols(x), 1.0, 0.2);
        let bias = bias.then(|| self.vector("norm bias", self.cols(x), 0.0, 1.0));
        self.like(x, |out| Op::LayerNorm { x, weight, bias, eps: 1e-6, out })
    }

    /// An EmbedPositions with a random table of all positions that the tests' limits allow.
    pub fn embed_positions(&mut self, cols: usize, block: BlockType) -> ValueId {
        let table = self.matrix(512, cols, block);
        let out = self.value(RowCount::Tokens, cols, DType::F32);
        self.push(Op::EmbedPositions { table, out });
        out
    }

    /// A SelfAttention with the usual scale, `1 / sqrt(head_dim)`.
    pub fn self_attention(&mut self, q: ValueId, k: ValueId, v: ValueId, n_heads: usize) -> ValueId {
        self.windowed_self_attention(q, k, v, n_heads, None)
    }

    /// A SelfAttention within a window to each side.
    pub fn windowed_self_attention(
        &mut self,
        q: ValueId,
        k: ValueId,
        v: ValueId,
        n_heads: usize,
        window: Option<usize>,
    ) -> ValueId {
        let scale = ((self.cols(q) / n_heads) as f32).sqrt().recip();
        self.like(q, |out| Op::SelfAttention { q, k, v, n_heads, scale, window, out })
    }

    /// A Pool of the rows of sequences.
    pub fn pool(&mut self, x: ValueId, kind: Pooling) -> ValueId {
        let out = self.value(RowCount::Outputs, self.cols(x), DType::F32);
        self.push(Op::Pool { x, kind, out });
        out
    }

    /// The step's input: `per_token` rows of `cols` numbers for each token.
    pub fn input(&mut self, cols: usize, per_token: usize) -> ValueId {
        let out = self.value(RowCount::PerToken(per_token), cols, DType::F32);
        self.push(Op::Input { out });
        out
    }

    /// An Unfold with windows of `size` rows, every `stride` rows; `stride` divides the rows of `x`
    /// for each token.
    pub fn unfold(&mut self, x: ValueId, size: usize, stride: usize) -> ValueId {
        let Value { rows, cols, .. } = *self.plan.value(x);
        let out = self.value(RowCount::PerToken(rows.count(1, 0) / stride), cols * size, DType::F32);
        self.push(Op::Unfold { x, size, stride, out });
        out
    }

    /// A CrossAttention with the usual scale, `1 / sqrt(head_dim)`.
    pub fn cross_attention(&mut self, q: ValueId, layer: KvLayerId, n_heads: usize) -> ValueId {
        let scale = (self.kv_layers[layer.0 as usize].head_dim as f32).sqrt().recip();
        self.like(q, |out| Op::CrossAttention { q, layer, n_heads, scale, out })
    }

    /// CrossScores of some heads with the usual scale, `1 / sqrt(head_dim)`.
    pub fn cross_scores(&mut self, q: ValueId, layer: KvLayerId, n_heads: usize, heads: &[usize]) -> ValueId {
        let kv = self.kv_layers[layer.0 as usize];
        let scale = (kv.head_dim as f32).sqrt().recip();
        let out = self.value(RowCount::Tokens, heads.len() * kv.encoder_states.unwrap_or(0), DType::F32);
        self.push(Op::CrossScores { q, layer, n_heads, heads: heads.to_vec(), scale, out });
        out
    }

    /// Marks a value that the caller reads.
    pub fn keep(&mut self, x: ValueId) {
        self.plan.kept.push(x);
    }

    /// `x[:, first..first + cols]`
    pub fn columns(&mut self, x: ValueId, first: usize, cols: usize) -> ValueId {
        self.columns_of_groups(x, first, self.plan.value(x).cols, cols)
    }

    /// `x[:, first..first + cols]` of each group of `group` columns
    pub fn columns_of_groups(&mut self, x: ValueId, first: usize, group: usize, cols: usize) -> ValueId {
        let Value { rows, cols: all, .. } = *self.plan.value(x);
        let out = self.value(rows, all / group * cols, DType::F32);
        self.push(Op::Columns { x, first, group, out });
        out
    }

    /// A Route to the `k` largest columns, with random factors of the experts if `scales` is set.
    pub fn route(
        &mut self,
        x: ValueId,
        k: usize,
        normalise: bool,
        factor: f32,
        scales: bool,
    ) -> (ValueId, ValueId) {
        let Value { rows, cols, .. } = *self.plan.value(x);
        let scales = scales.then(|| self.vector("scales", cols, 1.0, 0.2));
        let (ids, weights) = (self.value(rows, k, DType::U32), self.value(rows, k, DType::F32));
        let (scores, bias, groups) = (RouterScores::Softmax, None, None);
        self.push(Op::Route { x, normalise, factor, scores, bias, groups, scales, ids, weights });
        (ids, weights)
    }

    /// A Route by sigmoids with random biases, among the experts of some groups.
    pub fn route_by_sigmoids(
        &mut self,
        x: ValueId,
        k: usize,
        groups: Option<RouterGroups>,
    ) -> (ValueId, ValueId) {
        let Value { rows, cols, .. } = *self.plan.value(x);
        let bias = Some(self.vector("biases", cols, 0.0, 0.5));
        let (ids, weights) = (self.value(rows, k, DType::U32), self.value(rows, k, DType::F32));
        let (scores, normalise, factor, scales) = (RouterScores::Sigmoid, true, 2.5, None);
        self.push(Op::Route { x, normalise, factor, scores, bias, groups, scales, ids, weights });
        (ids, weights)
    }

    /// An ExpertBias with random biases of `n_experts` experts.
    pub fn expert_bias(&mut self, x: ValueId, ids: ValueId, n_experts: usize) -> ValueId {
        let bias = self.vector("biases", n_experts * self.cols(x) / self.cols(ids), 0.0, 1.0);
        self.like(x, |out| Op::ExpertBias { x, ids, bias, out })
    }

    /// `g * sigmoid(alpha * g) * (u + 1)`, with gate and up clamped.
    pub fn gate_clamped(&mut self, gate: ValueId, up: ValueId, alpha: f32, limit: f32) -> ValueId {
        self.like(gate, |out| Op::GateClamped { gate, up, alpha, limit, out })
    }

    /// A Join of heads.
    pub fn join(&mut self, a: ValueId, b: ValueId, n_heads: usize) -> ValueId {
        let out = self.value(self.plan.value(a).rows, self.cols(a) + self.cols(b), DType::F32);
        self.push(Op::Join { a, b, n_heads, out });
        out
    }

    /// Ordinals: ids 0 to `k - 1` for each token.
    pub fn ordinals(&mut self, k: usize) -> ValueId {
        let out = self.value(RowCount::Tokens, k, DType::U32);
        self.push(Op::Ordinals { out });
        out
    }

    /// The adapter of each row, of `n` adapters.
    pub fn adapters(&mut self, rows: RowCount, n: usize) -> ValueId {
        let out = self.value(rows, 1, DType::U32);
        self.push(Op::Adapters { n, out });
        out
    }

    /// An ExpertLinear with random matrices of `n_experts` experts. With `own`, `x` has a part for
    /// each chosen expert.
    pub fn expert_linear(
        &mut self,
        (x, own): (ValueId, bool),
        ids: ValueId,
        (n_experts, n_out): (usize, usize),
        block: BlockType,
    ) -> ValueId {
        let k = self.cols(ids);
        let n_in = if own { self.cols(x) / k } else { self.cols(x) };
        let name = self.name("experts");
        let mut part = || {
            let Weight { data, planes, .. } = self.numbers("", n_out, n_in, block);
            WeightPart { data, planes }
        };
        let parts = (0..n_experts).map(|_| part()).collect();
        let weight = self.weight(Weight::stack(name, [n_out, n_in], block, parts));
        let out = self.value(self.plan.value(x).rows, k * n_out, DType::F32);
        self.push(Op::ExpertLinear { x, ids, weight, out });
        out
    }

    /// An ExpertSum: the weighted sum of the parts of `x`.
    pub fn expert_sum(&mut self, x: ValueId, weights: ValueId) -> ValueId {
        let cols = self.cols(x) / self.cols(weights);
        let out = self.value(self.plan.value(x).rows, cols, DType::F32);
        self.push(Op::ExpertSum { x, weights, out });
        out
    }

    /// A SelectRows from tokens to outputs.
    pub fn select_rows(&mut self, x: ValueId) -> ValueId {
        let out = self.value(RowCount::Outputs, self.cols(x), DType::F32);
        self.push(Op::SelectRows { x, out });
        out
    }

    /// The output rows of `x` if `is_last`, for the part of a last layer after its attention;
    /// otherwise `x`.
    pub fn select_rows_of_last(&mut self, x: ValueId, is_last: bool) -> ValueId {
        if is_last { self.select_rows(x) } else { x }
    }

    /// Like [`Self::finish`], for output that is no logits: embedding tables keep their rows.
    pub fn finish_hidden(self, x: ValueId) -> Plan {
        self.finish_as(x, OutputKind::Hidden)
    }

    /// The plan with logits `x` and their Argmax. Output rows of `x` are selected first, if it has
    /// a row for each token.
    pub fn finish(self, x: ValueId) -> Plan {
        self.finish_as(x, OutputKind::Logits)
    }

    fn finish_as(mut self, x: ValueId, output_kind: OutputKind) -> Plan {
        let logits = if self.plan.value(x).rows == RowCount::Tokens { self.select_rows(x) } else { x };
        let argmax = self.value(RowCount::Outputs, 1, DType::U32);
        self.push(Op::Argmax { x: logits, out: argmax });
        let n_vocab = if output_kind == OutputKind::Logits { self.cols(logits) } else { 0 };
        for node in &self.plan.nodes {
            if let Op::Embed { table, .. } = node.op {
                let table = &mut self.plan.weights[table.0 as usize];
                if table.n_rows() < n_vocab {
                    *table = with_rows(table, n_vocab);
                }
            }
        }
        let kv = KvLayout { states: self.states, ..KvLayout::new(self.kv_layers) };
        Plan { output: logits, argmax, kv, output_kind, ..self.plan }
    }
}

/// A matrix of `n_rows` rows, which are those of `matrix`, repeated or cut.
fn with_rows(matrix: &Weight, n_rows: usize) -> Weight {
    let repeated = |bytes: &Bytes| {
        let row = bytes.len() / matrix.n_rows();
        let parts: Vec<&[u8]> = (0..n_rows)
            .step_by(matrix.n_rows())
            .map(|first| &bytes[..row * matrix.n_rows().min(n_rows - first)])
            .collect();
        Bytes::from_parts(&parts)
    };
    let Planes { scales, biases } = &matrix.planes;
    Weight {
        name: matrix.name.clone(),
        shape: vec![n_rows, matrix.n_cols()],
        block: matrix.block,
        data: repeated(&matrix.data),
        planes: Planes { scales: scales.as_ref().map(repeated), biases: biases.as_ref().map(repeated) },
        parts: vec![],
    }
}
