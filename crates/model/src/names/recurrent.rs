//! Names of the tensors of recurrent layers and of the families that have them.
//!
//! What goes into a state, which rows of it, and which come out are called v, k and q in all of them, whatever a family says:
//! x, B and C.

use super::tensors::{alone, stacked};
use super::{Key, KeyNames, TensorName, TensorRole, TensorRole::*};

/// Not said: what tensors show instead.
const fn shown(key: Key) -> KeyNames {
    KeyNames { key, hf: "", ctranslate2: "", whisper_cpp: "" }
}

const fn called(key: Key, hf: &'static str) -> KeyNames {
    KeyNames { key, hf, ctranslate2: "", whisper_cpp: "" }
}

/// The width of the feed-forward network is that of its tensors.
pub const MEASURED_FFN: &[KeyNames] = &[shown(Key::Ffn)];

/// There are as many layers as have tensors.
pub const MEASURED_LAYERS: &[KeyNames] = &[shown(Key::Layers)];

/// Where there is only one kind of heads, they have the names of all heads.
pub const SCAN_ALONE: &[KeyNames] =
    &[called(Key::StateHeads, "num_heads"), called(Key::StateHeadDim, "head_dim")];

/// Short convolutions between two gates.
#[rustfmt::skip]
pub const SHORT_CONVOLUTIONS: &[TensorName] = &[
    alone(OutputNorm, "token_embd_norm", "{model}embedding_norm"),
    alone(AttnNorm, "blk.{l}.attn_norm", "{layer}operator_norm"),
    alone(AttnQNorm, "blk.{l}.attn_q_norm", "{layer}self_attn.q_layernorm"),
    alone(AttnKNorm, "blk.{l}.attn_k_norm", "{layer}self_attn.k_layernorm"),
    alone(AttnOut, "blk.{l}.attn_output", "{layer}self_attn.out_proj"),
    stacked(RecurrentK, "blk.{l}.shortconv.in_proj", "{layer}conv.in_proj", &[RecurrentK, RecurrentQ, RecurrentV]),
    stacked(RecurrentQ, "blk.{l}.shortconv.in_proj", "{layer}conv.in_proj", &[RecurrentK, RecurrentQ, RecurrentV]),
    stacked(RecurrentV, "blk.{l}.shortconv.in_proj", "{layer}conv.in_proj", &[RecurrentK, RecurrentQ, RecurrentV]),
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
    // MLX's converters stack each projection's experts and name the stack, and call the matrices as others do.
    alone(ExpertGate, "", "{layer}feed_forward.switch_mlp.gate_proj"),
    alone(ExpertUp, "", "{layer}feed_forward.switch_mlp.up_proj"),
    alone(ExpertDown, "", "{layer}feed_forward.switch_mlp.down_proj"),
    alone(FfnGate, "", "{layer}feed_forward.gate_proj"),
    alone(FfnUp, "", "{layer}feed_forward.up_proj"),
    alone(FfnDown, "", "{layer}feed_forward.down_proj"),
];

/// The gated delta rule; projections by themselves, or in two matrices whose rows are grouped by key head.
#[rustfmt::skip]
pub const DELTA: &[TensorName] = &[
    stacked(RecurrentQ, "blk.{l}.attn_qkv", "{layer}linear_attn.in_proj_qkv", &[RecurrentQ, RecurrentK, RecurrentV]),
    stacked(RecurrentK, "blk.{l}.attn_qkv", "{layer}linear_attn.in_proj_qkv", &[RecurrentQ, RecurrentK, RecurrentV]),
    stacked(RecurrentV, "blk.{l}.attn_qkv", "{layer}linear_attn.in_proj_qkv", &[RecurrentQ, RecurrentK, RecurrentV]),
    alone(RecurrentGate, "blk.{l}.attn_gate", "{layer}linear_attn.in_proj_z"),
    alone(RecurrentBeta, "blk.{l}.ssm_beta", "{layer}linear_attn.in_proj_b"),
    alone(RecurrentStep, "blk.{l}.ssm_alpha", "{layer}linear_attn.in_proj_a"),
    alone(RecurrentAll, "blk.{l}.ssm_in", "{layer}linear_attn.in_proj_qkvz"),
    alone(RecurrentBetaStep, "blk.{l}.ssm_ba", "{layer}linear_attn.in_proj_ba"),
    stacked(ConvQ, "blk.{l}.ssm_conv1d", "{layer}linear_attn.conv1d", &[ConvQ, ConvK, ConvV]),
    stacked(ConvK, "blk.{l}.ssm_conv1d", "{layer}linear_attn.conv1d", &[ConvQ, ConvK, ConvV]),
    stacked(ConvV, "blk.{l}.ssm_conv1d", "{layer}linear_attn.conv1d", &[ConvQ, ConvK, ConvV]),
    alone(StepBias, "blk.{l}.ssm_dt.bias$", "{layer}linear_attn.dt_bias$"),
    alone(Rate, "blk.{l}.ssm_a$", "{layer}linear_attn.A_log$"),
    alone(RecurrentNorm, "blk.{l}.ssm_norm", "{layer}linear_attn.norm"),
    alone(RecurrentOut, "blk.{l}.ssm_out", "{layer}linear_attn.out_proj"),
];

