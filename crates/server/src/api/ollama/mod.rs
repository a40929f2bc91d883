//! Ollama's API: <https://docs.ollama.com/api>.

mod answer;
mod chat;
mod embed;
mod generate;
mod library;
mod messages;
mod ndjson;
mod options;
mod pull;

use std::time::SystemTime;

use axum::extract::Request;
use axum::http::Uri;
use axum::middleware::Next;
use axum::response::Response;
use axum::routing::{any, delete, get, post};
use axum::{Json, Router};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::app::App;
use crate::error::{ApiError, ErrorKind};

/// `stop`, `input`: a text or several.
fn texts(name: &str, value: Option<Value>) -> Result<Vec<String>, ApiError> {
    let wrong = |found: &Value| {
        let message = format!("`{name}` has {found}, expected a text or a list of texts");
        ApiError::invalid(name, message)
    };
    let text = |value: Value| match value {
        Value::String(text) => Ok(text),
        other => Err(wrong(&other)),
    };
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(list)) => list.into_iter().map(text).collect(),
        Some(one) => text(one).map(|text| vec![text]),
    }
}

/// The version of Ollama whose API this is; clients ask for it before they use what is newer.
const VERSION: &str = "0.12.11";

/// All paths of this API; `HEAD /`, by which its clients look whether a server is there, is the chat page's.
pub fn router() -> Router<App> {
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

/// Errors in this API's shape, those included that come from before and beside its handlers: a missing key, an unknown path.
pub(crate) async fn errors(request: Request, next: Next) -> Response {
    let is_ours = request.uri().path().starts_with("/api/");
    let response = next.run(request).await;
    if is_ours { crate::reshape(response, error_json) } else { response }
}

/// The body of an error response, and the last line of an answer that failed.
fn error_json(error: &ApiError) -> Value {
    match error.code {
        // The words that clients look for.
        Some("model_not_found") => json!({ "error": format!("model not found: {}", error.message) }),
        _ => json!({ "error": error.message }),
    }
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
    ApiError { code: Some("unsupported_parameter"), ..ApiError::new(ErrorKind::Invalid, message) }
}

/// A body that names a model; older clients call the key `name`.
#[derive(Debug, Deserialize)]
struct Named {
    #[serde(default)]
    model: String,
    #[serde(default)]
    name: String,
    stream: Option<bool>,
}

impl Named {
    fn model(self) -> Result<String, ApiError> {
        match [self.model, self.name].into_iter().find(|name| !name.is_empty()) {
            Some(name) => Ok(name),
            None => Err(ApiError::invalid("model", "`model` is missing, expected the name of a model")),
        }
    }
}

/// Now, as RFC 3339 has it.
fn now() -> String {
    Timestamp::now().to_string()
}

/// As RFC 3339 has it; the beginning of Unix time for what it has no words for.
pub(super) fn time(at: SystemTime) -> String {
    Timestamp::try_from(at).unwrap_or(Timestamp::UNIX_EPOCH).to_string()
}
