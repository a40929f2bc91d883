//! Which files of the hub's cache Ingle fetched itself: other programs share that folder, and theirs are not ours to remove for a
//! client of the server.
//!
//! `<root>/fetched/models--<org>--<repo>` has a line for each file, with tabs between its parts: when its bytes were written, in
//! nanoseconds of Unix time, the name of its blob, and `commit/file`. A file that another program has replaced since has another time, and is no longer ours.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::hf::{RepoStore, join, make_folder_of, replace};

/// The record of one repository.
pub(crate) struct Fetched {
    file: PathBuf,
    lines: BTreeSet<String>,
}

impl Fetched {
    /// What is recorded of `repo` (`org/name`, checked); nothing if there is no record.
    pub(crate) fn of(cache: &Cache, repo: &str) -> Fetched {
        let name = RepoStore::folder_name(repo);
        let file = cache.root().join("fetched").join(name);
        let text = fs::read_to_string(&file).unwrap_or_default();
        Fetched { file, lines: text.lines().map(str::to_owned).collect() }
    }

    /// The blob of a file of a snapshot that is as Ingle fetched it.
    pub(crate) fn blob_of(&self, store: &RepoStore, commit: &str, file: &str) -> Option<&str> {
        let written = written(&join(&store.snapshot(commit), file))?;
        let (begin, end) = (format!("{written}\t"), format!("\t{commit}/{file}"));
        self.lines.iter().find_map(|line| line.strip_prefix(&begin)?.strip_suffix(&end))
    }

    /// Whether a blob is as Ingle fetched it, for whichever commit.
    pub(crate) fn has_blob(&self, store: &RepoStore, etag: &str) -> bool {
        let begin = written(&store.blob(etag)).map(|written| format!("{written}\t{etag}\t"));
        begin.is_some_and(|begin| self.lines.iter().any(|line| line.starts_with(&begin)))
    }

    /// Record a file that Ingle has fetched.
    pub(crate) fn add(&mut self, store: &RepoStore, etag: &str, commit: &str, file: &str) -> Result<()> {
        let Some(written) = written(&join(&store.snapshot(commit), file)) else { return Ok(()) };
        let line = format!("{written}\t{etag}\t{commit}/{file}");
        if !self.lines.insert(line.clone()) {
            return Ok(());
        }
        make_folder_of(&self.file)?;
        // One write, so that lines of processes that fetch at once do not mix.
        let added = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.file)
            .and_then(|mut out| out.write_all(format!("{line}\n").as_bytes()));
        added.map_err(|e| Error::io(&self.file, "recording a fetched file", e))
    }

    /// Forget files that are no longer there.
    pub(crate) fn forget_removed(mut self, store: &RepoStore) -> Result<()> {
        let is_there = |line: &String| {
            let path = line.splitn(3, '\t').nth(2).and_then(|place| place.split_once('/'));
            path.is_some_and(|(commit, file)| join(&store.snapshot(commit), file).is_file())
        };
        let n_before = self.lines.len();
        self.lines.retain(is_there);
        match self.lines.len() {
            n if n == n_before => Ok(()),
            0 => fs::remove_file(&self.file).map_err(|e| Error::io(&self.file, "removing", e)),
            _ => {
                let text: String = self.lines.iter().map(|line| format!("{line}\n")).collect();
                let beside = self.file.with_extension(format!("{}.tmp", std::process::id()));
                fs::write(&beside, text).map_err(|e| Error::io(&beside, "writing", e))?;
                replace(&beside, &self.file)
            }
        }
    }
}

/// When the bytes of a file were written, in nanoseconds of Unix time.
fn written(path: &Path) -> Option<u128> {
    let modified = fs::metadata(path).ok()?.modified().ok()?;
    Some(modified.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_nanos())
}
