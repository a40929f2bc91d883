//! Deltas of an answer as Anthropic's stream events. Content blocks open and close in order.

use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::arguments::Arguments;
use runner::{Delta, Finish, StopReason, Usage};
use runner::{ErrorKind, RequestError, Result};

/// A stream event: its name, and the JSON of its `data` line.
pub type Event = (&'static str, Value);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    Thinking,
    Text,
    Tool,
}

/// Longest pause between two events while the model writes.
const PING: Duration = Duration::from_secs(5);

fn ping() -> Event {
    ("ping", json!({ "type": "ping" }))
}

/// Converts the deltas of one answer to events.
pub struct Events {
    id: String,
    model: String,
    n_prompt: usize,
    open: Option<Block>,
    /// Index of the open block, or of the next block.
    index: usize,
    /// Hash of the open thinking block's text.
    hash: Sha256,
    /// Arguments of the open call.
    arguments: Arguments,
    /// Time of the last event.
    said: Instant,
}

impl Events {
    /// Starts the events of message `id`, whose prompt has `n_prompt` tokens.
    pub fn new(id: impl Into<String>, model: impl Into<String>, n_prompt: usize) -> Events {
        Events {
            id: id.into(),
            model: model.into(),
            n_prompt,
            open: None,
            index: 0,
            hash: Sha256::new(),
            arguments: Arguments::default(),
            said: Instant::now(),
        }
    }

    /// Returns the first events. `n_cached` is the number of cached prompt tokens.
    pub fn start(&self, n_cached: usize) -> Vec<Event> {
        let usage = Usage { prompt_tokens: self.n_prompt, cached_tokens: n_cached, ..Usage::default() };
        let message = json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": [],
            "stop_reason": null, "stop_sequence": null,
            "usage": usage_json(usage),
        });
        vec![("message_start", json!({ "type": "message_start", "message": message })), ping()]
    }

    /// Returns the events of one delta.
    pub fn push(&mut self, delta: Delta) -> Vec<Event> {
        let mut out = Vec::new();
        match delta {
            Delta::Reasoning(text) if !text.is_empty() => {
                self.enter(
                    Block::Thinking,
                    json!({"type": "thinking", "thinking": "", "signature": ""}),
                    &mut out,
                );
                self.hash.update(text.as_bytes());
                out.push(self.delta(json!({ "type": "thinking_delta", "thinking": text })));
            }
            Delta::Content { text, .. } if !text.is_empty() => {
                self.enter(Block::Text, json!({ "type": "text", "text": "" }), &mut out);
                out.push(self.delta(json!({ "type": "text_delta", "text": text })));
            }
            Delta::CallBegin { id, name, .. } => {
                // Each call is a block of its own.
                self.close(&mut out);
                self.enter(
                    Block::Tool,
                    json!({"type": "tool_use", "id": id, "name": name, "input": {}}),
                    &mut out,
                );
            }
            Delta::CallArguments { text, .. } => {
                let members = self.arguments.push(&text);
                self.push_members(&members, &mut out);
                // Clients abort a stream that is silent for long.
                if out.is_empty() && self.said.elapsed() >= PING {
                    out.push(ping());
                }
            }
            Delta::CallEnd { .. } => self.close(&mut out),
            Delta::Reasoning(_) | Delta::Content { .. } | Delta::Prompt(_) | Delta::Progress(_) => {}
        }
        if !out.is_empty() {
            self.said = Instant::now();
        }
        out
    }

    /// Returns the last events. A failed answer ends with an `error` event.
    pub fn finish(&mut self, finish: &Finish, request_id: &str) -> Vec<Event> {
        let mut out = Vec::new();
        self.close(&mut out);
        match stop_reason(&finish.reason) {
            Ok((reason, sequence)) => {
                out.push((
                    "message_delta",
                    json!({
                        "type": "message_delta",
                        "delta": { "stop_reason": reason, "stop_sequence": sequence },
                        "usage": usage_json(finish.usage),
                    }),
                ));
                out.push(("message_stop", json!({ "type": "message_stop" })));
            }
            Err(error) => out.push(("error", super::error::error_json(&error, request_id))),
        }
        out
    }

    fn push_members(&self, members: &str, out: &mut Vec<Event>) {
        if !members.is_empty() {
            out.push(self.delta(json!({ "type": "input_json_delta", "partial_json": members })));
        }
    }

    fn delta(&self, delta: Value) -> Event {
        ("content_block_delta", json!({ "type": "content_block_delta", "index": self.index, "delta": delta }))
    }

    fn enter(&mut self, block: Block, content: Value, out: &mut Vec<Event>) {
        if self.open == Some(block) {
            return;
        }
        self.close(out);
        self.open = Some(block);
        out.push((
            "content_block_start",
            json!({ "type": "content_block_start", "index": self.index, "content_block": content }),
        ));
    }

    fn close(&mut self, out: &mut Vec<Event>) {
        let Some(block) = self.open.take() else { return };
        if block == Block::Tool {
            let end = std::mem::take(&mut self.arguments).finish();
            self.push_members(end, out);
        }
        if block == Block::Thinking {
            let signature = STANDARD.encode(self.hash.finalize_reset());
            out.push(self.delta(json!({ "type": "signature_delta", "signature": signature })));
        }
        out.push(("content_block_stop", json!({ "type": "content_block_stop", "index": self.index })));
        self.index += 1;
    }
}

