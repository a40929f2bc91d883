//! OpenAI's API: <https://platform.openai.com/docs/api-reference>.

mod audio;
mod chat;
mod chat_answer;
pub(in crate::api) mod common;
mod completions;
pub(in crate::api) mod embeddings;
mod files;
mod lora;
mod page;
mod responses;
mod tools;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Json;
use axum::extract::{Extension, Path, State};
use axum::routing::{get, post};
use serde_json::{Value, json};

use super::time;
use crate::error::HttpResult;
use runner::RequestError;
use runner::Runner;
use runner::{LoadedStatus, ModelStatus};

/// All paths of this API.
pub fn router() -> axum::Router<Runner> {
    axum::Router::new()
        .route("/v1/models", get(models))
        .route("/v1/models/{*id}", get(model))
        .route("/v1/chat/completions", post(chat::create))
        // llama-server has these paths without a version as well.
        .route("/models", get(models))
        .route("/chat/completions", post(chat::create))
        .route("/v1/chat/completions/input_tokens", post(chat::count_tokens))
        .route("/chat/completions/input_tokens", post(chat::count_tokens))
        .route("/apply-template", post(chat::apply_template))
        .route("/v1/completions", post(completions::create))
        .route("/v1/embeddings", post(embeddings::create))
        .route("/v1/load_lora_adapter", post(lora::load))
        .route("/v1/unload_lora_adapter", post(lora::unload))
        .merge(files::router())
        .merge(responses::router())
        .route("/v1/audio/transcriptions", post(audio::transcribe))
        .route("/v1/audio/translations", post(audio::translate))
        .layer(Extension(Arc::new(files::Files::default())))
}

async fn models(State(runner): State<Runner>) -> Json<Value> {
    let created = runner.created();
    let models = runner.models();
    let models = models.iter().map(|status| model_json(status, created));
    let adapters = runner.adapters();
    let adapters = adapters.iter().map(|adapter| lora::adapter_json(adapter, created));
    let data: Vec<Value> = models.chain(adapters).map(|model| also_anthropic(model, created)).collect();
    let id = |model: Option<&Value>| model.map(|model| model["id"].clone());
    Json(json!({
        "object": "list", "data": data, "has_more": false, "first_id": id(data.first()), "last_id": id(data.last()),
    }))
}

async fn model(State(runner): State<Runner>, Path(id): Path<String>) -> HttpResult<Json<Value>> {
    if let Some(adapter) = runner.adapters().iter().find(|adapter| adapter.name == id) {
        return Ok(Json(also_anthropic(lora::adapter_json(adapter, runner.created()), runner.created())));
    }
    let models = runner.models();
    match models.iter().find(|status| status.id == id) {
        Some(status) => Ok(Json(also_anthropic(model_json(status, runner.created()), runner.created()))),
        None => Err(RequestError::no_model(
            &id,
            &models.iter().map(|status| status.id.clone()).collect::<Vec<_>>(),
        )
        .into()),
    }
}

/// Adds Anthropic's keys to a model in OpenAI's shape. Both APIs list models at this path, and
/// clients of each ignore the other's keys.
fn also_anthropic(mut model: Value, created: u64) -> Value {
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs(created);
    model["type"] = json!("model");
    model["display_name"] = model["id"].clone();
    model["created_at"] = json!(time(at));
    model
}

fn model_json(status: &ModelStatus, created: u64) -> Value {
    let mut model = json!({ "id": status.id, "object": "model", "created": created, "owned_by": "ingle" });
    if let Some(kind) = status.kind {
        model["capabilities"] = json!(kind.capabilities());
    }
    match &status.loaded {
        // Keys of llama-server and vLLM.
        Some(LoadedStatus::Text(text)) => {
            model["max_model_len"] = json!(text.n_ctx);
            model["meta"] = json!({
                "n_ctx": text.n_ctx, "n_ctx_train": text.n_ctx_train, "n_vocab": text.n_vocab, "size": text.file_bytes,
                "device": text.device,
            });
        }
        Some(LoadedStatus::Embedder { n_dims, max_tokens, .. }) => {
            model["max_model_len"] = json!(max_tokens);
            model["meta"] = json!({ "n_embd": n_dims, "n_ctx": max_tokens });
        }
        Some(LoadedStatus::Speech { languages, .. }) => {
            model["meta"] = json!({ "languages": languages });
        }
        None => {}
    }
    model
}
