//! Names: the metadata key of each number and the name of each tensor, in GGUF files and in Hugging Face
//! checkpoints. Everything here is a table. Names of speech models, in more kinds of files, are in `names/speech.rs`.
//!
//! GGUF names are those of the format's specification and of the files in use; Hugging Face names are the fields of
//! config.json and of the published checkpoints.
//!
//! Past 600 lines: each name is a row, and the two tables are read side by side.

mod recurrent;
mod speech;

use weights::Naming;

pub use recurrent::*;
pub use speech::*;

/// A number, list or word of the metadata.
#[allow(missing_docs)] // The table below says what each is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    Layers,
    Hidden,
    Heads,
    KvHeads,
    HeadDim,
    ValueDim,
    Ffn,
    Vocab,
    Context,
    NormEps,
    Activation,
    TiedHead,
    Experts,
    ExpertsUsed,
    ExpertFfn,
    SharedFfn,
    ExpertsOn,
    ExpertsEvery,
    DenseLayers,
    ExpertsNormalised,
    ExpertFactor,
    ExpertScores,
    ExpertGroups,
    ExpertGroupsUsed,
    SharedExperts,
    FirstDenseLayers,
    ExpertLayers,
    NextLayers,
    GateAlpha,
    GateLimit,
    LatentRank,
    QueryRank,
    LatentKeyDim,
    LatentValueDim,
    PlainKeyDim,
    TurningKeyDim,
    LayerHeadDim,
    LayerKvHeads,
    FullHeadDim,
    FullKvHeads,
    KeysAreValues,
    SharedKvLayers,
    WideSharedKv,
    PerLayerWidth,
    Bidirectional,
    Window,
    Chunk,
    WindowUsed,
    WindowEvery,
    FirstWindowLayer,
    LayerTypes,
    NoRopeLayers,
    NoRopeEvery,
    TemperatureOn,
    TemperatureScale,
    TemperatureLength,
    RopeTheta,
    WindowRopeTheta,
    RopeDims,
    RopePart,
    RopeKind,
    RopeFactor,
    RopeAlpha,
    RopeContext,
    RopeLow,
    RopeHigh,
    RopeAttention,
    RopeBetaFast,
    RopeBetaSlow,
    RopeMscale,
    RopeMscaleAll,
    RopeLogMultiplier,
    RopeTruncate,
    RopeShort,
    RopeLong,
    QueryScalar,
    AttentionScale,
    AttentionSoftcap,
    LogitSoftcap,
    LogitFactor,
    EmbeddingScale,
    ResidualScale,
    PositionKind,
    Padding,
    Inputs,
    StateHeads,
    StateHeadDim,
    StateInner,
    StateGroups,
    StateRows,
    ConvSize,
    GateAfterNorm,
    RopeUsed,
    AttentionIn,
    AttentionOutFactor,
    KeyFactor,
    ScanIn,
    ScanOut,
    ScanFactors,
    FfnFactors,
    LogitMultiplier,
    LatentWidth,
}

/// Where a key stands and what it may hold.
#[derive(Clone, Copy, Debug)]
pub struct KeyRow {
    /// Which.
    pub key: Key,
    /// For people.
    pub what: &'static str,
    /// After the architecture's name and a dot; the first that is there counts.
    pub gguf: &'static [&'static str],
    /// In config.json, flattened with dots; `{rope}` stands for one of [`ROPE_OBJECTS`].
    pub hf: &'static [&'static str],
    /// Smallest and largest number accepted. Beyond them lies nothing that was ever trained, and arithmetic that overflows.
    pub range: (f64, f64),
}

/// What a family calls a number in place of the table's names. Empty: it is not said there.
#[derive(Clone, Copy, Debug)]
pub struct KeyNames {
    /// Which.
    pub key: Key,
    /// In config.json of Hugging Face, flattened.
    pub hf: &'static str,
    /// Among the settings of CTranslate2's model.bin.
    pub ctranslate2: &'static str,
    /// Among the hyperparameters of whisper.cpp's files.
    pub whisper_cpp: &'static str,
}

const fn row(
    key: Key,
    what: &'static str,
    gguf: &'static [&'static str],
    hf: &'static [&'static str],
    min: f64,
    max: f64,
) -> KeyRow {
    KeyRow { key, what, gguf, hf, range: (min, max) }
}

/// Smallest factor, epsilon or cap: not zero.
pub(crate) const TINY: f64 = 1e-30;

