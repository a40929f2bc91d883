//! `ingle perplexity`: measure how well a model predicts a text.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use text::Specials;

use crate::args::{ModelArgs, PrefillArgs};
use crate::{input, load, output};

/// Measure the perplexity of a model on a text file
#[derive(Args)]
#[command(after_help = "\
Every token of the text is scored, in windows that do not overlap. Each window begins with the
model's start token, if it has one.

Examples:
  ingle perplexity smollm2:135m text.txt
  ingle perplexity model.gguf text.txt --window 512 --json")]
pub struct Perplexity {
    /// Tokens of a window [default: the context length]
    #[arg(long, value_name = "TOKENS")]
    window: Option<usize>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    prefill: PrefillArgs,

    /// The file of the text; - reads stdin
    #[arg(index = 2)]
    file: PathBuf,
}

impl Perplexity {
    pub fn run(self) -> anyhow::Result<()> {
        let text = if self.file.as_os_str() == "-" { input::all()? } else { input::file(&self.file)? };
        let options = self.model.options()?;
        let model = Arc::new(load::open(&self.model.model, &options)?);
        let device = load::device_for(&model, &options)?;
        let tokenizer = model.need_tokenizer()?;
        let tokens = tokenizer.encode(&text, Specials::Literal)?;
        let bos = tokenizer.encode_with_bos("", Specials::Literal)?.first().copied();
        let mut engine = load::scoring_engine(&model, &device, &options)?;
        let n_checked = tokens.len().min(engine.limits().n_ctx);
        load::validate(&mut engine, &self.prefill, &tokens[..n_checked])?;
        let prefill = load::prefill(&self.prefill);
        let result = engine.perplexity(&tokens, bos, self.window, prefill, &mut |so_far, n_windows| {
            tracing::info!("window {} of {n_windows}: perplexity {:.4}", so_far.n_windows, so_far.perplexity);
        })?;
        if self.json {
            return output::print_json(&result);
        }
        output::print_line(&format!(
            "perplexity {:.4} (mean negative log-likelihood {:.5}, {} tokens in {} of {})",
            result.perplexity,
            result.nll,
            result.n_tokens,
            output::plural(result.n_windows, "window"),
            result.window
        ))
    }
}
