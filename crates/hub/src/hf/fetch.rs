//! Fetches a model from the hub: finds its files, fetches the missing ones, returns the path.

use std::path::PathBuf;

use ureq::http::Method;

use crate::cache::Cache;
use crate::choose::{Want, choose, choose_file, choose_named, shards_of};
use crate::error::{Error, Result};
use crate::fetched::Fetched;
use crate::files::join;
use crate::hf::file_info::FileInfo;
use crate::hf::listing::Listing;
use crate::hf::store::RepoStore;
use crate::http::{ANSWER_MAX, Answer, Client};
use crate::names;
use crate::options::Options;
use crate::progress::Progress;
use crate::reference::HubRef;
use crate::towers;

/// A running fetch from the hub.
pub(crate) struct Hub<'a> {
    pub(super) client: Client,
    pub(super) progress: &'a mut dyn Progress,
    pub(super) retries: u32,
    cache: &'a Cache,
    offline: bool,
    towers: bool,
    /// The requested model, for error messages.
    pub(super) asked: HubRef,
}

/// The files that the hub has for a reference.
struct Plan {
    commit: String,
    want: Want,
    /// The model's image encoder, if it has one and the options allow it.
    tower: Option<String>,
    /// The first file's description, if it has been requested.
    first: Option<FileInfo>,
}

impl<'a> Hub<'a> {
    /// Creates a fetch of `asked`, without a request.
    pub(crate) fn new(
        asked: &HubRef,
        cache: &'a Cache,
        options: &Options,
        progress: &'a mut dyn Progress,
    ) -> Result<Self> {
        Ok(Self {
            client: Client::new(options)?,
            progress,
            retries: options.retries,
            cache,
            offline: options.offline,
            towers: options.towers,
            asked: asked.clone(),
        })
    }

    /// Fetches the model; returns the path to load: a file (for a split model its first part) or a
    /// folder.
    ///
    /// A branch or tag is resolved each time. If the hub cannot be reached, the last known commit
    /// is used. A commit that is complete in the cache needs no request. With `sha256`, files in
    /// the cache are checked, too.
    pub(crate) fn fetch(&mut self, sha256: Option<&str>) -> Result<PathBuf> {
        let store = RepoStore::new(self.cache.hub(), &self.asked.repo);
        let cached = if sha256.is_some() { None } else { cached(&self.asked, self.cache) };
        if let Some((path, _)) = &cached
            && (self.asked.file.is_some() || self.asked.quant.is_some())
            && names::is_full_commit(self.asked.revision())
        {
            return Ok(path.clone());
        }
        if self.offline {
            return cached
                .map(|(path, _)| path)
                .ok_or_else(|| Error::Offline { what: self.asked.to_string() });
        }
        // With a cached copy, one try is enough to detect that there is no network.
        let retries = if cached.is_some() { 0 } else { self.retries };
        // A catalog model with a hash is a single file; its other files would be in the catalog.
        self.towers &= sha256.is_none();
        let plan = match (self.plan(retries), cached) {
            (Err(error), Some((path, commit))) if error.is_transient() => {
                let commit = commit.get(..7).unwrap_or(&commit).to_string();
                self.progress
                    .note(&format!("{error}; using the copy of {} in the cache ({commit})", self.asked));
                return Ok(path);
            }
            (plan, _) => plan?,
        };
        let path = self.gather(&store, &plan, sha256)?;
        store.remember(self.asked.revision(), &plan.commit)?;
        Ok(path)
    }

    /// Requests the commit of the reference and the files of the model.
    fn plan(&mut self, retries: u32) -> Result<Plan> {
        let asked = self.asked.clone();
        if let Some(want) = asked.file.as_deref().and_then(choose_named) {
            let want = want?;
            let Some(first) = first_file(&want) else {
                return Err(Error::NotFound { what: asked.to_string(), choices: Vec::new() });
            };
            return match self.describe(asked.revision(), first, retries) {
                Ok(info) => {
                    let tower = self.tower_of_named(first, &info.commit);
                    Ok(Plan { commit: info.commit.clone(), want, tower, first: Some(info) })
                }
                // The name is probably mistyped, so the error lists the files that exist.
                Err(Error::NotFound { what, choices }) if choices.is_empty() => {
                    let files = self.listing(0).map(|listing| listing.files).unwrap_or_default();
                    match choose_file(&asked.repo, &files, Some(first)) {
                        Err(Error::NotFound { choices, .. }) => Err(Error::NotFound { what, choices }),
                        _ => Err(Error::NotFound { what, choices: Vec::new() }),
                    }
                }
                Err(error) => Err(error),
            };
        }
        let listing = self.listing(retries)?;
        let want = choose(&asked, &listing.files)?;
        let tower = match &want {
            Want::Files(files) => files.first().and_then(|first| towers::tower_of(first, &listing.files)),
            Want::Folder { .. } => None,
        };
        let tower = tower.filter(|_| self.towers).cloned();
        Ok(Plan { commit: listing.commit, want, tower, first: None })
    }

