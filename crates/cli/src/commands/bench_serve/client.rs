//! A request to the measured server, over a connection of its own.

use std::io::Read;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::{Value, json};

use crate::client::Client;
use crate::sse::Reader;

/// The measured server.
pub struct Target {
    client: Client,
    /// `model` of every request.
    pub model: String,
    /// Time after which a request has failed.
    timeout: Duration,
}

/// Outcomes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The answer is complete.
    Done,
    /// The server refused with status 429 and this text.
    Refused(String),
    /// The client hung up, as planned.
    HungUp,
    /// The stream ended without `finish_reason`.
    Killed,
    /// The request failed with this message.
    Failed(String),
}

/// A request and its answer. Times are those of chunks with text.
#[derive(Clone, Debug)]
pub struct Answer {
    pub messages: Value,
    /// Tokens that the request asked for.
    pub n_answer: usize,
    /// Planned time of the request.
    pub scheduled: Instant,
    pub chunks: Vec<Instant>,
    pub ended: Instant,
    pub outcome: Outcome,
    pub text: String,
    /// Tokens of the prompt, as counted by the server.
    pub n_prompt: u64,
    /// Tokens of the prompt that were cached, as counted by the server.
    pub n_cached: u64,
    /// Tokens of the answer, as counted by the server.
    pub n_generated: u64,
}

impl Target {
    /// The server at `url`, as `http://host:port`, with or without `/v1`.
    ///
    /// # Errors
    /// The server lists no model, and `model` is `None`.
    pub fn new(
        url: &str,
        api_key: Option<String>,
        model: Option<String>,
        timeout: Duration,
    ) -> anyhow::Result<Target> {
        let client = Client::unpooled(url, api_key, timeout);
        let model = match model {
            Some(model) => model,
            None => {
                let list = client.get("/v1/models")?;
                let id = list["data"][0]["id"].as_str();
                id.context("/v1/models lists no model; name one with --model")?.to_owned()
            }
        };
        Ok(Target { client, model, timeout })
    }

    /// Requests `n_answer` tokens and reads the stream; hangs up after `hang_up_after` chunks.
    pub fn ask(
        &self,
        messages: Value,
        n_answer: usize,
        scheduled: Instant,
        hang_up_after: Option<usize>,
    ) -> Answer {
        let mut answer = Answer {
            messages,
            n_answer,
            scheduled,
            chunks: Vec::new(),
            ended: scheduled,
            outcome: Outcome::Killed,
            text: String::new(),
            n_prompt: 0,
            n_cached: 0,
            n_generated: 0,
        };
        let sent = Instant::now();
        answer.outcome = match self.stream(&mut answer, hang_up_after) {
            Ok(outcome) => outcome,
            Err(_) if sent.elapsed() >= self.timeout => {
                let seconds = self.timeout.as_secs();
                Outcome::Failed(format!("no complete answer within {seconds} s (--timeout)"))
            }
            // The connection broke within the answer.
            Err(_) if !answer.chunks.is_empty() => Outcome::Killed,
            Err(error) => Outcome::Failed(crate::output::message(&error)),
        };
        answer.ended = Instant::now();
        answer
    }

    fn stream(&self, answer: &mut Answer, hang_up_after: Option<usize>) -> anyhow::Result<Outcome> {
        let body = json!({
            "model": self.model, "messages": answer.messages, "max_tokens": answer.n_answer,
            "temperature": 0, "seed": 0, "ignore_eos": true,
            "stream": true, "stream_options": { "include_usage": true },
        });
        let mut response = self.client.send("/v1/chat/completions", &body)?;
        let status = response.status();
        if status != 200 {
            let text = response.body_mut().read_to_string()?.trim().to_owned();
            if status == 429 {
                return Ok(Outcome::Refused(text));
            }
            bail!("{status}: {text}");
        }
        let mut body = response.body_mut().as_reader();
        let (mut reader, mut bytes, mut finished) = (Reader::default(), [0; 8192], false);
        loop {
            let n = body.read(&mut bytes)?;
            let now = Instant::now();
            if n == 0 {
                return Ok(if finished { Outcome::Done } else { Outcome::Killed });
            }
            for data in reader.feed(&bytes[..n]) {
                if data == "[DONE]" {
                    continue;
                }
                let event: Value = serde_json::from_str(&data)
                    .with_context(|| format!("found event {data}, expected JSON"))?;
                if let Some(error) = event.get("error") {
                    return Ok(Outcome::Failed(error.to_string()));
                }
                answer.add(&event, now);
                finished |= event["choices"][0]["finish_reason"].is_string();
            }
            if hang_up_after.is_some_and(|n| answer.chunks.len() >= n) {
                return Ok(Outcome::HungUp);
            }
        }
    }
}

impl Answer {
    /// Adds an event of the stream, which arrived at `now`.
    fn add(&mut self, event: &Value, now: Instant) {
        if let Some(usage) = event.get("usage").filter(|usage| usage.is_object()) {
            self.n_prompt = usage["prompt_tokens"].as_u64().unwrap_or(0);
            self.n_generated = usage["completion_tokens"].as_u64().unwrap_or(0);
            self.n_cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
        }
        let delta = &event["choices"][0]["delta"];
        let texts = [&delta["reasoning_content"], &delta["content"]];
        let text: String = texts.iter().filter_map(|text| text.as_str()).collect();
        if !text.is_empty() {
            self.chunks.push(now);
            self.text.push_str(&text);
        }
    }
}
