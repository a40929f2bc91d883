//! Things made once and kept on disk under the hash of all that they depend on.

use crate::error::Error;
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// A key in the making: parts are separated, so that their borders count.
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

/// The folder of `key` in `cache`. Where it is not there yet, `make` fills a folder that then takes its name; of several that
/// make the same, in this process or others, one works and the rest wait.
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
        // What remains would be removed by the next attempt; the error of the attempt is what matters.
        let _ = fs::remove_dir_all(&making);
    }
    made.map(|()| folder)
}

/// Writes `text` to `name` in `folder`, with the folders on the way.
pub(crate) fn write(folder: &Path, name: &str, text: impl AsRef<[u8]>) -> Result<PathBuf, Error> {
    let path = folder.join(name);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(file_error(parent))?;
    }
    fs::write(&path, text).map_err(file_error(&path))?;
    Ok(path)
}
