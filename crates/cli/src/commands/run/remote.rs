//! `ingle run --server`: a chat with a model of a server.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use engine::SamplingChoice;
use serde_json::{Map, Value, json};
use text::Grammar;

use super::spoken::{Spoken, Voice};
use crate::args::SamplingArgs;
use crate::client::Client;
use crate::commands::generate::{self, Interrupt};
use crate::interactive::{self, Partner, messages};
use crate::{output, tell};

/// A chat with a model of a server.
pub struct Remote {
    pub client: Client,
    pub model: String,
    pub system: Option<String>,
    /// Variables of the chat template.
    pub variables: Map<String, Value>,
    pub sampling: SamplingArgs,
    pub grammar: Option<Grammar>,
    pub interrupt: Interrupt,
    /// Messages of both sides, without the system message.
    pub messages: Vec<Value>,
}

/// An answer of the server, and its timings.
pub struct Heard {
    pub reasoning: String,
    pub text: String,
    pub stop: Value,
    pub usage: Value,
    pub first_token_seconds: f64,
    pub seconds: f64,
}

impl Heard {
    /// The line that is printed under the answer.
    pub fn figures(&self) -> String {
        let count = |pointer: &str| self.usage.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
        let n_tokens = count("/completion_tokens");
        let writing = self.seconds - self.first_token_seconds;
        let rate = if writing > 0.0 { n_tokens.saturating_sub(1) as f64 / writing } else { 0.0 };
        if !tell::is_verbose() {
            return generate::brief(n_tokens as usize, rate);
        }
        let mut text = format!("prompt {} tokens", count("/prompt_tokens"));
        match count("/prompt_tokens_details/cached_tokens") {
            0 => {}
            n => text += &format!(" ({n} reused)"),
        }
        let first = output::seconds(self.first_token_seconds);
        text + &format!("; answer {n_tokens} tokens, {rate:.1} tok/s; first token after {first}")
    }
}

impl Remote {
    /// Prints the answer to `prompt`; without a prompt the chat is interactive.
    ///
    /// # Errors
    /// Errors of [`Self::answer`] or of the terminal.
    pub fn converse(
        mut self,
        prompt: Option<String>,
        json: bool,
        history: &dyn Fn() -> anyhow::Result<PathBuf>,
    ) -> anyhow::Result<()> {
        let name = self.model.clone();
        match prompt {
            Some(prompt) if json => {
                let heard = self.answer(&prompt, &mut io::sink(), Voice::Silent)?;
                let seconds =
                    json!({ "first_token_seconds": heard.first_token_seconds, "seconds": heard.seconds });
                output::print_json(&json!({
                    "text": heard.text, "reasoning": heard.reasoning, "stop": heard.stop, "usage": heard.usage, "timings": seconds,
                }))
            }
            Some(prompt) => {
                let heard = self.answer(&prompt, &mut io::stdout(), Voice::of_stdout())?;
                output::print_line("")?;
                tell::aside(&heard.figures());
                Ok(())
            }
            None => interactive::run(&mut self, &name, &history()?),
        }
    }

    /// Sends a message; the answer streams to `out` and becomes part of the conversation.
    ///
    /// # Errors
    /// The server or `out` fails; the conversation is then unchanged.
    pub fn answer(&mut self, message: &str, out: &mut dyn Write, voice: Voice) -> anyhow::Result<Heard> {
        self.messages.push(json!({ "role": "user", "content": message }));
        let heard = self.send(out, voice);
        match &heard {
            Ok(heard) => {
                let mut message = json!({ "role": "assistant", "content": heard.text });
                if !heard.reasoning.is_empty() {
                    message["reasoning_content"] = json!(heard.reasoning);
                }
                self.messages.push(message);
            }
            Err(_) => drop(self.messages.pop()),
        }
        heard
    }

    fn send(&self, out: &mut dyn Write, voice: Voice) -> anyhow::Result<Heard> {
        let cancel = engine::CancelFlag::default();
        self.interrupt.watch(Some(cancel.clone()));
        let begun = Instant::now();
        let mut spoken = Spoken::new(out, voice, None);
        let (mut stop, mut usage, mut first) = (Value::Null, Value::Null, None);
        let streamed = self.client.stream("/v1/chat/completions", &self.body(), &cancel, &mut |event| {
            let choice = &event["choices"][0];
            let piece = |key: &str| choice["delta"][key].as_str().filter(|piece| !piece.is_empty());
            if let Some(piece) = piece("reasoning_content") {
                first.get_or_insert_with(|| begun.elapsed());
                spoken.think(piece)?;
            }
            if let Some(piece) = piece("content") {
                first.get_or_insert_with(|| begun.elapsed());
                spoken.say(piece)?;
            }
            spoken.flush()?;
            if !choice["finish_reason"].is_null() {
                stop = choice["finish_reason"].clone();
            }
            if event["usage"].is_object() {
                usage = event["usage"].clone();
            }
            Ok(())
        });
        self.interrupt.watch(None);
        streamed?;
        let seconds = begun.elapsed().as_secs_f64();
        let first_token_seconds = first.map_or(seconds, |first| first.as_secs_f64());
        let (reasoning, text) = spoken.finish()?;
        Ok(Heard { reasoning, text, stop, usage, first_token_seconds, seconds })
    }

