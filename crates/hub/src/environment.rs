//! Environment variables, and the folders that they name.

use std::ffi::OsString;
use std::path::PathBuf;

/// A function that looks up an environment variable.
pub(crate) type Lookup<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// The value of a variable that is set and not empty.
pub(crate) fn set(lookup: Lookup<'_>, name: &str) -> Option<OsString> {
    lookup(name).filter(|value| !value.is_empty())
}

/// The user's home folder.
pub(crate) fn home(lookup: Lookup<'_>) -> Option<PathBuf> {
    set(lookup, if cfg!(windows) { "USERPROFILE" } else { "HOME" }).map(PathBuf::from)
}

/// Hugging Face's own folder, shared with its tools, on every system: `HF_HOME`, else `huggingface`
/// in the XDG cache folder or `~/.cache`.
pub(crate) fn hf_home(lookup: Lookup<'_>) -> Option<PathBuf> {
    set(lookup, "HF_HOME").map(PathBuf::from).or_else(|| {
        let cache =
            set(lookup, "XDG_CACHE_HOME").map(PathBuf::from).or_else(|| Some(home(lookup)?.join(".cache")));
        Some(cache?.join("huggingface"))
    })
}
