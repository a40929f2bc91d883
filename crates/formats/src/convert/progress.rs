//! How far a conversion has come, within a tensor too: one embedding may be most of a model.

use std::cell::{Cell, RefCell};
use std::io::{Result, Seek, SeekFrom, Write};

/// Bytes that are written at a time, so that writing a large tensor is heard of.
const PIECE: usize = 4 << 20;

/// Who hears of bytes, and of how many.
pub(super) struct Progress<'a> {
    hears: RefCell<&'a mut dyn FnMut(u64)>,
    /// Bytes of this tensor that were not told of.
    left: Cell<u64>,
    /// Whether they are told of as they are written: those of a tensor that is encoded were told of when they were made.
    as_written: Cell<bool>,
}

impl<'a> Progress<'a> {
    pub fn new(hears: &'a mut dyn FnMut(u64)) -> Progress<'a> {
        Progress { hears: RefCell::new(hears), left: Cell::new(0), as_written: Cell::new(false) }
    }

    /// A tensor of so many bytes is next.
    pub fn begin(&self, n_bytes: u64) {
        self.left.set(n_bytes);
        self.as_written.set(false);
    }

    /// So many bytes of it are done.
    pub fn advance(&self, n_bytes: u64) {
        let n = n_bytes.min(self.left.get());
        self.left.set(self.left.get() - n);
        if n > 0 {
            self.hears.borrow_mut()(n);
        }
    }

    /// What is left of it is done when it is written.
    pub fn count_written(&self) {
        self.as_written.set(true);
    }

    /// It is written.
    pub fn end(&self) {
        self.advance(self.left.get());
    }
}

/// A file, with progress of what is written to it.
pub(super) struct Counted<'a, 'b, W> {
    pub file: W,
    pub progress: &'a Progress<'b>,
}

impl<W: Write> Write for Counted<'_, '_, W> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        let n = self.file.write(bytes.get(..PIECE).unwrap_or(bytes))?;
        if self.progress.as_written.get() {
            self.progress.advance(n as u64);
        }
        Ok(n)
    }

    fn flush(&mut self) -> Result<()> {
        self.file.flush()
    }
}

impl<W: Seek> Seek for Counted<'_, '_, W> {
    fn seek(&mut self, to: SeekFrom) -> Result<u64> {
        self.file.seek(to)
    }
}
