//! A folder of prompt caches, so that the prefix cache outlives the process.
//!
//! The folder has a subfolder for each kind of pages (a hash of [`Header`]: model, device, KV type,
//! arithmetic). It holds a file for each path of the prefix tree, named by its salt and a hash of
//! its tokens. Damaged files are removed and not used. The total size of the files is bounded.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use xxhash_rust::xxh64::xxh64;

use super::{Header, file};
use crate::{Engine, Error, Result};

/// Least tokens of a prefix that is kept: shorter ones are computed as fast as they are read.
const LEAST_TOKENS: usize = 32;

/// Extension of the files.
const END: &str = ".prefix";

/// Result of opening a folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Prefixes that are in the cache again.
    pub n_prefixes: usize,
    /// Tokens of these prefixes; a part that two of them share counts twice.
    pub n_tokens: usize,
    /// Reasons for which files were not used.
    pub notes: Vec<String>,
}

/// A prefix that is in the folder.
#[derive(Debug)]
struct Kept {
    salt: u64,
    /// Tokens of the path in the tree. The file may have fewer, if a window has freed pages.
    tokens: Vec<u32>,
    file: PathBuf,
    bytes: u64,
}

/// A folder of prompt caches; see the module.
#[derive(Debug)]
pub(crate) struct PrefixFolder {
    folder: PathBuf,
    max_bytes: u64,
    /// Prefixes in the folder, the oldest first.
    kept: Vec<Kept>,
}

impl PrefixFolder {
    /// Read the folder's prefixes into the cache of `engine`, up to half of its memory for keys and
    /// values.
    pub(crate) fn open(engine: &mut Engine, base: &Path, max_bytes: u64) -> Result<(PrefixFolder, Restored)> {
        if engine.kv().has_states() {
            let what = "--prefix-cache: the states of recurrent layers cannot be kept yet";
            return Err(Error::PromptCache { file: base.to_owned(), what: what.into() });
        }
        let header = serde_json::to_vec(&Header::of(engine, 0)).unwrap_or_default();
        let version = u64::from(file::VERSION);
        let folder = base.join(format!("{:016x}", xxh64(&header, version)));
        let failed = |what: &str, error: std::io::Error| Error::PromptCache {
            file: folder.clone(),
            what: format!("it cannot be {what}: {error}"),
        };
        make(&folder).map_err(|error| failed("made", error))?;
        let mut found: Vec<(SystemTime, PathBuf, u64)> = Vec::new();
        for entry in fs::read_dir(&folder).map_err(|error| failed("read", error))? {
            let entry = entry.map_err(|error| failed("read", error))?;
            if entry.file_name().to_string_lossy().ends_with(END)
                && let Ok(metadata) = entry.metadata()
            {
                let written = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                found.push((written, entry.path(), metadata.len()));
            }
        }
        // Choose the newest files for which there is room, but read them from the oldest to the
        // newest. So the cache evicts the newest last.
        found.sort_by(|a, b| b.cmp(a));
        let room = engine.kv().budget() / 2;
        let mut n_bytes = 0u64;
        found.retain(|(_, _, bytes)| {
            n_bytes = n_bytes.saturating_add(*bytes);
            n_bytes <= room.min(max_bytes)
        });
        found.reverse();
        let (mut kept, mut restored) = (Vec::new(), Restored::default());
        for (_, path, bytes) in found {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            let salt = name.get(..16).and_then(|salt| u64::from_str_radix(salt, 16).ok());
            let read = match salt {
                Some(salt) => file::read(engine, &path, salt).map(|tokens| (salt, tokens)),
                None => Err(Error::PromptCache { file: path.clone(), what: "its name has no salt".into() }),
            };
            match read {
                Ok((salt, tokens)) => {
                    restored.n_prefixes += 1;
                    restored.n_tokens += tokens.len();
                    kept.push(Kept { salt, tokens, file: path, bytes });
                }
                Err(error @ Error::PromptCache { .. }) => {
                    // The folder belongs to Ingle, and an incomplete file is useless.
                    let removed = fs::remove_file(&path).is_ok();
                    restored.notes.push(format!("{error}{}", if removed { " (removed)" } else { "" }));
                }
                Err(error) => {
                    restored.notes.push(format!("{}: {error}", path.display()));
                    break;
                }
            }
        }
        Ok((PrefixFolder { folder, max_bytes, kept }, restored))
    }

