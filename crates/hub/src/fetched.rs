//! Records of the files in the hub's cache that Ingle fetched. Other programs share that cache, and
//! a client of the server may not remove their files.
//!
//! `<root>/fetched/models--<org>--<repo>` has one line for each file. Tabs separate its parts: the
//! time at which the bytes were written (nanoseconds of Unix time), the name of the blob, and
//! `commit/file`. If another program replaces a file, its time changes, and it no longer counts as
//! Ingle's.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::files::{join, make_folder_of, replace};
use crate::hf::RepoStore;

/// The record of one repository.
pub(crate) struct Fetched {
    file: PathBuf,
    lines: BTreeSet<String>,
}

impl Fetched {
    /// Reads the record of `repo` (`org/name`, checked), which is empty if the file is missing.
    pub(crate) fn of(cache: &Cache, repo: &str) -> Fetched {
        let name = RepoStore::folder_name(repo);
        let file = cache.root().join("fetched").join(name);
        let text = fs::read_to_string(&file).unwrap_or_default();
        Fetched { file, lines: text.lines().map(str::to_owned).collect() }
    }

    /// The blob of a snapshot's file, if the file is unchanged since Ingle fetched it.
    pub(crate) fn blob_of(&self, store: &RepoStore, commit: &str, file: &str) -> Option<&str> {
        let written = written(&join(&store.snapshot(commit), file))?;
        let (begin, end) = (format!("{written}\t"), format!("\t{commit}/{file}"));
        self.lines.iter().find_map(|line| line.strip_prefix(&begin)?.strip_suffix(&end))
    }

    /// True if a blob is unchanged since Ingle fetched it, for any commit.
    pub(crate) fn has_blob(&self, store: &RepoStore, etag: &str) -> bool {
        let begin = written(&store.blob(etag)).map(|written| format!("{written}\t{etag}\t"));
        begin.is_some_and(|begin| self.lines.iter().any(|line| line.starts_with(&begin)))
    }

    /// Records a file that Ingle has fetched.
    pub(crate) fn add(&mut self, store: &RepoStore, etag: &str, commit: &str, file: &str) -> Result<()> {
        let Some(written) = written(&join(&store.snapshot(commit), file)) else { return Ok(()) };
        let line = format!("{written}\t{etag}\t{commit}/{file}");
        if !self.lines.insert(line.clone()) {
            return Ok(());
        }
        make_folder_of(&self.file)?;
        // A single write keeps lines of concurrent processes apart.
        let added = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.file)
            .and_then(|mut out| out.write_all(format!("{line}\n").as_bytes()));
        added.map_err(|e| Error::io(&self.file, "recording a fetched file", e))
    }

    /// Removes the lines of files that no longer exist.
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

/// Time at which the bytes of a file were written, in nanoseconds of Unix time.
fn written(path: &Path) -> Option<u128> {
    let modified = fs::metadata(path).ok()?.modified().ok()?;
    Some(modified.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_nanos())
}
