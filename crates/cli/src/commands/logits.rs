//! `ingle logits`: print the best tokens at each position.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use serde_json::json;
use text::Specials;

use crate::args::{AdapterArgs, ModelArgs, PrefillArgs};
use crate::output::{Style, Table};
use crate::{input, load, output};

/// Print the best tokens at each position of a prompt, with logits and log-probabilities
#[derive(Args)]
#[command(after_help = "\
Examples:
  ingle logits smollm2:135m --prompt \"The capital of France is\"
  ingle logits model.gguf --prompt Hello --top 5 --json --device reference
  ingle logits folder/ --tokens 1,2,3 --json
  ingle logits folder/ --tokens 5,151,151,9 --image cat.png --json  (one placeholder for each row of the image)")]
pub struct Logits {
    /// The text; text on stdin is appended to it
    #[arg(short, long, conflicts_with = "tokens")]
    prompt: Option<String>,

    /// Token ids instead of a text
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    tokens: Option<Vec<u32>>,

    /// An image (PNG, JPEG or WebP); repeat for more
    ///
    /// It replaces the placeholders in --tokens, or the template's image mark in --prompt.
    #[arg(long, value_name = "FILE")]
    image: Vec<PathBuf>,

    /// Print N tokens at each position
    #[arg(long, default_value_t = 5, value_name = "N")]
    top: usize,

    /// Print {"tokens":[…],"top":[[[id,logit,logprob],…],…]}
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    adapters: AdapterArgs,

    #[command(flatten)]
    prefill: PrefillArgs,
}

impl Logits {
    pub fn run(self) -> anyhow::Result<()> {
        let prompt = match &self.tokens {
            Some(_) => None,
            None => Some(
                input::text(self.prompt.as_deref())?
                    .context("found no text, expected --prompt, --tokens or a text on stdin")?,
            ),
        };
        let mut options = self.model.options()?;
        options.adapters = self.adapters.lora.sources();
        let model = Arc::new(load::open(&self.model.model, &options)?);
        let device = load::device_for(&model, &options)?;
        let images = load::images(&model, &self.image)?;
        let tokens = match (&prompt, self.tokens) {
            (Some(text), _) if !images.is_empty() => {
                let text = model.expand_images(text, &images)?;
                model.need_tokenizer()?.encode_with_bos(&text, Specials::Parse)?
            }
            (Some(text), _) => model.need_tokenizer()?.encode_with_bos(text, Specials::Parse)?,
            (None, tokens) => tokens.unwrap_or_default(),
        };
        let mut engine = load::scoring_engine(&model, &device, &options)?;
        let adapter = load::chosen_adapter(&self.adapters)?;
        engine.set_scored_adapter(adapter.as_deref())?;
        if images.is_empty() {
            load::validate(&mut engine, &self.prefill, &tokens)?;
        }
        let scores = engine.score_images(&tokens, &images, self.top, load::prefill(&self.prefill))?;
        if self.json {
            let top: Vec<Vec<_>> = scores
                .iter()
                .map(|p| p.top.iter().map(|t| json!([t.id, t.logit, t.logprob])).collect())
                .collect();
            return output::print_json(&json!({ "tokens": tokens, "top": top }));
        }
        let tokenizer = model.tokenizer()?;
        let show = |id: u32| match tokenizer {
            Some(tokenizer) => format!("{:?}", String::from_utf8_lossy(tokenizer.token_bytes(id))),
            None => id.to_string(),
        };
        let mut table =
            Table::new(&["position>", "token", "next", "id>", "logit>", "logprob>", "probability>"]);
        for position in &scores {
            for (rank, t) in position.top.iter().enumerate() {
                let first = |text: String| if rank == 0 { text } else { String::new() };
                table.row(vec![
                    first(position.position.to_string()),
                    first(show(tokens[position.position])),
                    show(t.id),
                    t.id.to_string(),
                    format!("{:.4}", t.logit),
                    format!("{:.4}", t.logprob),
                    format!("{:.2} %", 100.0 * t.logprob.exp()),
                ]);
            }
        }
        table.print(Style::Plain)
    }
}
