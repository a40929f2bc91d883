//! Endpoints for operators, routers and clients of llama-server: health, metrics, slots, tokens.
//!
//! Health and metrics only read counters and never wait for an engine.

use std::fmt::Write;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use engine::MemoryStatus;
use serde::Deserialize;
use serde_json::{Value, json};

use super::body::{JsonBody, text_or_null};
use crate::error::HttpResult;
use runner::Caller;
use runner::ModelStatus;
use runner::RequestError;
use runner::Runner;
use runner::{Gauge, Histogram, Stats};

/// All paths of these endpoints.
pub fn router() -> axum::Router<Runner> {
    axum::Router::new()
        .route("/health", get(health))
        .route("/v1/health", get(health))
        .route("/health_generate", get(health))
        .route("/metrics", get(metrics))
        .route("/slots", get(slots))
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/tokenizer_info", get(tokenizer_info))
}

/// Number of successive failed steps of a model after which a router should use another server: the
/// device is broken or lost.
const FAILING: u64 = 3;

async fn health(State(runner): State<Runner>) -> Response {
    let failing = |(id, stats): (String, Arc<Stats>)| match (stats.failing.get(), stats.pulse.stuck()) {
        (n @ FAILING.., _) => Some(format!("the last {n} steps of {id} failed")),
        (_, Some(time)) => Some(format!("{id} has been in one step for {} s", time.as_secs())),
        (_, None) => None,
    };
    let message = match stats(&runner).into_iter().find_map(failing) {
        Some(message) => message,
        None if runner.is_ready() => return Json(json!({ "status": "ok" })).into_response(),
        None => "Loading model".to_owned(),
    };
    let error = json!({ "code": 503, "message": message, "type": "unavailable_error" });
    (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "error": error }))).into_response()
}

async fn metrics(State(runner): State<Runner>) -> Response {
    let stats = stats(&runner);
    let content_type = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, content_type)], exposition(&stats) + &of_memory(&runner.memory()))
        .into_response()
}

/// Metrics of the loaded models.
fn stats(runner: &Runner) -> Vec<(String, Arc<Stats>)> {
    let stats = |status: ModelStatus| Some((status.id, status.loaded?.stats().clone()));
    runner.models().into_iter().filter_map(stats).collect()
}

/// Metrics in Prometheus' text format:
/// <https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format>.
fn exposition(models: &[(String, Arc<Stats>)]) -> String {
    type Number = fn(&Stats) -> &Gauge;
    type Times = fn(&Stats) -> &Histogram;
    let numbers: [(&str, &str, &str, Number); 9] = [
        ("ingle_requests_running", "gauge", "Running sequences, or requests being computed.", |s| &s.running),
        ("ingle_requests_waiting", "gauge", "Waiting sequences or requests.", |s| &s.waiting),
        ("ingle_requests_parked", "gauge", "Sequences that wait for memory to continue.", |s| &s.parked),
        ("ingle_steps_failing", "gauge", "Number of successive failed steps.", |s| &s.failing),
        ("ingle_kv_bytes_used", "gauge", "Bytes of KV pages in use.", |s| &s.kv_bytes_used),
        ("ingle_kv_bytes_budget", "gauge", "Most bytes of KV pages.", |s| &s.kv_bytes_budget),
        ("ingle_tokens_computed_total", "counter", "Prompt tokens computed.", |s| &s.tokens_computed),
        ("ingle_tokens_cached_total", "counter", "Prompt tokens found in the prefix cache.", |s| {
            &s.tokens_cached
        }),
        ("ingle_tokens_generated_total", "counter", "Tokens chosen.", |s| &s.tokens_generated),
    ];
    let times: [(&str, &str, Times); 3] = [
        ("ingle_first_token_seconds", "Seconds from a request to its first token.", |s| &s.first_token),
        ("ingle_token_seconds", "Seconds between two tokens of an answer.", |s| &s.token),
        ("ingle_request_seconds", "Seconds from a request to its end.", |s| &s.request),
    ];
    let label = |id: &str| id.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let mut out = String::new();
    // Writing to a String does not fail.
    let mut line = |text: std::fmt::Arguments<'_>| {
        let _ = writeln!(out, "{text}");
    };
    for (name, kind, help, number) in numbers {
        line(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}"));
        for (id, stats) in models {
            line(format_args!("{name}{{model=\"{}\"}} {}", label(id), number(stats).get()));
        }
    }
    for (name, help, histogram) in times {
        line(format_args!("# HELP {name} {help}\n# TYPE {name} histogram"));
        for (id, stats) in models {
            let (id, histogram, mut sum) = (label(id), histogram(stats), 0);
            for (bound, count) in histogram.buckets() {
                sum += count;
                let bound = if bound.is_finite() { bound.to_string() } else { "+Inf".to_owned() };
                line(format_args!("{name}_bucket{{model=\"{id}\",le=\"{bound}\"}} {sum}"));
            }
            line(format_args!("{name}_sum{{model=\"{id}\"}} {}", histogram.sum()));
            line(format_args!("{name}_count{{model=\"{id}\"}} {sum}"));
        }
    }
    out
}

