//! Hugging Face's cache layout for one repository.
//!
//! ```text
//! models--<org>--<name>/
//!   blobs/<etag>                     a file's bytes, named by the ETag that the hub gives
//!   blobs/<etag>.incomplete          what was received so far
//!   refs/<revision>                  the commit that a branch or tag meant when last resolved
//!   snapshots/<commit>/<file>        a link to ../../blobs/<etag>
//! .locks/models--<org>--<name>/<etag>.lock
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};
use crate::names;

/// The maximum depth of folders searched inside a snapshot.
const DEPTH_MAX: usize = 8;

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

    /// The commit that a revision meant when last resolved; a full commit means itself.
    pub(crate) fn commit_of(&self, revision: &str) -> Option<String> {
        if names::is_full_commit(revision) {
            return Some(revision.to_string());
        }
        let text = fs::read_to_string(self.refs().join(revision)).ok()?;
        Some(text.trim().to_string()).filter(|commit| names::is_commit(commit))
    }

    /// Records what a revision currently means.
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

    /// Puts a blob into a snapshot as `file`: by a symbolic link, else a hard link, else a copy.
    pub(crate) fn link(&self, etag: &str, commit: &str, file: &str) -> Result<PathBuf> {
        let path = join(&self.snapshot(commit), file);
        let blob = self.blob(etag);
        // From the link's folder up to the repository's: one step each for the commit, snapshots,
        // and folders in `file`.
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

/// The files below a folder, dangling links excluded, with `/` between folders, sorted.
pub(crate) fn files_in(folder: &Path) -> Vec<String> {
    let mut files = Vec::new();
    walk(folder, "", DEPTH_MAX, &mut files);
    files.sort_unstable();
    files
}

/// `folder` joined with a relative path written with `/`.
pub(crate) fn join(folder: &Path, file: &str) -> PathBuf {
    file.split('/').fold(folder.to_path_buf(), |path, part| path.join(part))
}

/// Creates the folder of a file.
pub(crate) fn make_folder_of(path: &Path) -> Result<()> {
    match path.parent() {
        Some(folder) => fs::create_dir_all(folder).map_err(|e| Error::io(folder, "making the folder", e)),
        None => Ok(()),
    }
}

/// Moves a finished file to its final name atomically.
pub(crate) fn replace(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).map_err(|e| {
        // Remove the failed copy; the first error is the one to report.
        let _ = fs::remove_file(from);
        Error::io(to, "moving the file to its final name", e)
    })
}

/// A name beside `path` that no other process or thread uses.
fn beside(path: &Path) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    path.with_file_name(format!(".{name}.{}-{count}.tmp", std::process::id()))
}

fn walk(folder: &Path, prefix: &str, depth: usize, files: &mut Vec<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        if name.ends_with(".tmp") && name.starts_with('.') {
            continue;
        }
        let file = format!("{prefix}{name}");
        // Follow the link: a dangling one is a missing file.
        match fs::metadata(entry.path()) {
            Ok(meta) if meta.is_file() => files.push(file),
            Ok(meta) if meta.is_dir() && depth > 0 && !is_link(&entry.path()) => {
                walk(&entry.path(), &format!("{file}/"), depth - 1, files);
            }
            _ => {}
        }
    }
}

fn is_link(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_symlink())
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
