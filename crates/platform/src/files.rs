//! The limit of open files and sockets of this process, and files that a rename may replace.

use std::path::Path;
use std::{fs, io};

/// Raises the limit of open files as far as the system allows; returns the new limit. `None` if the
/// system has no such limit, or does not report it.
pub fn raise_open_files() -> Option<u64> {
    raise()
}

#[cfg(unix)]
fn raise() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid `rlimit` that outlives the call.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return None;
    }
    // macOS rejects more than OPEN_MAX, even if the hard limit is higher.
    let most = if cfg!(target_os = "macos") { limit.rlim_max.min(10_240) } else { limit.rlim_max };
    if limit.rlim_cur < most {
        let raised = libc::rlimit { rlim_cur: most, ..limit };
        // SAFETY: `raised` is a valid `rlimit` that outlives the call.
        if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) } == 0 {
            limit = raised;
        }
    }
    // rlim_t has 32 bits on some systems.
    #[allow(clippy::useless_conversion)]
    Some(limit.rlim_cur.into())
}

#[cfg(not(unix))]
fn raise() -> Option<u64> {
    None
}

/// Checks that a file renamed to `path` replaces a regular file or nothing. A rename to a device or
/// a pipe would remove it for all programs: `/dev/null`, for example, if this one runs as root.
///
/// # Errors
///
/// `path` is a folder, a device, a pipe or a socket.
pub fn check_replaceable(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(found) if !found.is_file() => {
            Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file, expected one or none"))
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_replaceable() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        assert!(check_replaceable(&here.join("Cargo.toml")).is_ok());
        assert!(check_replaceable(&here.join("none")).is_ok());
        for other in [here, Path::new("/dev/null")] {
            assert_eq!(check_replaceable(other).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn the_limit_is_as_high_as_it_may_be() {
        let raised = raise_open_files().unwrap();
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `limit` is a valid `rlimit` that outlives the call.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) }, 0);
        assert_eq!(raised, limit.rlim_cur);
        assert!(raised >= 64, "{raised}");
        assert!(cfg!(target_os = "macos") || limit.rlim_cur == limit.rlim_max, "{raised}");
    }
}
