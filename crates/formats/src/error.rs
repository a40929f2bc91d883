//! What can be wrong with a weight file.

use std::path::PathBuf;

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
}
