//! The families. To add a dense family, add an entry here, and rows to [`crate::names`] for tensors
//! and keys with other names.
//!
//! This file exceeds 600 lines because it is a table: each family is an entry that differs from
//! another in a few fields.

use device::{Activation, OutputKind, RopeStyle, RouterScores};

use crate::descriptor::{
    ArchDescriptor, AttentionScale, Convolution, EmbeddingScale, ExpertPlace, NormKind, NormPlaces,
    PerNaming, QkNorm, Recurrent, RecurrentKind, RecurrentPlace, Temperature, WindowPattern,
};
use crate::names::TensorRole::{AttnK, AttnOut, AttnQ, AttnV, Conv1, Conv2, FfnDown, FfnUp, Output, Router};
use crate::names::{
    ALTUP, BERT, EXPERTS, FALCON_H1, FFN_FROM_TENSORS, FFN_NORM_AFTER_ATTENTION, FUSED_GATE_UP, FUSED_QKV,
    GATED_DELTA_NET, GEMMA4, GLM4_NORMS, GPT_OSS_EXPERTS, GPT2, GRANITE_EXPERTS, GRANITE_SHARED_MLP,
    HUNYUAN_QK_NORMS, JINA_V3, KIMI_LINEAR, Key, KeyNames, LAYERS_FROM_TENSORS, LFM2, LLAMA4_EXPERTS, MAMBA,
    MAMBA_MIXER, MAMBA2_KEYS, MAYBE_FUSED_QKV, MIXTRAL_EXPERTS, MLA, MODERNBERT, NEMOTRON_H, NOMIC_BERT, PHI,
    QWEN3_VL_EXPERTS, SANDWICH_NORMS, SHARED_EXPERTS, STANDARD, STARCODER2_FFN, WHISPER_BIASES,
    WHISPER_DECODER, WHISPER_DECODER_KEYS, WHISPER_ENCODER, WHISPER_ENCODER_KEYS, WHISPER_SETTINGS,
};

/// RoPE pairing of families whose query and key rows the converter to GGUF permutes, so that
/// neighbouring columns rotate.
const PERMUTED: PerNaming<RopeStyle> = PerNaming { gguf: RopeStyle::Interleaved, hf: RopeStyle::Half };

/// Offset of norm weights that checkpoints store less 1; the converter to GGUF adds the 1.
const ZERO_CENTRED: PerNaming<f32> = PerNaming { gguf: 0.0, hf: 1.0 };

const SHORT_CONV: Recurrent = Recurrent {
    kind: RecurrentKind::ShortConv,
    place: RecurrentPlace::InsteadOfAttention,
    tiled: PerNaming::both(false),
    by_rows: false,
};

/// The converter to GGUF reorders the value heads of newer families.
const GATED_DELTA: Recurrent = Recurrent {
    kind: RecurrentKind::GatedDelta,
    place: RecurrentPlace::InsteadOfAttention,
    tiled: PerNaming { gguf: true, hf: false },
    by_rows: false,
};

const SELECTIVE_SCAN: Recurrent = Recurrent {
    kind: RecurrentKind::SelectiveScan,
    place: RecurrentPlace::InsteadOfAttention,
    tiled: PerNaming::both(false),
    by_rows: false,
};

