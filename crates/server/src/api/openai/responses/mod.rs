//! `/v1/responses`: <https://platform.openai.com/docs/api-reference/responses>.

mod events;
mod items;
mod request;
mod store;

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Extension, Path, Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::Stream;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use self::events::ResponseEvents;
use self::request::ResponseBody;
use self::store::{Item, Store, StoredTurn};
use super::common::{finish_reason, input_tokens};
use super::files::Files;
use super::page::ListPage;
use super::tools::Tools;
use crate::api::body::{JsonBody, part};
use crate::api::timing::TimingKeys;
use crate::api::{seconds_now, sse};
use crate::error::HttpResult;
use runner::Answer;
use runner::Runner;
use runner::answer_truncated;
use runner::{AnswerEvent, Delta, EventKind};
use runner::{Caller, ChatRequest};
use runner::{ErrorKind, RequestError, Result};

/// The paths of this API. They share a store of responses.
pub(super) fn router() -> Router<Runner> {
    Router::new()
        .route("/v1/responses", post(create))
        // llama-server's path.
        .route("/responses", post(create))
        .route("/v1/responses/input_tokens", post(count_tokens))
        .route("/v1/responses/{id}", get(retrieve).delete(delete))
        .route("/v1/responses/{id}/input_items", get(input_items))
        .route("/v1/responses/{id}/cancel", post(cancel))
        .layer(Extension(Arc::new(Store::default())))
}

/// A parsed body.
struct ReceivedResponse {
    body: ResponseBody,
    /// The turn that the request continues.
    before: Option<Arc<StoredTurn>>,
    /// Items of the request itself.
    input: Vec<Item>,
    request: ChatRequest,
    tools: Tools,
}

impl ReceivedResponse {
    fn read(given: &Value, tenant: u64, store: &Store, files: &Files) -> Result<ReceivedResponse> {
        let body: ResponseBody = part(given, "")?;
        let sampling = part(given, "")?;
        let before = match &body.previous_response_id {
            Some(id) => {
                let entry = store.get(tenant, id).map_err(|error| RequestError {
                    param: Some("previous_response_id".into()),
                    code: Some("previous_response_not_found"),
                    ..error
                })?;
                Some(entry.turn.clone())
            }
            None => None,
        };
        let input = items::of_input(body.input.as_ref(), &|id| store.item(tenant, id))?;
        let mut conversation = before.as_ref().map_or_else(Vec::new, |turn| turn.items());
        let n_before = conversation.len();
        conversation.extend(input.iter().cloned());
        // Stored items name files and do not hold them.
        let conversation = items::with_files(conversation, n_before, &|id| files.get(tenant, id))?;
        let (request, tools) = request::chat_request(&body, &sampling, &conversation, n_before)?;
        Ok(ReceivedResponse { body, before, input, request, tools })
    }
}

/// Renames `messages` to `input` in an error.
fn named_input(error: RequestError) -> RequestError {
    match error.param.as_deref() {
        Some("messages") => RequestError { param: Some("input".into()), ..error },
        _ => error,
    }
}

/// Counts the tokens of a request.
async fn count_tokens(
    State(runner): State<Runner>,
    Extension(caller): Extension<Caller>,
    Extension(store): Extension<Arc<Store>>,
    Extension(files): Extension<Arc<Files>>,
    JsonBody(given): JsonBody<Map<String, Value>>,
) -> HttpResult<Json<Value>> {
    let ReceivedResponse { request, .. } =
        ReceivedResponse::read(&Value::Object(given), caller.tenant, &store, &files)?;
    let (_, tokens) = runner.chat_prompt(request).await.map_err(named_input)?;
    Ok(input_tokens(tokens.len()))
}

async fn create(
    State(runner): State<Runner>,
    Extension(caller): Extension<Caller>,
    Extension(store): Extension<Arc<Store>>,
    Extension(files): Extension<Arc<Files>>,
    JsonBody(given): JsonBody<Map<String, Value>>,
) -> HttpResult<Response> {
    let given = Value::Object(given);
    let ReceivedResponse { body, before, input, request, tools } =
        ReceivedResponse::read(&given, caller.tenant, &store, &files)?;
    let mut base = request::echo(&body, &given);
    let answer = match body.truncates() {
        false => runner.chat(&caller, request).await,
        true => answer_truncated(&runner, &caller, request).await,
    };
    let answer = answer.map_err(named_input)?;
    base.insert("model".into(), json!(answer.model));
    base.insert("created_at".into(), json!(seconds_now()));
    let events = ResponseEvents::new(base, body.wants_logprobs(), body.wants_summary(), tools);
    let keep = body.store.unwrap_or(true).then_some((store, caller, before, input));
    let keep = move |response: &Value| {
        let Some((store, caller, before, input)) = keep else { return };
        if !store.put(caller.tenant, response.clone(), before, input) {
            tracing::warn!("{}: this conversation is too long to be stored", caller.request_id);
        }
    };
    match body.stream.unwrap_or(false) {
        true => Ok(sse::response(stream(answer, events, body.timing, keep))),
        false => whole(answer, events, keep).await,
    }
}

