//! `ingle tokenize`: show the tokens of a text. Only the vocabulary is read, so the file needs no
//! weights and may have an unknown architecture.

use anyhow::Context;
use clap::Args;
use serde_json::json;
use text::{Chat, ChatTemplate, Specials, Tokenizer};

use crate::args::{FetchArgs, ModelName, VerifyArgs};
use crate::{input, load, output};

/// Show the tokens of a text
#[derive(Args)]
#[command(after_help = "\
Examples:
  ingle tokenize smollm2:135m \"Hello, world\"
  ingle tokenize smollm2:135m --chat \"Hello, world\"      (a message in the chat template)
  ingle tokenize gemma3:270m-base --no-bos --no-specials \"<bos> is text here\" --json
  ingle tokenize ggml-vocab-gpt-2.gguf \"no weights are needed\"
  echo -n \"from a pipe\" | ingle tokenize model.gguf -")]
pub struct Tokenize {
    /// The model: a catalog name, a path or hf:org/repo[/file][@revision]
    model: ModelName,

    /// The text; - is stdin
    ///
    /// Text on stdin is appended to a TEXT.
    text: Option<String>,

    /// Render the text as a user's message with the chat template
    ///
    /// The prompt ends where the answer would begin.
    #[arg(long, conflicts_with_all = ["no_bos", "no_specials"])]
    chat: bool,

    /// Do not add tokens such as BOS around the text
    #[arg(long)]
    no_bos: bool,

    /// Encode special tokens in the text as plain text
    #[arg(long)]
    no_specials: bool,

    /// Print {"tokens":[…]}; with --chat also the rendered "text"
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    fetch: FetchArgs,

    #[command(flatten)]
    verify: VerifyArgs,
}

impl Tokenize {
    pub fn run(self) -> anyhow::Result<()> {
        let path = load::fetch(&self.model, &self.fetch)?;
        let checkpoint = load::open_checkpoint(&path, weights::Access::Map, &self.verify)?;
        let tokenizer = Tokenizer::of_checkpoint(&path, checkpoint.naming, &checkpoint.metadata)
            .with_context(|| path.display().to_string())?
            .with_context(|| {
                format!("{}: found no vocabulary in the file or in its folder", path.display())
            })?;
        let text = input::text(self.text.as_deref())?
            .context("found no text, expected one as an argument or on stdin")?;
        if self.chat {
            let source = tokenizer.chat_template().with_context(|| {
                format!("{}: the model has no chat template; leave out --chat", path.display())
            })?;
            let text = render(&tokenizer, source, &text)?;
            // The template itself writes BOS.
            let tokens = tokenizer.encode(&text, Specials::Parse)?;
            return match self.json {
                true => output::print_json(&json!({ "text": text, "tokens": tokens })),
                false => print(&tokenizer, &tokens),
            };
        }
        let specials = if self.no_specials { Specials::Literal } else { Specials::Parse };
        let tokens = match self.no_bos {
            true => tokenizer.encode(&text, specials)?,
            false => tokenizer.encode_with_bos(&text, specials)?,
        };
        match self.json {
            true => output::print_json(&json!({ "tokens": tokens })),
            false => print(&tokenizer, &tokens),
        }
    }
}

/// Renders a conversation of one message, up to the start of the answer.
fn render(tokenizer: &Tokenizer, source: &str, message: &str) -> text::Result<String> {
    let text_of = |id: Option<u32>| id.map(|id| tokenizer.token_text(id));
    let (bos, eos) = (text_of(tokenizer.bos()), text_of(tokenizer.eos()));
    ChatTemplate::new(source)?.render(&Chat {
        messages: &[json!({ "role": "user", "content": message })],
        add_generation_prompt: true,
        bos_token: bos.as_deref(),
        eos_token: eos.as_deref(),
        ..Chat::default()
    })
}

/// Prints a line for each token: its id and its text.
fn print(tokenizer: &Tokenizer, tokens: &[u32]) -> anyhow::Result<()> {
    for &token in tokens {
        output::print_line(&format!("{token:>8}  {:?}", tokenizer.token_text(token)))?;
    }
    Ok(())
}
