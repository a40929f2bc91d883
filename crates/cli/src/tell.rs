//! Output to stderr: lines for people, the log, and progress bars. All of it passes through this
//! file, for three reasons:
//!
//! - **A full or closed pipe of stderr is not an error.** Failed writes are ignored. A server
//!   writes from its own thread ([`apart`]), so that a full pipe stops neither requests nor
//!   signals.
//! - Colours are only for terminals, and not if `NO_COLOR` is set.
//! - Lines wider than the terminal are broken between words.
//!
//! The macros of the standard library panic if a write fails, so a lint forbids them in this crate.

use std::fmt::Arguments;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::wrap;

/// Number of `-v` flags.
static VERBOSE: AtomicU8 = AtomicU8::new(0);

/// The queue of the writing thread, after [`apart`].
static QUEUE: OnceLock<Queue> = OnceLock::new();

/// Maximum number of pieces in the queue; further pieces are dropped.
const MAX_WAITING: usize = 1024;

/// Longest wait for the last pieces at the end of the program.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Prints a line on stderr, with the syntax of `eprintln!`.
macro_rules! tell {
    ($($part:tt)*) => { $crate::tell::line(format_args!($($part)*)) };
}
pub(crate) use tell;

/// Sets the number of `-v` flags.
pub fn set_verbose(times: u8) {
    VERBOSE.store(times, Ordering::Relaxed);
}

/// True if `-v` was given.
pub fn is_verbose() -> bool {
    VERBOSE.load(Ordering::Relaxed) > 0
}

/// True if the user wants colours: `NO_COLOR` is not set and the terminal supports them.
pub fn colours() -> bool {
    let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    wanted && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// True if stderr shows colours.
pub fn has_colour() -> bool {
    colours() && io::stderr().is_terminal()
}

/// Prints a line, broken between words at the terminal's width.
pub fn line(text: Arguments<'_>) {
    let mut text = text.to_string();
    if let Some(width) = wrap::stderr_width() {
        text = wrap::lines(&text, width, 0);
    }
    text.push('\n');
    Stderr.put(text.as_bytes());
}

/// Prints a minor line, dimmed if stderr shows colours.
pub fn aside(text: &str) {
    match has_colour() {
        true => line(format_args!("\x1b[2m{text}\x1b[22m")),
        false => line(format_args!("{text}")),
    }
}

/// Prints a paragraph. Lines after a break are indented by `indent` columns.
pub fn hanging(text: &str, indent: usize) {
    let broken = wrap::stderr_width().map(|width| wrap::lines(text, width, indent));
    Stderr.put(format!("{}\n", broken.as_deref().unwrap_or(text)).as_bytes());
}

/// Prints a piece of text without changes.
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
    /// Receives a signal when everything before a [`Piece::Last`] is written.
    written: Mutex<Receiver<()>>,
}

enum Piece {
    Bytes(Vec<u8>),
    Last,
}

/// Starts the writing thread, after which no caller waits for a reader of stderr.
///
/// # Errors
/// The thread cannot be started; lines are then written directly.
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

/// Waits until the queue is written, but not for long.
pub fn finish() {
    if let Some(queue) = QUEUE.get()
        && queue.pieces.try_send(Piece::Last).is_ok()
    {
        let written = queue.written.lock().unwrap_or_else(PoisonError::into_inner);
        _ = written.recv_timeout(LAST_WORDS);
    }
}

/// Prints panics through this file, too.
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
