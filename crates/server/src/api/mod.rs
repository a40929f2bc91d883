//! One module an API, and what they share.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::effort::Effort;

pub mod anthropic;
pub mod body;
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

/// What a word of effort means; of one that means nothing the log has a warning, and the model decides.
fn named_effort(name: &str, word: &str) -> Option<Effort> {
    let found = Effort::named(word);
    if found.is_none() && !matches!(word, "" | "auto" | "default") {
        tracing::warn!("`{name}` {word:?} is ignored: it is no effort that is known");
    }
    found
}

/// Unix time in seconds.
fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
