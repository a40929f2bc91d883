//! Progress of a conversion, also within a tensor: one embedding may be most of a model.

use std::cell::{Cell, RefCell};
use std::io::{Result, Seek, SeekFrom, Write};

/// Bytes written at a time, so that a large tensor reports progress.
const PIECE: usize = 4 << 20;

/// Receiver of progress, and bytes of the current tensor.
pub(super) struct Progress<'a> {
    hears: RefCell<&'a mut dyn FnMut(u64)>,
    /// Bytes of the tensor that were not reported yet.
    left: Cell<u64>,
    /// True if bytes are reported when written; an encoded tensor's bytes are reported when made.
    as_written: Cell<bool>,
}

impl<'a> Progress<'a> {
    pub fn new(hears: &'a mut dyn FnMut(u64)) -> Progress<'a> {
        Progress { hears: RefCell::new(hears), left: Cell::new(0), as_written: Cell::new(false) }
    }

    /// Begins a tensor of `n_bytes` bytes.
    pub fn begin(&self, n_bytes: u64) {
        self.left.set(n_bytes);
        self.as_written.set(false);
    }

    /// Reports `n_bytes` bytes of the tensor.
    pub fn advance(&self, n_bytes: u64) {
        let n = n_bytes.min(self.left.get());
        self.left.set(self.left.get() - n);
        if n > 0 {
            self.hears.borrow_mut()(n);
        }
    }

    /// Reports the rest of the tensor when it is written.
    pub fn count_written(&self) {
        self.as_written.set(true);
    }

    /// Reports the rest of the tensor, which has been written.
    pub fn end(&self) {
        self.advance(self.left.get());
    }
}

/// A file that reports bytes written to it.
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
