//! Keys and JSON that several endpoints of Ollama's API share.

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use runner::RequestError;

/// Reads `stop` or `input`: a text or a list of texts.
pub(super) fn texts(name: &str, value: Option<Value>) -> Result<Vec<String>, RequestError> {
    let wrong = |found: &Value| {
        let message = format!("`{name}` has {found}, expected a text or a list of texts");
        RequestError::invalid(name, message)
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

/// Body of an error response, and the last line of an answer that failed.
pub(super) fn error_json(error: &RequestError) -> Value {
    match error.code {
        // Clients search for these words.
        Some("model_not_found") => json!({ "error": format!("model not found: {}", error.message) }),
        _ => json!({ "error": error.message }),
    }
}

/// A body that names a model. Older clients call the key `name`.
#[derive(Debug, Deserialize)]
pub(super) struct Named {
    #[serde(default)]
    pub(super) model: String,
    #[serde(default)]
    pub(super) name: String,
    pub(super) stream: Option<bool>,
}

impl Named {
    pub(super) fn model(self) -> Result<String, RequestError> {
        match [self.model, self.name].into_iter().find(|name| !name.is_empty()) {
            Some(name) => Ok(name),
            None => Err(RequestError::invalid("model", "`model` is missing, expected the name of a model")),
        }
    }
}

/// The current time in RFC 3339.
pub(super) fn now() -> String {
    Timestamp::now().to_string()
}
