//! Downloads one file of the hub into `blobs/` and checks its hash.

use std::fs;

use crate::digest::file_sha256;
use crate::download::{Download, Remote};
use crate::error::{Error, Result};
use crate::files::{make_folder_of, replace};
use crate::hf::fetch::{Hub, refusal};
use crate::hf::file_info::FileInfo;
use crate::hf::store::RepoStore;
use crate::lock::Lock;

impl Hub<'_> {
    /// Fetches the file's bytes into `blobs/`, unless they are present and right; returns true if
    /// it fetched them. `name` is for messages, `file` is the path in the repository, and `sha256`
    /// is a hash that the caller knows.
    pub(crate) fn download(
        &mut self,
        store: &RepoStore,
        url: &str,
        file: &str,
        info: &FileInfo,
        sha256: Option<&str>,
    ) -> Result<bool> {
        if let (Some(expected), Some(found)) = (sha256, info.sha256())
            && expected != found
        {
            let (found, expected) = (found.to_string(), expected.to_string());
            return Err(Error::HashMismatch { name: file.to_string(), found, expected });
        }
        let blob = store.blob(&info.etag);
        make_folder_of(&blob)?;
        let progress = &mut *self.progress;
        let _lock = Lock::acquire(&store.lock(&info.etag), || {
            progress.note(&format!("{file}: another process is fetching it; waiting"));
        })?;
        if let Ok(meta) = fs::metadata(&blob) {
            if info.size.is_none_or(|size| size == meta.len()) {
                return self.check_known(&blob, file, info, sha256).map(|()| false);
            }
            fs::remove_file(&blob).map_err(|e| Error::io(&blob, "removing a file of the wrong length", e))?;
        }

        let path = store.incomplete(&info.etag);
        let refused = |answer| refusal(&self.client, &self.asked, answer, file);
        let remote = Remote {
            url,
            name: file,
            size: info.size,
            sha256: info.sha256().or(sha256),
            etag: info.sha256().is_none().then_some(info.etag.as_str()),
            refused: &refused,
        };
        Download { client: &self.client, progress, retries: self.retries, remote }.run(&path)?;
        replace(&path, &blob)?;
        self.progress.finish();
        Ok(true)
    }

    /// Checks a blob that already exists. Its name is its hash, unless the hub named it by
    /// something else; then it is hashed if the caller knows a hash.
    fn check_known(
        &mut self,
        blob: &std::path::Path,
        file: &str,
        info: &FileInfo,
        sha256: Option<&str>,
    ) -> Result<()> {
        let Some(expected) = sha256.filter(|_| info.sha256().is_none()) else {
            return Ok(());
        };
        let found = file_sha256(blob)?;
        if found == expected {
            return Ok(());
        }
        fs::remove_file(blob).map_err(|e| Error::io(blob, "removing a file with the wrong hash", e))?;
        Err(Error::HashMismatch { name: file.to_string(), found, expected: expected.to_string() })
    }
}
