//! Roles of tensors, independent of their names.

use TensorRole::*;

/// The role of a tensor. Matrices are `(n_out, n_in)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TensorRole {
    /// Token embeddings, `(n_vocab, hidden)`.
    TokenEmbedding,
    /// Norm before the head, `(hidden)`.
    OutputNorm,
    /// The head, `(n_vocab, hidden)`.
    Output,
    /// Divisors of the RoPE frequencies, `(n_dims / 2)`.
    RopeDivisors,
    /// Divisors of the RoPE frequencies for contexts up to the original, `(n_dims / 2)`.
    RopeShort,
    /// Divisors of the RoPE frequencies for longer contexts, `(n_dims / 2)`.
    RopeLong,
    /// Norm before attention, `(hidden)`.
    AttnNorm,
    /// Query projection, `(n_heads * head_dim, hidden)`.
    AttnQ,
    /// Key projection, `(n_kv_heads * head_dim, hidden)`.
    AttnK,
    /// Value projection, `(n_kv_heads * head_dim, hidden)`.
    AttnV,
    /// Norm of queries, `(head_dim)` or `(n_heads * head_dim)`.
    AttnQNorm,
    /// Norm of keys, `(head_dim)` or `(n_kv_heads * head_dim)`.
    AttnKNorm,
    /// Output projection of attention, `(hidden, n_heads * head_dim)`.
    AttnOut,
    /// Norm after attention, `(hidden)`.
    PostAttnNorm,
    /// Norm before the feed-forward network, `(hidden)`.
    FfnNorm,
    /// Gate projection, `(ffn, hidden)`.
    FfnGate,
    /// Up projection, `(ffn, hidden)`.
    FfnUp,
    /// Down projection, `(hidden, ffn)`.
    FfnDown,
    /// Norm after the feed-forward network, `(hidden)`.
    PostFfnNorm,
    /// Position embeddings, `(n_positions, hidden)`.
    PositionEmbedding,
    /// Embeddings of token types, `(n_types, hidden)`. Types tell several texts apart; only the
    /// first is used.
    TokenTypes,
    /// Norm of the sum of embeddings, `(hidden)`.
    EmbeddingNorm,
    /// Factor on a layer's output, `(1)`.
    LayerScale,
    /// Router, `(n_experts, hidden)`.
    Router,
    /// Bias on the scores by which experts are chosen, `(n_experts)`.
    RouterBias,
    /// Bias of the experts' gates, `(n_experts, expert ffn)`.
    ExpertGateBias,
    /// Bias of the experts' up projections, `(n_experts, expert ffn)`.
    ExpertUpBias,
    /// Bias of the experts' down projections, `(n_experts, hidden)`.
    ExpertDownBias,
    /// Attention sinks, `(n_heads)`: a logit of each head that joins the softmax.
    AttnSinks,
    /// Projection to the latent of queries, `(query rank, hidden)`.
    AttnQA,
    /// Norm of the latent of queries, `(query rank)`.
    AttnQANorm,
    /// Projection from the latent to queries, `(n_heads * key columns, query rank)`.
    AttnQB,
    /// Projection to the latent and the shared key columns with RoPE, `(rank + columns with RoPE,
    /// hidden)`.
    AttnKvA,
    /// Norm of the latent of keys and values, `(rank)`.
    AttnKvANorm,
    /// Projection from the latent to keys and values, `(n_heads * (columns without RoPE + value
    /// columns), rank)`. Each head has its keys, then its values.
    AttnKvB,
    /// Projection of keys, transposed for each head, `(n_heads, rank, columns without RoPE)`.
    AttnKB,
    /// Projection from the latent to values, `(n_heads, value columns, rank)`.
    AttnVB,
    /// Factors on the router's normalised input, `(hidden)`.
    RouterScale,
    /// Factors on the weights of experts, `(n_experts)`.
    ExpertScale,
    /// Gate projections of the experts, `(n_experts, expert ffn, hidden)`.
    ExpertGate,
    /// Up projections of the experts, `(n_experts, expert ffn, hidden)`.
    ExpertUp,
    /// Down projections of the experts, `(n_experts, hidden, expert ffn)`.
    ExpertDown,
    /// Projection to the weight of the shared expert, `(1, hidden)`.
    SharedWeight,
    /// Norm before the experts, if the dense network beside them has its own, `(hidden)`.
    ExpertNorm,
    /// Norm after the dense network beside experts, `(hidden)`.
    PostDenseNorm,
    /// Norm after the experts beside a dense network, `(hidden)`.
    PostExpertNorm,
    /// Per-layer token embeddings, `(n_vocab, n_layers * per layer)`.
    PerLayerEmbedding,
    /// Projection of embeddings to per-layer inputs, `(n_layers * per layer, hidden)`.
    PerLayerModel,
    /// Norm of the projected per-layer inputs, `(per layer)`.
    PerLayerNorm,
    /// Gate of a layer's per-layer input, `(per layer, hidden)`.
    PerLayerGate,
    /// Output projection of the per-layer input, `(hidden, per layer)`.
    PerLayerOut,
    /// Norm after the output projection of the per-layer input, `(hidden)`.
    PostPerLayerNorm,
    /// The first convolution over the input, `(hidden, inputs, size)`.
    Conv1,
    /// The second convolution over the input, `(hidden, hidden, size)`.
    Conv2,
    /// Norm of the token embedding in a layer for multi-token prediction, `(hidden)`.
    NextEmbeddingNorm,
    /// Norm of the main model's state in a layer for multi-token prediction, `(hidden)`.
    NextHiddenNorm,
    /// Projection of embedding and state to the layer for multi-token prediction, `(hidden, 2 *
    /// hidden)`, the embedding's columns first.
    NextProjection,
    /// Norm before the head in a layer for multi-token prediction, `(hidden)`.
    NextOutputNorm,
    /// Norm before cross-attention, `(hidden)`.
    CrossNorm,
    /// Query projection of cross-attention, `(n_heads * head_dim, hidden)`.
    CrossQ,
    /// Key projection of the encoder's states, `(n_kv_heads * head_dim, hidden)`.
    CrossK,
    /// Value projection of the encoder's states, `(n_kv_heads * head_dim, hidden)`.
    CrossV,
    /// Output projection of cross-attention, `(hidden, n_heads * head_dim)`.
    CrossOut,
    /// Projection to q of a recurrence, by which rows of the state are read, `(n_groups * rows,
    /// hidden)`.
    RecurrentQ,
    /// Projection to k of a recurrence, by which rows of the state are written, `(n_groups * rows,
    /// hidden)`.
    RecurrentK,
    /// Projection to v of a recurrence, the input of its state, `(heads * head_dim, hidden)`.
    RecurrentV,
    /// Gate on the output of a recurrence, `(heads * head_dim, hidden)`.
    RecurrentGate,
    /// Projection to beta, the share of the difference that is written, `(heads, hidden)`.
    RecurrentBeta,
    /// Projection to the time step, `(heads, hidden)`.
    RecurrentStep,
    /// Projection to q, k, v and the gate, grouped by key head.
    RecurrentAll,
    /// Projection to beta and the time step, grouped by key head.
    RecurrentBetaStep,
    /// Taps of the convolution of q, `(n_groups * rows, size)`.
    ConvQ,
    /// Taps of the convolution of k, `(n_groups * rows, size)`.
    ConvK,
    /// Taps of the convolution of v, `(heads * head_dim, size)`.
    ConvV,
    /// Bias of the time step, `(heads)`.
    StepBias,
    /// Decay for a time step of 1, `(heads)`. Hugging Face checkpoints store the logarithm of its
    /// negative.
    Rate,
    /// Share of the input that is added to the output directly, `(heads)`.
    Skip,
    /// Norm of the output of a recurrence, `(head_dim)`, or `(heads * head_dim)` in groups.
    RecurrentNorm,
    /// Output projection of a recurrence, `(hidden, heads * head_dim)`.
    RecurrentOut,
    /// Projection to the columns that experts work in, `(latent, hidden)`.
    LatentDown,
    /// Projection from the columns that experts work in, `(hidden, latent)`.
    LatentUp,
    /// First, low-rank projection of a recurrence's gate, `(head_dim, hidden)`.
    GateDown,
    /// First, low-rank projection of a recurrence's time steps, `(head_dim, hidden)`.
    StepDown,
    /// Projections from the embedding to each other stream, `(n_streams - 1, hidden, hidden)`.
    StreamsIn,
    /// Projections of each other stream at the end of the model, `(n_streams - 1, hidden, hidden)`.
    StreamsOut,
    /// Norm before the router of streams, `(hidden)`.
    StreamNorm,
    /// Router of streams, `(n_streams, hidden)`.
    StreamRouter,
    /// Projection from the router to the share of each stream in each prediction, `(n_streams *
    /// n_streams, n_streams)`.
    StreamPredictions,
    /// Projection from the router to the factor of each stream's correction, `(n_streams,
    /// n_streams)`.
    StreamCorrections,
    /// Factors on the first stream where the per-layer input is added, `(hidden)`.
    StreamScale,
    /// Down projection of the low-rank residual, `(laurel rank, hidden)`.
    LaurelDown,
    /// Up projection of the low-rank residual, `(hidden, laurel rank)`.
    LaurelUp,
    /// Norm of the low-rank residual, `(hidden)`.
    LaurelNorm,
}

