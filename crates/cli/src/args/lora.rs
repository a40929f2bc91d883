//! Adapters (LoRA) that are loaded with a model.

use std::ffi::OsStr;
use std::path::PathBuf;

use clap::Args;
use clap::builder::TypedValueParser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use ingle::AdapterSource;

use super::names::os_string;

/// Adapters that are loaded with the model.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Adapters")]
pub struct LoraArgs {
    /// Load an adapter (LoRA) under a name; repeat for more
    ///
    /// PATH is a folder of PEFT or a GGUF file. SCALE multiplies the adapter's effect [default: 1].
    #[arg(long, value_name = "NAME=PATH[:SCALE]", value_parser = LoraParser)]
    pub lora: Vec<Lora>,
}

/// Adapters that are loaded with the model, and the one that a command computes with.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Adapters")]
pub struct AdapterArgs {
    #[command(flatten)]
    pub lora: LoraArgs,

    /// Use the adapter of this name; needed if --lora loads several
    #[arg(long, value_name = "NAME", requires = "lora")]
    pub adapter: Option<String>,
}

/// One value of `--lora`.
#[derive(Clone, Debug, PartialEq)]
pub struct Lora {
    pub name: String,
    pub path: PathBuf,
    pub factor: f32,
}

impl Lora {
    /// The adapter for the library.
    pub fn source(&self) -> AdapterSource {
        AdapterSource::new(&self.name, &self.path).with_factor(self.factor)
    }
}

impl LoraArgs {
    /// The adapters for the library.
    pub fn sources(&self) -> Vec<AdapterSource> {
        self.lora.iter().map(Lora::source).collect()
    }
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
    // The separators are ASCII, so any bytes between them can be a path.
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
