//! Errors about the content of checkpoints that could be opened.

use weights::Naming;

/// `Result` with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Every variant names the key or tensor, what was found, and what was expected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No family has the file's architecture name.
    #[error(
        "{key}: {found} is not a known model family; `ingle inspect FILE --missing` lists unknown keys and tensors; known are {known}"
    )]
    UnknownFamily {
        /// Key of the architecture name.
        key: String,
        /// The architecture name, quoted, or `nothing`.
        found: String,
        /// Known architecture names for this naming.
        known: String,
    },
    /// A required key is missing.
    #[error("metadata: {}, expected {expected}", missing(keys))]
    MissingKey {
        /// Keys that could hold the number.
        keys: String,
        /// Expected value.
        expected: String,
    },
    /// A key has a value that is not supported.
    #[error("metadata: {key}: found {found}, expected {expected}")]
    BadKey {
        /// The key.
        key: String,
        /// Value of the key.
        found: String,
        /// Accepted values.
        expected: String,
    },
    /// A model without a vision tower got images.
    #[error("{family}: this model sees no images; expected one with an image encoder that Ingle knows")]
    NoVision {
        /// The family's title.
        family: &'static str,
    },
    /// The model has no layer for multi-token prediction.
    #[error(
        "{family}: this checkpoint has no layer that predicts one token more; expected nextn tensors after the last layer"
    )]
    NoNextLayer {
        /// The family's title.
        family: &'static str,
    },
    /// A tensor is missing.
    #[error("tensor {name} is missing ({} names; {role}, shape {shape:?})", naming_word(*naming))]
    MissingTensor {
        /// Name of the tensor, and its alternatives.
        name: String,
        /// The convention of the file's names.
        naming: Naming,
        /// Role of the tensor: `layer 3 query projection`.
        role: String,
        /// Shape that the model's numbers require.
        shape: Vec<usize>,
    },
    /// A tensor does not match the model's numbers.
    #[error("tensor {name}: found {found}, expected {expected}")]
    BadTensor {
        /// Name of the tensor.
        name: String,
        /// Shape or type of the tensor.
        found: String,
        /// Shape or type that the model's numbers require.
        expected: String,
    },
    /// The checkpoint cannot be written under GGUF's names.
    #[error("GGUF: {what}: found {found}, expected {expected}")]
    Export {
        /// Part of the checkpoint.
        what: String,
        /// Content of the checkpoint.
        found: String,
        /// Content that the format can store.
        expected: String,
    },
    /// An adapter does not fit the model.
    #[error("adapter {adapter}: {what}: found {found}, expected {expected}")]
    Adapter {
        /// Name of the adapter.
        adapter: String,
        /// Part of the adapter.
        what: String,
        /// Shapes or keys of the adapter's file.
        found: String,
        /// Supported shapes or keys.
        expected: String,
    },
    /// The model has no encoder.
    #[error("{family} has no encoder; speech needs a model with one")]
    NoEncoder {
        /// The family's title.
        family: &'static str,
    },
    /// An alignment head does not exist, or is listed twice.
    #[error(
        "alignment heads: layer {layer}, head {head}: expected heads of the {n_layers} layers, each once"
    )]
    BadHead {
        /// The layer.
        layer: usize,
        /// The head.
        head: usize,
        /// Number of layers.
        n_layers: usize,
    },
    /// The builder made an invalid plan: a defect of this crate.
    #[error(transparent)]
    Plan(#[from] device::PlanError),
}

/// A naming's name for people.
pub(crate) fn naming_word(naming: Naming) -> &'static str {
    match naming {
        Naming::Gguf => "GGUF",
        Naming::HuggingFace => "Hugging Face",
        Naming::Base => "BaseRT",
        Naming::CTranslate2 => "CTranslate2",
        Naming::WhisperCpp => "OpenAI",
    }
}

/// The message that a key is missing, or all of several keys separated by commas.
fn missing(keys: &str) -> String {
    match keys.contains(',') {
        true => format!("none of the keys {keys} is present"),
        false => format!("the key {keys} is missing"),
    }
}
