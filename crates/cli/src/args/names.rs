//! Names of models and files, which need not be UTF-8.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::Path;

use anyhow::Context;
use ingle::{ModelSource, PublicKey};

/// A model as it was typed: a name, or a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelName(OsString);

impl ModelName {
    /// The reference that the name stands for.
    ///
    /// # Errors
    /// The name is empty, or the text after its prefix is malformed.
    pub fn reference(&self) -> hub::Result<hub::ModelRef> {
        self.source().reference()
    }

    /// The name for the library.
    pub fn source(&self) -> ModelSource {
        self.0.clone().into()
    }
}

impl From<OsString> for ModelName {
    fn from(typed: OsString) -> ModelName {
        ModelName(typed)
    }
}

impl From<&Path> for ModelName {
    fn from(path: &Path) -> ModelName {
        ModelName(path.into())
    }
}

impl From<&str> for ModelName {
    fn from(name: &str) -> ModelName {
        ModelName(name.into())
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.to_string_lossy())
    }
}

/// A file's path, or the text that such a file could hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileOrText(OsString);

impl FileOrText {
    /// The content of the file of this name, if there is one.
    pub fn read(&self) -> Option<std::io::Result<String>> {
        self.path().is_file().then(|| std::fs::read_to_string(self.path()))
    }

    /// The argument as a path.
    pub fn path(&self) -> &Path {
        Path::new(&self.0)
    }

    /// The argument as text.
    ///
    /// # Errors
    /// The argument is not UTF-8.
    pub fn text(&self) -> anyhow::Result<&str> {
        self.0.to_str().with_context(|| format!("found {:?}, which is neither a file nor UTF-8", self.0))
    }

    /// The argument as a public key: a file of 32 bytes, or 64 hexadecimal digits.
    ///
    /// # Errors
    /// The file cannot be read, or the argument is no key.
    pub fn public_key(&self) -> anyhow::Result<PublicKey> {
        let text = self.text().unwrap_or_default();
        let digits: Option<Vec<u8>> = text.chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect();
        let Some(digits) = digits.filter(|digits| digits.len() == 64) else {
            return Ok(PublicKey::read(self.path())?);
        };
        let bytes: [u8; 32] = std::array::from_fn(|i| digits[2 * i] << 4 | digits[2 * i + 1]);
        PublicKey::from_bytes(&bytes).with_context(|| format!("{text} is not an ed25519 public key"))
    }
}

impl From<OsString> for FileOrText {
    fn from(typed: OsString) -> FileOrText {
        FileOrText(typed)
    }
}

/// A piece of an argument, cut at ASCII characters.
#[cfg(unix)]
pub fn os_string(bytes: &[u8]) -> Option<OsString> {
    use std::os::unix::ffi::OsStrExt;
    Some(OsStr::from_bytes(bytes).to_owned())
}

/// A piece of an argument. Arguments are not bytes on this system: a path must be Unicode.
#[cfg(not(unix))]
pub fn os_string(bytes: &[u8]) -> Option<OsString> {
    Some(std::str::from_utf8(bytes).ok()?.into())
}
