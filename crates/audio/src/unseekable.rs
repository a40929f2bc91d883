//! Sources that cannot seek.

use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Mutex;

use symphonia::core::io::MediaSource;

/// A reader that cannot seek. The decoders require a `Sync` source; this lock is never contended.
pub(crate) struct Unseekable<R>(Mutex<R>);

impl<R> Unseekable<R> {
    pub(crate) fn new(reader: R) -> Unseekable<R> {
        Unseekable(Mutex::new(reader))
    }
}

impl<R: Read> Read for Unseekable<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self.0.get_mut() {
            Ok(reader) => reader.read(buf),
            Err(poisoned) => poisoned.into_inner().read(buf),
        }
    }
}

impl<R> Seek for Unseekable<R> {
    fn seek(&mut self, _: SeekFrom) -> io::Result<u64> {
        Err(io::ErrorKind::NotSeekable.into())
    }
}

impl<R: Read + Send> MediaSource for Unseekable<R> {
    fn is_seekable(&self) -> bool {
        false
    }

    fn byte_len(&self) -> Option<u64> {
        None
    }
}
