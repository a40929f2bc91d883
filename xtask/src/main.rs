//! `cargo xtask COMMAND`: tests, checks of style, and the archive of CUDA kernels. [`HELP`] lists
//! the commands.
//!
//! This program has no dependencies. So it compiles in two seconds, and can name missing programs
//! before anything else is built.

mod cuda;
mod defects;
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
       cargo xtask defects [WORD]...
       cargo xtask fuzz [TARGET]... [--minutes N]
       cargo xtask cuda-kernels [--check] [sm_90a...]
       cargo xtask emulated-gpu [NAMES OF TESTS OF crates/device-cuda/examples/gpu_test]

  quick   tests the crates without devices: the contract, the reference interpreter, files, text,
          audio, the hub. Takes under 2 minutes on two cores, including compiling our crates
  test    runs everything that `cargo test --workspace` runs. Installs clang with its sanitizers and
          pip first, or says what to install
  full    runs `test`, the slow tests marked #[ignore], more cases of every property test,
          `emulated-gpu`, and Arm's kernels under qemu. Checks registers of CUDA kernels, and links the
          binary for Macs
  cuda-kernels
          compiles the CUDA device's kernels into the archive that the next build embeds. With --check
          it only compares registers and spills with the record. Needs pip, but no GPU
  emulated-gpu
          runs tests that need an NVIDIA GPU on one that is emulated on the CPU. Needs Python and a
          C++ compiler
  gpu-test
          bundles the tests that need an NVIDIA GPU for a machine without a Rust toolchain
  clients runs programs of other projects against a real server: official clients, evaluations,
          routers, llama.cpp's server tests, a load generator. Installs them into target/clients and
          writes docs/clients.md. --only official,routers runs only these groups
  fuzz    runs libFuzzer over all targets of fuzz/ or the named ones, for N minutes each (default 1).
          Findings are in target/fuzz/found
  tidy    checks the rules of STYLE.md that a machine can keep, or only the named ones
  defects seeds the defects of xtask/defects.txt, or those whose names contain a word, one by one, and
          reports those that the tests do not find. It takes an hour
  setup   runs only the checks and installations of `test`
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
        Some("defects") => setup::prepare().and_then(|()| defects::run(&rest)),
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
