//! Listing and removing models in the cache.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::Serialize;

use crate::cache::Cache;
use crate::catalog::{Catalog, Entry, slug};
use crate::error::{Error, Result};
use crate::fetched::Fetched;
use crate::hf::{self, RepoStore, Want};
use crate::lock::Lock;
use crate::reference::{HubRef, ModelRef};
use crate::towers;

/// A model in the cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Installed {
    /// What to type to use or remove it.
    pub name: String,
    /// The file (for a split model its first part) or folder to load.
    pub path: PathBuf,
    /// Length of all its files, in bytes.
    pub bytes: u64,
    /// Where it came from: packages, or a repository at a commit.
    pub source: String,
    /// When it was fetched.
    pub modified: SystemTime,
}

/// All models in the cache, by name. Files in the hub's cache that are not models are omitted.
///
/// # Errors
/// [`Error::Io`] and its kin when a folder exists but cannot be read.
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
                    companions.chain([model.file.as_str()]).map(|file| hf::join(&path, file)).collect()
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

/// The model in the cache that a reference means; a file of this machine and another program's model
/// are not in it.
///
/// # Errors
/// As [`list`].
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

/// Removes a model, and returns how many bytes that freed. If a hub reference names no file, the
/// whole repository is removed; with a revision, only that revision.
///
/// # Errors
/// [`Error::NotInstalled`] when it is not in the cache, [`Error::NotOurs`] for a path,
/// [`Error::Io`] and its kin.
pub fn remove(reference: &ModelRef, cache: &Cache) -> Result<u64> {
    remove_of(reference, cache, Whose::Anyones)
}

/// As [`remove`], but only of what Ingle fetched: the hub's cache is shared with other programs.
///
/// # Errors
/// As [`remove`], and [`Error::NotFetched`] when a file of the model is not in Ingle's record; then nothing of it is removed.
pub fn remove_fetched(reference: &ModelRef, cache: &Cache) -> Result<u64> {
    remove_of(reference, cache, Whose::Ingles)
}

/// Whose files of the hub's cache are removed. Ingle's own folder holds nothing of others.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    Anyones,
    Ingles,
}

fn remove_of(reference: &ModelRef, cache: &Cache, whose: Whose) -> Result<u64> {
    let freed = match reference {
        ModelRef::Path(path) => return Err(Error::NotOurs { path: path.clone() }),
        ModelRef::Hub(place) => remove_hub(place, cache, whose)?,
        ModelRef::Store(place) => {
            return Err(Error::NotOurStore { name: place.name.clone(), program: place.program });
        }
        ModelRef::Catalog(name) => match Catalog::builtin()?.find(name) {
            Ok(Entry::Pinned(model)) => {
                let mut freed = remove_wheels(&model.name, &cache.folder_of(model), cache)?;
                for place in model.sources.iter().filter_map(|source| source.hub_ref()) {
                    match remove_hub(&place, cache, whose) {
                        // What was removed is what Ingle fetched.
                        Err(Error::NotFetched { .. }) if freed.is_some() => {}
                        of_hub => freed = add(freed, of_hub?),
                    }
                }
                freed
            }
            Ok(Entry::Public(model)) => remove_hub(&model.place, cache, whose)?,
            // A model of another catalog, from wheels.
            Err(_) => remove_wheels(name, &cache.wheel_folder(name), cache)?,
        },
    };
    match freed {
        Some(bytes) => Ok(bytes),
        None => Err(Error::NotInstalled {
            name: reference.to_string(),
            // A model may be there twice, under a former name.
            installed: BTreeSet::from_iter(list(cache)?.into_iter().map(|model| model.name))
                .into_iter()
                .collect(),
        }),
    }
}

fn add(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (None, None) => None,
        _ => Some(a.unwrap_or(0) + b.unwrap_or(0)),
    }
}

