//! Names: the metadata key of each number ([`keys`](self)) and the name of each tensor, in GGUF files and in Hugging Face
//! checkpoints. Everything here is a table.

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

/// Where config.json of a multimodal model keeps its language model; keys not there are looked for outside.
pub const TEXT_CONFIG: &str = "text_config.";

/// Objects of config.json that hold rotation parameters: of one kind of layer, of all layers, and as older files say.
pub const ROPE_OBJECTS: &[&str] = &["rope_parameters.full_attention.", "rope_parameters.", "rope_scaling."];

/// The same for layers with a window that have their own.
pub const WINDOW_ROPE_OBJECTS: &[&str] = &["rope_parameters.sliding_attention."];

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

/// In place of those, where the layer that predicts one token more has names of its own and is counted from 0.
pub const NEXT_PREFIX: &str = "mtp.";

/// Parts of names of tensors that hold what is computed here anyway.
pub const IGNORED: &[&str] = &["rotary_emb.", ".attn_rot_embd.", "mel_filters"];
