//! Bytes that stay alive: a range of a mapped file, or of memory that this process owns.
#![allow(unsafe_code)]

use std::fmt;
use std::fs::File;
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use crate::{Access, Error, Result};

/// A file's bytes, mapped or read.
pub struct Map {
    backing: Backing,
}

enum Backing {
    Mapped(Mapped),
    /// Memory in units of 64 bytes, so that a file that was read has the alignment of a mapped one.
    Owned(Box<[Line]>, usize),
}

/// A mapped file, with the means to detect that it changed.
struct Mapped {
    /// Watch of the map, which must be dropped before the map.
    watch: Option<platform::MapWatch>,
    bytes: memmap2::Mmap,
    path: PathBuf,
    file: File,
    /// Time of the last write when the file was mapped, as reported by the system.
    modified: Option<SystemTime>,
}

#[derive(Clone, Copy, bytemuck::Zeroable, bytemuck::Pod)]
#[repr(C, align(64))]
struct Line([u8; 64]);

impl Map {
    /// Maps or reads a file.
    ///
    /// # Errors
    /// The file cannot be opened, mapped or read.
    pub fn open(path: &Path, access: Access) -> Result<Arc<Map>> {
        use std::io::Read;
        let io = |source| Error::Io { file: path.to_owned(), source };
        let mut file = File::open(path).map_err(io)?;
        let found = file.metadata().map_err(io)?;
        let len = found.len() as usize;
        let backing = match access {
            Access::Map if len > 0 => {
                // SAFETY: the map is read-only. If another process truncates the file, `MapWatch`
                // replaces the lost pages by zeros and records that; `Access::Read` is the
                // documented alternative.
                let bytes = unsafe { memmap2::Mmap::map(&file) }.map_err(io)?;
                // SAFETY: `bytes` is one read-only mapping of this length, and is dropped after the
                // watch.
                let watch = unsafe { platform::MapWatch::new(bytes.as_ptr(), bytes.len()) };
                let (path, modified) = (path.to_owned(), found.modified().ok());
                Backing::Mapped(Mapped { watch, bytes, path, file, modified })
            }
            _ => {
                let mut lines = vec![Line([0; 64]); len.div_ceil(64)].into_boxed_slice();
                file.read_exact(&mut bytemuck::cast_slice_mut(&mut lines)[..len]).map_err(io)?;
                Backing::Owned(lines, len)
            }
        };
        Ok(Arc::new(Map { backing }))
    }

    /// Copies `bytes` to memory aligned to 64.
    pub fn from_slice(bytes: &[u8]) -> Arc<Map> {
        Map::from_parts(&[bytes])
    }

    /// Like [`Self::from_slice`], for parts that are stored one after the other.
    pub fn from_parts(parts: &[&[u8]]) -> Arc<Map> {
        let len = parts.iter().map(|part| part.len()).sum();
        let mut lines = vec![Line([0; 64]); usize::div_ceil(len, 64)].into_boxed_slice();
        let mut rest = bytemuck::cast_slice_mut::<Line, u8>(&mut lines);
        for part in parts {
            let (here, behind) = rest.split_at_mut(part.len());
            here.copy_from_slice(part);
            rest = behind;
        }
        Arc::new(Map { backing: Backing::Owned(lines, len) })
    }

    /// True if the bytes are a view of the page cache, which needs no memory of this process.
    pub fn is_mapped(&self) -> bool {
        matches!(self.backing, Backing::Mapped(_))
    }

    /// Checks that no read of the map found a part of the file missing. It makes no system call, so
    /// it may be called after each step.
    ///
    /// # Errors
    /// [`Error::Changed`]: zeros were read instead of the file's bytes.
    pub fn check_whole(&self) -> Result<()> {
        match &self.backing {
            Backing::Mapped(map) if map.watch.as_ref().is_some_and(platform::MapWatch::is_damaged) => {
                Err(map.changed("a part of it cannot be read any more"))
            }
            Backing::Mapped(_) | Backing::Owned(..) => Ok(()),
        }
    }

    /// Checks that the file's length and time are those of when it was mapped, with a system call.
    ///
    /// # Errors
    /// [`Error::Changed`], also in the cases of [`Self::check_whole`].
    pub fn check_unchanged(&self) -> Result<()> {
        let Backing::Mapped(map) = &self.backing else { return Ok(()) };
        let Ok(found) = map.file.metadata() else { return self.check_whole() };
        if found.len() != map.bytes.len() as u64 {
            let (found, expected) = (found.len(), map.bytes.len());
            return Err(
                map.changed(&format!("it has {found} bytes, expected {expected} as when it was loaded"))
            );
        }
        if found.modified().ok() != map.modified {
            return Err(map.changed("it was written to after it was loaded"));
        }
        self.check_whole()
    }

