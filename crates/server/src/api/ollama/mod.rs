//! Ollama's API: <https://docs.ollama.com/api>.

mod answer;
mod chat;
mod common;
mod embed;
mod generate;
mod library;
mod messages;
mod ndjson;
mod options;
mod pull;

use axum::extract::Request;
use axum::http::Uri;
use axum::middleware::Next;
use axum::response::Response;
use axum::routing::{any, delete, get, post};
use axum::{Json, Router};
use serde_json::{Value, json};

use self::common::error_json;
use crate::error::ApiError;
use runner::Runner;
use runner::{ErrorKind, RequestError};

/// Version of Ollama that this API corresponds to. Clients check it before they use newer features.
const VERSION: &str = "0.12.11";

/// All paths of this API. The chat page serves `HEAD /`, by which clients check that a server runs.
pub fn router() -> Router<Runner> {
    Router::new()
        .route("/api/chat", post(chat::create))
        .route("/api/generate", post(generate::create))
        .route("/api/embed", post(embed::create))
        .route("/api/embeddings", post(embed::create_one))
        .route("/api/tags", get(library::tags))
        .route("/api/ps", get(library::ps))
        .route("/api/show", post(library::show))
        .route("/api/version", get(version))
        .route("/api/pull", post(pull::pull))
        .route("/api/delete", delete(pull::delete))
        .route("/api/create", any(not_offered))
        .route("/api/copy", any(not_offered))
        .route("/api/push", any(not_offered))
        .route("/api/blobs/{digest}", any(not_offered))
}

/// Converts errors to this API's shape, also those raised outside its handlers: a missing key, an
/// unknown path.
pub(crate) async fn errors(request: Request, next: Next) -> Response {
    let is_ours = request.uri().path().starts_with("/api/");
    let response = next.run(request).await;
    if is_ours { crate::error::reshape(response, error_json) } else { response }
}

async fn version() -> Json<Value> {
    Json(json!({ "version": VERSION, "ingle": env!("CARGO_PKG_VERSION") }))
}

async fn not_offered(uri: Uri) -> ApiError {
    let message = format!(
        "{} is not offered: models are not made, copied or uploaded here; start the server with the models that it \
         is to serve",
        uri.path()
    );
    let error = RequestError::new(ErrorKind::Invalid, message);
    ApiError(RequestError { code: Some("unsupported_parameter"), ..error })
}
