//! `ingle complete`: raw completion, without a chat template.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use engine::Engine;
use serde_json::json;
use text::Specials;

use super::generate::{self, Interrupt};
use crate::args::{
    AdapterArgs, ModelArgs, PrefillArgs, PromptCacheArgs, SamplingArgs, SpeculateArgs, SpeculateName,
};
use crate::grammar::GrammarArgs;
use crate::wrap::{self, Wrapper};
use crate::{input, load, output, tell};

/// Continue a text, without a chat template
#[derive(Args)]
#[command(after_help = "\
Examples:
  ingle complete smollm2:135m \"The capital of France is\" --greedy -n 16
  ingle complete model.gguf --file story.txt --temperature 1 --seed 7
  echo -n \"Once upon a time\" | ingle complete gemma3:270m-base --json
  ingle complete folder/ --tokens 1,2,3 --greedy -n 8 --json")]
pub struct Complete {
    /// The text to continue, as a flag
    #[arg(short, long, value_name = "TEXT", group = "input")]
    prompt: Option<String>,

    /// Read the text to continue from a file
    ///
    /// Text on stdin is appended to it.
    #[arg(short, long, value_name = "FILE", group = "input")]
    file: Option<PathBuf>,

    /// Continue these token ids instead of a text
    #[arg(long, value_name = "IDS", value_delimiter = ',', group = "input")]
    tokens: Option<Vec<u32>>,

    /// Continue after the model's end token
    #[arg(long, visible_alias = "ignore-eos")]
    ignore_end: bool,

    /// Print JSON when the answer is complete
    ///
    /// The object is {"text":…,"tokens":[…],"stop":…,"timings":{…}}.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    sampling: SamplingArgs,

    #[command(flatten)]
    grammar: GrammarArgs,

    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    prompt_cache: PromptCacheArgs,

    #[command(flatten)]
    prefill: PrefillArgs,

    #[command(flatten)]
    speculate: SpeculateArgs,

    #[command(flatten)]
    adapters: AdapterArgs,

    /// The text to continue; - is stdin
    ///
    /// Text on stdin is appended to a TEXT.
    #[arg(index = 2, group = "input")]
    text: Option<String>,
}

impl Complete {
    pub fn run(self) -> anyhow::Result<()> {
        let prompt = self.text()?;
        generate::check(&self.sampling)?;
        let mut options = self.model.options()?;
        options.adapters = self.adapters.lora.sources();
        self.speculate.set(&mut options, SpeculateName::Auto)?;
        let model = Arc::new(load::open(&self.model.model, &options)?);
        let constraint = self.grammar.constraint(&model)?;
        let sampling = generate::sampling(&self.sampling, model.sampling());
        let may_guess = self.speculate.allows(&sampling, self.model.load.deterministic);
        if !may_guess {
            options.speculate = self.speculate.speculate(SpeculateName::Off)?;
        }
        let device = load::device_for(&model, &options)?;
        let tokens = || {
            // The tokenizer is loaded even for token ids: it decodes the answer.
            Ok(match (&self.tokens, model.tokenizer()?) {
                (Some(tokens), _) => tokens.clone(),
                (None, _) => model.need_tokenizer()?.encode_with_bos(&prompt, Specials::Parse)?,
            })
        };
        let engine = || load::engine(model.clone(), &device, &options);
        let (mut engine, tokens) = load::both(engine, tokens)?;
        let adapter = load::chosen_adapter(&self.adapters)?;
        engine.set_scored_adapter(adapter.as_deref())?;
        load::validate(&mut engine, &self.prefill, &tokens)?;
        anyhow::ensure!(
            adapter.is_none() || self.prompt_cache.prompt_cache.is_none(),
            "a prompt cache holds keys and values of the model without adapters; leave out --lora or --prompt-cache"
        );
        let mut cache = self.prompt_cache.open(&mut engine)?;
        let interrupt = Interrupt::install()?;
        let mut request =
            generate::request(tokens.clone(), sampling, &self.sampling, &self.prefill, may_guess)?;
        request.ignore_end = self.ignore_end;
        request.adapter = adapter;
        request.constraint = constraint;
        if self.json {
            complete_json(&mut engine, request)?;
        } else if model.tokenizer()?.is_none() {
            complete_ids(&mut engine, request)?;
        } else {
            complete_text(&mut engine, request, &interrupt)?;
        }
        self.prompt_cache.save(cache.as_mut(), &mut engine, &tokens)
    }

    /// The text to continue; empty if --tokens is given.
    fn text(&self) -> anyhow::Result<String> {
        if self.tokens.is_some() {
            return Ok(String::new());
        }
        let file = self.file.as_deref().map(input::file).transpose()?;
        let given = file.or_else(|| self.prompt.clone()).or_else(|| self.text.clone());
        input::text(given.as_deref())?
            .context("nothing to continue: give a TEXT, --file, --tokens, or a text on stdin")
    }
}

fn complete_json(engine: &mut Engine, request: engine::Request) -> anyhow::Result<()> {
    let done = engine.complete(request)?;
    output::print_json(&json!({
        "text": done.text, "tokens": done.tokens, "stop": generate::stop_word(&done.finished.reason),
        "seed": done.finished.seed, "timings": generate::timings_json(&done.finished.timings),
        "memory": { "planned": engine.memory().total, "peak_resident": platform::peak_resident_memory() },
    }))
}

fn complete_text(engine: &mut Engine, request: engine::Request, interrupt: &Interrupt) -> anyhow::Result<()> {
    let mut out = io::stdout();
    let mut wrapped = Wrapper::new(&mut out, Box::new(wrap::stdout_width), 0);
    let finished = generate::stream(engine, request, interrupt, &mut wrapped)?;
    wrapped.finish()?;
    writeln!(out)?;
    if let Some(remark) = generate::remark(&finished) {
        tell!("{remark}");
    }
    tell::aside(&generate::closing(&finished.timings));
    Ok(())
}

/// Prints the token ids of the answer, for a model without a tokenizer.
fn complete_ids(engine: &mut Engine, request: engine::Request) -> anyhow::Result<()> {
    let done = engine.complete(request)?;
    let ids: Vec<String> = done.tokens.iter().map(u32::to_string).collect();
    output::print_line(&ids.join(","))?;
    tell::aside(&generate::closing(&done.finished.timings));
    Ok(())
}
