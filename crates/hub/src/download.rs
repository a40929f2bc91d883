//! Downloads one file over HTTP, resumes after interruptions, and checks its hash.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use ureq::http::Method;

use crate::digest::{CHUNK, Hasher};
use crate::error::{Error, Result};
use crate::http::{Answer, Client};
use crate::progress::Progress;

/// Received bytes after which a failed try does not count: the connection is slow or short-lived,
/// but works.
const HEADWAY: u64 = 1 << 20;

/// A file to download.
pub(crate) struct Remote<'a> {
    /// Its address.
    pub(crate) url: &'a str,
    /// Its name in messages.
    pub(crate) name: &'a str,
    /// Length in bytes, if it is known.
    pub(crate) size: Option<u64>,
    /// Expected hash, if it is known.
    pub(crate) sha256: Option<&'a str>,
    /// Identity of its version, sent with requests for the rest. `None` if the hash is its
    /// identity: the host of a large file has ETags of its own.
    pub(crate) etag: Option<&'a str>,
    /// The error for a status other than success.
    pub(crate) refused: &'a dyn Fn(Answer) -> Error,
}

/// A running download.
pub(crate) struct Download<'a> {
    pub(crate) client: &'a Client,
    pub(crate) progress: &'a mut dyn Progress,
    pub(crate) retries: u32,
    pub(crate) remote: Remote<'a>,
}

/// A partial download: the bytes on disk, and their hash.
struct Partial<'a> {
    path: &'a Path,
    file: File,
    have: u64,
    hasher: Hasher,
}

impl Download<'_> {
    /// Fetches the file into `path`, after the bytes that an earlier try left there. The progress
    /// begins; the caller ends it.
    ///
    /// # Errors
    /// The file cannot be fetched or written, or has another hash or length than expected. A
    /// partial file stays, unless it is wrong.
    pub(crate) fn run(mut self, path: &Path) -> Result<()> {
        let mut partial = Partial::open(path, self.remote.size).map_err(|e| Error::io(path, "opening", e))?;
        self.progress.start(self.remote.name, self.remote.size);
        self.progress.advance(partial.have);
        let outcome = self.fill(&mut partial);
        let Partial { file: handle, have, hasher, .. } = partial;
        let checked = outcome.and_then(|()| {
            handle.sync_all().map_err(|e| Error::io(path, "writing", e))?;
            let (name, found) = (self.remote.name.to_string(), hasher.hex());
            match self.remote.sha256 {
                Some(expected) if expected != found => {
                    Err(Error::HashMismatch { name, found, expected: expected.to_string() })
                }
                _ => Ok(()),
            }
        });
        drop(handle);
        // A partial download can be resumed. Wrong or missing bytes cannot.
        if let Err(error) = &checked
            && (matches!(error, Error::HashMismatch { .. } | Error::SizeMismatch { .. }) || have == 0)
        {
            let _ = fs::remove_file(path);
        }
        checked
    }

    /// Fetches the missing bytes; resumes after interruptions until no progress is made.
    fn fill(&mut self, partial: &mut Partial<'_>) -> Result<()> {
        let mut failures = 0;
        while self.remote.size != Some(partial.have) {
            let before = partial.have;
            match self.attempt(partial) {
                Ok(()) => return Ok(()),
                Err(error) if error.is_transient() => {
                    if partial.have >= before.saturating_add(HEADWAY) {
                        failures = 0;
                    }
                    failures += 1;
                    if failures > self.retries {
                        return Err(error);
                    }
                    self.client.pause(failures, self.retries, &error, self.progress);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sends one request for the missing bytes. `Ok` if the file is then complete.
    fn attempt(&mut self, partial: &mut Partial<'_>) -> Result<()> {
        let Remote { url, size, .. } = self.remote;
        let mut headers = Vec::new();
        if partial.have > 0 {
            headers.push(("Range", format!("bytes={}-", partial.have)));
            if let Some(etag) = self.remote.etag {
                // Only `If-Range` shows that the rest belongs to another version.
                headers.push(("If-Range", format!("\"{etag}\"")));
            }
        }
        let answer = self.client.send(&Method::GET, url, &headers, false)?;
        let resumed = match answer.status {
            200 => false,
            206 if partial.have > 0 => true,
            // The partial file is longer than the file, or the server does not support ranges.
            416 => {
                self.restart(partial)?;
                return Err(self.interrupted(0, size, "the server does not accept the requested range"));
            }
            _ => return Err((self.remote.refused)(answer)),
        };
        if resumed {
            let range = answer.header("content-range").and_then(content_range);
            let fits = range.is_some_and(|(start, total)| {
                start == partial.have && total.is_none_or(|total| size.is_none_or(|size| size == total))
            });
            if !fits {
                self.restart(partial)?;
                return Err(self.interrupted(0, size, "the server sent a different range than requested"));
            }
        } else if partial.have > 0 {
            self.restart(partial)?;
        }
        let length = answer.content_length().map(|length| partial.have.saturating_add(length));
        if let (Some(expected), Some(found)) = (size, length)
            && found != expected
        {
            return Err(Error::SizeMismatch { name: self.remote.name.to_string(), found, expected });
        }
        self.receive(partial, answer.into_reader(), size.or(length))
    }

    /// Writes a body to disk. `end` is the file's length, if known.
    fn receive(&mut self, partial: &mut Partial<'_>, mut body: impl Read, end: Option<u64>) -> Result<()> {
        let mut buffer = vec![0; CHUNK];
        loop {
            let n = match body.read(&mut buffer) {
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(self.interrupted(partial.have, end, &e.to_string())),
            };
            let Some(bytes) = buffer.get(..n).filter(|bytes| !bytes.is_empty()) else {
                break;
            };
            let found = partial.have.saturating_add(n as u64);
            if let Some(expected) = end.filter(|end| found > *end) {
                return Err(Error::SizeMismatch { name: self.remote.name.to_string(), found, expected });
            }
            partial.file.write_all(bytes).map_err(|e| Error::io(partial.path, "writing", e))?;
            partial.hasher.update(bytes);
            partial.have = found;
            self.progress.advance(n as u64);
        }
        match end {
            Some(end) if partial.have < end => {
                Err(self.interrupted(partial.have, Some(end), "the connection was closed"))
            }
            _ => Ok(()),
        }
    }

    /// Discards the partial file and reports it.
    fn restart(&mut self, partial: &mut Partial<'_>) -> Result<()> {
        partial.clear().map_err(|e| Error::io(partial.path, "truncating", e))?;
        self.progress.start(self.remote.name, self.remote.size);
        Ok(())
    }

    fn interrupted(&self, found: u64, expected: Option<u64>, reason: &str) -> Error {
        let (name, reason) = (self.remote.name.to_string(), reason.to_string());
        Error::Interrupted { name, found, expected, reason }
    }
}

impl<'a> Partial<'a> {
    /// Opens the partial file of an earlier try, or an empty file. If it has more than `size`
    /// bytes, it is emptied.
    fn open(path: &'a Path, size: Option<u64>) -> io::Result<Self> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        let have = file.metadata()?.len();
        let mut partial = Self { path, file, have, hasher: Hasher::default() };
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
