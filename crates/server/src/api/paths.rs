//! Paths as clients write them, and errors for unknown paths and methods.

use axum::extract::Request;
use axum::http::{Method, Uri};

use crate::error::ApiError;
use runner::{ErrorKind, RequestError};

/// The most letters of a path in a message.
const MAX_SHOWN: usize = 100;

/// Known paths by their endings, to suggest one to a client with a wrong base address. Some append
/// `/v1` twice; others prepend the path of another server.
const ENDS: [&str; 12] = [
    "/chat/completions",
    "/completions",
    "/embeddings",
    "/responses",
    "/messages",
    "/messages/count_tokens",
    "/models",
    "/rerank",
    "/audio/transcriptions",
    "/audio/translations",
    "/api/chat",
    "/api/tags",
];

/// Routes a request without `/v1` to the path that has it, since some clients get the server's
/// address alone. llama-server's paths without a version have their own routes.
pub(crate) async fn with_version(mut request: Request) -> Request {
    let given = request.uri().path_and_query().map_or("/", |path| path.as_str());
    let versioned = match given.trim_start_matches('/') {
        path if ["reranking", "v1/reranking"].contains(&path.trim_end_matches('/')) => {
            "/v1/rerank".to_owned()
        }
        path if UNVERSIONED.iter().any(|begin| path.starts_with(begin)) => format!("/v1/{path}"),
        _ => return request,
    };
    let mut parts = request.uri().clone().into_parts();
    parts.path_and_query = versioned.parse().ok();
    if let Ok(uri) = Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
    request
}

/// Starts of paths that need a `/v1` before them.
const UNVERSIONED: [&str; 6] = ["messages", "models/", "responses/", "files", "audio/", "rerank"];

/// Answers a request for an unknown path.
pub(crate) async fn nothing_there(method: Method, uri: Uri) -> ApiError {
    let hint = match near(uri.path()) {
        Some(path) => format!("expected {path}"),
        None => "/openapi.json lists all paths".to_owned(),
    };
    let message = format!("there is nothing at {method} {}; {hint}", shown(uri.path()));
    ApiError(RequestError::new(ErrorKind::NotFound, message))
}

/// Answers a request with a wrong method; axum sets the header `Allow`.
pub(crate) async fn other_methods(method: Method, uri: Uri) -> ApiError {
    let path = shown(uri.path());
    let message = format!("{path} does not answer {method}, expected a method that the header Allow names");
    ApiError(RequestError::new(ErrorKind::MethodNotAllowed, message))
}

/// The known path that was probably meant.
fn near(path: &str) -> Option<String> {
    let path = path.to_ascii_lowercase();
    let end = ENDS.into_iter().filter(|end| path.ends_with(end)).max_by_key(|end| end.len())?;
    Some(if end.starts_with("/api/") { end.to_owned() } else { format!("/v1{end}") })
}

fn shown(path: &str) -> String {
    let mut shown: String = path.chars().take(MAX_SHOWN).collect();
    if shown.len() < path.len() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_missing_version_is_added() {
        for (given, path) in [
            ("/messages?beta=true", "/v1/messages?beta=true"),
            ("/models/a/b", "/v1/models/a/b"),
            ("/audio/transcriptions/", "/v1/audio/transcriptions/"),
            ("/reranking", "/v1/rerank"),
            ("/rerank", "/v1/rerank"),
            ("/v1/reranking/", "/v1/rerank"),
            ("/v1/messages", "/v1/messages"),
            ("/models", "/models"),
            ("/embeddings", "/embeddings"),
            ("/", "/"),
        ] {
            let request = Request::get(given).body(axum::body::Body::empty()).unwrap();
            assert_eq!(with_version(request).await.uri().to_string(), path);
        }
    }

    #[tokio::test]
    async fn the_path_that_was_meant_is_named() {
        for (path, hint) in [
            ("/v1/v1/chat/completions", "expected /v1/chat/completions"),
            ("/api/v1/models", "expected /v1/models"),
            ("/openai/deployments/x/embeddings", "expected /v1/embeddings"),
            ("/V1/Messages", "expected /v1/messages"),
            ("/v1/api/tags", "expected /api/tags"),
            ("/nope", "/openapi.json lists"),
        ] {
            let error = nothing_there(Method::POST, path.parse().unwrap()).await.0;
            assert!(
                error.message.starts_with(&format!("there is nothing at POST {path}; {hint}")),
                "{error}"
            );
        }
        let long = format!("/{}", "x".repeat(5000));
        assert!(nothing_there(Method::GET, long.parse().unwrap()).await.0.message.len() < 250);
    }
}
