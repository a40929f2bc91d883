//! Names of the tensors of recurrent layers and of the families that have them.
//!
//! v is the input of a state, k the rows that it is written to, and q the rows that are read.
//! Families with selective scans call them x, B and C.

use super::tensors::{alone, stacked};
use super::{Key, KeyNames, TensorName, TensorRole, TensorRole::*};

/// A number that is read from tensor shapes.
const fn shown(key: Key) -> KeyNames {
    KeyNames { key, hf: "", ctranslate2: "", whisper_cpp: "" }
}

const fn called(key: Key, hf: &'static str) -> KeyNames {
    KeyNames { key, hf, ctranslate2: "", whisper_cpp: "" }
}

/// Reads the width of the feed-forward network from tensor shapes.
pub const FFN_FROM_TENSORS: &[KeyNames] = &[shown(Key::Ffn)];

/// Reads the number of layers from tensor names.
pub const LAYERS_FROM_TENSORS: &[KeyNames] = &[shown(Key::Layers)];

/// Key names of recurrent heads in models without attention, where they are those of all heads.
pub const MAMBA2_KEYS: &[KeyNames] =
    &[called(Key::StateHeads, "num_heads"), called(Key::StateHeadDim, "head_dim")];

/// LFM2: short convolutions between two gates.
#[rustfmt::skip]
pub const LFM2: &[TensorName] = &[
    alone(OutputNorm, "token_embd_norm", "{model}embedding_norm"),
    alone(AttnNorm, "blk.{l}.attn_norm", "{layer}operator_norm"),
    alone(AttnQNorm, "blk.{l}.attn_q_norm", "{layer}self_attn.q_layernorm"),
    alone(AttnKNorm, "blk.{l}.attn_k_norm", "{layer}self_attn.k_layernorm"),
    alone(AttnOut, "blk.{l}.attn_output", "{layer}self_attn.out_proj"),
    stacked("blk.{l}.shortconv.in_proj", "{layer}conv.in_proj", &[RecurrentK, RecurrentQ, RecurrentV]),
    alone(ConvV, "blk.{l}.shortconv.conv", "{layer}conv.conv"),
    alone(RecurrentOut, "blk.{l}.shortconv.out_proj", "{layer}conv.out_proj"),
    alone(FfnNorm, "blk.{l}.ffn_norm", "{layer}ffn_norm"),
    alone(FfnGate, "blk.{l}.ffn_gate", "{layer}feed_forward.w1"),
    alone(FfnUp, "blk.{l}.ffn_up", "{layer}feed_forward.w3"),
    alone(FfnDown, "blk.{l}.ffn_down", "{layer}feed_forward.w2"),
    alone(Router, "blk.{l}.ffn_gate_inp", "{layer}feed_forward.gate"),
    alone(RouterBias, "blk.{l}.exp_probs_b.bias$", "{layer}feed_forward.expert_bias$"),
    alone(ExpertGate, "blk.{l}.ffn_gate_exps", "{layer}feed_forward.experts.{e}.w1"),
    alone(ExpertUp, "blk.{l}.ffn_up_exps", "{layer}feed_forward.experts.{e}.w3"),
    alone(ExpertDown, "blk.{l}.ffn_down_exps", "{layer}feed_forward.experts.{e}.w2"),
    // MLX's converters stack the experts of each projection and use common names for the matrices.
    alone(ExpertGate, "", "{layer}feed_forward.switch_mlp.gate_proj"),
    alone(ExpertUp, "", "{layer}feed_forward.switch_mlp.up_proj"),
    alone(ExpertDown, "", "{layer}feed_forward.switch_mlp.down_proj"),
    alone(FfnGate, "", "{layer}feed_forward.gate_proj"),
    alone(FfnUp, "", "{layer}feed_forward.up_proj"),
    alone(FfnDown, "", "{layer}feed_forward.down_proj"),
];

