//! `/api/chat`

use std::time::Instant;

use axum::extract::{Extension, State};
use axum::response::Response;
use serde::Deserialize;
use serde_json::Value;

use super::answer::{self, Frame, Shape};
use super::messages::{is_open, messages};
use super::options::{Common, note_context};
use crate::api::body::{JsonBody, part};
use crate::error::HttpResult;
use runner::answer_truncated;
use runner::{Caller, ChatRequest, ToolChoice};
use runner::{Ready, Runner};
use runner::{RequestError, Result};

#[derive(Deserialize)]
struct OllamaChatBody {
    messages: Option<Vec<Value>>,
    tools: Option<Vec<Value>>,
}

pub(super) async fn create(
    State(runner): State<Runner>,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody<Value>,
) -> HttpResult<Response> {
    let begun = Instant::now();
    let (common, OllamaChatBody { messages: found, tools }) = (part::<Common>(&body, "")?, part(&body, "")?);
    let found = found.unwrap_or_default();
    if found.is_empty() {
        return answer::load(&runner, &common, Shape::Chat, begun).await;
    }
    let (read, messages) = (common.read()?, messages(&found)?);
    let ready = runner.load(&common.model, read.options.keep_alive).await?;
    check_thinking(read.thinking, &ready)?;
    note_context(read.n_ctx, ready.n_ctx(), ready.id());
    let request = ChatRequest {
        model: ready.id().to_owned(),
        continue_last: is_open(&messages),
        messages,
        tools: tools.unwrap_or_default(),
        tool_choice: ToolChoice::Auto,
        parallel_tool_calls: true,
        grammar: read.grammar,
        effort: read.effort,
        thinking: read.thinking,
        options: read.options,
        ..ChatRequest::default()
    };
    let answer = match common.truncate.unwrap_or(true) {
        true => answer_truncated(&runner, &caller, request).await?,
        false => runner.chat(&caller, request).await?,
    };
    answer::response(answer, Frame::new(&ready, Shape::Chat, begun), common.stream.unwrap_or(true)).await
}

/// Refuses thinking for a model whose template does not support it.
pub(super) fn check_thinking(thinking: Option<bool>, ready: &Ready) -> Result<()> {
    if thinking == Some(true) && !ready.reasons() {
        let message = format!("`think` is set, and the model `{}` does not support thinking", ready.id());
        return Err(RequestError::invalid("think", message));
    }
    Ok(())
}
