//! `ingle cuda-selftest`: compare every CUDA kernel with the reference interpreter, and print a
//! report.

use clap::Args;
use ingle::device::cuda;

/// Compare every CUDA kernel with the reference interpreter, and print a report
#[derive(Args)]
#[command(after_help = "\
Examples:
  ingle cuda-selftest                 (needs an NVIDIA GPU; takes about a minute)
  ingle cuda-selftest > report.txt    (for a bug report: no file of yours is read, nothing is sent)")]
pub struct CudaSelftest {}

impl CudaSelftest {
    #[cfg(any(target_os = "linux", target_os = "windows"))]
    pub fn run(self) -> anyhow::Result<()> {
        use crate::output;
        use device::{Device, Peaks};
        use device_cuda::selftest;
        let device = cuda::device(0)?;
        let facts = device.context().facts();
        let memory = device.memory();
        let Peaks { read_bytes_per_second, .. } = device.peaks();
        output::print_line(&format!(
            "ingle {} cuda-selftest\n{}\ndriver for CUDA {}.{}, {}\n{} MiB of memory, {} MiB free, copied at {:.0} GB/s\n",
            env!("CARGO_PKG_VERSION"),
            device.describe(),
            facts.driver / 1000,
            facts.driver % 1000 / 10,
            device.kernels().origin(),
            memory.total >> 20,
            memory.free >> 20,
            read_bytes_per_second / 1e9,
        ))?;
        let mut n_failed = 0;
        let mut report = |name: String, result: Result<String, String>| match result {
            Ok(what) => output::print_line(&format!("ok      {name}: {what}")),
            Err(reason) => {
                n_failed += 1;
                output::print_line(&format!("FAILED  {name}: {reason}"))
            }
        };
        for kind in selftest::kinds() {
            report(format!("{kind:?}"), selftest::check_kind(&device, kind).map(|n| format!("{n} cases")))?;
        }
        for (name, check) in selftest::PROMISES {
            report(name.to_owned(), check(&device).map(|()| "kept".to_owned()))?;
        }
        anyhow::ensure!(n_failed == 0, "{n_failed} parts of the self-test failed");
        Ok(())
    }

    #[cfg(not(any(target_os = "linux", target_os = "windows")))]
    pub fn run(self) -> anyhow::Result<()> {
        Ok(cuda::device(0).map(|_| ())?)
    }
}
