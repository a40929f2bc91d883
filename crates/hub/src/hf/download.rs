//! Downloads one file of the hub into `blobs/` and checks its hash.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};

use ureq::http::Method;

use crate::digest::{CHUNK, Hasher, file_sha256};
use crate::error::{Error, Result};
use crate::files::{make_folder_of, replace};
use crate::hf::fetch::Hub;
use crate::hf::file_info::FileInfo;
use crate::hf::store::RepoStore;
use crate::lock::Lock;

/// Received bytes after which a failed try does not count: the connection is slow or short-lived,
/// but works.
const HEADWAY: u64 = 1 << 20;

/// A partial download: the bytes on disk, and their hash.
struct Partial {
    file: File,
    have: u64,
    hasher: Hasher,
}

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
        let mut partial = Partial::open(&path, info.size).map_err(|e| Error::io(&path, "opening", e))?;
        self.progress.start(file, info.size);
        self.progress.advance(partial.have);
        let outcome = self.fill(&mut partial, url, file, info, &path);
        let Partial { file: handle, have, hasher } = partial;
        let checked = outcome.and_then(|()| {
            handle.sync_all().map_err(|e| Error::io(&path, "writing", e))?;
            let found = hasher.hex();
            match info.sha256().or(sha256) {
                Some(expected) if expected != found => {
                    Err(Error::HashMismatch { name: file.to_string(), found, expected: expected.to_string() })
                }
                _ => Ok(()),
            }
        });
        drop(handle);
        match checked {
            Ok(()) => {
                replace(&path, &blob)?;
                self.progress.finish();
                Ok(true)
            }
            Err(error) => {
                // A partial download can be resumed. Wrong or missing bytes cannot.
                if matches!(error, Error::HashMismatch { .. } | Error::SizeMismatch { .. }) || have == 0 {
                    let _ = fs::remove_file(&path);
                }
                Err(error)
            }
        }
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

    /// Fetches the missing bytes; resumes after interruptions until no progress is made.
    fn fill(
        &mut self,
        partial: &mut Partial,
        url: &str,
        file: &str,
        info: &FileInfo,
        path: &std::path::Path,
    ) -> Result<()> {
        let mut failures = 0;
        while info.size != Some(partial.have) {
            let before = partial.have;
            match self.attempt(partial, url, file, info, path) {
                Ok(()) => return Ok(()),
                Err(error) if error.is_transient() => {
                    if partial.have >= before.saturating_add(HEADWAY) {
                        failures = 0;
                    }
                    failures += 1;
                    if failures > self.retries {
                        return Err(error);
                    }
                    self.client.pause(failures, self.retries, &error, &mut *self.progress);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sends one request for the missing bytes. `Ok` if the file is then complete.
    fn attempt(
        &mut self,
        partial: &mut Partial,
        url: &str,
        file: &str,
        info: &FileInfo,
        path: &std::path::Path,
    ) -> Result<()> {
        let mut headers = Vec::new();
        if partial.have > 0 {
            headers.push(("Range", format!("bytes={}-", partial.have)));
            if info.sha256().is_none() {
                // Without a sha256, only `If-Range` shows that the rest belongs to another version.
                // With a sha256 it is not sent, because the host of a large file has its own ETags.
                headers.push(("If-Range", format!("\"{}\"", info.etag)));
            }
        }
        let answer = self.client.send(&Method::GET, url, &headers, false)?;
        let resumed = match answer.status {
            200 => false,
            206 if partial.have > 0 => true,
            // The partial file is longer than the file, or the server does not support ranges.
            416 => {
                self.restart(partial, file, info, path)?;
                return Err(interrupted(
                    file,
                    0,
                    info.size,
                    "the server does not accept the requested range",
                ));
            }
            _ => return Err(self.status_error(answer, file)),
        };
        if resumed {
            let range = answer.header("content-range").and_then(content_range);
            let fits = range.is_some_and(|(start, total)| {
                start == partial.have && total.is_none_or(|total| info.size.is_none_or(|size| size == total))
            });
            if !fits {
                self.restart(partial, file, info, path)?;
                return Err(interrupted(
                    file,
                    0,
                    info.size,
                    "the server sent a different range than requested",
                ));
            }
        } else if partial.have > 0 {
            self.restart(partial, file, info, path)?;
        }
        let end = match (info.size, answer.content_length()) {
            (Some(size), length) => {
                if let Some(found) = length.map(|length| partial.have.saturating_add(length))
                    && found != size
                {
                    return Err(Error::SizeMismatch { name: file.to_string(), found, expected: size });
                }
                Some(size)
            }
            (None, length) => length.map(|length| partial.have.saturating_add(length)),
        };
        self.receive(partial, answer.into_reader(), file, end, path)
    }

    /// Writes a body to disk. `end` is the file's length, if known.
    fn receive(
        &mut self,
        partial: &mut Partial,
        mut body: impl Read,
        file: &str,
        end: Option<u64>,
        path: &std::path::Path,
    ) -> Result<()> {
        let mut buffer = vec![0; CHUNK];
        loop {
            let n = match body.read(&mut buffer) {
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(interrupted(file, partial.have, end, &e.to_string())),
            };
            let Some(bytes) = buffer.get(..n).filter(|bytes| !bytes.is_empty()) else {
                break;
            };
            let found = partial.have.saturating_add(n as u64);
            if let Some(expected) = end.filter(|end| found > *end) {
                return Err(Error::SizeMismatch { name: file.to_string(), found, expected });
            }
            partial.file.write_all(bytes).map_err(|e| Error::io(path, "writing", e))?;
            partial.hasher.update(bytes);
            partial.have = found;
            self.progress.advance(n as u64);
        }
        match end {
            Some(end) if partial.have < end => {
                Err(interrupted(file, partial.have, Some(end), "the connection was closed"))
            }
            _ => Ok(()),
        }
    }

    /// Discards the partial file and reports it.
    fn restart(
        &mut self,
        partial: &mut Partial,
        file: &str,
        info: &FileInfo,
        path: &std::path::Path,
    ) -> Result<()> {
        partial.clear().map_err(|e| Error::io(path, "truncating", e))?;
        self.progress.start(file, info.size);
        Ok(())
    }
}

impl Partial {
    /// Opens the partial file of an earlier try, or an empty file. If it has more than `size`
    /// bytes, it is emptied.
    fn open(path: &std::path::Path, size: Option<u64>) -> io::Result<Self> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        let have = file.metadata()?.len();
        let mut partial = Self { file, have, hasher: Hasher::default() };
        // Without a length, the partial file might already be complete, so it cannot be resumed.
        if size.is_none_or(|size| have > size) {
            partial.clear()?;
        } else {
            partial.hasher.update_from(&mut partial.file)?;
        }
        Ok(partial)
    }

    fn clear(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        self.have = 0;
        self.hasher = Hasher::default();
        Ok(())
    }
}

fn interrupted(file: &str, found: u64, expected: Option<u64>, reason: &str) -> Error {
    Error::Interrupted { name: file.to_string(), found, expected, reason: reason.to_string() }
}

/// Parses `Content-Range: bytes 5-9/10`; returns the start and, if stated, the total.
fn content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (start, _) = range.split_once('-')?;
    let total = if total == "*" { None } else { Some(total.parse().ok()?) };
    Some((start.trim().parse().ok()?, total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_ranges() {
        assert_eq!(content_range("bytes 5-9/10"), Some((5, Some(10))));
        assert_eq!(content_range("bytes 5-9/*"), Some((5, None)));
        for bad in ["", "bytes */10", "5-9/10", "bytes 5-9/99999999999999999999999", "bytes -1-2/3"] {
            assert_eq!(content_range(bad), None, "{bad}");
        }
    }
}
