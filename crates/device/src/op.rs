//! The primitive operations of a forward pass.
//!
//! Shapes: `n` is the number of rows of the step (tokens or outputs), every activation is f32 `(n, cols)` row-major.

mod facts;

use crate::{FusedKind, KvLayerId, StateId, ValueId, WeightId};

pub use facts::{FromStep, KvAccess, OpFacts, OpKind};

/// Element-wise non-linearities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x * sigmoid(x)`
    Silu,
    /// `0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`
    GeluTanh,
    /// `0.5 x (1 + erf(x / sqrt 2))`
    GeluErf,
    /// `max(x, 0)`
    Relu,
    /// `1 / (1 + exp(-x))`
    Sigmoid,
    /// `x`: a Gate of this kind is a product.
    Identity,
    /// `max(x, 0)^2`
    ReluSquared,
    /// `ln(1 + exp(x))`
    Softplus,
}

/// Which dimensions a rotation pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopeStyle {
    /// `(i, i + n_dims/2)`: Hugging Face checkpoints.
    Half,
    /// `(2i, 2i + 1)`: the original formulation; converters to GGUF permute the rows of some families to it.
    Interleaved,
}

/// What a router makes of its logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RouterScores {
    /// A softmax over all experts.
    Softmax,
    /// A sigmoid of each.
    Sigmoid,
}

/// A choice among groups of neighbouring experts before the one among experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RouterGroups {
    /// Groups; divides the experts.
    pub n: usize,
    /// Those whose experts can be chosen: the ones with the largest sums, of equals the lower.
    pub n_used: usize,
    /// Experts of a group whose scores are summed, its best.
    pub n_best: usize,
}

/// How the rows of a sequence become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pooling {
    /// Their mean.
    Mean,
    /// The first row.
    First,
    /// The last row.
    Last,
}

/// What the ranks of a group make of a value that each of them has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CollectiveKind {
    /// `out = sum over ranks of x`, in the order of the ranks, so that every rank gets the same bits.
    AllReduce,
    /// The columns of `x` of all ranks, one rank after the other.
    AllGather,
}

