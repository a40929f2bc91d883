//! Errors of checkpoints whose files could be read.

use weights::Naming;

/// `Result` with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Every variant names the key or tensor, what was found, and what was expected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No descriptor answers to the name in the file.
    #[error(
        "{key}: no model family answers to {found}; `ingle inspect FILE --missing` lists what is unknown in it; known are {known}"
    )]
    UnknownFamily {
        /// Where the name stood.
        key: String,
        /// The name, quoted, or `nothing`.
        found: String,
        /// The names in the table of this naming.
        known: String,
    },
    /// A number that nothing else can replace is not there.
    #[error("metadata: {}, expected {expected}", missing(keys))]
    MissingKey {
        /// The keys that were looked for.
        keys: String,
        /// What it should have held.
        expected: String,
    },
    /// A key holds what cannot be.
    #[error("metadata: {key}: found {found}, expected {expected}")]
    BadKey {
        /// The key.
        key: String,
        /// Its value.
        found: String,
        /// What would be accepted.
        expected: String,
    },
    /// Images were given to a model that reads text only.
    #[error("{family}: this model sees no images; expected one with an image encoder that Ingle knows")]
    NoVision {
        /// The family's title.
        family: &'static str,
    },
    /// One token more was to be predicted by a model that has no layer for it.
    #[error(
        "{family}: this checkpoint has no layer that predicts one token more; expected nextn tensors after the last layer"
    )]
    NoNextLayer {
        /// The family's title.
        family: &'static str,
    },
    /// A tensor is not there.
    #[error("tensor {name} is missing ({} names; {role}, shape {shape:?})", naming_word(*naming))]
    MissingTensor {
        /// The name that it would have, and its alternatives.
        name: String,
        /// The convention of the file's names.
        naming: Naming,
        /// What it is: `layer 3 query projection`.
        role: String,
        /// The shape that the numbers ask for.
        shape: Vec<usize>,
    },
    /// A tensor does not fit the numbers.
    #[error("tensor {name}: found {found}, expected {expected}")]
    BadTensor {
        /// Its name.
        name: String,
        /// Its shape or type.
        found: String,
        /// What the numbers ask for, and which.
        expected: String,
    },
    /// The checkpoint cannot be written under GGUF's names.
    #[error("GGUF: {what}: found {found}, expected {expected}")]
    Export {
        /// What of it.
        what: String,
        /// What the checkpoint has.
        found: String,
        /// What the format has a place for.
        expected: String,
    },
    /// An adapter cannot be used beside the model.
    #[error("adapter {adapter}: {what}: found {found}, expected {expected}")]
    Adapter {
        /// Its name.
        adapter: String,
        /// Which part of it.
        what: String,
        /// What the adapter's file has: shapes or keys.
        found: String,
        /// What would be applied.
        expected: String,
    },
    /// What only a model with an encoder has was asked of another.
    #[error("{family} has no encoder; speech needs a model with one")]
    NoEncoder {
        /// The family's title.
        family: &'static str,
    },
    /// A head that does not exist, or is named twice.
    #[error(
        "alignment heads: layer {layer}, head {head}: expected heads of the {n_layers} layers, each once"
    )]
    BadHead {
        /// The layer.
        layer: usize,
        /// The head.
        head: usize,
        /// How many layers there are.
        n_layers: usize,
    },
    /// The builder made a plan that contradicts itself: a defect of this crate.
    #[error(transparent)]
    Plan(#[from] device::PlanError),
}

/// How people call a naming.
pub(crate) fn naming_word(naming: Naming) -> &'static str {
    match naming {
        Naming::Gguf => "GGUF",
        Naming::HuggingFace => "Hugging Face",
        Naming::Base => "BaseRT",
        Naming::CTranslate2 => "CTranslate2",
        Naming::WhisperCpp => "OpenAI",
    }
}

/// That none of these keys, divided by commas, is in the metadata.
fn missing(keys: &str) -> String {
    match keys.contains(',') {
        true => format!("none of the keys {keys} is there"),
        false => format!("the key {keys} is missing"),
    }
}
