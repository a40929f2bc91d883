//! The metadata key of each number.
//!
//! GGUF names are those of the format's specification and of published files. Hugging Face names
//! are fields of config.json.

use weights::Naming;

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
    QkNorm,
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
    PerLayerVocab,
    Streams,
    LaurelRank,
    Sparsity,
}

/// Names of a key, and its range.
#[derive(Clone, Copy, Debug)]
pub struct KeyRow {
    /// The key.
    pub key: Key,
    /// Description for people.
    pub what: &'static str,
    /// Names in GGUF files, after the architecture's name and a dot; the first one present is used.
    pub gguf: &'static [&'static str],
    /// Names in config.json, flattened with dots; `{rope}` is one of [`ROPE_OBJECTS`].
    pub hf: &'static [&'static str],
    /// Smallest and largest number accepted. The bounds prevent overflow and exceed every published
    /// model.
    pub range: (f64, f64),
}

/// A family's own names for a number, which replace those of the table. Empty: files of that naming
/// do not store it.
#[derive(Clone, Copy, Debug)]
pub struct KeyNames {
    /// The key.
    pub key: Key,
    /// Name in config.json of Hugging Face, flattened.
    pub hf: &'static str,
    /// Name among the settings of CTranslate2's model.bin.
    pub ctranslate2: &'static str,
    /// Name among the hyperparameters of whisper.cpp files.
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

/// Smallest factor, epsilon or cap; not 0.
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
    row(Key::Context, "context length", &["context_length"], &["max_position_embeddings", "n_positions", "model_max_length"], 1.0, 2147483647.0),
    row(Key::NormEps, "epsilon of the norms", &["attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"],
        &["rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"], TINY, 1.0),
    row(Key::Activation, "activation", &[], &["hidden_activation", "hidden_act", "activation_function", "mlp_hidden_act"], 0.0, 0.0),
    row(Key::TiedHead, "tied head", &[], &["tie_word_embeddings"], 0.0, 1.0),
    row(Key::Experts, "number of experts", &["expert_count"], &["num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"], 0.0, 65536.0),
    row(Key::ExpertsUsed, "experts used for each token", &["expert_used_count"], &["num_experts_per_tok", "top_k_experts", "moe_k", "num_experts_per_token"], 1.0, 1024.0),
    row(Key::ExpertFfn, "columns of an expert", &["expert_feed_forward_length"], &["moe_intermediate_size"], 1.0, 16777216.0),
    row(Key::SharedFfn, "columns of the shared expert", &["expert_shared_feed_forward_length"],
        &["shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "shared_intermediate_size"], 1.0, 16777216.0),
    row(Key::ExpertsOn, "experts enabled", &[], &["enable_moe_block"], 0.0, 1.0),
    row(Key::ExpertsEvery, "interval of layers with experts", &["interleave_moe_layer_step"], &["decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval"], 1.0, 4096.0),
    row(Key::DenseLayers, "layers without experts", &[], &["mlp_only_layers"], 0.0, 4096.0),
    row(Key::ExpertsNormalised, "normalised weights of experts", &["expert_weights_norm"], &["norm_topk_prob", "moe_renormalize"], 0.0, 1.0),
    row(Key::ExpertFactor, "factor on the weights of experts", &["expert_weights_scale"], &["routed_scaling_factor"], TINY, 1e9),
    row(Key::ExpertScores, "function of router logits", &["expert_gating_func"], &["scoring_func", "moe_router_activation_func"], 0.0, 4.0),
    row(Key::ExpertGroups, "groups of experts", &["expert_group_count"], &["n_group", "num_expert_group"], 0.0, 65536.0),
    row(Key::ExpertGroupsUsed, "groups of experts used for each token", &["expert_group_used_count"], &["topk_group"], 0.0, 65536.0),
    row(Key::SharedExperts, "shared experts", &["expert_shared_count"], &["n_shared_experts", "moe_num_shared_experts", "num_shared_experts"], 0.0, 1024.0),
    row(Key::FirstDenseLayers, "first layers without experts", &["leading_dense_block_count"], &["first_k_dense_replace", "moe_layer_start_index", "num_dense_layers"], 0.0, 4096.0),
    row(Key::ExpertLayers, "layers with experts", &[], &["moe_layers"], 0.0, 4096.0),
    row(Key::NextLayers, "layers for multi-token prediction", &["nextn_predict_layers"], &["num_nextn_predict_layers", "mtp_num_hidden_layers"], 0.0, 64.0),
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
    row(Key::FullHeadDim, "columns of a head in full-attention layers", &[], &["global_head_dim"], 1.0, 16384.0),
    row(Key::FullKvHeads, "key and value heads of full-attention layers", &[], &["num_global_key_value_heads"], 1.0, 16384.0),
    row(Key::KeysAreValues, "values equal to keys", &[], &["attention_k_eq_v"], 0.0, 1.0),
    row(Key::SharedKvLayers, "layers that share earlier keys and values", &["attention.shared_kv_layers"], &["num_kv_shared_layers"], 0.0, 4096.0),
    row(Key::WideSharedKv, "double width of layers with shared keys and values", &[], &["use_double_wide_mlp"], 0.0, 1.0),
    row(Key::PerLayerWidth, "columns of the per-layer input", &["embedding_length_per_layer_input"], &["hidden_size_per_layer_input"], 0.0, 1048576.0),
    row(Key::Bidirectional, "bidirectional attention", &[], &["use_bidirectional_attention"], 0.0, 1.0),
    row(Key::QkNorm, "norms of queries and keys", &[], &["use_qk_norm"], 0.0, 1.0),

    row(Key::Window, "sliding window", &["attention.sliding_window"], &["sliding_window", "local_attention"], 0.0, 2147483647.0),
    row(Key::Chunk, "chunk length of attention", &["attention.sliding_window"], &["attention_chunk_size"], 0.0, 2147483647.0),
    row(Key::WindowUsed, "window enabled", &[], &["use_sliding_window"], 0.0, 1.0),
    row(Key::WindowEvery, "layers with a window", &["attention.sliding_window_pattern"],
        &["sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers"], 1.0, 4096.0),
    row(Key::FirstWindowLayer, "first layer with a window", &[], &["max_window_layers"], 0.0, 4096.0),
    row(Key::LayerTypes, "attention of each layer", &[], &["layer_types"], 0.0, 0.0),
    row(Key::NoRopeLayers, "RoPE of each layer", &[], &["no_rope_layers"], 0.0, 1.0),
    row(Key::NoRopeEvery, "interval of layers without RoPE", &[], &["no_rope_layer_interval"], 1.0, 4096.0),

    row(Key::TemperatureOn, "temperature of queries", &[], &["attn_temperature_tuning"], 0.0, 1.0),
    row(Key::TemperatureScale, "temperature scale of queries", &["attention.temperature_scale"],
        &["{rope}llama_4_scaling_beta", "attn_scale"], 0.0, 1e9),
    row(Key::TemperatureLength, "temperature length of queries", &["attention.temperature_length"],
        &["floor_scale"], 1.0, 2147483647.0),

    row(Key::RopeTheta, "RoPE base", &["rope.freq_base"], &["{rope}rope_theta", "rope_theta", "global_rope_theta", "rotary_emb_base"], 1.0, 1e15),
    row(Key::WindowRopeTheta, "RoPE base of layers with a window", &["rope.freq_base_swa"], &["rope_local_base_freq", "local_rope_theta"], 1.0, 1e15),
    row(Key::RopeDims, "columns of a head that rotate", &["rope.dimension_count"], &[], 2.0, 16384.0),
    row(Key::RopePart, "share of a head that rotates", &[], &["{rope}partial_rotary_factor", "partial_rotary_factor"], TINY, 1.0),
    row(Key::RopeKind, "kind of RoPE scaling", &["rope.scaling.type"], &["{rope}rope_type", "{rope}type"], 0.0, 0.0),
    row(Key::RopeFactor, "RoPE scaling factor", &["rope.scaling.factor", "rope.scale_linear"], &["{rope}factor"], 0.0, 1e9),
    row(Key::RopeAlpha, "factor on the RoPE base", &["rope.scaling.alpha"], &["{rope}alpha"], 0.0, 1e9),
    row(Key::RopeContext, "original context length", &["rope.scaling.original_context_length"],
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
    row(Key::RopeTruncate, "rounding of YaRN's range", &[], &["{rope}truncate"], 0.0, 1.0),
    row(Key::RopeShort, "factors up to the original context", &[], &["{rope}short_factor"], TINY, 1e9),
    row(Key::RopeLong, "factors beyond the original context", &[], &["{rope}long_factor"], TINY, 1e9),

    row(Key::QueryScalar, "inverse square of the attention scale", &[], &["query_pre_attn_scalar"], TINY, 1e9),
    row(Key::AttentionScale, "attention scale", &["attention.scale"], &["attention_multiplier"], TINY, 1e9),
    row(Key::AttentionSoftcap, "cap of attention scores", &["attn_logit_softcapping"], &["attn_logit_softcapping"], TINY, 1e9),
    row(Key::LogitSoftcap, "cap of logits", &["final_logit_softcapping"], &["final_logit_softcapping"], TINY, 1e9),
    row(Key::LogitFactor, "factor on logits, or their divisor", &["logit_scale"], &["logits_scaling", "logit_scale"], TINY, 1e9),
    row(Key::EmbeddingScale, "factor on embeddings", &["embedding_scale"], &["embedding_multiplier"], TINY, 1e9),
    row(Key::ResidualScale, "factor on each branch", &["residual_scale"], &["residual_multiplier"], TINY, 1e9),
    row(Key::PositionKind, "kind of position embedding", &[], &["position_embedding_type"], 0.0, 0.0),
    row(Key::Padding, "padding token", &[], &["pad_token_id"], 0.0, 67108864.0),
    row(Key::Inputs, "columns of the input", &[], &[], 1.0, 65536.0),

    row(Key::StateHeads, "heads of a recurrent layer", &["ssm.time_step_rank", "attention.head_count"],
        &["linear_num_value_heads", "mamba_n_heads", "mamba_num_heads", "linear_num_heads", "linear_attn_config.num_heads"], 1.0, 16384.0),
    row(Key::StateHeadDim, "columns of a recurrent head", &["kda.head_dim"],
        &["linear_value_head_dim", "mamba_d_head", "mamba_head_dim", "linear_head_dim", "linear_attn_config.head_dim"], 1.0, 16384.0),
    row(Key::StateInner, "columns of all recurrent heads", &["ssm.inner_size"], &[], 1.0, 16777216.0),
    row(Key::StateGroups, "groups of recurrent heads", &["ssm.group_count", "attention.head_count"],
        &["linear_num_key_heads", "mamba_n_groups", "n_groups", "linear_num_heads", "linear_attn_config.num_heads"], 1.0, 16384.0),
    row(Key::StateRows, "rows of a recurrent head's state", &["ssm.state_size", "kda.head_dim"],
        &["linear_key_head_dim", "mamba_d_state", "ssm_state_size", "state_size", "linear_head_dim", "linear_attn_config.head_dim"], 1.0, 16384.0),
    row(Key::ConvSize, "positions in a short convolution", &["shortconv.l_cache", "ssm.conv_kernel"],
        &["conv_L_cache", "linear_conv_kernel_dim", "mamba_d_conv", "conv_kernel", "linear_attn_config.short_conv_kernel_size"], 2.0, 64.0),
    row(Key::GateAfterNorm, "gate of a scan after its norm", &[], &["mamba_norm_before_gate"], 0.0, 1.0),
    row(Key::RopeUsed, "RoPE of attention", &["rope.scaling.finetuned"], &[], 0.0, 1.0),
    row(Key::AttentionIn, "factor on the input of attention", &[], &["attention_in_multiplier"], TINY, 1e9),
    row(Key::AttentionOutFactor, "factor on the output of attention", &[], &["attention_out_multiplier"], TINY, 1e9),
    row(Key::KeyFactor, "factor on keys", &[], &["key_multiplier"], TINY, 1e9),
    row(Key::ScanIn, "factor on the input of a scan", &[], &["ssm_in_multiplier"], TINY, 1e9),
    row(Key::ScanOut, "factor on the output of a scan", &[], &["ssm_out_multiplier"], TINY, 1e9),
    row(Key::ScanFactors, "factors on the parts of a scan's projection", &[], &["ssm_multipliers"], TINY, 1e9),
    row(Key::FfnFactors, "factors on the gate and the output of the network", &[], &["mlp_multipliers"], TINY, 1e9),
    row(Key::LogitMultiplier, "factor on logits", &[], &["lm_head_multiplier"], TINY, 1e9),
    row(Key::LatentWidth, "columns that experts work in", &["moe_latent_size"], &["moe_latent_size"], 1.0, 1048576.0),
    row(Key::PerLayerVocab, "tokens with per-layer inputs", &[], &["vocab_size_per_layer_input"], 1.0, 67108864.0),
    row(Key::Streams, "residual streams", &["altup.num_inputs"], &["altup_num_inputs"], 1.0, 64.0),
    row(Key::LaurelRank, "columns of the low-rank residual", &[], &["laurel_rank"], 1.0, 1048576.0),
    row(Key::Sparsity, "share of the gates that each layer cuts off", &["activation_sparsity_scale"], &["activation_sparsity_pattern"],
        f64::NEG_INFINITY, 1e9),
];

// The table has the order of the enum, so that a key is an index into it.
const _: () = {
    assert!(KEYS.len() == Key::Sparsity as usize + 1);
    let mut i = 0;
    while i < KEYS.len() {
        assert!(KEYS[i].key as usize == i);
        i += 1;
    }
};

impl Key {
    /// The key's row of the table.
    pub(crate) fn row(self) -> &'static KeyRow {
        &KEYS[self as usize]
    }
}

impl KeyNames {
    /// The name for a naming; empty if files of that naming do not store the number.
    pub(crate) fn of(&self, naming: Naming) -> &'static str {
        match naming {
            Naming::Gguf => "",
            Naming::HuggingFace | Naming::Base => self.hf,
            Naming::CTranslate2 => self.ctranslate2,
            Naming::WhisperCpp => self.whisper_cpp,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_can_be_counts_cannot_overflow() {
        // The widest product, heads times columns times rows, fits into 64 bits with 4 bytes a
        // value.
        let max = |key: Key| key.row().range.1;
        assert!(max(Key::Heads) * max(Key::HeadDim) * max(Key::Hidden) * 4.0 < 2f64.powi(63));
        assert!(max(Key::Ffn) * max(Key::Hidden) * 4.0 < 2f64.powi(63));
        assert!(max(Key::Vocab) * max(Key::Hidden) * 4.0 < 2f64.powi(63));
    }
}
