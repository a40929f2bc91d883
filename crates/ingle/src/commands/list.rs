//! `ingle list`: what is in the cache, and what the catalog offers.

use clap::Args;
use serde_json::json;

use crate::args::FetchArgs;
use crate::output::{self, Style, Table};

/// List the models in the cache
#[derive(Args)]
#[command(after_help = "\
Examples:
  ingle list
  ingle list --all       (what the catalog offers, fetched or not)
  ingle list --json")]
pub struct List {
    /// List the catalog's models too
    #[arg(long)]
    all: bool,

    #[command(flatten)]
    fetch: FetchArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl List {
    pub fn run(self) -> anyhow::Result<()> {
        let installed = hub::list(&self.fetch.cache()?)?;
        let catalog = match self.fetch.catalog()? {
            Some(catalog) => catalog,
            None => hub::Catalog::builtin()?,
        };
        let offered =
            || catalog.models().iter().filter(|m| self.all && installed.iter().all(|i| i.name != m.name));
        if self.json {
            let mut rows: Vec<_> = installed.iter().map(|m| json!({
                "name": m.name, "bytes": m.bytes, "path": m.path, "source": m.source, "fetched": true,
                "modified": m.modified.duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs()),
            })).collect();
            rows.extend(offered().map(|m| json!({
                "name": m.name, "bytes": m.bytes, "title": m.title, "licence": m.licence, "fetched": false,
            })));
            return output::print_json(&rows);
        }
        if installed.is_empty() && !self.all {
            return output::print_line(
                "no models yet; `ingle list --all` shows the catalog, `ingle pull NAME` fetches one",
            );
        }
        let mut table = Table::new(&["name", "size>", "source"]);
        for m in &installed {
            table.row(vec![m.name.clone(), output::bytes(m.bytes), m.source.clone()]);
        }
        for m in offered() {
            table.row(vec![
                m.name.clone(),
                output::bytes(m.bytes),
                format!("not fetched: {}, {}", m.title, m.licence),
            ]);
        }
        table.print(Style::Plain)
    }
}
