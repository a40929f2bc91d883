//! Errors that clients see.
//!
//! Handlers of every API return [`ApiError`]. Its response has OpenAI's shape and carries the error
//! as an extension. A layer of another API converts it to that API's shape ([`reshape`]).

use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::response::IntoResponse;
use serde_json::{Value, json};

use crate::paths::without_folders;

/// `Result` with [`ApiError`].
pub type Result<T> = std::result::Result<T, ApiError>;

/// Message of answers that end because the server has no time to finish them.
pub(crate) const CUT: &str = "the server is shutting down";

/// The kind of an error; each API has its own word for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request is wrong.
    Invalid,
    /// Prompt and answer are longer than the context.
    ContextLength,
    /// The request has no key, or an unknown one.
    Unauthorized,
    /// A known key that may not do this.
    Forbidden,
    /// The model, response or path does not exist.
    NotFound,
    /// The path exists, for other methods.
    MethodNotAllowed,
    /// The body is larger than allowed.
    TooLarge,
    /// The headers are larger than allowed.
    HeadersTooLarge,
    /// The body is of another type than expected.
    UnsupportedMediaType,
    /// The tenant has used up its rate.
    RateLimited,
    /// The queue is full, or the predicted wait is too long.
    Overloaded,
    /// The server is loading or shutting down.
    Unavailable,
    /// The answer took longer than the request allowed.
    Timeout,
    /// The server failed.
    Internal,
}

impl ErrorKind {
    /// The HTTP status.
    pub fn status(self) -> StatusCode {
        match self {
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
    fn openai_type(self) -> &'static str {
        match self {
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
}

/// An error with the facts that a client needs.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// The kind of the error.
    pub kind: ErrorKind,
    /// The found and the expected value, in words.
    pub message: String,
    /// The key of the request that is wrong.
    pub param: Option<String>,
    /// A word for programs, such as `model_not_found`.
    pub code: Option<&'static str>,
    /// Time after which the client may try again.
    pub retry_after: Option<Duration>,
    /// Tokens of the too long prompt, and the context's length.
    pub too_long: Option<(usize, usize)>,
}

/// Maximum number of bytes of a message, which may repeat the client's input.
const MAX_MESSAGE: usize = 2000;

/// A text without its middle if it is longer than [`MAX_MESSAGE`].
fn shortened(text: String) -> String {
    if text.len() <= MAX_MESSAGE {
        return text;
    }
    let begin = text.floor_char_boundary(MAX_MESSAGE / 2);
    let end = text.ceil_char_boundary(text.len() - MAX_MESSAGE / 2);
    format!("{} … {}", &text[..begin], &text[end..])
}

impl ApiError {
    /// Makes an error of this kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> ApiError {
        ApiError {
            kind,
            message: shortened(message.into()),
            param: None,
            code: None,
            retry_after: None,
            too_long: None,
        }
    }

    /// Error of a wrong value of a key.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> ApiError {
        ApiError { param: Some(shortened(param.into())), ..ApiError::new(ErrorKind::Invalid, message) }
    }

    /// Adds the key to an error of a request that names none.
    pub(crate) fn of_key(mut self, key: &str) -> ApiError {
        if self.kind == ErrorKind::Invalid && self.param.is_none() {
            self.param = Some(key.to_owned());
        }
        self
    }

    /// Error of a known key that cannot be honoured. It is a 400, since clients retry after a 5xx.
    pub fn unsupported(param: impl Into<String>) -> ApiError {
        let param = param.into();
        let message = format!("`{param}` is not supported");
        ApiError { code: Some("unsupported_parameter"), ..ApiError::invalid(param, message) }
    }

    /// Error of a known value that cannot be honoured; `expected` lists those that can.
    pub fn unsupported_value(param: impl Into<String>, found: &str, expected: &str) -> ApiError {
        let param = param.into();
        let message = format!("`{param}` is {found}, which is not supported; expected {expected}");
        ApiError { code: Some("unsupported_value"), ..ApiError::invalid(param, message) }
    }

    /// Error of a grammar whose start no token of the vocabulary can spell.
    pub(crate) fn unspellable() -> ApiError {
        let message = "no token of this model's vocabulary goes on as the grammar, and `logit_bias` if there is one, ask; \
                       expected a grammar of texts that the model can write";
        ApiError::new(ErrorKind::Invalid, message)
    }

    /// Error of an answer that cannot continue under its grammar.
    pub(crate) fn ungrammatical(words: &str) -> ApiError {
        ApiError::new(ErrorKind::Invalid, words)
    }

    /// Error of a text with more bytes than all tokens of a context.
    pub(crate) fn text_too_long(param: &str, n_bytes: usize, n_ctx: usize, most: usize) -> ApiError {
        let message = format!(
            "`{param}` has {n_bytes} bytes of text, expected at most {most}: no {n_ctx} tokens, which is what this model's context \
             holds, have more; shorten it, or start the server with a larger --ctx"
        );
        // A lower bound of the text's tokens.
        let n_tokens = n_ctx.saturating_mul(n_bytes).div_ceil(most.max(1));
        ApiError {
            param: Some(param.to_owned()),
            code: Some("context_length_exceeded"),
            too_long: Some((n_tokens, n_ctx)),
            ..ApiError::new(ErrorKind::ContextLength, message)
        }
    }

