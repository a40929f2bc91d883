//! A model on this machine, for lists.

use std::fs;
use std::path::PathBuf;
use std::time::SystemTime;

use serde::Serialize;

/// A model on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Installed {
    /// The name to type.
    pub name: String,
    /// The file (for a split model its first part) or folder to load.
    pub path: PathBuf,
    /// Length of all files, in bytes.
    pub bytes: u64,
    /// The source: packages, or a repository at a commit.
    pub source: String,
    /// Time of the fetch.
    pub modified: SystemTime,
}

/// A row for these files; `None` if all of them have been removed in the meantime.
pub(crate) fn row(name: String, path: PathBuf, files: &[PathBuf], source: String) -> Option<Installed> {
    let metas: Vec<_> = files.iter().filter_map(|file| fs::metadata(file).ok()).collect();
    let modified = metas.iter().filter_map(|meta| meta.modified().ok()).max()?;
    Some(Installed { name, path, bytes: metas.iter().map(fs::Metadata::len).sum(), source, modified })
}
