//! The models of a server in a TOML file, each with its own options.

use std::path::Path;

use anyhow::{Context, ensure};
use serde::Deserialize;

use crate::args::{KvTypeName, LoadArgs, ModelName};

/// One `[[models]]` of the file. Flags of the command line are its defaults.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// The name for clients [default: the source].
    name: Option<String>,
    /// A catalog name, a path, or hf:org/repo[/file][@revision]; a relative path begins at the
    /// file's folder.
    source: String,
    /// The source as typed, or joined to the file's folder; it need not be UTF-8.
    #[serde(skip)]
    typed: Option<ModelName>,
    pub ctx: Option<usize>,
    kv_type: Option<KvTypeName>,
    /// Number of requests that are computed at once.
    pub slots: Option<usize>,
    /// Target time between two tokens, in milliseconds.
    pub latency_target: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    models: Vec<ModelConfig>,
}

impl ModelConfig {
    /// A model of the command line.
    pub fn named(source: &ModelName) -> ModelConfig {
        let (source, typed) = (source.to_string(), Some(source.clone()));
        ModelConfig { name: None, source, typed, ctx: None, kv_type: None, slots: None, latency_target: None }
    }

    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.source)
    }

    /// The model's source.
    pub fn source(&self) -> ModelName {
        self.typed.clone().unwrap_or_else(|| ModelName::from(self.source.as_str()))
    }

    /// The flags that load the model: its own options over the common ones.
    pub fn load_args(&self, common: &LoadArgs) -> LoadArgs {
        LoadArgs { ctx: self.ctx.or(common.ctx), kv_type: self.kv_type.or(common.kv_type), ..common.clone() }
    }
}

/// Reads the models of a file, in order.
///
/// # Errors
/// The file cannot be read or parsed, or has no model.
pub fn read(file: &Path) -> anyhow::Result<Vec<ModelConfig>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    let folder = file.parent().unwrap_or(Path::new(""));
    let mut models = parse(&text).with_context(|| file.display().to_string())?;
    for model in &mut models {
        let path = folder.join(&model.source);
        // A source that is not a path is a catalog name.
        if path.exists() {
            let named = model.name().to_owned();
            (model.name, model.typed) = (Some(named), Some(ModelName::from(path.as_path())));
        }
    }
    Ok(models)
}

fn parse(text: &str) -> anyhow::Result<Vec<ModelConfig>> {
    let file: File = toml::from_str(text)?;
    ensure!(!file.models.is_empty(), "found no model, expected at least one [[models]] with a source");
    Ok(file.models)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_have_names_and_options_of_their_own() {
        let text = "[[models]]\nname = \"chat\"\nsource = \"smollm2:135m\"\nctx = 2048\nslots = 4\n\n\
                    [[models]]\nsource = \"minilm:l6\"\n";
        let models = parse(text).unwrap();
        assert_eq!((models[0].name(), models[0].ctx, models[0].slots), ("chat", Some(2048), Some(4)));
        assert_eq!((models[1].name(), models[1].ctx), ("minilm:l6", None));
    }

    #[test]
    fn what_is_misspelt_is_named() {
        for (text, expected) in [
            ("[[models]]\nsource = \"a\"\ncontext = 1\n", "unknown field `context`"),
            ("[[models]]\nname = \"a\"\n", "missing field `source`"),
            ("models = []\n", "found no model"),
        ] {
            let error = format!("{:#}", parse(text).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
    }
}
