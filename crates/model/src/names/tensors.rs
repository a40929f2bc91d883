//! The name of each tensor in GGUF files and Hugging Face checkpoints. Recurrent layers and speech
//! models have files of their own.
//!
//! A family lists tables. For each role it uses all rows of the first table with rows for that
//! role. So a table holds what several families share, or what one family has alone.

use weights::Naming;

use super::NEXT_PREFIX;
use super::roles::TensorRole::{self, *};

/// Names of a tensor. `.weight` or `.bias` follows, unless `$` ends the name. Empty: files of that
/// naming lack the tensor.
#[derive(Clone, Copy, Debug)]
pub struct TensorName {
    /// The role of the tensor; of a tensor that holds several roles, the first.
    pub role: TensorRole,
    /// Name in GGUF files. `{l}` is the layer, and `{e}` the expert if each is a tensor of its own.
    pub gguf: &'static str,
    /// Name in Hugging Face checkpoints. `{model}` is one of
    /// [`MODEL_PREFIXES`](super::MODEL_PREFIXES), and `{layer}` is `{model}layers.{l}.`. `{next}`
    /// is [`NEXT_PREFIX`](super::NEXT_PREFIX); only layers for multi-token prediction have names
    /// with it.
    pub hf: &'static str,
    /// Name in CTranslate2 files; `/weight` or `/bias` follows.
    pub ctranslate2: &'static str,
    /// Name in whisper.cpp files, which is OpenAI's.
    pub whisper_cpp: &'static str,
    /// The roles whose rows the tensor holds, one after another. Empty: it holds `role` alone.
    pub stacked: &'static [TensorRole],
    /// True if Hugging Face checkpoints store the matrix as `(n_in, n_out)`, which is transposed at
    /// load.
    pub transposed: bool,
    /// True if the rows of the stacked roles alternate in Hugging Face checkpoints.
    pub interleaved: bool,
}

pub(super) const fn alone(role: TensorRole, gguf: &'static str, hf: &'static str) -> TensorName {
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

/// One tensor that holds the rows of several roles.
pub(super) const fn stacked(
    gguf: &'static str,
    hf: &'static str,
    stacked: &'static [TensorRole],
) -> TensorName {
    TensorName { stacked, ..alone(stacked[0], gguf, hf) }
}

/// One tensor that holds the rows of queries, keys and values.
pub(super) const fn qkv(gguf: &'static str, hf: &'static str) -> TensorName {
    stacked(gguf, hf, &[AttnQ, AttnK, AttnV])
}

/// Names that most families share. Rows of the same role are alternatives.
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
    alone(NextEmbeddingNorm, "blk.{l}.nextn.enorm", "{layer}enorm"),
    alone(NextEmbeddingNorm, "", "{next}pre_fc_norm_embedding"),
    alone(NextHiddenNorm, "blk.{l}.nextn.hnorm", "{layer}hnorm"),
    alone(NextHiddenNorm, "", "{next}pre_fc_norm_hidden"),
    alone(NextProjection, "blk.{l}.nextn.eh_proj", "{layer}eh_proj"),
    alone(NextProjection, "", "{next}fc"),
    alone(NextOutputNorm, "blk.{l}.nextn.shared_head_norm", "{layer}shared_head.norm"),
    alone(NextOutputNorm, "", "{next}norm"),
];

/// Norms before and after the branches. The common name of the norm before the feed-forward network
/// here names the one after attention.
#[rustfmt::skip]
pub const SANDWICH_NORMS: &[TensorName] = &[
    alone(PostAttnNorm, "blk.{l}.post_attention_norm", "{layer}post_attention_layernorm"),
    alone(FfnNorm, "blk.{l}.ffn_norm", "{layer}pre_feedforward_layernorm"),
    alone(PostFfnNorm, "blk.{l}.post_ffw_norm", "{layer}post_feedforward_layernorm"),
];

/// Gate and up projections in one matrix.
#[rustfmt::skip]
pub const FUSED_GATE_UP: &[TensorName] = &[
    stacked("blk.{l}.ffn_up", "{layer}mlp.gate_up_proj", &[FfnGate, FfnUp]),
];

/// Query, key and value projections, in one matrix in some GGUF files.
#[rustfmt::skip]
pub const MAYBE_FUSED_QKV: &[TensorName] = &[
    alone(AttnQ, "blk.{l}.attn_q", "{layer}self_attn.q_proj"),
    alone(AttnK, "blk.{l}.attn_k", "{layer}self_attn.k_proj"),
    alone(AttnV, "blk.{l}.attn_v", "{layer}self_attn.v_proj"),
    qkv("blk.{l}.attn_qkv", ""),
];

