//! `/v1/messages` and `/v1/messages/count_tokens`.

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Extension, State};
use axum::response::{IntoResponse, Response};
use futures_util::Stream;
use serde_json::{Value, json};

use super::arguments::object;
use super::events::{Event, Events, signature, stop_reason, usage_json};
use super::request::{MessagesBody, request};
use crate::api::body::JsonBody;
use crate::api::sse;
use crate::error::HttpResult;
use runner::Answer;
use runner::Caller;
use runner::Runner;
use runner::{AnswerEvent, Collected, EventKind};
use runner::{RequestError, Result};

pub(super) async fn create(
    State(runner): State<Runner>,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody<MessagesBody>,
) -> HttpResult<Response> {
    let wants_stream = body.stream.unwrap_or(false);
    if body.max_tokens.is_none() {
        return Err(RequestError::invalid(
            "max_tokens",
            "`max_tokens` is missing, expected a number above 0",
        )
        .into());
    }
    let answer = runner.chat(&caller, request(body)?).await?;
    let id = format!("msg_{}", caller.request_id);
    if wants_stream {
        let events = Events::new(id, answer.model.clone(), answer.n_prompt);
        return Ok(sse::response(stream(answer, events, caller.request_id)));
    }
    let model = answer.model.clone();
    let Some(collected) = answer.collect().await?.into_iter().next() else {
        return Err(RequestError::internal("there was no answer").into());
    };
    Ok(Json(message(&id, &model, collected)?).into_response())
}

pub(super) async fn count_tokens(
    State(runner): State<Runner>,
    JsonBody(body): JsonBody<MessagesBody>,
) -> HttpResult<Json<Value>> {
    let (_, tokens) = runner.chat_prompt(request(body)?).await?;
    Ok(Json(json!({ "input_tokens": tokens.len() })))
}

/// A whole answer.
fn message(id: &str, model: &str, collected: Collected) -> Result<Value> {
    let Some(finish) = &collected.finish else {
        return Err(RequestError::internal("an answer ended without its last event"));
    };
    let (reason, sequence) = stop_reason(&finish.reason)?;
    let mut content = Vec::new();
    if !collected.reasoning.is_empty() {
        let signature = signature(&collected.reasoning);
        content.push(json!({ "type": "thinking", "thinking": collected.reasoning, "signature": signature }));
    }
    if !collected.content.is_empty() {
        content.push(json!({ "type": "text", "text": collected.content }));
    }
    for call in &collected.calls {
        let input = object(&call.arguments);
        content.push(json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": input }));
    }
    Ok(json!({
        "id": id, "type": "message", "role": "assistant", "model": model, "content": content,
        "stop_reason": reason, "stop_sequence": sequence, "usage": usage_json(finish.usage),
    }))
}

fn frames(events: Vec<Event>) -> Bytes {
    let frames: Vec<Bytes> = events.iter().map(|(name, data)| sse::event(name, data)).collect();
    frames.concat().into()
}

/// Position in a stream.
enum MessagePosition {
    Begin,
    Answer,
    End,
}

fn stream(answer: Answer, events: Events, request_id: String) -> impl Stream<Item = Bytes> + Send {
    let begun = (MessagePosition::Begin, answer, events, request_id);
    futures_util::stream::unfold(begun, |(at, mut answer, mut events, request_id)| async move {
        match at {
            MessagePosition::Begin => {
                let n_cached = answer.n_cached().await;
                Some((frames(events.start(n_cached)), (MessagePosition::Answer, answer, events, request_id)))
            }
            MessagePosition::Answer => {
                let AnswerEvent { kind, .. } = answer.next().await?;
                let (out, at) = match kind {
                    EventKind::Delta(delta) => (events.push(delta), MessagePosition::Answer),
                    EventKind::Done(finish) => (events.finish(&finish, &request_id), MessagePosition::End),
                };
                Some((frames(out), (at, answer, events, request_id)))
            }
            MessagePosition::End => None,
        }
    })
}
