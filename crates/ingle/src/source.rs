//! Names of models and adapters.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use hub::ModelRef;

/// A model's place.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModelSource {
    /// A file (GGUF, `.base`, or ggml of whisper.cpp), or a folder with safetensors.
    Path(PathBuf),
    /// A name of the catalog, `hf:org/repo[/file|:QUANT][@revision]`, an address of the hub, a
    /// model of another program (`ollama:NAME`), or a path ([`ModelRef::parse`]).
    Name(String),
}

impl ModelSource {
    /// The reference that the source stands for.
    ///
    /// # Errors
    /// [`hub::Error::BadReference`]: the name is empty, or the text after its prefix is malformed.
    pub fn reference(&self) -> hub::Result<ModelRef> {
        match self {
            ModelSource::Path(path) => Ok(ModelRef::Path(path.clone())),
            ModelSource::Name(name) => ModelRef::parse(name),
        }
    }
}

impl From<&str> for ModelSource {
    fn from(name: &str) -> ModelSource {
        ModelSource::Name(name.to_owned())
    }
}

impl From<String> for ModelSource {
    fn from(name: String) -> ModelSource {
        ModelSource::Name(name)
    }
}

impl From<&Path> for ModelSource {
    fn from(path: &Path) -> ModelSource {
        ModelSource::Path(path.to_owned())
    }
}

impl From<PathBuf> for ModelSource {
    fn from(path: PathBuf) -> ModelSource {
        ModelSource::Path(path)
    }
}

/// Text as a user typed it. If it is not UTF-8, it can only be a path.
impl From<OsString> for ModelSource {
    fn from(typed: OsString) -> ModelSource {
        typed.into_string().map_or_else(|typed| ModelSource::Path(typed.into()), ModelSource::Name)
    }
}

impl fmt::Display for ModelSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ModelSource::Path(path) => write!(f, "{}", path.display()),
            ModelSource::Name(name) => f.write_str(name),
        }
    }
}

/// An adapter (LoRA) that is loaded with a model.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct AdapterSource {
    /// The name by which requests choose the adapter.
    pub name: String,
    /// PEFT's folder, one of its files, or a GGUF file.
    pub path: PathBuf,
    /// Factor that multiplies the adapter's effect.
    pub factor: f32,
}

impl AdapterSource {
    /// An adapter with the factor 1.
    pub fn new(name: impl Into<String>, path: impl Into<PathBuf>) -> AdapterSource {
        AdapterSource { name: name.into(), path: path.into(), factor: 1.0 }
    }

    /// Replaces the factor.
    pub fn with_factor(self, factor: f32) -> AdapterSource {
        AdapterSource { factor, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_paths_become_references() {
        let of = |source: ModelSource| source.reference().map(|reference| reference.to_string());
        assert_eq!(of("smollm2:135m".into()).unwrap(), "smollm2:135m");
        assert_eq!(of("hf.co/org/repo".into()).unwrap(), "hf:org/repo");
        // A bare word as a path is never a name of the catalog.
        let path = ModelSource::from(Path::new("smollm2"));
        assert_eq!(path.reference().unwrap(), ModelRef::Path("smollm2".into()));
        assert!(of("".into()).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn typed_text_that_is_not_utf_8_is_a_path() {
        use std::os::unix::ffi::OsStringExt;
        let typed = OsString::from_vec(b"\xffm.gguf".to_vec());
        assert_eq!(ModelSource::from(typed.clone()), ModelSource::Path(typed.into()));
        assert_eq!(ModelSource::from(OsString::from("a")), ModelSource::Name("a".to_owned()));
    }
}
