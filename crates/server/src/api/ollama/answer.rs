//! Answers as Ollama's objects: one for each piece, or one for all.

use std::time::{Duration, Instant};

use axum::Json;
use axum::response::{IntoResponse, Response};
use futures_util::Stream;
use serde_json::{Map, Value, json};

use super::common::{error_json, now};
use super::ndjson;
use super::options::Common;
use crate::error::HttpResult;
use runner::Answer;
use runner::KeepAlive;
use runner::{AnswerEvent, Delta, EventKind, Finish, StopReason, TokenInfo, ToolCall};
use runner::{ErrorKind, RequestError, Result};
use runner::{Ready, Runner};

/// The key of an object that holds its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// `message`.
    Chat,
    /// An answer in `response`. The last object may have `context` for a later request.
    Generate { has_context: bool },
}

/// Fields that all objects of an answer share.
pub(super) struct Frame {
    pub(super) model: String,
    pub(super) shape: Shape,
    pub(super) begun: Instant,
    pub(super) load_time: Duration,
}

/// The content of an object.
#[derive(Default)]
struct Said {
    content: String,
    thinking: String,
    calls: Vec<Value>,
    logprobs: Vec<Value>,
}

impl Frame {
    pub(super) fn new(ready: &Ready, shape: Shape, begun: Instant) -> Frame {
        Frame { model: ready.id().to_owned(), shape, begun, load_time: ready.load_time() }
    }

    fn object(&self, said: Said, is_done: bool) -> Map<String, Value> {
        let mut text = match self.shape {
            Shape::Chat => json!({ "role": "assistant", "content": said.content }),
            Shape::Generate { .. } => json!({ "response": said.content }),
        };
        if !said.thinking.is_empty() {
            text["thinking"] = said.thinking.into();
        }
        if !said.calls.is_empty() {
            text["tool_calls"] = said.calls.into();
        }
        let mut object = Map::new();
        object.insert("model".into(), self.model.clone().into());
        object.insert("created_at".into(), now().into());
        match (self.shape, text) {
            (Shape::Generate { .. }, Value::Object(text)) => object.extend(text),
            (Shape::Chat | Shape::Generate { .. }, text) => drop(object.insert("message".into(), text)),
        }
        if !said.logprobs.is_empty() {
            object.insert("logprobs".into(), said.logprobs.into());
        }
        object.insert("done".into(), is_done.into());
        object
    }

    /// Returns the last object.
    ///
    /// # Errors
    /// The answer failed.
    fn last(&self, said: Said, finish: &Finish, context: &[u32]) -> Result<Value> {
        let mut object = self.object(said, true);
        object.insert("done_reason".into(), done_reason(&finish.reason)?.into());
        if self.shape == (Shape::Generate { has_context: true }) {
            object.insert("context".into(), json!(context));
        }
        let timings = &finish.timings;
        let seconds = Duration::try_from_secs_f64;
        for (name, value) in [
            ("total_duration", nanoseconds(self.begun.elapsed())),
            ("load_duration", nanoseconds(self.load_time)),
            ("prompt_eval_count", json!(finish.usage.prompt_tokens)),
            ("prompt_eval_duration", nanoseconds(seconds(timings.prefill_seconds).unwrap_or_default())),
            ("eval_count", json!(finish.usage.completion_tokens)),
            ("eval_duration", nanoseconds(seconds(timings.decode_seconds).unwrap_or_default())),
        ] {
            object.insert(name.into(), value);
        }
        Ok(object.into())
    }

    /// The object of a request without a question, which loads or unloads the model.
    fn idle(&self, reason: &str) -> Value {
        let mut object = self.object(Said::default(), true);
        object.insert("done_reason".into(), reason.into());
        object.into()
    }
}