/// `None` when there was nothing to remove.
fn remove_wheels(name: &str, folder: &Path, cache: &Cache) -> Result<Option<u64>> {
    let slug = slug(name);
    if !crate::names::is_component(&slug) || !folder.is_dir() {
        return Ok(None);
    }
    // Wait for a fetch in progress to finish.
    let _lock = Lock::acquire(&cache.wheel_lock(name), || {})?;
    let bytes = disk_use(folder);
    fs::remove_dir_all(folder).map_err(|e| Error::io(folder, "removing", e))?;
    Ok(Some(bytes))
}

/// `None` when there was nothing to remove.
fn remove_hub(place: &HubRef, cache: &Cache, whose: Whose) -> Result<Option<u64>> {
    let fetched = Fetched::of(cache, &place.repo);
    let store = RepoStore::new(cache.hub(), &place.repo);
    if !store.folder().is_dir() {
        return Ok(None);
    }
    let before = disk_use(store.folder());
    let is_whole = place.file.is_none() && place.quant.is_none() && place.revision.is_none();
    if is_whole && whose == Whose::Anyones {
        remove_folder(store.folder())?;
        remove_folder(store.locks())?;
        fetched.forget_removed(&store)?;
        return Ok(Some(before));
    }
    let removed = to_remove(place, &store)?;
    if removed.is_empty() {
        return Ok(None);
    }
    if whose == Whose::Ingles
        && let Some((_, file)) =
            removed.iter().find(|(commit, file)| fetched.blob_of(&store, commit, file).is_none())
    {
        return Err(Error::NotFetched { name: place.to_string(), file: file.clone() });
    }
    let mut blobs = BTreeSet::new();
    for (commit, file) in &removed {
        let path = hf::join(&store.snapshot(commit), file);
        let recorded = || fetched.blob_of(&store, commit, file).map(str::to_owned);
        blobs.extend(blob_of(&path).or_else(recorded));
        fs::remove_file(&path).map_err(|e| Error::io(&path, "removing", e))?;
    }
    remove_unused(&store, &blobs, whose)?;
    fetched.forget_removed(&store)?;
    Ok(Some(before.saturating_sub(disk_use(store.folder()))))
}

/// The files of a model in all snapshots that the reference means: commits and files.
fn to_remove(place: &HubRef, store: &RepoStore) -> Result<Vec<(String, String)>> {
    let commits: Vec<String> = match &place.revision {
        Some(revision) => store.commit_of(revision).into_iter().collect(),
        None => folders_in(&store.snapshots())?.into_iter().map(|(commit, _)| commit).collect(),
    };
    let named = match place.file.as_deref().and_then(hf::choose_named) {
        Some(Ok(Want::Files(files))) => Some(files),
        _ => None,
    };
    let is_named = |file: &String| match (&named, &place.quant) {
        (Some(named), _) => named.contains(file),
        (None, Some(quant)) => crate::names::has_quant(file, quant) && !towers::is_tower(file),
        (None, None) => true,
    };
    let mut removed = Vec::new();
    for commit in commits {
        let files = store.files(&commit);
        let (gone, left): (Vec<String>, Vec<String>) = files.iter().cloned().partition(is_named);
        // A tower goes with the last model that has it.
        let used: Vec<_> =
            hf::models_of(&left).iter().filter_map(|model| towers::tower_of(model, &left).cloned()).collect();
        let freed =
            hf::models_of(&gone).into_iter().filter_map(|model| towers::tower_of(&model, &files).cloned());
        let freed: BTreeSet<String> = freed.filter(|tower| !used.contains(tower)).collect();
        let towers = freed.into_iter().filter(|tower| left.contains(tower));
        removed.extend(gone.iter().cloned().chain(towers).map(|file| (commit.clone(), file)));
    }
    Ok(removed)
}

