//! Hugging Face's cache layout for one repository.
//!
//! ```text
//! models--<org>--<name>/
//!   blobs/<etag>                     a file, named by the ETag of the hub
//!   blobs/<etag>.incomplete          the received part of a file
//!   refs/<revision>                  the last known commit of a branch or tag
//!   snapshots/<commit>/<file>        a link to ../../blobs/<etag>
//! .locks/models--<org>--<name>/<etag>.lock
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::files::{beside, files_in, join, make_folder_of, replace};
use crate::names;

/// One repository in the cache.
pub(crate) struct RepoStore {
    folder: PathBuf,
    locks: PathBuf,
}

impl RepoStore {
    /// The repository `repo` (`org/name`, checked) in the hub cache at `hub`.
    pub(crate) fn new(hub: &Path, repo: &str) -> Self {
        let name = Self::folder_name(repo);
        Self { folder: hub.join(&name), locks: hub.join(".locks").join(name) }
    }

    /// The name of a repository's folder in the hub cache.
    pub(crate) fn folder_name(repo: &str) -> String {
        format!("models--{}", repo.replace('/', "--"))
    }

    /// The repository that a folder of the hub cache belongs to.
    pub(crate) fn repo_of(folder_name: &str) -> Option<String> {
        let (org, name) = folder_name.strip_prefix("models--")?.split_once("--")?;
        let repo = format!("{org}/{name}");
        names::is_repo(&repo).then_some(repo)
    }

    /// The repository's own folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder of the locks.
    pub(crate) fn locks(&self) -> &Path {
        &self.locks
    }

    /// The file of the bytes with this ETag.
    pub(crate) fn blob(&self, etag: &str) -> PathBuf {
        self.folder.join("blobs").join(etag)
    }

    /// The partial file of these bytes while they are downloaded.
    pub(crate) fn incomplete(&self, etag: &str) -> PathBuf {
        self.folder.join("blobs").join(format!("{etag}.incomplete"))
    }

    /// The lock to hold during the download.
    pub(crate) fn lock(&self, etag: &str) -> PathBuf {
        self.locks.join(format!("{etag}.lock"))
    }

    /// The folder of all snapshots.
    pub(crate) fn snapshots(&self) -> PathBuf {
        self.folder.join("snapshots")
    }

    /// The folder of the snapshot of a commit.
    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.snapshots().join(commit)
    }

    /// The folder of the refs.
    pub(crate) fn refs(&self) -> PathBuf {
        self.folder.join("refs")
    }

    /// The commit of a revision when it was last resolved. A full commit is its own.
    pub(crate) fn commit_of(&self, revision: &str) -> Option<String> {
        if names::is_full_commit(revision) {
            return Some(revision.to_string());
        }
        let text = fs::read_to_string(self.refs().join(revision)).ok()?;
        Some(text.trim().to_string()).filter(|commit| names::is_commit(commit))
    }

    /// Records the commit of a revision.
    pub(crate) fn remember(&self, revision: &str, commit: &str) -> Result<()> {
        if revision == commit || self.commit_of(revision).as_deref() == Some(commit) {
            return Ok(());
        }
        let path = self.refs().join(revision);
        make_folder_of(&path)?;
        let beside = beside(&path);
        fs::write(&beside, commit).map_err(|e| Error::io(&beside, "writing", e))?;
        replace(&beside, &path)
    }

    /// The files of a snapshot whose blobs exist, with `/` between folders.
    pub(crate) fn files(&self, commit: &str) -> Vec<String> {
        files_in(&self.snapshot(commit))
    }

    /// Adds a blob to a snapshot as `file`: as a symbolic link, else a hard link, else a copy.
    pub(crate) fn link(&self, etag: &str, commit: &str, file: &str) -> Result<PathBuf> {
        let path = join(&self.snapshot(commit), file);
        let blob = self.blob(etag);
        // Steps from the link's folder up to the repository's: one each for the commit,
        // `snapshots`, and the folders in `file`.
        let up = "../".repeat(2 + file.matches('/').count());
        let target = PathBuf::from(format!("{up}blobs/{etag}"));
        if fs::read_link(&path).is_ok_and(|old| old == target) && path.exists() {
            return Ok(path);
        }
        make_folder_of(&path)?;
        let beside = beside(&path);
        symlink(&target, &beside)
            .or_else(|_| fs::hard_link(&blob, &beside))
            .or_else(|_| fs::copy(&blob, &beside).map(|_| ()))
            .map_err(|e| Error::io(&path, "linking", e))?;
        replace(&beside, &path)?;
        Ok(path)
    }
}

#[cfg(unix)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(windows)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    // Windows resolves a relative link only if it is written with backslashes.
    let target: PathBuf = target.components().collect();
    std::os::windows::fs::symlink_file(target, link)
}

#[cfg(not(any(unix, windows)))]
fn symlink(_target: &Path, _link: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_the_blob_from_any_depth() {
        let hub = tempfile::tempdir().unwrap();
        let store = RepoStore::new(hub.path(), "org/name");
        let blob = store.blob("etag1");
        make_folder_of(&blob).unwrap();
        fs::write(&blob, "bytes").unwrap();
        for file in ["a.gguf", "x/y/b.gguf", "a.gguf"] {
            let path = store.link("etag1", "abc1234", file).unwrap();
            assert_eq!(fs::read_to_string(path).unwrap(), "bytes", "{file}");
        }
        assert_eq!(store.files("abc1234"), ["a.gguf", "x/y/b.gguf"]);
    }

    #[test]
    fn a_revision_is_remembered() {
        let hub = tempfile::tempdir().unwrap();
        let store = RepoStore::new(hub.path(), "org/name");
        assert_eq!(store.commit_of("main"), None);
        store.remember("refs/pr/1", "abc1234").unwrap();
        store.remember("refs/pr/1", "abc1235").unwrap();
        assert_eq!(store.commit_of("refs/pr/1").as_deref(), Some("abc1235"));
        fs::write(store.refs().join("bad"), "../../etc").unwrap();
        assert_eq!(store.commit_of("bad"), None);
    }

    #[test]
    fn folder_names_and_back() {
        assert_eq!(RepoStore::repo_of("models--org--a-b.c").as_deref(), Some("org/a-b.c"));
        for other in ["datasets--a--b", "models--gpt2", ".locks", "models--a--b--c"] {
            assert_eq!(RepoStore::repo_of(other), None, "{other}");
        }
    }
}
