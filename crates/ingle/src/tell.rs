//! Everything that goes to stderr: lines for people, the log, the pieces of progress bars. One place, for three reasons:
//!
//! - **A reader of stderr that has gone away, or does not read, is nobody's failure.** Failed writes are ignored, and a server writes
//!   from a thread of its own ([`apart`]), so that a full pipe stops no request and no signal.
//! - Colour is only for terminals, and not where `NO_COLOR` is set.
//! - Lines are broken between words where they are wider than the terminal.
//!
//! The macros of the standard library panic where a write fails, so a lint keeps them out of this crate.

use std::fmt::Arguments;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::wrap;

/// How often `-v` was given.
static VERBOSE: AtomicU8 = AtomicU8::new(0);

/// Where lines go once [`apart`] was called.
static QUEUE: OnceLock<Queue> = OnceLock::new();

/// Pieces that wait for a reader of stderr; what comes while so many wait is lost.
const MAX_WAITING: usize = 1024;

/// How long the end of the program waits for a reader of what was written last.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// A line on stderr, as `eprintln!` writes it.
macro_rules! tell {
    ($($part:tt)*) => { $crate::tell::line(format_args!($($part)*)) };
}
pub(crate) use tell;

/// Set how often `-v` was given.
pub fn set_verbose(times: u8) {
    VERBOSE.store(times, Ordering::Relaxed);
}

/// Whether `-v` was given.
pub fn is_verbose() -> bool {
    VERBOSE.load(Ordering::Relaxed) > 0
}

/// Whether colours are wanted, on a terminal: neither `NO_COLOR` nor a terminal without colours says otherwise.
pub fn colours() -> bool {
    let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    wanted && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Whether stderr shows colours and other marks.
pub fn has_colour() -> bool {
    colours() && io::stderr().is_terminal()
}

/// A line, broken between words where stderr is a terminal that is narrower.
pub fn line(text: Arguments<'_>) {
    let mut text = text.to_string();
    if let Some(width) = wrap::stderr_width() {
        text = wrap::lines(&text, width, 0);
    }
    text.push('\n');
    Stderr.put(text.as_bytes());
}

/// A line that matters little: dimmed where stderr shows colours.
pub fn aside(text: &str) {
    match has_colour() {
        true => line(format_args!("\x1b[2m{text}\x1b[22m")),
        false => line(format_args!("{text}")),
    }
}

/// A paragraph whose lines after the first begin `indent` columns from the left, where they have to be broken.
pub fn hanging(text: &str, indent: usize) {
    let broken = wrap::stderr_width().map(|width| wrap::lines(text, width, indent));
    Stderr.put(format!("{}\n", broken.as_deref().unwrap_or(text)).as_bytes());
}

/// A piece of text as it is.
pub fn piece(text: &str) {
    Stderr.put(text.as_bytes());
}

/// Stderr as a writer that never fails.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stderr;

impl Stderr {
    fn put(self, bytes: &[u8]) {
        match QUEUE.get() {
            Some(queue) => drop(queue.pieces.try_send(Piece::Bytes(bytes.to_owned()))),
            None => _ = io::stderr().write_all(bytes),
        }
    }
}

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.put(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Queue {
    pieces: SyncSender<Piece>,
    /// Hears when all that came before a [`Piece::Last`] is written.
    written: Mutex<Receiver<()>>,
}

enum Piece {
    Bytes(Vec<u8>),
    Last,
}

/// From now on, write from a thread of its own: whoever tells something never waits for a reader.
///
/// # Errors
/// The thread cannot be started; lines are then written as before.
pub fn apart() -> io::Result<()> {
    let (pieces, waiting) = sync_channel(MAX_WAITING);
    let (written, hear) = sync_channel(1);
    let write = move || {
        for piece in waiting {
            match piece {
                Piece::Bytes(bytes) => _ = io::stderr().write_all(&bytes),
                Piece::Last => _ = written.try_send(()),
            }
        }
    };
    std::thread::Builder::new().name("stderr".to_owned()).spawn(write)?;
    _ = QUEUE.set(Queue { pieces, written: Mutex::new(hear) });
    Ok(())
}

/// Wait until what was told is written, but not for long.
pub fn finish() {
    if let Some(queue) = QUEUE.get()
        && queue.pieces.try_send(Piece::Last).is_ok()
    {
        let written = queue.written.lock().unwrap_or_else(PoisonError::into_inner);
        _ = written.recv_timeout(LAST_WORDS);
    }
}

/// Panics are told here, too.
pub fn hear_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let backtrace = std::backtrace::Backtrace::capture();
        let lines = match backtrace.status() {
            std::backtrace::BacktraceStatus::Captured => format!("\n{backtrace}"),
            _ => String::new(),
        };
        line(format_args!("thread '{}' {panic}{lines}", thread.name().unwrap_or("without a name")));
    }));
}