/// The gated delta rule by rows, under the names that attention has in other layers; experts whose matrices have numbers for names,
/// next to a shared one.
#[rustfmt::skip]
pub const DELTA_BY_ROWS: &[TensorName] = &[
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
    // As transformers saves dense layers.
    alone(FfnGate, "", "{layer}block_sparse_moe.gate_proj"),
    alone(FfnUp, "", "{layer}block_sparse_moe.up_proj"),
    alone(FfnDown, "", "{layer}block_sparse_moe.down_proj"),
];

/// The rows of a scan's projection, and of its convolution.
const SCANNED: &[TensorRole] = &[RecurrentGate, RecurrentV, RecurrentK, RecurrentQ, RecurrentStep];
const CONVOLVED: &[TensorRole] = &[ConvV, ConvK, ConvQ];

/// The selective scan, a part of a layer that checkpoints call `$part`.
#[rustfmt::skip]
macro_rules! scan {
    ($part:literal) => {
        &[
            stacked(RecurrentGate, "blk.{l}.ssm_in", concat!("{layer}", $part, ".in_proj"), SCANNED),
            stacked(RecurrentV, "blk.{l}.ssm_in", concat!("{layer}", $part, ".in_proj"), SCANNED),
            stacked(RecurrentK, "blk.{l}.ssm_in", concat!("{layer}", $part, ".in_proj"), SCANNED),
            stacked(RecurrentQ, "blk.{l}.ssm_in", concat!("{layer}", $part, ".in_proj"), SCANNED),
            stacked(RecurrentStep, "blk.{l}.ssm_in", concat!("{layer}", $part, ".in_proj"), SCANNED),
            stacked(ConvV, "blk.{l}.ssm_conv1d", concat!("{layer}", $part, ".conv1d"), CONVOLVED),
            stacked(ConvK, "blk.{l}.ssm_conv1d", concat!("{layer}", $part, ".conv1d"), CONVOLVED),
            stacked(ConvQ, "blk.{l}.ssm_conv1d", concat!("{layer}", $part, ".conv1d"), CONVOLVED),
            alone(StepBias, "blk.{l}.ssm_dt.bias$", concat!("{layer}", $part, ".dt_bias$")),
            alone(Rate, "blk.{l}.ssm_a$", concat!("{layer}", $part, ".A_log$")),
            alone(Skip, "blk.{l}.ssm_d$", concat!("{layer}", $part, ".D$")),
            alone(RecurrentNorm, "blk.{l}.ssm_norm", concat!("{layer}", $part, ".norm")),
            alone(RecurrentOut, "blk.{l}.ssm_out", concat!("{layer}", $part, ".out_proj")),
        ]
    };
}

/// The selective scan.
pub const SCAN: &[TensorName] = scan!("mamba");

/// The same where all layers are mixers.
pub const MIXER_SCAN: &[TensorName] = scan!("mixer");

/// Layers that are one mixer: all its tensors are called so, whatever it is, and it has the layer's only norm.
#[rustfmt::skip]
pub const MIXERS: &[TensorName] = &[
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

/// A feed-forward network with names of its own, next to a layer of attention and a scan.
#[rustfmt::skip]
pub const SIDE_BY_SIDE: &[TensorName] = &[
    alone(OutputNorm, "output_norm", "{model}final_layernorm"),
    // llama.cpp's converter leaves out the suffix.
    alone(FfnNorm, "blk.{l}.ffn_norm$", "{layer}pre_ff_layernorm"),
    alone(FfnNorm, "blk.{l}.ffn_norm", ""),
    alone(FfnGate, "blk.{l}.ffn_gate", "{layer}feed_forward.gate_proj"),
    alone(FfnUp, "blk.{l}.ffn_up", "{layer}feed_forward.up_proj"),
    alone(FfnDown, "blk.{l}.ffn_down", "{layer}feed_forward.down_proj"),
];

/// A network that all rows go through next to experts, gate and up of both in one matrix.
#[rustfmt::skip]
pub const SHARED_NETWORK: &[TensorName] = &[
    alone(FfnGate, "blk.{l}.ffn_gate_shexp", ""),
    alone(FfnGate, "blk.{l}.ffn_gate", ""),
    stacked(FfnGate, "", "{layer}shared_mlp.input_linear", &[FfnGate, FfnUp]),
    alone(FfnUp, "blk.{l}.ffn_up_shexp", ""),
    alone(FfnUp, "blk.{l}.ffn_up", ""),
    stacked(FfnUp, "", "{layer}shared_mlp.input_linear", &[FfnGate, FfnUp]),
    alone(FfnDown, "blk.{l}.ffn_down_shexp", "{layer}shared_mlp.output_linear"),
    alone(FfnDown, "blk.{l}.ffn_down", ""),
];
