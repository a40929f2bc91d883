//! Errors of the engine.

use std::path::PathBuf;
use std::sync::Arc;

use crate::memory::MemoryReport;
use crate::sampling::ParamError;

/// `Result` with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the engine. Every variant holds the offending value and the limit, or the error of a
/// lower crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A defect of the file.
    #[error(transparent)]
    Format(#[from] weights::Error),
    /// A defect of the model's description in the file.
    #[error(transparent)]
    Model(#[from] model::Error),
    /// An error of the tokenizer or the chat template.
    #[error(transparent)]
    Text(Arc<text::Error>),
    /// An error of the device.
    #[error(transparent)]
    Device(#[from] device::Error),
    /// A sampling parameter outside its limits.
    #[error("sampling: {0}")]
    Sampling(#[from] ParamError),
    /// A load or request option outside its limits.
    #[error("{name} is {value}, expected {expected}")]
    Option {
        /// The option's name.
        name: &'static str,
        /// The given value.
        value: String,
        /// The allowed values.
        expected: String,
    },
    /// The model does not fit in free memory. The message is the itemised plan, and settings that
    /// would fit.
    #[error("the model does not fit in memory\n{0}")]
    DoesNotFit(Box<MemoryReport>),
    /// The request needs text, and the model has no vocabulary.
    #[error("{}: no tokenizer was found, so only token ids work; expected a vocabulary in the file or a tokenizer.json beside it", file.display())]
    NoTokenizer {
        /// The model's file or folder.
        file: PathBuf,
    },
    /// The request needs a chat template, and the model has none.
    #[error("{}: the model has no chat template; use plain completion instead", file.display())]
    NoChatTemplate {
        /// The model's file or folder.
        file: PathBuf,
    },
    /// The request needs logits, and the model computes only hidden states.
    #[error("{}: the model gives hidden states and no logits, so it cannot write or score text; use it for embeddings", file.display())]
    NoHead {
        /// The model's file or folder.
        file: PathBuf,
    },
    /// The request needs embeddings, and the model's files describe no pooling.
    #[error("{}: nothing says how this model would give embeddings; expected an encoder, a modules.json with a Pooling module, or a pooling_type in the file", file.display())]
    NoEmbeddings {
        /// The model's file or folder.
        file: PathBuf,
    },
    /// The request needs a reranker, and the model is none.
    #[error("{}: this model judges no pairs of texts; expected an encoder with a classification head of one label", file.display())]
    NoRanks {
        /// The model's file or folder.
        file: PathBuf,
    },
    /// The request has images, and the model sees none.
    #[error("{}: this model sees no images; expected one with an image encoder that Ingle knows", file.display())]
    NoVision {
        /// The model's file or folder.
        file: PathBuf,
    },
    /// The options need a next-token layer, and the checkpoint has none.
    #[error(
        "{}: this checkpoint has no layer that predicts one token more (nextn tensors after the last layer); use --speculate ngram or \
         --draft-model instead",
        file.display()
    )]
    NoNextLayer {
        /// The model's file or folder.
        file: PathBuf,
    },
    /// The model sees, but the device cannot run its image tower.
    #[error("images: {0}")]
    VisionRefused(String),
    /// An image has a shape that the tower cannot read.
    #[error("image: {0}")]
    BadImage(String),
    /// The number of placeholders in a prompt is not that of its images' rows.
    #[error(
        "{n_found} placeholders (token {token}) in the prompt, expected {n_expected}: one for each row of its {n_images} images"
    )]
    Placeholders {
        /// Token id of the placeholder.
        token: u32,
        /// Placeholders in the prompt.
        n_found: usize,
        /// Rows of all images.
        n_expected: usize,
        /// Number of images.
        n_images: usize,
    },
    /// The placeholders of an image are not consecutive.
    #[error(
        "the placeholders from position {position} on are interrupted, expected {n_rows} one after another: the rows of an image"
    )]
    ImageSplit {
        /// Position of the first placeholder.
        position: usize,
        /// Rows of the image.
        n_rows: usize,
    },
    /// The number of image placeholders in a text is not that of the images.
    #[error("{n_found} times {placeholder} in the text, expected it once for each of {n_images} images")]
    PlaceholderTexts {
        /// Text of the placeholder.
        placeholder: &'static str,
        /// Placeholders in the text.
        n_found: usize,
        /// Number of images.
        n_images: usize,
    },
    /// The request needs text, and the model only transcribes speech.
    #[error("{}: this model transcribes speech, and neither writes nor scores text; use it to transcribe", file.display())]
    OnlySpeech {
        /// The model's file or folder.
        file: PathBuf,
    },
    /// The request needs speech recognition, and the model has none.
    #[error("{}: this model does not hear, so it cannot transcribe; expected a model for speech", file.display())]
    NotForSpeech {
        /// The model's file or folder.
        file: PathBuf,
    },
    /// The device panicked while it computed a step.
    #[error("the device panicked: {0}")]
    Panicked(String),
    /// The system could not start a thread.
    #[error("the system could not start a thread for {what}: {reason}")]
    Thread {
        /// Purpose of the thread.
        what: &'static str,
        /// Error of the system.
        reason: String,
    },
    /// A prompt without a token.
    #[error("the prompt is empty, expected at least one token")]
    EmptyPrompt,
    /// The queue is full.
    #[error("{n_waiting} requests are waiting, expected fewer than {limit}; try again later")]
    QueueFull {
        /// Requests that wait.
        n_waiting: usize,
        /// Maximum number of requests that may wait.
        limit: usize,
    },
    /// The sequence neither waits nor runs.
    #[error("sequence {0} does not exist: it has ended, or was never added")]
    NoSequence(u64),
    /// A token id is not in the vocabulary.
    #[error("token {token} at position {position} is not in the vocabulary, expected ids below {n_vocab}")]
    TokenOutOfRange {
        /// The token id.
        token: u32,
        /// The token's position in the prompt.
        position: usize,
        /// Size of the vocabulary.
        n_vocab: usize,
    },
    /// The prompt leaves no room for an answer.
    #[error(
        "the prompt has {n_tokens} tokens and the context holds {n_ctx}, expected at most {} so that one can be answered; \
         raise the context length, shorten the prompt, or let the context slide", n_ctx - 1
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        n_tokens: usize,
        /// The context length.
        n_ctx: usize,
    },
    /// There are more tokens to score than positions.
    #[error("{n_tokens} tokens to score, expected at most {n_ctx}, the context length; raise it")]
    TooManyTokens {
        /// Number of given tokens.
        n_tokens: usize,
        /// The context length.
        n_ctx: usize,
    },
    /// Too few tokens to score.
    #[error("{n_tokens} tokens to score, expected at least {least}")]
    TooFewTokens {
        /// Number of given tokens.
        n_tokens: usize,
        /// Least number of tokens that gives a score.
        least: usize,
    },
    /// The vocabulary of the draft model differs.
    #[error("{}: it cannot draft for this model: {what}; expected a model of the same vocabulary", file.display())]
    OtherVocabulary {
        /// The draft model's file or folder.
        file: PathBuf,
        /// The first difference.
        what: String,
    },
    /// A prompt cache file cannot be used.
    #[error("prompt cache {}: {what}", file.display())]
    PromptCache {
        /// The file.
        file: PathBuf,
        /// The defect, and a remedy.
        what: String,
    },
    /// A sequence could not go on.
    #[error("{0}")]
    SequenceFailed(String),
    /// Every slot is in use, and the call needs one.
    #[error("{what} needs a free slot, and all {n_sequences} are in use")]
    Busy {
        /// The call.
        what: &'static str,
        /// Number of slots.
        n_sequences: usize,
    },
    /// No token can be chosen from the model's logits.
    #[error(
        "none of the {n_vocab} tokens has a probability: every logit is NaN or minus infinity; check the logit biases"
    )]
    NoCandidate {
        /// Size of the vocabulary.
        n_vocab: usize,
    },
    /// No KV page is free, and no cached one can be evicted.
    #[error("KV group {group}: all {n_pages} pages are held by running sequences")]
    PagesExhausted {
        /// The group.
        group: usize,
        /// Pages of its pool.
        n_pages: usize,
    },
    /// Batched prefill and token-by-token prefill disagree by more than their arithmetic allows.
    #[error(
        "prefill check failed: the logits of {what} differ by an RMS of {rms:.6} and by at most {max:.6}, expected an RMS within {bound:.6}"
    )]
    PrefillDiffers {
        /// The compared rows.
        what: String,
        /// Root mean square of the differences.
        rms: f64,
        /// Largest difference.
        max: f64,
        /// The bound of `rms`.
        bound: f64,
    },
    /// The bookkeeping of the KV cache is inconsistent: a defect of the engine.
    #[error("KV cache integrity: {what}")]
    Integrity {
        /// The inconsistency.
        what: String,
    },
}

impl From<text::Error> for Error {
    fn from(error: text::Error) -> Error {
        Error::Text(Arc::new(error))
    }
}
