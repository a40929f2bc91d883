//! What can go wrong between sound and its transcript.

/// `Result` with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Every variant holds the offending value and the limit, or is the error of a crate below.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model: its file, its tokenizer, or that it is not a speech model.
    #[error(transparent)]
    Engine(#[from] engine::Error),
    /// The device.
    #[error(transparent)]
    Device(#[from] device::Error),
    /// The tokenizer.
    #[error(transparent)]
    Text(#[from] text::Error),
    /// The sound.
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
        /// What was given.
        value: String,
        /// What is allowed.
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
