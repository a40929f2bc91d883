//! Tables of names: the metadata key of each number ([`keys`](self)) and the name of each tensor,
//! in GGUF files and in Hugging Face checkpoints.

mod keys;
mod recurrent;
mod roles;
mod speech;
mod tensors;

pub(crate) use keys::TINY;
pub use keys::*;
pub use recurrent::*;
pub use roles::TensorRole;
pub use speech::*;
pub use tensors::*;

/// Prefix of the language model's keys in config.json of a multimodal model. Keys without the
/// prefix are the fallback.
pub const TEXT_CONFIG: &str = "text_config.";

/// Objects of config.json with RoPE parameters, in order: of full-attention layers, of all layers,
/// and of older files.
pub const ROPE_OBJECTS: &[&str] = &["rope_parameters.full_attention.", "rope_parameters.", "rope_scaling."];

/// Objects of config.json with RoPE parameters of layers with a window.
pub const WINDOW_ROPE_OBJECTS: &[&str] = &["rope_parameters.sliding_attention."];

/// Prefixes of the language model's names in Hugging Face checkpoints. The kinds are: a language
/// model; multimodal models, older and newer; a base model without a head; encoders with a head.
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

/// Prefix that replaces [`MODEL_PREFIXES`] in layers for multi-token prediction that are named
/// apart and counted from 0.
pub const NEXT_PREFIX: &str = "mtp.";

/// Parts of names of tensors that are not read, because their values are computed.
pub const IGNORED: &[&str] = &["rotary_emb.", ".attn_rot_embd.", "mel_filters"];
