//! `ingle tokenize`: text as the model would see it.

use anyhow::Context;
use clap::Args;
use serde_json::json;
use text::Specials;

use crate::args::{FetchArgs, VerifyArgs};
use crate::{load, output};

/// Show the tokens of a text as the model would see it
#[derive(Args)]
#[command(after_help = "\
Examples:
  ingle tokenize smollm2:135m \"Hello, world\"
  ingle tokenize gemma3:270m --no-bos --no-specials \"<bos> is text here\" --json
  echo -n \"from a pipe\" | ingle tokenize model.gguf -")]
pub struct Tokenize {
    /// A catalog name, a path, or hf:org/repo[/file][@revision]
    model: String,

    /// The text; - reads stdin
    text: String,

    /// Do not add what the model wants at the beginning
    #[arg(long)]
    no_bos: bool,

    /// Treat special tokens in the text as plain text
    #[arg(long)]
    no_specials: bool,

    #[command(flatten)]
    fetch: FetchArgs,

    #[command(flatten)]
    verify: VerifyArgs,

    /// Print {"tokens":[…]}
    #[arg(long)]
    json: bool,
}

impl Tokenize {
    pub fn run(self) -> anyhow::Result<()> {
        let path = load::fetch(&self.model, &self.fetch)?;
        let checkpoint = load::open_checkpoint(&path, formats::Access::Map, &self.verify)?;
        let model = engine::Model::from_opened(&path, checkpoint, &engine::TokenizerSource::Own)?;
        let tokenizer = model.need_tokenizer()?;
        let text = match self.text.as_str() {
            "-" => std::io::read_to_string(std::io::stdin()).context("reading stdin")?,
            _ => self.text,
        };
        let specials = if self.no_specials { Specials::Literal } else { Specials::Parse };
        let tokens = match self.no_bos {
            true => tokenizer.encode(&text, specials)?,
            false => tokenizer.encode_with_bos(&text, specials)?,
        };
        if self.json {
            return output::print_json(&json!({ "tokens": tokens }));
        }
        for token in tokens {
            output::print_line(&format!(
                "{token:>8}  {:?}",
                String::from_utf8_lossy(tokenizer.token_bytes(token))
            ))?;
        }
        Ok(())
    }
}
