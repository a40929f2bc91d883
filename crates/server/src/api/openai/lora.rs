//! vLLM's endpoints to load and unload adapters:
//! <https://docs.vllm.ai/en/latest/features/lora.html>.

use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::api::body::JsonBody;
use crate::error::HttpResult;
use runner::RequestError;
use runner::Runner;
use runner::ServedAdapter;

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
pub(super) async fn load(State(runner): State<Runner>, JsonBody(load): JsonBody<Load>) -> HttpResult<String> {
    let Load { lora_name: name, lora_path: path, base_model_name, load_inplace } = load;
    let missing =
        |field: &str| RequestError::invalid(field, format!("`{field}` is missing, expected a text"));
    if name.is_empty() {
        return Err(missing("lora_name").into());
    }
    if path.is_empty() {
        return Err(missing("lora_path").into());
    }
    let model = base_model_name.unwrap_or_default();
    runner.load_adapter(ServedAdapter { name: name.clone(), model, path }, load_inplace).await?;
    Ok(format!("Success: LoRA adapter '{name}' added successfully."))
}

/// Unloads an adapter.
pub(super) async fn unload(
    State(runner): State<Runner>,
    JsonBody(unload): JsonBody<Unload>,
) -> HttpResult<String> {
    let name = unload.lora_name;
    if name.is_empty() {
        return Err(RequestError::invalid("lora_name", "`lora_name` is missing, expected a text").into());
    }
    runner.unload_adapter(&name).await?;
    Ok(format!("Success: LoRA adapter '{name}' removed successfully."))
}

/// An adapter as an entry of the list of models.
pub(super) fn adapter_json(adapter: &ServedAdapter, created: u64) -> Value {
    let ServedAdapter { name, model, path } = adapter;
    json!({ "id": name, "object": "model", "created": created, "owned_by": "ingle", "root": path, "parent": model })
}
