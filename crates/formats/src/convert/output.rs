//! The output file, which has a temporary name beside its destination until it is complete.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, ErrorKind};
use std::path::{Path, PathBuf};

use super::{Error, Result};
use crate::{base, gguf};

/// The temporary path beside `output`: `.NAME.PID.partial`. A file left by a killed process is
/// never read and may be deleted.
pub fn partial_path(output: &Path) -> PathBuf {
    let name = output.file_name().unwrap_or_default().to_string_lossy();
    output.with_file_name(format!(".{name}.{}.partial", std::process::id()))
}

/// A temporary file that becomes the output when it is complete, and is removed otherwise.
pub(super) struct Output {
    /// Destination path.
    pub path: PathBuf,
    /// Temporary path.
    partial: PathBuf,
    pub file: BufWriter<File>,
    force: bool,
    /// Expected size in bytes, approximately.
    pub needed: u64,
}

impl Output {
    pub fn create(path: &Path, force: bool, needed: u64) -> Result<Output> {
        if path.is_dir() || (path.exists() && !force) {
            return Err(Error::Exists { file: path.to_owned() });
        }
        let partial = partial_path(path);
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&partial)
            .map_err(|e| io_error(path, needed, e))?;
        let file = BufWriter::with_capacity(1 << 20, file);
        Ok(Output { path: path.to_owned(), partial, file, force, needed })
    }

    /// Renames the file to its destination. Returns its bytes.
    pub fn publish(mut self) -> Result<u64> {
        let wrong = |e| io_error(&self.path, self.needed, e);
        std::io::Write::flush(&mut self.file).map_err(wrong)?;
        self.file.get_ref().sync_all().map_err(wrong)?;
        let n_bytes = self.file.get_ref().metadata().map_err(wrong)?.len();
        // Another process may have made the output meanwhile.
        if self.path.exists() && !self.force {
            return Err(Error::Exists { file: self.path.clone() });
        }
        std::fs::rename(&self.partial, &self.path).map_err(wrong)?;
        Ok(n_bytes)
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // After a rename this file no longer exists.
        _ = std::fs::remove_file(&self.partial);
    }
}

pub(super) fn base_error(path: &Path, needed: u64, error: base::BaseWriteError) -> Error {
    if let base::BaseWriteError::Io(source) = error {
        return io_error(path, needed, source);
    }
    Error::Base(error)
}

pub(super) fn gguf_error(path: &Path, needed: u64, error: gguf::WriteError) -> Error {
    if let gguf::WriteError::Io(source) = error {
        return io_error(path, needed, source);
    }
    Error::Gguf(error)
}

fn io_error(path: &Path, needed: u64, source: std::io::Error) -> Error {
    match source.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            Error::DiskFull { file: path.to_owned(), needed }
        }
        _ => Error::Io { file: path.to_owned(), source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_called_so() {
        let error = |kind: ErrorKind| io_error(Path::new("out.base"), 77, kind.into());
        for kind in [ErrorKind::StorageFull, ErrorKind::QuotaExceeded] {
            let error =
                base_error(Path::new("out.base"), 77, base::BaseWriteError::Io(kind.into())).to_string();
            assert!(error.contains("out.base: the disk is full, 77 bytes"), "{error}");
        }
        assert!(matches!(error(ErrorKind::PermissionDenied), Error::Io { .. }));
    }
}
