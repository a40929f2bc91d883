//! What can be wrong with a vocabulary, a template, or a text.

use std::path::PathBuf;

/// `Result` with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Every variant holds the offending value and what was expected of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file says that it has no vocabulary, so only token ids can be used with it.
    #[error(
        "the file carries no vocabulary (tokenizer.ggml.model is {found:?}); give token ids instead of text"
    )]
    NoVocabulary {
        /// What `tokenizer.ggml.model` says, or an empty string where the key is missing.
        found: String,
    },
    /// A grammar that is not valid or not supported, or a text that left it.
    #[error("the grammar: {what}")]
    Grammar {
        /// What is wrong, in the words of the parser.
        what: String,
    },
    /// A key or file part that a vocabulary of this kind needs is not there.
    #[error("{key} is missing; {why}")]
    Missing {
        /// The metadata key or JSON path.
        key: String,
        /// What it is needed for.
        why: &'static str,
    },
    /// A key holds something other than it must.
    #[error("{key}: found {found}, expected {expected}")]
    Malformed {
        /// The metadata key or JSON path.
        key: String,
        /// What was there.
        found: String,
        /// What should have been.
        expected: String,
    },
    /// A merge of a BPE vocabulary names a token that the vocabulary does not have.
    #[error("merge {index} ({merge:?}) names {missing:?}, which is not a token of the vocabulary")]
    UnknownMerge {
        /// Position in the list of merges, which is its rank.
        index: usize,
        /// The merge as it stands in the file.
        merge: String,
        /// The part of it that is unknown.
        missing: String,
    },
    /// A token id outside the vocabulary.
    #[error("{key} is {id}, but the vocabulary has {n_tokens} tokens")]
    TokenOutOfRange {
        /// The metadata key or JSON path.
        key: String,
        /// What it says.
        id: String,
        /// Number of tokens.
        n_tokens: usize,
    },
    /// An unknown kind of tokenizer or of a part of one.
    #[error("{key}: {found:?} is unknown; known are {known}")]
    Unknown {
        /// The metadata key or JSON path.
        key: String,
        /// The name found.
        found: String,
        /// The names that are known, separated by commas.
        known: String,
    },
    /// The text or file is too long.
    #[error("{what} has {len} bytes; the limit is {limit}")]
    TooLong {
        /// What is too long.
        what: &'static str,
        /// Its length in bytes.
        len: usize,
        /// The most there may be.
        limit: usize,
    },
    /// The operating system refused.
    #[error("{}: {source}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// Not JSON, or not of the shape expected.
    #[error("{what}: {source}")]
    Json {
        /// Which document.
        what: String,
        /// Where and why.
        source: serde_json::Error,
    },
    /// The `tokenizers` library refused the vocabulary or the text.
    #[error("tokenizer.json: {0}")]
    HuggingFace(String),
    /// The chat template is not valid, or failed while rendering.
    #[error("chat template: {0}")]
    Template(String),
    /// The chat template itself refused the conversation, by `raise_exception`.
    #[error("the chat template refuses this conversation: {0}")]
    TemplateRefused(String),
}
