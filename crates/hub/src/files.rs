//! Paths and files: relative paths with `/`, folders, and atomic replacement.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};

/// Largest depth of folders that are searched.
const DEPTH_MAX: usize = 8;

/// The files below a folder, sorted, with `/` between folders. Dangling links are left out.
pub(crate) fn files_in(folder: &Path) -> Vec<String> {
    let mut files = Vec::new();
    walk(folder, "", DEPTH_MAX, &mut files);
    files.sort_unstable();
    files
}

/// Joins a folder and a relative path with `/`.
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
        // The failed copy is removed; the first error is reported.
        let _ = fs::remove_file(from);
        Error::io(to, "moving the file to its final name", e)
    })
}

/// An unused file name in the folder of `path`.
pub(crate) fn beside(path: &Path) -> PathBuf {
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
        // `metadata` follows links, and a dangling link is a missing file.
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
