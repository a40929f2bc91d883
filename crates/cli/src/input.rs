//! Text on stdin. It is never dropped: it is appended to a text that is given as an argument.

use std::io::{self, IsTerminal, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;

use crate::tell::tell;

/// Time without input after which a note explains the wait.
const PATIENCE: Duration = Duration::from_secs(3);

/// The text on stdin; `None` if stdin is a terminal or empty.
///
/// # Errors
/// Stdin cannot be read, or is not UTF-8.
pub fn piped() -> anyhow::Result<Option<String>> {
    if io::stdin().is_terminal() {
        return Ok(None);
    }
    let has_ended = Arc::new(AtomicBool::new(false));
    let ended = has_ended.clone();
    // A parent process may leave its end of the pipe open by mistake.
    let watch = move || {
        std::thread::sleep(PATIENCE);
        if !ended.load(Ordering::Relaxed) {
            tell!("note: reading stdin until it ends; `</dev/null` skips it");
        }
    };
    std::thread::Builder::new().name("patience".to_owned()).spawn(watch)?;
    let text = all();
    has_ended.store(true, Ordering::Relaxed);
    Ok(Some(text?).filter(|text| !text.is_empty()))
}

/// All of stdin, even of a terminal.
///
/// # Errors
/// The errors of [`piped`].
pub fn all() -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    io::stdin().read_to_end(&mut bytes).context("reading stdin")?;
    decoded(bytes).context("stdin")
}

/// The text of a file.
///
/// # Errors
/// The file cannot be read, or is not UTF-8.
pub fn file(path: &Path) -> anyhow::Result<String> {
    let bytes = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    decoded(bytes).with_context(|| path.display().to_string())
}

/// Decodes UTF-8, without the byte order mark that Windows programs write.
fn decoded(bytes: Vec<u8>) -> anyhow::Result<String> {
    let mut text = String::from_utf8(bytes).map_err(|error| {
        let (at, bytes) = (error.utf8_error().valid_up_to(), error.as_bytes());
        let kind = if bytes.starts_with(&[0xFF, 0xFE]) || bytes.starts_with(&[0xFE, 0xFF]) {
            "a text in UTF-16"
        } else {
            "bytes that are not text"
        };
        anyhow::anyhow!("found {kind} at byte {at}, expected UTF-8")
    })?;
    if text.starts_with('\u{FEFF}') {
        text.remove(0);
    }
    Ok(text)
}

/// The message of an argument and of stdin, one paragraph each; `None` if there is neither. Line
/// ends at the end of stdin are dropped.
///
/// # Errors
/// The errors of [`piped`].
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

/// The text of an argument, directly followed by that of stdin; `None` if there is neither. `-` is
/// stdin.
///
/// # Errors
/// The errors of [`piped`].
pub fn text(given: Option<&str>) -> anyhow::Result<Option<String>> {
    match given {
        Some("-") => Ok(Some(all()?)),
        Some(given) => Ok(Some(given.to_owned() + &piped()?.unwrap_or_default())),
        None => piped(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_utf8_with_a_mark_or_without() {
        assert_eq!(decoded(b"\xEF\xBB\xBFhe\0llo".to_vec()).unwrap(), "he\0llo");
        let error = |bytes: &[u8]| decoded(bytes.to_vec()).unwrap_err().to_string();
        assert!(error(b"\xFF\xFEh\0").contains("UTF-16"));
        assert!(error(b"ab\xFF").contains("byte 2"));
    }
}
