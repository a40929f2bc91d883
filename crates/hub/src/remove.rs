//! Removing models from the cache.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::cache::Cache;
use crate::catalog::{Catalog, Entry, slug};
use crate::choose::{Want, choose_named, models_of};
use crate::error::{Error, Result};
use crate::fetched::Fetched;
use crate::files::{files_in, join};
use crate::hf::RepoStore;
use crate::list::{folders_in, list, refs_of};
use crate::lock::Lock;
use crate::names;
use crate::reference::{HubRef, ModelRef};
use crate::towers;

/// Removes a model; returns the freed bytes. If a hub reference names no file, the whole repository
/// is removed; with a revision, only that revision.
///
/// # Errors
/// [`Error::NotInstalled`] if the model is not in the cache, [`Error::NotOurs`] for a path,
/// [`Error::Io`] and similar errors of files.
pub fn remove(reference: &ModelRef, cache: &Cache) -> Result<u64> {
    remove_of(reference, cache, Whose::Anyones)
}

/// Like [`remove`], but only for files that Ingle fetched: other programs share the hub's cache.
///
/// # Errors
/// The errors of [`remove`], and [`Error::NotFetched`] if a file of the model is not in Ingle's
/// record. Nothing is removed then.
pub fn remove_fetched(reference: &ModelRef, cache: &Cache) -> Result<u64> {
    remove_of(reference, cache, Whose::Ingles)
}

/// Owners of the files in the hub's cache that may be removed. Ingle's own folder has no other
/// owner.
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
                        // The files from wheels were Ingle's, and they are removed.
                        Err(Error::NotFetched { .. }) if freed.is_some() => {}
                        of_hub => freed = add(freed, of_hub?),
                    }
                }
                freed
            }
            Ok(Entry::Public(model)) => remove_hub(&model.place, cache, whose)?,
            // The model is from wheels of another catalog.
            Err(_) => remove_wheels(name, &cache.wheel_folder(name), cache)?,
        },
    };
    match freed {
        Some(bytes) => Ok(bytes),
        None => Err(Error::NotInstalled {
            name: reference.to_string(),
            // A model may be listed twice, also under a former name.
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

/// Removes a model from wheels; returns the freed bytes, or `None` if there is no such model.
fn remove_wheels(name: &str, folder: &Path, cache: &Cache) -> Result<Option<u64>> {
    let slug = slug(name);
    if !names::is_component(&slug) || !folder.is_dir() {
        return Ok(None);
    }
    // A running fetch must finish first.
    let _lock = Lock::acquire(&cache.wheel_lock(name), || {})?;
    let bytes = disk_use(folder);
    fs::remove_dir_all(folder).map_err(|e| Error::io(folder, "removing", e))?;
    Ok(Some(bytes))
}

/// Removes a model of the hub; returns the freed bytes, or `None` if there is no such model.
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
        let path = join(&store.snapshot(commit), file);
        let recorded = || fetched.blob_of(&store, commit, file).map(str::to_owned);
        blobs.extend(blob_of(&path).or_else(recorded));
        fs::remove_file(&path).map_err(|e| Error::io(&path, "removing", e))?;
    }
    remove_unused(&store, &blobs, whose)?;
    fetched.forget_removed(&store)?;
    Ok(Some(before.saturating_sub(disk_use(store.folder()))))
}

/// The files of a model in all snapshots of the reference, as commits and files.
fn to_remove(place: &HubRef, store: &RepoStore) -> Result<Vec<(String, String)>> {
    let commits: Vec<String> = match &place.revision {
        Some(revision) => store.commit_of(revision).into_iter().collect(),
        None => folders_in(&store.snapshots())?.into_iter().map(|(commit, _)| commit).collect(),
    };
    let named = match place.file.as_deref().and_then(choose_named) {
        Some(Ok(Want::Files(files))) => Some(files),
        _ => None,
    };
    let is_named = |file: &String| match (&named, &place.quant) {
        (Some(named), _) => named.contains(file),
        (None, Some(quant)) => names::has_quant(file, quant) && !towers::is_tower(file),
        (None, None) => true,
    };
    let mut removed = Vec::new();
    for commit in commits {
        let files = store.files(&commit);
        let (gone, left): (Vec<String>, Vec<String>) = files.iter().cloned().partition(is_named);
        // An image encoder is removed with the last model that uses it.
        let used: Vec<_> =
            models_of(&left).iter().filter_map(|model| towers::tower_of(model, &left).cloned()).collect();
        let freed =
            models_of(&gone).into_iter().filter_map(|model| towers::tower_of(&model, &files).cloned());
        let freed: BTreeSet<String> = freed.filter(|tower| !used.contains(tower)).collect();
        let towers = freed.into_iter().filter(|tower| left.contains(tower));
        removed.extend(gone.iter().cloned().chain(towers).map(|file| (commit.clone(), file)));
    }
    Ok(removed)
}

/// Removes the `blobs` that no snapshot links to any more, and empty folders.
fn remove_unused(store: &RepoStore, blobs: &BTreeSet<String>, whose: Whose) -> Result<()> {
    let mut used = BTreeSet::new();
    let mut kept = BTreeSet::new();
    for (commit, snapshot) in folders_in(&store.snapshots())? {
        let files = store.files(&commit);
        used.extend(files.iter().filter_map(|file| blob_of(&join(&snapshot, file))));
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
            let path = join(&store.refs(), &revision);
            fs::remove_file(&path).map_err(|e| Error::io(&path, "removing", e))?;
        }
    }
    // Another program may be fetching into the folder, so it is removed only if it has no file.
    if kept.is_empty() && files_in(store.folder()).is_empty() {
        remove_folder(store.folder())?;
        remove_folder(store.locks())?;
    }
    Ok(())
}

/// The blob that a file of a snapshot links to. `None` for a file that is not a link, on file
/// systems without links; its blob is removed with the repository.
fn blob_of(path: &Path) -> Option<String> {
    Some(fs::read_link(path).ok()?.file_name()?.to_string_lossy().into_owned())
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