/// Every family, the simplest first.
pub const FAMILIES: &[ArchDescriptor] = &[
    ArchDescriptor {
        name: "llama",
        title: "LLaMA",
        gguf: &["llama"],
        hf: &["llama"],
        // GGUF files of Mixtral also have the architecture `llama`.
        tensors: &[MIXTRAL_EXPERTS, STANDARD],
        rope_style: PERMUTED,
        experts: ExpertPlace::Instead,
        defaults: PerNaming { gguf: &[(Key::ExpertsNormalised, 1.0)], hf: &[] },
        ..ArchDescriptor::DENSE
    },
    // GGUF files of Mistral have the architecture `llama`.
    ArchDescriptor {
        name: "mistral",
        title: "Mistral",
        hf: &["mistral"],
        gguf_as: Some("llama"),
        defaults: PerNaming { gguf: &[], hf: &[(Key::Window, 4096.0), (Key::KvHeads, 8.0)] },
        ..ArchDescriptor::DENSE
    },
    ArchDescriptor {
        name: "mixtral",
        title: "Mixtral",
        hf: &["mixtral"],
        gguf_as: Some("llama"),
        tensors: &[MIXTRAL_EXPERTS, STANDARD],
        experts: ExpertPlace::Instead,
        defaults: PerNaming {
            gguf: &[],
            hf: &[
                (Key::KvHeads, 8.0),
                (Key::Experts, 8.0),
                (Key::ExpertsUsed, 2.0),
                (Key::ExpertsNormalised, 1.0),
                (Key::RopeTheta, 1_000_000.0),
            ],
        },
        ..ArchDescriptor::DENSE
    },
    ArchDescriptor {
        name: "ministral3",
        title: "Ministral 3",
        gguf: &["mistral3"],
        hf: &["ministral3", "mistral3"],
        rope_style: PERMUTED,
        temperature: Temperature::All,
        ..ArchDescriptor::DENSE
    },
    ArchDescriptor {
        name: "qwen2",
        title: "Qwen 2",
        gguf: &["qwen2", "qwen2vl"],
        hf: &["qwen2", "qwen2_5_vl", "qwen2_5_vl_text"],
        biases: &[AttnQ, AttnK, AttnV],
        windows: WindowPattern::FromKey,
        defaults: PerNaming::both(&[(Key::FirstWindowLayer, 28.0)]),
        ..ArchDescriptor::DENSE
    },
    ArchDescriptor {
        name: "qwen3",
        title: "Qwen 3",
        gguf: &["qwen3", "qwen3vl"],
        hf: &["qwen3", "qwen3_vl_text", "qwen3_vl"],
        qk_norm: QkNorm::PerHead,
        windows: WindowPattern::FromKey,
        defaults: PerNaming::both(&[(Key::FirstWindowLayer, 28.0)]),
        ..ArchDescriptor::DENSE
    },
    ArchDescriptor {
        name: "qwen2_moe",
        title: "Qwen 2 MoE",
        gguf: &["qwen2moe"],
        hf: &["qwen2_moe"],
        tensors: &[EXPERTS, STANDARD],
        biases: &[AttnQ, AttnK, AttnV],
        windows: WindowPattern::FromKey,
        experts: ExpertPlace::WithShared,
        defaults: PerNaming {
            gguf: &[(Key::FirstWindowLayer, 28.0)],
            hf: &[
                (Key::FirstWindowLayer, 28.0),
                (Key::Experts, 60.0),
                (Key::ExpertsUsed, 4.0),
                (Key::ExpertFfn, 1408.0),
                (Key::SharedFfn, 5632.0),
            ],
        },
        ..ArchDescriptor::DENSE
    },
    ArchDescriptor {
        name: "qwen3_moe",
        title: "Qwen 3 MoE",
        gguf: &["qwen3moe"],
        hf: &["qwen3_moe"],
        ..QWEN3_MOE
    },
    // The language model of Qwen3-VL with experts.
    ArchDescriptor {
        name: "qwen3_vl_moe",
        title: "Qwen3-VL MoE",
        gguf: &["qwen3vlmoe"],
        hf: &["qwen3_vl_moe_text", "qwen3_vl_moe"],
        gguf_as: Some("qwen3moe"),
        tensors: &[QWEN3_VL_EXPERTS, EXPERTS, STANDARD],
        defaults: PerNaming {
            hf: &[
                (Key::FirstWindowLayer, 28.0),
                (Key::Experts, 60.0),
                (Key::ExpertsUsed, 4.0),
                (Key::ExpertFfn, 1408.0),
                (Key::ExpertsNormalised, 1.0),
            ],
            ..QWEN3_MOE.defaults
        },
        ..QWEN3_MOE
    },
    ArchDescriptor {
        name: "gemma",
        title: "Gemma",
        gguf: &["gemma"],
        hf: &["gemma"],
        norm_offset: ZERO_CENTRED,
        activation: Activation::GeluTanh,
        embedding_scale: EmbeddingScale::SqrtHidden,
        defaults: PerNaming { gguf: &[], hf: &[(Key::HeadDim, 256.0)] },
        ..ArchDescriptor::DENSE
    },
    ArchDescriptor {
        name: "gemma2",
        title: "Gemma 2",
        gguf: &["gemma2"],
        hf: &["gemma2"],
        tensors: &[SANDWICH_NORMS, STANDARD],
        norms: NormPlaces::SANDWICH,
        norm_offset: ZERO_CENTRED,
        attention_scale: AttentionScale::HiddenPerHead { n_layers: 46 },
        windows: WindowPattern::FullEvery(2),
        activation: Activation::GeluTanh,
        embedding_scale: EmbeddingScale::SqrtHidden,
        defaults: PerNaming {
            gguf: &[(Key::Window, 4096.0), (Key::AttentionSoftcap, 50.0), (Key::LogitSoftcap, 30.0)],
            hf: &[
                (Key::HeadDim, 256.0),
                (Key::Window, 4096.0),
                (Key::QueryScalar, 256.0),
                (Key::AttentionSoftcap, 50.0),
                (Key::LogitSoftcap, 30.0),
            ],
        },
        ..ArchDescriptor::DENSE
    },
    ArchDescriptor {
        name: "gemma3",
        title: "Gemma 3",
        gguf: &["gemma3"],
        hf: &["gemma3_text", "gemma3"],
        both_ways: Some(&EMBEDDING_GEMMA),
        ..GEMMA_3
    },
    EMBEDDING_GEMMA,
    // Small models have per-layer inputs and share keys and values. Large models have experts, or
    // keys that are also values.
    ArchDescriptor {
        name: "gemma4",
        title: "Gemma 4",
        gguf: &["gemma4"],
        hf: &["gemma4_text", "gemma4"],
        tensors: &[GEMMA4, SANDWICH_NORMS, STANDARD],
        norms: NormPlaces::SANDWICH,
        qk_norm: QkNorm::PerHead,
        v_norm: true,
        keys_as_values: true,
        attention_scale: AttentionScale::One,
        windows: WindowPattern::FullEvery(6),
        window_rope_theta: Some(10_000.0),
        activation: Activation::GeluTanh,
        embedding_scale: EmbeddingScale::SqrtHidden,
        experts: ExpertPlace::Beside,
        defaults: PerNaming {
            gguf: &[(Key::RopeTheta, 1_000_000.0), (Key::ExpertsNormalised, 1.0)],
            hf: &[
                (Key::Heads, 8.0),
                (Key::KvHeads, 4.0),
                (Key::HeadDim, 256.0),
                (Key::FullHeadDim, 512.0),
                (Key::Vocab, 262_144.0),
                (Key::Context, 131_072.0),
                (Key::NormEps, 1e-6),
                (Key::RopeTheta, 1_000_000.0),
                (Key::Window, 512.0),
                (Key::PerLayerWidth, 256.0),
                (Key::ExpertsNormalised, 1.0),
            ],
        },
        ..ArchDescriptor::DENSE
    },
    // Layers of the published checkpoints compute the first of four streams, and scale it where the
    // per-layer input is added.
    ArchDescriptor {
        name: "gemma3n",
        title: "Gemma 3n",
        gguf: &["gemma3n"],
        hf: &["gemma3n_text", "gemma3n"],
        settings: &[("altup_active_idx", 0), ("altup.active_idx", 0), ("altup_correct_scale", 1)],
        tensors: &[ALTUP, GEMMA4, SANDWICH_NORMS, STANDARD],
        norms: NormPlaces::SANDWICH,
        qk_norm: QkNorm::PerHead,
        v_norm: true,
        attention_scale: AttentionScale::One,
        windows: WindowPattern::FullEvery(5),
        window_rope_theta: Some(10_000.0),
        activation: Activation::GeluTanh,
        embedding_scale: EmbeddingScale::SqrtHidden,
        defaults: PerNaming {
            gguf: &[(Key::RopeTheta, 1_000_000.0), (Key::Streams, 4.0)],
            hf: &[
                (Key::Heads, 8.0),
                (Key::KvHeads, 2.0),
                (Key::HeadDim, 256.0),
                (Key::Vocab, 262_400.0),
                (Key::Context, 32_768.0),
                (Key::NormEps, 1e-6),
                (Key::RopeTheta, 1_000_000.0),
                (Key::Window, 512.0),
                (Key::SharedKvLayers, 15.0),
                (Key::PerLayerWidth, 256.0),
                (Key::PerLayerVocab, 262_144.0),
                (Key::Streams, 4.0),
                (Key::LaurelRank, 64.0),
                (Key::LogitSoftcap, 30.0),
            ],
        },
        ..ArchDescriptor::DENSE
    },
    ArchDescriptor {
        name: "smollm3",
        title: "SmolLM3",
        gguf: &["smollm3"],
        hf: &["smollm3"],
        rope_style: PERMUTED,
        no_rope_every: Some(4),
        windows: WindowPattern::FromKey,
        defaults: PerNaming::both(&[(Key::RopeTheta, 2_000_000.0)]),
        ..ArchDescriptor::DENSE
    },
    ArchDescriptor {
        name: "phi3",
        title: "Phi-3",
        gguf: &["phi3"],
        hf: &["phi3"],
        tensors: &[FUSED_QKV, FUSED_GATE_UP, STANDARD],
        ..ArchDescriptor::DENSE
    },
    ArchDescriptor {
        name: "granite",
        title: "Granite",
        gguf: &["granite"],
        hf: &["granite"],
        rope_style: PERMUTED,
        ..ArchDescriptor::DENSE
    },
    ArchDescriptor { name: "olmo2", title: "OLMo 2", gguf: &["olmo2"], hf: &["olmo2"], ..OLMO },
    // GGUF files of OLMo 3 have the architecture `olmo2`.
    ArchDescriptor { name: "olmo3", title: "OLMo 3", hf: &["olmo3"], gguf_as: Some("olmo2"), ..OLMO },
    ArchDescriptor {
        name: "exaone4",
        title: "EXAONE 4",
        gguf: &["exaone4"],
        hf: &["exaone4"],
        tensors: &[SANDWICH_NORMS, STANDARD],
        norms: NormPlaces::POST,
        qk_norm: QkNorm::PerHead,
        windows: WindowPattern::FullEvery(4),
        rope_in_windows_only: true,
        ..ArchDescriptor::DENSE
    },
    ArchDescriptor {
        name: "glm4",
        title: "GLM-4",
        gguf: &["glm4"],
        hf: &["glm4"],
        tensors: &[GLM4_NORMS, FUSED_GATE_UP, STANDARD],
        norms: NormPlaces::SANDWICH,
        rope_style: PerNaming::both(RopeStyle::Interleaved),
        defaults: PerNaming { gguf: &[], hf: &[(Key::RopePart, 0.5)] },
        ..ArchDescriptor::DENSE
    },
    ArchDescriptor {
        name: "glm4_moe",
        title: "GLM-4.5",
        gguf: &["glm4moe"],
        hf: &["glm4_moe"],
        tensors: &[SHARED_EXPERTS, FFN_NORM_AFTER_ATTENTION, EXPERTS, STANDARD],
        qk_norm: QkNorm::PerHead,
        qk_norm_may_lack: true,
        experts: ExpertPlace::WithPlainShared,
        router_scores: RouterScores::Sigmoid,
        defaults: PerNaming {
            gguf: &[(Key::ExpertsNormalised, 1.0)],
            hf: &[(Key::RopePart, 0.5), (Key::ExpertsNormalised, 1.0), (Key::FirstDenseLayers, 1.0)],
        },
        ..ArchDescriptor::DENSE
    },
    ArchDescriptor {
        name: "deepseek_v2",
        title: "DeepSeek V2",
        hf: &["deepseek_v2"],
        gguf_as: Some("deepseek2"),
        ..DEEPSEEK
    },
    ArchDescriptor {
        name: "deepseek_v3",
        title: "DeepSeek V3",
        gguf: &["deepseek2"],
        hf: &["deepseek_v3", "kimi_k2"],
        router_scores: RouterScores::Sigmoid,
        ..DEEPSEEK
    },
    ArchDescriptor {
        name: "glm4_moe_lite",
        title: "GLM-4.7-Flash",
        hf: &["glm4_moe_lite"],
        gguf_as: Some("deepseek2"),
        router_scores: RouterScores::Sigmoid,
        ..DEEPSEEK
    },
    ArchDescriptor {
        name: "llama4",
        title: "Llama 4",
        gguf: &["llama4"],
        hf: &["llama4_text", "llama4"],
        keys: &[
            KeyNames { key: Key::Ffn, hf: "intermediate_size_mlp", ctranslate2: "", whisper_cpp: "" },
            KeyNames { key: Key::ExpertFfn, hf: "intermediate_size", ctranslate2: "", whisper_cpp: "" },
        ],
        tensors: &[LLAMA4_EXPERTS, STANDARD],
        qk_norm: QkNorm::PlainWhereTurning,
        qk_norm_may_lack: true,
        qk_norm_lacks_with_experts: Some(128),
        rope_style: PerNaming::both(RopeStyle::Interleaved),
        windows: WindowPattern::FullEvery(4),
        chunked: true,
        no_rope_every: Some(4),
        temperature: Temperature::WithoutRotation,
        experts: ExpertPlace::WithPlainShared,
        router_scores: RouterScores::Sigmoid,
        experts_weigh_input: true,
        defaults: PerNaming {
            gguf: &[
                (Key::Chunk, 8192.0),
                (Key::SharedExperts, 1.0),
                (Key::TemperatureScale, 0.1),
                (Key::TemperatureLength, 8192.0),
            ],
            hf: &[(Key::SharedExperts, 1.0), (Key::TemperatureScale, 0.1), (Key::TemperatureLength, 8192.0)],
        },
        ..ArchDescriptor::DENSE
    },
    ArchDescriptor {
        name: "gpt_oss",
        title: "gpt-oss",
        gguf: &["gpt-oss"],
        hf: &["gpt_oss"],
        tensors: &[GPT_OSS_EXPERTS, FFN_NORM_AFTER_ATTENTION, STANDARD],
        biases: &[AttnQ, AttnK, AttnV, AttnOut, Router],
        windows: WindowPattern::FullEvery(2),
        experts: ExpertPlace::Instead,
        gate_clamped: true,
        defaults: PerNaming {
            gguf: &[(Key::ExpertsNormalised, 1.0), (Key::RopeTruncate, 0.0)],
            hf: &[(Key::ExpertsNormalised, 1.0), (Key::HeadDim, 64.0)],
        },
        ..ArchDescriptor::DENSE
    },
    ArchDescriptor {
        name: "ernie4_5",
        title: "ERNIE 4.5",
        gguf: &["ernie4_5"],
        hf: &["ernie4_5"],
        rope_style: PerNaming::both(RopeStyle::Interleaved),
        ..ArchDescriptor::DENSE
    },
    ArchDescriptor {
        name: "seed_oss",
        title: "Seed-OSS",
        gguf: &["seed_oss"],
        hf: &["seed_oss"],
        tensors: &[FFN_NORM_AFTER_ATTENTION, STANDARD],
        biases: &[AttnQ, AttnK, AttnV],
        ..ArchDescriptor::DENSE
    },
    ArchDescriptor {
        name: "cohere",
        title: "Command R",
        gguf: &["command-r"],
        hf: &["cohere"],
        settings: &[("use_qk_norm", 0)],
        ..COHERE
    },
    ArchDescriptor {
        name: "cohere2",
        title: "Command R7B, Command A",
        gguf: &["cohere2"],
        hf: &["cohere2"],
        windows: WindowPattern::FullEvery(4),
        rope_in_windows_only: true,
        ..COHERE
    },
    ArchDescriptor {
        name: "hunyuan_v1_dense",
        title: "Hunyuan",
        gguf: &["hunyuan-dense"],
        hf: &["hunyuan_v1_dense"],
        tensors: &[HUNYUAN_QK_NORMS, STANDARD],
        qk_norm: QkNorm::PerHead,
        qk_norm_after_rope: true,
        ..ArchDescriptor::DENSE
    },
    ArchDescriptor {
        name: "glm",
        title: "GLM",
        gguf: &["chatglm"],
        hf: &["glm"],
        tensors: &[MAYBE_FUSED_QKV, FUSED_GATE_UP, STANDARD],
        rope_style: PerNaming::both(RopeStyle::Interleaved),
        defaults: PerNaming { gguf: &[], hf: &[(Key::RopePart, 0.5)] },
        ..ArchDescriptor::DENSE
    },
    ArchDescriptor {
        name: "olmoe",
        title: "OLMoE",
        gguf: &["olmoe"],
        hf: &["olmoe"],
        tensors: &[EXPERTS, STANDARD],
        qk_norm: QkNorm::WholeRow,
        experts: ExpertPlace::Instead,
        defaults: PerNaming { gguf: &[(Key::ExpertsNormalised, 0.0)], hf: &[] },
        ..ArchDescriptor::DENSE
    },
    ArchDescriptor {
        name: "granitemoe",
        title: "Granite MoE",
        gguf: &["granitemoe"],
        hf: &["granitemoe"],
        tensors: &[GRANITE_EXPERTS, STANDARD],
        rope_style: PERMUTED,
        experts: ExpertPlace::Instead,
        defaults: PerNaming::both(&[(Key::ExpertsNormalised, 1.0)]),
        ..ArchDescriptor::DENSE
    },
    ArchDescriptor {
        name: "ernie4_5_moe",
        title: "ERNIE 4.5 MoE",
        gguf: &["ernie4_5-moe"],
        hf: &["ernie4_5_moe"],
        tensors: &[SHARED_EXPERTS, EXPERTS, STANDARD],
        rope_style: PerNaming::both(RopeStyle::Interleaved),
        experts: ExpertPlace::WithPlainShared,
        defaults: PerNaming::both(&[(Key::ExpertsNormalised, 1.0)]),
        ..ArchDescriptor::DENSE
    },
    ArchDescriptor {
        name: "dots1",
        title: "dots.llm1",
        gguf: &["dots1"],
        hf: &["dots1"],
        tensors: &[SHARED_EXPERTS, EXPERTS, STANDARD],
        qk_norm: QkNorm::PerHead,
        windows: WindowPattern::FromKey,
        experts: ExpertPlace::WithPlainShared,
        router_scores: RouterScores::Sigmoid,
        defaults: PerNaming {
            gguf: &[(Key::FirstWindowLayer, 62.0), (Key::ExpertsNormalised, 1.0)],
            hf: &[(Key::FirstWindowLayer, 62.0)],
        },
        ..ArchDescriptor::DENSE
    },
    ArchDescriptor {
        name: "stablelm",
        title: "StableLM",
        gguf: &["stablelm"],
        hf: &["stablelm"],
        settings: &[("use_parallel_residual", 0), ("qk_layernorm", 0)],
        norm_kind: NormKind::Layer,
        defaults: PerNaming { gguf: &[], hf: &[(Key::RopePart, 0.25)] },
        ..ArchDescriptor::DENSE
    },
    ArchDescriptor {
        name: "arcee",
        title: "Arcee",
        gguf: &["arcee"],
        hf: &["arcee"],
        rope_style: PERMUTED,
        activation: Activation::ReluSquared,
        gated: false,
        ..ArchDescriptor::DENSE
    },
    ArchDescriptor {
        name: "nemotron",
        title: "Nemotron",
        gguf: &["nemotron"],
        hf: &["nemotron"],
        norm_kind: NormKind::Layer,
        norm_offset: ZERO_CENTRED,
        activation: Activation::ReluSquared,
        gated: false,
        defaults: PerNaming { gguf: &[], hf: &[(Key::RopePart, 0.5)] },
        ..ArchDescriptor::DENSE
    },
    ArchDescriptor {
        name: "starcoder2",
        title: "StarCoder 2",
        gguf: &["starcoder2"],
        hf: &["starcoder2"],
        tensors: &[STARCODER2_FFN, STANDARD],
        norm_kind: NormKind::Layer,
        activation: Activation::GeluTanh,
        gated: false,
        ..ArchDescriptor::DENSE
    },
    ArchDescriptor {
        name: "phi",
        title: "Phi",
        gguf: &["phi2"],
        hf: &["phi"],
        tensors: &[PHI, MAYBE_FUSED_QKV, STANDARD],
        settings: &[("qk_layernorm", 0)],
        norms: NormPlaces { pre_ffn: false, ..NormPlaces::PRE },
        norm_kind: NormKind::Layer,
        biases: &[AttnQ, AttnK, AttnV, AttnOut, FfnUp, FfnDown, Output],
        activation: Activation::GeluTanh,
        gated: false,
        parallel: true,
        defaults: PerNaming { gguf: &[], hf: &[(Key::RopePart, 0.5)] },
        ..ArchDescriptor::DENSE
    },
    ArchDescriptor {
        name: "gpt2",
        title: "GPT-2",
        gguf: &["gpt2"],
        hf: &["gpt2"],
        tensors: &[GPT2, STANDARD],
        settings: &[("scale_attn_by_inverse_layer_idx", 0), ("scale_attn_weights", 1)],
        norm_kind: NormKind::Layer,
        biases: &[AttnQ, AttnK, AttnV, AttnOut, FfnUp, FfnDown],
        learned_positions: true,
        no_rope_every: Some(1),
        activation: Activation::GeluTanh,
        gated: false,
        ffn_per_hidden: Some(4),
        defaults: PerNaming { gguf: &[], hf: &[(Key::TiedHead, 1.0)] },
        ..ArchDescriptor::DENSE
    },
    // The key for the network's width may be wrong, because the authors' code adjusts it. So the
    // width is read from the tensors.
    ArchDescriptor {
        name: "lfm2",
        title: "LFM2",
        gguf: &["lfm2"],
        hf: &["lfm2"],
        keys: FFN_FROM_TENSORS,
        tensors: &[LFM2, STANDARD],
        qk_norm: QkNorm::PerHead,
        recurrent: Some(SHORT_CONV),
        defaults: PerNaming { gguf: &[], hf: &[(Key::NormEps, 1e-5), (Key::RopeTheta, 1_000_000.0)] },
        ..ArchDescriptor::DENSE
    },
    ArchDescriptor {
        name: "lfm2_moe",
        title: "LFM2 MoE",
        gguf: &["lfm2moe"],
        hf: &["lfm2_moe"],
        tensors: &[LFM2, STANDARD],
        qk_norm: QkNorm::PerHead,
        experts: ExpertPlace::Instead,
        router_scores: RouterScores::Sigmoid,
        recurrent: Some(SHORT_CONV),
        defaults: PerNaming {
            gguf: &[(Key::ExpertsNormalised, 1.0)],
            hf: &[(Key::NormEps, 1e-5), (Key::ExpertsNormalised, 1.0), (Key::RopeTheta, 1_000_000.0)],
        },
        ..ArchDescriptor::DENSE
    },
    ArchDescriptor {
        name: "qwen3_next",
        title: "Qwen3-Next",
        gguf: &["qwen3next"],
        hf: &["qwen3_next"],
        recurrent: Some(Recurrent { tiled: PerNaming::both(false), ..GATED_DELTA }),
        ..QWEN3_NEXT
    },
    ArchDescriptor {
        name: "qwen3_5",
        title: "Qwen3.5",
        gguf: &["qwen35"],
        hf: &["qwen3_5_text", "qwen3_5"],
        tensors: &[GATED_DELTA_NET, FFN_NORM_AFTER_ATTENTION, STANDARD],
        experts: ExpertPlace::Nowhere,
        ..QWEN3_NEXT
    },
    ArchDescriptor {
        name: "qwen3_5_moe",
        title: "Qwen3.5 MoE",
        gguf: &["qwen35moe"],
        hf: &["qwen3_5_moe_text", "qwen3_5_moe"],
        ..QWEN3_NEXT
    },
    ArchDescriptor {
        name: "kimi_linear",
        title: "Kimi Linear",
        gguf: &["kimi-linear"],
        hf: &["kimi_linear"],
        settings: &[("mla_use_nope", 1)],
        tensors: &[KIMI_LINEAR, MLA, MIXTRAL_EXPERTS, STANDARD],
        latent: true,
        no_rope_every: Some(1),
        experts: ExpertPlace::WithPlainShared,
        router_scores: RouterScores::Sigmoid,
        recurrent: Some(Recurrent { tiled: PerNaming::both(false), by_rows: true, ..GATED_DELTA }),
        defaults: PerNaming {
            gguf: &[(Key::ExpertsNormalised, 1.0)],
            hf: &[(Key::ExpertsNormalised, 1.0), (Key::FirstDenseLayers, 1.0), (Key::NormEps, 1e-5)],
        },
        ..ArchDescriptor::DENSE
    },
    ArchDescriptor {
        name: "granitemoehybrid",
        title: "Granite 4 hybrid",
        gguf: &["granitehybrid"],
        hf: &["granitemoehybrid"],
        tensors: &[GRANITE_SHARED_MLP, GRANITE_EXPERTS, MAMBA, STANDARD],
        rope_style: PERMUTED,
        no_rope_every: Some(1),
        experts: ExpertPlace::BesideShared,
        recurrent: Some(SELECTIVE_SCAN),
        // The weights of the chosen experts are a softmax over their logits alone.
        defaults: PerNaming::both(&[(Key::ExpertsNormalised, 1.0)]),
        ..ArchDescriptor::DENSE
    },
    ArchDescriptor {
        name: "nemotron_h",
        title: "Nemotron-H",
        gguf: &["nemotron_h", "nemotron_h_moe"],
        hf: &["nemotron_h"],
        keys: LAYERS_FROM_TENSORS,
        tensors: &[NEMOTRON_H, MAMBA_MIXER, STANDARD],
        no_rope_every: Some(1),
        activation: Activation::ReluSquared,
        gated: false,
        experts: ExpertPlace::BesideShared,
        router_scores: RouterScores::Sigmoid,
        recurrent: Some(Recurrent { place: RecurrentPlace::OneMixer, ..SELECTIVE_SCAN }),
        ..ArchDescriptor::DENSE
    },
    ArchDescriptor {
        name: "falcon_h1",
        title: "Falcon-H1",
        gguf: &["falcon-h1"],
        hf: &["falcon_h1"],
        settings: &[("mamba_proj_bias", 0)],
        tensors: &[FALCON_H1, MAMBA, STANDARD],
        recurrent: Some(Recurrent { place: RecurrentPlace::BesideAttention, ..SELECTIVE_SCAN }),
        defaults: PerNaming { gguf: &[], hf: &[(Key::GateAfterNorm, 1.0)] },
        ..ArchDescriptor::DENSE
    },
    ArchDescriptor {
        name: "mamba2",
        title: "Mamba-2",
        gguf: &["mamba2"],
        hf: &["mamba2"],
        keys: MAMBA2_KEYS,
        tensors: &[NEMOTRON_H, MAMBA_MIXER, STANDARD],
        no_rope_every: Some(1),
        recurrent: Some(Recurrent { place: RecurrentPlace::Everywhere, ..SELECTIVE_SCAN }),
        // Mamba-2 does not depend on positions.
        defaults: PerNaming {
            gguf: &[],
            hf: &[(Key::Heads, 1.0), (Key::Ffn, 0.0), (Key::Context, 1_048_576.0), (Key::ConvSize, 4.0)],
        },
        ..ArchDescriptor::DENSE
    },
    ArchDescriptor {
        name: "bert",
        title: "BERT",
        gguf: &["bert"],
        hf: &["bert"],
        defaults: PerNaming { gguf: &[], hf: &[(Key::NormEps, 1e-12)] },
        ..BERT_LIKE
    },
    // XLM-RoBERTa is BERT with positions that count from after the padding token. The converter to
    // GGUF removes the rows before.
    ArchDescriptor {
        name: "xlm_roberta",
        title: "XLM-RoBERTa",
        hf: &["xlm-roberta", "roberta", "camembert"],
        gguf_as: Some("bert"),
        positions_after_padding: true,
        defaults: PerNaming { gguf: &[], hf: &[(Key::NormEps, 1e-12), (Key::Padding, 1.0)] },
        ..BERT_LIKE
    },
    ArchDescriptor {
        name: "nomic_bert",
        title: "Nomic BERT",
        gguf: &["nomic-bert"],
        hf: &["nomic_bert"],
        tensors: &[NOMIC_BERT],
        learned_positions: false,
        no_rope_every: None,
        activation: Activation::Silu,
        gated: true,
        defaults: PerNaming { gguf: &[], hf: &[(Key::NormEps, 1e-12)] },
        ..BERT_LIKE
    },
    ArchDescriptor {
        name: "jina_embeddings_v3",
        title: "Jina Embeddings v3",
        gguf: &["jina-bert-v3"],
        hf: &["jina_embeddings_v3"],
        tensors: &[JINA_V3],
        learned_positions: false,
        no_rope_every: None,
        defaults: PerNaming { gguf: &[], hf: &[(Key::NormEps, 1e-5), (Key::RopeTheta, 20_000.0)] },
        ..BERT_LIKE
    },
    ArchDescriptor {
        name: "modernbert",
        title: "ModernBERT",
        gguf: &["modern-bert"],
        hf: &["modernbert"],
        tensors: &[MODERNBERT],
        norm_kind: NormKind::Layer,
        embedding_norm: true,
        first_norm_missing: true,
        windows: WindowPattern::FullFirst(3),
        window_rope_theta: Some(10_000.0),
        bidirectional: true,
        activation: Activation::GeluErf,
        output: OutputKind::Hidden,
        defaults: PerNaming { gguf: &[], hf: &[(Key::RopeTheta, 160_000.0), (Key::Window, 128.0)] },
        ..ArchDescriptor::DENSE
    },
    ArchDescriptor {
        name: "whisper",
        title: "Whisper",
        hf: &["whisper"],
        ctranslate2: &["WhisperSpec"],
        whisper_cpp: true,
        keys: WHISPER_DECODER_KEYS,
        tensors: &[WHISPER_DECODER],
        encoder: Some(&ArchDescriptor {
            name: "whisper encoder",
            title: "Whisper encoder",
            keys: WHISPER_ENCODER_KEYS,
            tensors: &[WHISPER_ENCODER],
            convolutions: &[
                Convolution { role: Conv1, size: 3, stride: 1 },
                Convolution { role: Conv2, size: 3, stride: 2 },
            ],
            bidirectional: true,
            output: OutputKind::Hidden,
            ..WHISPER
        }),
        ..WHISPER
    },
];

