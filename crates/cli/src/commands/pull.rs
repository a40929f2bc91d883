//! `ingle pull`: fetch a model into the cache.

use clap::Args;
use serde_json::json;

use crate::args::{FetchArgs, ModelName};
use crate::{load, output};

/// Fetch a model into the cache and print its path
#[derive(Args)]
#[command(after_help = "\
Examples:
  ingle pull smollm2:135m
  ingle pull hf:ggml-org/gemma-3-270m-GGUF@main
  ingle pull hf:Qwen/Qwen3-0.6B --json")]
pub struct Pull {
    /// A catalog name, or hf:org/repo[/file][@revision]
    model: ModelName,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    fetch: FetchArgs,
}

impl Pull {
    pub fn run(self) -> anyhow::Result<()> {
        let path = load::fetch(&self.model, &self.fetch)?;
        if self.json {
            return output::print_json(
                &json!({ "model": self.model.to_string(), "path": path.to_string_lossy() }),
            );
        }
        output::print_line(&path.display().to_string())
    }
}
