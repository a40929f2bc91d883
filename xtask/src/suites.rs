//! The suites: the list of jobs that each test command runs.

use crate::lanes::{self, Cores, Job};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Crates that `quick` tests. None of them contains or, for its tests, compiles the CPU and Metal
/// devices, which take longer to compile than all of these crates together.
const QUICK: &[&str] = &[
    "ingle-audio",
    "ingle-device",
    "ingle-device-check",
    "ingle-device-lower",
    "ingle-device-reference",
    "ingle-device-testing",
    "ingle-formats",
    "ingle-hub",
    "ingle-platform",
    "ingle-text",
    "ingle-weights",
    "xtask",
];

/// Number of cases of a property test in `full`; proptest's default is 256. A test with fewer cases
/// by default runs more of them in proportion (`device_testing::cases`).
const FULL_CASES: &str = "4096";

/// Architectures for which registers and spills of CUDA kernels are recorded: one without kernels
/// of its own, and Hopper.
const RECORDED: [&str; 2] = ["sm_80", "sm_90a"];

/// Tests of `examples/gpu_test` that run on an emulated GPU in `full`: those that need minutes
/// rather than hours. Each entry is a process: its compute capability times ten, and test names.
const EMULATED: [(&str, &str); 7] = [
    ("90", "Linear, CrossAttention"),
    ("80", "Linear, SelfAttention"),
    ("90", "Attention"),
    ("90", "rings, general 30, chain 5, chain 6"),
    ("90", "general 63, general 81"),
    ("90", "Embed, RmsNorm, Rope, Route, LayerNorm, Pool, ExpertSum, Columns, Argmax"),
    ("90", "ExpertLinear, SelfAttention"),
];

/// Arguments of the cargo that tests the CPU device with overflow checks, which its profile
/// disables.
const CHECKED: &[&str] = &[
    "--config",
    "profile.dev.package.ingle-device-cpu.overflow-checks=true",
    "test",
    "--package",
    "ingle-device-cpu",
    "--tests",
];

/// Runs the quick tests of `cargo xtask quick`; `arguments` go to the test binaries.
pub fn quick(arguments: &[String]) -> Result<(), String> {
    let packages: Vec<&str> = QUICK.iter().flat_map(|package| ["--package", package]).collect();
    let jobs = build(&[&["--lib", "--bins", "--tests"], packages.as_slice()].concat(), arguments)?;
    lanes::run(jobs, &logs(), compilation(), Cores::Halved)
}

/// Runs everything that `cargo test --workspace` runs, except for examples without tests.
/// `arguments` go to the test binaries.
pub fn test(arguments: &[String]) -> Result<(), String> {
    let mut jobs = build(&["--workspace", "--tests"], arguments)?;
    jobs.insert(0, doc_tests(arguments));
    lanes::run(jobs, &logs(), compilation(), Cores::Halved)
}

/// Runs `test` and all longer checks.
pub fn full() -> Result<(), String> {
    let mut arguments = vec!["--include-ignored".to_owned()];
    if !Path::new("/dev/nvidia0").exists() {
        println!("The tests named `on_cuda` need an NVIDIA GPU: they run on an emulated one, at the end");
        arguments.extend(["--skip", "on_cuda"].map(str::to_owned));
    }
    let mut jobs = build(&["--workspace", "--tests"], &arguments)?;
    jobs.insert(0, doc_tests(&[]));
    let environment = [compilation(), &[("PROPTEST_CASES", FULL_CASES)]].concat();
    lanes::run(jobs, &logs(), &environment, Cores::All)?;
    run(cargo(CHECKED).envs(compilation().iter().copied()))?;
    let [older, hopper] = RECORDED;
    crate::cuda::kernels(&["--check", older, hopper].map(str::to_owned))?;
    if cfg!(target_os = "linux") {
        run(&mut Command::new("crates/device-cuda/emulator/check.sh"))?;
        emulated_gpu(&[])?;
    }
    // These scripts need x86-64 Linux and clang, which `setup` has checked.
    if cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        run(&mut Command::new("scripts/neon-under-qemu"))?;
        run(Command::new("rustup").args(["target", "add", "aarch64-apple-darwin"]))?;
        run(&mut Command::new(".ci/link-darwin"))?;
    }
    Ok(())
}

