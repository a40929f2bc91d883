//! How a fetch tells what it is doing. The command line draws it; a library user may ignore it.

/// Receives the course of a fetch: for each file `start`, any number of `advance`, `finish`.
///
/// `start` may come again for the same file, when a server cannot go on where it stopped and everything is sent
/// anew; the count then begins again at zero. On an error `finish` does not come.
pub trait Progress {
    /// A file begins. `total_bytes` is its length, when the server says.
    fn start(&mut self, name: &str, total_bytes: Option<u64>);
    /// So many more bytes are on disk; the first call after `start` may count what an earlier run left there.
    fn advance(&mut self, bytes: u64);
    /// The file is complete and its hash is right.
    fn finish(&mut self);
    /// A line for a person: a licence's terms, a wait for another process, the use of a cached copy.
    fn note(&mut self, text: &str);
}

/// A [`Progress`] that drops everything.
#[derive(Debug, Default, Clone, Copy)]
pub struct Silent;

impl Progress for Silent {
    fn start(&mut self, _name: &str, _total_bytes: Option<u64>) {}
    fn advance(&mut self, _bytes: u64) {}
    fn finish(&mut self) {}
    fn note(&mut self, _text: &str) {}
}
