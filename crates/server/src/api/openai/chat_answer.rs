//! Answers of `/v1/chat/completions`, whole and as chunks.

use std::collections::HashMap;

use axum::Json;
use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use futures_util::Stream;
use serde::Serialize;
use serde_json::{Value, json};

use super::common::{FINGERPRINT, TokenLogprob, add_usage, finish_reason, usage_json};
use super::tools::{Freeform, ToolKind, Tools, input_of};
use crate::api::sse;
use crate::api::timing::{TimingKeys, progress_json};
use crate::error::HttpResult;
use runner::Answer;
use runner::RequestError;
use runner::{AnswerEvent, Delta, EventKind, ToolCall, Usage};

/// Fields that all chunks of an answer share.
pub(super) struct ChatFrame {
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) model: String,
    pub(super) with_logprobs: bool,
    /// True if a last chunk reports the usage; all others then have `null` for it.
    pub(super) with_usage: bool,
    pub(super) timing: TimingKeys,
    /// The timings of the last event, repeated with the usage.
    pub(super) last_timings: Option<Value>,
    pub(super) tools: Tools,
    /// Calls of custom tools that are not complete, by choice and index.
    pub(super) freeform: HashMap<(usize, usize), Freeform>,
}

#[derive(Serialize)]
struct Chunk<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'static str,
    choices: Vec<ChunkChoice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_progress: Option<Value>,
}

#[derive(Serialize)]
struct ChunkChoice {
    index: usize,
    delta: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Value>,
    finish_reason: Option<&'static str>,
}

impl ChatFrame {
    fn chunk(&self, choices: Vec<ChunkChoice>) -> Chunk<'_> {
        Chunk {
            id: &self.id,
            object: "chat.completion.chunk",
            created: self.created,
            model: &self.model,
            system_fingerprint: FINGERPRINT,
            choices,
            usage: self.with_usage.then_some(Value::Null),
            timings: None,
            prompt_progress: None,
        }
    }

    fn choice(&self, index: usize, delta: Value, finish_reason: Option<&'static str>) -> Chunk<'_> {
        self.chunk(vec![ChunkChoice { index, delta, logprobs: None, finish_reason }])
    }
}

impl ChatFrame {
    /// The chunk's delta for a piece of a choice; `None` if the piece has no output.
    fn delta(&mut self, choice: usize, delta: Delta, tokens: &mut Vec<TokenLogprob>) -> Option<Value> {
        let of_custom = |index: usize, text: String| {
            (!text.is_empty())
                .then(|| json!({ "tool_calls": [{ "index": index, "custom": { "input": text } }] }))
        };
        match delta {
            Delta::CallBegin { index, id, name } => {
                let called = self.tools.called(&name);
                let call = match called.kind {
                    ToolKind::Custom => {
                        self.freeform.insert((choice, index), Freeform::default());
                        json!({ "type": "custom", "custom": { "name": called.name, "input": "" } })
                    }
                    ToolKind::Function | ToolKind::Search => {
                        json!({ "type": "function", "function": { "name": name, "arguments": "" } })
                    }
                };
                let mut delta = json!({ "tool_calls": [call] });
                (delta["tool_calls"][0]["index"], delta["tool_calls"][0]["id"]) = (index.into(), id.into());
                Some(delta)
            }
            Delta::CallArguments { index, text } => match self.freeform.get_mut(&(choice, index)) {
                Some(freeform) => of_custom(index, freeform.push(&text)),
                None => {
                    Some(json!({ "tool_calls": [{ "index": index, "function": { "arguments": text } }] }))
                }
            },
            Delta::CallEnd { index } => {
                let mut freeform = self.freeform.remove(&(choice, index))?;
                of_custom(index, freeform.finish())
            }
            Delta::Reasoning(_) | Delta::Content { .. } | Delta::Prompt(_) | Delta::Progress(_) => {
                text_json(delta, tokens)
            }
        }
    }

    fn call(&self, call: ToolCall) -> Value {
        let called = self.tools.called(&call.name);
        match called.kind {
            ToolKind::Custom => {
                let custom = json!({ "name": called.name, "input": input_of(&call.arguments) });
                json!({ "id": call.id, "type": "custom", "custom": custom })
            }
            ToolKind::Function | ToolKind::Search => {
                let function = json!({ "name": call.name, "arguments": call.arguments });
                json!({ "id": call.id, "type": "function", "function": function })
            }
        }
    }
}

fn text_json(delta: Delta, tokens: &mut Vec<TokenLogprob>) -> Option<Value> {
    match delta {
        Delta::Reasoning(text) => Some(json!({ "reasoning_content": text })),
        Delta::Content { text, tokens: infos } => {
            tokens.extend(infos.into_iter().map(TokenLogprob::of));
            Some(json!({ "content": text }))
        }
        Delta::CallBegin { .. }
        | Delta::CallArguments { .. }
        | Delta::CallEnd { .. }
        | Delta::Prompt(_)
        | Delta::Progress(_) => None,
    }
}