/// Fields shared by Qwen 3 with experts and by its vision models.
const QWEN3_MOE: ArchDescriptor = ArchDescriptor {
    tensors: &[EXPERTS, STANDARD],
    qk_norm: QkNorm::PerHead,
    windows: WindowPattern::FromKey,
    experts: ExpertPlace::Instead,
    defaults: PerNaming {
        // GGUF files of these families lack the key; all of them normalise the weights.
        gguf: &[(Key::FirstWindowLayer, 28.0), (Key::ExpertsNormalised, 1.0)],
        hf: &[
            (Key::FirstWindowLayer, 28.0),
            (Key::Experts, 128.0),
            (Key::ExpertsUsed, 8.0),
            (Key::ExpertFfn, 768.0),
        ],
    },
    ..ArchDescriptor::DENSE
};

/// Fields shared by Qwen families with the gated delta rule.
const QWEN3_NEXT: ArchDescriptor = ArchDescriptor {
    tensors: &[GATED_DELTA_NET, FFN_NORM_AFTER_ATTENTION, EXPERTS, STANDARD],
    norm_offset: ZERO_CENTRED,
    qk_norm: QkNorm::PerHead,
    experts: ExpertPlace::WithShared,
    recurrent: Some(GATED_DELTA),
    attention_gate: true,
    defaults: PerNaming {
        // All checkpoints normalise the weights of experts, but lack the key.
        gguf: &[(Key::ExpertsNormalised, 1.0)],
        hf: &[(Key::ExpertsNormalised, 1.0), (Key::RopePart, 0.25), (Key::Ffn, 0.0)],
    },
    ..ArchDescriptor::DENSE
};