/// Query, key and value projections in one matrix.
#[rustfmt::skip]
pub const FUSED_QKV: &[TensorName] = &[
    qkv("blk.{l}.attn_qkv", "{layer}self_attn.qkv_proj"),
];

/// Mixtral: numbered matrices of experts.
#[rustfmt::skip]
pub const MIXTRAL_EXPERTS: &[TensorName] = &[
    alone(Router, "blk.{l}.ffn_gate_inp", "{layer}block_sparse_moe.gate"),
    alone(ExpertGate, "blk.{l}.ffn_gate_exps", "{layer}block_sparse_moe.experts.{e}.w1"),
    alone(ExpertUp, "blk.{l}.ffn_up_exps", "{layer}block_sparse_moe.experts.{e}.w3"),
    alone(ExpertDown, "blk.{l}.ffn_down_exps", "{layer}block_sparse_moe.experts.{e}.w2"),
    // Older files have one tensor for each expert.
    alone(ExpertGate, "blk.{l}.ffn_gate.{e}", "{layer}block_sparse_moe.switch_mlp.gate_proj"),
    alone(ExpertUp, "blk.{l}.ffn_up.{e}", "{layer}block_sparse_moe.switch_mlp.up_proj"),
    alone(ExpertDown, "blk.{l}.ffn_down.{e}", "{layer}block_sparse_moe.switch_mlp.down_proj"),
];

/// GLM-4: four norms a layer, with names of their own for those after the branches.
#[rustfmt::skip]
pub const GLM4_NORMS: &[TensorName] = &[
    alone(PostAttnNorm, "blk.{l}.post_attention_norm", "{layer}post_self_attn_layernorm"),
    alone(FfnNorm, "blk.{l}.ffn_norm", "{layer}post_attention_layernorm"),
    alone(PostFfnNorm, "blk.{l}.post_ffw_norm", "{layer}post_mlp_layernorm"),
];

/// GGUF files that call the norm before the feed-forward network `post_attention_norm`.
#[rustfmt::skip]
pub const FFN_NORM_AFTER_ATTENTION: &[TensorName] = &[
    alone(FfnNorm, "blk.{l}.post_attention_norm", "{layer}post_attention_layernorm"),
];

/// StarCoder 2: a feed-forward network without a gate.
#[rustfmt::skip]
pub const STARCODER2_FFN: &[TensorName] = &[
    alone(FfnUp, "blk.{l}.ffn_up", "{layer}mlp.c_fc"),
    alone(FfnDown, "blk.{l}.ffn_down", "{layer}mlp.c_proj"),
];

/// Hunyuan: norms of queries and keys.
#[rustfmt::skip]
pub const HUNYUAN_QK_NORMS: &[TensorName] = &[
    alone(AttnQNorm, "blk.{l}.attn_q_norm", "{layer}self_attn.query_layernorm"),
    alone(AttnKNorm, "blk.{l}.attn_k_norm", "{layer}self_attn.key_layernorm"),
];

/// Granite: experts in two tensors, of which one stacks gate and up.
#[rustfmt::skip]
pub const GRANITE_EXPERTS: &[TensorName] = &[
    alone(Router, "blk.{l}.ffn_gate_inp", "{layer}block_sparse_moe.router.layer"),
    alone(Router, "", "{layer}block_sparse_moe.router"),
    alone(ExpertGate, "blk.{l}.ffn_gate_exps", "{layer}block_sparse_moe.switch_mlp.gate_proj"),
    alone(ExpertUp, "blk.{l}.ffn_up_exps", "{layer}block_sparse_moe.switch_mlp.up_proj"),
    alone(ExpertDown, "blk.{l}.ffn_down_exps", "{layer}block_sparse_moe.switch_mlp.down_proj"),
    stacked("", "{layer}block_sparse_moe.input_linear", &[ExpertGate, ExpertUp]),
    alone(ExpertDown, "", "{layer}block_sparse_moe.output_linear"),
];

/// Phi: parallel branches after one norm.
#[rustfmt::skip]
pub const PHI: &[TensorName] = &[
    alone(OutputNorm, "output_norm", "{model}final_layernorm"),
    alone(AttnOut, "blk.{l}.attn_output", "{layer}self_attn.dense"),
    alone(FfnUp, "blk.{l}.ffn_up", "{layer}mlp.fc1"),
    alone(FfnDown, "blk.{l}.ffn_down", "{layer}mlp.fc2"),
];

