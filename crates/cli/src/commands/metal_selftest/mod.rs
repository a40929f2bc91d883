//! `ingle metal-selftest`: compare every Metal kernel with the CPU, time it, and write a report.
//!
//! The report is written line by line, so that a crash loses nothing. Each stage (`stages`) runs in
//! its own process. A stage that hangs or crashes is ended and named in the report, and continues
//! after the item that failed (`parent`).

mod parent;
mod stages;

use crate::args::MetalEncoder;
use clap::Args;
use std::path::PathBuf;

/// Compare every Metal kernel with the CPU, time it, and write a report
#[derive(Args, Clone)]
#[command(after_help = "\
Examples:
  ingle metal-selftest                  (on a Mac with Apple Silicon: writes report.txt in ten minutes)
  ingle metal-selftest --minutes 60     (everything)
  ingle metal-selftest --compile-only   (works in a virtual machine)
  ingle metal-selftest --emulated --every 50   (on Linux; times are meaningless)

No file of yours is read, and nothing is sent by itself.")]
pub struct MetalSelftest {
    /// Run the shaders in the emulator on Linux instead
    #[arg(long)]
    emulated: bool,

    /// Write the report to this file and to stdout
    #[arg(long, value_name = "FILE", default_value = "report.txt")]
    report: PathBuf,

    /// End after about N minutes
    ///
    /// The report says what was not run.
    #[arg(long, value_name = "N", default_value_t = 10.0)]
    minutes: f64,

    /// Only compile the shaders, and print the compiler's messages
    #[arg(long)]
    compile_only: bool,

    /// Use this profile instead of the chip's own
    ///
    /// The sweep prints such profiles.
    #[arg(long, value_name = "FILE")]
    chip_profile: Option<PathBuf>,

    /// Run only every Nth case
    #[arg(long, value_name = "N", default_value_t = 1)]
    every: usize,

    /// Run only cases whose op or name contains this text, and compile only their files
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,

    /// End a stage that prints nothing for this time while kernels run
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    patience: u64,

    /// Multiply tiles on the tensor units of an M5 (untested)
    ///
    /// macOS 26.2 is needed.
    #[arg(long, conflicts_with = "emulated")]
    tensors: bool,

    /// Order of commands on the GPU
    #[arg(long, value_enum, default_value_t = MetalEncoder::Concurrent)]
    metal_encoder: MetalEncoder,

    /// Do not measure times
    #[arg(long)]
    no_times: bool,

    /// Replace the source of a kernel file in the emulator, to test that the report finds a defect
    #[arg(long, value_name = "PATH=FILE", hide = true, requires = "emulated")]
    replace: Vec<String>,

    /// Run this stage in this process, from this item on; the parent process sets it
    #[arg(long, value_name = "STAGE:ITEM", hide = true)]
    stage: Option<String>,

    /// Time at which to end, in seconds since 1970
    #[arg(long, hide = true)]
    until: Option<u64>,
}

impl MetalSelftest {
    pub fn run(self) -> anyhow::Result<()> {
        match self.stage.clone() {
            None => parent::run(&self),
            Some(stage) => {
                let (name, first) = stage.split_once(':').unwrap_or((&stage, "0"));
                stages::run(&self, name, first.parse()?)
            }
        }
    }
}