/// A bidirectional encoder with norms on the sums.
const BERT_LIKE: ArchDescriptor = ArchDescriptor {
    tensors: &[BERT],
    norms: NormPlaces::POST,
    norm_kind: NormKind::Layer,
    norm_on_sum: true,
    embedding_norm: true,
    final_norm: false,
    learned_positions: true,
    no_rope_every: Some(1),
    bidirectional: true,
    activation: Activation::GeluErf,
    gated: false,
    output: OutputKind::Hidden,
    ..ArchDescriptor::DENSE
};

/// Fields shared by Gemma 3 and EmbeddingGemma.
const GEMMA_3: ArchDescriptor = ArchDescriptor {
    tensors: &[SANDWICH_NORMS, STANDARD],
    norms: NormPlaces::SANDWICH,
    norm_offset: ZERO_CENTRED,
    qk_norm: QkNorm::PerHead,
    attention_scale: AttentionScale::HiddenPerHead { n_layers: 62 },
    windows: WindowPattern::FullEvery(6),
    window_rope_theta: Some(10_000.0),
    activation: Activation::GeluTanh,
    embedding_scale: EmbeddingScale::SqrtHidden,
    // The text_config of multimodal checkpoints holds only values that differ from these.
    defaults: PerNaming {
        gguf: &[(Key::RopeTheta, 1_000_000.0)],
        hf: &[
            (Key::Heads, 8.0),
            (Key::KvHeads, 4.0),
            (Key::HeadDim, 256.0),
            (Key::Vocab, 262_208.0),
            (Key::Context, 131_072.0),
            (Key::NormEps, 1e-6),
            (Key::RopeTheta, 1_000_000.0),
            (Key::QueryScalar, 256.0),
            (Key::Window, 4096.0),
        ],
    },
    ..ArchDescriptor::DENSE
};

