//! The tests that need a GPU, as one program for a machine without a Rust toolchain (`cargo xtask
//! gpu-test` bundles it). Arguments choose by name: `gpu_test Linear promises`.

use device::Device;
use ingle_device_cuda::{CudaDevice, Profile, kernels, selftest};
use std::process::ExitCode;
use std::time::Instant;

fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let device = match CudaDevice::new(0) {
        Ok(device) => device,
        Err(error) => {
            eprintln!("no tests were run: {error}");
            return ExitCode::FAILURE;
        }
    };
    println!("{}; {}", device.describe(), device.kernels().origin());
    // Side by side, where they must be compiled.
    if let Err(error) = device.kernels().prepare(&kernels::files().map(str::to_owned).collect()) {
        eprintln!("no tests were run: {error}");
        return ExitCode::FAILURE;
    }
    let mut failed = false;
    let mut report = |name: &str, started: Instant, result: Result<String, String>| {
        let seconds = started.elapsed().as_secs_f64();
        match result {
            Ok(what) => println!("ok      {name}: {what} ({seconds:.1} s)"),
            Err(reason) => {
                failed = true;
                println!(
                    "FAILED  {name} ({seconds:.1} s): {}",
                    reason.chars().take(6000).collect::<String>()
                );
            }
        }
    };
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|w| w == name);
    for kind in selftest::kinds() {
        let name = format!("{kind:?}");
        if is_wanted(&name) {
            let started = Instant::now();
            report(&name, started, selftest::check_kind(&device, kind).map(|n| format!("{n} cases")));
        }
    }
    if is_wanted("promises") {
        for (name, check) in selftest::PROMISES {
            let started = Instant::now();
            report(name, started, check(&device).map(|()| "kept".to_owned()));
        }
    }
    if is_wanted("splits") {
        let profile = Profile { long: 3, split_len: 32, n_blocks: 100_000, ..device.profile().clone() };
        let device = device.with_profile(profile);
        for kind in selftest::kinds().into_iter().filter(|kind| selftest::may_split(*kind)) {
            let (name, started) = (format!("{kind:?}, positions split"), Instant::now());
            report(&name, started, selftest::check_kind(&device, kind).map(|n| format!("{n} cases")));
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