/// Decisions of the memory governor and their reasons, in the format of [`exposition`]. `device` is
/// empty for the system's memory.
fn of_memory(memories: &[MemoryStatus]) -> String {
    type Bytes = fn(&MemoryStatus) -> u64;
    let numbers: [(&str, &str, Bytes); 9] = [
        ("ingle_memory_budget_bytes", "Most bytes of the pages and caches of all models.", |m| m.budget),
        ("ingle_memory_held_bytes", "Bytes of the pages and caches of all models.", |m| m.held),
        ("ingle_memory_fixed_bytes", "Weights and activations of all models, as planned.", |m| m.fixed),
        ("ingle_memory_free_bytes", "Free memory at the last reading.", |m| m.reading.free),
        ("ingle_memory_reserve_bytes", "Memory left for other programs.", |m| m.reserve),
        ("ingle_memory_growth_bytes_per_second", "Memory of running sequences.", |m| m.growth),
        ("ingle_memory_booked_bytes", "Memory committed to the oldest sequences and not used yet.", |m| {
            m.booked
        }),
        ("ingle_memory_floor_bytes", "Memory in use by the oldest sequences.", |m| m.floor),
        ("ingle_memory_resident_bytes", "Memory of the process that no file backs.", |m| {
            m.reading.resident.unwrap_or(0)
        }),
    ];
    let mut out = String::new();
    // Writing to a String does not fail.
    let mut line = |text: std::fmt::Arguments<'_>| {
        let _ = writeln!(out, "{text}");
    };
    for (name, help, number) in numbers {
        line(format_args!("# HELP {name} {help}\n# TYPE {name} gauge"));
        for memory in memories {
            line(format_args!("{name}{{device=\"{}\"}} {}", memory.device, number(memory)));
        }
    }
    line(format_args!(
        "# HELP ingle_memory_reason Reason for the current budget.\n# TYPE ingle_memory_reason gauge"
    ));
    for memory in memories {
        let (device, reason) = (memory.device, memory.reason.name());
        line(format_args!("ingle_memory_reason{{device=\"{device}\",reason=\"{reason}\"}} 1"));
    }
    out
}

/// A slot of another key is shown as busy and without details.
async fn slots(State(runner): State<Runner>, Extension(caller): Extension<Caller>) -> Json<Value> {
    let mut slots = Vec::new();
    for model in runner.activity(&caller) {
        for id in 0..model.n_slots.max(model.requests.len()) {
            slots.push(match model.requests.get(id) {
                Some(None) => json!({ "id": id, "model": model.id, "is_processing": true }),
                Some(Some(request)) => json!({
                    "id": id, "model": model.id, "is_processing": true, "request_id": request.id,
                    "n_prompt_tokens": request.n_prompt, "n_decoded": request.n_decoded,
                    "seconds": request.age.as_secs_f64(),
                }),
                None => json!({ "id": id, "model": model.id, "is_processing": false }),
            });
        }
    }
    Json(Value::Array(slots))
}

