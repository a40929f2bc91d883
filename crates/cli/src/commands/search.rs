//! `ingle search`: list the models that can be fetched by name.

use clap::Args;
use serde_json::json;

use crate::args::FetchArgs;
use crate::output::{self, Style, Table};
use crate::tell::tell;

/// Search the catalog for models that can be fetched by name
#[derive(Args)]
#[command(after_help = "\
Examples:
  ingle search                  (the whole catalog)
  ingle search qwen 8b
  ingle search --hub qwen3      (repositories of GGUF files on the Hugging Face hub)

`NAME-QUANT` fetches another quantisation of a model of the hub: `ingle pull qwen3:8b-q8_0`.")]
pub struct Search {
    /// Words in the name or the description; without any, the whole catalog
    words: Vec<String>,

    /// Search the Hugging Face hub instead of the catalog
    #[arg(long)]
    hub: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    fetch: FetchArgs,
}

impl Search {
    pub fn run(self) -> anyhow::Result<()> {
        let query = self.words.join(" ");
        if self.hub { self.search_hub(&query) } else { self.search_catalog(&query) }
    }

    fn search_catalog(&self, query: &str) -> anyhow::Result<()> {
        let catalog = match self.fetch.catalog()? {
            Some(catalog) => catalog,
            None => hub::Catalog::builtin()?,
        };
        let found = catalog.search(query);
        if self.json {
            let rows: Vec<_> = found
                .iter()
                .map(|m| {
                    json!({
                        "name": m.name, "bytes": m.bytes, "title": m.title, "licence": m.licence,
                        "source": m.source, "verified": m.verified,
                    })
                })
                .collect();
            return output::print_json(&rows);
        }
        if found.is_empty() {
            let message =
                format!("the catalog has no model with {query:?}; `ingle search --hub` searches the hub");
            return output::print_line(&message);
        }
        let mut table = Table::new(&["name", "size>", "model", "licence", "source"]);
        for m in &found {
            let (about, mark) = if m.verified { ("", "") } else { ("~", " (unverified)") };
            table.row(vec![
                m.name.clone(),
                format!("{about}{}", output::bytes(m.bytes)),
                m.title.clone(),
                m.licence.clone(),
                format!("{}{mark}", m.source),
            ]);
        }
        table.print(Style::Plain)?;
        if found.iter().any(|m| !m.verified) {
            tell!("unverified: never fetched by the project; the hub's hashes are still compared");
        }
        Ok(())
    }

    fn search_hub(&self, query: &str) -> anyhow::Result<()> {
        let found = hub::search_hub(query, &self.fetch.options()?)?;
        if self.json {
            let rows: Vec<_> = found
                .iter()
                .map(|m| {
                    json!({
                        "name": format!("hf:{}", m.repo), "downloads": m.downloads,
                    })
                })
                .collect();
            return output::print_json(&rows);
        }
        let mut table = Table::new(&["name", "downloads>"]);
        for m in &found {
            table.row(vec![format!("hf:{}", m.repo), m.downloads.to_string()]);
        }
        table.print(Style::Plain)
    }
}
