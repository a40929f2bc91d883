//! Names of models and files, which need not be UTF-8.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::builder::TypedValueParser;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// A model as it was typed: a name, or a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelName(OsString);

impl ModelName {
    /// What it means.
    ///
    /// # Errors
    /// It is empty, or has a prefix whose rest is not of the form that follows it.
    pub fn reference(&self) -> hub::Result<hub::ModelRef> {
        hub::ModelRef::parse_os(&self.0)
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

/// A file's path, or what could be in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileOrText(OsString);

impl FileOrText {
    /// Its content, if there is a file of this name.
    pub fn read(&self) -> Option<std::io::Result<String>> {
        self.path().is_file().then(|| std::fs::read_to_string(self.path()))
    }

    /// As a path.
    pub fn path(&self) -> &Path {
        Path::new(&self.0)
    }

    /// As a text.
    ///
    /// # Errors
    /// It is not UTF-8.
    pub fn text(&self) -> anyhow::Result<&str> {
        self.0.to_str().with_context(|| format!("found {:?}, which is neither a file nor UTF-8", self.0))
    }
}

impl From<OsString> for FileOrText {
    fn from(typed: OsString) -> FileOrText {
        FileOrText(typed)
    }
}

/// What `--lora` says.
#[derive(Clone, Debug, PartialEq)]
pub struct Lora {
    pub name: String,
    pub path: PathBuf,
    pub factor: f32,
}

/// Parses `NAME=PATH[:SCALE]`.
#[derive(Clone)]
pub struct LoraParser;

impl TypedValueParser for LoraParser {
    type Value = Lora;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<Lora, clap::Error> {
        parse_lora(value).ok_or_else(|| {
            let mut error = clap::Error::new(ErrorKind::ValueValidation).with_cmd(command);
            let name = arg.map_or(String::new(), ToString::to_string);
            error.insert(ContextKind::InvalidArg, ContextValue::String(name));
            let found = value.to_string_lossy().into_owned();
            error.insert(ContextKind::InvalidValue, ContextValue::String(found));
            let expected = "expected NAME=PATH or NAME=PATH:SCALE".to_owned();
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![expected.into()]));
            error
        })
    }
}

fn parse_lora(typed: &OsStr) -> Option<Lora> {
    // Both marks are ASCII, so that the bytes between them are a path whatever they are.
    let bytes = typed.as_encoded_bytes();
    let equals = bytes.iter().position(|byte| *byte == b'=')?;
    let (name, rest) = (std::str::from_utf8(&bytes[..equals]).ok()?, &bytes[equals + 1..]);
    let scaled = rest.iter().rposition(|byte| *byte == b':').and_then(|colon| {
        let factor = std::str::from_utf8(&rest[colon + 1..]).ok()?.parse::<f32>().ok()?;
        Some((&rest[..colon], factor))
    });
    let (path, factor) = scaled.unwrap_or((rest, 1.0));
    if name.is_empty() || path.is_empty() || !factor.is_finite() {
        return None;
    }
    Some(Lora { name: name.to_owned(), path: os_string(path)?.into(), factor })
}

/// A piece of an argument, cut at ASCII characters.
#[cfg(unix)]
fn os_string(bytes: &[u8]) -> Option<OsString> {
    use std::os::unix::ffi::OsStrExt;
    Some(OsStr::from_bytes(bytes).to_owned())
}

/// Elsewhere arguments are not bytes: a path that is no Unicode is refused.
#[cfg(not(unix))]
fn os_string(bytes: &[u8]) -> Option<OsString> {
    Some(std::str::from_utf8(bytes).ok()?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_have_a_name_a_path_and_a_factor() {
        let parse = |text: &str| parse_lora(OsStr::new(text));
        let lora =
            |name: &str, path: &str, factor| Some(Lora { name: name.to_owned(), path: path.into(), factor });
        assert_eq!(parse("a=b/c"), lora("a", "b/c", 1.0));
        assert_eq!(parse("a=b=c:0.5"), lora("a", "b=c", 0.5));
        assert_eq!(parse("a=C:x"), lora("a", "C:x", 1.0));
        for bad in ["", "a", "=b", "a=", "a=:2", "a=b:inf"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_path_need_not_be_utf_8() {
        use std::os::unix::ffi::OsStrExt;
        let found = parse_lora(OsStr::from_bytes(b"a=\xffb:2")).unwrap();
        assert_eq!(found.path.as_os_str().as_bytes(), b"\xffb");
        assert_eq!(found.factor, 2.0);
    }
}
