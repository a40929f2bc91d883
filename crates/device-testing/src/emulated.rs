//! Tests that need an NVIDIA GPU, on an emulated one (`crates/device-cuda/emulator`).

use std::path::Path;
use std::process::Command;

/// Run tests of the calling binary that are marked `#[ignore]`, by their full names, on an emulated NVIDIA GPU with so many multiprocessors,
/// in a process of their own. `folder` keeps the emulator's libraries and compiled kernels.
///
/// # Errors
/// The emulator could not be built, for which it needs Python and a C++ compiler, or a test failed: with what was printed.
pub fn check_on_emulated_gpu(folder: &Path, n_processors: usize, tests: &[&str]) -> Result<(), String> {
    let run = |command: &mut Command| {
        let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match output.status.success() {
            true => Ok(text(&output.stdout)),
            false => Err(format!("{command:?}:\n{}{}", text(&output.stdout), text(&output.stderr))),
        }
    };
    let build = concat!(env!("CARGO_MANIFEST_DIR"), "/../device-cuda/emulator/build.sh");
    run(Command::new(build).arg(folder))?;
    let binary = std::env::current_exe().map_err(|error| error.to_string())?;
    let printed = run(Command::new(binary)
        .args(["--ignored", "--exact", "--test-threads", "1"])
        .args(tests)
        .env("LD_LIBRARY_PATH", folder)
        .env("XDG_CACHE_HOME", folder)
        .env("INGLE_EMULATED_PROCESSORS", n_processors.to_string()))?;
    let expected = format!(" {} passed", tests.len());
    if printed.contains(&expected) { Ok(()) } else { Err(format!("expected{expected}:\n{printed}")) }
}