    /// Error of a failure of the server.
    pub fn internal(message: impl Into<String>) -> ApiError {
        ApiError::new(ErrorKind::Internal, message)
    }

    /// Error of an unknown model.
    pub fn no_model(name: &str, known: &[String]) -> ApiError {
        let message =
            format!("the model `{name}` does not exist here; expected one of: {}", known.join(", "));
        ApiError {
            param: Some("model".into()),
            code: Some("model_not_found"),
            ..ApiError::new(ErrorKind::NotFound, message)
        }
    }

    /// Error of a prompt and answer that do not fit in the context.
    pub fn context_length(n_tokens: usize, n_ctx: usize) -> ApiError {
        let message = format!(
            "the prompt has {n_tokens} tokens and this model's context holds {n_ctx}, expected at most {} so that one \
             can be answered; shorten the prompt, or start the server with a larger --ctx",
            n_ctx.saturating_sub(1)
        );
        ApiError {
            param: Some("messages".into()),
            code: Some("context_length_exceeded"),
            too_long: Some((n_tokens, n_ctx)),
            ..ApiError::new(ErrorKind::ContextLength, message)
        }
    }

    /// Error of a full queue.
    pub(crate) fn overloaded(n_waiting: usize, max_waiting: usize) -> ApiError {
        let message =
            format!("{n_waiting} requests wait for a slot, and at most {max_waiting} may; try again later");
        ApiError {
            retry_after: Some(Duration::from_secs(1)),
            ..ApiError::new(ErrorKind::Overloaded, message)
        }
    }

    /// The object of OpenAI's `error`.
    pub fn openai_json(&self) -> Value {
        let mut error = json!({
            "message": self.message,
            "type": self.kind.openai_type(),
            "param": self.param,
            "code": self.code,
        });
        // llama-server's keys.
        if let Some((n_tokens, n_ctx)) = self.too_long {
            error["n_prompt_tokens"] = json!(n_tokens);
            error["n_ctx"] = json!(n_ctx);
        }
        error
    }
}

impl From<engine::Error> for ApiError {
    fn from(error: engine::Error) -> ApiError {
        use engine::Error as E;
        // Clients do not see the paths of files.
        let words = without_folders(&error.to_string(), []);
        match &error {
            E::PromptTooLong { n_tokens, n_ctx } | E::TooManyTokens { n_tokens, n_ctx } => {
                ApiError::context_length(*n_tokens, *n_ctx)
            }
            E::QueueFull { .. } => ApiError {
                retry_after: Some(Duration::from_secs(1)),
                ..ApiError::new(ErrorKind::Overloaded, words)
            },
            E::Sampling(wrong) => ApiError::invalid(wrong.name, words),
            E::Option { name, .. } => ApiError::invalid(*name, words),
            E::EmptyPrompt
            | E::TokenOutOfRange { .. }
            | E::NoTokenizer { .. }
            | E::NoChatTemplate { .. }
            | E::NoHead { .. }
            | E::NoEmbeddings { .. }
            | E::NoRanks { .. }
            | E::OnlySpeech { .. }
            | E::NotForSpeech { .. }
            | E::NoVision { .. }
            | E::Text(_) => ApiError::new(ErrorKind::Invalid, words),
            E::DoesNotFit(_) => ApiError::new(ErrorKind::Unavailable, words),
            // Other errors are not the client's fault; the enum is non-exhaustive.
            _ => ApiError::internal(words),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response<Body> {
        let mut response = (self.kind.status(), Json(json!({ "error": self.openai_json() }))).into_response();
        if let Some(after) = self.retry_after {
            let seconds = after.as_secs_f64().ceil().max(1.0) as u64;
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.kind == ErrorKind::Unauthorized {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response.extensions_mut().insert(self);
        response
    }
}

/// Converts an error's response to another API's shape, with its headers and status. Other
/// responses pass.
pub fn reshape(response: Response<Body>, shape: impl FnOnce(&ApiError) -> Value) -> Response<Body> {
    let Some(error) = response.extensions().get::<ApiError>().cloned() else { return response };
    let (mut parts, _) = response.into_parts();
    parts.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(parts, Body::from(shape(&error).to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_do_not_see_paths_of_files() {
        let error = ApiError::from(engine::Error::NoEmbeddings { file: "/home/a/b.gguf".into() });
        assert!(error.message.starts_with("b.gguf: "), "{}", error.message);
    }

    #[test]
    fn a_message_does_not_repeat_all_that_a_client_sent() {
        let error =
            ApiError::invalid("é".repeat(5000), format!("found {}, expected a number", "é".repeat(1 << 20)));
        assert!(error.message.len() < MAX_MESSAGE + 10 && error.param.unwrap().len() < MAX_MESSAGE + 10);
        assert!(error.message.starts_with("found é") && error.message.ends_with("é, expected a number"));
        assert_eq!(ApiError::internal("short").message, "short");
    }
}