/// Keys of llama-server (`content`, `add_special`) or vLLM (`prompt`, `add_special_tokens`).
#[derive(Deserialize)]
struct Tokenize {
    #[serde(default, deserialize_with = "text_or_null")]
    model: String,
    content: Option<String>,
    prompt: Option<String>,
    add_special: Option<bool>,
    add_special_tokens: Option<bool>,
    #[serde(default = "yes")]
    parse_special: bool,
    #[serde(default)]
    with_pieces: bool,
}

fn yes() -> bool {
    true
}

async fn tokenize(
    State(runner): State<Runner>,
    JsonBody(body): JsonBody<Tokenize>,
) -> HttpResult<Json<Value>> {
    let (text, adds_by_default) = match (body.content, body.prompt) {
        (Some(content), _) => (content, false),
        (None, Some(prompt)) => (prompt, true),
        (None, None) => {
            return Err(RequestError::invalid("content", "`content` is missing, expected a text").into());
        }
    };
    let add_special = body.add_special.or(body.add_special_tokens).unwrap_or(adds_by_default);
    let tokens = runner.tokenize(&body.model, text, add_special, body.parse_special).await?;
    let piece = |(id, bytes): &(u32, Vec<u8>)| match std::str::from_utf8(bytes) {
        _ if !body.with_pieces => json!(id),
        Ok(text) => json!({ "id": id, "piece": text }),
        // A token that is a part of a character.
        Err(_) => json!({ "id": id, "piece": bytes }),
    };
    Ok(Json(json!({ "tokens": tokens.iter().map(piece).collect::<Vec<_>>(), "count": tokens.len() })))
}

#[derive(Deserialize)]
struct Detokenize {
    #[serde(default, deserialize_with = "text_or_null")]
    model: String,
    tokens: Vec<u32>,
}

/// llama-server calls the text `content`, vLLM `prompt`.
async fn detokenize(
    State(runner): State<Runner>,
    JsonBody(body): JsonBody<Detokenize>,
) -> HttpResult<Json<Value>> {
    let tokens = runner.text_of(&body.model, &body.tokens).await?;
    let bytes: Vec<u8> = tokens.into_iter().flat_map(|(_, bytes)| bytes).collect();
    let text = String::from_utf8_lossy(&bytes);
    Ok(Json(json!({ "content": text, "prompt": text })))
}

#[derive(Deserialize)]
struct SlotsQuery {
    #[serde(default, deserialize_with = "text_or_null")]
    model: String,
}

/// vLLM's facts about the tokenizer, for evaluations that use `/tokenize`.
async fn tokenizer_info(
    State(runner): State<Runner>,
    Query(which): Query<SlotsQuery>,
) -> HttpResult<Json<Value>> {
    let props = runner.text_props(&which.model).await?;
    let mark = |text: String| (!text.is_empty()).then_some(text);
    let eos = mark(props.eos);
    Ok(Json(json!({
        "tokenizer_class": "ingle", "model_max_length": props.n_ctx, "chat_template": props.chat_template,
        "bos_token": mark(props.bos), "eos_token": eos, "pad_token": eos,
    })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn metrics_are_cumulative_and_escaped() {
        let stats = Stats::default();
        stats.running.set(3);
        for millis in [1, 4, 4, 1_000_000] {
            stats.token.observe(Duration::from_millis(millis));
        }
        let text = exposition(&[("a\"b".to_owned(), stats.into())]);
        for line in [
            "# TYPE ingle_requests_running gauge",
            "ingle_requests_running{model=\"a\\\"b\"} 3",
            "ingle_token_seconds_bucket{model=\"a\\\"b\",le=\"0.001\"} 1",
            "ingle_token_seconds_bucket{model=\"a\\\"b\",le=\"0.005\"} 3",
            "ingle_token_seconds_bucket{model=\"a\\\"b\",le=\"+Inf\"} 4",
            "ingle_token_seconds_count{model=\"a\\\"b\"} 4",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }
}
