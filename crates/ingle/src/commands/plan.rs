//! `ingle plan`: the memory that a model takes, before any is taken.

use clap::Args;

use crate::args::ModelArgs;
use crate::{load, output};

/// Itemise the memory that a model would take, without taking any
#[derive(Args)]
#[command(after_help = "\
Examples:
  ingle plan smollm2:135m --ctx 8192
  ingle plan model.gguf --ctx 32768 --kv-type q8_0 --json")]
pub struct Plan {
    #[command(flatten)]
    model: ModelArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Plan {
    pub fn run(self) -> anyhow::Result<()> {
        let device = load::device(&self.model.load.device)?;
        let model = load::open(&self.model)?;
        let report = engine::plan_memory(&model, device.as_ref(), &load::options(&self.model.load))?;
        if self.json {
            return output::print_json(&report);
        }
        output::print_line(&report.to_string())
    }
}