    /// Implements [`Bytes::release`]; the range is within the map.
    fn release(&self, range: Range<usize>) {
        #[cfg(unix)]
        if let Backing::Mapped(Mapped { bytes: map, .. }) = &self.backing {
            // SAFETY: the map is shared and never written, so its pages are the file's. A refusal
            // changes nothing.
            let _ = unsafe {
                map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, range.len())
            };
        }
        #[cfg(not(unix))]
        let _ = range;
    }

    /// Implements [`Bytes::prefer_large_pages`]; the range is within the map.
    fn prefer_large_pages(&self, range: Range<usize>) {
        #[cfg(target_os = "linux")]
        if let Backing::Mapped(Mapped { bytes: map, .. }) = &self.backing {
            // A refusal changes nothing.
            let _ = map.advise_range(memmap2::Advice::HugePage, range.start, range.len());
        }
        #[cfg(not(target_os = "linux"))]
        let _ = range;
    }
}

impl Mapped {
    fn changed(&self, what: &str) -> Error {
        Error::Changed { file: self.path.clone(), what: what.to_owned() }
    }
}

impl fmt::Debug for Map {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.backing {
            Backing::Mapped(map) => write!(f, "Map({})", map.path.display()),
            Backing::Owned(_, len) => write!(f, "Map({len} bytes of memory)"),
        }
    }
}

impl Deref for Map {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.backing {
            Backing::Mapped(map) => &map.bytes,
            Backing::Owned(lines, len) => &bytemuck::cast_slice(lines)[..*len],
        }
    }
}

/// A range of a [`Map`]; cheap to clone.
#[derive(Clone)]
pub struct Bytes {
    map: Arc<Map>,
    range: Range<usize>,
}

impl Bytes {
    /// The range, if it is within the map.
    pub fn new(map: Arc<Map>, range: Range<usize>) -> Option<Bytes> {
        (range.start <= range.end && range.end <= map.len()).then_some(Bytes { map, range })
    }

    /// Copies `bytes` to owned memory.
    pub fn from_slice(bytes: &[u8]) -> Bytes {
        Bytes::from_parts(&[bytes])
    }

    /// Copies the parts to owned memory, one after the other.
    pub fn from_parts(parts: &[&[u8]]) -> Bytes {
        let map = Map::from_parts(parts);
        Bytes { range: 0..map.len(), map }
    }

    /// A part of these bytes, if it is within them.
    pub fn slice(&self, range: Range<usize>) -> Option<Bytes> {
        let start = self.range.start.checked_add(range.start)?;
        let end = self.range.start.checked_add(range.end)?;
        (range.start <= range.end && end <= self.range.end)
            .then_some(Bytes { map: self.map.clone(), range: start..end })
    }

    /// The map of these bytes, and their offset in it.
    pub fn map(&self) -> (&Arc<Map>, usize) {
        (&self.map, self.range.start)
    }

    /// True if these bytes are a view of a mapped file.
    pub fn is_mapped(&self) -> bool {
        self.map.is_mapped()
    }

    /// Returns the memory of a part of a mapped file to the system; a later read loads it from the
    /// file again. Parts beyond the bytes are ignored, and owned memory is kept.
    pub fn release(&self, part: Range<usize>) {
        let end = part.end.min(self.range.len());
        if part.start < end {
            self.map.release(self.range.start + part.start..self.range.start + end);
        }
    }

    /// Calls [`Self::release`] for whole views. Views of a file that are at most `gap` bytes apart
    /// are one request, which includes the bytes between them. Each request interrupts every
    /// processor that the process runs on.
    pub fn release_all<'a>(views: impl IntoIterator<Item = &'a Bytes>, gap: usize) {
        together(views, gap).into_iter().for_each(|(map, range)| map.release(range));
    }

    /// Announces that these views, and gaps of at most `gap` bytes between them, will be read
    /// whole. If Linux has to read them from the disk, it then caches them in large pages. Those
    /// are mapped and unmapped about ten times faster than small ones, also when the file is read
    /// again. Pages that are in memory already do not change.
    pub fn prefer_large_pages<'a>(views: impl IntoIterator<Item = &'a Bytes>, gap: usize) {
        together(views, gap).into_iter().for_each(|(map, range)| map.prefer_large_pages(range));
    }
}

