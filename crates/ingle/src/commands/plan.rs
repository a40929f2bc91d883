//! `ingle plan`: the memory that a model takes, before any is taken.

mod like;

use std::time::Instant;

use clap::Args;
use engine::{Governor, LoadOptions, MemoryReport, Speculate};

use self::like::{Engine, Machine, Needs};
use crate::args::{ModelArgs, SpeculateArgs, SpeculateName, parse_bytes};
use crate::tell::tell;
use crate::{load, output};

/// Itemise the memory that a model would take, without taking any
#[derive(Args)]
#[command(after_help = "\
Examples:
  ingle plan smollm2:135m --ctx 8192
  ingle plan model.gguf --ctx 32768 --kv-type q8_0 --json
  ingle plan model.gguf --like vllm --like llama.cpp
  ingle plan model.gguf --like mistralrs --machine 16GiB --others 6GiB")]
pub struct Plan {
    /// Compare with what another engine would do, by its own formula; may be given several times
    #[arg(long, value_enum, value_name = "ENGINE")]
    like: Vec<Engine>,

    /// Compare on a machine with so much memory instead of this one
    #[arg(long, value_name = "BYTES", requires = "like", value_parser = bytes)]
    machine: Option<u64>,

    /// Compare where other programs hold so much [default: what they hold now]
    #[arg(long, value_name = "BYTES", requires = "like", value_parser = bytes)]
    others: Option<u64>,

    /// Print JSON, a line for each model or engine
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    speculate: SpeculateArgs,
}

fn bytes(text: &str) -> Result<u64, String> {
    parse_bytes(text).ok_or_else(|| "expected bytes, such as 16GiB or 512M".to_owned())
}

impl Plan {
    pub fn run(self) -> anyhow::Result<()> {
        let model = load::guessing(load::open(&self.model)?, &self.speculate)?;
        let device = load::device_for(&self.model.load, &model)?;
        // As `run` would load it.
        let options = load::options(&self.model.load);
        let options = load::speculating(options, &self.speculate, SpeculateName::Auto)?;
        let governor = Governor::of(platform::system_source(), self.model.load.memory);
        governor.observe(Instant::now());
        let options = LoadOptions { governor: Some(governor), ..options };
        let report = engine::plan_memory(&model, device.as_ref(), &options)?;
        if !self.like.is_empty() {
            return self.compare(&model, &report);
        }
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

    /// Ours beside those of other engines, of the same weights, activations and context.
    fn compare(&self, model: &engine::Model, report: &MemoryReport) -> anyhow::Result<()> {
        let total = self.machine.unwrap_or(report.installed);
        let others = match (self.others, self.machine) {
            (Some(others), _) => others,
            (None, Some(_)) => 0,
            (None, None) => report.installed.saturating_sub(report.free),
        };
        let machine = Machine { total, others };
        let weights = model.file_bytes();
        let needs = Needs {
            weights,
            peak: (report.mapped + report.committed).saturating_sub(weights),
            kv_per_token: (report.reserved / report.n_ctx.max(1) as u64).max(1),
            context: report.n_ctx as u64,
        };
        let mut outcomes: Vec<_> = self.like.iter().map(|engine| engine.outcome(machine, needs)).collect();
        outcomes.push(like::ingle(machine, needs));
        if self.json {
            return outcomes.iter().try_for_each(output::print_json);
        }
        output::print_line(&like::table(&outcomes))
    }

    fn print(&self, report: &MemoryReport) -> anyhow::Result<()> {
        if self.json {
            return output::print_json(report);
        }
        output::print_line(&report.to_string())
    }
}
