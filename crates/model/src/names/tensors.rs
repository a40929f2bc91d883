//! The name of each tensor, in GGUF files and in Hugging Face checkpoints. Those of recurrent layers and of speech models are in
//! files beside this one.
//!
//! A family lists tables, and takes all rows of a role from the first that has any. So a table is what several families have in
//! common, or what one of them has alone.

use weights::Naming;

use super::NEXT_PREFIX;
use super::roles::TensorRole::{self, *};

/// What a tensor is called. `.weight` or `.bias` follows, unless `$` ends the name. Empty names: never there.
#[derive(Clone, Copy, Debug)]
pub struct TensorName {
    /// What it is for.
    pub role: TensorRole,
    /// `{l}` is the layer, `{e}` the expert, where each is a tensor by itself.
    pub gguf: &'static str,
    /// `{model}` is one of [`MODEL_PREFIXES`](super::MODEL_PREFIXES), `{layer}` is `{model}layers.{l}.`. `{next}` is
    /// [`NEXT_PREFIX`](super::NEXT_PREFIX): names with it are of that layer alone.
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

pub(super) const fn stacked(
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
    alone(NextEmbeddingNorm, "blk.{l}.nextn.enorm", "{layer}enorm"),
    alone(NextEmbeddingNorm, "", "{next}pre_fc_norm_embedding"),
    alone(NextHiddenNorm, "blk.{l}.nextn.hnorm", "{layer}hnorm"),
    alone(NextHiddenNorm, "", "{next}pre_fc_norm_hidden"),
    alone(NextProjection, "blk.{l}.nextn.eh_proj", "{layer}eh_proj"),
    alone(NextProjection, "", "{next}fc"),
    alone(NextOutputNorm, "blk.{l}.nextn.shared_head_norm", "{layer}shared_head.norm"),
    alone(NextOutputNorm, "", "{next}norm"),
];

/// Norms after the branches take over the name that others give to the norm before the feed-forward network.
#[rustfmt::skip]
pub const SANDWICH: &[TensorName] = &[
    alone(PostAttnNorm, "blk.{l}.post_attention_norm", "{layer}post_attention_layernorm"),
    alone(FfnNorm, "blk.{l}.ffn_norm", "{layer}pre_feedforward_layernorm"),
    alone(PostFfnNorm, "blk.{l}.post_ffw_norm", "{layer}post_feedforward_layernorm"),
];

/// Gate and up in one matrix.
#[rustfmt::skip]
pub const GATE_UP: &[TensorName] = &[
    stacked(FfnGate, "blk.{l}.ffn_up", "{layer}mlp.gate_up_proj", &[FfnGate, FfnUp]),
    stacked(FfnUp, "blk.{l}.ffn_up", "{layer}mlp.gate_up_proj", &[FfnGate, FfnUp]),
];

/// Queries, keys and values in one matrix in some GGUF files only.
#[rustfmt::skip]
pub const QKV_IN_SOME: &[TensorName] = &[
    alone(AttnQ, "blk.{l}.attn_q", "{layer}self_attn.q_proj"),
    alone(AttnK, "blk.{l}.attn_k", "{layer}self_attn.k_proj"),
    alone(AttnV, "blk.{l}.attn_v", "{layer}self_attn.v_proj"),
    stacked(AttnQ, "blk.{l}.attn_qkv", "", &[AttnQ, AttnK, AttnV]),
    stacked(AttnK, "blk.{l}.attn_qkv", "", &[AttnQ, AttnK, AttnV]),
    stacked(AttnV, "blk.{l}.attn_qkv", "", &[AttnQ, AttnK, AttnV]),
];

/// Queries, keys and values in one matrix.
#[rustfmt::skip]
pub const QKV: &[TensorName] = &[
    stacked(AttnQ, "blk.{l}.attn_qkv", "{layer}self_attn.qkv_proj", &[AttnQ, AttnK, AttnV]),
    stacked(AttnK, "blk.{l}.attn_qkv", "{layer}self_attn.qkv_proj", &[AttnQ, AttnK, AttnV]),
    stacked(AttnV, "blk.{l}.attn_qkv", "{layer}self_attn.qkv_proj", &[AttnQ, AttnK, AttnV]),
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

/// Four norms a layer, those after the branches named for them.
#[rustfmt::skip]
pub const NAMED_POST_NORMS: &[TensorName] = &[
    alone(PostAttnNorm, "blk.{l}.post_attention_norm", "{layer}post_self_attn_layernorm"),
    alone(FfnNorm, "blk.{l}.ffn_norm", "{layer}post_attention_layernorm"),
    alone(PostFfnNorm, "blk.{l}.post_ffw_norm", "{layer}post_mlp_layernorm"),
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

/// Experts in two tensors, those of gate and up one after the other.
#[rustfmt::skip]
pub const STACKED_EXPERTS: &[TensorName] = &[
    alone(Router, "blk.{l}.ffn_gate_inp", "{layer}block_sparse_moe.router.layer"),
    alone(Router, "", "{layer}block_sparse_moe.router"),
    alone(ExpertGate, "blk.{l}.ffn_gate_exps", "{layer}block_sparse_moe.switch_mlp.gate_proj"),
    alone(ExpertUp, "blk.{l}.ffn_up_exps", "{layer}block_sparse_moe.switch_mlp.up_proj"),
    alone(ExpertDown, "blk.{l}.ffn_down_exps", "{layer}block_sparse_moe.switch_mlp.down_proj"),
    stacked(ExpertGate, "", "{layer}block_sparse_moe.input_linear", &[ExpertGate, ExpertUp]),
    stacked(ExpertUp, "", "{layer}block_sparse_moe.input_linear", &[ExpertGate, ExpertUp]),
    alone(ExpertDown, "", "{layer}block_sparse_moe.output_linear"),
];

/// One norm, before both branches, and names from before the others agreed on theirs.
#[rustfmt::skip]
pub const PARALLEL: &[TensorName] = &[
    alone(OutputNorm, "output_norm", "{model}final_layernorm"),
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

/// The same without a gate, and with another name for what attends.
#[rustfmt::skip]
pub const MIXING_ENCODER: &[TensorName] = &[
    alone(TokenEmbedding, "token_embd", "{model}embeddings.word_embeddings"),
    alone(TokenTypes, "token_types", "{model}embeddings.token_type_embeddings"),
    alone(EmbeddingNorm, "token_embd_norm", "{model}emb_ln"),
    stacked(AttnQ, "blk.{l}.attn_qkv", "{model}encoder.layers.{l}.mixer.Wqkv", &[AttnQ, AttnK, AttnV]),
    stacked(AttnK, "blk.{l}.attn_qkv", "{model}encoder.layers.{l}.mixer.Wqkv", &[AttnQ, AttnK, AttnV]),
    stacked(AttnV, "blk.{l}.attn_qkv", "{model}encoder.layers.{l}.mixer.Wqkv", &[AttnQ, AttnK, AttnV]),
    alone(AttnOut, "blk.{l}.attn_output", "{model}encoder.layers.{l}.mixer.out_proj"),
    alone(PostAttnNorm, "blk.{l}.attn_output_norm", "{model}encoder.layers.{l}.norm1"),
    alone(FfnUp, "blk.{l}.ffn_up", "{model}encoder.layers.{l}.mlp.fc1"),
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

/// Experts in two tensors whose matrices are `(n_in, n_out)` as they were published, and `(n_out, n_in)` where transformers saved
/// them: their shape tells.
#[rustfmt::skip]
pub const EXPERTS_EITHER_WAY: &[TensorName] = &[
    stacked(ExpertGate, "", "{layer}mlp.experts.gate_up_proj$", &[ExpertGate, ExpertUp]),
    transposed(stacked(ExpertGate, "", "{layer}mlp.experts.gate_up_proj$", &[ExpertGate, ExpertUp])),
    stacked(ExpertUp, "", "{layer}mlp.experts.gate_up_proj$", &[ExpertGate, ExpertUp]),
    transposed(stacked(ExpertUp, "", "{layer}mlp.experts.gate_up_proj$", &[ExpertGate, ExpertUp])),
    alone(ExpertDown, "", "{layer}mlp.experts.down_proj$"),
    transposed(alone(ExpertDown, "", "{layer}mlp.experts.down_proj$")),
    alone(ExpertGate, "blk.{l}.ffn_gate_exps", "{layer}mlp.switch_mlp.gate_proj"),
    alone(ExpertUp, "blk.{l}.ffn_up_exps", "{layer}mlp.switch_mlp.up_proj"),
    alone(ExpertDown, "blk.{l}.ffn_down_exps", "{layer}mlp.switch_mlp.down_proj"),
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

/// Several residual streams, and a low-rank residual beside each layer.
#[rustfmt::skip]
pub const STREAMS: &[TensorName] = &[
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
        let is_there = !template.is_empty() && (model_prefix == NEXT_PREFIX || !template.contains("{next}"));
        is_there.then(|| {
            template
                .replace("{next}", NEXT_PREFIX)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::FAMILIES;

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
        for name in FAMILIES.iter().flat_map(|family| family.tensors.iter().copied().flatten()) {
            assert!(name.stacked.is_empty() || name.stacked.contains(&name.role), "{name:?}");
        }
    }
}
