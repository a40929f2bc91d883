//! What tensors are for, whatever they are called.

use TensorRole::*;

/// What a tensor is for. Matrices are `(n_out, n_in)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TensorRole {
    /// `(n_vocab, hidden)`
    TokenEmbedding,
    /// `(hidden)`
    OutputNorm,
    /// The head, `(n_vocab, hidden)`.
    Output,
    /// `(n_dims / 2)`: divisors of the rotation frequencies.
    RopeDivisors,
    /// `(n_dims / 2)`: divisors up to the original context.
    RopeShort,
    /// `(n_dims / 2)`: divisors beyond it.
    RopeLong,
    /// `(hidden)`, before attention.
    AttnNorm,
    /// `(n_heads * head_dim, hidden)`
    AttnQ,
    /// `(n_kv_heads * head_dim, hidden)`
    AttnK,
    /// `(n_kv_heads * head_dim, hidden)`
    AttnV,
    /// `(head_dim)` or `(n_heads * head_dim)`
    AttnQNorm,
    /// `(head_dim)` or `(n_kv_heads * head_dim)`
    AttnKNorm,
    /// `(hidden, n_heads * head_dim)`
    AttnOut,
    /// `(hidden)`, after attention.
    PostAttnNorm,
    /// `(hidden)`, before the feed-forward network.
    FfnNorm,
    /// `(ffn, hidden)`
    FfnGate,
    /// `(ffn, hidden)`
    FfnUp,
    /// `(hidden, ffn)`
    FfnDown,
    /// `(hidden)`, after the feed-forward network.
    PostFfnNorm,
    /// `(n_positions, hidden)`, added to the token's.
    PositionEmbedding,
    /// `(n_types, hidden)`: which of several texts a token belongs to; there is one here, the first.
    TokenTypes,
    /// `(hidden)`, on the sum of embeddings.
    EmbeddingNorm,
    /// `(1)`: factor on what leaves a layer.
    LayerScale,
    /// `(n_experts, hidden)`
    Router,
    /// `(n_experts)`: added to the scores by which experts are chosen.
    RouterBias,
    /// `(n_experts, expert ffn)`
    ExpertGateBias,
    /// `(n_experts, expert ffn)`
    ExpertUpBias,
    /// `(n_experts, hidden)`
    ExpertDownBias,
    /// `(n_heads)`: a logit of each head that takes part in the softmax.
    AttnSinks,
    /// `(query rank, hidden)`
    AttnQA,
    /// `(query rank)`
    AttnQANorm,
    /// `(n_heads * key columns, query rank)`
    AttnQB,
    /// `(rank + columns that rotate, hidden)`: the latent, and what rotates of all keys.
    AttnKvA,
    /// `(rank)`
    AttnKvANorm,
    /// `(n_heads * (columns that do not rotate + value columns), rank)`: of each head its keys, then its values.
    AttnKvB,
    /// `(n_heads, rank, columns that do not rotate)`
    AttnKB,
    /// `(n_heads, value columns, rank)`
    AttnVB,
    /// `(hidden)`: factors on the router's normalised input.
    RouterScale,
    /// `(n_experts)`: factors on the weights of experts.
    ExpertScale,
    /// `(n_experts, expert ffn, hidden)`
    ExpertGate,
    /// `(n_experts, expert ffn, hidden)`
    ExpertUp,
    /// `(n_experts, hidden, expert ffn)`
    ExpertDown,
    /// `(1, hidden)`: how much the shared expert counts.
    SharedWeight,
    /// `(hidden)`, before the experts where the dense network next to them has a norm of its own.
    ExpertNorm,
    /// `(hidden)`, after the dense network next to experts.
    PostDenseNorm,
    /// `(hidden)`, after the experts next to it.
    PostExpertNorm,
    /// `(n_vocab, n_layers * per layer)`
    PerLayerEmbedding,
    /// `(n_layers * per layer, hidden)`
    PerLayerModel,
    /// `(per layer)`
    PerLayerNorm,
    /// `(per layer, hidden)`
    PerLayerGate,
    /// `(hidden, per layer)`
    PerLayerOut,
    /// `(hidden)`, after that.
    PostPerLayerNorm,
    /// The first convolution over the input, `(hidden, inputs, size)`.
    Conv1,
    /// The second, `(hidden, hidden, size)`.
    Conv2,
    /// `(hidden)`: of the layer that predicts one token more, on the embedding of the next.
    NextEmbeddingNorm,
    /// `(hidden)`, on the state that the main model's head reads.
    NextHiddenNorm,
    /// `(hidden, 2 * hidden)`: from both of these to the layer, the embedding's columns first.
    NextProjection,
    /// `(hidden)`, before the head.
    NextOutputNorm,
    /// `(hidden)`, before the attention to the encoder's states.
    CrossNorm,
    /// `(n_heads * head_dim, hidden)`
    CrossQ,
    /// `(n_kv_heads * head_dim, hidden)`, of the encoder's states.
    CrossK,
    /// `(n_kv_heads * head_dim, hidden)`, of the encoder's states.
    CrossV,
    /// `(hidden, n_heads * head_dim)`
    CrossOut,
    /// Of a recurrent layer: which rows of the state come out, `(n_groups * rows, hidden)`.
    RecurrentQ,
    /// Into which rows, `(n_groups * rows, hidden)`.
    RecurrentK,
    /// What goes in, `(heads * head_dim, hidden)`.
    RecurrentV,
    /// `(heads * head_dim, hidden)`, a gate on what comes out.
    RecurrentGate,
    /// How much of the difference goes in, `(heads, hidden)`.
    RecurrentBeta,
    /// How far a position is from the one before, `(heads, hidden)`.
    RecurrentStep,
    /// Q, k, v and the gate of each key head, one key head after another.
    RecurrentAll,
    /// Beta and step of each key head, one key head after another.
    RecurrentBetaStep,
    /// `(n_groups * rows, size)`: taps of the convolution of q.
    ConvQ,
    /// `(n_groups * rows, size)`
    ConvK,
    /// `(heads * head_dim, size)`
    ConvV,
    /// `(heads)`, added to the step.
    StepBias,
    /// `(heads)`: decay for a step. Hugging Face checkpoints hold the logarithm of its size.
    Rate,
    /// `(heads)`: how much of what goes in comes out at once.
    Skip,
    /// `(head_dim)`, or `(heads * head_dim)` in groups.
    RecurrentNorm,
    /// `(hidden, heads * head_dim)`
    RecurrentOut,
    /// `(latent, hidden)`: to the columns that experts work in.
    LatentDown,
    /// `(hidden, latent)`, from there.
    LatentUp,
    /// `(head_dim, hidden)`: to the few columns that the gate of a recurrence comes through.
    GateDown,
    /// `(head_dim, hidden)`: to those that its steps come through.
    StepDown,
    /// `(n_streams - 1, hidden, hidden)`: from the embedding to each other stream.
    StreamsIn,
    /// `(n_streams - 1, hidden, hidden)`: from each other stream to what is added up at the end.
    StreamsOut,
    /// `(hidden)`, before the router of streams.
    StreamNorm,
    /// `(n_streams, hidden)`
    StreamRouter,
    /// `(n_streams * n_streams, n_streams)`: from what the router says to how much of each stream each prediction has.
    StreamPredictions,
    /// `(n_streams, n_streams)`: from what the router says to how much each stream is corrected.
    StreamCorrections,
    /// `(hidden)`: factors on the first stream where the layer's own input is added.
    StreamScale,
    /// `(laurel rank, hidden)`
    LaurelDown,
    /// `(hidden, laurel rank)`
    LaurelUp,
    /// `(hidden)`, after that.
    LaurelNorm,
}