/// Usage in Anthropic's shape, which counts cached prompt tokens apart.
pub(super) fn usage_json(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens.saturating_sub(usage.cached_tokens),
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion_tokens,
    })
}

/// Signature of a thinking block. Equal texts have equal signatures.
pub(super) fn signature(thinking: &str) -> String {
    STANDARD.encode(Sha256::digest(thinking.as_bytes()))
}

/// Anthropic's `stop_reason` and `stop_sequence`.
///
/// # Errors
/// The answer was cancelled, timed out or failed.
pub fn stop_reason(reason: &StopReason) -> Result<(&'static str, Option<&str>)> {
    Ok(match reason {
        StopReason::End | StopReason::StopToken(_) => ("end_turn", None),
        StopReason::StopString(text) => ("stop_sequence", Some(text)),
        StopReason::MaxTokens | StopReason::ContextFull => ("max_tokens", None),
        StopReason::ToolCalls => ("tool_use", None),
        StopReason::Cancelled => {
            return Err(RequestError::new(ErrorKind::Unavailable, "the answer was cancelled"));
        }
        StopReason::Timeout => {
            return Err(RequestError::new(
                ErrorKind::Timeout,
                "the answer took longer than the request allowed",
            ));
        }
        StopReason::Ungrammatical(words) => return Err(RequestError::ungrammatical(words)),
        StopReason::Failed(words) => return Err(RequestError::internal(words.as_str())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_open_and_close_in_order() {
        let mut events = Events::new("msg_1", "m", 3);
        let mut all = Vec::new();
        for delta in [
            Delta::Reasoning("a".into()),
            Delta::Reasoning("b".into()),
            Delta::Content { text: "hi".into(), tokens: Vec::new() },
            Delta::Content { text: String::new(), tokens: Vec::new() },
            Delta::CallBegin { index: 0, id: "call_0".into(), name: "f".into() },
            Delta::CallArguments { index: 0, text: "{}".into() },
            Delta::CallBegin { index: 1, id: "call_1".into(), name: "g".into() },
            Delta::CallEnd { index: 1 },
        ] {
            all.extend(events.push(delta));
        }
        let seen: Vec<String> = all
            .iter()
            .map(|(name, data)| {
                assert_eq!(data["type"], *name);
                let kind = data["delta"]["type"].as_str().or(data["content_block"]["type"].as_str());
                format!("{} {}", data["index"], kind.unwrap_or("stop"))
            })
            .collect();
        let expected = [
            "0 thinking",
            "0 thinking_delta",
            "0 thinking_delta",
            "0 signature_delta",
            "0 stop",
            "1 text",
            "1 text_delta",
            "1 stop",
            "2 tool_use",
            "2 input_json_delta",
            "2 stop",
            "3 tool_use",
            "3 stop",
        ];
        assert_eq!(seen, expected);
        // The hash of "ab" does not depend on the pieces.
        let expected = STANDARD.encode(Sha256::digest(b"ab"));
        assert_eq!(all[3].1["delta"]["signature"], expected);
    }

    #[test]
    fn cached_tokens_count_apart_from_the_beginning_on() {
        let start = Events::new("msg_1", "m", 30).start(20);
        let usage = &start[0].1["message"]["usage"];
        assert_eq!((&usage["input_tokens"], &usage["cache_read_input_tokens"]), (&json!(10), &json!(20)));
    }

    #[test]
    fn a_stop_string_is_named_and_a_failure_is_an_error() {
        let reason = StopReason::StopString("END".into());
        assert_eq!(stop_reason(&reason).unwrap(), ("stop_sequence", Some("END")));
        assert_eq!(stop_reason(&StopReason::ContextFull).unwrap().0, "max_tokens");
        assert_eq!(stop_reason(&StopReason::Failed("x".into())).unwrap_err().kind, ErrorKind::Internal);
    }
}
