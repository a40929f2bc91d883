//! Listing the models in the cache.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::cache::Cache;
use crate::catalog::{Catalog, slug};
use crate::choose::{Want, choose_file, models_of};
use crate::error::{Error, Result};
use crate::files::{files_in, join};
use crate::hf::{self, RepoStore};
use crate::installed::{Installed, row};
use crate::reference::{HubRef, ModelRef};
use crate::towers;

/// All models in the cache, by name. Files in the hub's cache that are not models are omitted.
///
/// # Errors
/// [`Error::Io`] and similar errors if a folder exists but cannot be read.
pub fn list(cache: &Cache) -> Result<Vec<Installed>> {
    let mut installed = Vec::new();
    let catalog = Catalog::builtin()?;
    for (folder, path) in folders_in(&cache.wheels())? {
        let model = catalog
            .models()
            .iter()
            .find(|model| std::iter::once(&model.name).chain(&model.former).any(|name| slug(name) == folder));
        let file = fs::read_dir(&path)
            .map_err(|e| Error::io(&path, "reading the folder", e))?
            .flatten()
            .find(|entry| entry.metadata().is_ok_and(|meta| meta.is_file()));
        if let Some(entry) = file {
            let name = model.map_or(folder, |model| model.name.clone());
            let source =
                model.and_then(|model| model.sources.first()).map_or("wheel".into(), ToString::to_string);
            let paths: Vec<PathBuf> = match model {
                Some(model) if !model.companions.is_empty() => {
                    let companions = model.companions.iter().map(|companion| companion.file.as_str());
                    companions.chain([model.file.as_str()]).map(|file| join(&path, file)).collect()
                }
                _ => vec![entry.path()],
            };
            let place = if paths.len() > 1 { path } else { entry.path() };
            installed.extend(row(name, place, &paths, source));
        }
    }
    for (folder, _) in folders_in(cache.hub())? {
        if let Some(repo) = RepoStore::repo_of(&folder) {
            list_repo(&RepoStore::new(cache.hub(), &repo), &repo, &mut installed)?;
        }
    }
    installed.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(installed)
}

/// The model of a reference in the cache. A path and a model of another program are never in the
/// cache.
///
/// # Errors
/// The errors of [`list`].
pub fn find(reference: &ModelRef, cache: &Cache) -> Result<Option<Installed>> {
    let mut listed = list(cache)?.into_iter();
    Ok(match reference {
        ModelRef::Hub(place) => {
            let path = hf::cached(place, cache).map(|(path, _)| path);
            listed.find(|model| Some(&model.path) == path.as_ref())
        }
        ModelRef::Catalog(name) => listed.find(|model| model.name == *name),
        ModelRef::Path(_) | ModelRef::Store(_) => None,
    })
}

/// Every recorded revision, with its commit.
pub(crate) fn refs_of(store: &RepoStore) -> Vec<(String, String)> {
    let names = files_in(&store.refs());
    names.into_iter().filter_map(|name| store.commit_of(&name).map(|commit| (name, commit))).collect()
}

/// One row for each GGUF model, and one for safetensors, in each snapshot.
fn list_repo(store: &RepoStore, repo: &str, installed: &mut Vec<Installed>) -> Result<()> {
    let mut revisions: BTreeMap<String, String> = BTreeMap::new();
    for (revision, commit) in refs_of(store) {
        // The default name of a commit is preferred to others, because it need not be typed.
        let entry = revisions.entry(commit).or_insert_with(|| revision.clone());
        if revision == "main" {
            *entry = revision;
        }
    }
    for (commit, snapshot) in folders_in(&store.snapshots())? {
        let files = store.files(&commit);
        let revision = revisions.get(&commit).cloned().unwrap_or_else(|| commit.clone());
        let source = format!("hub {repo} at {}", commit.get(..7).unwrap_or(&commit));
        let reference = |file: Option<String>| HubRef {
            repo: repo.to_string(),
            file,
            quant: None,
            revision: Some(revision.clone()).filter(|revision| revision != "main"),
        };
        for first in models_of(&files) {
            if let Ok(Want::Files(parts)) = choose_file(repo, &files, Some(&first)) {
                let tower = towers::tower_of(&first, &files);
                let paths: Vec<_> = parts.iter().chain(tower).map(|part| join(&snapshot, part)).collect();
                let name = reference(Some(first.clone())).to_string();
                installed.extend(row(name, join(&snapshot, &first), &paths, source.clone()));
            }
        }
        if let Ok(Want::Folder { .. }) = choose_file(repo, &files, Some("config.json")) {
            let others = files.iter().filter(|file| !file.ends_with(".gguf"));
            let paths: Vec<_> = others.map(|file| join(&snapshot, file)).collect();
            let only = models_of(&files).is_empty();
            let name = reference((!only).then(|| "config.json".to_string())).to_string();
            installed.extend(row(name, snapshot.clone(), &paths, source.clone()));
        }
    }
    Ok(())
}

/// Name and path of the folders in a folder, sorted; empty if it does not exist.
pub(crate) fn folders_in(folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(Error::io(folder, "reading the folder", e)),
    };
    let mut folders: Vec<(String, PathBuf)> = entries
        .flatten()
        .filter(|entry| entry.path().is_dir())
        .filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
        .collect();
    folders.sort();
    Ok(folders)
}
