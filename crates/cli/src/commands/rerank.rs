//! `ingle rerank`: score how well documents fit a query.

use std::sync::Arc;

use anyhow::bail;
use clap::Args;
use engine::Embedder;
use serde_json::json;

use crate::args::ModelArgs;
use crate::output::{Style, Table};
use crate::{input, load, output};

/// Score how well documents fit a query, with a reranker
#[derive(Args)]
#[command(after_help = "\
Larger scores are better. The scores of a model with a classification head are its raw outputs, not
probabilities. The score of a language model (Qwen3-Reranker) is the probability of \"yes\" against
\"no\". The end of a document that is too long is cut off.

Examples:
  ingle rerank folder/ \"what is a panda?\" \"The giant panda is a bear.\" \"Paris is a city.\"
  ingle rerank Qwen3-Reranker-0.6B-Q8_0.gguf \"what is a panda?\" \"Paris is a city.\"
  ingle rerank folder/ --tokens 0,581,2,2,9,2 --json")]
pub struct Rerank {
    /// Token ids of a query and a document; repeat for more
    ///
    /// The ids include the special tokens of the pair. They replace QUERY and DOCUMENTS.
    #[arg(long, value_name = "IDS")]
    tokens: Vec<String>,

    /// Print {"scores":[…]} in the documents' order
    ///
    /// Without this flag a table is printed, the best document first.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    model: ModelArgs,

    /// The query
    #[arg(index = 2, required_unless_present = "tokens", conflicts_with = "tokens")]
    query: Option<String>,

    /// The documents; stdin has more, one a line
    #[arg(index = 3, conflicts_with = "tokens")]
    documents: Vec<String>,
}

impl Rerank {
    pub fn run(self) -> anyhow::Result<()> {
        let mut documents = self.documents.clone();
        if self.query.is_some() {
            documents.extend(input::piped()?.iter().flat_map(|text| text.lines()).map(str::to_owned));
            anyhow::ensure!(
                !documents.is_empty(),
                "found no document, expected one as an argument or on stdin"
            );
        }
        let options = self.model.options()?;
        let model = Arc::new(load::open(&self.model.model, &options)?);
        let device = load::device_for(&model, &options)?;
        let mut embedder = Embedder::new(model, &device, &options.engine_options())?;
        let pairs = match &self.query {
            Some(query) => {
                let pair = |document: &String| embedder.tokenize_pair(query, document);
                documents.iter().map(pair).collect::<Result<Vec<_>, _>>()?
            }
            None => self.tokens.iter().map(|ids| parse(ids)).collect::<anyhow::Result<Vec<_>>>()?,
        };
        let scores = embedder.rank_tokens(&pairs)?;
        if self.json {
            return output::print_json(&json!({ "scores": scores }));
        }
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
        let mut table = Table::new(&["score>", "document"]);
        for index in order {
            let shown = documents.get(index).cloned().unwrap_or_else(|| format!("pair {}", index + 1));
            table.row(vec![format!("{:.4}", scores[index]), shown]);
        }
        table.print(Style::Plain)
    }
}

fn parse(ids: &str) -> anyhow::Result<Vec<u32>> {
    let id = |text: &str| match text.trim().parse() {
        Ok(id) => Ok(id),
        Err(_) => bail!("--tokens: found {text:?}, expected token ids separated by commas"),
    };
    ids.split(',').map(id).collect()
}
