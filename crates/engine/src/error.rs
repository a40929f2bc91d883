//! What can go wrong between a file and its text.

use std::path::PathBuf;
use std::sync::Arc;

use crate::memory::MemoryReport;
use crate::sampling::ParamError;

/// `Result` with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Every variant holds the offending value and the limit, or is the error of the room below.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file.
    #[error(transparent)]
    Format(#[from] weights::Error),
    /// What the file says of the model.
    #[error(transparent)]
    Model(#[from] model::Error),
    /// The tokenizer or the chat template.
    #[error(transparent)]
    Text(Arc<text::Error>),
    /// The device.
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
        /// What was given.
        value: String,
        /// What is allowed.
        expected: String,
    },
    /// The model does not fit in what is free now. The message is the itemised plan and the settings that would fit.
    #[error("the model does not fit in memory\n{0}")]
    DoesNotFit(Box<MemoryReport>),
    /// Text was given or asked for, and the model came without a vocabulary.
    #[error("{}: no tokenizer was found, so only token ids work; expected a vocabulary in the file or a tokenizer.json beside it", file.display())]
    NoTokenizer {
        /// The model's file or folder.
        file: PathBuf,
    },
    /// A conversation was asked for, and the model names no template.
    #[error("{}: the model has no chat template; use plain completion instead", file.display())]
    NoChatTemplate {
        /// The model's file or folder.
        file: PathBuf,
    },
    /// Text was asked of a model that gives hidden states.
    #[error("{}: the model gives hidden states and no logits, so it cannot write or score text; use it for embeddings", file.display())]
    NoHead {
        /// The model's file or folder.
        file: PathBuf,
    },
    /// Embeddings were asked of a model that writes text.
    #[error("{}: nothing says how this model would give embeddings; expected an encoder, a modules.json with a Pooling module, or a pooling_type in the file", file.display())]
    NoEmbeddings {
        /// The model's file or folder.
        file: PathBuf,
    },
    /// Pairs of texts were given to a model that does not judge them.
    #[error("{}: this model judges no pairs of texts; expected an encoder with a classification head of one label", file.display())]
    NoRanks {
        /// The model's file or folder.
        file: PathBuf,
    },
    /// Images were given to a model that sees none.
    #[error("{}: this model sees no images; expected one with an image encoder that Ingle knows", file.display())]
    NoVision {
        /// The model's file or folder.
        file: PathBuf,
    },
    /// One token more was to be predicted by a model that has no layer for it.
    #[error(
        "{}: this checkpoint has no layer that predicts one token more (nextn tensors after the last layer); guess by --speculate ngram or \
         --draft-model instead",
        file.display()
    )]
    NoNextLayer {
        /// The model's file or folder.
        file: PathBuf,
    },
    /// The model sees, but not here.
    #[error("images: {0}")]
    VisionRefused(String),
    /// A picture is not what the tower reads.
    #[error("image: {0}")]
    BadImage(String),
    /// A prompt has more or fewer placeholders than its images have rows.
    #[error(
        "{n_found} placeholders (token {token}) in the prompt, expected {n_expected}: one for each row of its {n_images} images"
    )]
    Placeholders {
        /// The placeholder.
        token: u32,
        /// In the prompt.
        n_found: usize,
        /// Rows of all images.
        n_expected: usize,
        /// Images.
        n_images: usize,
    },
    /// An image's placeholders do not stand one after another.
    #[error(
        "the placeholders from position {position} on are interrupted, expected {n_rows} one after another: the rows of an image"
    )]
    ImageSplit {
        /// The first of them.
        position: usize,
        /// Rows of the image.
        n_rows: usize,
    },
    /// A text has more or fewer places for images than there are.
    #[error("{n_found} times {placeholder} in the text, expected it once for each of {n_images} images")]
    PlaceholderTexts {
        /// What stands for an image.
        placeholder: &'static str,
        /// In the text.
        n_found: usize,
        /// Images.
        n_images: usize,
    },
    /// Text was asked of a model that writes down speech.
    #[error("{}: this model writes down speech, it neither answers nor scores text; use it to transcribe", file.display())]
    OnlySpeech {
        /// The model's file or folder.
        file: PathBuf,
    },
    /// Speech was given to a model of something else.
    #[error("{}: this model does not hear, so it cannot transcribe; expected a model for speech", file.display())]
    NotForSpeech {
        /// The model's file or folder.
        file: PathBuf,
    },
    /// The device panicked while it computed a step.
    #[error("the device panicked: {0}")]
    Panicked(String),
    /// The system gave no thread.
    #[error("no thread for {what}: {reason}")]
    Thread {
        /// What it was for.
        what: &'static str,
        /// What the system says.
        reason: String,
    },
    /// A prompt without a token.
    #[error("the prompt is empty, expected at least one token")]
    EmptyPrompt,
    /// As many requests wait as may.
    #[error("{n_waiting} requests are waiting, expected fewer than {limit}; try again later")]
    QueueFull {
        /// Requests that wait.
        n_waiting: usize,
        /// Most that may.
        limit: usize,
    },
    /// A sequence that is not waiting or running.
    #[error("there is no sequence {0}: it has ended, or never was")]
    NoSequence(u64),
    /// A token id that the model does not know.
    #[error("token {token} at position {position} is not in the vocabulary, expected ids below {n_vocab}")]
    TokenOutOfRange {
        /// The id.
        token: u32,
        /// Where in the prompt.
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
    /// More tokens to score than positions.
    #[error("{n_tokens} tokens are to be scored and the context holds {n_ctx}; raise the context length")]
    TooManyTokens {
        /// Tokens given.
        n_tokens: usize,
        /// The context length.
        n_ctx: usize,
    },
    /// Too few tokens to score.
    #[error("{n_tokens} tokens are to be scored, expected at least {least}")]
    TooFewTokens {
        /// Tokens given.
        n_tokens: usize,
        /// The least that give a score.
        least: usize,
    },
    /// A draft model whose token ids mean something else.
    #[error("{}: it cannot guess for this model: {what}; expected a model of the same vocabulary", file.display())]
    OtherVocabulary {
        /// The draft model's file or folder.
        file: PathBuf,
        /// The first difference.
        what: String,
    },
    /// A prompt cache on disk that is of no use here.
    #[error("prompt cache {}: {what}", file.display())]
    PromptCache {
        /// The file.
        file: PathBuf,
        /// What is wrong, and what to do.
        what: String,
    },
    /// A sequence could not go on.
    #[error("{0}")]
    SequenceFailed(String),
    /// Every slot runs a sequence, and this needs one to itself.
    #[error("{what} needs a free slot, and all {n_sequences} are in use")]
    Busy {
        /// What was asked.
        what: &'static str,
        /// Slots of the engine.
        n_sequences: usize,
    },
    /// The model's logits leave nothing to choose.
    #[error(
        "none of the {n_vocab} tokens has a probability: every logit is NaN or minus infinity; check the logit biases"
    )]
    NoCandidate {
        /// Size of the vocabulary.
        n_vocab: usize,
    },
    /// No KV page is free, and none is cached only.
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
        /// Which rows.
        what: String,
        /// Root mean square of the differences.
        rms: f64,
        /// Largest difference.
        max: f64,
        /// What is allowed.
        bound: f64,
    },
    /// The KV cache's books do not balance: a defect of the engine.
    #[error("KV cache integrity: {what}")]
    Integrity {
        /// What does not hold.
        what: String,
    },
}

impl From<text::Error> for Error {
    fn from(error: text::Error) -> Error {
        Error::Text(Arc::new(error))
    }
}
