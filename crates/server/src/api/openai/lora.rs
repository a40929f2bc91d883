//! vLLM's endpoints to load and unload adapters:
//! <https://docs.vllm.ai/en/latest/features/lora.html>.

use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::api::body::JsonBody;
use crate::app::App;
use crate::error::{ApiError, Result};
use crate::models::ServedAdapter;

#[derive(Deserialize)]
pub(super) struct Load {
    #[serde(default)]
    lora_name: String,
    #[serde(default)]
    lora_path: String,
    #[serde(default)]
    base_model_name: Option<String>,
    #[serde(default)]
    load_inplace: bool,
}

#[derive(Deserialize)]
pub(super) struct Unload {
    #[serde(default)]
    lora_name: String,
}

/// Loads an adapter. The answer is a sentence, as in vLLM.
pub(super) async fn load(State(app): State<App>, JsonBody(load): JsonBody<Load>) -> Result<String> {
    let Load { lora_name: name, lora_path: path, base_model_name, load_inplace } = load;
    let missing = |field: &str| ApiError::invalid(field, format!("`{field}` is missing, expected a text"));
    if name.is_empty() {
        return Err(missing("lora_name"));
    }
    if path.is_empty() {
        return Err(missing("lora_path"));
    }
    let model = base_model_name.unwrap_or_default();
    app.load_adapter(ServedAdapter { name: name.clone(), model, path }, load_inplace).await?;
    Ok(format!("Success: LoRA adapter '{name}' added successfully."))
}

/// Unloads an adapter.
pub(super) async fn unload(State(app): State<App>, JsonBody(unload): JsonBody<Unload>) -> Result<String> {
    let name = unload.lora_name;
    if name.is_empty() {
        return Err(ApiError::invalid("lora_name", "`lora_name` is missing, expected a text"));
    }
    app.unload_adapter(&name).await?;
    Ok(format!("Success: LoRA adapter '{name}' removed successfully."))
}

/// An adapter as an entry of the list of models.
pub(super) fn adapter_json(adapter: &ServedAdapter, created: u64) -> Value {
    let ServedAdapter { name, model, path } = adapter;
    json!({ "id": name, "object": "model", "created": created, "owned_by": "ingle", "root": path, "parent": model })
}
