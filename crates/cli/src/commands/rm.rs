//! `ingle rm`: remove models from the cache.

use clap::Args;

use crate::args::{FetchArgs, ModelName};
use crate::output;

/// Remove models from the cache
#[derive(Args)]
#[command(after_help = "\
Examples:
  ingle rm smollm2:135m
  ingle rm hf:Qwen/Qwen3-0.6B")]
pub struct Rm {
    /// Names in `ingle list`
    #[arg(required = true)]
    models: Vec<ModelName>,

    #[command(flatten)]
    fetch: FetchArgs,
}

impl Rm {
    pub fn run(self) -> anyhow::Result<()> {
        let cache = self.fetch.cache()?;
        for model in &self.models {
            let freed = hub::remove(&model.reference()?, &cache)?;
            output::print_line(&format!("removed {model}: {} freed", output::bytes(freed)))?;
        }
        Ok(())
    }
}
