//! `ingle stop`: unload a model from a server.

use clap::Args;
use serde_json::json;

use crate::client::ServerArgs;
use crate::output;

/// Unload a model from a server after its running answers
#[derive(Args)]
#[command(after_help = "\
Examples:
  ingle stop smollm2:135m
  ingle stop smollm2:135m --server http://box.lan:8080 --api-key SECRET")]
pub struct Stop {
    /// The model's name in `ingle ps`
    model: String,

    #[command(flatten)]
    server: ServerArgs,
}

impl Stop {
    pub fn run(self) -> anyhow::Result<()> {
        // The request of Ollama's clients: keep the model for 0 seconds.
        let body = json!({ "model": self.model, "keep_alive": 0, "stream": false });
        self.server.client()?.post("/api/generate", &body)?;
        output::print_line(&format!("{} is unloaded", self.model))
    }
}
