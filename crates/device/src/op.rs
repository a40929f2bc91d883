//! The primitive operations of a forward pass.
//!
//! Shapes: `n` is the number of rows of the step (tokens or outputs). Every activation is f32 `(n,
//! cols)`, row-major.

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
    /// `x`: a Gate with it is a product.
    Identity,
    /// `max(x, 0)^2`
    ReluSquared,
    /// `ln(1 + exp(x))`
    Softplus,
}

/// Pairs of dimensions that RoPE rotates together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopeStyle {
    /// `(i, i + n_dims/2)`: Hugging Face checkpoints.
    Half,
    /// `(2i, 2i + 1)`: the original formulation. Converters to GGUF permute the rows of some
    /// families to this order.
    Interleaved,
}

/// Function from router logits to scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RouterScores {
    /// A softmax over all experts.
    Softmax,
    /// A sigmoid of each logit.
    Sigmoid,
}

/// Selection of groups of neighbouring experts before the selection of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RouterGroups {
    /// Number of groups; divides the number of experts.
    pub n: usize,
    /// Number of groups whose experts can be chosen: those with the largest sums, ties to the lower
    /// index.
    pub n_used: usize,
    /// Number of a group's best experts whose scores are summed.
    pub n_best: usize,
}

/// Reduction of the rows of a sequence to one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pooling {
    /// Mean of all rows.
    Mean,
    /// The first row.
    First,
    /// The last row.
    Last,
}

/// Combination of a value that each rank of a group has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CollectiveKind {
    /// `out = sum over ranks of x`, in the order of the ranks, so that every rank gets the same
    /// bits.
    AllReduce,
    /// Columns of `x` of all ranks, in the order of the ranks.
    AllGather,
}

