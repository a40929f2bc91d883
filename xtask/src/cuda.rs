//! Compiles and bundles the CUDA device's kernels and tests without a GPU or CUDA's toolkit.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// PyPI's package of NVIDIA's run-time compiler, and its version. 12.8 is the first version for all
/// [`ARCHITECTURES`], but it serialises `wgmma` (warning C7515). Code of any 12.x runs on drivers
/// from 525 on.
const NVRTC: [&str; 2] = ["nvidia-cuda-nvrtc-cu12", "12.9.86"];

/// Architectures for which a distributed binary has compiled kernels.
const ARCHITECTURES: [&str; 6] = ["sm_75", "sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120"];

/// Compiles all kernels into the archive that the next build embeds in the binary, and records
/// registers and spills. With `--check` it only compares these with the record. `arguments` may
/// name architectures.
pub fn kernels(arguments: &[String]) -> Result<(), String> {
    let library = nvrtc()?;
    let mut command = Command::new("cargo");
    command.args([
        "run",
        "--quiet",
        "--package",
        "ingle-device-cuda",
        "--example",
        "compile_kernels",
        "--",
        "--nvrtc",
    ]);
    command.arg(&library).args(arguments);
    if !arguments.iter().any(|argument| argument.starts_with("sm_")) {
        command.args(ARCHITECTURES);
    }
    run(&mut command)
}

/// Bundles the tests that need a GPU, for a machine without a Rust toolchain, into
/// `target/gpu-test.tar.gz`. Its `run.sh` runs them.
pub fn gpu_test() -> Result<(), String> {
    let folder = PathBuf::from("target/gpu-test");
    fs::create_dir_all(&folder).map_err(|e| e.to_string())?;
    run(Command::new("cargo").args(["build", "--package", "ingle-device-cuda", "--example", "gpu_test"]))?;
    let listed = Command::new("cargo")
        .args(["test", "--no-run", "--package", "ingle-model", "--test", "main", "--message-format=short"])
        .output()
        .map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&listed.stderr).into_owned();
    let test = text.split("tests/main.rs (").nth(1).and_then(|rest| rest.split(')').next());
    let test = test.ok_or_else(|| format!("cargo named no test binary:\n{text}"))?;
    copy(Path::new("target/debug/examples/gpu_test"), &folder.join("gpu_test"))?;
    copy(Path::new(test), &folder.join("model_tests"))?;
    let root = std::env::current_dir().map_err(|e| e.to_string())?;
    let script = format!(
        "#!/bin/sh\n# Runs the tests that need an NVIDIA GPU, the second part also where the first fails.\n\
         cd \"$(dirname \"$0\")\" || exit 1\n./gpu_test\nof_kernels=$?\n\
         # The tests look for the fixtures where they were built.\nmkdir -p '{0}/crates/model'\n\
         [ -e '{0}/fixtures' ] || ln -s \"$PWD/fixtures\" '{0}/fixtures'\n\
         ./model_tests --ignored --nocapture --test-threads 1 on_cuda && exit $of_kernels\n",
        root.display()
    );
    fs::write(folder.join("run.sh"), script).map_err(|e| e.to_string())?;
    run(Command::new("chmod").arg("+x").arg(folder.join("run.sh")))?;
    run(Command::new("cp").args(["-r", "fixtures"]).arg(&folder))?;
    run(Command::new("tar").args(["-C", "target", "-czf", "target/gpu-test.tar.gz", "gpu-test"]))?;
    let bytes = fs::metadata("target/gpu-test.tar.gz").map_err(|e| e.to_string())?.len();
    println!("target/gpu-test.tar.gz: {:.1} MiB", bytes as f64 / f64::from(1 << 20));
    match bytes < 60 << 20 {
        true => Ok(()),
        false => Err("the bundle is larger than 60 MiB".to_owned()),
    }
}

/// Copies a binary without its symbols.
fn copy(from: &Path, to: &Path) -> Result<(), String> {
    run(Command::new("strip").arg("-o").arg(to).arg(from))
}

/// The path of NVRTC's library, which is downloaded once.
fn nvrtc() -> Result<PathBuf, String> {
    let [package, version] = NVRTC;
    let folder = PathBuf::from("target").join(format!("nvrtc-{version}"));
    let library = folder.join("nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
    if !library.exists() {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]);
        run(pip.arg(format!("{package}=={version}")).arg("--dest").arg(&folder))?;
        for entry in fs::read_dir(&folder).map_err(|e| e.to_string())?.flatten() {
            if entry.path().extension().is_some_and(|e| e == "whl") {
                run(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(entry.path()).arg(&folder))?;
            }
        }
    }
    Ok(library)
}

fn run(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?}: {status}")),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}
