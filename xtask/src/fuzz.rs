//! Runs libFuzzer over the targets of `fuzz/` with the stable toolchain. Coverage is a flag of
//! LLVM. The fuzzed crates have no `unsafe` code, so no sanitizer is needed.

use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

/// Environment variable that is set when cargo runs this program in rustc's place.
const WRAPPER: &str = "INGLE_XTASK_COVERAGE";

/// Flags that make rustc count executed edges. Only our own crates get them, so that dependencies
/// are not compiled again.
const COVERAGE: [&str; 5] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];

/// Limits of one input, in seconds and MiB.
const LIMITS: [&str; 2] = ["-timeout=60", "-rss_limit_mb=2048"];

/// Runs rustc and returns its exit status, if cargo runs this program in rustc's place.
pub fn as_rustc() -> Option<ExitCode> {
    env::var_os(WRAPPER)?;
    let mut arguments = env::args_os().skip(1);
    let mut rustc = Command::new(arguments.next()?);
    let arguments: Vec<_> = arguments.collect();
    // Build scripts and procedural macros run without a fuzzer that defines the counters.
    let is_tool =
        arguments.iter().any(|argument| argument == "build_script_build" || argument == "proc-macro");
    let compiles = arguments.iter().any(|argument| argument == "--crate-name");
    rustc.args(&arguments);
    if compiles && !is_tool {
        rustc.args(COVERAGE);
    }
    let ended = rustc.status().ok().filter(std::process::ExitStatus::success);
    Some(if ended.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// `cargo xtask fuzz [TARGET]... [--minutes N]`: fuzzes each target in turn, starting from its
/// seeds and the corpus of earlier runs.
pub fn run(arguments: &[String]) -> Result<(), String> {
    let mut minutes = 1.0;
    let mut wanted = Vec::new();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        if argument == "--minutes" {
            let n = rest.next().and_then(|n| n.parse::<f64>().ok()).filter(|n| *n > 0.0);
            minutes = n.ok_or("--minutes: expected a number above 0")?;
        } else if argument.starts_with('-') {
            return Err(format!("unexpected argument '{argument}'"));
        } else {
            wanted.push(argument.clone());
        }
    }
    let seeds = ["run", "--quiet", "--package", "ingle-fuzz", "--bin", "seeds"];
    let listed = Command::new("cargo").args(seeds).output().map_err(|e| format!("cargo: {e}"))?;
    if !listed.status.success() {
        return Err(String::from_utf8_lossy(&listed.stderr).into_owned());
    }
    let all: Vec<String> = String::from_utf8_lossy(&listed.stdout).lines().map(str::to_owned).collect();
    if let Some(unknown) = wanted.iter().find(|name| !all.contains(name)) {
        return Err(format!("no target is called '{unknown}'; there are {}", all.join(", ")));
    }
    let wrapper = env::current_exe().map_err(|e| format!("this program's path: {e}"))?;
    let mut build = Command::new("cargo");
    build.args(["build", "--package", "ingle-fuzz", "--features", "libfuzzer", "--bin", "fuzz"]);
    succeeds(build.env("RUSTC_WORKSPACE_WRAPPER", wrapper).env(WRAPPER, "1"))?;

    let target = env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".to_owned());
    let (fuzzer, work) = (Path::new(&target).join("debug/fuzz"), Path::new(&target).join("fuzz"));
    let mut failed = Vec::new();
    for name in all.iter().filter(|name| wanted.is_empty() || wanted.contains(name)) {
        let [corpus, found] = ["corpus", "found"].map(|folder| work.join(folder).join(name));
        for folder in [&corpus, &found] {
            fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        }
        succeeds(Command::new("cargo").args(seeds).arg("--").arg(name).arg(&corpus))?;
        println!("== {name}");
        let mut command = Command::new(&fuzzer);
        command.arg(&corpus).arg(format!("-max_total_time={}", (minutes * 60.0) as u64));
        command
            .arg(format!("-artifact_prefix={}/", found.display()))
            .args(LIMITS)
            .arg("-print_final_stats=1");
        let dictionary = Path::new("fuzz/dict").join(format!("{name}.dict"));
        if dictionary.is_file() {
            command.arg(format!("-dict={}", dictionary.display()));
        }
        if succeeds(command.env("FUZZ_TARGET", name)).is_err() {
            failed.push(format!("{name}: the input is in {}", found.display()));
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}

fn succeeds(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{:?}: {status}", command.get_program())),
        Err(e) => Err(format!("{:?}: {e}", command.get_program())),
    }
}
