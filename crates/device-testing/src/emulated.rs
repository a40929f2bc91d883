//! An emulated NVIDIA GPU on the CPU (`crates/device-cuda/emulator`), for tests.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Libraries that a process loads instead of NVIDIA's.
#[derive(Debug)]
pub struct EmulatedGpu {
    folder: PathBuf,
}

impl EmulatedGpu {
    /// Compiles the libraries and the kernels into a folder below cargo's folder for test files,
    /// where they are kept.
    ///
    /// # Errors
    /// The build failed, with its output. It needs Python and a C++ compiler.
    pub fn build(of_tests: &str) -> Result<EmulatedGpu, String> {
        let gpu = EmulatedGpu { folder: Path::new(of_tests).join("emulated-gpu") };
        let build = concat!(env!("CARGO_MANIFEST_DIR"), "/../device-cuda/emulator/build.sh");
        printed(Command::new(build).arg(&gpu.folder)).map(|_| gpu)
    }

    /// A command whose process sees the GPU. `emulator/driver.cc` lists the variables that select
    /// the kind of GPU.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", &self.folder).env("XDG_CACHE_HOME", &self.folder);
        command
    }

    /// Runs tests of the calling binary that are marked `#[ignore]`, by their full names, in a
    /// process that sees a GPU with `n_processors` multiprocessors.
    ///
    /// # Errors
    /// A test failed, with its output.
    pub fn test(&self, n_processors: usize, tests: &[&str]) -> Result<(), String> {
        let binary = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = self.command(binary);
        command.args(["--ignored", "--exact", "--test-threads", "1"]).args(tests);
        let printed = printed(command.env("INGLE_EMULATED_PROCESSORS", n_processors.to_string()))?;
        let expected = format!(" {} passed", tests.len());
        if printed.contains(&expected) { Ok(()) } else { Err(format!("expected{expected}:\n{printed}")) }
    }
}

/// Output of a command that succeeded.
fn printed(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(format!("{command:?}:\n{}{}", text(&output.stdout), text(&output.stderr))),
    }
}