/// One operation. Fields named `x`, `a`, `b`, `q`, `k`, `v`, `gate`, `up` are read; `out` is written.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// `out[i] = scale * table[token[i]]`; table `(n_vocab, cols)`, out `(n, cols)`.
    Embed {
        /// The embedding matrix.
        table: WeightId,
        /// Factor on every value; 1 for most, sqrt of the hidden size for some.
        scale: f32,
        /// `(n, cols)`
        out: ValueId,
    },
    /// `out = x / sqrt(mean(x^2) + eps) * weight`, over groups of `group` neighbouring columns.
    /// Weight is `(group)`: a whole row, or one head (then every head uses the same weight); or `(cols)`: each group its own.
    RmsNorm {
        /// `(n, cols)`
        x: ValueId,
        /// `(group)` or `(cols)`, F32; absent: no factor.
        weight: Option<WeightId>,
        /// Added to the mean square.
        eps: f32,
        /// Columns normalised together; divides `cols`.
        group: usize,
        /// `(n, cols)`
        out: ValueId,
    },
    /// `out = x W^T + bias`; W `(n_out, n_in)`, bias `(n_out)`.
    Linear {
        /// `(n, n_in)`
        x: ValueId,
        /// `(n_out, n_in)`, any block type.
        weight: WeightId,
        /// `(n_out)`, F32.
        bias: Option<WeightId>,
        /// `(n, n_out)`
        out: ValueId,
    },
    /// Rotary position embedding of the first `n_dims` of every head; the rest is copied.
    /// Pair `i` turns by `position * frequencies[i]`; cosine and sine are multiplied by `scale` (YaRN's attention factor).
    Rope {
        /// `(n, n_heads * head_dim)`
        x: ValueId,
        /// Columns of one head.
        head_dim: usize,
        /// Columns of a head that turn; even.
        n_dims: usize,
        /// Which columns form a pair.
        style: RopeStyle,
        /// `(n_dims / 2)` radians a position, F32.
        frequencies: WeightId,
        /// Factor on cosine and sine; 1 for most.
        scale: f32,
        /// `(n, n_heads * head_dim)`
        out: ValueId,
    },
    /// Store keys and values of the step's rows in the KV pages of a layer.
    KvWrite {
        /// `(n, n_kv_heads * head_dim)`
        k: ValueId,
        /// `(n, n_kv_heads * head_dim)`
        v: ValueId,
        /// Where.
        layer: KvLayerId,
    },
    /// Causal attention of each row over its own sequence's cached positions `<=` its own, and, with a window, `> position - window`.
    /// `out = softmax(softcap(scale * q k^T)) v`, the query heads in groups that share a KV head.
    Attention {
        /// `(n, n_heads * head_dim)`
        q: ValueId,
        /// Whose pages; a layer that shares another's KV names that one.
        layer: KvLayerId,
        /// Query heads; a multiple of the layer's KV heads.
        n_heads: usize,
        /// Factor on the scores.
        scale: f32,
        /// `cap * tanh(score / cap)` before the softmax.
        softcap: Option<f32>,
        /// Positions that a row sees, its own included; at most the layer's window.
        window: Option<usize>,
        /// The window does not slide: it begins at the last multiple of its length.
        chunked: bool,
        /// A row sees the rows of its span after it, too: they are in the pages already. The window bounds what is before it.
        both_ways: bool,
        /// `(n_heads)` F32: a logit per head that takes part in the softmax's sum and adds no value.
        sinks: Option<WeightId>,
        /// `(n, n_heads * head_dim)`
        out: ValueId,
    },
    /// `out = kind(x)`
    Activate {
        /// `(n, cols)`
        x: ValueId,
        /// The function.
        kind: Activation,
        /// `(n, cols)`
        out: ValueId,
    },
    /// `out = kind(gate) * up`
    Gate {
        /// `(n, cols)`
        gate: ValueId,
        /// `(n, cols)`
        up: ValueId,
        /// The function on the gate.
        kind: Activation,
        /// `(n, cols)`
        out: ValueId,
    },
    /// `out = a + b`
    Add {
        /// `(n, cols)`
        a: ValueId,
        /// `(n, cols)`
        b: ValueId,
        /// `(n, cols)`
        out: ValueId,
    },
    /// `out = factor * x`
    Scale {
        /// `(n, cols)`
        x: ValueId,
        /// The factor.
        factor: f32,
        /// `(n, cols)`
        out: ValueId,
    },
    /// `out = cap * tanh(x / cap)`
    Softcap {
        /// `(n, cols)`
        x: ValueId,
        /// The bound.
        cap: f32,
        /// `(n, cols)`
        out: ValueId,
    },
    /// `out = max(min, min(x, max))`
    Clamp {
        /// `(n, cols)`
        x: ValueId,
        /// The least that comes out; finite.
        min: f32,
        /// The most; finite, at least `min`.
        max: f32,
        /// `(n, cols)`
        out: ValueId,
    },
    /// Some neighbouring columns of each group of `group`: `out[:, g * taken + j] = x[:, g * group + first + j]` for `j < taken`.
    /// With one group these are some neighbouring columns of a row, with one for each head a part of every head.
    Columns {
        /// `(n, cols)`
        x: ValueId,
        /// The first column taken of a group.
        first: usize,
        /// Columns of a group; divides `cols`.
        group: usize,
        /// `(n, cols / group * taken)`, `taken` at most `group - first`.
        out: ValueId,
    },
    /// Which `k` experts run a row, those with the largest `p + bias`, and how much each counts.
    /// `weights = factor * scales[id] * p[id]` of `p = scores(x)`, where `normalise` divides `p` by the sum of the chosen
    /// ones. The largest comes first; of equals the lower id.
    Route {
        /// `(n, n_experts)`
        x: ValueId,
        /// Whether the weights of the chosen are made to sum to 1 (before the factors).
        normalise: bool,
        /// Factor on every weight; 1 for most.
        factor: f32,
        /// What is made of `x`.
        scores: RouterScores,
        /// `(n_experts)` F32: added where experts are chosen, but not where they are weighed.
        bias: Option<WeightId>,
        /// Groups, where they are chosen first.
        groups: Option<RouterGroups>,
        /// `(n_experts)` F32: a factor of each expert.
        scales: Option<WeightId>,
        /// `(n, k)`, u32
        ids: ValueId,
        /// `(n, k)`
        weights: ValueId,
    },
    /// Linear with the matrix of each chosen expert: `out[:, j] = x_j W[ids[:, j]]^T`, `x_j` the whole row, or its `j`-th
    /// part where `x` has `k * n_in` columns. Only the chosen experts' matrices are read.
    ExpertLinear {
        /// `(n, n_in)`: the same for all experts; or `(n, k * n_in)`: each has its own.
        x: ValueId,
        /// `(n, k)` u32, each below `n_experts`.
        ids: ValueId,
        /// `(n_experts, n_out, n_in)`, in parts.
        weight: WeightId,
        /// `(n, k * n_out)`
        out: ValueId,
    },
    /// `out = sum over j of weights[:, j] * x_j`, `x_j` the `j`-th of `k` parts of a row. With `k = 1`: a factor for each row.
    ExpertSum {
        /// `(n, k * cols)`
        x: ValueId,
        /// `(n, k)`
        weights: ValueId,
        /// `(n, cols)`
        out: ValueId,
    },
    /// `out[:, j] = x_j + bias[ids[:, j]]`, `x_j` the `j`-th of `k` parts of a row.
    ExpertBias {
        /// `(n, k * cols)`
        x: ValueId,
        /// `(n, k)` u32
        ids: ValueId,
        /// `(n_experts * cols)`, F32: those of each expert, one after another.
        bias: WeightId,
        /// `(n, k * cols)`
        out: ValueId,
    },
    /// `out = g * sigmoid(alpha * g) * (u + 1)`, `g = min(gate, limit)`, `u = max(-limit, min(up, limit))`
    GateClamped {
        /// `(n, cols)`
        gate: ValueId,
        /// `(n, cols)`
        up: ValueId,
        /// Factor in the sigmoid.
        alpha: f32,
        /// Bound of both.
        limit: f32,
        /// `(n, cols)`
        out: ValueId,
    },
    /// Heads put together: those of `out` are those of `a`, each with that of `b` after it.
    Join {
        /// `(n, n_heads * a_dim)`
        a: ValueId,
        /// `(n, n_heads * b_dim)`
        b: ValueId,
        /// Heads; 1: rows.
        n_heads: usize,
        /// `(n, n_heads * (a_dim + b_dim))`
        out: ValueId,
    },
    /// `out[:, j] = j`: ids by which an ExpertLinear takes every matrix, each for its part of a row.
    Ordinals {
        /// `(n, k)`, u32
        out: ValueId,
    },
    /// `out[i]` is the adapter of the span that row `i` belongs to ([`crate::Step::adapters`]); 0: none.
    Adapters {
        /// Adapters, the one that changes nothing included; at least 1.
        n: usize,
        /// `(n, 1)` of tokens or outputs, u32
        out: ValueId,
    },
    /// From rows of tokens to rows of outputs: `out[i] = x[outputs[i]]`.
    SelectRows {
        /// `(n_tokens, cols)`
        x: ValueId,
        /// `(n_outputs, cols)`
        out: ValueId,
    },
    /// Index of the largest column; the lowest of equals. Runs only when the step wants it.
    Argmax {
        /// `(n_outputs, n_vocab)`
        x: ValueId,
        /// `(n_outputs, 1)`, u32
        out: ValueId,
    },
    /// Several primitives that a device runs as one: exactly `parts`, in order.
    Fused {
        /// Which rule made it, and so which kernel runs it.
        kind: FusedKind,
        /// The primitives, none of them fused.
        parts: Vec<Op>,
    },
    /// `out = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * weight + bias`, over whole rows.
    LayerNorm {
        /// `(n, cols)`
        x: ValueId,
        /// `(cols)`, F32.
        weight: WeightId,
        /// `(cols)`, F32; absent: nothing is added.
        bias: Option<WeightId>,
        /// Added to the variance.
        eps: f32,
        /// `(n, cols)`
        out: ValueId,
    },
    /// `out[i] = table[position[i]]`: what a model has learned for each position of a sequence. A program is compiled for no
    /// more positions than the table has rows.
    EmbedPositions {
        /// `(n_positions, cols)`, any block type.
        table: WeightId,
        /// `(n, cols)`
        out: ValueId,
    },
    /// Attention of each row over all rows of its own span in this step, later ones included: nothing is cached, so a
    /// sequence must be whole in one step. `out = softmax(scale * q k^T) v`, the query heads in groups that share a KV head.
    SelfAttention {
        /// `(n, n_heads * head_dim)`
        q: ValueId,
        /// `(n, n_kv_heads * head_dim)`, `n_kv_heads` a divisor of `n_heads`.
        k: ValueId,
        /// `(n, n_kv_heads * head_dim)`
        v: ValueId,
        /// Heads; divides the columns.
        n_heads: usize,
        /// Factor on the scores.
        scale: f32,
        /// Rows that a row sees to each side of itself; `None`: all.
        window: Option<usize>,
        /// `(n, n_heads * head_dim)`
        out: ValueId,
    },
    /// From rows of tokens to rows of outputs: `out[i]` pools all rows of the span that holds row `outputs[i]`.
    Pool {
        /// `(n_tokens, cols)`
        x: ValueId,
        /// How.
        kind: Pooling,
        /// `(n_outputs, cols)`
        out: ValueId,
    },
    /// `out` is [`crate::Step::input`]: numbers that the caller gives, row by row. A plan has at most one.
    Input {
        /// `(n, cols)`
        out: ValueId,
    },
    /// The windows of a convolution along the rows of each span (im2col):
    /// `out[i][c * size + j] = x[stride * i + j - (size - 1) / 2][c]`, 0 outside the span. The columns are in the order of a
    /// convolution's weight `(n_out, n_in, size)`, which so is the `(n_out, n_in * size)` matrix of a Linear.
    Unfold {
        /// `(stride * n, n_in)`
        x: ValueId,
        /// Rows of a window.
        size: usize,
        /// Rows from one window to the next.
        stride: usize,
        /// `(n, n_in * size)`
        out: ValueId,
    },
    /// Attention of each row over all encoder states of a layer, which another plan wrote:
    /// `out = softmax(scale * q k^T) v`, the query heads in groups that share a KV head.
    CrossAttention {
        /// `(n, n_heads * head_dim)`
        q: ValueId,
        /// A layer with [`crate::KvLayer::encoder_states`].
        layer: KvLayerId,
        /// Query heads; a multiple of the layer's KV heads.
        n_heads: usize,
        /// Factor on the scores.
        scale: f32,
        /// `(n, n_heads * head_dim)`
        out: ValueId,
    },
    /// Scores of some heads with all encoder states of a layer, without softmax, for the alignment of rows and positions:
    /// `out[:, i * n_states + p] = scale * q_h . k_p`, `h = heads[i]`.
    CrossScores {
        /// `(n, n_heads * head_dim)`
        q: ValueId,
        /// A layer with [`crate::KvLayer::encoder_states`].
        layer: KvLayerId,
        /// Query heads; a multiple of the layer's KV heads.
        n_heads: usize,
        /// Which of them, in the order of the output; at least one.
        heads: Vec<usize>,
        /// Factor on the scores.
        scale: f32,
        /// `(n, heads.len() * n_states)`
        out: ValueId,
    },
    /// A causal convolution along the positions of each sequence, column by column:
    /// `out[t][c] = bias[c] + sum over j of weight[c][j] * x[t + 1 - size + j][c]`, 0 before the sequence begins. The `size - 1`
    /// positions before a span are read from the sequence's state, and the last ones up to its end are kept there, the oldest first.
    ShortConv {
        /// `(n, cols)`
        x: ValueId,
        /// `(cols, size)`, F32; a size of at least 2.
        weight: WeightId,
        /// `(cols)`, F32; absent: 0.
        bias: Option<WeightId>,
        /// Of `(size - 1) * cols` numbers.
        state: StateId,
        /// `(n, cols)`
        out: ValueId,
    },
    /// The gated delta rule (Yang, Kautz and Hatamizadeh, 2024), head by head along the positions of each sequence. A head's state
    /// is a matrix `S (key_dim, value_dim)`, all zeros before the sequence begins; at position `t`
    ///
    /// - `S = diag(d) S`, `d = exp(rate * step[t])`, one number for the head or one for each row of `S`;
    /// - `S = S + k[t] (beta[t] * (v[t] - S^T k[t]))^T`;
    /// - `out[t] = scale * S^T q[t]`.
    ///
    /// Several heads may share queries and keys: head `h` has those of key head `h / (n_heads / n_key_heads)`, or, where they are
    /// `tiled`, of `h % n_key_heads`. A span begins with the sequence's state and leaves there the one after its last position.
    GatedDelta {
        /// `(n, n_key_heads * key_dim)`
        q: ValueId,
        /// `(n, n_key_heads * key_dim)`
        k: ValueId,
        /// `(n, n_heads * value_dim)`
        v: ValueId,
        /// `(n, n_heads)` or `(n, n_heads * key_dim)`, not negative.
        step: ValueId,
        /// `(n, n_heads)`
        beta: ValueId,
        /// `(n_heads)` F32, not positive.
        rate: WeightId,
        /// Heads of queries and keys.
        n_key_heads: usize,
        /// Heads; a multiple of `n_key_heads`.
        n_heads: usize,
        /// Which heads share a key head.
        tiled: bool,
        /// Factor on the output.
        scale: f32,
        /// Of `n_heads * key_dim * value_dim` numbers, `(n_heads, key_dim, value_dim)`.
        state: StateId,
        /// `(n, n_heads * value_dim)`
        out: ValueId,
    },
    /// The selective scan with one decay for each head (Dao and Gu, 2024), head by head along the positions of each sequence. A
    /// head's state is a matrix `S (state_dim, head_dim)`, all zeros before the sequence begins; at position `t`
    ///
    /// - `S = exp(rate * step[t]) * S + b[t] (step[t] * x[t])^T`;
    /// - `out[t] = S^T c[t] + skip * x[t]`.
    ///
    /// Heads in groups share `b` and `c`: head `h` has those of group `h / (n_heads / n_groups)`. A span begins with the
    /// sequence's state and leaves there the one after its last position.
    SelectiveScan {
        /// `(n, n_heads * head_dim)`
        x: ValueId,
        /// `(n, n_groups * state_dim)`: what of `x` goes into the state.
        b: ValueId,
        /// `(n, n_groups * state_dim)`: what of the state comes out.
        c: ValueId,
        /// `(n, n_heads)`, not negative.
        step: ValueId,
        /// `(n_heads)` F32, not positive.
        rate: WeightId,
        /// `(n_heads)` F32; absent: 0.
        skip: Option<WeightId>,
        /// Groups of heads.
        n_groups: usize,
        /// Heads; a multiple of `n_groups`.
        n_heads: usize,
        /// Of `n_heads * state_dim * head_dim` numbers, `(n_heads, state_dim, head_dim)`.
        state: StateId,
        /// `(n, n_heads * head_dim)`
        out: ValueId,
    },
    /// Ranks run the same plan at the same time, each with its part of the weights; here each of them gets what all have. Only
    /// devices that are a rank of a group run it.
    Collective {
        /// Which.
        kind: CollectiveKind,
        /// `(n, cols)`
        x: ValueId,
        /// `(n, cols)`; of an AllGather `(n, n_ranks * cols)`
        out: ValueId,
    },
}
