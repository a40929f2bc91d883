//! Errors of a transcription.

/// `Result` with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Errors of this crate. A variant has the offending value and the limit, or the error of another
/// crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of the model: its file, its tokenizer, or its kind.
    #[error(transparent)]
    Engine(#[from] engine::Error),
    /// An error of the device.
    #[error(transparent)]
    Device(#[from] device::Error),
    /// An error of the tokenizer.
    #[error(transparent)]
    Text(#[from] text::Error),
    /// An error of the sound.
    #[error(transparent)]
    Audio(#[from] audio::Error),
    /// The transcript could not be written.
    #[error("the transcript could not be written")]
    Output(#[from] std::io::Error),
    /// An option outside its limits.
    #[error("{name} is {value}, expected {expected}")]
    Option {
        /// The option's name.
        name: &'static str,
        /// The given value.
        value: String,
        /// The allowed values.
        expected: String,
    },
    /// The transcription was cancelled.
    #[error("cancelled")]
    Cancelled,
    /// The model's logits leave no token to choose.
    #[error("none of the {n_vocab} tokens has a probability: every logit is NaN or minus infinity")]
    NoCandidate {
        /// Size of the vocabulary.
        n_vocab: usize,
    },
}
