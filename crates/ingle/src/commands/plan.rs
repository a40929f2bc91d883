//! `ingle plan`: the memory that a model takes, before any is taken.

use clap::Args;
use engine::{LoadOptions, MemoryReport, Speculate};

use crate::args::{ModelArgs, SpeculateArgs, SpeculateName};
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

    #[command(flatten)]
    speculate: SpeculateArgs,

    /// Print JSON, a line for each model
    #[arg(long)]
    json: bool,
}

impl Plan {
    pub fn run(self) -> anyhow::Result<()> {
        let model = load::open(&self.model)?;
        let device = load::device_for(&self.model.load, &model)?;
        // As `run` would load it.
        let options = load::options(&self.model.load);
        let options = load::speculating(options, &self.speculate, SpeculateName::Auto)?;
        let report = engine::plan_memory(&model, device.as_ref(), &options)?;
        self.print(&report)?;
        if let Some(name) = &self.speculate.draft_model {
            let draft = load::open(&ModelArgs { model: name.clone(), ..self.model.clone() })?;
            let options = LoadOptions { n_ctx: Some(report.n_ctx), speculate: Speculate::Off, ..options };
            self.print(&engine::plan_memory(&draft, device.as_ref(), &options)?)?;
        }
        Ok(())
    }

    fn print(&self, report: &MemoryReport) -> anyhow::Result<()> {
        if self.json {
            return output::print_json(report);
        }
        output::print_line(&report.to_string())
    }
}
