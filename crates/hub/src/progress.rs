//! Progress of a fetch. The command line draws it; a library user may ignore it.

/// Receives the progress of a fetch. For each file, `start` is called, then `advance` any number of
/// times, then `finish`.
///
/// `start` may be called again for the same file if a server cannot resume; the count then restarts
/// at zero. After an error `finish` is not called.
pub trait Progress {
    /// A file begins. `total_bytes` is its length, if the server states it.
    fn start(&mut self, name: &str, total_bytes: Option<u64>);
    /// `bytes` more are on disk. The first call after `start` may count bytes of an earlier run.
    fn advance(&mut self, bytes: u64);
    /// The file is complete and its hash is right.
    fn finish(&mut self);
    /// A line for the user: a licence's terms, a wait for another process, the use of a cached
    /// copy.
    fn note(&mut self, text: &str);
    /// A line for `-v`, such as the place where a file was found.
    fn detail(&mut self, _text: &str) {}
}

/// A [`Progress`] that ignores everything.
#[derive(Debug, Default, Clone, Copy)]
pub struct Silent;

impl Progress for Silent {
    fn start(&mut self, _name: &str, _total_bytes: Option<u64>) {}
    fn advance(&mut self, _bytes: u64) {}
    fn finish(&mut self) {}
    fn note(&mut self, _text: &str) {}
}