    fn body(&self) -> Value {
        let system = self.system.iter().map(|text| json!({ "role": "system", "content": text }));
        let messages: Vec<Value> = system.chain(self.messages.iter().cloned()).collect();
        let mut body = Map::new();
        body.insert("model".into(), json!(self.model));
        body.insert("messages".into(), json!(messages));
        body.insert("stream".into(), json!(true));
        body.insert("stream_options".into(), json!({ "include_usage": true }));
        if !self.variables.is_empty() {
            body.insert("chat_template_kwargs".into(), json!(self.variables));
        }
        body.extend(sampling_keys(&self.sampling));
        body.extend(self.grammar.as_ref().map(grammar_key));
        Value::Object(body)
    }
}

/// The request's keys for these flags.
fn sampling_keys(args: &SamplingArgs) -> Map<String, Value> {
    let (sampling, choice) = (generate::sampling(args, SamplingChoice::default()), args.choice());
    let bias: Map<String, Value> =
        sampling.logit_bias.iter().map(|(token, bias)| (token.to_string(), json!(bias))).collect();
    let window = choice.penalty_window.map(|n| match n {
        // 0 is the whole context here, and -1 on the server.
        0 => -1,
        n => n as i64,
    });
    // The server has its own default for a null value.
    let mut keys = json!({
        "temperature": choice.temperature, "top_k": choice.top_k, "top_p": choice.top_p,
        "min_p": choice.min_p, "repeat_penalty": choice.repeat_penalty, "repeat_last_n": window,
        "presence_penalty": sampling.presence_penalty, "frequency_penalty": sampling.frequency_penalty,
        "typical_p": sampling.typical_p, "top_n_sigma": sampling.top_n_sigma,
        "xtc_probability": sampling.xtc_probability, "xtc_threshold": sampling.xtc_threshold,
        "dynatemp_range": sampling.dynatemp_range, "dynatemp_exponent": sampling.dynatemp_exponent,
        "seed": sampling.seed, "logit_bias": bias, "stop": args.stop, "max_tokens": args.max_tokens,
    });
    if let Some(mirostat) = &sampling.mirostat {
        keys["mirostat"] = json!(mirostat.version);
        keys["mirostat_tau"] = json!(mirostat.tau);
        keys["mirostat_eta"] = json!(mirostat.eta);
    }
    if let Some(dry) = &sampling.dry {
        keys["dry_multiplier"] = json!(dry.multiplier);
        keys["dry_base"] = json!(dry.base);
        keys["dry_allowed_length"] = json!(dry.allowed_length);
        keys["dry_penalty_last_n"] = json!(if dry.window == 0 { -1 } else { dry.window as i64 });
        keys["dry_sequence_breakers"] = json!(dry.breakers.texts());
    }
    if let Some(order) = &sampling.order {
        keys["samplers"] = json!(order.iter().map(|sampler| sampler.name()).collect::<Vec<_>>());
    }
    match keys {
        Value::Object(keys) => keys,
        _ => Map::new(),
    }
}

fn grammar_key(grammar: &Grammar) -> (String, Value) {
    let (name, value) = match grammar {
        Grammar::Gbnf(text) => ("grammar", json!(text)),
        Grammar::JsonSchema(schema) => ("json_schema", schema.clone()),
        Grammar::Regex(regex) => ("guided_regex", json!(regex)),
        Grammar::Lark(text) => ("guided_grammar", json!(text)),
        Grammar::Choice(texts) => ("guided_choice", json!(texts)),
        Grammar::AnyJson => ("response_format", json!({ "type": "json_object" })),
    };
    (name.to_owned(), value)
}

impl Partner for Remote {
    fn describe(&self) -> String {
        self.client.url().to_owned()
    }

    fn answer(&mut self, message: &str, out: &mut dyn Write) -> anyhow::Result<String> {
        let heard = Remote::answer(self, message, out, Voice::of_stdout())?;
        writeln!(out)?;
        Ok(heard.figures())
    }

    fn clear(&mut self) {
        self.messages.clear();
    }

    fn set_system(&mut self, text: Option<&str>) -> anyhow::Result<()> {
        self.system = text.map(str::to_owned);
        Ok(())
    }

    fn sampling(&self) -> &SamplingArgs {
        &self.sampling
    }

    fn default_sampling(&self) -> SamplingChoice {
        SamplingChoice::default()
    }

    fn set_sampling(&mut self, sampling: SamplingArgs) -> anyhow::Result<()> {
        // Token ids are checked by the server, which has the vocabulary.
        let without_biases = engine::SamplingParams {
            logit_bias: Arc::default(),
            ..generate::sampling(&sampling, SamplingChoice::default())
        };
        without_biases.check(1)?;
        self.sampling = sampling;
        Ok(())
    }

    fn saved(&self) -> Value {
        let system = self.system.iter().map(|text| json!({ "role": "system", "content": text }));
        json!({ "messages": system.chain(self.messages.iter().cloned()).collect::<Vec<_>>() })
    }

    fn loaded(&mut self, saved: &Value) -> anyhow::Result<()> {
        self.messages = messages(saved)?;
        if self.messages.first().is_some_and(|message| message["role"] == "system") {
            self.system = self.messages.remove(0)["content"].as_str().map(str::to_owned);
        }
        Ok(())
    }

    fn undo(&mut self) -> anyhow::Result<String> {
        let last = self.messages.iter().rposition(|message| message["role"] == "user");
        let last = last.context("there is no answer to undo")?;
        let said = self.messages.drain(last..).next().unwrap_or_default();
        Ok(said["content"].as_str().unwrap_or_default().to_owned())
    }

    fn show(&self) -> String {
        format!("model     {}\nserver    {}", self.model, self.client.url())
    }
}
