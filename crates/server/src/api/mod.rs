//! The APIs, one module each, and their shared helpers.

use std::time::{SystemTime, UNIX_EPOCH};

use jiff::Timestamp;

use runner::Effort;

pub mod anthropic;
pub mod body;
pub mod keep_alive;
pub mod llama;
pub mod ollama;
pub mod openai;
pub mod openapi;
pub mod operations;
pub(crate) mod paths;
pub mod rerank;
pub mod routers;
pub mod sampling;
pub mod sse;
mod timing;

/// The effort that a word names. An unknown word is logged, and the model's default holds.
fn named_effort(name: &str, word: &str) -> Option<Effort> {
    let found = Effort::named(word);
    if found.is_none() && !matches!(word, "" | "auto" | "default") {
        tracing::warn!("`{name}` {word:?} is ignored: it is not a known effort");
    }
    found
}

/// Unix time in seconds.
fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// A time in RFC 3339; the start of Unix time for a time that RFC 3339 cannot express.
fn time(at: SystemTime) -> String {
    Timestamp::try_from(at).unwrap_or(Timestamp::UNIX_EPOCH).to_string()
}
