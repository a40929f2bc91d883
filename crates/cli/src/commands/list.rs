//! `ingle list`: the models on this machine.

use clap::Args;
use serde_json::json;

use crate::args::FetchArgs;
use crate::output::{self, Style, Table};

/// List the models in the cache
#[derive(Args)]
#[command(after_help = "\
Examples:
  ingle list
  ingle list --all       (also models of Ollama and LM Studio, with paths)
  ingle list --json")]
pub struct List {
    /// List models of other programs too, and all paths
    #[arg(long)]
    all: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    fetch: FetchArgs,
}

impl List {
    pub fn run(self) -> anyhow::Result<()> {
        let mut installed = hub::list(&self.fetch.cache()?)?;
        if self.all {
            installed.extend(self.fetch.options()?.stores.list());
        }
        if self.json {
            let rows: Vec<_> = installed.iter().map(|m| json!({
                "name": m.name, "bytes": m.bytes, "path": m.path.to_string_lossy(), "source": m.source,
                "modified": m.modified.duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs()),
            })).collect();
            return output::print_json(&rows);
        }
        if installed.is_empty() {
            return output::print_line(
                "no models yet; `ingle search` shows the catalog, `ingle pull NAME` fetches one",
            );
        }
        let columns: &[&str] =
            if self.all { &["name", "size>", "source", "path"] } else { &["name", "size>", "source"] };
        let mut table = Table::new(columns);
        for m in &installed {
            let mut row = vec![m.name.clone(), output::bytes(m.bytes), m.source.clone()];
            row.extend(self.all.then(|| m.path.display().to_string()));
            table.row(row);
        }
        table.print(Style::Plain)
    }
}
