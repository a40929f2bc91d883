//! Errors of vocabularies, templates and texts.

use std::path::PathBuf;

/// `Result` with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// An error with the offending value and the expected one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file declares that it has no vocabulary, so the model accepts only token ids.
    #[error("the file has no vocabulary (tokenizer.ggml.model is {found:?}); use token ids instead of text")]
    NoVocabulary {
        /// Value of `tokenizer.ggml.model`, empty if the key is missing.
        found: String,
    },
    /// A grammar is not valid or not supported, or a text violated it.
    #[error("the grammar: {what}")]
    Grammar {
        /// The error in the parser's words.
        what: String,
    },
    /// A key or part of the file that this kind of vocabulary needs is missing.
    #[error("{key} is missing; {why}")]
    Missing {
        /// The metadata key or JSON path.
        key: String,
        /// The purpose of the missing part.
        why: &'static str,
    },
    /// A key has another value than expected.
    #[error("{key}: found {found}, expected {expected}")]
    Malformed {
        /// The metadata key or JSON path.
        key: String,
        /// The value found.
        found: String,
        /// The value expected.
        expected: String,
    },
    /// A merge of a BPE vocabulary names a token that the vocabulary does not have.
    #[error("merge {index} ({merge:?}) names {missing:?}, which is not a token of the vocabulary")]
    UnknownMerge {
        /// Position in the list of merges, which is its rank.
        index: usize,
        /// The merge as written in the file.
        merge: String,
        /// The unknown part of the merge.
        missing: String,
    },
    /// A token id outside the vocabulary.
    #[error("{key} is {id}, but the vocabulary has {n_tokens} tokens")]
    TokenOutOfRange {
        /// The metadata key or JSON path.
        key: String,
        /// The token id found.
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
        /// The known names, separated by commas.
        known: String,
    },
    /// The text or file is too long.
    #[error("{what} has {len} bytes; the limit is {limit}")]
    TooLong {
        /// Name of the text or file.
        what: &'static str,
        /// The text's length in bytes.
        len: usize,
        /// The largest length in bytes.
        limit: usize,
    },
    /// The operating system returned an error for a file.
    #[error("{}: {source}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// A document is not JSON, or not of the expected shape.
    #[error("{what}: {source}")]
    Json {
        /// Name of the document.
        what: String,
        /// Place and reason.
        source: serde_json::Error,
    },
    /// The `tokenizers` library refused the vocabulary or the text.
    #[error("tokenizer.json: {0}")]
    HuggingFace(String),
    /// The chat template is not valid, or failed while rendering.
    #[error("chat template: {0}")]
    Template(String),
    /// The chat template refused the conversation by `raise_exception`.
    #[error("the chat template refuses this conversation: {0}")]
    TemplateRefused(String),
}