/// Ranges of maps that views cover, ascending; ranges at most `gap` bytes apart are joined.
fn together<'a>(views: impl IntoIterator<Item = &'a Bytes>, gap: usize) -> Vec<(&'a Arc<Map>, Range<usize>)> {
    let mut views: Vec<&Bytes> = views.into_iter().filter(|view| !view.range.is_empty()).collect();
    views.sort_unstable_by_key(|view| (Arc::as_ptr(&view.map), view.range.start));
    let mut ranges: Vec<(&Arc<Map>, Range<usize>)> = Vec::new();
    for view in views {
        match ranges.last_mut() {
            Some((map, range))
                if Arc::ptr_eq(map, &view.map) && view.range.start <= range.end.saturating_add(gap) =>
            {
                range.end = range.end.max(view.range.end);
            }
            _ => ranges.push((&view.map, view.range.clone())),
        }
    }
    ranges
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map[self.range.clone()]
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({} at {})", self.range.len(), self.range.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_changed_is_named_and_what_is_gone_is_zeros() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        std::fs::write(&path, vec![7; 100_000]).unwrap();
        let open = |access| Map::open(&path, access).unwrap();
        let (mapped, copied) = (open(Access::Map), open(Access::Read));
        mapped.check_unchanged().unwrap();
        // A different file of the same name does not matter.
        let (aside, back) =
            (folder.path().join("aside"), |from: &Path| std::fs::rename(from, &path).unwrap());
        std::fs::rename(&path, &aside).unwrap();
        std::fs::write(&path, b"other").unwrap();
        mapped.check_unchanged().unwrap();
        back(&aside);

        let written = std::fs::File::options().write(true).open(&path).unwrap();
        written.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        let error = mapped.check_unchanged().unwrap_err().to_string();
        assert!(error.contains("model.gguf") && error.contains("written to"), "{error}");
        mapped.check_whole().unwrap();

        written.set_len(10).unwrap();
        let error = mapped.check_unchanged().unwrap_err().to_string();
        assert!(error.contains("10 bytes, expected 100000"), "{error}");
        if cfg!(unix) {
            mapped.check_whole().unwrap();
            assert_eq!((mapped[0], mapped[50_000]), (7, 0));
            let error = mapped.check_whole().unwrap_err().to_string();
            assert!(error.contains("model.gguf") && error.contains("cannot be read"), "{error}");
        }
        copied.check_unchanged().unwrap();
        assert_eq!(copied[50_000], 7);
    }

    #[test]
    fn what_was_released_comes_back_from_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let content =
            |salt: usize| (0..300_000).map(|i| (i * 7 + i / 4096 + salt) as u8).collect::<Vec<u8>>();
        let maps: Vec<Arc<Map>> = (0..2)
            .map(|i| {
                let path = folder.path().join(i.to_string());
                std::fs::write(&path, content(i)).unwrap();
                Map::open(&path, Access::Map).unwrap()
            })
            .collect();
        let view = |map: usize, range| Bytes::new(maps[map].clone(), range).unwrap();
        // The views are unordered, of two files, overlapping, near and far, with an empty one and
        // one of owned memory.
        let views = [
            view(1, 100_000..300_000),
            view(0, 200_000..300_000),
            view(0, 5_000..9_000),
            view(0, 3..6_000),
            view(1, 7..7),
            view(1, 0..99_000),
            Bytes::from_slice(&content(2)),
        ];
        let sums = || views.iter().map(|v| v.iter().map(|b| usize::from(*b)).sum()).collect::<Vec<usize>>();
        let before = sums();
        for gap in [0, 4096, usize::MAX] {
            Bytes::release_all(&views, gap);
            assert_eq!(sums(), before, "gap {gap}");
        }
        Bytes::release_all([], 0);
        Bytes::prefer_large_pages(&views, 4096);
        assert_eq!(sums(), before);
        let ranges: Vec<_> = together(&views[..6], 999).into_iter().map(|(_, range)| range).collect();
        let found: Vec<usize> = ranges.iter().flat_map(|r| [r.start, r.end]).collect();
        let (first, second) = ([3, 9_000, 200_000, 300_000], [0, 99_000, 100_000, 300_000]);
        assert!(found == [first, second].concat() || found == [second, first].concat(), "{ranges:?}");
        assert_eq!(views[6][..], content(2));
    }
}
