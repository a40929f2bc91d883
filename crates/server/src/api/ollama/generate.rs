//! `/api/generate`

use std::time::Instant;

use axum::extract::{Extension, State};
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::{self, Frame, Shape};
use super::chat::check_thinking;
use super::messages::{images, with_images};
use super::options::{Common, note_context};
use crate::api::body::{JsonBody, part};
use crate::error::HttpResult;
use runner::RequestError;
use runner::Runner;
use runner::{Caller, ChatRequest, CompletionRequest, Prompt};

#[derive(Deserialize)]
struct OllamaGenerateBody {
    prompt: Option<String>,
    suffix: Option<String>,
    images: Option<Value>,
    system: Option<String>,
    template: Option<String>,
    raw: Option<bool>,
    context: Option<Vec<u32>>,
}

pub(super) async fn create(
    State(runner): State<Runner>,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody<Value>,
) -> HttpResult<Response> {
    let begun = Instant::now();
    let (common, body) = (part::<Common>(&body, "")?, part::<OllamaGenerateBody>(&body, "")?);
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let (prompt, suffix, system) = (given(&body.prompt), given(&body.suffix), given(&body.system));
    let (raw, context) = (body.raw.unwrap_or(false), body.context.unwrap_or_default());
    let images = images("images", &body.images.unwrap_or_default())?;
    if given(&body.template).is_some() {
        return Err(RequestError::unsupported("template").into());
    }
    if raw && (system.is_some() || !context.is_empty()) {
        let message =
            "`raw` is true, expected neither `system` nor `context`, since the prompt is sent as it is";
        return Err(RequestError::invalid("raw", message).into());
    }
    let Some(prompt) = prompt.or_else(|| suffix.as_ref().map(|_| String::new())) else {
        return answer::load(&runner, &common, Shape::Generate { has_context: false }, begun).await;
    };
    let read = common.read()?;
    let ready = runner.load(&common.model, read.options.keep_alive).await?;
    check_thinking(read.thinking, &ready)?;
    note_context(read.n_ctx, ready.n_ctx(), ready.id());
    let (model, mut options) = (ready.id().to_owned(), read.options);
    options.context = context;
    let is_text = raw || suffix.is_some() || !ready.chats();
    if is_text && !images.is_empty() {
        return Err(RequestError::invalid(
            "images",
            "`images` needs a prompt through the model's chat template",
        )
        .into());
    }
    let answer = if is_text {
        let text = match system {
            Some(system) => format!("{system}\n\n{prompt}"),
            None => prompt,
        };
        let prompt = Prompt::Text { text, parse_special: true };
        runner
            .complete(
                &caller,
                CompletionRequest {
                    model,
                    prompt,
                    suffix,
                    grammar: read.grammar,
                    options,
                    ..CompletionRequest::default()
                },
            )
            .await?
    } else {
        let system = system.map(|text| json!({ "role": "system", "content": text }));
        let messages = system
            .into_iter()
            .chain([json!({ "role": "user", "content": with_images(images, &prompt) })])
            .collect();
        let request = ChatRequest {
            model,
            messages,
            grammar: read.grammar,
            effort: read.effort,
            thinking: read.thinking,
            options,
            ..ChatRequest::default()
        };
        runner.chat(&caller, request).await?
    };
    let frame = Frame::new(&ready, Shape::Generate { has_context: !raw }, begun);
    answer::response(answer, frame, common.stream.unwrap_or(true)).await
}
