//! Checks, before anything is built, for the programs that the tests need beyond a Rust toolchain
//! and a C compiler. Missing ones are installed if possible.
//!
//! On x86-64 Linux the tests compile Metal's kernels with clang and run them under its sanitizers.
//! On every system they fetch models with pip. A missing program is installed if the machine has
//! `apt-get` and this process is root. Otherwise the error lists the missing programs and how to
//! install them.

use std::env;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Versions of clang, oldest and newest. The oldest one still compiles the emulator's headers; the
/// emulator looks for no newer one by name (`crates/metal-emulator/src/clang.rs`).
const CLANG_VERSIONS: std::ops::RangeInclusive<u32> = 16..=32;

/// The version of clang that the project is tested with, installed if the distribution has it.
const PREFERRED_CLANG: u32 = 19;

/// Values of clang's `-fsanitize=` that the tests use.
const SANITIZERS: [&str; 2] = ["address,undefined", "thread"];

/// Something that the tests need and this machine lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Missing {
    /// No clang in [`CLANG_VERSIONS`].
    Clang,
    /// The clang of this version has no sanitizer runtime.
    SanitizerRuntime(u32),
    /// No Python with pip.
    Pip,
}

/// Checks the machine, and installs what is missing where it can.
///
/// # Errors
///
/// A message that lists what is missing, what needs it, and how to install it.
pub fn prepare() -> Result<(), String> {
    let missing = check();
    if missing.is_empty() {
        return Ok(());
    }
    if let Err(reason) = apt_usable() {
        return Err(explain(&missing, reason));
    }
    apt_get(&["update"]).map_err(|reason| explain(&missing, &reason))?;
    let clang =
        missing.contains(&Missing::Clang).then(|| preferred_versions().find(|n| in_apt(*n))).flatten();
    let packages = packages(&missing, clang);
    let mut arguments = vec!["install", "--yes", "--no-install-recommends"];
    arguments.extend(packages.iter().map(String::as_str));
    eprintln!("xtask: installing {}", packages.join(" "));
    apt_get(&arguments).map_err(|reason| explain(&missing, &reason))?;
    let missing = check();
    if missing.is_empty() {
        Ok(())
    } else {
        Err(explain(&missing, "it is still missing after apt-get install"))
    }
}

/// Returns the needed programs that this machine lacks.
fn check() -> Vec<Missing> {
    let mut missing = Vec::new();
    if cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        match newest_clang() {
            None => missing.push(Missing::Clang),
            Some((name, version)) if !SANITIZERS.iter().all(|s| sanitizer_links(&name, s)) => {
                missing.push(Missing::SanitizerRuntime(version));
            }
            Some(_) => {}
        }
    }
    if !has_pip() {
        missing.push(Missing::Pip);
    }
    missing
}

/// Name and major version of the clang that the emulator will choose: the newest by name, else
/// `clang`.
fn newest_clang() -> Option<(String, u32)> {
    let names = CLANG_VERSIONS.rev().map(|n| format!("clang-{n}")).chain(["clang".to_owned()]);
    names.into_iter().find_map(|name| {
        let output = Command::new(&name).arg("--version").output().ok()?;
        let version = clang_major(&String::from_utf8_lossy(&output.stdout))?;
        CLANG_VERSIONS.contains(&version).then_some((name, version))
    })
}

/// The number after "clang version".
fn clang_major(version: &str) -> Option<u32> {
    let rest = version.split_once("clang version ")?.1;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Returns true if `clang` links a program with this sanitizer. Linking needs the sanitizer's
/// runtime, a linker and the C library.
fn sanitizer_links(clang: &str, sanitizer: &str) -> bool {
    let program = env::temp_dir().join(format!("xtask-sanitizer-{}", std::process::id()));
    let child = Command::new(clang)
        .args(["-x", "c", "-", &format!("-fsanitize={sanitizer}"), "-o"])
        .arg(&program)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = child else { return false };
    // If clang ends without reading its input, its exit status says so.
    let _ = child
        .stdin
        .take()
        .map(|mut stdin| stdin.write_all(b"#include <stdio.h>\nint main(void) { return 0; }\n"));
    let linked = child.wait().is_ok_and(|status| status.success());
    let _ = std::fs::remove_file(&program);
    linked
}

/// Returns true if a Python that can fetch models has pip. `crates/hub` tries the same candidates.
fn has_pip() -> bool {
    let candidates = match env::var_os("INGLE_PYTHON") {
        Some(python) => vec![PathBuf::from(python)],
        None => ["python3", "python", "py"].map(PathBuf::from).to_vec(),
    };
    candidates.iter().any(|python| runs(Command::new(python).args(["-m", "pip", "--version"])))
}

/// Returns true if `command` starts and succeeds. Its output is dropped.
fn runs(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Checks that packages can be installed. The error is the reason why they cannot.
fn apt_usable() -> Result<(), &'static str> {
    if !runs(Command::new("apt-get").arg("--version")) {
        return Err("cannot install it: there is no apt-get");
    }
    let id = Command::new("id").arg("-u").output().map_err(|_| "cannot install it: `id` does not run")?;
    if id.stdout.trim_ascii() == b"0" { Ok(()) } else { Err("cannot install it: not running as root") }
}

/// Runs `apt-get` without questions; an error names the command.
fn apt_get(arguments: &[&str]) -> Result<(), String> {
    let status = Command::new("apt-get")
        .arg("--quiet")
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`apt-get {}` failed: {status}", arguments.join(" "))),
        Err(error) => Err(format!("`apt-get {}` did not start: {error}", arguments.join(" "))),
    }
}

