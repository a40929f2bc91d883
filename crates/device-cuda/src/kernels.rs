//! The kernels: their sources and their machine code. Machine code comes from the archive in the
//! binary, if it has this architecture; else from the cache on disk; else from NVIDIA's run-time
//! compiler, whose output is cached. Code is used only if it was compiled from exactly these
//! sources.

use crate::driver::{Context, Function, Module, NAME};
use crate::nvrtc::Nvrtc;
use device::{Error, Result};
use flate2::read::ZlibDecoder;
use sha2::{Digest, Sha256};
use std::collections::{BTreeSet, HashMap};
use std::io::Read;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

include!(concat!(env!("OUT_DIR"), "/sources.rs"));
include!(concat!(env!("OUT_DIR"), "/compiled.rs"));

/// The first bytes of an archive.
const MAGIC: &[u8; 8] = b"INGLECU1";

/// The text of the source at a path under `kernels/`.
pub fn source(path: &str) -> Option<&'static str> {
    SOURCES.binary_search_by(|(name, _)| (*name).cmp(path)).ok().map(|index| SOURCES[index].1)
}

/// Every file with kernels that tables name on GPUs of an architecture.
pub fn files(architecture: &str) -> impl Iterator<Item = &'static str> {
    let (hopper, turing) = (architecture == "sm_90a", architecture == "sm_75");
    let used = move |name: &&str| {
        let is_hoppers = name.starts_with("persistent/") || name.contains("/wgmma_");
        name.ends_with(".cu") && (hopper || !is_hoppers) && (!turing || !name.starts_with("gemm/"))
    };
    SOURCES.iter().map(|(name, _)| *name).filter(used)
}

/// The headers that a file includes, directly or not, in the order of their names.
///
/// # Errors
/// A header that is not there.
pub fn headers(file: &str) -> std::result::Result<BTreeSet<&'static str>, String> {
    headers_of(file, source(file).ok_or_else(|| format!("kernels/{file} is not there"))?)
}

/// Like [`headers`], for a file with the given text.
fn headers_of(file: &str, text: &str) -> std::result::Result<BTreeSet<&'static str>, String> {
    let mut found = BTreeSet::new();
    let mut todo = vec![(file.to_owned(), text)];
    while let Some((path, text)) = todo.pop() {
        for line in text.lines() {
            let Some(name) = line.trim().strip_prefix("#include \"").and_then(|rest| rest.split('"').next())
            else {
                continue;
            };
            let index = SOURCES.binary_search_by(|(other, _)| (*other).cmp(name));
            let index = index.map_err(|_| format!("kernels/{path} includes {name}, which is not there"))?;
            if found.insert(SOURCES[index].0) {
                todo.push((name.to_owned(), SOURCES[index].1));
            }
        }
    }
    Ok(found)
}

/// Hash of a file and its headers: 16 hexadecimal digits.
///
/// # Errors
/// A header that is not there.
pub fn hash(file: &str) -> std::result::Result<String, String> {
    hash_of(file, source(file).unwrap_or_default())
}

/// Like [`hash`], for a file with the given text.
fn hash_of(file: &str, text: &str) -> std::result::Result<String, String> {
    let mut digest = Sha256::new();
    digest.update(text);
    for header in headers_of(file, text)? {
        digest.update(header);
        digest.update(source(header).unwrap_or_default());
    }
    Ok(digest.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect())
}

/// The entries of an archive: architecture, file, hash, and deflated code.
fn entries(
    archive: &'static [u8],
) -> impl Iterator<Item = (&'static str, &'static str, &'static str, &'static [u8])> {
    let index = archive.strip_prefix(MAGIC).and_then(|rest| {
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let (index, blobs) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        Some((std::str::from_utf8(index).ok()?, blobs))
    });
    let (index, blobs) = index.unwrap_or_default();
    index.lines().filter_map(move |line| {
        let fields: Vec<&str> = line.split('\t').collect();
        let &[architecture, file, hash, start, len] = &fields[..] else { return None };
        let start: usize = start.parse().ok()?;
        let code = blobs.get(start..)?.get(..len.parse().ok()?)?;
        Some((architecture, file, hash, code))
    })
}

/// Builds an archive of compiled files, given as `(architecture, file, hash, deflated code)`.
pub fn archive(files: &[(String, String, String, Vec<u8>)]) -> Vec<u8> {
    let (mut index, mut blobs) = (String::new(), Vec::new());
    for (architecture, file, hash, code) in files {
        index += &format!("{architecture}\t{file}\t{hash}\t{}\t{}\n", blobs.len(), code.len());
        blobs.extend_from_slice(code);
    }
    let length = (index.len() as u32).to_le_bytes();
    [&MAGIC[..], &length, index.as_bytes(), &blobs].concat()
}

/// Architectures of the archive in this binary.
pub fn compiled_architectures() -> BTreeSet<&'static str> {
    entries(COMPILED).map(|(architecture, ..)| architecture).collect()
}

