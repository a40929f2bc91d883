//! `ingle metal-selftest`: compares every Metal kernel with the CPU, times it, and writes a report to send
//! back.
//!
//! The report is written line by line, so that whatever happens leaves what was found until then. Each
//! stage runs in a process of its own (`stages`); one that hangs or crashes is ended and named, and what
//! it had still to do goes on after the item that it was at (`parent`).

mod parent;
mod stages;

use crate::args::MetalEncoder;
use clap::Args;
use std::path::PathBuf;

/// Compare every Metal kernel with the CPU, time it, and write a report
#[derive(Args, Clone)]
#[command(after_help = "\
Examples:
  ingle metal-selftest                  (on a Mac with Apple Silicon: writes report.txt, to send back)
  ingle metal-selftest --minutes 10     (what there is time for, the most important first)
  ingle metal-selftest --compile-only   (also on a Mac in a virtual machine)
  ingle metal-selftest --emulated --every 50   (on Linux: the shaders in the emulator; times mean nothing)

No file of yours is read, and nothing is sent by itself.")]
pub struct MetalSelftest {
    /// Run the shaders in the emulator on Linux instead
    #[arg(long)]
    emulated: bool,

    /// Where the report goes, besides standard output
    #[arg(long, value_name = "FILE", default_value = "report.txt")]
    report: PathBuf,

    /// End after about so many minutes
    #[arg(long, value_name = "N")]
    minutes: Option<f64>,

    /// Only compile the shaders, and say what the compiler says
    #[arg(long)]
    compile_only: bool,

    /// A profile as the sweep prints it, instead of the chip's own
    #[arg(long, value_name = "FILE")]
    chip_profile: Option<PathBuf>,

    /// Only each n-th case
    #[arg(long, value_name = "N", default_value_t = 1)]
    every: usize,

    /// Only cases of an Op, or with a name, that contains this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,

    /// Seconds after which a stage that says nothing is taken to hang
    #[arg(long, value_name = "N", default_value_t = 120)]
    patience: u64,

    /// Multiply tiles on the tensor units of an M5 (macOS 26): written, but not tried by anybody
    #[arg(long, conflicts_with = "emulated")]
    tensors: bool,

    /// How the GPU keeps its work in order
    #[arg(long, value_enum, default_value_t = MetalEncoder::Concurrent)]
    metal_encoder: MetalEncoder,

    /// Leave the times out
    #[arg(long)]
    no_times: bool,

    /// Another source for a file of kernels, as PATH=FILE, in the emulator: to see that the report finds a
    /// defect
    #[arg(long, value_name = "PATH=FILE", hide = true, requires = "emulated")]
    replace: Option<String>,

    /// Run this stage in this process, from an item on (the report starts itself so)
    #[arg(long, value_name = "STAGE:ITEM", hide = true)]
    stage: Option<String>,

    /// Seconds since 1970 at which to end
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
