//! Errors of requests, with the facts that a caller needs.

use std::time::Duration;

use crate::paths::without_folders;

/// `Result` with [`RequestError`].
pub type Result<T> = std::result::Result<T, RequestError>;

/// Message of answers that end because the server has no time to finish them.
pub const CUT: &str = "the server is shutting down";

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

/// An error with the facts that a client needs.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct RequestError {
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

impl RequestError {
    /// Makes an error of this kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> RequestError {
        RequestError {
            kind,
            message: shortened(message.into()),
            param: None,
            code: None,
            retry_after: None,
            too_long: None,
        }
    }

    /// Error of a wrong value of a key.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> RequestError {
        RequestError {
            param: Some(shortened(param.into())),
            ..RequestError::new(ErrorKind::Invalid, message)
        }
    }

    /// Adds the key to an error of a request that names none.
    pub fn of_key(mut self, key: &str) -> RequestError {
        if self.kind == ErrorKind::Invalid && self.param.is_none() {
            self.param = Some(key.to_owned());
        }
        self
    }

    /// Error of a known key that cannot be honoured. It is a 400, since clients retry after a 5xx.
    pub fn unsupported(param: impl Into<String>) -> RequestError {
        let param = param.into();
        let message = format!("`{param}` is not supported");
        RequestError { code: Some("unsupported_parameter"), ..RequestError::invalid(param, message) }
    }

    /// Error of a known value that cannot be honoured; `expected` lists those that can.
    pub fn unsupported_value(param: impl Into<String>, found: &str, expected: &str) -> RequestError {
        let param = param.into();
        let message = format!("`{param}` is {found}, which is not supported; expected {expected}");
        RequestError { code: Some("unsupported_value"), ..RequestError::invalid(param, message) }
    }

    /// Error of a grammar whose start no token of the vocabulary can spell.
    pub fn unspellable() -> RequestError {
        let message = "no token of this model's vocabulary goes on as the grammar, and `logit_bias` if there is one, ask; \
                       expected a grammar of texts that the model can write";
        RequestError::new(ErrorKind::Invalid, message)
    }

    /// Error of an answer that cannot continue under its grammar.
    pub fn ungrammatical(words: &str) -> RequestError {
        RequestError::new(ErrorKind::Invalid, words)
    }

    /// Error of a text with more bytes than all tokens of a context.
    pub fn text_too_long(param: &str, n_bytes: usize, n_ctx: usize, most: usize) -> RequestError {
        let message = format!(
            "`{param}` has {n_bytes} bytes of text, expected at most {most}: no {n_ctx} tokens, which is what this model's context \
             holds, have more; shorten it, or load the model with a longer context (--ctx)"
        );
        // A lower bound of the text's tokens.
        let n_tokens = n_ctx.saturating_mul(n_bytes).div_ceil(most.max(1));
        RequestError {
            param: Some(param.to_owned()),
            code: Some("context_length_exceeded"),
            too_long: Some((n_tokens, n_ctx)),
            ..RequestError::new(ErrorKind::ContextLength, message)
        }
    }

    /// Error of a failure of the model, the device or this program.
    pub fn internal(message: impl Into<String>) -> RequestError {
        RequestError::new(ErrorKind::Internal, message)
    }

    /// Error of an unknown model.
    pub fn no_model(name: &str, known: &[String]) -> RequestError {
        let message =
            format!("the model `{name}` does not exist here; expected one of: {}", known.join(", "));
        RequestError {
            param: Some("model".into()),
            code: Some("model_not_found"),
            ..RequestError::new(ErrorKind::NotFound, message)
        }
    }

    /// Error of a prompt and answer that do not fit in the context.
    pub fn context_length(n_tokens: usize, n_ctx: usize) -> RequestError {
        let message = format!(
            "the prompt has {n_tokens} tokens and this model's context holds {n_ctx}, expected at most {} so that one \
             can be answered; shorten the prompt, or load the model with a longer context (--ctx)",
            n_ctx.saturating_sub(1)
        );
        RequestError {
            param: Some("messages".into()),
            code: Some("context_length_exceeded"),
            too_long: Some((n_tokens, n_ctx)),
            ..RequestError::new(ErrorKind::ContextLength, message)
        }
    }

    /// Error of a full queue.
    pub fn overloaded(n_waiting: usize, max_waiting: usize) -> RequestError {
        let message =
            format!("{n_waiting} requests wait for a slot, and at most {max_waiting} may; try again later");
        RequestError {
            retry_after: Some(Duration::from_secs(1)),
            ..RequestError::new(ErrorKind::Overloaded, message)
        }
    }
}

impl From<engine::Error> for RequestError {
    fn from(error: engine::Error) -> RequestError {
        use engine::Error as E;
        // Clients do not see the paths of files.
        let words = without_folders(&error.to_string(), []);
        match &error {
            E::PromptTooLong { n_tokens, n_ctx } | E::TooManyTokens { n_tokens, n_ctx } => {
                RequestError::context_length(*n_tokens, *n_ctx)
            }
            E::QueueFull { .. } => RequestError {
                retry_after: Some(Duration::from_secs(1)),
                ..RequestError::new(ErrorKind::Overloaded, words)
            },
            E::Sampling(wrong) => RequestError::invalid(wrong.name, words),
            E::Option { name, .. } => RequestError::invalid(*name, words),
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
            | E::Text(_) => RequestError::new(ErrorKind::Invalid, words),
            E::DoesNotFit(_) => RequestError::new(ErrorKind::Unavailable, words),
            // Other errors are not the client's fault; the enum is non-exhaustive.
            _ => RequestError::internal(words),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_do_not_see_paths_of_files() {
        let error = RequestError::from(engine::Error::NoEmbeddings { file: "/home/a/b.gguf".into() });
        assert!(error.message.starts_with("b.gguf: "), "{}", error.message);
    }

    #[test]
    fn a_message_does_not_repeat_all_that_a_client_sent() {
        let error = RequestError::invalid(
            "é".repeat(5000),
            format!("found {}, expected a number", "é".repeat(1 << 20)),
        );
        assert!(error.message.len() < MAX_MESSAGE + 10 && error.param.unwrap().len() < MAX_MESSAGE + 10);
        assert!(error.message.starts_with("found é") && error.message.ends_with("é, expected a number"));
        assert_eq!(RequestError::internal("short").message, "short");
    }
}
