//! The families. To add a dense one, add an entry here, and to [`crate::names`] any tensor or key that is called
//! differently.
//!
//! Past 600 lines: each family is an entry, which differs from another by a few fields.

use device::{Activation, OutputKind, RopeStyle, RouterScores};

use crate::descriptor::{
    ArchDescriptor, AttentionScale, Convolution, EmbeddingScale, ExpertPlace, NormKind, NormPlaces,
    PerNaming, QkNorm, Recurrent, RecurrentKind, RecurrentPlace, Temperature, WindowPattern,
};
use crate::names::TensorRole::{AttnK, AttnOut, AttnQ, AttnV, Conv1, Conv2, FfnDown, FfnUp, Output, Router};
use crate::names::{
    BIASED_EXPERTS, DELTA, DELTA_BY_ROWS, ENCODER, EXPERTS, EXPERTS_EITHER_WAY, FFN_NORM_AFTER_ATTENTION,
    FUSED_ENCODER, GATE_UP, Key, KeyNames, LATENT, MEASURED_FFN, MEASURED_LAYERS, MIXER_SCAN, MIXERS,
    MIXING_ENCODER, NAMED_POST_NORMS, NUMBERED_EXPERTS, PARALLEL, PER_LAYER, QK_LAYER_NORMS, QKV,
    QKV_IN_SOME, SANDWICH, SCAN, SCAN_ALONE, SHARED_EXPERTS, SHARED_NETWORK, SHORT_CONVOLUTIONS,
    SIDE_BY_SIDE, SPEECH_BIASES, SPEECH_DECODER, SPEECH_DECODER_KEYS, SPEECH_ENCODER, SPEECH_ENCODER_KEYS,
    SPEECH_SETTINGS, STACKED_EXPERTS, STANDARD, STREAMS, TRANSPOSED, TURNED_EXPERTS, TURNING_ENCODER,
    UNGATED,
};

/// The converter to GGUF reorders the rows of queries and keys of these families, so that neighbours are rotated.
const REORDERED: PerNaming<RopeStyle> = PerNaming { gguf: RopeStyle::Interleaved, hf: RopeStyle::Half };

/// Norm weights are stored less 1 by the checkpoint's authors; the converter to GGUF adds it.
const STORED_LESS_ONE: PerNaming<f32> = PerNaming { gguf: 0.0, hf: 1.0 };

const SHORT_CONV: Recurrent = Recurrent {
    kind: RecurrentKind::ShortConv,
    place: RecurrentPlace::InsteadOfAttention,
    tiled: PerNaming::both(false),
    by_rows: false,
};

/// The converter to GGUF reorders the heads of values of newer families.
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