impl TensorRole {
    /// Whether it is the weight of a norm, which some families store less 1.
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

    /// For people.
    pub fn what(self) -> &'static str {
        match self {
            TokenEmbedding => "token embedding",
            OutputNorm => "output norm",
            Output => "output head",
            RopeDivisors => "rope frequency divisors",
            RopeShort => "rope short factors",
            RopeLong => "rope long factors",
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
            RouterBias => "bias by which experts are chosen",
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
            PerLayerEmbedding => "embedding of each layer",
            PerLayerModel => "projection to each layer's input",
            PerLayerNorm => "norm of each layer's input",
            PerLayerGate => "gate of the layer's input",
            PerLayerOut => "projection of the layer's input",
            PostPerLayerNorm => "norm after the layer's input",
            Conv1 => "first convolution",
            Conv2 => "second convolution",
            NextEmbeddingNorm => "norm of the next token's embedding",
            NextHiddenNorm => "norm of the state before the next token",
            NextProjection => "projection to the layer that predicts one token more",
            NextOutputNorm => "norm after the layer that predicts one token more",
            CrossNorm => "cross-attention norm",
            CrossQ => "cross-attention query projection",
            CrossK => "cross-attention key projection",
            CrossV => "cross-attention value projection",
            CrossOut => "cross-attention output projection",
            RecurrentQ => "projection to what comes out of a recurrent state",
            RecurrentK => "projection to where things go in a recurrent state",
            RecurrentV => "projection to what goes into a recurrent state",
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