/// Removes those of `blobs` that no snapshot links to any more, and folders that became empty.
fn remove_unused(store: &RepoStore, blobs: &BTreeSet<String>, whose: Whose) -> Result<()> {
    let mut used = BTreeSet::new();
    let mut kept = BTreeSet::new();
    for (commit, snapshot) in folders_in(&store.snapshots())? {
        let files = store.files(&commit);
        used.extend(files.iter().filter_map(|file| blob_of(&hf::join(&snapshot, file))));
        if files.is_empty() {
            remove_folder(&snapshot)?;
        } else {
            kept.insert(commit);
        }
    }
    if kept.is_empty() && whose == Whose::Anyones {
        remove_folder(store.folder())?;
        return remove_folder(store.locks());
    }
    for blob in blobs.difference(&used) {
        let path = store.blob(blob);
        match fs::remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::io(&path, "removing", e));
            }
            _ => {}
        }
    }
    for (revision, commit) in refs_of(store) {
        if !kept.contains(&commit) {
            let path = hf::join(&store.refs(), &revision);
            fs::remove_file(&path).map_err(|e| Error::io(&path, "removing", e))?;
        }
    }
    // Another program may be fetching into it.
    if kept.is_empty() && hf::files_in(store.folder()).is_empty() {
        remove_folder(store.folder())?;
        remove_folder(store.locks())?;
    }
    Ok(())
}

/// The blob that a file of a snapshot links to. `None` for a file that is not a link (on file
/// systems without links): its blob is removed with the repository.
fn blob_of(path: &Path) -> Option<String> {
    Some(fs::read_link(path).ok()?.file_name()?.to_string_lossy().into_owned())
}

/// Every recorded revision, with its commit.
fn refs_of(store: &RepoStore) -> Vec<(String, String)> {
    let names = hf::files_in(&store.refs());
    names.into_iter().filter_map(|name| store.commit_of(&name).map(|commit| (name, commit))).collect()
}

/// One row for each GGUF model, and one for safetensors, in each snapshot.
fn list_repo(store: &RepoStore, repo: &str, installed: &mut Vec<Installed>) -> Result<()> {
    let mut revisions: BTreeMap<String, String> = BTreeMap::new();
    for (revision, commit) in refs_of(store) {
        // Among several names for a commit, prefer the default, which need not be typed.
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
        for first in hf::models_of(&files) {
            if let Ok(Want::Files(parts)) = hf::choose_file(repo, &files, Some(&first)) {
                let tower = towers::tower_of(&first, &files);
                let paths: Vec<_> = parts.iter().chain(tower).map(|part| hf::join(&snapshot, part)).collect();
                let name = reference(Some(first.clone())).to_string();
                installed.extend(row(name, hf::join(&snapshot, &first), &paths, source.clone()));
            }
        }
        if let Ok(Want::Folder { .. }) = hf::choose_file(repo, &files, Some("config.json")) {
            let others = files.iter().filter(|file| !file.ends_with(".gguf"));
            let paths: Vec<_> = others.map(|file| hf::join(&snapshot, file)).collect();
            let only = hf::models_of(&files).is_empty();
            let name = reference((!only).then(|| "config.json".to_string())).to_string();
            installed.extend(row(name, snapshot.clone(), &paths, source.clone()));
        }
    }
    Ok(())
}

/// `None` if the files have been removed in the meantime.
pub(crate) fn row(name: String, path: PathBuf, files: &[PathBuf], source: String) -> Option<Installed> {
    let metas: Vec<_> = files.iter().filter_map(|file| fs::metadata(file).ok()).collect();
    let modified = metas.iter().filter_map(|meta| meta.modified().ok()).max()?;
    Some(Installed { name, path, bytes: metas.iter().map(fs::Metadata::len).sum(), source, modified })
}

/// Name and path of the folders in a folder, sorted; empty if it does not exist.
fn folders_in(folder: &Path) -> Result<Vec<(String, PathBuf)>> {
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

/// Bytes of all files below a folder; links count as 0.
fn disk_use(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes = entries.map(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => disk_use(&entry.path()),
        Ok(kind) if kind.is_file() => entry.metadata().map_or(0, |meta| meta.len()),
        _ => 0,
    });
    bytes.sum()
}

/// Removes a folder that may not exist.
fn remove_folder(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io(folder, "removing", e)),
        _ => Ok(()),
    }
}