/// Returns true if machine code for architecture `code` runs on a GPU of architecture `gpu`: `code`
/// is of the same generation, is not newer, and is not specific to one chip.
fn runs_on(code: &str, gpu: &str) -> bool {
    let number = |name: &str| name.strip_prefix("sm_").and_then(|n| n.parse::<u32>().ok());
    match (number(code), number(gpu)) {
        (Some(code), Some(gpu)) => code / 10 == gpu / 10 && code <= gpu,
        _ => code == gpu,
    }
}

/// A file, and its machine code or the reason why there is none.
type Code = (String, std::result::Result<Vec<u8>, String>);

/// The kernels of a GPU, loaded on demand.
pub struct Kernels {
    context: Arc<Context>,
    architecture: String,
    nvrtc: OnceLock<std::result::Result<Nvrtc, String>>,
    modules: Mutex<HashMap<String, Arc<Module>>>,
    generated: Mutex<HashMap<String, Generated>>,
    refused: Mutex<Vec<String>>,
}

/// A source that was generated for one model.
#[derive(Clone)]
struct Generated {
    text: String,
    hash: String,
    /// The file of the general kernel, which replaces this one if the compiler refuses it.
    general: Option<String>,
}

impl Kernels {
    /// Kernels of a GPU, none of them loaded yet.
    pub fn new(context: Arc<Context>) -> Kernels {
        let architecture = context.facts().architecture();
        Kernels {
            context,
            architecture,
            nvrtc: OnceLock::new(),
            modules: Mutex::default(),
            generated: Mutex::default(),
            refused: Mutex::default(),
        }
    }

    /// A description of where the kernels come from, for messages.
    pub fn origin(&self) -> String {
        let is_current = |file: &str, its: &str| hash(file).is_ok_and(|hash| hash == its);
        let mine = entries(COMPILED)
            .filter(|(code, file, its, _)| runs_on(code, &self.architecture) && is_current(file, its));
        let compiled: BTreeSet<&str> = mine.map(|(architecture, ..)| architecture).collect();
        match (compiled.last(), self.nvrtc()) {
            (Some(code), _) => format!("kernels compiled for {code} in this binary"),
            (None, Ok(nvrtc)) => {
                let (major, minor) = nvrtc.version();
                format!("kernels compiled for {} here by NVRTC {major}.{minor}", self.architecture)
            }
            (None, Err(reason)) => format!("no kernels for {}: {reason}", self.architecture),
        }
    }

    fn nvrtc(&self) -> std::result::Result<&Nvrtc, String> {
        self.nvrtc.get_or_init(|| Nvrtc::load(None)).as_ref().map_err(Clone::clone)
    }

    /// Loads files. Those without machine code are compiled in parallel.
    ///
    /// # Errors
    /// A file has neither machine code nor a compiler, or the compiler refused it (with its log).
    pub fn prepare(&self, files: &BTreeSet<String>) -> Result<()> {
        let missing: Vec<&String> = {
            let modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
            files.iter().filter(|file| !modules.contains_key(*file)).collect()
        };
        let next = std::sync::atomic::AtomicUsize::new(0);
        let codes: Mutex<Vec<Code>> = Mutex::default();
        let n = std::thread::available_parallelism().map_or(1, usize::from).min(missing.len());
        std::thread::scope(|scope| {
            for _ in 0..n {
                scope.spawn(|| {
                    while let Some(file) =
                        missing.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
                    {
                        let code = self.code(file);
                        codes.lock().unwrap_or_else(PoisonError::into_inner).push(((*file).clone(), code));
                    }
                });
            }
        });
        self.context.enter()?;
        for (file, code) in codes.into_inner().unwrap_or_else(PoisonError::into_inner) {
            let code = code.map_err(|reason| Error::Failed { device: NAME, reason })?;
            let module = Module::new(&self.context, &code)?;
            self.modules.lock().unwrap_or_else(PoisonError::into_inner).insert(file, Arc::new(module));
        }
        Ok(())
    }

    /// A kernel of a file, allowed to use `shared` bytes of shared memory, and the module that
    /// keeps it loaded.
    ///
    /// # Errors
    /// As [`Self::prepare`], or there is no such kernel.
    pub fn function(&self, file: &str, name: &str, shared: u32) -> Result<(Function, Arc<Module>)> {
        self.prepare(&BTreeSet::from([file.to_owned()]))?;
        let modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(module) = modules.get(file).cloned() else {
            return Err(Error::Failed { device: NAME, reason: format!("{file} was not loaded") });
        };
        Ok((module.function(name, shared)?, module))
    }

    /// Returns true if this machine has NVRTC, which kernels generated for one model need.
    pub fn can_compile(&self) -> bool {
        self.nvrtc().is_ok()
    }

    /// Registers a source that was generated for one model. Returns its file, for [`Self::prepare`]
    /// and [`Self::function`], whose name begins with `name`. If the compiler refuses the text, the
    /// code of `general` is used, which must have kernels of the same names.
    pub fn generate(&self, name: &str, text: String, general: Option<String>) -> String {
        // A missing header gives an empty hash here. `code` reports the error.
        let hash = hash_of(name, &text).unwrap_or_default();
        let file = format!("{name}_{hash}.cu");
        let generated = Generated { text, hash, general };
        self.generated.lock().unwrap_or_else(PoisonError::into_inner).insert(file.clone(), generated);
        file
    }