/// Position in a stream of frames.
enum ChatPosition {
    Begin,
    Answer,
    Usage,
    Done,
    End,
}

pub(super) fn stream(answer: Answer, frame: ChatFrame) -> impl Stream<Item = Bytes> + Send {
    let begun = (ChatPosition::Begin, answer, frame, Usage::default());
    futures_util::stream::unfold(begun, move |(at, mut answer, mut frame, mut usage)| async move {
        match at {
            ChatPosition::Begin => {
                let choice = |index| ChunkChoice {
                    index,
                    delta: json!({ "role": "assistant", "content": "", "refusal": null }),
                    logprobs: None,
                    finish_reason: None,
                };
                let bytes = sse::data(&frame.chunk((0..answer.n_choices()).map(choice).collect()));
                Some((bytes, (ChatPosition::Answer, answer, frame, usage)))
            }
            ChatPosition::Answer => loop {
                let Some(AnswerEvent { choice, kind, timings }) = answer.next().await else {
                    let at = if frame.with_usage { ChatPosition::Usage } else { ChatPosition::Done };
                    return Some((Bytes::new(), (at, answer, frame, usage)));
                };
                let timings = frame.timing.of_event(&timings);
                frame.last_timings.clone_from(&timings);
                let chunk = match kind {
                    EventKind::Delta(Delta::Progress(progress)) => {
                        let prompt_progress = Some(progress_json(&progress));
                        let timings = frame.timing.of_prompt(&progress);
                        Chunk { prompt_progress, timings, ..frame.choice(choice, json!({}), None) }
                    }
                    EventKind::Delta(delta) => {
                        let mut tokens = Vec::new();
                        let Some(delta) = frame.delta(choice, delta, &mut tokens) else { continue };
                        let logprobs = frame.with_logprobs.then(|| json!({ "content": tokens }));
                        let choice = ChunkChoice { index: choice, delta, logprobs, finish_reason: None };
                        Chunk { timings, ..frame.chunk(vec![choice]) }
                    }
                    EventKind::Done(finish) => {
                        add_usage(&mut usage, finish.usage);
                        match finish_reason(&finish) {
                            Ok(reason) => Chunk { timings, ..frame.choice(choice, json!({}), Some(reason)) },
                            Err(error) => {
                                return Some((sse::error(&error), (ChatPosition::End, answer, frame, usage)));
                            }
                        }
                    }
                };
                let bytes = sse::data(&chunk);
                return Some((bytes, (ChatPosition::Answer, answer, frame, usage)));
            },
            ChatPosition::Usage => {
                let (usage_now, timings) = (Some(usage_json(usage)), frame.last_timings.take());
                let bytes = sse::data(&Chunk { usage: usage_now, timings, ..frame.chunk(Vec::new()) });
                Some((bytes, (ChatPosition::Done, answer, frame, usage)))
            }
            ChatPosition::Done => {
                Some((Bytes::from_static(b"data: [DONE]\n\n"), (ChatPosition::End, answer, frame, usage)))
            }
            ChatPosition::End => None,
        }
    })
}

pub(super) async fn whole(answer: Answer, frame: ChatFrame) -> HttpResult<Response> {
    let mut usage = Usage::default();
    let mut choices = Vec::new();
    for (index, collected) in answer.collect().await?.into_iter().enumerate() {
        let Some(finish) = &collected.finish else {
            return Err(RequestError::internal("an answer ended without its last event").into());
        };
        add_usage(&mut usage, finish.usage);
        let reason = finish_reason(finish)?;
        // A message of calls alone has no content.
        let content =
            (!collected.content.is_empty() || collected.calls.is_empty()).then_some(collected.content);
        let mut message = json!({ "role": "assistant", "content": content, "refusal": null });
        if !collected.calls.is_empty() {
            message["tool_calls"] = collected.calls.into_iter().map(|call| frame.call(call)).collect();
        }
        if !collected.reasoning.is_empty() {
            message["reasoning_content"] = collected.reasoning.into();
        }
        let logprobs = frame.with_logprobs.then(|| {
            let tokens: Vec<TokenLogprob> = collected.tokens.into_iter().map(TokenLogprob::of).collect();
            json!({ "content": tokens })
        });
        choices.push(json!({
            "index": index, "message": message, "logprobs": logprobs, "finish_reason": reason,
        }));
    }
    let response = json!({
        "id": frame.id, "object": "chat.completion", "created": frame.created, "model": frame.model,
        "system_fingerprint": FINGERPRINT, "choices": choices, "usage": usage_json(usage),
    });
    Ok(Json(response).into_response())
}
