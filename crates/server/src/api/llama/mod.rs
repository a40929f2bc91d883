//! llama-server's own endpoints: <https://github.com/ggml-org/llama.cpp/tree/master/tools/server>.

mod answer;
mod completion;
mod embedding;
mod infill;
mod props;

use axum::Router;
use axum::routing::{get, post};

use runner::Runner;

/// The paths of this API.
pub fn router() -> Router<Runner> {
    Router::new()
        .route("/completion", post(completion::create))
        .route("/completions", post(completion::create))
        .route("/embedding", post(embedding::create))
        .route("/embeddings", post(embedding::create_either))
        .route("/infill", post(infill::create))
        .route("/props", get(props::props))
}
