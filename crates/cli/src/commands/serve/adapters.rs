//! The adapters of a server's models, from the command line, and from `--lora-dir` by request of
//! clients.

use std::path::{Component, Path, PathBuf};
use std::sync::PoisonError;

use anyhow::{Context, bail};
use engine::Adapter;
use runner::{ErrorKind, RequestError, ServedAdapter};

use super::Serve;
use crate::args::Lora;

impl Serve {
    /// Adds the adapters of the command line to the first model.
    pub(super) fn name_adapters(&self) -> anyhow::Result<()> {
        let Some(first) = self.lora.lora.first() else { return Ok(()) };
        let model = self.configs.first().with_context(|| {
            format!("--lora {}: found no MODEL, expected one that the adapter belongs to", first.name)
        })?;
        for lora in &self.lora.lora {
            let is_known = self.configs.iter().any(|config| config.name() == lora.name);
            if is_known || self.served_adapters().iter().any(|other| other.name == lora.name) {
                bail!("--lora {}: the name is already in use", lora.name);
            }
            self.with_adapters(|adapters| adapters.push((model.name().to_owned(), lora.clone())));
        }
        Ok(())
    }

    pub(super) fn with_adapters<T>(&self, change: impl FnOnce(&mut Vec<(String, Lora)>) -> T) -> T {
        change(&mut self.adapters.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The adapters of a model.
    pub(super) fn adapters_of(&self, model: &str) -> Vec<Lora> {
        let mine = |(of, lora): &(String, Lora)| (of == model).then(|| lora.clone());
        self.with_adapters(|adapters| adapters.iter().filter_map(mine).collect())
    }

    pub(super) fn served_adapters(&self) -> Vec<ServedAdapter> {
        let served = |(model, lora): &(String, Lora)| ServedAdapter {
            name: lora.name.clone(),
            model: model.clone(),
            path: self.shown(&lora.path),
        };
        self.with_adapters(|adapters| adapters.iter().map(served).collect())
    }

    /// The path of an adapter that clients see: relative to `--lora-dir`, or else its file name.
    fn shown(&self, path: &Path) -> String {
        let folder = self.lora_dir.as_ref().and_then(|folder| folder.canonicalize().ok());
        let relative = folder.as_ref().and_then(|folder| path.strip_prefix(folder).ok());
        let name = || path.file_name().map(Path::new);
        relative.or_else(name).unwrap_or(path).display().to_string()
    }

    /// Opens the files of an adapter.
    pub(super) fn open_served(&self, name: &str) -> anyhow::Result<Adapter> {
        let find = |adapters: &mut Vec<(String, Lora)>| {
            adapters.iter().map(|(_, lora)| lora).find(|lora| lora.name == name).cloned()
        };
        let lora = self.with_adapters(find).with_context(|| format!("there is no adapter {name}"))?;
        Ok(ingle::direct::open_adapter(&lora.source(), self.load.device.access())?)
    }

    pub(super) fn add_for_client(&self, adapter: ServedAdapter) -> runner::Result<()> {
        let ServedAdapter { name, model, path } = adapter;
        // An adapter of the command line that was unloaded before.
        let known = self.lora.lora.iter().find(|lora| lora.name == name && path == self.shown(&lora.path));
        let lora = match (known, &self.lora_dir) {
            (Some(known), _) => known.clone(),
            (None, Some(folder)) => Lora { name, path: within(folder, &path)?, factor: 1.0 },
            (None, None) => {
                let message = "clients may load adapters only if the server was started with --lora-dir";
                return Err(RequestError::new(ErrorKind::Forbidden, message));
            }
        };
        self.with_adapters(|adapters| adapters.push((model, lora)));
        Ok(())
    }
}

/// A path within a folder, given relative to it or as an absolute path. A path outside the folder
/// gives the error of a missing file, and the file system is not read.
fn within(folder: &Path, path: &str) -> runner::Result<PathBuf> {
    let missing = || {
        let message = format!("there is no adapter {path:?} in the folder of --lora-dir");
        RequestError::new(ErrorKind::NotFound, message)
    };
    let real = folder.canonicalize().map_err(|error| {
        tracing::warn!("--lora-dir {}: {error}", folder.display());
        missing()
    })?;
    let given = Path::new(path);
    let relative = [folder, &real].into_iter().find_map(|folder| given.strip_prefix(folder).ok());
    let relative = relative.unwrap_or(given);
    let is_inside =
        relative.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    let found = is_inside.then(|| real.join(relative).canonicalize().ok()).flatten();
    // A symbolic link may leave the folder.
    found.filter(|found| found.starts_with(&real)).ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_outside_is_as_if_it_were_not_there() {
        let outer = tempfile::tempdir().unwrap();
        let folder = outer.path().join("lora");
        std::fs::create_dir_all(folder.join("a/b")).unwrap();
        std::fs::write(outer.path().join("keys"), "x").unwrap();
        std::fs::create_dir(outer.path().join("lora2")).unwrap();
        let real = folder.canonicalize().unwrap();
        for path in ["a", "a/b", "./a", folder.join("a").to_str().unwrap()] {
            assert!(within(&folder, path).unwrap().starts_with(&real), "{path}");
        }
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(outer.path().join("keys"), folder.join("link")).unwrap();
            std::os::unix::fs::symlink("circle", folder.join("circle")).unwrap();
        }
        let long = "x".repeat(5_000);
        let (there, not_there) = (outer.path().join("keys"), outer.path().join("nothing"));
        for path in [
            "../keys",
            "../nothing",
            "a/../../keys",
            "a/../a",
            "../lora2",
            "../lora/a",
            there.to_str().unwrap(),
            not_there.to_str().unwrap(),
            "/etc/passwd",
            "/root/.ssh/id_rsa",
            "link",
            "link/x",
            "circle",
            "missing",
            "a/missing",
            "a\0b",
            &long,
        ] {
            let error = within(&folder, path).unwrap_err();
            let message = format!("there is no adapter {path:?} in the folder of --lora-dir");
            assert_eq!(error.kind, ErrorKind::NotFound);
            // Messages shorten a long name.
            assert!(error.message == message || path.len() > 2_000, "{}", error.message);
        }
    }
}
