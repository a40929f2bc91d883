//! `ingle run`: chat through the model's own template, once or interactively.

mod partner;
mod remote;
mod spoken;

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use engine::{Constraint, Conversation, Engine, Finished, Model, Picture, ShowSpecial};
use serde_json::{Map, Value, json};
use text::{AnswerFormat, ChatTemplate, Specials};

use self::remote::Remote;
use self::spoken::{Spoken, Voice};
use super::generate::{self, Interrupt};
use crate::args::{
    AdapterArgs, ModelArgs, PrefillArgs, PromptCacheArgs, SamplingArgs, SpeculateArgs, SpeculateName,
};
use crate::client::Client;
use crate::grammar::GrammarArgs;
use crate::interactive;
use crate::{input, load, output, tell};

/// Chat with a model: one answer to PROMPT, or an interactive conversation
#[derive(Args)]
#[command(after_help = "\
Examples:
  ingle run smollm2:135m \"Why is the sky blue?\"
  ingle run smollm2:135m                                  (an interactive chat; try /help)
  ingle run model.gguf --system \"Answer briefly.\" --temperature 0.2 \"What is Rust?\"
  ingle run smolvlm-folder/ --image cat.png \"What is this?\"
  ingle run smollm2:135m < question.txt                   (a prompt from a pipe)
  cat letter.txt | ingle run smollm2:135m \"Summarise this letter.\"
  ingle run smollm2:135m --server http://box.lan:8080 \"Hello\"  (a model of a server)")]
pub struct Run {
    /// Use the model of this server instead of running one here
    ///
    /// The server is `ingle serve` or any other with OpenAI's API.
    #[arg(long, value_name = "URL", help_heading = "Server")]
    server: Option<String>,

    /// The server's API key [default: INGLE_API_KEY]
    #[arg(long, value_name = "KEY", requires = "server", help_heading = "Server")]
    api_key: Option<String>,

    /// Trust only the server certificates in this PEM file
    #[arg(long, value_name = "FILE", requires = "server", help_heading = "Server")]
    ca_cert: Option<PathBuf>,

    /// The system message
    #[arg(long, alias = "system-prompt", value_name = "TEXT")]
    system: Option<String>,

    /// A Jinja chat template to use instead of the model's own
    #[arg(long, alias = "chat-template-file", value_name = "FILE", hide_short_help = true)]
    chat_template: Option<PathBuf>,

    /// Let a model that can reason think first, or not
    ///
    /// Some models also accept an effort: low, medium or high. --think alone means true.
    #[arg(long, value_name = "true|false|EFFORT", num_args = 0..=1, require_equals = true, default_missing_value = "true",
        value_parser = ["true", "false", "low", "medium", "high"])]
    think: Option<String>,

    /// Set a variable of the chat template; repeat for more
    ///
    /// The value is JSON, for example enable_thinking=false.
    #[arg(long, value_name = "NAME=JSON", hide_short_help = true)]
    template_var: Vec<String>,

    /// An image to talk about; repeat for more
    ///
    /// A PNG, JPEG or WebP file, for a model with an image encoder.
    #[arg(long, value_name = "FILE", conflicts_with = "server")]
    image: Vec<PathBuf>,

    /// Print JSON when the answer is complete
    ///
    /// The object is {"text":…,"stop":…,"timings":{…}}. A PROMPT or a pipe is needed.
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

    /// The prompt, under the name that llama-cli has for it
    #[arg(short = 'p', long = "prompt", hide = true, value_name = "PROMPT", conflicts_with = "prompt")]
    said: Option<String>,

    /// The message; without it the chat is interactive
    ///
    /// Text on stdin is appended to the message.
    #[arg(index = 2)]
    prompt: Option<String>,
}

