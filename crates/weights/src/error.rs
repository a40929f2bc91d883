//! What can be wrong with a weight file.

use std::fmt::Display;
use std::path::{Path, PathBuf};

/// `Result` with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Every variant names the file; most name the key or tensor, what was found, and what was expected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused.
    #[error("{}: {source}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// The file is not what it was when it was mapped.
    #[error("{}: the file changed while it was in use: {what}; it has to be loaded anew", file.display())]
    Changed {
        /// The file.
        file: PathBuf,
        /// What differs.
        what: String,
    },
    /// The bytes are not what the format demands.
    #[error("{}: {at}: found {found}, expected {expected}", file.display())]
    Malformed {
        /// The file.
        file: PathBuf,
        /// The key, tensor or header field.
        at: String,
        /// What was there.
        found: String,
        /// What should have been.
        expected: String,
    },
    /// The bytes are sound, and Ingle does not run what they hold.
    #[error("{}: {at}: {found} is not supported; supported: {supported}", file.display())]
    Unsupported {
        /// The file.
        file: PathBuf,
        /// The key, tensor or header field.
        at: String,
        /// What was there.
        found: String,
        /// What could be there.
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
