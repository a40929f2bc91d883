//! `ingle plan`: itemise the memory of a model before it is loaded.

use std::time::Instant;

use clap::Args;
use engine::{Governor, MemoryReport, Speculate};
use ingle::direct::EngineOptions;

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
        // `ingle run` loads a model with these options, too.
        let mut options = self.model.options()?;
        self.speculate.set(&mut options, SpeculateName::Auto)?;
        let model = load::open(&self.model.model, &options)?;
        let device = load::device_for(&model, &options)?;
        let governor = Governor::of(platform::system_source(), self.model.load.memory);
        governor.observe(Instant::now());
        let of_engine = EngineOptions { governor: Some(governor), ..options.engine_options() };
        let report = engine::plan_memory(&model, device.as_ref(), &of_engine)?;
        self.print(&report)?;
        if let Some(chosen) = ingle::direct::default_kv_type(&model, device.as_ref(), &options) {
            tell!("{chosen}");
        }
        if let Some(name) = &self.speculate.draft_model {
            let draft = load::open(name, &options.for_draft_model())?;
            let n_ctx = Some(report.n_ctx);
            let of_draft = EngineOptions { n_ctx, speculate: Speculate::Off, ..of_engine };
            self.print(&engine::plan_memory(&draft, device.as_ref(), &of_draft)?)?;
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
