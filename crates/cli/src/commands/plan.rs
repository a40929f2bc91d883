//! `ingle plan`: itemise the memory of a model before it is loaded.

use std::time::Instant;

use clap::Args;
use engine::{Governor, LoadOptions, MemoryReport, Speculate};

use crate::args::{ModelArgs, SpeculateArgs, SpeculateName};
use crate::tell::tell;
use crate::{load, output};

/// Itemise the memory that a model needs, without loading it
#[derive(Args)]
#[command(after_help = "\
Examples:
  ingle plan smollm2:135m --ctx 8192
  ingle plan model.gguf --ctx 32768 --kv-type q8_0 --json")]
pub struct Plan {
    /// Print JSON, a line for each model
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    speculate: SpeculateArgs,
}

impl Plan {
    pub fn run(self) -> anyhow::Result<()> {
        let model = load::guessing(load::open(&self.model)?, &self.speculate)?;
        let device = load::device_for(&self.model.load, &model)?;
        // `ingle run` loads a model with these options, too.
        let options = load::options(&self.model.load);
        let options = load::speculating(options, &self.speculate, SpeculateName::Auto)?;
        let governor = Governor::of(platform::system_source(), self.model.load.memory);
        governor.observe(Instant::now());
        let options = LoadOptions { governor: Some(governor), ..options };
        let report = engine::plan_memory(&model, device.as_ref(), &options)?;
        self.print(&report)?;
        if let Some(chosen) = load::default_kv_type(&self.model.load, device.as_ref(), &model) {
            tell!("{chosen}");
        }
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
