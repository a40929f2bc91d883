//! The list of models: `/api/tags`, `/api/ps`, `/api/show`.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::common::Named;
use crate::api::body::JsonBody;
use crate::api::time;
use crate::error::HttpResult;
use runner::ModelDetails;
use runner::Runner;
use runner::{LoadedStatus, ModelStatus};

/// Ollama's clients read such a late time as "never".
const NEVER: Duration = Duration::from_secs(292 * 365 * 24 * 60 * 60);

pub(super) async fn tags(State(runner): State<Runner>) -> Json<Value> {
    let (runner, models) = (&runner, runner.models());
    let entry = |status: ModelStatus| async move { entry(runner, &status).await };
    let models = futures_util::future::join_all(models.into_iter().map(entry)).await;
    Json(json!({ "models": models }))
}

pub(super) async fn ps(State(runner): State<Runner>) -> Json<Value> {
    let mut models = Vec::new();
    for status in runner.models() {
        let Some(loaded) = &status.loaded else { continue };
        let mut model = entry(&runner, &status).await;
        let (context_length, bytes_on_gpu) = match loaded {
            LoadedStatus::Text(text) => {
                (text.n_ctx, if text.device.starts_with("metal") { text.file_bytes } else { 0 })
            }
            LoadedStatus::Embedder { max_tokens, .. } => (*max_tokens, 0),
            LoadedStatus::Speech { .. } => (0, 0),
        };
        if let Some(model) = model.as_object_mut() {
            model.shift_remove("modified_at");
        }
        model["expires_at"] = time(SystemTime::now() + status.expires_in.unwrap_or(NEVER)).into();
        model["size_vram"] = bytes_on_gpu.into();
        model["context_length"] = context_length.into();
        models.push(model);
    }
    Json(json!({ "models": models }))
}

/// An entry of the lists. A model without files on this machine has only its name.
async fn entry(runner: &Runner, status: &ModelStatus) -> Value {
    let details = runner.details(&status.id).await.ok().map(|(_, details)| details);
    let digest = |details: &Arc<ModelDetails>| details.digest.clone();
    let of_name = || Sha256::digest(&status.id).iter().map(|byte| format!("{byte:02x}")).collect();
    let started = || SystemTime::UNIX_EPOCH + Duration::from_secs(runner.created());
    json!({
        "name": status.id,
        "model": status.id,
        "modified_at": time(details.as_ref().and_then(|details| details.modified).unwrap_or_else(started)),
        "size": details.as_ref().map_or(0, |details| details.bytes),
        "digest": details.as_ref().map_or_else(of_name, digest),
        "details": details_json(details.as_deref()),
    })
}

fn details_json(details: Option<&ModelDetails>) -> Value {
    let Some(details) = details else {
        return json!({
            "parent_model": "", "format": "", "family": "", "families": null, "parameter_size": "",
            "quantization_level": "",
        });
    };
    json!({
        "parent_model": "", "format": details.format, "family": details.architecture,
        "families": [details.architecture], "parameter_size": short_count(details.n_parameters),
        "quantization_level": details.quantization,
    })
}

/// A count as Ollama writes it: `134.52M`.
fn short_count(n: u64) -> String {
    match n {
        0..1_000 => n.to_string(),
        1_000..1_000_000 => format!("{:.2}K", n as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2}M", n as f64 / 1e6),
        _ => format!("{:.1}B", n as f64 / 1e9),
    }
}

pub(super) async fn show(
    State(runner): State<Runner>,
    JsonBody(named): JsonBody<Named>,
) -> HttpResult<Json<Value>> {
    let (id, details) = runner.details(&named.model()?).await?;
    let template = details.template.clone().unwrap_or_default();
    Ok(Json(json!({
        "modelfile": modelfile(&id, &template),
        "parameters": "",
        "template": template,
        "details": details_json(Some(&details)),
        "model_info": model_info(&details),
        "capabilities": capabilities(&details),
        "modified_at": time(details.modified.unwrap_or(SystemTime::UNIX_EPOCH)),
    })))
}

fn modelfile(id: &str, template: &str) -> String {
    match template {
        "" => format!("FROM {id}\n"),
        template => format!("FROM {id}\nTEMPLATE \"\"\"{template}\"\"\"\n"),
    }
}

/// Properties under the names that GGUF gives them.
fn model_info(details: &ModelDetails) -> Value {
    let mut info = json!({
        "general.architecture": details.architecture,
        "general.parameter_count": details.n_parameters,
    });
    for (name, value) in [
        ("context_length", details.n_ctx_train),
        ("embedding_length", details.hidden),
        ("block_count", details.n_layers),
        ("feed_forward_length", details.ffn),
        ("attention.head_count", details.n_heads),
        ("attention.head_count_kv", details.n_kv_heads),
        ("vocab_size", details.n_vocab),
    ] {
        info[format!("{}.{name}", details.architecture)] = value.into();
    }
    info
}

/// Capabilities of the model. Every chat model has tools: if its template has no place for them,
/// they go into the system message.
fn capabilities(details: &ModelDetails) -> Vec<&'static str> {
    let chats = details.writes && details.template.is_some();
    let known = [
        ("completion", details.writes),
        ("tools", chats),
        ("thinking", chats && details.reasons),
        ("embedding", details.embeds),
    ];
    known.into_iter().filter(|(_, has)| *has).map(|(name, _)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_short() {
        let found = [0, 999, 22_713, 134_515_008, 8_030_000_000].map(short_count);
        assert_eq!(found, ["0", "999", "22.71K", "134.52M", "8.0B"]);
    }

    #[test]
    fn never_is_more_than_a_century_away() {
        let at = time(SystemTime::now() + NEVER);
        assert!(at.as_str() > "2200" && at.ends_with('Z'), "{at}");
    }
}