impl TensorRole {
    /// True if the role is the weight of a norm, which some families store less 1.
    pub(crate) fn is_norm(self) -> bool {
        matches!(
            self,
            OutputNorm
                | AttnNorm
                | AttnQNorm
                | AttnKNorm
                | AttnQANorm
                | AttnKvANorm
                | PostAttnNorm
                | FfnNorm
                | PostFfnNorm
                | EmbeddingNorm
                | ExpertNorm
                | PostDenseNorm
                | PostExpertNorm
                | PerLayerNorm
                | PostPerLayerNorm
                | StreamNorm
                | LaurelNorm
                | NextEmbeddingNorm
                | NextHiddenNorm
                | NextOutputNorm
        )
    }

    /// Description for people.
    pub fn what(self) -> &'static str {
        match self {
            TokenEmbedding => "token embedding",
            OutputNorm => "output norm",
            Output => "output head",
            RopeDivisors => "RoPE frequency divisors",
            RopeShort => "RoPE short factors",
            RopeLong => "RoPE long factors",
            AttnNorm => "attention norm",
            AttnQ => "query projection",
            AttnK => "key projection",
            AttnV => "value projection",
            AttnQNorm => "query norm",
            AttnKNorm => "key norm",
            AttnOut => "attention output projection",
            PostAttnNorm => "norm after attention",
            FfnNorm => "feed-forward norm",
            FfnGate => "feed-forward gate projection",
            FfnUp => "feed-forward up projection",
            FfnDown => "feed-forward down projection",
            PostFfnNorm => "norm after the feed-forward network",
            PositionEmbedding => "position embedding",
            TokenTypes => "token types",
            EmbeddingNorm => "embedding norm",
            LayerScale => "factor of the layer",
            Router => "router of experts",
            RouterBias => "bias on the choice of experts",
            ExpertGateBias => "gate biases of the experts",
            ExpertUpBias => "up biases of the experts",
            ExpertDownBias => "down biases of the experts",
            AttnSinks => "attention sinks",
            AttnQA => "projection to latent queries",
            AttnQANorm => "norm of latent queries",
            AttnQB => "projection from latent queries",
            AttnKvA => "projection to latent keys and values",
            AttnKvANorm => "norm of latent keys and values",
            AttnKvB => "projection from latent keys and values",
            AttnKB => "projection of queries to the latent",
            AttnVB => "projection from the latent to values",
            RouterScale => "scale of the router's input",
            ExpertScale => "scale of each expert",
            ExpertGate => "gate projection of the experts",
            ExpertUp => "up projection of the experts",
            ExpertDown => "down projection of the experts",
            SharedWeight => "weight of the shared expert",
            ExpertNorm => "norm before the experts",
            PostDenseNorm => "norm after the dense network",
            PostExpertNorm => "norm after the experts",
            PerLayerEmbedding => "per-layer embedding",
            PerLayerModel => "projection to per-layer inputs",
            PerLayerNorm => "norm of per-layer inputs",
            PerLayerGate => "gate of the per-layer input",
            PerLayerOut => "output projection of the per-layer input",
            PostPerLayerNorm => "norm after the per-layer input",
            Conv1 => "first convolution",
            Conv2 => "second convolution",
            NextEmbeddingNorm => "norm of the next token's embedding",
            NextHiddenNorm => "norm of the state before the next token",
            NextProjection => "projection to the layer for multi-token prediction",
            NextOutputNorm => "norm after the layer for multi-token prediction",
            CrossNorm => "cross-attention norm",
            CrossQ => "cross-attention query projection",
            CrossK => "cross-attention key projection",
            CrossV => "cross-attention value projection",
            CrossOut => "cross-attention output projection",
            RecurrentQ => "q projection of a recurrent layer",
            RecurrentK => "k projection of a recurrent layer",
            RecurrentV => "v projection of a recurrent layer",
            RecurrentGate => "gate projection of a recurrent layer",
            RecurrentBeta => "beta projection of a recurrent layer",
            RecurrentStep => "step projection of a recurrent layer",
            RecurrentAll => "projection of a recurrent layer",
            RecurrentBetaStep => "beta and step projection of a recurrent layer",
            ConvQ => "convolution of q",
            ConvK => "convolution of k",
            ConvV => "convolution of v",
            StepBias => "bias of the steps of a recurrent layer",
            Rate => "rate of decay of a recurrent layer",
            Skip => "skip of a recurrent layer",
            RecurrentNorm => "norm of a recurrent layer",
            RecurrentOut => "output projection of a recurrent layer",
            LatentDown => "projection to the experts' columns",
            LatentUp => "projection from the experts' columns",
            GateDown => "projection to the columns of a recurrent layer's gate",
            StepDown => "projection to the columns of a recurrent layer's steps",
            StreamsIn => "projections to the other streams",
            StreamsOut => "projections from the other streams",
            StreamNorm => "norm before the router of streams",
            StreamRouter => "router of streams",
            StreamPredictions => "coefficients of predicted streams",
            StreamCorrections => "coefficients of corrected streams",
            StreamScale => "scale of the corrected stream",
            LaurelDown => "down projection of the low-rank residual",
            LaurelUp => "up projection of the low-rank residual",
            LaurelNorm => "norm of the low-rank residual",
        }
    }
}
