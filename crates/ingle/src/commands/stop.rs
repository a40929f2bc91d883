//! `ingle stop`: have a server unload a model.

use clap::Args;
use serde_json::json;

use crate::client::ServerArgs;
use crate::output;

/// Have a server unload a model when its answers have ended
#[derive(Args)]
#[command(after_help = "\
Examples:
  ingle stop smollm2:135m
  ingle stop smollm2:135m --server http://box.lan:8080 --api-key SECRET")]
pub struct Stop {
    /// The model, as `ingle ps` lists it
    model: String,

    #[command(flatten)]
    server: ServerArgs,
}

impl Stop {
    pub fn run(self) -> anyhow::Result<()> {
        // As clients of Ollama ask for it.
        let body = json!({ "model": self.model, "keep_alive": 0, "stream": false });
        self.server.client()?.post("/api/generate", &body)?;
        output::print_line(&format!("{} is unloaded", self.model))
    }
}
