//! Build results cached on disk under the hash of all their inputs.

use crate::error::Error;
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// A key under construction. Each part is hashed with its length, so that moving bytes between
/// parts changes the key.
pub(crate) struct Key(Sha256);

impl Key {
    pub fn new(what: &str) -> Self {
        Key(Sha256::new()).with(what).with(env!("CARGO_PKG_VERSION"))
    }

    pub fn with(mut self, part: impl AsRef<[u8]>) -> Self {
        let part = part.as_ref();
        self.0.update((part.len() as u64).to_le_bytes());
        self.0.update(part);
        self
    }

    fn name(self) -> String {
        self.0.finalize().iter().take(16).map(|b| format!("{b:02x}")).collect()
    }
}

pub(crate) fn file_error(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File { path, source }
}

/// The folder of `key` in `cache`. If it does not exist, `make` fills a temporary folder that is
/// then renamed. If several threads or processes need the same folder, one makes it and the others
/// wait.
pub(crate) fn folder(
    cache: &Path,
    key: Key,
    make: impl FnOnce(&Path) -> Result<(), Error>,
) -> Result<PathBuf, Error> {
    let name = key.name();
    let folder = cache.join(&name);
    if folder.is_dir() {
        return Ok(folder);
    }
    fs::create_dir_all(cache).map_err(file_error(cache))?;
    let lock_path = cache.join(format!("{name}.lock"));
    let lock = File::create(&lock_path).map_err(file_error(&lock_path))?;
    lock.lock().map_err(file_error(&lock_path))?;
    if folder.is_dir() {
        return Ok(folder);
    }
    let making = cache.join(format!("{name}.making"));
    if making.is_dir() {
        fs::remove_dir_all(&making).map_err(file_error(&making))?;
    }
    fs::create_dir_all(&making).map_err(file_error(&making))?;
    let made = make(&making).and_then(|()| fs::rename(&making, &folder).map_err(file_error(&folder)));
    if made.is_err() {
        // The next attempt would remove the leftovers too; the error of `make` is the one to
        // report.
        let _ = fs::remove_dir_all(&making);
    }
    made.map(|()| folder)
}

/// Writes `text` to `name` in `folder`, and creates missing parent folders.
pub(crate) fn write(folder: &Path, name: &str, text: impl AsRef<[u8]>) -> Result<PathBuf, Error> {
    let path = folder.join(name);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(file_error(parent))?;
    }
    fs::write(&path, text).map_err(file_error(&path))?;
    Ok(path)
}

/// A path below the cache as text. The cache's own path was checked to be UTF-8, and names below it
/// come from strings.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}
