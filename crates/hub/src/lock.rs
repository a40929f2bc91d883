//! A file lock, so that one process at a time fetches a file. The lock file is never removed.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::Path;

use crate::error::{Error, Result};

/// A lock that is held until it is dropped or the process ends.
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Waits for the lock. `waiting` is called once if another process holds it.
    ///
    /// The lock file is not removed afterwards. Another process may be waiting on it, and a second
    /// file with the same name would let both in. If the file system has no locks (some network
    /// mounts), none is held. A fetch is then still safe against a crash, but two fetches at once
    /// duplicate work.
    pub(crate) fn acquire(path: &Path, waiting: impl FnOnce()) -> Result<Self> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(|e| Error::io(folder, "making the folder", e))?;
        }
        let file = File::options()
            .create(true)
            .write(true)
            .truncate(false)
            .open(path)
            .map_err(|e| Error::io(path, "opening the lock", e))?;
        let taken = match file.try_lock() {
            Ok(()) => Ok(()),
            Err(TryLockError::WouldBlock) => {
                waiting();
                file.lock()
            }
            Err(TryLockError::Error(e)) => Err(e),
        };
        match taken {
            Err(e) if e.kind() != io::ErrorKind::Unsupported => Err(Error::io(path, "locking", e)),
            _ => Ok(Self { _file: file }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    #[test]
    fn the_second_waits_for_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("locks/model.lock");
        let first = Lock::acquire(&path, || panic!("no other process holds it")).unwrap();
        let (waited, released) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _second = Lock::acquire(&path, || waited.store(true, Ordering::SeqCst)).unwrap();
                assert!(released.load(Ordering::SeqCst), "two threads held the lock at once");
            });
            while !waited.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            released.store(true, Ordering::SeqCst);
            drop(first);
        });
    }
}