async fn whole(
    mut answer: Answer,
    mut events: ResponseEvents,
    keep: impl FnOnce(&Value),
) -> HttpResult<Response> {
    while let Some(AnswerEvent { kind, .. }) = answer.next().await {
        match kind {
            EventKind::Delta(delta) => drop(events.push(delta)),
            EventKind::Done(finish) => {
                // A failed answer has an HTTP status here; a stream has an event for it.
                finish_reason(&finish)?;
                let (_, response) = events.finish(&finish);
                keep(&response);
                return Ok(Json(response).into_response());
            }
        }
    }
    Err(RequestError::internal("an answer ended without its last event").into())
}

/// Position in a stream.
enum ResponsePosition {
    Begin,
    Answer,
    End,
}

fn stream(
    answer: Answer,
    events: ResponseEvents,
    timing: TimingKeys,
    keep: impl FnOnce(&Value) + Send,
) -> impl Stream<Item = Bytes> + Send {
    let frames = |events: Vec<Value>| -> Bytes {
        let frame = |event: &Value| sse::event(event["type"].as_str().unwrap_or_default(), event);
        events.iter().map(frame).collect::<Vec<_>>().concat().into()
    };
    let begun = (ResponsePosition::Begin, answer, events, Some(keep));
    futures_util::stream::unfold(begun, move |(at, mut answer, mut events, mut keep)| async move {
        let (out, at) = match at {
            ResponsePosition::Begin => (events.start(), ResponsePosition::Answer),
            ResponsePosition::End => return None,
            ResponsePosition::Answer => {
                let AnswerEvent { kind, timings, .. } = answer.next().await?;
                let timings = timing.of_event(&timings);
                let with_timings = |out: Vec<Value>| -> Vec<Value> {
                    out.into_iter().map(|event| events::with_timings(event, timings.as_ref())).collect()
                };
                match kind {
                    EventKind::Delta(Delta::Progress(progress)) => {
                        let timings = timing.of_prompt(&progress);
                        (vec![events.progress(&progress, timings)], ResponsePosition::Answer)
                    }
                    EventKind::Delta(delta) => (with_timings(events.push(delta)), ResponsePosition::Answer),
                    EventKind::Done(finish) => {
                        let (out, response) = events.finish(&finish);
                        if let Some(keep) = keep.take() {
                            keep(&response);
                        }
                        (with_timings(out), ResponsePosition::End)
                    }
                }
            }
        };
        Some((frames(out), (at, answer, events, keep)))
    })
}

#[derive(Deserialize)]
struct Retrieve {
    stream: Option<bool>,
    starting_after: Option<u64>,
}

async fn retrieve(
    Extension(caller): Extension<Caller>,
    Extension(store): Extension<Arc<Store>>,
    Path(id): Path<String>,
    Query(keys): Query<Retrieve>,
) -> HttpResult<Json<Value>> {
    // A response is stored when it is complete, after its events have been sent.
    if keys.stream == Some(true) {
        return Err(RequestError::unsupported("stream").into());
    }
    if keys.starting_after.is_some() {
        return Err(RequestError::unsupported("starting_after").into());
    }
    Ok(Json(store.get(caller.tenant, &id)?.response()))
}

async fn delete(
    Extension(caller): Extension<Caller>,
    Extension(store): Extension<Arc<Store>>,
    Path(id): Path<String>,
) -> HttpResult<Json<Value>> {
    store.delete(caller.tenant, &id)?;
    Ok(Json(json!({ "id": id, "object": "response", "deleted": true })))
}

async fn input_items(
    Extension(caller): Extension<Caller>,
    Extension(store): Extension<Arc<Store>>,
    Path(id): Path<String>,
    Query(page): Query<ListPage>,
) -> HttpResult<Json<Value>> {
    let entry = store.get(caller.tenant, &id)?;
    let items: Vec<&Value> = entry.input().iter().map(|item| &**item).collect();
    let unknown = |after: &str| RequestError::invalid("after", format!("there is no item {after:?}"));
    Ok(page.of(items, 20, 1..=100, unknown)?)
}

async fn cancel(
    Extension(caller): Extension<Caller>,
    Extension(store): Extension<Arc<Store>>,
    Path(id): Path<String>,
) -> HttpResult<Json<Value>> {
    store.get(caller.tenant, &id)?;
    let message =
        format!("the response `{id}` is not a background response, and only these can be cancelled");
    Err(RequestError::new(ErrorKind::Invalid, message).into())
}