/// Runs tests that need an NVIDIA GPU on an emulated one: the named tests of
/// `examples/gpu_test`, or [`EMULATED`] and the tests of models if there are no names.
pub fn emulated_gpu(names: &[String]) -> Result<(), String> {
    // The tests of `cargo test` use the same folder.
    let folder = target().join("tmp/emulated-gpu");
    run(Command::new("crates/device-cuda/emulator/build.sh").arg(&folder))?;
    run(&mut cargo(&["build", "--package", "ingle-device-cuda", "--example", "gpu_test"]))?;
    let on_gpu = ["--ignored", "on_cuda"].map(str::to_owned);
    let tests: &[&str] = &["--package", "ingle-cli", "--package", "ingle-model", "--test", "main"];
    let mut jobs = if names.is_empty() { build(tests, &on_gpu)? } else { Vec::new() };
    let named = names.join(", ");
    let processes = if names.is_empty() { EMULATED.to_vec() } else { vec![("90", named.as_str())] };
    let program = target().join("debug/examples/gpu_test").to_string_lossy().into_owned();
    jobs.extend(processes.into_iter().map(|(architecture, tests)| {
        let mut arguments = vec![format!("INGLE_EMULATED_ARCHITECTURE={architecture}"), program.clone()];
        arguments.extend(tests.split(", ").map(str::to_owned));
        let name = format!("gpu_test on sm_{architecture}: {tests}");
        Job { name, program: "env".into(), arguments, folder: root(), is_of_package: false }
    }));
    // Compiled kernels are cached in that folder; models stay in their usual cache.
    let (folder, models) = (folder.to_string_lossy(), models());
    let emulated =
        [("LD_LIBRARY_PATH", &*folder), ("XDG_CACHE_HOME", &*folder), ("INGLE_CACHE", models.as_str())];
    lanes::run(jobs, &logs(), &[compilation(), &emulated].concat(), Cores::All)
}

/// The folder in which `ingle` caches models.
fn models() -> String {
    let of = |name: &str, below: &str| env::var_os(name).map(|folder| PathBuf::from(folder).join(below));
    let found = of("INGLE_CACHE", "")
        .or_else(|| of("XDG_CACHE_HOME", "ingle"))
        .or_else(|| of("HOME", ".cache/ingle"));
    found.unwrap_or_default().to_string_lossy().into_owned()
}

/// Runs client programs of other projects against the release build, each group in a virtual
/// environment of its own. `arguments` go to `scripts/clients`.
pub fn clients(arguments: &[String]) -> Result<(), String> {
    run(&mut cargo(&["build", "--release", "--package", "ingle-cli"]))?;
    run(&mut cargo(&["build", "--release", "--package", "ingle-text", "--example", "masks"]))?;
    let release = target().join("release");
    let mut check = Command::new("python3");
    check.arg("scripts/clients").arg(release.join("ingle"));
    check.arg("--masks").arg(release.join("examples/masks"));
    check.arg("--environments").arg(target().join("clients"));
    check.args(["--table", "docs/clients.md"]).args(arguments);
    run(&mut check).map(drop)
}

/// Builds the tests of `selection` and lists their binaries.
fn build(selection: &[&str], arguments: &[String]) -> Result<Vec<Job>, String> {
    let mut command = cargo(&["test", "--no-run", "--message-format=json-render-diagnostics"]);
    command.args(selection).stdout(Stdio::piped()).envs(compilation().iter().copied());
    let messages = run(&mut command)?;
    let jobs = lanes::jobs(&messages, arguments);
    if jobs.is_empty() { Err("cargo built no tests".to_owned()) } else { Ok(jobs) }
}

/// Environment variables for every cargo that compiles. In a fresh clone everything is compiled
/// once. A build without increments and with one codegen unit per crate takes a third less CPU time
/// than one with sixteen. If our crates were compiled incrementally before, they stay so, because a
/// switch would compile all of them again.
pub fn compilation() -> &'static [(&'static str, &'static str)] {
    let entries = fs::read_dir(target().join("debug/incremental"));
    // `cargo xtask` itself was compiled incrementally just now.
    let is_ours = |name: &str| !name.starts_with("xtask");
    let incremental =
        entries.is_ok_and(|e| e.flatten().any(|entry| is_ours(&entry.file_name().to_string_lossy())));
    const ONCE: &[(&str, &str)] = &[("CARGO_INCREMENTAL", "0"), ("CARGO_PROFILE_DEV_CODEGEN_UNITS", "1")];
    if incremental { &[] } else { ONCE }
}

