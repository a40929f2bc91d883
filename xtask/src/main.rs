//! The test commands: `cargo xtask quick`, `cargo xtask test`, `cargo xtask full`, `cargo xtask clients`, `cargo xtask fuzz`,
//! `cargo xtask emulated-gpu` and `cargo xtask gpu-test`; and `cargo xtask cuda-kernels`.
//!
//! It has no dependencies, so that it compiles in a second or two and can say what this machine
//! lacks before anything else is built.

mod cuda;
mod fuzz;
mod lanes;
mod setup;
mod suites;
mod tidy;

use std::env;
use std::process::ExitCode;

const HELP: &str = "\
usage: cargo xtask quick|test [ARGUMENTS OF THE TEST BINARIES]
       cargo xtask clients [ARGUMENTS OF scripts/clients]
       cargo xtask full|gpu-test|setup
       cargo xtask tidy [RULE]...
       cargo xtask fuzz [TARGET]... [--minutes N]
       cargo xtask cuda-kernels [--check] [sm_90a...]
       cargo xtask emulated-gpu [NAMES OF TESTS OF crates/device-cuda/examples/gpu_test.rs]

  quick   the tests of the crates without devices: the contract, the reference interpreter, files,
          text, audio, the hub. Under 2 minutes on two cores, compiling our crates included
  test    everything that `cargo test --workspace` runs, after installing what is missing (clang
          with its sanitizers, pip), or saying what to install
  full    `test`, the tests marked #[ignore] because they take long, more cases of every property
          test, registers of CUDA's kernels, `emulated-gpu`, Arm's kernels under qemu, and the binary
          for Macs
  cuda-kernels
          compiles the CUDA device's kernels into the archive that the next build puts into the binary
          (with --check only compares registers and spills with what is recorded); needs pip, no GPU
  emulated-gpu
          tests that need an NVIDIA GPU, on one that is emulated on the CPU; needs Python and a C++ compiler
  gpu-test
          bundles the tests that need an NVIDIA GPU for a machine without a Rust toolchain
  clients programs that are not ours against a real server: official clients, evaluations, routers,
          llama.cpp's server tests, a load generator; installs them into target/clients and writes
          docs/clients.md; --only official,routers runs some
  fuzz    libFuzzer over each target of fuzz/, or those named, for N minutes each (1); what it finds is in
          target/fuzz/found
  tidy    the rules of STYLE.md that a machine can keep, or those named; a few seconds
  setup   only the checks and installations of `test`
";

fn main() -> ExitCode {
    if let Some(code) = fuzz::as_rustc() {
        return code;
    }
    let mut arguments = env::args().skip(1);
    let command = arguments.next();
    let rest: Vec<String> = arguments.collect();
    let result = match command.as_deref() {
        Some("quick") => suites::quick(&rest),
        Some("test") => setup::prepare().and_then(|()| suites::test(&rest)),
        Some("full" | "gpu-test" | "setup") if !rest.is_empty() => {
            Err(format!("unexpected argument '{}'\n{HELP}", rest[0]))
        }
        Some("full") => setup::prepare().and_then(|()| suites::full()),
        Some("clients") => setup::prepare().and_then(|()| suites::clients(&rest)),
        Some("tidy") => tidy::run(&rest),
        Some("fuzz") => fuzz::run(&rest),
        Some("cuda-kernels") => cuda::kernels(&rest),
        Some("emulated-gpu") => setup::prepare().and_then(|()| suites::emulated_gpu(&rest)),
        Some("gpu-test") => cuda::gpu_test(),
        Some("setup") => setup::prepare(),
        Some("help" | "-h" | "--help") => {
            print!("{HELP}");
            Ok(())
        }
        Some(other) => Err(format!("unknown command '{other}'\n{HELP}")),
        None => Err(HELP.to_owned()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {}", message.trim_end());
            ExitCode::FAILURE
        }
    }
}
