//! Reads a binary file from front to back. Errors name what was being read.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use weights::{BlockType, Bytes, Error, Map, Result};

/// Little-endian doubles as F32, copied because no kernel reads doubles.
pub(crate) fn singles(doubles: &[u8]) -> Bytes {
    let singles: Vec<u8> =
        doubles.as_chunks().0.iter().flat_map(|&d| (f64::from_le_bytes(d) as f32).to_le_bytes()).collect();
    Bytes::from_slice(&singles)
}

/// A position in a file. The arguments `at` name what is being read; they are formatted only for an
/// error.
pub(crate) struct Cursor<'a> {
    map: &'a Arc<Map>,
    /// Position in bytes from the start of the file.
    pub at: usize,
    /// Path of the file, for errors.
    pub file: &'a Path,
}

impl<'a> Cursor<'a> {
    /// A cursor at the start of the file.
    pub fn new(map: &'a Arc<Map>, file: &'a Path) -> Cursor<'a> {
        Cursor { map, at: 0, file }
    }

    /// Makes an [`Error::Malformed`].
    #[cold]
    pub fn error(&self, at: fmt::Arguments, found: impl fmt::Display, expected: impl fmt::Display) -> Error {
        Error::malformed(self.file, at, found, expected)
    }

    /// Bytes to the end of the file.
    pub fn remaining(&self) -> usize {
        self.map.len() - self.at
    }

    /// The next `n` bytes.
    #[inline]
    pub fn take(&mut self, n: usize, at: fmt::Arguments) -> Result<&'a [u8]> {
        let map: &'a [u8] = self.map;
        let end = self.at.checked_add(n);
        let Some(bytes) = end.and_then(|end| map.get(self.at..end)) else {
            return Err(self.error(
                at,
                format_args!("{} bytes to the end of the file", self.remaining()),
                format_args!("{n} at byte {}", self.at),
            ));
        };
        self.at += n;
        Ok(bytes)
    }

    /// The next `N` bytes as an array.
    #[inline]
    pub fn array<const N: usize>(&mut self, at: fmt::Arguments) -> Result<[u8; N]> {
        let bytes = self.take(N, at)?;
        let mut array = [0; N];
        array.copy_from_slice(bytes);
        Ok(array)
    }

    /// Reads a little-endian integer.
    #[inline]
    pub fn u32(&mut self, at: fmt::Arguments) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array(at)?))
    }

    /// Reads a little-endian integer.
    #[inline]
    pub fn u64(&mut self, at: fmt::Arguments) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array(at)?))
    }

    /// Checks that the rest of the file has room for `n` items of at least `min_bytes` bytes each.
    /// Returns `n`.
    #[inline]
    pub fn room_for(&self, n: u64, min_bytes: usize, at: fmt::Arguments) -> Result<usize> {
        let room = self.remaining() / min_bytes;
        usize::try_from(n).ok().filter(|&n| n <= room).ok_or_else(|| {
            self.error(
                at,
                format_args!("{n} items"),
                format_args!("at most {room}, as {} bytes remain", self.remaining()),
            )
        })
    }

    /// Checks that bytes are UTF-8.
    pub fn text<'b>(&self, bytes: &'b [u8], at: fmt::Arguments) -> Result<&'b str> {
        std::str::from_utf8(bytes).map_err(|e| {
            let bad: Vec<u8> = bytes.iter().skip(e.valid_up_to()).take(4).copied().collect();
            self.error(
                at,
                format_args!("\"{}\" at byte {}", bad.escape_ascii(), e.valid_up_to()),
                "UTF-8 text",
            )
        })
    }

    /// Bytes of a tensor of an untrusted shape, outermost dimension first.
    ///
    /// # Errors
    /// Rows are not whole blocks, or the size overflows.
    pub fn tensor_bytes(&self, shape: &[usize], block: BlockType, at: fmt::Arguments) -> Result<usize> {
        let n_cols = shape.last().copied().unwrap_or(1);
        if !n_cols.is_multiple_of(block.block_len()) {
            return Err(self.error(
                at,
                format_args!("rows of {n_cols} values"),
                format_args!("a multiple of {}, {block}'s block", block.block_len()),
            ));
        }
        let n_values = shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim));
        let n_bytes = n_values.and_then(|n| (n / block.block_len()).checked_mul(block.block_bytes()));
        n_bytes.ok_or_else(|| {
            self.error(at, format_args!("shape {shape:?}"), "a number of bytes that fits the address space")
        })
    }

    /// A view of a part of the file.
    pub fn bytes(&self, range: std::ops::Range<usize>, at: fmt::Arguments) -> Result<Bytes> {
        Bytes::new(self.map.clone(), range.clone())
            .ok_or_else(|| self.error(at, format_args!("bytes {range:?}"), "a range within the file"))
    }
}
