//! Limits of one rendering. A template comes with a model's file, so it is treated as hostile. The
//! engine's fuel counts instructions and not their work: one `replace` may read 64 MiB.
//!
//! Every operation that makes or reads a value charges the budget beforehand. The budget is
//! thread-local while the rendering runs, because the engine iterates over lists without passing
//! its state.

use std::cell::RefCell;
use std::fmt;
use std::time::{Duration, Instant};

use minijinja::{Error, ErrorKind};

/// Work between two checks of the clock, in units of [`work`].
const WORK_BETWEEN_LOOKS: u64 = 1 << 16;

/// The limits of one rendering.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Bytes of all texts, lists and objects made, including those dropped again.
    pub(super) created: u64,
    /// Bytes and items read, compared, hashed and copied.
    pub(super) work: u64,
    /// Longest time of the rendering.
    pub(super) time: Duration,
}

/// The limit that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spent {
    Created,
    Work,
    Time,
}

#[derive(Debug)]
struct Budget {
    limits: Limits,
    created: u64,
    work: u64,
    next_look: u64,
    deadline: Instant,
    spent: Option<Spent>,
}

thread_local! {
    static CURRENT: RefCell<Option<Budget>> = const { RefCell::new(None) };
}

/// Error of a rendering that reached a limit.
#[derive(Debug)]
pub(super) struct Exceeded {
    which: Spent,
    limits: Limits,
}

impl fmt::Display for Exceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.which {
            Spent::Created => {
                write!(f, "it makes more than {} bytes of texts and lists", self.limits.created)
            }
            Spent::Work => write!(f, "it reads and compares more than {} bytes", self.limits.work),
            Spent::Time => write!(f, "it takes longer than {} s", self.limits.time.as_secs()),
        }
    }
}

/// Runs `render` within `limits`, and returns the limit that it reached, if any.
pub(super) fn within<T>(limits: Limits, render: impl FnOnce() -> T) -> (T, Option<Exceeded>) {
    /// Ends the budget even if the rendering panics.
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            CURRENT.take();
        }
    }
    CURRENT.set(Some(Budget {
        limits,
        created: 0,
        work: 0,
        next_look: WORK_BETWEEN_LOOKS,
        deadline: Instant::now() + limits.time,
        spent: None,
    }));
    let _end = End;
    let out = render();
    let spent = CURRENT.with_borrow(|budget| budget.as_ref().and_then(|budget| budget.spent));
    (out, spent.map(|which| Exceeded { which, limits }))
}

/// Charges for `n` bytes or items before they are read, compared, hashed or copied.
///
/// # Errors
/// The rendering has reached a limit.
pub(super) fn work(n: u64) -> Result<(), Error> {
    charge(0, n)
}

/// Charges for a value of `bytes` before it is made.
///
/// # Errors
/// The rendering has reached a limit.
pub(super) fn create(bytes: u64) -> Result<(), Error> {
    charge(bytes, bytes)
}

/// Returns true if a limit has been reached, so that work can stop.
pub(super) fn is_spent() -> bool {
    CURRENT.with_borrow(|budget| budget.as_ref().is_some_and(|budget| budget.spent.is_some()))
}

fn charge(created: u64, work: u64) -> Result<(), Error> {
    CURRENT.with_borrow_mut(|budget| match budget {
        // Outside of a rendering, constants of a template are evaluated while it is compiled.
        None => Ok(()),
        Some(budget) => budget.charge(created, work),
    })
}

impl Budget {
    fn charge(&mut self, created: u64, work: u64) -> Result<(), Error> {
        self.created = self.created.saturating_add(created);
        self.work = self.work.saturating_add(work);
        if self.spent.is_none() {
            if self.created > self.limits.created {
                self.spent = Some(Spent::Created);
            } else if self.work > self.limits.work {
                self.spent = Some(Spent::Work);
            } else if self.work >= self.next_look {
                self.next_look = self.work + WORK_BETWEEN_LOOKS;
                if Instant::now() > self.deadline {
                    self.spent = Some(Spent::Time);
                }
            }
        }
        match self.spent {
            None => Ok(()),
            Some(which) => {
                Err(Error::new(ErrorKind::OutOfFuel, Exceeded { which, limits: self.limits }.to_string()))
            }
        }
    }
}

/// A text that is charged as it grows.
#[derive(Debug, Default)]
pub(super) struct Text {
    text: String,
    charged: usize,
}

impl Text {
    /// Bytes written before they are charged, so that single characters cost little.
    const UNCHARGED: usize = 1024;

    /// Returns the whole text.
    ///
    /// # Errors
    /// The rendering has reached a limit.
    pub(super) fn finish(mut self) -> Result<String, Error> {
        self.charge(0)?;
        Ok(self.text)
    }

    fn charge(&mut self, more: usize) -> Result<(), Error> {
        let len = self.text.len() + more;
        create((len - self.charged) as u64)?;
        self.charged = len;
        Ok(())
    }
}

impl fmt::Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.text.len() - self.charged + text.len() > Text::UNCHARGED {
            self.charge(text.len()).map_err(|_| fmt::Error)?;
        }
        self.text.push_str(text);
        Ok(())
    }
}

/// A writer that charges for the bytes written.
pub(super) struct Charged<'a, W>(pub(super) &'a mut W);

impl<W: fmt::Write> fmt::Write for Charged<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        create(text.len() as u64).map_err(|_| fmt::Error)?;
        self.0.write_str(text)
    }
}