/// All keys, in the order of [`Key`]. Lists and words have no range.
#[rustfmt::skip]
pub const KEYS: &[KeyRow] = &[
    row(Key::Layers, "number of layers", &["block_count"], &["num_hidden_layers", "n_layer"], 1.0, 4096.0),
    row(Key::Hidden, "hidden size", &["embedding_length"], &["hidden_size", "n_embd"], 1.0, 1048576.0),
    row(Key::Heads, "number of query heads", &["attention.head_count"], &["num_attention_heads", "n_head"], 0.0, 16384.0),
    row(Key::KvHeads, "number of key and value heads", &["attention.head_count_kv"], &["num_key_value_heads"], 0.0, 16384.0),
    row(Key::HeadDim, "columns of a head", &["attention.key_length"], &["head_dim"], 1.0, 16384.0),
    row(Key::ValueDim, "columns of a value head", &["attention.value_length"], &["v_head_dim"], 1.0, 16384.0),
    row(Key::Ffn, "columns of the feed-forward network", &["feed_forward_length"], &["intermediate_size", "n_inner"], 0.0, 16777216.0),
    row(Key::Vocab, "vocabulary size", &[], &["vocab_size"], 1.0, 67108864.0),
    row(Key::Context, "positions trained for", &["context_length"], &["max_position_embeddings", "n_positions"], 1.0, 2147483647.0),
    row(Key::NormEps, "epsilon of the norms", &["attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"],
        &["rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"], TINY, 1.0),
    row(Key::Activation, "activation", &[], &["hidden_activation", "hidden_act", "activation_function", "mlp_hidden_act"], 0.0, 0.0),
    row(Key::TiedHead, "whether the head is the embedding", &[], &["tie_word_embeddings"], 0.0, 1.0),
    row(Key::Experts, "number of experts", &["expert_count"], &["num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"], 0.0, 65536.0),
    row(Key::ExpertsUsed, "experts of a row", &["expert_used_count"], &["num_experts_per_tok", "top_k_experts", "moe_k"], 1.0, 1024.0),
    row(Key::ExpertFfn, "columns of an expert", &["expert_feed_forward_length"], &["moe_intermediate_size"], 1.0, 16777216.0),
    row(Key::SharedFfn, "columns of the shared expert", &["expert_shared_feed_forward_length"],
        &["shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "shared_intermediate_size"], 1.0, 16777216.0),
    row(Key::ExpertsOn, "whether there are experts", &[], &["enable_moe_block"], 0.0, 1.0),
    row(Key::ExpertsEvery, "every how many layers one has experts", &["interleave_moe_layer_step"], &["decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval"], 1.0, 4096.0),
    row(Key::DenseLayers, "layers without experts", &[], &["mlp_only_layers"], 0.0, 4096.0),
    row(Key::ExpertsNormalised, "whether weights of experts sum to 1", &["expert_weights_norm"], &["norm_topk_prob"], 0.0, 1.0),
    row(Key::ExpertFactor, "factor on the weights of experts", &["expert_weights_scale"], &["routed_scaling_factor"], TINY, 1e9),
    row(Key::ExpertScores, "what a router makes of its logits", &["expert_gating_func"], &["scoring_func"], 0.0, 4.0),
    row(Key::ExpertGroups, "groups of experts", &["expert_group_count"], &["n_group"], 0.0, 65536.0),
    row(Key::ExpertGroupsUsed, "groups of experts of a row", &["expert_group_used_count"], &["topk_group"], 0.0, 65536.0),
    row(Key::SharedExperts, "shared experts", &["expert_shared_count"], &["n_shared_experts", "moe_num_shared_experts"], 0.0, 1024.0),
    row(Key::FirstDenseLayers, "first layers without experts", &["leading_dense_block_count"], &["first_k_dense_replace", "moe_layer_start_index", "num_dense_layers"], 0.0, 4096.0),
    row(Key::ExpertLayers, "layers with experts", &[], &["moe_layers"], 0.0, 4096.0),
    row(Key::NextLayers, "layers that predict further tokens", &["nextn_predict_layers"], &["num_nextn_predict_layers"], 0.0, 64.0),
    row(Key::GateAlpha, "factor in the gate's sigmoid", &[], &["swiglu_alpha"], TINY, 1e9),
    row(Key::GateLimit, "bound of the gate", &[], &["swiglu_limit"], TINY, 1e9),
    row(Key::LatentRank, "columns of the latent keys and values", &["attention.kv_lora_rank"], &["kv_lora_rank"], 1.0, 1048576.0),
    row(Key::QueryRank, "columns of the latent queries", &["attention.q_lora_rank"], &["q_lora_rank"], 0.0, 1048576.0),
    row(Key::LatentKeyDim, "columns of an expanded key", &["attention.key_length_mla", "attention.key_length"], &[], 1.0, 16384.0),
    row(Key::LatentValueDim, "columns of an expanded value", &["attention.value_length_mla", "attention.value_length"], &["v_head_dim"], 1.0, 16384.0),
    row(Key::PlainKeyDim, "columns of a key that do not rotate", &[], &["qk_nope_head_dim"], 1.0, 16384.0),
    row(Key::TurningKeyDim, "columns of a key that rotate", &["rope.dimension_count"], &["qk_rope_head_dim"], 2.0, 16384.0),
    row(Key::LayerHeadDim, "columns of a head of one layer", &[], &["per_layer_config.{l}.head_dim"], 1.0, 16384.0),
    row(Key::LayerKvHeads, "key and value heads of one layer", &[], &["per_layer_config.{l}.num_key_value_heads"], 1.0, 16384.0),
    row(Key::FullHeadDim, "columns of a head that sees everything", &[], &["global_head_dim"], 1.0, 16384.0),
    row(Key::FullKvHeads, "key and value heads that see everything", &[], &["num_global_key_value_heads"], 1.0, 16384.0),
    row(Key::KeysAreValues, "whether values are keys", &[], &["attention_k_eq_v"], 0.0, 1.0),
    row(Key::SharedKvLayers, "last layers that read the keys and values of others", &["attention.shared_kv_layers"], &["num_kv_shared_layers"], 0.0, 4096.0),
    row(Key::WideSharedKv, "whether those are twice as wide", &[], &["use_double_wide_mlp"], 0.0, 1.0),
    row(Key::PerLayerWidth, "columns of a layer's own input", &["embedding_length_per_layer_input"], &["hidden_size_per_layer_input"], 0.0, 1048576.0),
    row(Key::Bidirectional, "whether attention looks ahead", &[], &["use_bidirectional_attention"], 0.0, 1.0),

    row(Key::Window, "sliding window", &["attention.sliding_window"], &["sliding_window", "local_attention"], 0.0, 2147483647.0),
    row(Key::Chunk, "chunks of attention", &["attention.sliding_window"], &["attention_chunk_size"], 0.0, 2147483647.0),
    row(Key::WindowUsed, "whether the window is used", &[], &["use_sliding_window"], 0.0, 1.0),
    row(Key::WindowEvery, "layers with a window", &["attention.sliding_window_pattern"],
        &["sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers"], 1.0, 4096.0),
    row(Key::FirstWindowLayer, "first layer with a window", &[], &["max_window_layers"], 0.0, 4096.0),
    row(Key::LayerTypes, "attention of each layer", &[], &["layer_types"], 0.0, 0.0),
    row(Key::NoRopeLayers, "whether each layer rotates", &[], &["no_rope_layers"], 0.0, 1.0),
    row(Key::NoRopeEvery, "every how many layers one does not rotate", &[], &["no_rope_layer_interval"], 1.0, 4096.0),

    row(Key::TemperatureOn, "whether queries are scaled by position", &[], &["attn_temperature_tuning"], 0.0, 1.0),
    row(Key::TemperatureScale, "growth of queries by position", &["attention.temperature_scale"],
        &["{rope}llama_4_scaling_beta", "attn_scale"], 0.0, 1e9),
    row(Key::TemperatureLength, "positions after which queries grow", &["attention.temperature_length"],
        &["floor_scale"], 1.0, 2147483647.0),

    row(Key::RopeTheta, "rotation base", &["rope.freq_base"], &["{rope}rope_theta", "rope_theta", "global_rope_theta", "rotary_emb_base"], 1.0, 1e15),
    row(Key::WindowRopeTheta, "rotation base of layers with a window", &["rope.freq_base_swa"], &["rope_local_base_freq", "local_rope_theta"], 1.0, 1e15),
    row(Key::RopeDims, "columns of a head that rotate", &["rope.dimension_count"], &[], 2.0, 16384.0),
    row(Key::RopePart, "part of a head that rotates", &[], &["{rope}partial_rotary_factor", "partial_rotary_factor"], TINY, 1.0),
    row(Key::RopeKind, "kind of rotation scaling", &["rope.scaling.type"], &["{rope}rope_type", "{rope}type"], 0.0, 0.0),
    row(Key::RopeFactor, "rotation scaling", &["rope.scaling.factor", "rope.scale_linear"], &["{rope}factor"], 0.0, 1e9),
    row(Key::RopeAlpha, "stretch of the rotation base", &["rope.scaling.alpha"], &["{rope}alpha"], 0.0, 1e9),
    row(Key::RopeContext, "positions before scaling", &["rope.scaling.original_context_length"],
        &["{rope}original_max_position_embeddings", "original_max_position_embeddings"], 1.0, 2147483647.0),
    row(Key::RopeLow, "low frequency factor", &[], &["{rope}low_freq_factor"], TINY, 1e9),
    row(Key::RopeHigh, "high frequency factor", &[], &["{rope}high_freq_factor"], TINY, 1e9),
    row(Key::RopeAttention, "factor on cosine and sine", &["rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor"],
        &["{rope}attention_factor"], TINY, 1e9),
    row(Key::RopeBetaFast, "rotations that keep a frequency", &["rope.scaling.yarn_beta_fast"], &["{rope}beta_fast"], TINY, 1e9),
    row(Key::RopeBetaSlow, "rotations that scale it fully", &["rope.scaling.yarn_beta_slow"], &["{rope}beta_slow"], TINY, 1e9),
    row(Key::RopeMscale, "YaRN mscale", &[], &["{rope}mscale"], 0.0, 1e9),
    row(Key::RopeMscaleAll, "YaRN mscale of all columns", &[], &["{rope}mscale_all_dim"], 0.0, 1e9),
    row(Key::RopeLogMultiplier, "YaRN mscale of all columns", &["rope.scaling.yarn_log_multiplier"], &[], 0.0, 1e9),
    row(Key::RopeTruncate, "whether YaRN rounds its range", &[], &["{rope}truncate"], 0.0, 1.0),
    row(Key::RopeShort, "factors up to the original context", &[], &["{rope}short_factor"], TINY, 1e9),
    row(Key::RopeLong, "factors beyond the original context", &[], &["{rope}long_factor"], TINY, 1e9),

    row(Key::QueryScalar, "inverse square of the attention scale", &[], &["query_pre_attn_scalar"], TINY, 1e9),
    row(Key::AttentionScale, "attention scale", &["attention.scale"], &["attention_multiplier"], TINY, 1e9),
    row(Key::AttentionSoftcap, "cap of attention scores", &["attn_logit_softcapping"], &["attn_logit_softcapping"], TINY, 1e9),
    row(Key::LogitSoftcap, "cap of logits", &["final_logit_softcapping"], &["final_logit_softcapping"], TINY, 1e9),
    row(Key::LogitFactor, "factor on logits, or their divisor", &["logit_scale"], &["logits_scaling", "logit_scale"], TINY, 1e9),
    row(Key::EmbeddingScale, "factor on embeddings", &["embedding_scale"], &["embedding_multiplier"], TINY, 1e9),
    row(Key::ResidualScale, "factor on each branch", &["residual_scale"], &["residual_multiplier"], TINY, 1e9),
    row(Key::PositionKind, "how positions are told apart", &[], &["position_embedding_type"], 0.0, 0.0),
    row(Key::Padding, "token that fills texts up", &[], &["pad_token_id"], 0.0, 67108864.0),
    row(Key::Inputs, "columns of the input", &[], &[], 1.0, 65536.0),

    row(Key::StateHeads, "heads of a recurrent layer", &["ssm.time_step_rank"],
        &["linear_num_value_heads", "mamba_n_heads", "mamba_num_heads"], 1.0, 16384.0),
    row(Key::StateHeadDim, "columns of a recurrent head", &[], &["linear_value_head_dim", "mamba_d_head", "mamba_head_dim"], 1.0, 16384.0),
    row(Key::StateInner, "columns of all recurrent heads", &["ssm.inner_size"], &[], 1.0, 16777216.0),
    row(Key::StateGroups, "groups of recurrent heads", &["ssm.group_count"],
        &["linear_num_key_heads", "mamba_n_groups", "n_groups"], 1.0, 16384.0),
    row(Key::StateRows, "rows of a recurrent head's state", &["ssm.state_size"],
        &["linear_key_head_dim", "mamba_d_state", "ssm_state_size", "state_size"], 1.0, 16384.0),
    row(Key::ConvSize, "positions that a short convolution sees", &["shortconv.l_cache", "ssm.conv_kernel"],
        &["conv_L_cache", "linear_conv_kernel_dim", "mamba_d_conv", "conv_kernel"], 2.0, 64.0),
    row(Key::GateAfterNorm, "whether a scan's gate follows its norm", &[], &["mamba_norm_before_gate"], 0.0, 1.0),
    row(Key::RopeUsed, "whether attention rotates", &["rope.scaling.finetuned"], &[], 0.0, 1.0),
    row(Key::AttentionIn, "factor on the input of attention", &[], &["attention_in_multiplier"], TINY, 1e9),
    row(Key::AttentionOutFactor, "factor on the output of attention", &[], &["attention_out_multiplier"], TINY, 1e9),
    row(Key::KeyFactor, "factor on keys", &[], &["key_multiplier"], TINY, 1e9),
    row(Key::ScanIn, "factor on the input of a scan", &[], &["ssm_in_multiplier"], TINY, 1e9),
    row(Key::ScanOut, "factor on the output of a scan", &[], &["ssm_out_multiplier"], TINY, 1e9),
    row(Key::ScanFactors, "factors on the parts of a scan's projection", &[], &["ssm_multipliers"], TINY, 1e9),
    row(Key::FfnFactors, "factors on the gate and the output of the network", &[], &["mlp_multipliers"], TINY, 1e9),
    row(Key::LogitMultiplier, "factor on logits", &[], &["lm_head_multiplier"], TINY, 1e9),
    row(Key::LatentWidth, "columns that experts work in", &["moe_latent_size"], &["moe_latent_size"], 1.0, 1048576.0),
];

// The table is in the order of the enum, so that a key is an index into it.
const _: () = {
    assert!(KEYS.len() == Key::LatentWidth as usize + 1);
    let mut i = 0;
    while i < KEYS.len() {
        assert!(KEYS[i].key as usize == i);
        i += 1;
    }
};

/// Where config.json of a multimodal model keeps its language model; keys not there are looked for outside.
pub const TEXT_CONFIG: &str = "text_config.";

/// Objects of config.json that hold rotation parameters: of one kind of layer, of all layers, and as older files say.
pub const ROPE_OBJECTS: &[&str] = &["rope_parameters.full_attention.", "rope_parameters.", "rope_scaling."];

/// The same for layers with a window that have their own.
pub const WINDOW_ROPE_OBJECTS: &[&str] = &["rope_parameters.sliding_attention."];

/// What a tensor is for, whatever it is called. Matrices are `(n_out, n_in)`.
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
}

/// What a tensor is called. `.weight` or `.bias` follows, unless `$` ends the name. Empty names: never there.
#[derive(Clone, Copy, Debug)]
pub struct TensorName {
    /// What it is for.
    pub role: TensorRole,
    /// `{l}` is the layer, `{e}` the expert, where each is a tensor by itself.
    pub gguf: &'static str,
    /// `{model}` is one of [`MODEL_PREFIXES`], `{layer}` is `{model}layers.{l}.`.
    pub hf: &'static str,
    /// `/weight` or `/bias` follows.
    pub ctranslate2: &'static str,
    /// OpenAI's names.
    pub whisper_cpp: &'static str,
    /// The tensor holds the rows of all of these, one after another, this role's among them. Empty: it holds this role alone.
    pub stacked: &'static [TensorRole],
    /// In Hugging Face checkpoints the matrix is `(n_in, n_out)`: it is turned at load.
    pub transposed: bool,
    /// There the rows of the stacked roles alternate.
    pub interleaved: bool,
}

const fn alone(role: TensorRole, gguf: &'static str, hf: &'static str) -> TensorName {
    TensorName {
        role,
        gguf,
        hf,
        ctranslate2: "",
        whisper_cpp: "",
        stacked: &[],
        transposed: false,
        interleaved: false,
    }
}

/// A matrix that Hugging Face checkpoints hold as `(n_in, n_out)`.
const fn transposed(name: TensorName) -> TensorName {
    TensorName { transposed: true, ..name }
}

/// Rows of two roles that alternate in Hugging Face checkpoints.
const fn interleaved(name: TensorName) -> TensorName {
    TensorName { interleaved: true, ..name }
}

const fn stacked(
    role: TensorRole,
    gguf: &'static str,
    hf: &'static str,
    stacked: &'static [TensorRole],
) -> TensorName {
    TensorName {
        role,
        gguf,
        hf,
        ctranslate2: "",
        whisper_cpp: "",
        stacked,
        transposed: false,
        interleaved: false,
    }
}

use TensorRole::*;

/// What most families say. Rows of the same role are alternatives.
#[rustfmt::skip]
pub const STANDARD: &[TensorName] = &[
    alone(TokenEmbedding, "token_embd", "{model}embed_tokens"),
    alone(OutputNorm, "output_norm", "{model}norm"),
    alone(Output, "output", "lm_head"),
    alone(Output, "", "language_model.lm_head"),
    alone(RopeDivisors, "rope_freqs", ""),
    alone(RopeShort, "rope_factors_short", ""),
    alone(RopeLong, "rope_factors_long", ""),
    alone(AttnNorm, "blk.{l}.attn_norm", "{layer}input_layernorm"),
    alone(AttnQ, "blk.{l}.attn_q", "{layer}self_attn.q_proj"),
    alone(AttnK, "blk.{l}.attn_k", "{layer}self_attn.k_proj"),
    alone(AttnV, "blk.{l}.attn_v", "{layer}self_attn.v_proj"),
    alone(AttnQNorm, "blk.{l}.attn_q_norm", "{layer}self_attn.q_norm"),
    alone(AttnKNorm, "blk.{l}.attn_k_norm", "{layer}self_attn.k_norm"),
    alone(AttnOut, "blk.{l}.attn_output", "{layer}self_attn.o_proj"),
    alone(FfnNorm, "blk.{l}.ffn_norm", "{layer}post_attention_layernorm"),
    alone(FfnGate, "blk.{l}.ffn_gate", "{layer}mlp.gate_proj"),
    alone(FfnUp, "blk.{l}.ffn_up", "{layer}mlp.up_proj"),
    alone(FfnDown, "blk.{l}.ffn_down", "{layer}mlp.down_proj"),
];

/// Norms after the branches take over the name that others give to the norm before the feed-forward network.
#[rustfmt::skip]
pub const SANDWICH: &[TensorName] = &[
    alone(PostAttnNorm, "blk.{l}.post_attention_norm", "{layer}post_attention_layernorm"),
    alone(FfnNorm, "blk.{l}.ffn_norm", "{layer}pre_feedforward_layernorm"),
    alone(PostFfnNorm, "blk.{l}.post_ffw_norm", "{layer}post_feedforward_layernorm"),
];

/// Queries, keys and values in one matrix, gate and up in another.
#[rustfmt::skip]
pub const FUSED: &[TensorName] = &[
    stacked(AttnQ, "blk.{l}.attn_qkv", "{layer}self_attn.qkv_proj", &[AttnQ, AttnK, AttnV]),
    stacked(AttnK, "blk.{l}.attn_qkv", "{layer}self_attn.qkv_proj", &[AttnQ, AttnK, AttnV]),
    stacked(AttnV, "blk.{l}.attn_qkv", "{layer}self_attn.qkv_proj", &[AttnQ, AttnK, AttnV]),
    stacked(FfnGate, "blk.{l}.ffn_up", "{layer}mlp.gate_up_proj", &[FfnGate, FfnUp]),
    stacked(FfnUp, "blk.{l}.ffn_up", "{layer}mlp.gate_up_proj", &[FfnGate, FfnUp]),
];

/// Experts whose matrices have numbers for names.
#[rustfmt::skip]
pub const NUMBERED_EXPERTS: &[TensorName] = &[
    alone(Router, "blk.{l}.ffn_gate_inp", "{layer}block_sparse_moe.gate"),
    alone(ExpertGate, "blk.{l}.ffn_gate_exps", "{layer}block_sparse_moe.experts.{e}.w1"),
    alone(ExpertUp, "blk.{l}.ffn_up_exps", "{layer}block_sparse_moe.experts.{e}.w3"),
    alone(ExpertDown, "blk.{l}.ffn_down_exps", "{layer}block_sparse_moe.experts.{e}.w2"),
    // Files of before experts were one tensor.
    alone(ExpertGate, "blk.{l}.ffn_gate.{e}", "{layer}block_sparse_moe.switch_mlp.gate_proj"),
    alone(ExpertUp, "blk.{l}.ffn_up.{e}", "{layer}block_sparse_moe.switch_mlp.up_proj"),
    alone(ExpertDown, "blk.{l}.ffn_down.{e}", "{layer}block_sparse_moe.switch_mlp.down_proj"),
];

/// Four norms a layer, those after the branches named for them; gate and up in one matrix.
#[rustfmt::skip]
pub const NAMED_POST_NORMS: &[TensorName] = &[
    alone(PostAttnNorm, "blk.{l}.post_attention_norm", "{layer}post_self_attn_layernorm"),
    alone(FfnNorm, "blk.{l}.ffn_norm", "{layer}post_attention_layernorm"),
    alone(PostFfnNorm, "blk.{l}.post_ffw_norm", "{layer}post_mlp_layernorm"),
    stacked(FfnGate, "blk.{l}.ffn_up", "{layer}mlp.gate_up_proj", &[FfnGate, FfnUp]),
    stacked(FfnUp, "blk.{l}.ffn_up", "{layer}mlp.gate_up_proj", &[FfnGate, FfnUp]),
];

/// GGUF files that name the norm before the network for what stands before it.
#[rustfmt::skip]
pub const FFN_NORM_AFTER_ATTENTION: &[TensorName] = &[
    alone(FfnNorm, "blk.{l}.post_attention_norm", "{layer}post_attention_layernorm"),
];

/// Two matrices of a network without a gate.
#[rustfmt::skip]
pub const UNGATED: &[TensorName] = &[
    alone(FfnUp, "blk.{l}.ffn_up", "{layer}mlp.c_fc"),
    alone(FfnDown, "blk.{l}.ffn_down", "{layer}mlp.c_proj"),
];

/// Norms of queries and keys under other names.
#[rustfmt::skip]
pub const QK_LAYER_NORMS: &[TensorName] = &[
    alone(AttnQNorm, "blk.{l}.attn_q_norm", "{layer}self_attn.query_layernorm"),
    alone(AttnKNorm, "blk.{l}.attn_k_norm", "{layer}self_attn.key_layernorm"),
];

/// Gate and up in one matrix; queries, keys and values in one in GGUF files only.
#[rustfmt::skip]
pub const FUSED_GATE: &[TensorName] = &[
    alone(AttnQ, "blk.{l}.attn_q", "{layer}self_attn.q_proj"),
    alone(AttnK, "blk.{l}.attn_k", "{layer}self_attn.k_proj"),
    alone(AttnV, "blk.{l}.attn_v", "{layer}self_attn.v_proj"),
    stacked(AttnQ, "blk.{l}.attn_qkv", "", &[AttnQ, AttnK, AttnV]),
    stacked(AttnK, "blk.{l}.attn_qkv", "", &[AttnQ, AttnK, AttnV]),
    stacked(AttnV, "blk.{l}.attn_qkv", "", &[AttnQ, AttnK, AttnV]),
    stacked(FfnGate, "blk.{l}.ffn_up", "{layer}mlp.gate_up_proj", &[FfnGate, FfnUp]),
    stacked(FfnUp, "blk.{l}.ffn_up", "{layer}mlp.gate_up_proj", &[FfnGate, FfnUp]),
];

/// Experts in two tensors, those of gate and up one after the other.
#[rustfmt::skip]
pub const STACKED_EXPERTS: &[TensorName] = &[
    alone(Router, "blk.{l}.ffn_gate_inp", "{layer}block_sparse_moe.router.layer"),
    alone(ExpertGate, "blk.{l}.ffn_gate_exps", "{layer}block_sparse_moe.switch_mlp.gate_proj"),
    stacked(ExpertGate, "", "{layer}block_sparse_moe.input_linear", &[ExpertGate, ExpertUp]),
    alone(ExpertUp, "blk.{l}.ffn_up_exps", "{layer}block_sparse_moe.switch_mlp.up_proj"),
    stacked(ExpertUp, "", "{layer}block_sparse_moe.input_linear", &[ExpertGate, ExpertUp]),
    alone(ExpertDown, "blk.{l}.ffn_down_exps", "{layer}block_sparse_moe.output_linear"),
    alone(ExpertDown, "", "{layer}block_sparse_moe.switch_mlp.down_proj"),
];

/// One norm, before both branches, and names from before the others agreed on theirs.
#[rustfmt::skip]
pub const PARALLEL: &[TensorName] = &[
    alone(OutputNorm, "output_norm", "{model}final_layernorm"),
    alone(AttnQ, "blk.{l}.attn_q", "{layer}self_attn.q_proj"),
    alone(AttnK, "blk.{l}.attn_k", "{layer}self_attn.k_proj"),
    alone(AttnV, "blk.{l}.attn_v", "{layer}self_attn.v_proj"),
    stacked(AttnQ, "blk.{l}.attn_qkv", "", &[AttnQ, AttnK, AttnV]),
    stacked(AttnK, "blk.{l}.attn_qkv", "", &[AttnQ, AttnK, AttnV]),
    stacked(AttnV, "blk.{l}.attn_qkv", "", &[AttnQ, AttnK, AttnV]),
    alone(AttnOut, "blk.{l}.attn_output", "{layer}self_attn.dense"),
    alone(FfnUp, "blk.{l}.ffn_up", "{layer}mlp.fc1"),
    alone(FfnDown, "blk.{l}.ffn_down", "{layer}mlp.fc2"),
];

/// The first decoder, whose matrices are `(n_in, n_out)`.
#[rustfmt::skip]
pub const TRANSPOSED: &[TensorName] = &[
    alone(TokenEmbedding, "token_embd", "{model}wte"),
    alone(PositionEmbedding, "position_embd", "{model}wpe"),
    alone(OutputNorm, "output_norm", "{model}ln_f"),
    alone(AttnNorm, "blk.{l}.attn_norm", "{model}h.{l}.ln_1"),
    transposed(stacked(AttnQ, "blk.{l}.attn_qkv", "{model}h.{l}.attn.c_attn", &[AttnQ, AttnK, AttnV])),
    transposed(stacked(AttnK, "blk.{l}.attn_qkv", "{model}h.{l}.attn.c_attn", &[AttnQ, AttnK, AttnV])),
    transposed(stacked(AttnV, "blk.{l}.attn_qkv", "{model}h.{l}.attn.c_attn", &[AttnQ, AttnK, AttnV])),
    transposed(alone(AttnOut, "blk.{l}.attn_output", "{model}h.{l}.attn.c_proj")),
    alone(FfnNorm, "blk.{l}.ffn_norm", "{model}h.{l}.ln_2"),
    transposed(alone(FfnUp, "blk.{l}.ffn_up", "{model}h.{l}.mlp.c_fc")),
    transposed(alone(FfnDown, "blk.{l}.ffn_down", "{model}h.{l}.mlp.c_proj")),
];

/// Routers with a bias for choosing, some shared experts added plainly, dense first layers.
#[rustfmt::skip]
pub const SHARED_EXPERTS: &[TensorName] = &[
    alone(RouterBias, "blk.{l}.exp_probs_b.bias$", "{layer}mlp.gate.e_score_correction_bias$"),
    alone(RouterBias, "blk.{l}.exp_probs_b$", "{layer}mlp.moe_statics.e_score_correction_bias$"),
    alone(FfnGate, "blk.{l}.ffn_gate_shexp", "{layer}mlp.shared_experts.gate_proj"),
    alone(FfnGate, "blk.{l}.ffn_gate", "{layer}mlp.gate_proj"),
    alone(FfnUp, "blk.{l}.ffn_up_shexp", "{layer}mlp.shared_experts.up_proj"),
    alone(FfnUp, "blk.{l}.ffn_up", "{layer}mlp.up_proj"),
    alone(FfnDown, "blk.{l}.ffn_down_shexp", "{layer}mlp.shared_experts.down_proj"),
    alone(FfnDown, "blk.{l}.ffn_down", "{layer}mlp.down_proj"),
];

/// Keys and values from a latent, queries from one or not.
#[rustfmt::skip]
pub const LATENT: &[TensorName] = &[
    alone(AttnQA, "blk.{l}.attn_q_a", "{layer}self_attn.q_a_proj"),
    alone(AttnQANorm, "blk.{l}.attn_q_a_norm", "{layer}self_attn.q_a_layernorm"),
    alone(AttnQB, "blk.{l}.attn_q_b", "{layer}self_attn.q_b_proj"),
    alone(AttnKvA, "blk.{l}.attn_kv_a_mqa", "{layer}self_attn.kv_a_proj_with_mqa"),
    alone(AttnKvANorm, "blk.{l}.attn_kv_a_norm", "{layer}self_attn.kv_a_layernorm"),
    alone(AttnKvB, "blk.{l}.attn_kv_b", "{layer}self_attn.kv_b_proj"),
    alone(AttnKB, "blk.{l}.attn_k_b", ""),
    alone(AttnVB, "blk.{l}.attn_v_b", ""),
];

/// Experts in two tensors whose matrices are `(n_in, n_out)`, next to a shared one.
#[rustfmt::skip]
pub const TURNED_EXPERTS: &[TensorName] = &[
    alone(Router, "blk.{l}.ffn_gate_inp", "{layer}feed_forward.router"),
    transposed(stacked(ExpertGate, "", "{layer}feed_forward.experts.gate_up_proj$", &[ExpertGate, ExpertUp])),
    transposed(stacked(ExpertUp, "", "{layer}feed_forward.experts.gate_up_proj$", &[ExpertGate, ExpertUp])),
    transposed(alone(ExpertDown, "", "{layer}feed_forward.experts.down_proj$")),
    alone(ExpertGate, "blk.{l}.ffn_gate_exps", "{layer}feed_forward.experts.gate_proj"),
    alone(ExpertUp, "blk.{l}.ffn_up_exps", "{layer}feed_forward.experts.up_proj"),
    alone(ExpertDown, "blk.{l}.ffn_down_exps", "{layer}feed_forward.experts.down_proj"),
    alone(FfnGate, "blk.{l}.ffn_gate_shexp", "{layer}feed_forward.shared_expert.gate_proj"),
    alone(FfnGate, "blk.{l}.ffn_gate", "{layer}feed_forward.gate_proj"),
    alone(FfnUp, "blk.{l}.ffn_up_shexp", "{layer}feed_forward.shared_expert.up_proj"),
    alone(FfnUp, "blk.{l}.ffn_up", "{layer}feed_forward.up_proj"),
    alone(FfnDown, "blk.{l}.ffn_down_shexp", "{layer}feed_forward.shared_expert.down_proj"),
    alone(FfnDown, "blk.{l}.ffn_down", "{layer}feed_forward.down_proj"),
];

/// Experts with biases, gate and up alternating, as numbers or as blocks of 4 bits; sinks.
#[rustfmt::skip]
pub const BIASED_EXPERTS: &[TensorName] = &[
    alone(FfnNorm, "blk.{l}.post_attention_norm", "{layer}post_attention_layernorm"),
    alone(AttnSinks, "blk.{l}.attn_sinks.weight$", "{layer}self_attn.sinks$"),
    alone(Router, "blk.{l}.ffn_gate_inp", "{layer}mlp.router"),
    interleaved(transposed(stacked(ExpertGate, "", "{layer}mlp.experts.gate_up_proj$", &[ExpertGate, ExpertUp]))),
    interleaved(transposed(stacked(ExpertUp, "", "{layer}mlp.experts.gate_up_proj$", &[ExpertGate, ExpertUp]))),
    transposed(alone(ExpertDown, "", "{layer}mlp.experts.down_proj$")),
    interleaved(stacked(ExpertGate, "", "{layer}mlp.experts.gate_up_proj_blocks$", &[ExpertGate, ExpertUp])),
    interleaved(stacked(ExpertUp, "", "{layer}mlp.experts.gate_up_proj_blocks$", &[ExpertGate, ExpertUp])),
    alone(ExpertDown, "", "{layer}mlp.experts.down_proj_blocks$"),
    alone(ExpertGate, "blk.{l}.ffn_gate_exps", "{layer}mlp.experts.gate_proj"),
    alone(ExpertUp, "blk.{l}.ffn_up_exps", "{layer}mlp.experts.up_proj"),
    alone(ExpertDown, "blk.{l}.ffn_down_exps", "{layer}mlp.experts.down_proj"),
    interleaved(stacked(ExpertGateBias, "", "{layer}mlp.experts.gate_up_proj_bias$", &[ExpertGateBias, ExpertUpBias])),
    interleaved(stacked(ExpertUpBias, "", "{layer}mlp.experts.gate_up_proj_bias$", &[ExpertGateBias, ExpertUpBias])),
    alone(ExpertDownBias, "blk.{l}.ffn_down_exps.bias$", "{layer}mlp.experts.down_proj_bias$"),
    alone(ExpertGateBias, "blk.{l}.ffn_gate_exps.bias$", "{layer}mlp.experts.gate_proj.bias$"),
    alone(ExpertUpBias, "blk.{l}.ffn_up_exps.bias$", "{layer}mlp.experts.up_proj.bias$"),
    alone(ExpertDownBias, "", "{layer}mlp.experts.down_proj.bias$"),
];

/// An encoder in the manner of the first transformers: norms on the sums.
#[rustfmt::skip]
pub const ENCODER: &[TensorName] = &[
    alone(TokenEmbedding, "token_embd", "{model}embeddings.word_embeddings"),
    alone(PositionEmbedding, "position_embd", "{model}embeddings.position_embeddings"),
    alone(TokenTypes, "token_types", "{model}embeddings.token_type_embeddings"),
    alone(EmbeddingNorm, "token_embd_norm", "{model}embeddings.LayerNorm"),
    alone(AttnQ, "blk.{l}.attn_q", "{model}encoder.layer.{l}.attention.self.query"),
    alone(AttnK, "blk.{l}.attn_k", "{model}encoder.layer.{l}.attention.self.key"),
    alone(AttnV, "blk.{l}.attn_v", "{model}encoder.layer.{l}.attention.self.value"),
    alone(AttnOut, "blk.{l}.attn_output", "{model}encoder.layer.{l}.attention.output.dense"),
    alone(PostAttnNorm, "blk.{l}.attn_output_norm", "{model}encoder.layer.{l}.attention.output.LayerNorm"),
    alone(FfnUp, "blk.{l}.ffn_up", "{model}encoder.layer.{l}.intermediate.dense"),
    alone(FfnDown, "blk.{l}.ffn_down", "{model}encoder.layer.{l}.output.dense"),
    alone(PostFfnNorm, "blk.{l}.layer_output_norm", "{model}encoder.layer.{l}.output.LayerNorm"),
];

/// An encoder whose norms stand before the branches, with fused projections.
#[rustfmt::skip]
pub const FUSED_ENCODER: &[TensorName] = &[
    alone(TokenEmbedding, "token_embd", "{model}embeddings.tok_embeddings"),
    alone(EmbeddingNorm, "token_embd_norm", "{model}embeddings.norm"),
    alone(OutputNorm, "output_norm", "{model}final_norm"),
    alone(AttnNorm, "blk.{l}.attn_norm", "{layer}attn_norm"),
    stacked(AttnQ, "blk.{l}.attn_qkv", "{layer}attn.Wqkv", &[AttnQ, AttnK, AttnV]),
    stacked(AttnK, "blk.{l}.attn_qkv", "{layer}attn.Wqkv", &[AttnQ, AttnK, AttnV]),
    stacked(AttnV, "blk.{l}.attn_qkv", "{layer}attn.Wqkv", &[AttnQ, AttnK, AttnV]),
    alone(AttnOut, "blk.{l}.attn_output", "{layer}attn.Wo"),
    alone(FfnNorm, "blk.{l}.ffn_norm", "{layer}mlp_norm"),
    stacked(FfnGate, "blk.{l}.ffn_up", "{layer}mlp.Wi", &[FfnGate, FfnUp]),
    stacked(FfnUp, "blk.{l}.ffn_up", "{layer}mlp.Wi", &[FfnGate, FfnUp]),
    alone(FfnDown, "blk.{l}.ffn_down", "{layer}mlp.Wo"),
];

/// An encoder with norms on the sums that rotates and has a gate.
#[rustfmt::skip]
pub const TURNING_ENCODER: &[TensorName] = &[
    alone(TokenEmbedding, "token_embd", "{model}embeddings.word_embeddings"),
    alone(TokenTypes, "token_types", "{model}embeddings.token_type_embeddings"),
    alone(EmbeddingNorm, "token_embd_norm", "{model}emb_ln"),
    stacked(AttnQ, "blk.{l}.attn_qkv", "{model}encoder.layers.{l}.attn.Wqkv", &[AttnQ, AttnK, AttnV]),
    stacked(AttnK, "blk.{l}.attn_qkv", "{model}encoder.layers.{l}.attn.Wqkv", &[AttnQ, AttnK, AttnV]),
    stacked(AttnV, "blk.{l}.attn_qkv", "{model}encoder.layers.{l}.attn.Wqkv", &[AttnQ, AttnK, AttnV]),
    alone(AttnOut, "blk.{l}.attn_output", "{model}encoder.layers.{l}.attn.out_proj"),
    alone(PostAttnNorm, "blk.{l}.attn_output_norm", "{model}encoder.layers.{l}.norm1"),
    alone(FfnUp, "blk.{l}.ffn_up", "{model}encoder.layers.{l}.mlp.fc11"),
    alone(FfnGate, "blk.{l}.ffn_gate", "{model}encoder.layers.{l}.mlp.fc12"),
    alone(FfnDown, "blk.{l}.ffn_down", "{model}encoder.layers.{l}.mlp.fc2"),
    alone(PostFfnNorm, "blk.{l}.layer_output_norm", "{model}encoder.layers.{l}.norm2"),
];

/// A router and experts in place of the dense network, or next to one that all rows go through.
#[rustfmt::skip]
pub const EXPERTS: &[TensorName] = &[
    alone(Router, "blk.{l}.ffn_gate_inp", "{layer}mlp.gate"),
    alone(ExpertGate, "blk.{l}.ffn_gate_exps", "{layer}mlp.experts.{e}.gate_proj"),
    stacked(ExpertGate, "", "{layer}mlp.experts.gate_up_proj$", &[ExpertGate, ExpertUp]),
    alone(ExpertUp, "blk.{l}.ffn_up_exps", "{layer}mlp.experts.{e}.up_proj"),
    stacked(ExpertUp, "", "{layer}mlp.experts.gate_up_proj$", &[ExpertGate, ExpertUp]),
    alone(ExpertDown, "blk.{l}.ffn_down_exps", "{layer}mlp.experts.{e}.down_proj"),
    alone(ExpertDown, "", "{layer}mlp.experts.down_proj$"),
    // MLX's converters stack each projection's experts and name the stack.
    alone(ExpertGate, "", "{layer}mlp.switch_mlp.gate_proj"),
    alone(ExpertUp, "", "{layer}mlp.switch_mlp.up_proj"),
    alone(ExpertDown, "", "{layer}mlp.switch_mlp.down_proj"),
    alone(SharedWeight, "blk.{l}.ffn_gate_inp_shexp", "{layer}mlp.shared_expert_gate"),
    alone(FfnGate, "blk.{l}.ffn_gate_shexp", "{layer}mlp.shared_expert.gate_proj"),
    alone(FfnGate, "blk.{l}.ffn_gate", "{layer}mlp.gate_proj"),
    alone(FfnUp, "blk.{l}.ffn_up_shexp", "{layer}mlp.shared_expert.up_proj"),
    alone(FfnUp, "blk.{l}.ffn_up", "{layer}mlp.up_proj"),
    alone(FfnDown, "blk.{l}.ffn_down_shexp", "{layer}mlp.shared_expert.down_proj"),
    alone(FfnDown, "blk.{l}.ffn_down", "{layer}mlp.down_proj"),
];

/// Experts next to a dense network, each with norms of its own, inputs of single layers, and factors on layers.
#[rustfmt::skip]
pub const PER_LAYER: &[TensorName] = &[
    alone(LayerScale, "blk.{l}.layer_output_scale", "{layer}layer_scalar$"),
    alone(Router, "blk.{l}.ffn_gate_inp", "{layer}router.proj"),
    alone(RouterScale, "blk.{l}.ffn_gate_inp.scale$", "{layer}router.scale$"),
    alone(ExpertScale, "blk.{l}.ffn_down_exps.scale$", "{layer}router.per_expert_scale$"),
    stacked(ExpertGate, "blk.{l}.ffn_gate_up_exps", "{layer}experts.gate_up_proj$", &[ExpertGate, ExpertUp]),
    stacked(ExpertUp, "blk.{l}.ffn_gate_up_exps", "{layer}experts.gate_up_proj$", &[ExpertGate, ExpertUp]),
    alone(ExpertDown, "blk.{l}.ffn_down_exps", "{layer}experts.down_proj$"),
    alone(ExpertGate, "", "{layer}experts.switch_glu.gate_proj"),
    alone(ExpertUp, "", "{layer}experts.switch_glu.up_proj"),
    alone(ExpertDown, "", "{layer}experts.switch_glu.down_proj"),
    alone(ExpertNorm, "blk.{l}.pre_ffw_norm_2", "{layer}pre_feedforward_layernorm_2"),
    alone(PostDenseNorm, "blk.{l}.post_ffw_norm_1", "{layer}post_feedforward_layernorm_1"),
    alone(PostExpertNorm, "blk.{l}.post_ffw_norm_2", "{layer}post_feedforward_layernorm_2"),
    alone(PerLayerEmbedding, "per_layer_token_embd", "{model}embed_tokens_per_layer"),
    alone(PerLayerModel, "per_layer_model_proj", "{model}per_layer_model_projection"),
    alone(PerLayerNorm, "per_layer_proj_norm", "{model}per_layer_projection_norm"),
    alone(PerLayerGate, "blk.{l}.inp_gate", "{layer}per_layer_input_gate"),
    alone(PerLayerOut, "blk.{l}.proj", "{layer}per_layer_projection"),
    alone(PostPerLayerNorm, "blk.{l}.post_norm", "{layer}post_per_layer_input_norm"),
];

/// What stands before the names of the language model in Hugging Face checkpoints: alone, in multimodal models as they
/// were saved and as they are now, in a base model without a head, and in an encoder with one.
pub const MODEL_PREFIXES: &[&str] = &[
    "model.",
    "language_model.model.",
    "model.text_model.",
    "model.language_model.",
    "",
    "bert.",
    "roberta.",
    "transformer.",
    "backbone.",
];

/// Parts of names of tensors that hold what is computed here anyway.
pub const IGNORED: &[&str] = &["rotary_emb.", ".attn_rot_embd.", "mel_filters"];

impl Key {
    /// Its row of the table.
    pub(crate) fn row(self) -> &'static KeyRow {
        &KEYS[self as usize]
    }
}