impl Run {
    pub fn run(self) -> anyhow::Result<()> {
        let prompt = self.prompt()?;
        generate::check(&self.sampling)?;
        let history = || anyhow::Ok(self.model.fetch.cache()?.root().join("history"));
        if let Some(url) = &self.server {
            return self.remote(url)?.converse(prompt, self.json, &history);
        }
        let mut options = self.model.options()?;
        options.adapters = self.adapters.lora.sources();
        self.speculate.set(&mut options, SpeculateName::Auto)?;
        let model = Arc::new(load::open(&self.model.model, &options)?);
        let adapter = load::chosen_adapter(&self.adapters)?;
        anyhow::ensure!(
            adapter.is_none() || self.prompt_cache.prompt_cache.is_none(),
            "a prompt cache holds keys and values of the model without adapters; leave out --lora or --prompt-cache"
        );
        let constraint = self.grammar.constraint(&model)?;
        let device = load::device_for(&model, &options)?;
        let dialogue = || {
            model.need_tokenizer()?.prepare();
            self.dialogue(&model)
        };
        let engine = || load::engine(model.clone(), &device, &options);
        let (mut engine, dialogue) = load::both(engine, dialogue)?;
        let mut cache = self.prompt_cache.open(&mut engine)?;
        let mut session = Session {
            dialogue,
            engine,
            last_prompt: Vec::new(),
            speculate: self.speculate.clone(),
            deterministic: self.model.load.deterministic,
            interrupt: Interrupt::install()?,
            prefill: self.prefill,
            sampling: self.sampling,
            constraint,
            adapter,
            images: Vec::new(),
            waiting: Vec::new(),
            n_last: 0,
            turns: Vec::new(),
            n_used: 0,
        };
        session.waiting = load::images(&model, &self.image)?;
        session.engine.set_scored_adapter(session.adapter.as_deref())?;
        match prompt {
            Some(prompt) if self.json => session.answer_json(&prompt)?,
            Some(prompt) => {
                let finished = session.answer(&prompt, &mut io::stdout())?;
                tell::aside(&generate::closing(&finished.timings));
            }
            None => interactive::run(&mut session, &self.model.model.to_string(), &history()?)?,
        }
        self.prompt_cache.save(cache.as_mut(), &mut session.engine, &session.last_prompt)
    }

    /// The first message; `None` if the chat is interactive.
    fn prompt(&self) -> anyhow::Result<Option<String>> {
        let prompt = input::message(self.prompt.as_deref().or(self.said.as_deref()))?;
        if prompt.is_some() {
            return Ok(prompt);
        }
        anyhow::ensure!(!self.json, "--json needs a PROMPT: an interactive chat prints no JSON");
        if io::stdin().is_terminal() {
            return Ok(None);
        }
        anyhow::ensure!(!self.image.is_empty(), "nothing to answer: stdin is empty; give a PROMPT");
        Ok(Some(String::new()))
    }

    fn remote(&self, url: &str) -> anyhow::Result<Remote> {
        anyhow::ensure!(
            self.chat_template.is_none(),
            "--chat-template cannot be used with --server: the server has its own template for the model"
        );
        anyhow::ensure!(
            self.adapters.lora.lora.is_empty(),
            "--lora cannot be used with --server: name an adapter of the server instead of the model"
        );
        Ok(Remote {
            client: Client::new(url, self.api_key.clone(), self.ca_cert.as_deref())?,
            model: self.model.model.to_string(),
            system: self.system.clone(),
            variables: self.variables()?,
            sampling: self.sampling.clone(),
            grammar: self.grammar.read()?,
            interrupt: Interrupt::install()?,
            messages: Vec::new(),
        })
    }

    /// Variables of the chat template: of `--think`, under the names that templates use, and of
    /// `--template-var`.
    fn variables(&self) -> anyhow::Result<Map<String, Value>> {
        let thinks = self.think.as_deref().map(|word| json!(word != "false"));
        let effort =
            self.think.as_deref().filter(|word| !["true", "false"].contains(word)).map(|word| json!(word));
        let of_think = [("enable_thinking", &thinks), ("thinking", &thinks), ("reasoning_effort", &effort)];
        let of_think =
            of_think.into_iter().filter_map(|(name, value)| Some(Ok((name.to_owned(), value.clone()?))));
        of_think.chain(self.template_var.iter().map(|given| variable(given))).collect()
    }

    fn dialogue(&self, model: &Arc<Model>) -> anyhow::Result<Dialogue> {
        let own = model.need_tokenizer()?.chat_template().is_some();
        let (mut conversation, format) = match &self.chat_template {
            Some(file) => {
                let source =
                    std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
                let conversation = Conversation::with_template(model, Arc::new(ChatTemplate::new(&source)?))?;
                (conversation, AnswerFormat::detect(&source).with_vocabulary(model.need_tokenizer()?))
            }
            None if own => {
                let tokenizer = model.need_tokenizer()?;
                let source = tokenizer.chat_template().unwrap_or_default();
                (Conversation::new(model)?, AnswerFormat::detect(source).with_vocabulary(tokenizer))
            }
            None => {
                anyhow::ensure!(
                    self.system.is_none() && self.template_var.is_empty() && self.think.is_none(),
                    "{} has no chat template, which --system, --template-var and --think need; name one with --chat-template",
                    self.model.model
                );
                // Speech and embedding models are refused when they are loaded.
                if model.spec().encoder.is_none() && model.embedding().is_err() {
                    tell!(
                        "note: {} is a base model: it continues your text and answers no questions",
                        self.model.model
                    );
                }
                return Ok(Dialogue::Plain { model: model.clone(), text: String::new() });
            }
        };
        conversation.set_system(self.system.as_deref());
        for (name, value) in self.variables()? {
            conversation.set_variable(&name, value);
        }
        let shown = format.shown_tokens(model.need_tokenizer()?)?.into();
        Ok(Dialogue::Chat { conversation: Box::new(conversation), format, shown })
    }
}

