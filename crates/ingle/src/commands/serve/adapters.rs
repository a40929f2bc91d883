//! The adapters of a server's models: those of the command line, and those that clients load from the folder of `--lora-dir`.

use std::path::Path;
use std::sync::PoisonError;

use anyhow::{Context, bail};
use engine::Adapter;
use server::{ApiError, ErrorKind, ServedAdapter};

use super::Serve;
use crate::args::Lora;
use crate::load;

impl Serve {
    /// Give the adapters of the command line to the first model.
    pub(super) fn name_adapters(&self) -> anyhow::Result<()> {
        let Some(first) = self.lora.lora.first() else { return Ok(()) };
        let model = self
            .configs
            .first()
            .with_context(|| format!("--lora {}: there is no model that it could belong to", first.name))?;
        for lora in &self.lora.lora {
            let is_known = self.configs.iter().any(|config| config.name() == lora.name);
            if is_known || self.served_adapters().iter().any(|other| other.name == lora.name) {
                bail!("--lora {}: the name is in use already", lora.name);
            }
            self.with_adapters(|adapters| adapters.push((model.name().to_owned(), lora.clone())));
        }
        Ok(())
    }

    pub(super) fn with_adapters<T>(&self, change: impl FnOnce(&mut Vec<(String, Lora)>) -> T) -> T {
        change(&mut self.adapters.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Those of a model.
    pub(super) fn adapters_of(&self, model: &str) -> Vec<Lora> {
        let mine = |(of, lora): &(String, Lora)| (of == model).then(|| lora.clone());
        self.with_adapters(|adapters| adapters.iter().filter_map(mine).collect())
    }

    pub(super) fn served_adapters(&self) -> Vec<ServedAdapter> {
        let served = |(model, lora): &(String, Lora)| ServedAdapter {
            name: lora.name.clone(),
            model: model.clone(),
            path: lora.path.display().to_string(),
        };
        self.with_adapters(|adapters| adapters.iter().map(served).collect())
    }

    /// Open the files of one.
    pub(super) fn open_served(&self, name: &str) -> anyhow::Result<Adapter> {
        let find = |adapters: &mut Vec<(String, Lora)>| {
            adapters.iter().map(|(_, lora)| lora).find(|lora| lora.name == name).cloned()
        };
        let lora = self.with_adapters(find).with_context(|| format!("there is no adapter {name}"))?;
        load::adapter(&lora, load::access(&self.load.device))
    }

    pub(super) fn add_for_client(&self, adapter: ServedAdapter) -> server::Result<()> {
        let ServedAdapter { name, model, path } = adapter;
        // One that was there before, and comes back.
        let known = self.lora.lora.iter().find(|lora| lora.name == name && Path::new(&path) == lora.path);
        let lora = match (known, &self.lora_dir) {
            (Some(known), _) => known.clone(),
            (None, Some(folder)) => Lora { name, path: within(folder, &path)?, factor: 1.0 },
            (None, None) => {
                let message = "clients may load adapters only where the server was started with --lora-dir";
                return Err(ApiError::new(ErrorKind::Forbidden, message));
            }
        };
        self.with_adapters(|adapters| adapters.push((model, lora)));
        Ok(())
    }
}

/// A path within a folder, from there on or from the root.
fn within(folder: &Path, path: &str) -> server::Result<std::path::PathBuf> {
    let missing = |error: std::io::Error| {
        ApiError::new(ErrorKind::NotFound, format!("the adapter {path} cannot be opened: {error}"))
    };
    let folder = folder.canonicalize().map_err(missing)?;
    let found = folder.join(path).canonicalize();
    match found {
        Ok(found) if found.starts_with(&folder) => Ok(found),
        // What is elsewhere stays unknown.
        Ok(_) => {
            Err(ApiError::new(ErrorKind::Forbidden, format!("{path} is not in the folder of --lora-dir")))
        }
        Err(error) if Path::new(path).is_relative() => Err(missing(error)),
        Err(_) => {
            Err(ApiError::new(ErrorKind::Forbidden, format!("{path} is not in the folder of --lora-dir")))
        }
    }
}