impl KeyNames {
    /// The name in a naming; empty if it is not said there.
    pub(crate) fn of(&self, naming: Naming) -> &'static str {
        match naming {
            Naming::Gguf => "",
            Naming::HuggingFace | Naming::Base => self.hf,
            Naming::CTranslate2 => self.ctranslate2,
            Naming::WhisperCpp => self.whisper_cpp,
        }
    }
}

impl TensorName {
    /// The name with its places for numbers.
    pub(crate) fn template(&self, naming: Naming) -> &'static str {
        match naming {
            Naming::Gguf => self.gguf,
            Naming::HuggingFace | Naming::Base => self.hf,
            Naming::CTranslate2 => self.ctranslate2,
            Naming::WhisperCpp => self.whisper_cpp,
        }
    }

    /// The full name, without its suffix.
    pub(crate) fn expand(&self, naming: Naming, model_prefix: &str, layer: Option<usize>) -> Option<String> {
        let template = self.template(naming);
        let layer = layer.map(|l| l.to_string()).unwrap_or_default();
        (!template.is_empty()).then(|| {
            template
                .replace("{layer}", "{model}layers.{l}.")
                .replace("{model}", model_prefix)
                .replace("{l}", &layer)
        })
    }

    /// The full name of the tensor that has this suffix, `weight` or `bias`.
    pub(crate) fn full_name(
        &self,
        naming: Naming,
        model_prefix: &str,
        layer: Option<usize>,
        suffix: &str,
    ) -> Option<String> {
        let name = self.expand(naming, model_prefix, layer)?;
        match name.strip_suffix('$') {
            Some(whole) => (suffix == "weight").then(|| whole.to_owned()),
            None if naming == Naming::CTranslate2 => {
                // It calls the two vectors of a norm otherwise.
                let suffix = match suffix {
                    "weight" if name.ends_with("/layer_norm") => "gamma",
                    "bias" if name.ends_with("/layer_norm") => "beta",
                    suffix => suffix,
                };
                Some(format!("{name}/{suffix}"))
            }
            None => Some(format!("{name}.{suffix}")),
        }
    }

    /// Whether the matrix of this naming is `(n_in, n_out)`.
    pub(crate) fn is_transposed(&self, naming: Naming) -> bool {
        self.transposed && naming == Naming::HuggingFace
    }

    /// Whether there is one in each layer.
    pub(crate) fn is_of_layers(&self) -> bool {
        [self.gguf, self.hf].iter().any(|n| n.contains("{l}") || n.contains("{layer}"))
    }
}