/// Parses `NAME=JSON` of `--template-var`.
fn variable(given: &str) -> anyhow::Result<(String, Value)> {
    let (name, value) =
        given.split_once('=').with_context(|| format!("found {given:?}, expected NAME=JSON"))?;
    let value = serde_json::from_str(value).with_context(|| {
        format!("--template-var {name}: found {value:?}, expected JSON (text needs quotation marks)")
    })?;
    Ok((name.to_owned(), value))
}

/// The messages so far, and how they become a prompt.
enum Dialogue {
    /// A chat through a template. `format` parses answers, for which the special tokens `shown`
    /// must be visible.
    Chat { conversation: Box<Conversation>, format: AnswerFormat, shown: Arc<[u32]> },
    /// A base model, which continues one growing text.
    Plain { model: Arc<Model>, text: String },
}

impl Dialogue {
    /// Adds a message to the dialogue and returns the prompt's tokens. The last `n_new` of `images`
    /// belong to it.
    fn say(
        &mut self,
        message: &str,
        images: &[Arc<Picture>],
        n_new: usize,
        model: &Model,
    ) -> anyhow::Result<Vec<u32>> {
        match self {
            Dialogue::Chat { conversation, .. } if !images.is_empty() => {
                conversation.push(with_images(message, n_new));
                let mut prompt = image_prompt(conversation, images, model);
                if prompt.is_err() && n_new > 0 {
                    // Some templates accept only messages of text.
                    conversation.pop();
                    conversation.push_user(&marked(message, n_new, model)?);
                    prompt = image_prompt(conversation, images, model);
                }
                if prompt.is_err() {
                    conversation.pop();
                }
                prompt
            }
            Dialogue::Plain { text, .. } if !images.is_empty() => {
                let text_before = text.len();
                text.push_str(&marked(message, n_new, model)?);
                let tokens =
                    model.expand_images(text, images).map_err(anyhow::Error::from).and_then(|expanded| {
                        Ok(model.need_tokenizer()?.encode_with_bos(&expanded, Specials::Parse)?)
                    });
                if tokens.is_err() {
                    text.truncate(text_before);
                }
                tokens
            }
            Dialogue::Chat { conversation, .. } => {
                conversation.push_user(message);
                let prompt = conversation.prompt();
                // A message that the template refuses is not part of the conversation.
                if prompt.is_err() {
                    conversation.pop();
                }
                Ok(prompt?)
            }
            Dialogue::Plain { model, text } => {
                text.push_str(message);
                Ok(model.need_tokenizer()?.encode_with_bos(text, Specials::Parse)?)
            }
        }
    }

    /// The parser of the answer to the last message, which writes to `out`.
    fn spoken<'a>(&self, out: &'a mut dyn Write, voice: Voice) -> anyhow::Result<Spoken<'a>> {
        Ok(match self {
            Dialogue::Chat { conversation, format, .. } => {
                Spoken::new(out, voice, Some(format.parser(&conversation.render(true)?, &[])))
            }
            Dialogue::Plain { .. } => Spoken::new(out, voice, None),
        })
    }

    fn shown(&self) -> ShowSpecial {
        match self {
            Dialogue::Chat { shown, .. } => ShowSpecial::Only(shown.clone()),
            Dialogue::Plain { .. } => ShowSpecial::Nothing,
        }
    }

    fn heard(&mut self, reasoning: &str, answer: &str) {
        match self {
            Dialogue::Chat { conversation, .. } if reasoning.is_empty() => {
                conversation.push_assistant(answer)
            }
            Dialogue::Chat { conversation, .. } => conversation.push(json!({
                "role": "assistant", "content": answer, "reasoning_content": reasoning,
            })),
            Dialogue::Plain { text, .. } => text.push_str(answer),
        }
    }

    /// A base model's text; empty for a chat.
    fn text(&self) -> &str {
        match self {
            Dialogue::Chat { .. } => "",
            Dialogue::Plain { text, .. } => text,
        }
    }

    /// Removes the last message, which got no answer.
    fn unsay(&mut self, message: &str, n_images: usize) {
        match self {
            Dialogue::Chat { conversation, .. } => {
                conversation.pop();
            }
            Dialogue::Plain { model, text } => {
                let length = marked(message, n_images, model).map_or(message.len(), |marked| marked.len());
                text.truncate(text.len().saturating_sub(length));
            }
        }
    }
}

/// A message of images followed by text, in the form of templates of vision models.
fn with_images(message: &str, n_images: usize) -> Value {
    let mut parts = vec![json!({"type": "image"}); n_images];
    parts.push(json!({"type": "text", "text": message}));
    json!({"role": "user", "content": parts})
}