/// GPT-2: matrices of shape `(n_in, n_out)`.
#[rustfmt::skip]
pub const GPT2: &[TensorName] = &[
    alone(TokenEmbedding, "token_embd", "{model}wte"),
    alone(PositionEmbedding, "position_embd", "{model}wpe"),
    alone(OutputNorm, "output_norm", "{model}ln_f"),
    alone(AttnNorm, "blk.{l}.attn_norm", "{model}h.{l}.ln_1"),
    transposed(qkv("blk.{l}.attn_qkv", "{model}h.{l}.attn.c_attn")),
    transposed(alone(AttnOut, "blk.{l}.attn_output", "{model}h.{l}.attn.c_proj")),
    alone(FfnNorm, "blk.{l}.ffn_norm", "{model}h.{l}.ln_2"),
    transposed(alone(FfnUp, "blk.{l}.ffn_up", "{model}h.{l}.mlp.c_fc")),
    transposed(alone(FfnDown, "blk.{l}.ffn_down", "{model}h.{l}.mlp.c_proj")),
];

/// Routers with a bias on the choice, unweighted shared experts, and dense first layers.
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

/// Latent attention (MLA): keys and values from a latent, and queries from a latent or directly.
#[rustfmt::skip]
pub const MLA: &[TensorName] = &[
    alone(AttnQA, "blk.{l}.attn_q_a", "{layer}self_attn.q_a_proj"),
    alone(AttnQANorm, "blk.{l}.attn_q_a_norm", "{layer}self_attn.q_a_layernorm"),
    alone(AttnQB, "blk.{l}.attn_q_b", "{layer}self_attn.q_b_proj"),
    alone(AttnKvA, "blk.{l}.attn_kv_a_mqa", "{layer}self_attn.kv_a_proj_with_mqa"),
    alone(AttnKvANorm, "blk.{l}.attn_kv_a_norm", "{layer}self_attn.kv_a_layernorm"),
    alone(AttnKvB, "blk.{l}.attn_kv_b", "{layer}self_attn.kv_b_proj"),
    alone(AttnKB, "blk.{l}.attn_k_b", ""),
    alone(AttnVB, "blk.{l}.attn_v_b", ""),
];