    /// The image encoder of a model whose file was named. It needs a listing, and a hub without one
    /// is no error.
    fn tower_of_named(&mut self, model: &str, commit: &str) -> Option<String> {
        let is_model = model.to_lowercase().ends_with(".gguf") && !towers::is_tower(model);
        if !self.towers || !is_model {
            return None;
        }
        let listing = self.listing(0).ok().filter(|listing| listing.commit == commit)?;
        towers::tower_of(model, &listing.files).cloned()
    }

    /// Fetches every missing file of the plan. The image encoder is first, so that a present model
    /// has its encoder.
    fn gather(&mut self, store: &RepoStore, plan: &Plan, sha256: Option<&str>) -> Result<PathBuf> {
        let snapshot = store.snapshot(&plan.commit);
        if let Some(tower) = &plan.tower {
            if !join(&snapshot, tower).is_file() {
                let note = format!(
                    "{tower} is fetched too: with it {} takes images (--no-mmproj leaves it out)",
                    self.asked
                );
                self.progress.note(&note);
            }
            self.file(store, &plan.commit, tower, None, None)?;
        }
        match &plan.want {
            Want::Files(files) => {
                // A hash of the whole file cannot check the parts of a split file.
                let sha256 = sha256.filter(|_| files.len() == 1);
                for (i, file) in files.iter().enumerate() {
                    let info = plan.first.clone().filter(|_| i == 0);
                    self.file(store, &plan.commit, file, info, sha256)?;
                }
            }
            Want::Folder { files, index } => {
                for file in files {
                    self.file(store, &plan.commit, file, None, None)?;
                }
                if let Some(index) = index {
                    let path = self.file(store, &plan.commit, index, None, None)?;
                    let length = std::fs::metadata(&path).map_err(|e| Error::io(&path, "reading", e))?.len();
                    if length > ANSWER_MAX {
                        let reason =
                            format!("it is {length} bytes long; an index may have at most {ANSWER_MAX}");
                        return Err(Error::BadAnswer { url: index.clone(), reason });
                    }
                    let bytes = std::fs::read(&path).map_err(|e| Error::io(&path, "reading", e))?;
                    for shard in shards_of(&bytes, &format!("{} of {}", index, self.asked.repo))? {
                        self.file(store, &plan.commit, &shard, None, None)?;
                    }
                }
            }
        }
        result(&snapshot, &plan.want)
            .ok_or_else(|| Error::NothingToLoad { repo: self.asked.repo.clone(), found: Vec::new() })
    }

    /// Fetches one file of a commit into its snapshot, unless the file exists.
    fn file(
        &mut self,
        store: &RepoStore,
        commit: &str,
        file: &str,
        info: Option<FileInfo>,
        sha256: Option<&str>,
    ) -> Result<PathBuf> {
        let path = join(&store.snapshot(commit), file);
        // A file of a commit never changes, so an existing file is right, unless the caller expects
        // a certain hash.
        if path.is_file() && sha256.is_none() {
            return Ok(path);
        }
        let info = match info {
            Some(info) => info,
            None => self.describe(commit, file, self.retries)?,
        };
        let url = self.resolve_url(commit, file);
        let is_fetched = self.download(store, &url, file, &info, sha256)?;
        let path = store.link(&info.etag, commit, file)?;
        let mut fetched = Fetched::of(self.cache, &self.asked.repo);
        if is_fetched || fetched.has_blob(store, &info.etag) {
            // The model works without the record; only clients of a server cannot delete it.
            if let Err(error) = fetched.add(store, &info.etag, commit, file) {
                self.progress.note(&error.to_string());
            }
        }
        Ok(path)
    }