    /// Write the prefixes that the cache has and the folder lacks, the most recently used first,
    /// while `goes_on`. Returns the number of prefixes written.
    pub(crate) fn save(&mut self, engine: &mut Engine, goes_on: &mut dyn FnMut() -> bool) -> Result<usize> {
        let mut fresh = Vec::new();
        let mut n_bytes = 0u64;
        for (salt, tokens) in engine.kv().prefix().leaves() {
            // A prefix that does not fit beside more recent ones would be evicted at once.
            n_bytes = n_bytes.saturating_add(engine.bytes_of(tokens.len()));
            if n_bytes > self.max_bytes {
                break;
            }
            let is_kept = |kept: &Kept| kept.salt == salt && kept.tokens.starts_with(&tokens);
            if tokens.len() >= LEAST_TOKENS && !self.kept.iter().any(is_kept) {
                fresh.push((salt, tokens));
            }
        }
        let mut n_written = 0;
        for (salt, tokens) in fresh {
            if !goes_on() {
                break;
            }
            let (n_tokens, pages) = engine.scheduler.kv.cached(salt, &tokens);
            if n_tokens < LEAST_TOKENS {
                continue;
            }
            let bytes: Vec<u8> = tokens[..n_tokens].iter().flat_map(|token| token.to_le_bytes()).collect();
            let file = self.folder.join(format!("{salt:016x}-{:016x}{END}", xxh64(&bytes, salt)));
            file::write(engine, &file, &tokens[..n_tokens], &pages)?;
            let bytes = fs::metadata(&file).map_or(0, |metadata| metadata.len());
            // A shorter prefix of this path need not be kept on its own.
            self.forget(|kept| kept.salt == salt && tokens.starts_with(&kept.tokens) && kept.file != file);
            self.kept.retain(|kept| kept.file != file);
            self.kept.push(Kept { salt, tokens, file, bytes });
            n_written += 1;
            self.shrink();
        }
        Ok(n_written)
    }

    /// Remove the oldest files until the others fit.
    fn shrink(&mut self) {
        let mut n_bytes: u64 = self.kept.iter().map(|kept| kept.bytes).sum();
        while n_bytes > self.max_bytes && self.kept.len() > 1 {
            let oldest = self.kept.remove(0);
            n_bytes -= oldest.bytes;
            // The file may be gone already.
            let _ = fs::remove_file(oldest.file);
        }
    }

    fn forget(&mut self, which: impl Fn(&Kept) -> bool) {
        self.kept.retain(|kept| {
            let goes = which(kept);
            if goes {
                // The file may be gone already.
                let _ = fs::remove_file(&kept.file);
            }
            !goes
        });
    }
}

/// Create a folder that only its owner may read: it holds users' text.
fn make(folder: &Path) -> std::io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

impl Engine {
    /// Keep the prefix cache in a folder from now on, and load the folder's prefixes into it. Call
    /// it while nothing runs. The folder holds at most `max_bytes` for this model.
    ///
    /// # Errors
    /// [`Error::PromptCache`]: the folder cannot be used, or the model has recurrent layers. Files
    /// that cannot be used are no error: see [`Restored::notes`].
    pub fn keep_prefixes(&mut self, folder: &Path, max_bytes: u64) -> Result<Restored> {
        let (folder, restored) = PrefixFolder::open(self, folder, max_bytes)?;
        self.prefixes = Some(folder);
        Ok(restored)
    }

    /// Write the prefixes that the cache has and the folder of [`Self::keep_prefixes`] lacks, one
    /// file at a time while `goes_on`. Returns their number. Call it when the engine is idle, or
    /// before it ends.
    ///
    /// # Errors
    /// [`Error::PromptCache`]: a file cannot be written; the files before it are complete.
    pub fn save_prefixes(&mut self, goes_on: &mut dyn FnMut() -> bool) -> Result<usize> {
        let Some(mut folder) = self.prefixes.take() else { return Ok(0) };
        let saved = folder.save(self, goes_on);
        self.prefixes = Some(folder);
        saved
    }

    fn bytes_of(&self, n_tokens: usize) -> u64 {
        crate::kv::bytes_of_sequence(&self.plan().kv, self.limits(), n_tokens)
    }
}