/// The gated delta rule of Qwen3-Next and Qwen3.5, with separate projections or with two matrices
/// whose rows are grouped by key head.
#[rustfmt::skip]
pub const GATED_DELTA_NET: &[TensorName] = &[
    stacked("blk.{l}.attn_qkv", "{layer}linear_attn.in_proj_qkv", &[RecurrentQ, RecurrentK, RecurrentV]),
    alone(RecurrentGate, "blk.{l}.attn_gate", "{layer}linear_attn.in_proj_z"),
    alone(RecurrentBeta, "blk.{l}.ssm_beta", "{layer}linear_attn.in_proj_b"),
    alone(RecurrentStep, "blk.{l}.ssm_alpha", "{layer}linear_attn.in_proj_a"),
    alone(RecurrentAll, "blk.{l}.ssm_in", "{layer}linear_attn.in_proj_qkvz"),
    alone(RecurrentBetaStep, "blk.{l}.ssm_ba", "{layer}linear_attn.in_proj_ba"),
    stacked("blk.{l}.ssm_conv1d", "{layer}linear_attn.conv1d", &[ConvQ, ConvK, ConvV]),
    alone(StepBias, "blk.{l}.ssm_dt.bias$", "{layer}linear_attn.dt_bias$"),
    alone(Rate, "blk.{l}.ssm_a$", "{layer}linear_attn.A_log$"),
    alone(RecurrentNorm, "blk.{l}.ssm_norm", "{layer}linear_attn.norm"),
    alone(RecurrentOut, "blk.{l}.ssm_out", "{layer}linear_attn.out_proj"),
];

/// Kimi Linear: the gated delta rule with a decay for each row, under attention's names, and
/// numbered experts beside a shared one.
#[rustfmt::skip]
pub const KIMI_LINEAR: &[TensorName] = &[
    alone(RecurrentQ, "blk.{l}.attn_q", "{layer}self_attn.q_proj"),
    alone(RecurrentK, "blk.{l}.attn_k", "{layer}self_attn.k_proj"),
    alone(RecurrentV, "blk.{l}.attn_v", "{layer}self_attn.v_proj"),
    alone(RecurrentGate, "blk.{l}.ssm_g_b", "{layer}self_attn.g_b_proj"),
    alone(GateDown, "blk.{l}.ssm_g_a", "{layer}self_attn.g_a_proj"),
    alone(RecurrentBeta, "blk.{l}.ssm_beta", "{layer}self_attn.b_proj"),
    alone(RecurrentStep, "blk.{l}.ssm_f_b", "{layer}self_attn.f_b_proj"),
    alone(StepDown, "blk.{l}.ssm_f_a", "{layer}self_attn.f_a_proj"),
    alone(ConvQ, "blk.{l}.ssm_conv1d_q", "{layer}self_attn.q_conv1d"),
    alone(ConvK, "blk.{l}.ssm_conv1d_k", "{layer}self_attn.k_conv1d"),
    alone(ConvV, "blk.{l}.ssm_conv1d_v", "{layer}self_attn.v_conv1d"),
    alone(StepBias, "blk.{l}.ssm_dt.bias$", "{layer}self_attn.dt_bias$"),
    alone(Rate, "blk.{l}.ssm_a$", "{layer}self_attn.A_log$"),
    alone(RecurrentNorm, "blk.{l}.ssm_norm", "{layer}self_attn.o_norm"),
    alone(RecurrentOut, "blk.{l}.attn_output", "{layer}self_attn.o_proj"),
    alone(RouterBias, "blk.{l}.exp_probs_b.bias$", "{layer}block_sparse_moe.gate.e_score_correction_bias$"),
    alone(FfnGate, "blk.{l}.ffn_gate_shexp", "{layer}block_sparse_moe.shared_experts.gate_proj"),
    alone(FfnGate, "blk.{l}.ffn_gate", "{layer}mlp.gate_proj"),
    alone(FfnUp, "blk.{l}.ffn_up_shexp", "{layer}block_sparse_moe.shared_experts.up_proj"),
    alone(FfnUp, "blk.{l}.ffn_up", "{layer}mlp.up_proj"),
    alone(FfnDown, "blk.{l}.ffn_down_shexp", "{layer}block_sparse_moe.shared_experts.down_proj"),
    alone(FfnDown, "blk.{l}.ffn_down", "{layer}mlp.down_proj"),
    // Names of dense layers as transformers saves them.
    alone(FfnGate, "", "{layer}block_sparse_moe.gate_proj"),
    alone(FfnUp, "", "{layer}block_sparse_moe.up_proj"),
    alone(FfnDown, "", "{layer}block_sparse_moe.down_proj"),
];

/// The roles stacked in a scan's input projection, and in its convolution.
const SSM_IN: &[TensorRole] = &[RecurrentGate, RecurrentV, RecurrentK, RecurrentQ, RecurrentStep];
const SSM_CONV: &[TensorRole] = &[ConvV, ConvK, ConvQ];

