//! Text that is piped in. It is never dropped: where a text is given too, it belongs to that.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;

use crate::tell::tell;

/// How long nothing may happen before somebody is told what is waited for.
const PATIENCE: Duration = Duration::from_secs(3);

/// What is piped in; `None`: stdin is a terminal, or is empty.
///
/// # Errors
/// It cannot be read, or is not UTF-8.
pub fn piped() -> anyhow::Result<Option<String>> {
    if io::stdin().is_terminal() {
        return Ok(None);
    }
    let has_ended = Arc::new(AtomicBool::new(false));
    let ended = has_ended.clone();
    // A program that starts this one may leave its end of a pipe open, without a thought of it.
    let watch = move || {
        std::thread::sleep(PATIENCE);
        if !ended.load(Ordering::Relaxed) {
            tell!("note: reading stdin until it ends; `</dev/null` leaves it out");
        }
    };
    std::thread::Builder::new().name("patience".to_owned()).spawn(watch)?;
    let text = all();
    has_ended.store(true, Ordering::Relaxed);
    Ok(Some(text?).filter(|text| !text.is_empty()))
}

/// All of stdin, a terminal's too.
///
/// # Errors
/// As [`piped`].
pub fn all() -> anyhow::Result<String> {
    io::read_to_string(io::stdin()).context("reading stdin")
}

/// A message of what was given and of what is piped in, a paragraph each; `None`: there is neither. The shell's line end after what is
/// piped in is no part of it.
///
/// # Errors
/// As [`piped`].
pub fn message(given: Option<&str>) -> anyhow::Result<Option<String>> {
    let (given, piped) = match given {
        Some("-") => (None, Some(all()?)),
        given => (given, piped()?),
    };
    let piped = piped.map(|text| text.trim_end_matches(['\n', '\r']).to_owned());
    Ok(match (given, piped.filter(|text| !text.is_empty())) {
        (Some(given), Some(piped)) => Some(format!("{given}\n\n{piped}")),
        (Some(given), None) => Some(given.to_owned()),
        (None, piped) => piped,
    })
}

/// A text of what was given and, right after it, what is piped in, to the letter; `None`: there is neither. A `-` is stdin.
///
/// # Errors
/// As [`piped`].
pub fn text(given: Option<&str>) -> anyhow::Result<Option<String>> {
    match given {
        Some("-") => Ok(Some(all()?)),
        Some(given) => Ok(Some(given.to_owned() + &piped()?.unwrap_or_default())),
        None => piped(),
    }
}
