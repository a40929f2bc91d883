//! `/infill`: text for the gap between two texts.

use axum::extract::{Extension, State};
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::answer;
use super::completion::{Keys, tidy, with_biases};
use crate::api::body::{JsonBody, part};
use crate::error::HttpResult;
use runner::Runner;
use runner::{Caller, CompletionRequest, Prompt};

/// The text around the gap.
#[derive(Deserialize)]
struct Around {
    #[serde(default)]
    input_prefix: String,
    #[serde(default)]
    input_suffix: String,
    /// Other files, as context.
    #[serde(default)]
    input_extra: Vec<Extra>,
    /// The start of the text in the gap.
    #[serde(default)]
    prompt: String,
}

#[derive(Deserialize)]
struct Extra {
    #[serde(default)]
    filename: String,
    text: String,
}

pub(super) async fn create(
    State(runner): State<Runner>,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody<Map<String, Value>>,
) -> HttpResult<Response> {
    let body = with_biases(&runner, tidy(body)).await?;
    let around: Around = part(&body, "")?;
    let keys = Keys::of(&body)?;
    let text = format!("{}{}", around.input_prefix, around.prompt);
    let prompt = json!(text);
    let mut request = CompletionRequest {
        suffix: Some(around.input_suffix),
        files: around.input_extra.into_iter().map(|extra| (extra.filename, extra.text)).collect(),
        ..keys.request(Prompt::Text { text, parse_special: false })?
    };
    // The answer repeats the settings.
    runner.fill_in(&keys.model, &mut request.options).await?;
    let shape = keys.shape(prompt, &request);
    let begun = runner.complete(&caller, request).await?;
    match keys.wants_stream() {
        true => Ok(answer::stream(begun, shape)),
        false => Ok(answer::respond(vec![answer::whole(begun, 0, shape).await?])),
    }
}