/// The selective scan, whose module is called `$part`.
#[rustfmt::skip]
macro_rules! scan {
    ($part:literal) => {
        &[
            stacked("blk.{l}.ssm_in", concat!("{layer}", $part, ".in_proj"), SSM_IN),
            stacked("blk.{l}.ssm_conv1d", concat!("{layer}", $part, ".conv1d"), SSM_CONV),
            alone(StepBias, "blk.{l}.ssm_dt.bias$", concat!("{layer}", $part, ".dt_bias$")),
            alone(Rate, "blk.{l}.ssm_a$", concat!("{layer}", $part, ".A_log$")),
            alone(Skip, "blk.{l}.ssm_d$", concat!("{layer}", $part, ".D$")),
            alone(RecurrentNorm, "blk.{l}.ssm_norm", concat!("{layer}", $part, ".norm")),
            alone(RecurrentOut, "blk.{l}.ssm_out", concat!("{layer}", $part, ".out_proj")),
        ]
    };
}

/// The selective scan of layers with other modules too.
pub const MAMBA: &[TensorName] = scan!("mamba");

/// The selective scan of layers whose one module is called `mixer`.
pub const MAMBA_MIXER: &[TensorName] = scan!("mixer");

/// Layers with one module, which is called `mixer` whatever its kind, and one norm (Nemotron-H,
/// Mamba-2).
#[rustfmt::skip]
pub const NEMOTRON_H: &[TensorName] = &[
    alone(TokenEmbedding, "token_embd", "{model}embeddings"),
    alone(OutputNorm, "output_norm", "{model}norm_f"),
    alone(AttnNorm, "blk.{l}.attn_norm", "{layer}norm"),
    alone(FfnNorm, "blk.{l}.attn_norm", "{layer}norm"),
    alone(AttnQ, "blk.{l}.attn_q", "{layer}mixer.q_proj"),
    alone(AttnK, "blk.{l}.attn_k", "{layer}mixer.k_proj"),
    alone(AttnV, "blk.{l}.attn_v", "{layer}mixer.v_proj"),
    alone(AttnOut, "blk.{l}.attn_output", "{layer}mixer.o_proj"),
    alone(Router, "blk.{l}.ffn_gate_inp", "{layer}mixer.gate"),
    alone(RouterBias, "blk.{l}.exp_probs_b.bias$", "{layer}mixer.gate.e_score_correction_bias$"),
    alone(ExpertUp, "blk.{l}.ffn_up_exps", "{layer}mixer.experts.{e}.up_proj"),
    alone(ExpertDown, "blk.{l}.ffn_down_exps", "{layer}mixer.experts.{e}.down_proj"),
    alone(ExpertUp, "", "{layer}mixer.switch_mlp.fc1"),
    alone(ExpertDown, "", "{layer}mixer.switch_mlp.fc2"),
    alone(LatentDown, "blk.{l}.ffn_latent_down", "{layer}mixer.fc1_latent_proj"),
    alone(LatentUp, "blk.{l}.ffn_latent_up", "{layer}mixer.fc2_latent_proj"),
    alone(FfnUp, "blk.{l}.ffn_up_shexp", "{layer}mixer.shared_experts.up_proj"),
    alone(FfnUp, "blk.{l}.ffn_up", "{layer}mixer.up_proj"),
    alone(FfnDown, "blk.{l}.ffn_down_shexp", "{layer}mixer.shared_experts.down_proj"),
    alone(FfnDown, "blk.{l}.ffn_down", "{layer}mixer.down_proj"),
];

/// Falcon-H1: a feed-forward network after attention and a scan.
#[rustfmt::skip]
pub const FALCON_H1: &[TensorName] = &[
    alone(OutputNorm, "output_norm", "{model}final_layernorm"),
    // llama.cpp's converter omits the suffix.
    alone(FfnNorm, "blk.{l}.ffn_norm$", "{layer}pre_ff_layernorm"),
    alone(FfnNorm, "blk.{l}.ffn_norm", ""),
    alone(FfnGate, "blk.{l}.ffn_gate", "{layer}feed_forward.gate_proj"),
    alone(FfnUp, "blk.{l}.ffn_up", "{layer}feed_forward.up_proj"),
    alone(FfnDown, "blk.{l}.ffn_down", "{layer}feed_forward.down_proj"),
];

/// Granite 4: a shared network beside experts, with gate and up in one matrix.
#[rustfmt::skip]
pub const GRANITE_SHARED_MLP: &[TensorName] = &[
    alone(FfnGate, "blk.{l}.ffn_gate_shexp", ""),
    alone(FfnGate, "blk.{l}.ffn_gate", ""),
    alone(FfnUp, "blk.{l}.ffn_up_shexp", ""),
    alone(FfnUp, "blk.{l}.ffn_up", ""),
    stacked("", "{layer}shared_mlp.input_linear", &[FfnGate, FfnUp]),
    alone(FfnDown, "blk.{l}.ffn_down_shexp", "{layer}shared_mlp.output_linear"),
    alone(FfnDown, "blk.{l}.ffn_down", ""),
];
