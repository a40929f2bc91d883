//! One module an API, and what they share.

use std::time::{SystemTime, UNIX_EPOCH};

pub mod anthropic;
pub mod body;
pub mod llama;
pub mod ollama;
pub mod openai;
pub mod openapi;
pub mod operations;
pub mod rerank;
pub mod routers;
pub mod sampling;
pub mod sse;
mod timing;

/// Unix time in seconds.
fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
