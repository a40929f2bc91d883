//! Search for clang, and its execution.

use crate::cache::Key;
use crate::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The oldest version that compiles the headers, which need `_Float16` on x86-64 with exact
/// intermediate results.
pub(crate) const MINIMUM: u32 = 16;
/// The newest version searched for by name.
const NEWEST: u32 = 32;

/// Most lines of its messages that are passed on.
const MOST_LINES: usize = 80;

/// A clang of a supported version.
#[derive(Debug, Clone)]
pub(crate) struct Clang {
    pub path: PathBuf,
    pub major: u32,
    /// First line of `--version`, a part of every cache key.
    pub version: String,
}

impl Clang {
    /// The requested clang, or the newest in PATH.
    pub fn find(asked: Option<&Path>) -> Result<Self, Error> {
        let names: Vec<PathBuf> = match asked {
            Some(path) => vec![path.to_owned()],
            None => (MINIMUM..=NEWEST)
                .rev()
                .map(|n| format!("clang-{n}").into())
                .chain([PathBuf::from("clang")])
                .collect(),
        };
        let mut found = String::new();
        for name in names {
            let Ok(output) = Command::new(&name).arg("--version").output() else { continue };
            let text = String::from_utf8_lossy(&output.stdout);
            let version = text.lines().next().unwrap_or_default().to_owned();
            match major(&version) {
                Some(n) if n >= MINIMUM => return Ok(Clang { path: name, major: n, version }),
                _ => found = format!(" (found {}: {version})", name.display()),
            }
        }
        Err(Error::NoClang { minimum: MINIMUM, found })
    }

    /// Start of the cache key of a file that clang makes.
    pub fn key(&self, what: &str) -> Key {
        Key::new(what).with(self.path.as_os_str().as_encoded_bytes()).with(&self.version)
    }

    /// Runs it in `directory`. Returns its standard output, or its messages if it failed.
    pub fn run(&self, directory: &Path, arguments: &[String]) -> Result<Result<String, String>, Error> {
        let start = |source| Error::Start { tool: self.path.display().to_string(), source };
        let output =
            Command::new(&self.path).args(arguments).current_dir(directory).output().map_err(start)?;
        if output.status.success() {
            return Ok(Ok(String::from_utf8_lossy(&output.stdout).into_owned()));
        }
        let text = String::from_utf8_lossy(&output.stderr);
        let lines: Vec<&str> = text.lines().take(MOST_LINES).collect();
        Ok(Err(lines.join("\n")))
    }
}

/// The number after "clang version".
fn major(version: &str) -> Option<u32> {
    let rest = version.split("clang version ").nth(1)?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        assert_eq!(major("Debian clang version 19.1.7 (3~deb12u1)"), Some(19));
        assert_eq!(major("clang version 22.1.8"), Some(22));
        assert_eq!(major("gcc (Debian 12.2.0) 12.2.0"), None);
    }

    #[test]
    fn a_missing_clang_says_what_to_install() {
        let error = Clang::find(Some(Path::new("/nonexistent/clang"))).unwrap_err().to_string();
        assert!(error.contains("apt-get install clang-"), "{error}");
    }

    #[test]
    fn another_compiler_is_named() {
        let error = Clang::find(Some(Path::new("cc"))).unwrap_err().to_string();
        assert!(error.contains("found cc: "), "{error}");
    }
}