/// Gemma 3 with bidirectional attention and no head.
const EMBEDDING_GEMMA: ArchDescriptor = ArchDescriptor {
    name: "embedding_gemma",
    title: "EmbeddingGemma",
    gguf: &["gemma-embedding"],
    gguf_as: Some("gemma-embedding"),
    bidirectional: true,
    output: OutputKind::Hidden,
    ..GEMMA_3
};

/// Fields shared by OLMo 2 and OLMo 3: norms after the branches.
const OLMO: ArchDescriptor = ArchDescriptor {
    tensors: &[SANDWICH_NORMS, STANDARD],
    norms: NormPlaces::POST,
    qk_norm: QkNorm::WholeRow,
    windows: WindowPattern::FullEvery(4),
    window_rope_unscaled: true,
    ..ArchDescriptor::DENSE
};

/// Latent attention with interleaved RoPE, and experts beside shared ones.
const DEEPSEEK: ArchDescriptor = ArchDescriptor {
    tensors: &[MLA, SHARED_EXPERTS, EXPERTS, STANDARD],
    rope_style: PerNaming::both(RopeStyle::Interleaved),
    latent: true,
    experts: ExpertPlace::WithPlainShared,
    defaults: PerNaming { gguf: &[(Key::ExpertsNormalised, 0.0)], hf: &[] },
    ..ArchDescriptor::DENSE
};

