//! Things that wait to be written to a file, which several processes may write.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Number of files that this process has written. It makes their names unique.
static WRITTEN: AtomicU64 = AtomicU64::new(0);

/// Things that no file has yet.
pub struct Unsaved<T> {
    things: Mutex<Vec<T>>,
    /// Time at which the last thing was added.
    added: Mutex<Option<Instant>>,
    /// Held while the file is written, so that one thread writes it at a time.
    writing: Mutex<()>,
}

impl<T> Default for Unsaved<T> {
    fn default() -> Unsaved<T> {
        Unsaved { things: Mutex::default(), added: Mutex::default(), writing: Mutex::default() }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Unsaved<T> {
    /// One more thing to save.
    pub fn add(&self, thing: T) {
        lock(&self.things).push(thing);
        *lock(&self.added) = Some(Instant::now());
    }

    /// True if there are things to save, and none was added for this long.
    pub fn is_settled(&self, quiet: Duration) -> bool {
        let is_quiet = lock(&self.added).is_some_and(|added| added.elapsed() >= quiet);
        is_quiet && !lock(&self.things).is_empty()
    }

    /// Waits until no thread writes.
    pub fn wait(&self) {
        drop(lock(&self.writing));
    }

    /// Saves all things by one call of `write`, which writes them to the path that it is given, and
    /// returns true if it could. The written file then replaces `file`, so that another process
    /// reads the old file or the new one, never a part. Things that could not be written are
    /// dropped: the file only saves time. Other threads can add things meanwhile.
    pub fn save(&self, file: &Path, write: impl FnOnce(&[T], &Path) -> bool) {
        let _writing = lock(&self.writing);
        let things = std::mem::take(&mut *lock(&self.things));
        if things.is_empty() {
            return;
        }
        let mut name = file.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.{}", std::process::id(), WRITTEN.fetch_add(1, Ordering::Relaxed)));
        let written = file.with_file_name(name);
        let has_folder = file.parent().is_none_or(|folder| std::fs::create_dir_all(folder).is_ok());
        let is_saved = has_folder && write(&things, &written) && std::fs::rename(&written, file).is_ok();
        if !is_saved {
            // A failure leaves the old file.
            let _ = std::fs::remove_file(&written);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> std::path::PathBuf {
        let folder = std::env::temp_dir().join(format!("ingle-unsaved-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        folder
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn all_things_are_written_once_and_a_failure_leaves_the_old_file() {
        let folder = folder("once");
        let file = folder.join("below").join("archive");
        let unsaved = Unsaved::default();
        unsaved.save(&file, |_: &[u32], _| panic!("there is nothing to write"));
        assert!(!unsaved.is_settled(Duration::ZERO));
        [1, 2].into_iter().for_each(|n| unsaved.add(n));
        assert!(unsaved.is_settled(Duration::ZERO) && !unsaved.is_settled(Duration::from_secs(3600)));
        unsaved.save(&file, |things, path| {
            assert!(!file.exists(), "the file is replaced when it is whole");
            // More things come while others are written.
            unsaved.add(3);
            std::fs::write(path, format!("{things:?}")).is_ok()
        });
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "[1, 2]");
        unsaved.save(&file, |things, path| {
            assert_eq!(things, [3]);
            std::fs::write(path, "half of").unwrap();
            false
        });
        unsaved.save(&file, |_, _| panic!("what could not be written is dropped"));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "[1, 2]");
        assert_eq!(names(file.parent().unwrap()), ["archive"]);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn threads_that_save_take_turns() {
        let folder = folder("turns");
        let file = folder.join("archive");
        let (unsaved, written) = (Unsaved::default(), Mutex::new(vec![]));
        std::thread::scope(|scope| {
            for n in 0..8 {
                let (unsaved, written, file) = (&unsaved, &written, &file);
                scope.spawn(move || {
                    unsaved.add(n);
                    unsaved.save(file, |things, path| {
                        assert!(!path.exists(), "another thread writes now");
                        lock(written).extend_from_slice(things);
                        std::fs::write(path, "").is_ok()
                    });
                    unsaved.wait();
                    assert!(lock(written).contains(&n), "written by this thread or another");
                });
            }
        });
        let mut written = written.into_inner().unwrap();
        written.sort_unstable();
        assert_eq!(written, [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(names(&folder), ["archive"]);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
