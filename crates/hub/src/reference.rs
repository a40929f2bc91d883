//! The ways to name a model.

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::names;
use crate::program::{Program, StoreRef};

/// A model as the user names it: a path, a location on the Hugging Face hub, or a name in the
/// catalog.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelRef {
    /// A file or folder on this machine.
    Path(PathBuf),
    /// `hf:org/repo[/file|:QUANT][@revision]`.
    Hub(HubRef),
    /// A name to look up in the catalog.
    Catalog(String),
    /// A model in another program's store.
    Store(StoreRef),
}

/// A location on the Hugging Face hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubRef {
    /// `org/name`.
    pub repo: String,
    /// A file of the repository; without one, the model is chosen from all files.
    pub file: Option<String>,
    /// The quantisation in the name of the GGUF file to load, such as `Q4_K_M`; only without
    /// `file`.
    pub quant: Option<String>,
    /// A branch, tag or commit; without one, `main`.
    pub revision: Option<String>,
}

impl HubRef {
    /// The revision to request.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or("main")
    }
}

impl ModelRef {
    /// Parses a typed reference, like [`Self::parse`]. Text that is not UTF-8 can only be a path.
    ///
    /// # Errors
    /// The errors of [`Self::parse`].
    pub fn parse_os(typed: &std::ffi::OsStr) -> Result<Self> {
        typed.to_str().map_or_else(|| Ok(Self::Path(PathBuf::from(typed))), Self::parse)
    }

    /// Parses a reference. `hf:` or an address of the hub means the hub, `ollama:` and `lmstudio:`
    /// mean models of those programs. A text is a path if it exists or looks like one: it has a
    /// separator, starts with `.` or `~`, or ends like a model file. All other texts are names of
    /// the catalog. Fetching checks that a name or path exists.
    ///
    /// # Errors
    /// [`Error::BadReference`] for an empty reference, or for a malformed text after a prefix.
    pub fn parse(text: &str) -> Result<Self> {
        match Self::parse_name(text)? {
            Self::Catalog(_) if Path::new(text).exists() => Ok(Self::Path(PathBuf::from(text))),
            reference => Ok(reference),
        }
    }

    /// Like [`ModelRef::parse`], for names that clients send. The disk is not read, so that the
    /// result reveals no file: a bare word is always a name of the catalog.
    ///
    /// # Errors
    /// The errors of [`ModelRef::parse`].
    pub fn parse_name(text: &str) -> Result<Self> {
        if text.trim().is_empty() {
            let reason =
                "it is empty, expected a path, hf:org/repo[/file][@revision] or a catalog name".into();
            return Err(Error::BadReference { reference: text.to_string(), reason });
        }
        if let Some(place) = hub_place(text) {
            return parse_hub(&place)
                .map(Self::Hub)
                .map_err(|reason| Error::BadReference { reference: names::printable(text), reason });
        }
        for program in Program::ALL {
            if let Some(name) = text.strip_prefix(program.prefix()) {
                let name = name.trim().to_string();
                if name.is_empty() {
                    let reason =
                        format!("it names no model; `ingle list --all` lists the models of {program}");
                    return Err(Error::BadReference { reference: names::printable(text), reason });
                }
                return Ok(Self::Store(StoreRef { program, name }));
            }
        }
        if looks_like_path(text) {
            return Ok(Self::Path(PathBuf::from(text)));
        }
        Ok(Self::Catalog(text.trim().to_string()))
    }
}

impl std::str::FromStr for ModelRef {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text)
    }
}

impl fmt::Display for ModelRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Hub(place) => write!(f, "{place}"),
            Self::Catalog(name) => f.write_str(name),
            Self::Store(place) => write!(f, "{}{}", place.program.prefix(), place.name),
        }
    }
}

impl fmt::Display for HubRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hf:{}", self.repo)?;
        if let Some(file) = &self.file {
            write!(f, "/{file}")?;
        }
        if let Some(quant) = &self.quant {
            write!(f, ":{quant}")?;
        }
        if let Some(revision) = &self.revision {
            write!(f, "@{revision}")?;
        }
        Ok(())
    }
}

/// The text after `hf:` of a reference to the hub. Addresses of the hub, as Ollama's users write
/// them and browsers show them, are converted to this form.
fn hub_place(text: &str) -> Option<Cow<'_, str>> {
    if let Some(place) = text.strip_prefix("hf:") {
        return Some(Cow::Borrowed(place));
    }
    let bare = text.strip_prefix("https://").unwrap_or(text);
    let place = ["hf.co/", "huggingface.co/"].into_iter().find_map(|host| bare.strip_prefix(host))?;
    let place = place.split(['?', '#']).next().unwrap_or_default().trim_end_matches('/');
    // A browser shows ORG/NAME/blob/REVISION/FILE.
    let mut parts = place.splitn(5, '/');
    let (Some(org), Some(name), Some("blob" | "resolve" | "tree"), Some(revision)) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Some(Cow::Borrowed(place));
    };
    let file = parts.next().map(|file| format!("/{file}")).unwrap_or_default();
    Some(Cow::Owned(format!("{org}/{name}{file}@{revision}")))
}

fn looks_like_path(text: &str) -> bool {
    let lower = text.to_lowercase();
    text.contains(['/', '\\'])
        || text.starts_with(['.', '~'])
        || [".gguf", ".safetensors", ".json"].iter().any(|end| lower.ends_with(end))
}