/// Parallel branches after one norm, with interleaved RoPE.
const COHERE: ArchDescriptor = ArchDescriptor {
    norms: NormPlaces { pre_ffn: false, ..NormPlaces::PRE },
    norm_kind: NormKind::Layer,
    rope_style: PerNaming::both(RopeStyle::Interleaved),
    parallel: true,
    logits_multiplied: true,
    defaults: PerNaming { gguf: &[], hf: &[(Key::LogitFactor, 0.0625), (Key::TiedHead, 1.0)] },
    ..ArchDescriptor::DENSE
};

/// Fields shared by Whisper's encoder and decoder.
const WHISPER: ArchDescriptor = ArchDescriptor {
    defaults: PerNaming::both(&[(Key::NormEps, 1e-5)]),
    settings: WHISPER_SETTINGS,
    norm_kind: NormKind::Layer,
    biases: WHISPER_BIASES,
    learned_positions: true,
    no_rope_every: Some(1),
    activation: Activation::GeluErf,
    gated: false,
    ..ArchDescriptor::DENSE
};

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use weights::Naming;

    use super::*;

    #[test]
    fn names_select_one_family() {
        let mut names = HashSet::new();
        for family in FAMILIES {
            assert!(names.insert(family.name), "{} twice", family.name);
            let named = family.hf.iter().any(|n| n.replace('-', "_").starts_with(family.name));
            assert!(named || family.hf.is_empty(), "{}", family.name);
        }
        for naming in [Naming::Gguf, Naming::HuggingFace, Naming::CTranslate2, Naming::WhisperCpp] {
            let mut seen = HashSet::new();
            for selector in FAMILIES.iter().flat_map(|f| f.selectors(naming)) {
                assert!(seen.insert(selector), "{selector} selects two");
            }
        }
    }

    #[test]
    fn usual_numbers_lie_in_the_ranges_of_their_keys() {
        for family in FAMILIES {
            for (key, value) in family.defaults.gguf.iter().chain(family.defaults.hf) {
                let (min, max) = key.row().range;
                assert!((min..=max).contains(value), "{} {key:?} {value}", family.name);
            }
        }
    }

    #[test]
    fn the_neutral_descriptor_answers_to_nothing() {
        assert!(ArchDescriptor::DENSE.gguf.is_empty() && ArchDescriptor::DENSE.hf.is_empty());
        assert!(FAMILIES.iter().all(|f| !f.name.is_empty() && !f.title.is_empty()));
    }
}