    /// Requests the description of a file of a revision.
    fn describe(&mut self, revision: &str, file: &str, retries: u32) -> Result<FileInfo> {
        let url = self.resolve_url(revision, file);
        let (client, asked) = (&self.client, &self.asked);
        client.retrying(retries, &mut *self.progress, || {
            let answer = client.send(&Method::HEAD, &url, &[], true)?;
            match answer.status {
                200..=399 => FileInfo::of(&answer, revision),
                _ => Err(refusal(client, asked, answer, file)),
            }
        })
    }

    /// Requests the list of the repository's files.
    fn listing(&mut self, retries: u32) -> Result<Listing> {
        let (endpoint, repo) = (self.client.endpoint(), &self.asked.repo);
        let url = format!("{endpoint}/api/models/{repo}/revision/{}", names::encode(self.asked.revision()));
        let (client, asked) = (&self.client, &self.asked);
        client.retrying(retries, &mut *self.progress, || {
            let answer = client.send(&Method::GET, &url, &[], false)?;
            match answer.status {
                200 => Listing::parse(&answer.into_bytes(ANSWER_MAX)?, &url),
                _ => Err(refusal(client, asked, answer, "")),
            }
        })
    }

    /// The address of a file.
    fn resolve_url(&self, revision: &str, file: &str) -> String {
        let (endpoint, repo) = (self.client.endpoint(), &self.asked.repo);
        format!("{endpoint}/{repo}/resolve/{}/{}", names::encode(revision), names::encode_path(file))
    }
}

/// The path of a reference and its commit, if all its files are in the cache.
pub(crate) fn cached(asked: &HubRef, cache: &Cache) -> Option<(PathBuf, String)> {
    let store = RepoStore::new(cache.hub(), &asked.repo);
    let commit = store.commit_of(asked.revision())?;
    let files = store.files(&commit);
    let snapshot = store.snapshot(&commit);
    let want = choose(asked, &files).ok()?;
    if let Want::Folder { index: Some(index), .. } = &want {
        let shards = shards_of(&std::fs::read(join(&snapshot, index)).ok()?, index).ok()?;
        if !shards.iter().all(|shard| files.contains(shard)) {
            return None;
        }
    }
    Some((result(&snapshot, &want)?, commit))
}

/// The error for a status of the hub; `file` is empty if the whole repository was requested.
///
/// `X-Error-Code` separates cases with the same status: without a token, the hub answers 401 for
/// gated, private and nonexistent repositories.
pub(super) fn refusal(client: &Client, asked: &HubRef, answer: Answer, file: &str) -> Error {
    // Only the hub's own responses are about repositories. A 403 of another host means an expired
    // link.
    if !answer.from_hub {
        return answer.into_status_error();
    }
    let repo = asked.repo.clone();
    let code = answer.hub_header("x-error-code").unwrap_or_default();
    let not_found = |what: String| Error::NotFound { what, choices: Vec::new() };
    match (answer.status, code) {
        (_, "GatedRepo") => {
            let page = format!("{}/{repo}", client.endpoint());
            Error::Gated { repo, page, had_token: client.has_token() }
        }
        (_, "RevisionNotFound") => not_found(format!("revision {} of {repo}", asked.revision())),
        (404, "EntryNotFound") => not_found(format!("file {file} in {repo} at {}", asked.revision())),
        (404, "RepoNotFound") => not_found(format!("repository {repo}")),
        (401 | 403, _) => Error::Unauthorized { what: repo, had_token: client.has_token() },
        (404, _) if file.is_empty() => {
            not_found(format!("repository {repo} with revision {}", asked.revision()))
        }
        (404, _) => not_found(format!("file {file} in {repo} at {}", asked.revision())),
        _ => answer.into_status_error(),
    }
}

fn first_file(want: &Want) -> Option<&str> {
    match want {
        Want::Files(files) | Want::Folder { files, .. } => files.first().map(String::as_str),
    }
}

/// The path to load: the first file, or the folder.
fn result(snapshot: &std::path::Path, want: &Want) -> Option<PathBuf> {
    match want {
        Want::Files(files) => files.first().map(|file| join(snapshot, file)),
        Want::Folder { .. } => Some(snapshot.to_path_buf()),
    }
}