    /// Files of [`Self::generate`] that the compiler refused, with the reasons.
    pub fn refused(&self) -> Vec<String> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn code(&self, file: &str) -> std::result::Result<Vec<u8>, String> {
        let generated = self.generated.lock().unwrap_or_else(PoisonError::into_inner).get(file).cloned();
        if let Some(Generated { text, hash, general }) = generated {
            return self.compiled(file, &text, &hash).or_else(|reason| {
                let Some(general) = general else { return Err(reason) };
                self.refused.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{file}: {reason}"));
                self.code(&general)
            });
        }
        let hash = hash(file)?;
        let of_file = entries(COMPILED)
            .filter(|(code, its, h, _)| *its == file && *h == hash && runs_on(code, &self.architecture));
        if let Some((.., code)) = of_file.max_by_key(|(code, ..)| (code.len(), *code)) {
            return inflate(code)
                .map_err(|e| format!("{file}: the binary's own code cannot be unpacked: {e}"));
        }
        self.compiled(file, source(file).unwrap_or_default(), &hash)
    }

    /// The machine code of a text with this hash, from the cache or from the compiler.
    fn compiled(&self, file: &str, text: &str, hash: &str) -> std::result::Result<Vec<u8>, String> {
        let nvrtc = self.nvrtc().map_err(|reason| {
            let compiled: Vec<&str> = compiled_architectures().into_iter().collect();
            format!(
                "no compiled kernels for {} (this binary has: {}), and {reason}; install CUDA's NVRTC 12 or 13, or use a \
                 binary built by `cargo xtask cuda-kernels`",
                self.architecture,
                if compiled.is_empty() { "none".to_owned() } else { compiled.join(", ") }
            )
        })?;
        let (major, minor) = nvrtc.version();
        let name = file.replace('/', "-");
        let cached = cache_folder()
            .map(|folder| folder.join(format!("{name}.{hash}.{}.{major}.{minor}.z", self.architecture)));
        if let Some(code) =
            cached.as_ref().and_then(|path| std::fs::read(path).ok()).and_then(|z| inflate(&z).ok())
        {
            return Ok(code);
        }
        let headers: Vec<(&str, &str)> = headers_of(file, text)?
            .into_iter()
            .map(|name| (name, source(name).unwrap_or_default()))
            .collect();
        let compiled = nvrtc.compile(file, text, &headers, &self.architecture, false)?;
        if let Some(path) = cached {
            // If the cache cannot be written, the next start compiles again.
            let _ = store(&path, &deflate(&compiled.code));
        }
        Ok(compiled.code)
    }
}

/// Writes a file of the cache atomically, since another process may read it.
fn store(path: &std::path::Path, bytes: &[u8]) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let unfinished = path.with_extension(format!("{}.part", std::process::id()));
    std::fs::write(&unfinished, bytes)?;
    std::fs::rename(unfinished, path)
}

fn cache_folder() -> Option<PathBuf> {
    let base = match std::env::var_os("XDG_CACHE_HOME").or_else(|| std::env::var_os("LOCALAPPDATA")) {
        Some(folder) if !folder.is_empty() => PathBuf::from(folder),
        _ => PathBuf::from(std::env::var_os("HOME")?).join(".cache"),
    };
    Some(base.join("ingle/cuda-kernels"))
}

/// Compresses code as the archive and the cache store it.
pub fn deflate(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = flate2::read::ZlibEncoder::new(bytes, flate2::Compression::best());
    // Reading from memory does not fail.
    let _ = encoder.read_to_end(&mut out);
    out
}

fn inflate(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut out = Vec::new();
    ZlibDecoder::new(bytes).read_to_end(&mut out)?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_finds_its_headers() {
        assert!(files("sm_75").count() > 40);
        for file in files("sm_90a") {
            hash(file).unwrap();
        }
        assert!(headers("linear/q4_0.cu").unwrap().contains("common.cuh"));
        assert_ne!(hash("linear/q4_0.cu").unwrap(), hash("linear/q4_1.cu").unwrap());
    }

    #[test]
    fn code_is_for_its_generation() {
        assert!(runs_on("sm_80", "sm_86") && runs_on("sm_89", "sm_89") && runs_on("sm_90a", "sm_90a"));
        assert!(!runs_on("sm_89", "sm_86") && !runs_on("sm_75", "sm_80") && !runs_on("sm_90a", "sm_100a"));
    }

    #[test]
    fn what_is_packed_comes_out() {
        assert_eq!(inflate(&deflate(b"some code")).unwrap(), b"some code");
        let file =
            |name: &str, code: &[u8]| ("sm_80".to_owned(), name.to_owned(), "h".to_owned(), code.to_vec());
        let bytes: &'static [u8] = archive(&[file("a.cu", b"one"), file("b.cu", b"three")]).leak();
        let found: Vec<_> = entries(bytes).map(|(_, file, _, code)| (file, code)).collect();
        assert_eq!(found, [("a.cu", &b"one"[..]), ("b.cu", b"three")]);
        assert_eq!(entries(b"nonsense").count(), 0);
    }
}