/// Llama 4: experts in two tensors with matrices of shape `(n_in, n_out)`, beside a shared expert.
#[rustfmt::skip]
pub const LLAMA4_EXPERTS: &[TensorName] = &[
    alone(Router, "blk.{l}.ffn_gate_inp", "{layer}feed_forward.router"),
    transposed(stacked("", "{layer}feed_forward.experts.gate_up_proj$", &[ExpertGate, ExpertUp])),
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

/// gpt-oss: attention sinks, and experts with biases. Gate and up alternate, as numbers or as
/// blocks of 4 bits.
#[rustfmt::skip]
pub const GPT_OSS_EXPERTS: &[TensorName] = &[
    alone(AttnSinks, "blk.{l}.attn_sinks.weight$", "{layer}self_attn.sinks$"),
    alone(Router, "blk.{l}.ffn_gate_inp", "{layer}mlp.router"),
    interleaved(transposed(stacked("", "{layer}mlp.experts.gate_up_proj$", &[ExpertGate, ExpertUp]))),
    transposed(alone(ExpertDown, "", "{layer}mlp.experts.down_proj$")),
    interleaved(stacked("", "{layer}mlp.experts.gate_up_proj_blocks$", &[ExpertGate, ExpertUp])),
    alone(ExpertDown, "", "{layer}mlp.experts.down_proj_blocks$"),
    alone(ExpertGate, "blk.{l}.ffn_gate_exps", "{layer}mlp.experts.gate_proj"),
    alone(ExpertUp, "blk.{l}.ffn_up_exps", "{layer}mlp.experts.up_proj"),
    alone(ExpertDown, "blk.{l}.ffn_down_exps", "{layer}mlp.experts.down_proj"),
    interleaved(stacked("", "{layer}mlp.experts.gate_up_proj_bias$", &[ExpertGateBias, ExpertUpBias])),
    alone(ExpertDownBias, "blk.{l}.ffn_down_exps.bias$", "{layer}mlp.experts.down_proj_bias$"),
    alone(ExpertGateBias, "blk.{l}.ffn_gate_exps.bias$", "{layer}mlp.experts.gate_proj.bias$"),
    alone(ExpertUpBias, "blk.{l}.ffn_up_exps.bias$", "{layer}mlp.experts.up_proj.bias$"),
    alone(ExpertDownBias, "", "{layer}mlp.experts.down_proj.bias$"),
];

/// BERT: an encoder with norms on the sums.
#[rustfmt::skip]
pub const BERT: &[TensorName] = &[
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

/// ModernBERT: an encoder with norms before the branches and fused projections.
#[rustfmt::skip]
pub const MODERNBERT: &[TensorName] = &[
    alone(TokenEmbedding, "token_embd", "{model}embeddings.tok_embeddings"),
    alone(EmbeddingNorm, "token_embd_norm", "{model}embeddings.norm"),
    alone(OutputNorm, "output_norm", "{model}final_norm"),
    alone(AttnNorm, "blk.{l}.attn_norm", "{layer}attn_norm"),
    qkv("blk.{l}.attn_qkv", "{layer}attn.Wqkv"),
    alone(AttnOut, "blk.{l}.attn_output", "{layer}attn.Wo"),
    alone(FfnNorm, "blk.{l}.ffn_norm", "{layer}mlp_norm"),
    stacked("blk.{l}.ffn_up", "{layer}mlp.Wi", &[FfnGate, FfnUp]),
    alone(FfnDown, "blk.{l}.ffn_down", "{layer}mlp.Wo"),
];

/// Nomic BERT: an encoder with norms on the sums, RoPE and a gated network.
#[rustfmt::skip]
pub const NOMIC_BERT: &[TensorName] = &[
    alone(TokenEmbedding, "token_embd", "{model}embeddings.word_embeddings"),
    alone(TokenTypes, "token_types", "{model}embeddings.token_type_embeddings"),
    alone(EmbeddingNorm, "token_embd_norm", "{model}emb_ln"),
    qkv("blk.{l}.attn_qkv", "{model}encoder.layers.{l}.attn.Wqkv"),
    alone(AttnOut, "blk.{l}.attn_output", "{model}encoder.layers.{l}.attn.out_proj"),
    alone(PostAttnNorm, "blk.{l}.attn_output_norm", "{model}encoder.layers.{l}.norm1"),
    alone(FfnUp, "blk.{l}.ffn_up", "{model}encoder.layers.{l}.mlp.fc11"),
    alone(FfnGate, "blk.{l}.ffn_gate", "{model}encoder.layers.{l}.mlp.fc12"),
    alone(FfnDown, "blk.{l}.ffn_down", "{model}encoder.layers.{l}.mlp.fc2"),
    alone(PostFfnNorm, "blk.{l}.layer_output_norm", "{model}encoder.layers.{l}.norm2"),
];

/// Jina Embeddings v3: an encoder with norms on the sums and RoPE. Attention is called `mixer`.
#[rustfmt::skip]
pub const JINA_V3: &[TensorName] = &[
    alone(TokenEmbedding, "token_embd", "{model}embeddings.word_embeddings"),
    alone(TokenTypes, "token_types", "{model}embeddings.token_type_embeddings"),
    alone(EmbeddingNorm, "token_embd_norm", "{model}emb_ln"),
    qkv("blk.{l}.attn_qkv", "{model}encoder.layers.{l}.mixer.Wqkv"),
    alone(AttnOut, "blk.{l}.attn_output", "{model}encoder.layers.{l}.mixer.out_proj"),
    alone(PostAttnNorm, "blk.{l}.attn_output_norm", "{model}encoder.layers.{l}.norm1"),
    alone(FfnUp, "blk.{l}.ffn_up", "{model}encoder.layers.{l}.mlp.fc1"),
    alone(FfnDown, "blk.{l}.ffn_down", "{model}encoder.layers.{l}.mlp.fc2"),
    alone(PostFfnNorm, "blk.{l}.layer_output_norm", "{model}encoder.layers.{l}.norm2"),
];

/// A router and experts, alone or beside a shared expert.
#[rustfmt::skip]
pub const EXPERTS: &[TensorName] = &[
    alone(Router, "blk.{l}.ffn_gate_inp", "{layer}mlp.gate"),
    alone(ExpertGate, "blk.{l}.ffn_gate_exps", "{layer}mlp.experts.{e}.gate_proj"),
    alone(ExpertUp, "blk.{l}.ffn_up_exps", "{layer}mlp.experts.{e}.up_proj"),
    stacked("", "{layer}mlp.experts.gate_up_proj$", &[ExpertGate, ExpertUp]),
    alone(ExpertDown, "blk.{l}.ffn_down_exps", "{layer}mlp.experts.{e}.down_proj"),
    alone(ExpertDown, "", "{layer}mlp.experts.down_proj$"),
    // MLX's converters stack the experts of each projection.
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

/// Qwen3-VL: experts in two tensors. Published matrices are `(n_in, n_out)` and those saved by
/// transformers `(n_out, n_in)`; the shape tells which.
#[rustfmt::skip]
pub const QWEN3_VL_EXPERTS: &[TensorName] = &[
    stacked("", "{layer}mlp.experts.gate_up_proj$", &[ExpertGate, ExpertUp]),
    transposed(stacked("", "{layer}mlp.experts.gate_up_proj$", &[ExpertGate, ExpertUp])),
    alone(ExpertDown, "", "{layer}mlp.experts.down_proj$"),
    transposed(alone(ExpertDown, "", "{layer}mlp.experts.down_proj$")),
    alone(ExpertGate, "blk.{l}.ffn_gate_exps", "{layer}mlp.switch_mlp.gate_proj"),
    alone(ExpertUp, "blk.{l}.ffn_up_exps", "{layer}mlp.switch_mlp.up_proj"),
    alone(ExpertDown, "blk.{l}.ffn_down_exps", "{layer}mlp.switch_mlp.down_proj"),
];

/// Gemma 4: experts beside a dense network, each with its own norms, per-layer inputs, and layer
/// factors.
#[rustfmt::skip]
pub const GEMMA4: &[TensorName] = &[
    alone(LayerScale, "blk.{l}.layer_output_scale", "{layer}layer_scalar$"),
    alone(Router, "blk.{l}.ffn_gate_inp", "{layer}router.proj"),
    alone(RouterScale, "blk.{l}.ffn_gate_inp.scale$", "{layer}router.scale$"),
    alone(ExpertScale, "blk.{l}.ffn_down_exps.scale$", "{layer}router.per_expert_scale$"),
    stacked("blk.{l}.ffn_gate_up_exps", "{layer}experts.gate_up_proj$", &[ExpertGate, ExpertUp]),
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

/// AltUp's residual streams, and LAuReL's low-rank residual (Gemma 3n).
#[rustfmt::skip]
pub const ALTUP: &[TensorName] = &[
    alone(StreamsIn, "altup_proj", "{model}altup_projections.{e}"),
    alone(StreamsOut, "altup_unembd_proj", "{model}altup_unembed_projections.{e}"),
    alone(StreamNorm, "blk.{l}.altup_router_norm", "{layer}altup.router_norm"),
    alone(StreamRouter, "blk.{l}.altup_router", "{layer}altup.modality_router"),
    alone(StreamPredictions, "blk.{l}.altup_predict_coef", "{layer}altup.prediction_coefs"),
    alone(StreamCorrections, "blk.{l}.altup_correct_coef", "{layer}altup.correction_coefs"),
    alone(StreamScale, "blk.{l}.altup_correct_scale", "{layer}altup.correct_output_scale$"),
    alone(LaurelDown, "blk.{l}.laurel_l", "{layer}laurel.linear_left"),
    alone(LaurelUp, "blk.{l}.laurel_r", "{layer}laurel.linear_right"),
    alone(LaurelNorm, "blk.{l}.laurel_post_norm", "{layer}laurel.post_laurel_norm"),
];

impl TensorName {
    /// True if the tensor holds the rows of a role.
    pub fn holds(&self, role: TensorRole) -> bool {
        self.role == role || self.stacked.contains(&role)
    }

    /// The name with placeholders.
    pub(crate) fn template(&self, naming: Naming) -> &'static str {
        match naming {
            Naming::Gguf => self.gguf,
            Naming::HuggingFace | Naming::Base => self.hf,
            Naming::CTranslate2 => self.ctranslate2,
            Naming::WhisperCpp => self.whisper_cpp,
        }
    }

    /// The full name without its suffix.
    pub(crate) fn expand(&self, naming: Naming, model_prefix: &str, layer: Option<usize>) -> Option<String> {
        let template = self.template(naming);
        let layer = layer.map(|l| l.to_string()).unwrap_or_default();
        let is_there = !template.is_empty() && (model_prefix == NEXT_PREFIX || !template.contains("{next}"));
        is_there.then(|| {
            template
                .replace("{next}", NEXT_PREFIX)
                .replace("{layer}", "{model}layers.{l}.")
                .replace("{model}", model_prefix)
                .replace("{l}", &layer)
        })
    }

    /// The full name with a suffix, `weight` or `bias`.
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
                // CTranslate2 calls the vectors of a norm gamma and beta.
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

    /// True if files of this naming store the matrix as `(n_in, n_out)`.
    pub(crate) fn is_transposed(&self, naming: Naming) -> bool {
        self.transposed && naming == Naming::HuggingFace
    }

    /// True if each layer has this tensor.
    pub(crate) fn is_of_layers(&self) -> bool {
        [self.gguf, self.hf].iter().any(|n| n.contains("{l}") || n.contains("{layer}"))
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
}
