//! Endpoints of vLLM and SGLang that their routers call before and while they send requests. They
//! stay so that Ingle can be an instance behind these routers.

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};

use runner::Runner;
use runner::{LoadedStatus, TextStatus};

/// The paths of these endpoints.
pub fn router() -> Router<Runner> {
    Router::new()
        .route("/get_model_info", get(model_info))
        .route("/model_info", get(model_info))
        .route("/get_server_info", get(server_info))
        .route("/server_info", get(server_info))
        .route("/get_load", get(load))
        .route("/load", get(load))
        .route("/version", get(version))
}

/// The first loaded model that generates text, with its id.
fn first(runner: &Runner) -> Option<(String, TextStatus)> {
    runner.models().into_iter().find_map(|status| {
        let Some(LoadedStatus::Text(text)) = status.loaded else { return None };
        Some((status.id, text))
    })
}

async fn model_info(State(runner): State<Runner>) -> Json<Value> {
    let found = first(&runner);
    let id = found.as_ref().map(|(id, _)| id);
    let text = found.as_ref().map(|(_, text)| text);
    Json(json!({
        "model_path": id, "tokenizer_path": id, "served_model_name": id, "is_generation": text.is_some(),
        "max_context_length": text.map(|text| text.n_ctx), "vocab_size": text.map(|text| text.n_vocab),
        "preferred_sampling_params": null, "weight_version": "default",
    }))
}

async fn server_info(State(runner): State<Runner>) -> Json<Value> {
    let found = first(&runner);
    let id = found.as_ref().map(|(id, _)| id);
    let text = found.as_ref().map(|(_, text)| text);
    let models: Vec<String> = runner.models().into_iter().map(|status| status.id).collect();
    Json(json!({
        "model_path": id, "model_id": id, "served_model_name": id, "models": models,
        "version": env!("CARGO_PKG_VERSION"),
        "max_running_requests": text.map(|text| text.n_slots), "context_length": text.map(|text| text.n_ctx),
        "tp_size": 1, "dp_size": 1, "disaggregation_mode": "null",
    }))
}

/// SGLang's routers balance by `load`, vLLM's by `server_load`.
async fn load(State(runner): State<Runner>) -> Json<Value> {
    let of = |loaded: LoadedStatus| loaded.stats().running.get() + loaded.stats().waiting.get();
    let load: u64 = runner.models().into_iter().filter_map(|status| status.loaded).map(of).sum();
    Json(json!({ "load": load, "server_load": load }))
}

async fn version() -> Json<Value> {
    Json(json!({ "version": env!("CARGO_PKG_VERSION") }))
}
