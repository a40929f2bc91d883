//! Errors as responses.
//!
//! A response of an [`ApiError`] has OpenAI's shape and carries the error as an extension. A layer
//! of another API converts it to that API's shape ([`reshape`]).

use axum::Json;
use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::response::IntoResponse;
use runner::{ErrorKind, RequestError};
use serde_json::{Value, json};

/// The result of a handler.
pub type HttpResult<T> = std::result::Result<T, ApiError>;

/// A request's error as a response.
#[derive(Debug)]
pub struct ApiError(pub RequestError);

impl From<RequestError> for ApiError {
    fn from(error: RequestError) -> ApiError {
        ApiError(error)
    }
}

impl From<ApiError> for RequestError {
    fn from(error: ApiError) -> RequestError {
        error.0
    }
}

/// The HTTP status of an error.
pub(crate) fn status(kind: ErrorKind) -> StatusCode {
    match kind {
        ErrorKind::Invalid | ErrorKind::ContextLength => StatusCode::BAD_REQUEST,
        ErrorKind::Unauthorized => StatusCode::UNAUTHORIZED,
        ErrorKind::Forbidden => StatusCode::FORBIDDEN,
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        ErrorKind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        ErrorKind::HeadersTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        ErrorKind::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        ErrorKind::RateLimited | ErrorKind::Overloaded => StatusCode::TOO_MANY_REQUESTS,
        ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::Timeout => StatusCode::REQUEST_TIMEOUT,
        ErrorKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// OpenAI's `type`.
fn openai_type(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Invalid
        | ErrorKind::ContextLength
        | ErrorKind::MethodNotAllowed
        | ErrorKind::TooLarge
        | ErrorKind::HeadersTooLarge
        | ErrorKind::UnsupportedMediaType => "invalid_request_error",
        ErrorKind::Unauthorized => "authentication_error",
        ErrorKind::Forbidden => "permission_error",
        ErrorKind::NotFound => "not_found_error",
        ErrorKind::RateLimited | ErrorKind::Overloaded => "rate_limit_error",
        ErrorKind::Unavailable => "service_unavailable_error",
        ErrorKind::Timeout => "timeout_error",
        ErrorKind::Internal => "server_error",
    }
}

/// The object of OpenAI's `error`.
pub(crate) fn openai_json(error: &RequestError) -> Value {
    let mut object = json!({
        "message": error.message,
        "type": openai_type(error.kind),
        "param": error.param,
        "code": error.code,
    });
    // llama-server's keys.
    if let Some((n_tokens, n_ctx)) = error.too_long {
        object["n_prompt_tokens"] = json!(n_tokens);
        object["n_ctx"] = json!(n_ctx);
    }
    object
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response<Body> {
        let mut response =
            (status(self.0.kind), Json(json!({ "error": openai_json(&self.0) }))).into_response();
        if let Some(after) = self.0.retry_after {
            let seconds = after.as_secs_f64().ceil().max(1.0) as u64;
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.0.kind == ErrorKind::Unauthorized {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response.extensions_mut().insert(self.0);
        response
    }
}

/// Converts an error's response to another API's shape, with its headers and status. Other
/// responses pass.
pub fn reshape(response: Response<Body>, shape: impl FnOnce(&RequestError) -> Value) -> Response<Body> {
    let Some(error) = response.extensions().get::<RequestError>().cloned() else { return response };
    let (mut parts, _) = response.into_parts();
    parts.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(parts, Body::from(shape(&error).to_string()))
}