/// Returns true if the distribution has this version of clang with its sanitizer runtime.
fn in_apt(version: u32) -> bool {
    packages(&[Missing::Clang], Some(version))
        .iter()
        .all(|package| runs(Command::new("apt-cache").args(["show", package])))
}

/// Versions of clang in order of preference for installation.
fn preferred_versions() -> impl Iterator<Item = u32> {
    [PREFERRED_CLANG].into_iter().chain(CLANG_VERSIONS.rev().filter(|n| *n != PREFERRED_CLANG))
}

/// Debian packages that provide the missing programs. `clang` is the distribution's version, or the
/// preferred one if that is unknown.
fn packages(missing: &[Missing], clang: Option<u32>) -> Vec<String> {
    let clang = clang.unwrap_or(PREFERRED_CLANG);
    let mut packages = Vec::new();
    for item in missing {
        match item {
            Missing::Clang => packages.extend([format!("clang-{clang}"), format!("libclang-rt-{clang}-dev")]),
            Missing::SanitizerRuntime(version) => packages.push(format!("libclang-rt-{version}-dev")),
            Missing::Pip => packages.extend(["python3".to_owned(), "python3-pip".to_owned()]),
        }
    }
    packages
}

/// The error that lists the missing programs.
fn explain(missing: &[Missing], reason: &str) -> String {
    let mut text = String::from("the tests need what this machine lacks:\n");
    for item in missing {
        text += &match item {
            Missing::Clang => format!(
                "  - clang {} or newer with its sanitizer runtime: it compiles Metal's kernels, which the tests execute\n",
                CLANG_VERSIONS.start()
            ),
            Missing::SanitizerRuntime(version) => format!(
                "  - the sanitizer runtime of clang {version} (a program with -fsanitize={} does not link)\n",
                SANITIZERS.join(" or -fsanitize=")
            ),
            Missing::Pip => "  - Python 3 with pip: it fetches the models that the tests run\n".to_owned(),
        };
    }
    text += reason;
    text += "\non Debian and Ubuntu, as root: apt-get install ";
    text += &packages(missing, None).join(" ");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_parsed() {
        assert_eq!(clang_major("Debian clang version 19.1.7 (3~deb12u1)"), Some(19));
        assert_eq!(clang_major("clang version 22.1.8"), Some(22));
        assert_eq!(clang_major("gcc (Debian 12.2.0) 12.2.0"), None);
    }

    #[test]
    fn the_preferred_version_comes_first_and_each_once() {
        let mut versions: Vec<u32> = preferred_versions().collect();
        assert_eq!(versions[0], PREFERRED_CLANG);
        versions.sort_unstable();
        assert_eq!(versions, CLANG_VERSIONS.collect::<Vec<_>>());
    }

    #[test]
    fn a_runtime_is_installed_for_the_clang_that_lacks_it() {
        let missing = [Missing::SanitizerRuntime(17), Missing::Pip];
        assert_eq!(packages(&missing, None), ["libclang-rt-17-dev", "python3", "python3-pip"]);
        assert_eq!(packages(&[Missing::Clang], Some(16)), ["clang-16", "libclang-rt-16-dev"]);
    }

    #[test]
    fn the_error_lists_everything_and_the_command() {
        let text = explain(&[Missing::Clang, Missing::Pip], "this is not root");
        for part in [
            "clang 16 or newer",
            "Python 3 with pip",
            "this is not root",
            "apt-get install clang-19 libclang-rt-19-dev",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