/// Parses `place`, the text after `hf:`.
fn parse_hub(place: &str) -> std::result::Result<HubRef, String> {
    const EXPECTED: &str = "expected hf:org/repo[/file][@revision] or hf:org/repo:QUANT[@revision]";
    let (path, revision) = match place.rsplit_once('@') {
        Some((path, revision)) => (path, Some(revision)),
        None => (place, None),
    };
    let mut parts = path.splitn(3, '/');
    let (org, name, file) =
        (parts.next().unwrap_or_default(), parts.next().unwrap_or_default(), parts.next());
    let (name, quant) = match name.split_once(':') {
        Some((name, quant)) => (name, Some(quant)),
        None => (name, None),
    };
    let repo = format!("{org}/{name}");
    if !names::is_repo(&repo) {
        return Err(format!("{repo:?} is not a repository's org/name; {EXPECTED}"));
    }
    if let Some(quant) = quant
        && (!names::is_quant(quant) || file.is_some())
    {
        return Err(format!("{quant:?} is not a quantisation such as Q4_K_M; {EXPECTED}"));
    }
    if let Some(file) = file
        && !names::is_relative(file)
    {
        return Err(format!("{file:?} is not a file inside the repository; {EXPECTED}"));
    }
    if let Some(revision) = revision
        && !names::is_relative(revision)
    {
        return Err(format!("{revision:?} is not a branch, tag or commit; {EXPECTED}"));
    }
    Ok(HubRef {
        repo,
        file: file.map(str::to_string),
        quant: quant.map(str::to_string),
        revision: revision.map(str::to_string),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub(repo: &str, file: Option<&str>, revision: Option<&str>) -> ModelRef {
        ModelRef::Hub(HubRef {
            repo: repo.into(),
            file: file.map(str::to_string),
            quant: None,
            revision: revision.map(str::to_string),
        })
    }

    #[test]
    fn the_kinds_of_references() {
        assert_eq!(ModelRef::parse("SmolLM2:135m").unwrap(), ModelRef::Catalog("SmolLM2:135m".into()));
        for path in ["model.gguf", "./model", "~/models", "org/repo", "C:\\models\\m", "src", "M.GGUF"] {
            assert_eq!(ModelRef::parse(path).unwrap(), ModelRef::Path(path.into()), "{path}");
        }
        // `src` is a folder in the directory of the tests.
        assert_eq!(ModelRef::parse_name("src").unwrap(), ModelRef::Catalog("src".into()));
        assert_eq!(ModelRef::parse_name("./src").unwrap(), ModelRef::Path("./src".into()));
        assert_eq!(ModelRef::parse("hf:o/r").unwrap(), hub("o/r", None, None));
        assert_eq!(ModelRef::parse("hf:o/r@v1.0").unwrap(), hub("o/r", None, Some("v1.0")));
        assert_eq!(
            ModelRef::parse("hf:o/r/q4/m.gguf@refs/pr/1").unwrap(),
            hub("o/r", Some("q4/m.gguf"), Some("refs/pr/1"))
        );
        let ModelRef::Hub(place) = ModelRef::parse("hf:o/r:q4_k_m@v1").unwrap() else { panic!() };
        assert_eq!((&place.file, place.quant.as_deref(), place.revision()), (&None, Some("q4_k_m"), "v1"));
        for (text, place) in [
            ("hf.co/o/r", hub("o/r", None, None)),
            ("huggingface.co/o/r/", hub("o/r", None, None)),
            ("https://huggingface.co/o/r", hub("o/r", None, None)),
            ("https://huggingface.co/o/r/tree/main", hub("o/r", None, Some("main"))),
            ("https://huggingface.co/o/r/blob/main/q/m.gguf", hub("o/r", Some("q/m.gguf"), Some("main"))),
            ("https://hf.co/o/r/resolve/v1/m.gguf?download=true", hub("o/r", Some("m.gguf"), Some("v1"))),
        ] {
            assert_eq!(ModelRef::parse(text).unwrap(), place, "{text}");
        }
        let ModelRef::Hub(place) = ModelRef::parse("hf.co/o/r:Q8_0").unwrap() else { panic!() };
        assert_eq!(place.quant.as_deref(), Some("Q8_0"));
        let ollama = StoreRef { program: Program::Ollama, name: "llama3.2:3b".into() };
        assert_eq!(ModelRef::parse("ollama:llama3.2:3b").unwrap(), ModelRef::Store(ollama));
        let studio = StoreRef { program: Program::LmStudio, name: "o/r/m.gguf".into() };
        assert_eq!(ModelRef::parse("lmstudio:o/r/m.gguf").unwrap(), ModelRef::Store(studio));
    }

    #[test]
    fn it_prints_as_it_was_written() {
        for text in [
            "hf:o/r",
            "hf:o/r/q4/m.gguf@main",
            "hf:o/r@main",
            "hf:o/r:Q8_0@main",
            "./x.gguf",
            "gemma3:270m",
            "ollama:llama3.2:3b",
        ] {
            assert_eq!(ModelRef::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn bad_references_say_why() {
        for bad in [
            "",
            " ",
            "hf:",
            "hf:gpt2",
            "hf:o/r/",
            "hf:o/r/../x",
            "hf:../r",
            "hf:o/r@",
            "hf:o/r@../x",
            "hf:o/r/a\\b",
            "hf:o/r:",
            "hf:o/r:Q4/x.gguf",
            "hf:o/r:../x",
            "hf.co/r",
            "https://huggingface.co/",
            "https://huggingface.co/o/r/blob/main/../x",
        ] {
            let error = ModelRef::parse(bad).unwrap_err();
            assert!(
                matches!(&error, Error::BadReference { .. }) && error.to_string().contains("expected"),
                "{error}"
            );
        }
    }
}