/// The message after one placeholder of the model for each image.
fn marked(message: &str, n_images: usize, model: &Model) -> anyhow::Result<String> {
    if n_images == 0 {
        return Ok(message.to_owned());
    }
    Ok(model.need_vision()?.tower.marks.placeholder.repeat(n_images) + message)
}

/// The tokens of a conversation with images, up to the start of the answer.
fn image_prompt(
    conversation: &Conversation,
    images: &[Arc<Picture>],
    model: &Model,
) -> anyhow::Result<Vec<u32>> {
    let text = model.expand_images(&conversation.render(true)?, images)?;
    Ok(model.need_tokenizer()?.encode(&text, Specials::Parse)?)
}

/// A message that was answered.
struct Turn {
    message: String,
    n_images: usize,
    /// Bytes of a base model's text before the message.
    text_before: usize,
}

/// An engine, a dialogue, and the settings of the next answer.
struct Session {
    dialogue: Dialogue,
    engine: Engine,
    sampling: SamplingArgs,
    /// Tokens of the last prompt, for the prompt cache.
    last_prompt: Vec<u32>,
    speculate: SpeculateArgs,
    deterministic: bool,
    interrupt: Interrupt,
    prefill: PrefillArgs,
    /// The grammar of each answer.
    constraint: Option<Box<dyn Constraint>>,
    /// Images of the conversation so far, in order.
    images: Vec<Arc<Picture>>,
    /// Images of the next message.
    waiting: Vec<Arc<Picture>>,
    /// Number of images of the last message.
    n_last: usize,
    /// Answered messages in order, for /undo.
    turns: Vec<Turn>,
    /// Tokens of the conversation, including the last answer.
    n_used: usize,
    /// The adapter that answers are computed with.
    adapter: Option<Arc<str>>,
}

impl Session {
    /// Sends a message; the answer streams to `out` and becomes part of the dialogue.
    fn answer(&mut self, message: &str, out: &mut dyn Write) -> anyhow::Result<Finished> {
        let text_before = self.dialogue.text().len();
        let request = self.request(message)?;
        let mut spoken = self.dialogue.spoken(out, Voice::of_stdout())?;
        let streamed = generate::stream(&mut self.engine, request, &self.interrupt, &mut spoken);
        let streamed = streamed.and_then(|finished| Ok((finished, spoken.finish()?)));
        match &streamed {
            Ok((_, (reasoning, answer))) => self.dialogue.heard(reasoning, answer),
            Err(_) => self.unsay(message),
        }
        let (finished, _) = streamed?;
        self.turns.push(Turn { message: message.to_owned(), n_images: self.n_last, text_before });
        self.n_used = finished.timings.prompt_tokens + finished.timings.generated_tokens;
        writeln!(out)?;
        if let Some(remark) = generate::remark(&finished) {
            tell!("{remark}");
        }
        Ok(finished)
    }

    fn answer_json(&mut self, message: &str) -> anyhow::Result<()> {
        let request = self.request(message)?;
        let done = self.engine.complete(request)?;
        let mut sink = io::sink();
        let mut spoken = self.dialogue.spoken(&mut sink, Voice::Silent)?;
        spoken.write_all(done.text.as_bytes())?;
        let (reasoning, text) = spoken.finish()?;
        output::print_json(&json!({
            "text": text, "reasoning": reasoning, "tokens": done.tokens, "stop": generate::stop_word(&done.finished.reason),
            "seed": done.finished.seed, "timings": generate::timings_json(&done.finished.timings),
        }))
    }

    fn request(&mut self, message: &str) -> anyhow::Result<engine::Request> {
        let n_images = self.waiting.len();
        self.images.append(&mut self.waiting);
        let said = self.dialogue.say(message, &self.images, n_images, self.engine.model());
        if said.is_err() {
            self.waiting = self.images.split_off(self.images.len() - n_images);
        }
        let tokens = said?;
        self.n_last = n_images;
        if self.images.is_empty() {
            let checked = load::validate(&mut self.engine, &self.prefill, &tokens);
            if checked.is_err() {
                self.unsay(message);
            }
            checked?;
        }
        self.last_prompt.clone_from(&tokens);
        let sampling = generate::sampling(&self.sampling, self.engine.model().sampling());
        let may_guess = self.speculate.allows(&sampling, self.deterministic);
        let request = generate::request(tokens, sampling, &self.sampling, &self.prefill, may_guess)?;
        let (constraint, show_special) = (self.constraint.clone(), self.dialogue.shown());
        Ok(engine::Request {
            constraint,
            show_special,
            images: self.images.clone(),
            adapter: self.adapter.clone(),
            ..request
        })
    }

    /// Removes the last message, which got no answer; its images belong to the next message.
    fn unsay(&mut self, message: &str) {
        self.waiting = self.images.split_off(self.images.len().saturating_sub(self.n_last));
        self.dialogue.unsay(message, self.n_last);
    }
}
