//! `/embedding`, and `/embeddings` for clients of llama-server and of OpenAI alike.

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::api::body::{JsonBody, part, text_or_null};
use crate::api::openai::common::Prompts;
use crate::api::openai::embeddings;
use crate::error::HttpResult;
use runner::{EmbedRequest, Runner};

#[derive(Deserialize)]
pub(super) struct LlamaEmbeddingBody {
    #[serde(default, deserialize_with = "text_or_null")]
    model: String,
    #[serde(alias = "input")]
    content: Prompts,
}

/// Returns a list of vectors, each within a list, as llama-server does.
pub(super) async fn create(
    State(runner): State<Runner>,
    JsonBody(body): JsonBody<LlamaEmbeddingBody>,
) -> HttpResult<Json<Value>> {
    let inputs = embeddings::inputs("content", body.content)?;
    let found = runner.embed(EmbedRequest { model: body.model, inputs, ..EmbedRequest::default() }).await?;
    let one = |(index, vector)| json!({ "index": index, "embedding": [vector] });
    Ok(Json(found.vectors.into_iter().enumerate().map(one).collect()))
}

/// Without a version, the path is llama-server's and also that of OpenAI clients with such a base
/// address. Only llama-server's clients send `content`.
pub(super) async fn create_either(
    runner: State<Runner>,
    JsonBody(given): JsonBody<Map<String, Value>>,
) -> HttpResult<Json<Value>> {
    let is_own = given.contains_key("content");
    let given = Value::Object(given);
    match is_own {
        true => create(runner, JsonBody(part(&given, "")?)).await,
        false => embeddings::create(runner, JsonBody(part(&given, "")?)).await,
    }
}
