//! Keys and JSON that several endpoints of OpenAI's API share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Json;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use runner::{Finish, StopReason, TokenInfo, Usage};
use runner::{GenerateOptions, Prompt, ToolChoice};
use runner::{RequestError, Result};

/// Reads a word of `tool_choice`, in chats and in Responses.
pub(super) fn tool_choice_word(word: &Value) -> Result<ToolChoice> {
    match word.as_str() {
        Some("auto") => Ok(ToolChoice::Auto),
        Some("none") => Ok(ToolChoice::None),
        Some("required") => Ok(ToolChoice::Required),
        _ => Err(wrong_tool_choice(word)),
    }
}

pub(super) fn wrong_tool_choice(found: &Value) -> RequestError {
    let expected = "none, auto, required, a function, or allowed_tools";
    RequestError::invalid("tool_choice", format!("`tool_choice` is {found}, expected {expected}"))
}

/// Number of a prompt's tokens in the shape of OpenAI's Responses.
pub(super) fn input_tokens(n: usize) -> Json<Value> {
    Json(json!({ "object": "response.input_tokens", "input_tokens": n }))
}

/// `system_fingerprint`: `b` and the version, as llama-server writes it.
pub(super) const FINGERPRINT: &str = concat!("b", env!("CARGO_PKG_VERSION"));

/// A text, a list of tokens, or several of either.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a text, a list of tokens, or a list of texts or of such lists")]
pub(in crate::api) enum Prompts {
    Text(String),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
    TokenLists(Vec<Vec<u32>>),
}

impl Prompts {
    pub(super) fn list(self) -> Vec<Prompt> {
        let text = |text| Prompt::Text { text, parse_special: true };
        match self {
            Prompts::Text(one) => vec![text(one)],
            Prompts::Tokens(tokens) => vec![Prompt::Tokens(tokens)],
            Prompts::Texts(texts) => texts.into_iter().map(text).collect(),
            Prompts::TokenLists(lists) => lists.into_iter().map(Prompt::Tokens).collect(),
        }
    }
}

/// `stop`: a text or a list of texts.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(untagged, expecting = "expected a text or a list of texts")]
pub(super) enum Stop {
    #[default]
    None,
    One(String),
    Several(Vec<String>),
}

impl Stop {
    pub(super) fn texts(self) -> Vec<String> {
        match self {
            Stop::None => Vec::new(),
            Stop::One(text) => vec![text],
            Stop::Several(texts) => texts,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(super) struct StreamOptions {
    #[serde(default)]
    pub(super) include_usage: bool,
}

/// Maximum number of answers of one request.
pub(super) const MAX_N: usize = 128;

pub(super) fn check_n(n: Option<usize>) -> Result<usize> {
    match n.unwrap_or(1) {
        n if (1..=MAX_N).contains(&n) => Ok(n),
        n => Err(RequestError::invalid("n", format!("`n` is {n}, expected a number from 1 to {MAX_N}"))),
    }
}

pub(super) fn check_max_tokens(name: &str, value: Option<i64>) -> Result<Option<usize>> {
    match value {
        // Clients of llama.cpp send -1 for no limit.
        None | Some(-1) => Ok(None),
        Some(n) if n >= 0 => Ok(Some(n as usize)),
        Some(n) => Err(RequestError::invalid(name, format!("`{name}` is {n}, expected a number of tokens"))),
    }
}

/// Checks the number of most likely tokens to report.
pub(super) fn check_top_logprobs(name: &str, n: Option<usize>) -> Result<usize> {
    match n.unwrap_or(0) {
        n if n <= engine::MAX_BEST_LOGPROBS => Ok(n),
        n => {
            let most = engine::MAX_BEST_LOGPROBS;
            Err(RequestError::invalid(name, format!("`{name}` is {n}, expected at most {most}")))
        }
    }
}

/// Applies `service_tier`: `flex` lowers the priority; no tier raises it.
pub(super) fn check_service_tier(tier: Option<&str>, options: &mut GenerateOptions) {
    if tier == Some("flex") {
        options.priority = options.priority.min(-1);
    }
}

pub(super) fn usage_json(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": { "cached_tokens": usage.cached_tokens },
        "completion_tokens_details": { "reasoning_tokens": usage.reasoning_tokens },
    })
}

/// Adds a choice to a request's usage, in which the prompt counts once.
pub(super) fn add_usage(sum: &mut Usage, of_choice: Usage) {
    sum.prompt_tokens = of_choice.prompt_tokens;
    sum.cached_tokens = sum.cached_tokens.max(of_choice.cached_tokens);
    sum.completion_tokens += of_choice.completion_tokens;
    sum.reasoning_tokens += of_choice.reasoning_tokens;
}

/// Returns OpenAI's `finish_reason`.
///
/// # Errors
/// The answer failed, or ran out of time.
pub(super) fn finish_reason(finish: &Finish) -> Result<&'static str> {
    match &finish.reason {
        StopReason::End | StopReason::StopString(_) | StopReason::StopToken(_) | StopReason::Cancelled => {
            Ok("stop")
        }
        StopReason::MaxTokens | StopReason::ContextFull => Ok("length"),
        StopReason::ToolCalls => Ok("tool_calls"),
        StopReason::Timeout => {
            Err(RequestError::new(runner::ErrorKind::Timeout, "the request's time is over"))
        }
        StopReason::Ungrammatical(words) => Err(RequestError::ungrammatical(words)),
        StopReason::Failed(message) => Err(RequestError::internal(message.clone())),
    }
}

/// A token of `logprobs.content`.
#[derive(Serialize)]
pub(super) struct TokenLogprob {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
    /// `None` for an entry of this list itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    top_logprobs: Option<Vec<TokenLogprob>>,
}

impl TokenLogprob {
    pub(super) fn of(token: TokenInfo) -> TokenLogprob {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let top = token.top.into_iter().map(|(_, bytes, logprob)| TokenLogprob {
            token: text(&bytes),
            logprob,
            bytes,
            top_logprobs: None,
        });
        TokenLogprob {
            token: text(&token.bytes),
            // JSON has no infinity. OpenAI documents -9999 for tokens that are very unlikely.
            logprob: token.logprob.filter(|logprob| logprob.is_finite()).unwrap_or(-9999.0),
            top_logprobs: Some(top.collect()),
            bytes: token.bytes,
        }
    }
}

/// Makes a new id, unique among all starts of the server.
pub(super) fn new_id(kind: &str) -> String {
    static N: AtomicU64 = AtomicU64::new(0);
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros() as u64);
    format!("{kind}_{time:014x}{:08x}", N.fetch_add(1, Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ() {
        assert_ne!(new_id("resp"), new_id("resp"));
    }
}