/// The job that runs documentation tests, which rustdoc compiles.
fn doc_tests(arguments: &[String]) -> Job {
    let mut all: Vec<String> = ["test", "--workspace", "--doc", "--"].map(str::to_owned).to_vec();
    all.extend_from_slice(arguments);
    let name = "documentation".to_owned();
    Job { name, program: cargo_path(), arguments: all, folder: root(), is_of_package: false }
}

fn cargo_path() -> PathBuf {
    env::var_os("CARGO").map_or_else(|| "cargo".into(), PathBuf::from)
}

/// A command that runs cargo with `arguments`.
pub fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(cargo_path());
    command.args(arguments);
    command
}

/// The root of the workspace.
pub fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask).to_owned()
}

/// Cargo's target folder.
fn target() -> PathBuf {
    root().join(env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from))
}

/// The folder for the outputs of test binaries.
fn logs() -> PathBuf {
    target().join("xtask")
}

/// Runs `command` in the root of the workspace and prints its duration. Returns its standard
/// output, which is empty unless it is piped.
fn run(command: &mut Command) -> Result<String, String> {
    let line = shown(command);
    eprintln!("xtask: {line}");
    let start = Instant::now();
    forget_xtask(command);
    let child = command.current_dir(root()).spawn();
    let output = child.and_then(|child| child.wait_with_output());
    let output = output.map_err(|error| format!("`{line}` did not run: {error}"))?;
    eprintln!("xtask: {line}: {} s", start.elapsed().as_secs());
    if !output.status.success() {
        return Err(format!("`{line}` failed: {}", output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Removes from `command`'s environment the variables that `cargo run` sets about xtask's own
/// package. Build scripts that read such variables would run again, and so would every compilation
/// that depends on them: `cargo test` after `cargo xtask test` would take a minute longer.
pub fn forget_xtask(command: &mut Command) {
    for (name, _) in env::vars_os() {
        let of_package = ["CARGO_PKG_", "CARGO_MANIFEST_"];
        if name.to_str().is_some_and(|name| of_package.iter().any(|start| name.starts_with(start))) {
            command.env_remove(&name);
        }
    }
}

/// A command line as one would type it.
fn shown(command: &Command) -> String {
    let program =
        Path::new(command.get_program()).file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let arguments = command.get_args().map(|argument| argument.to_string_lossy().into_owned());
    std::iter::once(program).chain(arguments).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns true if the documentation in a folder has an example of code.
    fn has_examples(folder: &Path) -> bool {
        fs::read_dir(folder).unwrap().flatten().any(|entry| match entry.path() {
            path if path.is_dir() => has_examples(&path),
            path if path.extension().is_some_and(|extension| extension == "rs") => {
                let text = fs::read_to_string(path).unwrap();
                let comments = text.lines().filter_map(|line| {
                    let line = line.trim_start();
                    line.strip_prefix("//!").or_else(|| line.strip_prefix("///"))
                });
                let fences = comments.filter_map(|line| line.trim().strip_prefix("```"));
                // Every second fence closes a block.
                fences.step_by(2).any(|language| language != "text")
            }
            _ => false,
        })
    }

    /// rustdoc takes seconds to find out that a crate has no examples. So the manifest of such a
    /// crate says `doctest = false`.
    #[test]
    fn crates_without_examples_have_no_tests_in_documentation() {
        for entry in fs::read_dir(root().join("crates")).unwrap().flatten() {
            let manifest = fs::read_to_string(entry.path().join("Cargo.toml")).unwrap();
            let is_library = entry.path().join("src/lib.rs").exists();
            let is_tested = is_library && !manifest.contains("doctest = false");
            let name = entry.file_name();
            assert_eq!(
                is_tested,
                is_library && has_examples(&entry.path().join("src")),
                "{name:?}: doctest in Cargo.toml"
            );
        }
    }
}
