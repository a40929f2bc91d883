//! `/props`

use axum::Json;
use axum::extract::{Query, State};
use serde::Deserialize;
use serde_json::{Value, json};

use super::completion::PENALTY_WINDOW;
use crate::error::HttpResult;
use runner::GenerateOptions;
use runner::Runner;

#[derive(Deserialize)]
pub(super) struct PropsQuery {
    #[serde(default)]
    model: String,
}

/// Properties of a model: `?model=`, or the first one that generates text.
pub(super) async fn props(
    State(runner): State<Runner>,
    Query(which): Query<PropsQuery>,
) -> HttpResult<Json<Value>> {
    let props = runner.text_props(&which.model).await?;
    let mut options = GenerateOptions::default();
    options.sampling.penalty_window = PENALTY_WINDOW;
    runner.fill_in(&which.model, &mut options).await?;
    let sampling = options.sampling;
    Ok(Json(json!({
        "default_generation_settings": {
            "id": 0, "n_ctx": props.n_ctx, "is_processing": false,
            "params": {
                "temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p,
                "min_p": sampling.min_p, "repeat_penalty": sampling.repeat_penalty, "repeat_last_n": sampling.penalty_window,
                "presence_penalty": sampling.presence_penalty, "frequency_penalty": sampling.frequency_penalty,
                "n_predict": -1, "stream": false,
            },
        },
        "total_slots": props.n_slots,
        "model_alias": props.id,
        "model_path": props.id,
        "modalities": { "vision": false, "audio": false },
        "chat_template": props.chat_template,
        "bos_token": props.bos,
        "eos_token": props.eos,
        "build_info": concat!("ingle ", env!("CARGO_PKG_VERSION")),
        "is_sleeping": false,
    })))
}