/// Every family, the plainest first.
pub const FAMILIES: &[ArchDescriptor] = &[
    ArchDescriptor {
        name: "llama",
        title: "LLaMA",
        gguf: &["llama"],
        hf: &["llama"],
        // GGUF files of it may hold experts: those of Mixtral.
        tensors: &[NUMBERED_EXPERTS, STANDARD],
        rope_style: REORDERED,
        experts: ExpertPlace::Instead,
        defaults: PerNaming { gguf: &[(Key::ExpertsNormalised, 1.0)], hf: &[] },
        ..ArchDescriptor::DENSE
    },
    // GGUF files of Mistral say `llama`.
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
        tensors: &[NUMBERED_EXPERTS, STANDARD],
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
        rope_style: REORDERED,
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
        ..QWEN_3_EXPERTS
    },
    // The same beside a tower of images.
    ArchDescriptor {
        name: "qwen3_vl_moe",
        title: "Qwen3-VL MoE",
        gguf: &["qwen3vlmoe"],
        hf: &["qwen3_vl_moe_text", "qwen3_vl_moe"],
        gguf_as: Some("qwen3moe"),
        tensors: &[EXPERTS_EITHER_WAY, EXPERTS, STANDARD],
        defaults: PerNaming {
            hf: &[
                (Key::FirstWindowLayer, 28.0),
                (Key::Experts, 60.0),
                (Key::ExpertsUsed, 4.0),
                (Key::ExpertFfn, 1408.0),
                (Key::ExpertsNormalised, 1.0),
            ],
            ..QWEN_3_EXPERTS.defaults
        },
        ..QWEN_3_EXPERTS
    },
    ArchDescriptor {
        name: "gemma",
        title: "Gemma",
        gguf: &["gemma"],
        hf: &["gemma"],
        norm_offset: STORED_LESS_ONE,
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
        tensors: &[SANDWICH, STANDARD],
        norms: NormPlaces::SANDWICH,
        norm_offset: STORED_LESS_ONE,
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
        both_ways: Some(&GEMMA_BOTH_WAYS),
        ..GEMMA_3
    },
    GEMMA_BOTH_WAYS,
    // Small ones have inputs of single layers and share keys and values; large ones have experts or a key for a value.
    ArchDescriptor {
        name: "gemma4",
        title: "Gemma 4",
        gguf: &["gemma4"],
        hf: &["gemma4_text", "gemma4"],
        tensors: &[PER_LAYER, SANDWICH, STANDARD],
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
    // The published checkpoints' layers compute the first of four streams, and scale it where their own input is added.
    ArchDescriptor {
        name: "gemma3n",
        title: "Gemma 3n",
        gguf: &["gemma3n"],
        hf: &["gemma3n_text", "gemma3n"],
        settings: &[("altup_active_idx", 0), ("altup.active_idx", 0), ("altup_correct_scale", 1)],
        tensors: &[STREAMS, PER_LAYER, SANDWICH, STANDARD],
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
        rope_style: REORDERED,
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
        tensors: &[QKV, GATE_UP, STANDARD],
        ..ArchDescriptor::DENSE
    },
    ArchDescriptor {
        name: "granite",
        title: "Granite",
        gguf: &["granite"],
        hf: &["granite"],
        rope_style: REORDERED,
        ..ArchDescriptor::DENSE
    },
    ArchDescriptor { name: "olmo2", title: "OLMo 2", gguf: &["olmo2"], hf: &["olmo2"], ..OLMO },
    // GGUF files say `olmo2`.
    ArchDescriptor { name: "olmo3", title: "OLMo 3", hf: &["olmo3"], gguf_as: Some("olmo2"), ..OLMO },
    ArchDescriptor {
        name: "exaone4",
        title: "EXAONE 4",
        gguf: &["exaone4"],
        hf: &["exaone4"],
        tensors: &[SANDWICH, STANDARD],
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
        tensors: &[NAMED_POST_NORMS, GATE_UP, STANDARD],
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
        ..LATENT_ATTENTION
    },
    ArchDescriptor {
        name: "deepseek_v3",
        title: "DeepSeek V3",
        gguf: &["deepseek2"],
        hf: &["deepseek_v3", "kimi_k2"],
        router_scores: RouterScores::Sigmoid,
        ..LATENT_ATTENTION
    },
    ArchDescriptor {
        name: "glm4_moe_lite",
        title: "GLM-4.7-Flash",
        hf: &["glm4_moe_lite"],
        gguf_as: Some("deepseek2"),
        router_scores: RouterScores::Sigmoid,
        ..LATENT_ATTENTION
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
        tensors: &[TURNED_EXPERTS, STANDARD],
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
        tensors: &[BIASED_EXPERTS, FFN_NORM_AFTER_ATTENTION, STANDARD],
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
        ..COMMAND
    },
    ArchDescriptor {
        name: "cohere2",
        title: "Command R7B, Command A",
        gguf: &["cohere2"],
        hf: &["cohere2"],
        windows: WindowPattern::FullEvery(4),
        rope_in_windows_only: true,
        ..COMMAND
    },
    ArchDescriptor {
        name: "hunyuan_v1_dense",
        title: "Hunyuan",
        gguf: &["hunyuan-dense"],
        hf: &["hunyuan_v1_dense"],
        tensors: &[QK_LAYER_NORMS, STANDARD],
        qk_norm: QkNorm::PerHead,
        qk_norm_after_rope: true,
        ..ArchDescriptor::DENSE
    },
    ArchDescriptor {
        name: "glm",
        title: "GLM",
        gguf: &["chatglm"],
        hf: &["glm"],
        tensors: &[QKV_IN_SOME, GATE_UP, STANDARD],
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
        tensors: &[STACKED_EXPERTS, STANDARD],
        rope_style: REORDERED,
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
        rope_style: REORDERED,
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
        norm_offset: STORED_LESS_ONE,
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
        tensors: &[UNGATED, STANDARD],
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
        tensors: &[PARALLEL, QKV_IN_SOME, STANDARD],
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
        tensors: &[TRANSPOSED, STANDARD],
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
    // The checkpoint may state a width of the network that its authors' code then adjusts: the tensors have the true one.
    ArchDescriptor {
        name: "lfm2",
        title: "LFM2",
        gguf: &["lfm2"],
        hf: &["lfm2"],
        keys: MEASURED_FFN,
        tensors: &[SHORT_CONVOLUTIONS, STANDARD],
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
        tensors: &[SHORT_CONVOLUTIONS, STANDARD],
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
        ..HYBRID_EXPERTS
    },
    ArchDescriptor {
        name: "qwen3_5",
        title: "Qwen3.5",
        gguf: &["qwen35"],
        hf: &["qwen3_5_text", "qwen3_5"],
        tensors: &[DELTA, FFN_NORM_AFTER_ATTENTION, STANDARD],
        experts: ExpertPlace::Nowhere,
        ..HYBRID_EXPERTS
    },
    ArchDescriptor {
        name: "qwen3_5_moe",
        title: "Qwen3.5 MoE",
        gguf: &["qwen35moe"],
        hf: &["qwen3_5_moe_text", "qwen3_5_moe"],
        ..HYBRID_EXPERTS
    },
    ArchDescriptor {
        name: "kimi_linear",
        title: "Kimi Linear",
        gguf: &["kimi-linear"],
        hf: &["kimi_linear"],
        settings: &[("mla_use_nope", 1)],
        tensors: &[DELTA_BY_ROWS, LATENT, NUMBERED_EXPERTS, STANDARD],
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
        tensors: &[SHARED_NETWORK, STACKED_EXPERTS, SCAN, STANDARD],
        rope_style: REORDERED,
        no_rope_every: Some(1),
        experts: ExpertPlace::BesideShared,
        recurrent: Some(SELECTIVE_SCAN),
        // The weights of the chosen experts are a softmax over these alone.
        defaults: PerNaming::both(&[(Key::ExpertsNormalised, 1.0)]),
        ..ArchDescriptor::DENSE
    },
    ArchDescriptor {
        name: "nemotron_h",
        title: "Nemotron-H",
        gguf: &["nemotron_h", "nemotron_h_moe"],
        hf: &["nemotron_h"],
        keys: MEASURED_LAYERS,
        tensors: &[MIXERS, MIXER_SCAN, STANDARD],
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
        tensors: &[SIDE_BY_SIDE, SCAN, STANDARD],
        recurrent: Some(Recurrent { place: RecurrentPlace::BesideAttention, ..SELECTIVE_SCAN }),
        defaults: PerNaming { gguf: &[], hf: &[(Key::GateAfterNorm, 1.0)] },
        ..ArchDescriptor::DENSE
    },
    ArchDescriptor {
        name: "mamba2",
        title: "Mamba-2",
        gguf: &["mamba2"],
        hf: &["mamba2"],
        keys: SCAN_ALONE,
        tensors: &[MIXERS, MIXER_SCAN, STANDARD],
        no_rope_every: Some(1),
        recurrent: Some(Recurrent { place: RecurrentPlace::Everywhere, ..SELECTIVE_SCAN }),
        // Nothing in it depends on the position.
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
        ..ENCODER_ON_SUMS
    },
    // Like it, with positions that count from behind the padding token; the converter to GGUF cuts those before.
    ArchDescriptor {
        name: "xlm_roberta",
        title: "XLM-RoBERTa",
        hf: &["xlm-roberta", "roberta", "camembert"],
        gguf_as: Some("bert"),
        positions_after_padding: true,
        defaults: PerNaming { gguf: &[], hf: &[(Key::NormEps, 1e-12), (Key::Padding, 1.0)] },
        ..ENCODER_ON_SUMS
    },
    ArchDescriptor {
        name: "nomic_bert",
        title: "Nomic BERT",
        gguf: &["nomic-bert"],
        hf: &["nomic_bert"],
        tensors: &[TURNING_ENCODER],
        learned_positions: false,
        no_rope_every: None,
        activation: Activation::Silu,
        gated: true,
        defaults: PerNaming { gguf: &[], hf: &[(Key::NormEps, 1e-12)] },
        ..ENCODER_ON_SUMS
    },
    ArchDescriptor {
        name: "jina_embeddings_v3",
        title: "Jina Embeddings v3",
        gguf: &["jina-bert-v3"],
        hf: &["jina_embeddings_v3"],
        tensors: &[MIXING_ENCODER],
        learned_positions: false,
        no_rope_every: None,
        defaults: PerNaming { gguf: &[], hf: &[(Key::NormEps, 1e-5), (Key::RopeTheta, 20_000.0)] },
        ..ENCODER_ON_SUMS
    },
    ArchDescriptor {
        name: "modernbert",
        title: "ModernBERT",
        gguf: &["modern-bert"],
        hf: &["modernbert"],
        tensors: &[FUSED_ENCODER],
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
        keys: SPEECH_DECODER_KEYS,
        tensors: &[SPEECH_DECODER],
        encoder: Some(&ArchDescriptor {
            name: "whisper encoder",
            title: "Whisper encoder",
            keys: SPEECH_ENCODER_KEYS,
            tensors: &[SPEECH_ENCODER],
            convolutions: &[
                Convolution { role: Conv1, size: 3, stride: 1 },
                Convolution { role: Conv2, size: 3, stride: 2 },
            ],
            bidirectional: true,
            output: OutputKind::Hidden,
            ..SPEECH
        }),
        ..SPEECH
    },
];

/// What Qwen 3 has with experts, alone and beside a tower.
const QWEN_3_EXPERTS: ArchDescriptor = ArchDescriptor {
    tensors: &[EXPERTS, STANDARD],
    qk_norm: QkNorm::PerHead,
    windows: WindowPattern::FromKey,
    experts: ExpertPlace::Instead,
    defaults: PerNaming {
        // GGUF files of these families leave out that weights are normalised: all are.
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

/// What the families with the gated delta rule share.
const HYBRID_EXPERTS: ArchDescriptor = ArchDescriptor {
    tensors: &[DELTA, FFN_NORM_AFTER_ATTENTION, EXPERTS, STANDARD],
    norm_offset: STORED_LESS_ONE,
    qk_norm: QkNorm::PerHead,
    experts: ExpertPlace::WithShared,
    recurrent: Some(GATED_DELTA),
    attention_gate: true,
    defaults: PerNaming {
        // All normalise the weights of experts, and files leave it out.
        gguf: &[(Key::ExpertsNormalised, 1.0)],
        hf: &[(Key::ExpertsNormalised, 1.0), (Key::RopePart, 0.25), (Key::Ffn, 0.0)],
    },
    ..ArchDescriptor::DENSE
};

/// An encoder with norms on the sums.
const ENCODER_ON_SUMS: ArchDescriptor = ArchDescriptor {
    tensors: &[ENCODER],
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

/// What both ways of attention share.
const GEMMA_3: ArchDescriptor = ArchDescriptor {
    tensors: &[SANDWICH, STANDARD],
    norms: NormPlaces::SANDWICH,
    norm_offset: STORED_LESS_ONE,
    qk_norm: QkNorm::PerHead,
    attention_scale: AttentionScale::HiddenPerHead { n_layers: 62 },
    windows: WindowPattern::FullEvery(6),
    window_rope_theta: Some(10_000.0),
    activation: Activation::GeluTanh,
    embedding_scale: EmbeddingScale::SqrtHidden,
    // The multimodal checkpoints' text_config holds only what differs from these.
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

/// The same for embeddings: attention looks both ways, and there is no head.
const GEMMA_BOTH_WAYS: ArchDescriptor = ArchDescriptor {
    name: "embedding_gemma",
    title: "EmbeddingGemma",
    gguf: &["gemma-embedding"],
    gguf_as: Some("gemma-embedding"),
    bidirectional: true,
    output: OutputKind::Hidden,
    ..GEMMA_3
};

/// Norms after the branches; what the generations with windows and without share.
const OLMO: ArchDescriptor = ArchDescriptor {
    tensors: &[SANDWICH, STANDARD],
    norms: NormPlaces::POST,
    qk_norm: QkNorm::WholeRow,
    windows: WindowPattern::FullEvery(4),
    window_rope_unscaled: true,
    ..ArchDescriptor::DENSE
};

/// Keys and values from a latent; neighbouring columns rotate; experts with a shared part.
const LATENT_ATTENTION: ArchDescriptor = ArchDescriptor {
    tensors: &[LATENT, SHARED_EXPERTS, EXPERTS, STANDARD],
    rope_style: PerNaming::both(RopeStyle::Interleaved),
    latent: true,
    experts: ExpertPlace::WithPlainShared,
    defaults: PerNaming { gguf: &[(Key::ExpertsNormalised, 0.0)], hf: &[] },
    ..ArchDescriptor::DENSE
};

/// Parallel branches behind one norm; neighbouring columns rotate.
const COMMAND: ArchDescriptor = ArchDescriptor {
    norms: NormPlaces { pre_ffn: false, ..NormPlaces::PRE },
    norm_kind: NormKind::Layer,
    rope_style: PerNaming::both(RopeStyle::Interleaved),
    parallel: true,
    logits_multiplied: true,
    defaults: PerNaming { gguf: &[], hf: &[(Key::LogitFactor, 0.0625), (Key::TiedHead, 1.0)] },
    ..ArchDescriptor::DENSE
};

/// What the encoder and the decoder of speech models share.
const SPEECH: ArchDescriptor = ArchDescriptor {
    defaults: PerNaming::both(&[(Key::NormEps, 1e-5)]),
    settings: SPEECH_SETTINGS,
    norm_kind: NormKind::Layer,
    biases: SPEECH_BIASES,
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
