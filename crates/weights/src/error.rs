//! Errors of reading weight files.

use std::fmt::Display;
use std::path::{Path, PathBuf};

/// `Result` with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a weight file. Every variant names the file; most name the key or tensor, what was
/// found, and what was expected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused an operation.
    #[error("{}: {source}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// The file changed after it was mapped.
    #[error("{}: the file changed while it was in use: {what}; it has to be loaded anew", file.display())]
    Changed {
        /// The file.
        file: PathBuf,
        /// The difference.
        what: String,
    },
    /// The bytes violate the format.
    #[error("{}: {at}: found {found}, expected {expected}", file.display())]
    Malformed {
        /// The file.
        file: PathBuf,
        /// The key, tensor or header field.
        at: String,
        /// The invalid content.
        found: String,
        /// The expected content.
        expected: String,
    },
    /// The bytes are valid, but Ingle does not support their content.
    #[error("{}: {at}: {found} is not supported; supported: {supported}", file.display())]
    Unsupported {
        /// The file.
        file: PathBuf,
        /// The key, tensor or header field.
        at: String,
        /// The content.
        found: String,
        /// Supported alternatives.
        supported: String,
    },
}

impl Error {
    /// An [`Error::Malformed`].
    pub fn malformed(file: &Path, at: impl Display, found: impl Display, expected: impl Display) -> Error {
        Error::Malformed {
            file: file.to_owned(),
            at: at.to_string(),
            found: found.to_string(),
            expected: expected.to_string(),
        }
    }

    /// An [`Error::Unsupported`].
    pub fn unsupported(file: &Path, at: impl Display, found: impl Display, supported: impl Display) -> Error {
        Error::Unsupported {
            file: file.to_owned(),
            at: at.to_string(),
            found: found.to_string(),
            supported: supported.to_string(),
        }
    }
}
