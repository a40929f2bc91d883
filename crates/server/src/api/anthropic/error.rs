//! Errors in Anthropic's shape.

use serde_json::{Value, json};

use runner::{ErrorKind, RequestError, Result};

/// Body of an error response, and data of an `error` event. A shape for [`crate::error::reshape`].
pub fn error_json(error: &RequestError, request_id: &str) -> Value {
    json!({
        "type": "error",
        "error": { "type": error_type(error.kind), "message": error.message },
        "request_id": request_id,
    })
}

fn error_type(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Invalid
        | ErrorKind::ContextLength
        | ErrorKind::MethodNotAllowed
        | ErrorKind::UnsupportedMediaType => "invalid_request_error",
        ErrorKind::Unauthorized => "authentication_error",
        ErrorKind::Forbidden => "permission_error",
        ErrorKind::NotFound => "not_found_error",
        ErrorKind::TooLarge | ErrorKind::HeadersTooLarge => "request_too_large",
        ErrorKind::RateLimited => "rate_limit_error",
        ErrorKind::Overloaded | ErrorKind::Unavailable => "overloaded_error",
        ErrorKind::Timeout => "timeout_error",
        ErrorKind::Internal => "api_error",
    }
}

/// Error of a key with an unexpected value.
pub(super) fn wrong<T>(param: &str, found: &Value, expected: &str) -> Result<T> {
    Err(RequestError::invalid(param, format!("`{param}` is {found}, expected {expected}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_type_message_and_request_id() {
        let body = error_json(&RequestError::invalid("max_tokens", "max_tokens is missing"), "req_1");
        assert_eq!(
            body,
            json!({"type": "error", "request_id": "req_1",
                "error": {"type": "invalid_request_error", "message": "max_tokens is missing"}})
        );
    }

    #[test]
    fn a_full_queue_is_overloaded_and_a_spent_rate_is_a_rate_limit() {
        assert_eq!(error_type(ErrorKind::Overloaded), "overloaded_error");
        assert_eq!(error_type(ErrorKind::RateLimited), "rate_limit_error");
    }
}