impl TensorRole {
    /// Whether it is the weight of a norm, which some families store less 1.
    pub(crate) fn is_norm(self) -> bool {
        use TensorRole::*;
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
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_expand() {
        let q = STANDARD.iter().find(|n| n.role == AttnQ).unwrap();
        assert_eq!(q.expand(Naming::Gguf, "model.", Some(12)).unwrap(), "blk.12.attn_q");
        let hf = q.expand(Naming::HuggingFace, "language_model.model.", Some(12)).unwrap();
        assert_eq!(hf, "language_model.model.layers.12.self_attn.q_proj");
        let freqs = STANDARD.iter().find(|n| n.role == RopeDivisors).unwrap();
        assert_eq!(freqs.expand(Naming::HuggingFace, "model.", None), None);
    }

    #[test]
    fn stacked_rows_name_their_own_role() {
        let speech = [SPEECH_ENCODER, SPEECH_DECODER];
        for name in [
            STANDARD,
            SANDWICH,
            FUSED,
            ENCODER,
            EXPERTS,
            PER_LAYER,
            PARALLEL,
            TRANSPOSED,
            SHORT_CONVOLUTIONS,
            DELTA,
            SCAN,
            MIXERS,
        ]
        .iter()
        .chain(&speech)
        .copied()
        .flatten()
        {
            assert!(name.stacked.is_empty() || name.stacked.contains(&name.role), "{name:?}");
        }
    }

    #[test]
    fn numbers_that_can_be_counts_cannot_overflow() {
        // The widest product, heads times columns times rows, stays in 64 bits with room for 4 bytes a value.
        let max = |key: Key| key.row().range.1;
        assert!(max(Key::Heads) * max(Key::HeadDim) * max(Key::Hidden) * 4.0 < 2f64.powi(63));
        assert!(max(Key::Ffn) * max(Key::Hidden) * 4.0 < 2f64.powi(63));
        assert!(max(Key::Vocab) * max(Key::Hidden) * 4.0 < 2f64.powi(63));
    }
}
