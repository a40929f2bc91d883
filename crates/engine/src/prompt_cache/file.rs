//! Reading and writing a prompt cache file: streamed and hashed on the way, with no buffer larger
//! than a page and the tokens.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, ErrorKind, Read, Write};
use std::path::Path;

use device::PAGE_NONE;
use xxhash_rust::xxh64::Xxh64;

use super::Header;
use crate::{Engine, Error, MAX_N_CTX, Result};

const MAGIC: [u8; 8] = *b"INGLEKV\n";
pub(super) const VERSION: u32 = 3;
const MAX_HEADER: usize = 1 << 16;
const BUFFER: usize = 1 << 20;

/// A reader or writer that hashes the bytes that pass through it.
struct Hashed<T> {
    inner: T,
    hash: Xxh64,
}

impl<T> Hashed<T> {
    fn new(inner: T) -> Hashed<T> {
        Hashed { inner, hash: Xxh64::new(0) }
    }
}

impl<T: Read> Read for Hashed<T> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(bytes)?;
        self.hash.update(&bytes[..n]);
        Ok(n)
    }
}

impl<T: Write> Write for Hashed<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.inner.write(bytes)?;
        self.hash.update(&bytes[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

fn wrong(file: &Path, what: impl Into<String>) -> Error {
    Error::PromptCache { file: file.to_owned(), what: what.into() }
}

fn damaged(file: &Path, what: impl AsRef<str>) -> Error {
    wrong(file, format!("it is damaged: {}; delete it, or name another file", what.as_ref()))
}

/// Put the contents of a file into the prefix cache, under a salt. Returns its tokens; none if
/// there is no file.
pub(super) fn read(engine: &mut Engine, file: &Path, salt: u64) -> Result<Vec<u32>> {
    let opened = match File::open(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        opened => opened.and_then(|opened| Ok((opened.metadata()?, opened))),
    };
    let (metadata, opened) = opened.map_err(|error| wrong(file, format!("it cannot be read: {error}")))?;
    if !metadata.is_file() {
        return Err(wrong(file, "it is no file"));
    }
    let slot = engine.free_slot("reading a prompt cache")?;
    let mut reader =
        Reader { file, n_left: metadata.len(), from: Hashed::new(BufReader::with_capacity(BUFFER, opened)) };
    let outcome = reader.read(engine, slot);
    if let Ok(tokens) = &outcome {
        let n_used = n_used(engine, tokens.len());
        engine.scheduler.kv.remember(slot, salt, &tokens[..n_used], true);
    }
    engine.scheduler.kv.end(slot);
    outcome
}

/// Number of tokens of a file that a context has room for: all, or whole pages.
fn n_used(engine: &Engine, n_tokens: usize) -> usize {
    let limits = engine.limits();
    if n_tokens <= limits.n_ctx { n_tokens } else { limits.n_ctx / limits.page_len * limits.page_len }
}

struct Reader<'a> {
    file: &'a Path,
    /// Bytes that are left in the file.
    n_left: u64,
    from: Hashed<BufReader<File>>,
}

impl Reader<'_> {
    fn damaged(&self, what: impl AsRef<str>) -> Error {
        damaged(self.file, what)
    }

    /// Read `n` bytes, if the file has them.
    fn bytes(&mut self, n: usize, what: &str) -> Result<Vec<u8>> {
        self.take(n as u64, what)?;
        let mut bytes = vec![0; n];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn take(&mut self, n: u64, what: &str) -> Result<()> {
        match self.n_left.checked_sub(n) {
            Some(left) => self.n_left = left,
            None => {
                let left = self.n_left;
                return Err(self.damaged(format!("it ends in {what}: {n} bytes expected, {left} found")));
            }
        }
        Ok(())
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.from.read_exact(bytes).map_err(|error| self.damaged(error.to_string()))
    }

    /// Read the whole file; its pages go into `slot`.
    fn read(&mut self, engine: &mut Engine, slot: usize) -> Result<Vec<u32>> {
        let header = self.header(engine)?;
        let tokens = self.bytes(4 * header.n_tokens, "the tokens")?;
        let tokens: Vec<u32> = tokens.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        engine.check_tokens(&tokens).map_err(|error| self.damaged(error.to_string()))?;

        let n_groups = header.page_bytes.len();
        let n_pages = header.n_tokens.div_ceil(header.page_len);
        let present = self.bytes(n_pages * n_groups, "the list of pages")?;
        let mut n_present = vec![0usize; n_groups];
        let mut n_bytes = 8u64;
        for (index, here) in present.iter().enumerate() {
            let group = index % n_groups;
            if *here > 1 || (*here == 0 && header.windows[group].is_none()) {
                return Err(
                    self.damaged(format!("page {} of KV group {group} is marked {here}", index / n_groups))
                );
            }
            n_present[group] += usize::from(*here);
            n_bytes = n_bytes.saturating_add(u64::from(*here) * header.page_bytes[group] as u64);
        }
        if n_bytes != self.n_left {
            let left = self.n_left;
            return Err(self.damaged(format!("{n_bytes} bytes of pages and checksum expected, {left} found")));
        }
        self.pages(engine, slot, &header, &present, &mut n_present)?;

        let expected = self.from.hash.digest();
        let mut found = [0; 8];
        self.fill(&mut found)?;
        if u64::from_le_bytes(found) != expected {
            return Err(self.damaged(format!(
                "its checksum is {:016x}, and its content's {expected:016x}",
                u64::from_le_bytes(found)
            )));
        }
        Ok(tokens)
    }

    fn header(&mut self, engine: &Engine) -> Result<Header> {
        let magic = self.bytes(MAGIC.len(), "its mark").unwrap_or_default();
        if magic != MAGIC {
            return Err(wrong(self.file, "it is no prompt cache of Ingle; name another file"));
        }
        let numbers = self.bytes(8, "its version")?;
        let number = |at: usize| numbers[at..at + 4].iter().rev().fold(0u32, |n, b| n << 8 | u32::from(*b));
        let (version, n_header) = (number(0), number(4) as usize);
        if version != VERSION {
            let what =
                format!("it has version {version}, expected {VERSION}; delete it, or name another file");
            return Err(wrong(self.file, what));
        }
        if n_header > MAX_HEADER {
            return Err(self.damaged(format!("a header of {n_header} bytes, expected at most {MAX_HEADER}")));
        }
        let bytes = self.bytes(n_header, "the header")?;
        let header: Header =
            serde_json::from_slice(&bytes).map_err(|error| self.damaged(format!("its header: {error}")))?;
        if let Some(difference) = header.difference(&Header::of(engine, header.n_tokens)) {
            return Err(wrong(self.file, format!("{difference}; name another file, this one is unchanged")));
        }
        if !(1..=MAX_N_CTX).contains(&header.n_tokens) {
            let n = header.n_tokens;
            return Err(self.damaged(format!("{n} tokens, expected 1 to {MAX_N_CTX}")));
        }
        Ok(header)
    }

    /// Read every page into a page of the slot. Pages beyond the context are skipped, and so are
    /// the first pages of a group that has more than its pool: a window needs only its last.
    fn pages(
        &mut self,
        engine: &mut Engine,
        slot: usize,
        header: &Header,
        present: &[u8],
        n_left: &mut [usize],
    ) -> Result<()> {
        let n_used = n_used(engine, header.n_tokens).div_ceil(header.page_len);
        let mut bytes = vec![0; header.page_bytes.iter().copied().max().unwrap_or(0)];
        for (page_index, present) in present.chunks(header.page_bytes.len().max(1)).enumerate() {
            for (group, _) in present.iter().enumerate().filter(|(_, here)| **here == 1) {
                let bytes = &mut bytes[..header.page_bytes[group]];
                self.fill(bytes)?;
                let fits = n_left[group] <= engine.limits().n_pages[group];
                n_left[group] -= 1;
                if page_index < n_used && (fits || header.windows[group].is_none()) {
                    let page = engine.scheduler.kv.reserve_page(
                        slot,
                        group,
                        page_index,
                        false,
                        engine.program.as_mut(),
                    )?;
                    engine.program.write_page(group, page, bytes)?;
                }
            }
        }
        Ok(())
    }
}

/// Write tokens and their pages, `(pages, groups)`. The file is written under another name and
/// renamed, so that it is complete or absent.
pub(super) fn write(engine: &Engine, file: &Path, tokens: &[u32], pages: &[u32]) -> Result<()> {
    let name = file.file_name().ok_or_else(|| wrong(file, "it has no name"))?.to_string_lossy();
    platform::check_replaceable(file).map_err(|error| wrong(file, error.to_string()))?;
    let part = file.with_file_name(format!(".{name}.{}.part", std::process::id()));
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    // The file holds users' text, so only its owner may read it.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let written = options
        .open(&part)
        .map_err(|error| wrong(file, format!("{} cannot be written: {error}", part.display())))
        .and_then(|to| {
            write_to(engine, to, file, tokens, pages)?;
            fs::rename(&part, file).map_err(|error| wrong(file, format!("it cannot be replaced: {error}")))
        });
    if written.is_err() {
        // The part file may not exist. Its first error is the one to report.
        let _ = fs::remove_file(&part);
    }
    written
}

fn write_to(engine: &Engine, to: File, file: &Path, tokens: &[u32], pages: &[u32]) -> Result<()> {
    let failed = |error: io::Error| wrong(file, format!("it cannot be written: {error}"));
    let header = Header::of(engine, tokens.len());
    let text = serde_json::to_vec(&header).map_err(|error| failed(error.into()))?;
    let mut to = Hashed::new(BufWriter::with_capacity(BUFFER, to));
    let mut start = MAGIC.to_vec();
    start.extend(VERSION.to_le_bytes());
    start.extend((text.len() as u32).to_le_bytes());
    start.extend(text);
    start.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
    start.extend(pages.iter().map(|page| u8::from(*page != PAGE_NONE)));
    to.write_all(&start).map_err(failed)?;
    let mut bytes = vec![0; header.page_bytes.iter().copied().max().unwrap_or(0)];
    for (index, page) in pages.iter().enumerate().filter(|(_, page)| **page != PAGE_NONE) {
        let group = index % header.page_bytes.len();
        let bytes = &mut bytes[..header.page_bytes[group]];
        engine.program.read_page(group, *page, bytes)?;
        to.write_all(bytes).map_err(failed)?;
    }
    let checksum = to.hash.digest();
    to.write_all(&checksum.to_le_bytes()).map_err(failed)?;
    let file = to.inner.into_inner().map_err(|error| failed(error.into_error()))?;
    file.sync_all().map_err(failed)
}
