//! `ingle ps`: the models that a server has loaded.

use clap::Args;
use serde_json::Value;

use crate::client::ServerArgs;
use crate::output::{self, Style, Table};

/// List the models that a server has loaded
#[derive(Args)]
#[command(after_help = "\
Examples:
  ingle ps
  ingle ps --server http://box.lan:8080 --api-key SECRET")]
pub struct Ps {
    /// Print the server's JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    server: ServerArgs,
}

impl Ps {
    pub fn run(self) -> anyhow::Result<()> {
        let found = self.server.client()?.get("/api/ps")?;
        if self.json {
            return output::print_json(&found);
        }
        if found["models"].as_array().is_some_and(Vec::is_empty) {
            return output::print_line(
                "the server has no model loaded; it loads one when a request names it",
            );
        }
        let mut table = Table::new(&["name", "size>", "context>", "until"]);
        for model in found["models"].as_array().into_iter().flatten() {
            let text = |key: &str| model[key].as_str().unwrap_or_default().to_owned();
            let context =
                model["context_length"].as_u64().filter(|n| *n > 0).map_or(String::new(), |n| n.to_string());
            let size = model["size"].as_u64().map_or(String::new(), output::bytes);
            let until = match &model["expires_at"] {
                // A model that stays loaded expires in some centuries.
                Value::String(time) if time.as_str() < "2200" => time.clone(),
                _ => "stays".to_owned(),
            };
            table.row(vec![text("name"), size, context, until]);
        }
        table.print(Style::Plain)
    }
}