/// One operation. Fields named `x`, `a`, `b`, `q`, `k`, `v`, `gate`, `up` are read; `out` is
/// written.
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
    /// `out = x / sqrt(mean(x^2) + eps) * weight`, over groups of `group` neighbouring columns. A
    /// weight `(group)` applies to every group: a whole row, or each head. A weight `(cols)` has
    /// different factors for each group.
    RmsNorm {
        /// `(n, cols)`
        x: ValueId,
        /// `(group)` or `(cols)`, F32; absent means no factor.
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
    /// Rotary position embedding of the first `n_dims` columns of every head; the other columns are
    /// copied. The angle of pair `i` is `position * frequencies[i]`. Cosine and sine are multiplied
    /// by `scale` (YaRN's attention factor).
    Rope {
        /// `(n, n_heads * head_dim)`
        x: ValueId,
        /// Columns of one head.
        head_dim: usize,
        /// Rotated columns of a head; even.
        n_dims: usize,
        /// Columns that form a pair.
        style: RopeStyle,
        /// `(n_dims / 2)` radians per position, F32.
        frequencies: WeightId,
        /// Factor on cosine and sine; 1 for most.
        scale: f32,
        /// `(n, n_heads * head_dim)`
        out: ValueId,
    },
    /// Stores keys and values of the step's rows in the KV pages of a layer.
    KvWrite {
        /// `(n, n_kv_heads * head_dim)`
        k: ValueId,
        /// `(n, n_kv_heads * head_dim)`
        v: ValueId,
        /// The layer of the KV cache.
        layer: KvLayerId,
    },
    /// Causal attention of each row over the cached positions of its own sequence that are `<=` its
    /// own, and, with a window, `> position - window`. `out = softmax(softcap(scale * q k^T)) v`;
    /// groups of query heads share a KV head.
    Attention {
        /// `(n, n_heads * head_dim)`
        q: ValueId,
        /// The layer whose pages are read; a layer that shares another's KV names that one.
        layer: KvLayerId,
        /// Query heads; a multiple of the layer's KV heads.
        n_heads: usize,
        /// Factor on the scores.
        scale: f32,
        /// `cap * tanh(score / cap)` before the softmax.
        softcap: Option<f32>,
        /// Positions that a row attends to, its own included; at most the layer's window.
        window: Option<usize>,
        /// True if the window does not slide: it begins at the last multiple of its length.
        chunked: bool,
        /// True if a row also attends to later rows of its span, which are in the pages already.
        /// The window bounds earlier positions.
        both_ways: bool,
        /// `(n_heads)` F32: a logit for each head that is part of the softmax's sum and adds no
        /// value.
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
        /// The bound of the magnitude.
        cap: f32,
        /// `(n, cols)`
        out: ValueId,
    },
    /// `out = max(min, min(x, max))`
    Clamp {
        /// `(n, cols)`
        x: ValueId,
        /// Lower bound; finite.
        min: f32,
        /// Upper bound; finite, at least `min`.
        max: f32,
        /// `(n, cols)`
        out: ValueId,
    },
    /// Neighbouring columns of each group of `group`: `out[:, g * n + j] = x[:, g * group + first +
    /// j]` for `j < n`. One group selects columns of a row; a group for each head selects a part of
    /// every head.
    Columns {
        /// `(n, cols)`
        x: ValueId,
        /// First selected column of a group.
        first: usize,
        /// Columns of a group; divides `cols`.
        group: usize,
        /// `(n, cols / group * k)`, where `k` columns of each group are selected, at most `group -
        /// first`.
        out: ValueId,
    },
    /// Routing: the `k` experts of a row with the largest `p + bias`, and their weights. `weights =
    /// factor * scales[id] * p[id]` with `p = scores(x)`; `normalise` divides `p` by the sum of the
    /// chosen ones. The largest comes first, ties to the lower id.
    Route {
        /// `(n, n_experts)`
        x: ValueId,
        /// True if the weights of the chosen experts are normalised to sum 1, before the factors.
        normalise: bool,
        /// Factor on every weight; 1 for most.
        factor: f32,
        /// Function from `x` to scores.
        scores: RouterScores,
        /// `(n_experts)` F32: added for the choice of experts, not for their weights.
        bias: Option<WeightId>,
        /// Groups of experts, if groups are chosen first.
        groups: Option<RouterGroups>,
        /// `(n_experts)` F32: a factor for each expert.
        scales: Option<WeightId>,
        /// `(n, k)`, u32
        ids: ValueId,
        /// `(n, k)`
        weights: ValueId,
    },
    /// Linear with the matrix of each chosen expert: `out[:, j] = x_j W[ids[:, j]]^T`. `x_j` is the
    /// whole row, or its `j`-th part if `x` has `k * n_in` columns. Only the chosen experts'
    /// matrices are read.
    ExpertLinear {
        /// `(n, n_in)`, the same row for all experts; or `(n, k * n_in)`, a part for each.
        x: ValueId,
        /// `(n, k)` u32, each below `n_experts`.
        ids: ValueId,
        /// `(n_experts, n_out, n_in)`, a stack.
        weight: WeightId,
        /// `(n, k * n_out)`
        out: ValueId,
    },
    /// `out = sum over j of weights[:, j] * x_j`, where `x_j` is the `j`-th of `k` parts of a row.
    /// With `k = 1` this scales each row.
    ExpertSum {
        /// `(n, k * cols)`
        x: ValueId,
        /// `(n, k)`
        weights: ValueId,
        /// `(n, cols)`
        out: ValueId,
    },
    /// `out[:, j] = x_j + bias[ids[:, j]]`, where `x_j` is the `j`-th of `k` parts of a row.
    ExpertBias {
        /// `(n, k * cols)`
        x: ValueId,
        /// `(n, k)` u32
        ids: ValueId,
        /// `(n_experts * cols)`, F32: the biases of each expert, one after another.
        bias: WeightId,
        /// `(n, k * cols)`
        out: ValueId,
    },
    /// `out = g * sigmoid(alpha * g) * (u + 1)`, `g = min(gate, limit)`, `u = max(-limit, min(up,
    /// limit))`
    GateClamped {
        /// `(n, cols)`
        gate: ValueId,
        /// `(n, cols)`
        up: ValueId,
        /// Factor in the sigmoid.
        alpha: f32,
        /// Bound of gate and up.
        limit: f32,
        /// `(n, cols)`
        out: ValueId,
    },
    /// Concatenation of heads: each head of `out` is a head of `a` followed by the same head of
    /// `b`.
    Join {
        /// `(n, n_heads * a_dim)`
        a: ValueId,
        /// `(n, n_heads * b_dim)`
        b: ValueId,
        /// Number of heads; 1 concatenates rows.
        n_heads: usize,
        /// `(n, n_heads * (a_dim + b_dim))`
        out: ValueId,
    },
    /// `out[:, j] = j`: ids with which an ExpertLinear multiplies the `j`-th part of a row by the
    /// `j`-th matrix.
    Ordinals {
        /// `(n, k)`, u32
        out: ValueId,
    },
    /// `out[i]` is the adapter of the span that row `i` belongs to ([`crate::Step::adapters`]); 0
    /// for none.
    Adapters {
        /// Number of adapters, the neutral one included; at least 1.
        n: usize,
        /// `(n, 1)` of tokens or outputs, u32
        out: ValueId,
    },
    /// Selection of output rows from token rows: `out[i] = x[outputs[i]]`.
    SelectRows {
        /// `(n_tokens, cols)`
        x: ValueId,
        /// `(n_outputs, cols)`
        out: ValueId,
    },
    /// Index of the largest column, ties to the lowest. Runs only if the step wants it.
    Argmax {
        /// `(n_outputs, n_vocab)`
        x: ValueId,
        /// `(n_outputs, 1)`, u32
        out: ValueId,
    },
    /// Several primitives that a device runs as one: exactly `parts`, in order.
    Fused {
        /// The rule's kind, which selects the kernel.
        kind: FusedKind,
        /// The primitives; none of them is fused.
        parts: Vec<Op>,
    },
    /// `out = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * weight + bias`, over whole rows.
    LayerNorm {
        /// `(n, cols)`
        x: ValueId,
        /// `(cols)`, F32.
        weight: WeightId,
        /// `(cols)`, F32; absent means no bias.
        bias: Option<WeightId>,
        /// Added to the variance.
        eps: f32,
        /// `(n, cols)`
        out: ValueId,
    },
    /// `out[i] = table[position[i]]`: a learned embedding of each position of a sequence. A program
    /// is compiled for at most as many positions as the table has rows.
    EmbedPositions {
        /// `(n_positions, cols)`, any block type.
        table: WeightId,
        /// `(n, cols)`
        out: ValueId,
    },
    /// Attention of each row over all rows of its own span in this step, later ones included.
    /// Nothing is cached, so a sequence must be whole in one step. `out = softmax(scale * q k^T)
    /// v`; groups of query heads share a KV head.
    SelfAttention {
        /// `(n, n_heads * head_dim)`
        q: ValueId,
        /// `(n, n_kv_heads * head_dim)`; `n_kv_heads` divides `n_heads`.
        k: ValueId,
        /// `(n, n_kv_heads * head_dim)`
        v: ValueId,
        /// Query heads; divides the columns of `q`.
        n_heads: usize,
        /// Factor on the scores.
        scale: f32,
        /// Rows that a row attends to on each side of itself; `None` for all.
        window: Option<usize>,
        /// `(n, n_heads * head_dim)`
        out: ValueId,
    },
    /// Pooling of token rows to output rows: `out[i]` pools all rows of the span that holds row
    /// `outputs[i]`.
    Pool {
        /// `(n_tokens, cols)`
        x: ValueId,
        /// The reduction.
        kind: Pooling,
        /// `(n_outputs, cols)`
        out: ValueId,
    },
    /// `out` is [`crate::Step::input`]: numbers from the caller, row by row. A plan has at most one
    /// Input.
    Input {
        /// `(n, cols)`
        out: ValueId,
    },
    /// Windows of a convolution along the rows of each span (im2col): `out[i][c * size + j] =
    /// x[stride * i + j - (size - 1) / 2][c]`, 0 outside the span. The columns have the order of a
    /// convolution's weight `(n_out, n_in, size)`, so a Linear can use that weight as its `(n_out,
    /// n_in * size)` matrix.
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
    /// Attention of each row over all encoder states of a layer, which another plan wrote: `out =
    /// softmax(scale * q k^T) v`; groups of query heads share a KV head.
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
    /// Scores of some heads with all encoder states of a layer, without softmax, for alignment of
    /// rows and positions: `out[:, i * n_states + p] = scale * q_h . k_p`, `h = heads[i]`.
    CrossScores {
        /// `(n, n_heads * head_dim)`
        q: ValueId,
        /// A layer with [`crate::KvLayer::encoder_states`].
        layer: KvLayerId,
        /// Query heads; a multiple of the layer's KV heads.
        n_heads: usize,
        /// The scored heads, in the order of the output; at least one.
        heads: Vec<usize>,
        /// Factor on the scores.
        scale: f32,
        /// `(n, heads.len() * n_states)`
        out: ValueId,
    },
    /// Causal convolution along the positions of each sequence, column by column: `out[t][c] =
    /// bias[c] + sum over j of weight[c][j] * x[t + 1 - size + j][c]`, 0 before the sequence
    /// begins. The `size - 1` positions before a span are read from the sequence's state. The last
    /// `size - 1` positions of the span are stored there, the oldest first.
    ShortConv {
        /// `(n, cols)`
        x: ValueId,
        /// `(cols, size)`, F32; `size` is at least 2.
        weight: WeightId,
        /// `(cols)`, F32; absent means 0.
        bias: Option<WeightId>,
        /// State of `(size - 1) * cols` numbers.
        state: StateId,
        /// `(n, cols)`
        out: ValueId,
    },
    /// The gated delta rule (Yang, Kautz and Hatamizadeh, 2024), head by head along the positions
    /// of each sequence. A head's state is a matrix `S (key_dim, value_dim)`, all zeros before the
    /// sequence begins; at position `t`
    ///
    /// - `S = diag(d) S`, `d = exp(rate * step[t])`, one number for the head or one for each row of
    ///   `S`;
    /// - `S = S + k[t] (beta[t] * (v[t] - S^T k[t]))^T`;
    /// - `out[t] = scale * S^T q[t]`.
    ///
    /// Several heads may share queries and keys: head `h` has those of key head `h / (n_heads /
    /// n_key_heads)`, or, if they are `tiled`, those of `h % n_key_heads`. A span reads the
    /// sequence's state and writes the state after its last position.
    GatedDelta {
        /// `(n, n_key_heads * key_dim)`
        q: ValueId,
        /// `(n, n_key_heads * key_dim)`
        k: ValueId,
        /// `(n, n_heads * value_dim)`
        v: ValueId,
        /// `(n, n_heads)` or `(n, n_heads * key_dim)`, at least 0.
        step: ValueId,
        /// `(n, n_heads)`
        beta: ValueId,
        /// `(n_heads)` F32, at most 0.
        rate: WeightId,
        /// Number of heads of queries and keys.
        n_key_heads: usize,
        /// Number of heads of values; a multiple of `n_key_heads`.
        n_heads: usize,
        /// True if heads share key heads in the tiled order.
        tiled: bool,
        /// Factor on the output.
        scale: f32,
        /// State of `n_heads * key_dim * value_dim` numbers, `(n_heads, key_dim, value_dim)`.
        state: StateId,
        /// `(n, n_heads * value_dim)`
        out: ValueId,
    },
    /// The selective scan with one decay for each head (Dao and Gu, 2024), head by head along the
    /// positions of each sequence. A head's state is a matrix `S (state_dim, head_dim)`, all zeros
    /// before the sequence begins; at position `t`
    ///
    /// - `S = exp(rate * step[t]) * S + b[t] (step[t] * x[t])^T`;
    /// - `out[t] = S^T c[t] + skip * x[t]`.
    ///
    /// Heads in groups share `b` and `c`: head `h` has those of group `h / (n_heads / n_groups)`. A
    /// span reads the sequence's state and writes the state after its last position.
    SelectiveScan {
        /// `(n, n_heads * head_dim)`
        x: ValueId,
        /// `(n, n_groups * state_dim)`: the input projection of the state.
        b: ValueId,
        /// `(n, n_groups * state_dim)`: the output projection of the state.
        c: ValueId,
        /// `(n, n_heads)`, at least 0.
        step: ValueId,
        /// `(n_heads)` F32, at most 0.
        rate: WeightId,
        /// `(n_heads)` F32; absent means 0.
        skip: Option<WeightId>,
        /// Number of groups of heads.
        n_groups: usize,
        /// Number of heads; a multiple of `n_groups`.
        n_heads: usize,
        /// State of `n_heads * state_dim * head_dim` numbers, `(n_heads, state_dim, head_dim)`.
        state: StateId,
        /// `(n, n_heads * head_dim)`
        out: ValueId,
    },
    /// Communication among ranks, which run the same plan at the same time, each with its part of
    /// the weights. Afterwards each rank has the combined value. Only devices that are a rank of a
    /// group run it.
    Collective {
        /// The combination.
        kind: CollectiveKind,
        /// `(n, cols)`
        x: ValueId,
        /// `(n, cols)`; `(n, n_ranks * cols)` for an AllGather.
        out: ValueId,
    },
}