/// A time in whole nanoseconds, at most `i64::MAX`.
pub(super) fn nanoseconds(time: Duration) -> Value {
    json!(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

fn done_reason(reason: &StopReason) -> Result<&'static str> {
    Ok(match reason {
        StopReason::End | StopReason::StopString(_) | StopReason::StopToken(_) | StopReason::ToolCalls => {
            "stop"
        }
        StopReason::MaxTokens | StopReason::ContextFull => "length",
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

/// Loads the model of a request without a question, or unloads it if `keep_alive` is 0.
pub(super) async fn load(
    runner: &Runner,
    common: &Common,
    shape: Shape,
    begun: Instant,
) -> HttpResult<Response> {
    let keep_alive = common.keep_alive()?;
    if keep_alive == Some(KeepAlive::For(Duration::ZERO)) {
        let model = runner.unload(&common.model).await?;
        let frame = Frame { model, shape, begun, load_time: Duration::ZERO };
        return Ok(Json(frame.idle("unload")).into_response());
    }
    let ready = runner.load(&common.model, keep_alive).await?;
    Ok(Json(Frame::new(&ready, shape, begun).idle("load")).into_response())
}

/// Returns the response of an answer.
pub(super) async fn response(answer: Answer, frame: Frame, wants_stream: bool) -> HttpResult<Response> {
    match wants_stream {
        true => Ok(ndjson::response(stream(answer, frame))),
        false => Ok(Json(whole(answer, &frame).await?).into_response()),
    }
}

/// Assembles the pieces of calls. This API sends each call whole.
#[derive(Default)]
struct Calls {
    calls: Vec<ToolCall>,
    /// Number of calls already sent.
    n_given: usize,
}

impl Calls {
    fn push(&mut self, delta: Delta, said: &mut Said) {
        match delta {
            Delta::Reasoning(text) => said.thinking.push_str(&text),
            Delta::Content { text, tokens } => {
                said.content.push_str(&text);
                said.logprobs.extend(tokens.iter().map(logprob));
            }
            Delta::CallBegin { id, name, .. } => {
                self.calls.push(ToolCall { id, name, arguments: String::new() });
            }
            Delta::CallArguments { index, text } => {
                if let Some(call) = self.calls.get_mut(index) {
                    call.arguments.push_str(&text);
                }
            }
            Delta::CallEnd { index } => self.give(index + 1, said),
            Delta::Prompt(_) | Delta::Progress(_) => {}
        }
    }

    /// Sends all calls before `end`.
    fn give(&mut self, end: usize, said: &mut Said) {
        for index in self.n_given..end.min(self.calls.len()) {
            let Some(call) = self.calls.get(index) else { continue };
            match serde_json::from_str(&call.arguments) {
                Ok(arguments @ Value::Object(_)) => {
                    let function = json!({ "index": index, "name": call.name, "arguments": arguments });
                    said.calls.push(json!({ "id": call.id, "function": function }));
                }
                // A truncated or invalid call must not be run, so it is sent as text.
                _ => said.content.push_str(&format!("{}({})", call.name, call.arguments)),
            }
        }
        self.n_given = self.n_given.max(end);
    }
}

fn logprob(token: &TokenInfo) -> Value {
    let entry = |bytes: &[u8], logprob: Option<f32>| {
        let logprob = logprob.filter(|logprob| logprob.is_finite()).unwrap_or(-9999.0);
        json!({ "token": String::from_utf8_lossy(bytes), "logprob": logprob, "bytes": bytes })
    };
    let mut found = entry(&token.bytes, token.logprob);
    if !token.top.is_empty() {
        found["top_logprobs"] = token.top.iter().map(|(_, bytes, p)| entry(bytes, Some(*p))).collect();
    }
    found
}

async fn whole(mut answer: Answer, frame: &Frame) -> Result<Value> {
    let (mut said, mut calls) = (Said::default(), Calls::default());
    while let Some(AnswerEvent { kind, .. }) = answer.next().await {
        match kind {
            EventKind::Delta(delta) => calls.push(delta, &mut said),
            EventKind::Done(finish) => {
                calls.give(calls.calls.len(), &mut said);
                return frame.last(said, &finish, answer.context());
            }
        }
    }
    Err(RequestError::internal("an answer ended without its last event"))
}

fn stream(answer: Answer, frame: Frame) -> impl Stream<Item = Value> + Send {
    let begun = (Some(answer), frame, Calls::default());
    futures_util::stream::unfold(begun, |(answer, frame, mut calls)| async move {
        let mut answer = answer?;
        loop {
            let mut said = Said::default();
            match answer.next().await?.kind {
                EventKind::Delta(delta) => {
                    calls.push(delta, &mut said);
                    let says_nothing = said.content.is_empty()
                        && said.thinking.is_empty()
                        && said.calls.is_empty()
                        && said.logprobs.is_empty();
                    if !says_nothing {
                        let line = frame.object(said, false).into();
                        return Some((line, (Some(answer), frame, calls)));
                    }
                }
                EventKind::Done(finish) => {
                    calls.give(calls.calls.len(), &mut said);
                    let last = frame.last(said, &finish, answer.context());
                    let line = last.unwrap_or_else(|error| error_json(&error));
                    return Some((line, (None, frame, calls)));
                }
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(deltas: Vec<Delta>) -> Said {
        let (mut said, mut calls) = (Said::default(), Calls::default());
        deltas.into_iter().for_each(|delta| calls.push(delta, &mut said));
        calls.give(calls.calls.len(), &mut said);
        said
    }

    fn begin(index: usize) -> Delta {
        Delta::CallBegin { index, id: format!("call_{index}"), name: "f".into() }
    }

    fn arguments(index: usize, text: &str) -> Delta {
        Delta::CallArguments { index, text: text.into() }
    }

    #[test]
    fn calls_are_whole_and_their_arguments_objects() {
        let end = |index| Delta::CallEnd { index };
        let found = said(vec![
            begin(0),
            arguments(0, "{\"k\":"),
            arguments(0, " 1}"),
            end(0),
            begin(1),
            arguments(1, "{}"),
            end(1),
            begin(2),
            arguments(2, "{\"k\""),
        ]);
        assert_eq!(found.calls.len(), 2);
        assert_eq!(
            found.calls[0],
            json!({ "id": "call_0", "function": { "index": 0, "name": "f", "arguments": { "k": 1 } } })
        );
        // A truncated call is text.
        assert_eq!(found.content, "f({\"k\")");
    }

    #[test]
    fn objects_of_both_paths() {
        let frame = |shape| Frame {
            model: "m".into(),
            shape,
            begun: Instant::now(),
            load_time: Duration::from_millis(2),
        };
        let said = || Said { content: "a".into(), thinking: "t".into(), ..Said::default() };
        let chat = Value::from(frame(Shape::Chat).object(said(), false));
        assert_eq!(chat["message"], json!({ "role": "assistant", "content": "a", "thinking": "t" }));
        assert_eq!((&chat["done"], &chat["model"]), (&json!(false), &json!("m")));
        assert!(chat["created_at"].as_str().unwrap().ends_with('Z'));
        let finish = Finish {
            reason: StopReason::ContextFull,
            usage: runner::Usage { prompt_tokens: 3, completion_tokens: 2, ..Default::default() },
            timings: engine::Timings { prefill_seconds: 0.5, decode_seconds: 0.25, ..Default::default() },
            seed: 1,
        };
        let shape = Shape::Generate { has_context: true };
        let last = frame(shape).last(said(), &finish, &[1, 2]).unwrap();
        assert_eq!((&last["response"], &last["thinking"]), (&json!("a"), &json!("t")));
        assert_eq!((&last["done_reason"], &last["context"]), (&json!("length"), &json!([1, 2])));
        assert_eq!((&last["load_duration"], &last["eval_count"]), (&json!(2_000_000), &json!(2)));
        assert_eq!(
            (&last["prompt_eval_duration"], &last["eval_duration"]),
            (&json!(500_000_000), &json!(250_000_000))
        );
        let failed = Finish { reason: StopReason::Failed("no".into()), ..finish };
        assert_eq!(frame(shape).last(said(), &failed, &[]).unwrap_err().message, "no");
    }
}
