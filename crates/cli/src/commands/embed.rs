//! `ingle embed`: compute embedding vectors of texts.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::bail;
use clap::Args;
use engine::{Embedder, Prefill};
use serde_json::json;

use crate::args::{ModelArgs, PrefillArgs};
use crate::tell::tell;
use crate::{input, load, output};

/// Compute embedding vectors of texts
#[derive(Args)]
#[command(after_help = "\
Lines of stdin are texts, too. A text that is longer than the model's limit is cut, with a note on
stderr. The model's files define pooling, normalisation and this limit; --ctx changes the limit.
--chunk is the number of tokens, of several texts, that are computed together.

Examples:
  ingle embed minilm:l6 \"A cat sits on the mat\" \"A dog lies on the rug\"
  ingle embed minilm:l6 --file sentences.txt --json
  ingle embed folder/ --tokens 101,2023,102 --hidden --json
  sort -u queries.txt | ingle embed folder/ --json > vectors.json")]
pub struct Embed {
    /// A file of texts, one a line; repeat for more
    ///
    /// An empty line is a text, too. - reads stdin.
    #[arg(short, long, value_name = "FILE")]
    file: Vec<PathBuf>,

    /// Token ids of one text, with special tokens
    #[arg(long, value_name = "IDS", value_delimiter = ',', conflicts_with_all = ["text", "file"])]
    tokens: Option<Vec<u32>>,

    /// Print the hidden states of all tokens
    #[arg(long, requires = "tokens")]
    hidden: bool,

    /// Print {"embeddings":[[…],…]} instead of lines of numbers
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    prefill: PrefillArgs,

    /// The texts
    #[arg(index = 2)]
    text: Vec<String>,
}

impl Embed {
    pub fn run(self) -> anyhow::Result<()> {
        if self.prefill.validate_prefill || load::prefill(&self.prefill) == Prefill::PerToken {
            bail!(
                "--prefill per-token and --validate-prefill do not apply: an embedding needs the whole text at once"
            );
        }
        if let Some(tokens) = &self.tokens {
            return self.embed_tokens(tokens);
        }
        let texts = self.texts()?;
        let options = self.model.options()?;
        let model = Arc::new(load::open(&self.model.model, &options)?);
        let device = load::device_for(&model, &options)?;
        let mut embedder = Embedder::new(model, &device, &options.engine_options())?;
        let found = embedder.embed(&texts)?;
        for index in &found.truncated {
            tell!(
                "note: text {} is longer than {} tokens and was cut",
                index + 1,
                embedder.spec().max_tokens
            );
        }
        if self.json {
            return output::print_json(&json!({ "embeddings": found.vectors }));
        }
        for vector in &found.vectors {
            let numbers: Vec<String> = vector.iter().map(f32::to_string).collect();
            output::print_line(&numbers.join(" "))?;
        }
        Ok(())
    }

    /// Prints the embeddings of token ids.
    fn embed_tokens(&self, tokens: &[u32]) -> anyhow::Result<()> {
        let options = self.model.options()?;
        let model = Arc::new(load::open(&self.model.model, &options)?);
        let device = load::device_for(&model, &options)?;
        let new = if self.hidden { Embedder::of_states } else { Embedder::new };
        let mut embedder = new(model, &device, &options.engine_options())?;
        let n_dims = embedder.n_dims();
        let found = embedder.embed_tokens(&[tokens])?.vectors.concat();
        if self.json {
            let rows: Vec<&[f32]> = found.chunks(n_dims).collect();
            return output::print_json(&json!({ "embeddings": rows }));
        }
        for row in found.chunks(n_dims) {
            let numbers: Vec<String> = row.iter().map(f32::to_string).collect();
            output::print_line(&numbers.join(" "))?;
        }
        Ok(())
    }

    /// The arguments, then lines of the files, then lines of stdin.
    fn texts(&self) -> anyhow::Result<Vec<String>> {
        let mut texts = self.text.clone();
        for file in &self.file {
            texts.extend(lines(file)?);
        }
        let is_alone = self.text.is_empty() && self.file.is_empty();
        if is_alone && std::io::stdin().is_terminal() {
            tell!("reading texts from the keyboard, one a line; Ctrl-D ends the input");
            texts = lines(Path::new("-"))?;
        } else if !self.file.iter().any(|file| file.as_os_str() == "-") {
            texts.extend(input::piped()?.iter().flat_map(|text| text.lines()).map(str::to_owned));
        }
        if texts.is_empty() {
            bail!("found no text, expected at least one as an argument, in a file or on stdin");
        }
        Ok(texts)
    }
}

fn lines(file: &Path) -> anyhow::Result<Vec<String>> {
    let text = if file.as_os_str() == "-" { input::all()? } else { input::file(file)? };
    Ok(text.lines().map(str::to_owned).collect())
}
