//! `/api/embed`, and `/api/embeddings` of older clients.

use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::nanoseconds;
use super::common::texts;
use crate::api::body::JsonBody;
use crate::api::keep_alive::keep_alive;
use crate::api::openai::embeddings::{normalise, shorten};
use crate::error::HttpResult;
use runner::Prompt;
use runner::Result;
use runner::{EmbedRequest, Embedded, Runner};

#[derive(Deserialize)]
pub(super) struct OllamaEmbedBody {
    #[serde(default)]
    model: String,
    input: Option<Value>,
    truncate: Option<bool>,
    dimensions: Option<usize>,
    keep_alive: Option<Value>,
}

pub(super) async fn create(
    State(runner): State<Runner>,
    JsonBody(body): JsonBody<OllamaEmbedBody>,
) -> HttpResult<Json<Value>> {
    let begun = Instant::now();
    let texts = texts("input", body.input.filter(|input| *input != json!("")))?;
    let truncate = body.truncate.unwrap_or(true);
    let (load_time, mut found) = embed(&runner, body.model, texts, truncate, body.keep_alive).await?;
    for vector in &mut found.vectors {
        unit(vector, body.dimensions)?;
    }
    Ok(Json(json!({
        "model": found.model, "embeddings": found.vectors,
        "total_duration": nanoseconds(begun.elapsed()), "load_duration": nanoseconds(load_time),
        "prompt_eval_count": found.n_tokens,
    })))
}

#[derive(Deserialize)]
pub(super) struct OneBody {
    #[serde(default)]
    model: String,
    #[serde(default)]
    prompt: String,
    keep_alive: Option<Value>,
}

pub(super) async fn create_one(
    State(runner): State<Runner>,
    JsonBody(body): JsonBody<OneBody>,
) -> HttpResult<Json<Value>> {
    let texts = if body.prompt.is_empty() { Vec::new() } else { vec![body.prompt] };
    let (_, found) = embed(&runner, body.model, texts, true, body.keep_alive).await?;
    Ok(Json(json!({ "embedding": found.vectors.into_iter().next().unwrap_or_default() })))
}

/// Returns the loading time and the vectors. A request without texts loads the model.
async fn embed(
    runner: &Runner,
    model: String,
    texts: Vec<String>,
    truncate: bool,
    alive: Option<Value>,
) -> Result<(Duration, Embedded)> {
    let keep_alive = alive.filter(|value| !value.is_null()).as_ref().map(keep_alive).transpose()?;
    let ready = runner.load(&model, keep_alive).await?;
    if texts.is_empty() {
        let none = Embedded { model: ready.id().to_owned(), vectors: Vec::new(), n_tokens: 0 };
        return Ok((ready.load_time(), none));
    }
    let inputs = texts.into_iter().map(|text| Prompt::Text { text, parse_special: true }).collect();
    let request = EmbedRequest { model: ready.id().to_owned(), inputs, truncate, keep_alive };
    Ok((ready.load_time(), runner.embed(request).await?))
}

/// Shortens a vector to `dimensions` if given, and normalises it to length 1.
fn unit(vector: &mut Vec<f32>, dimensions: Option<usize>) -> Result<()> {
    if let Some(dimensions) = dimensions {
        shorten(vector, dimensions)?;
    }
    normalise(vector);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_have_length_one() {
        let mut vector = vec![3.0, 4.0, 12.0];
        unit(&mut vector, None).unwrap();
        assert!((vector[2] - 12.0 / 13.0).abs() < 1e-6);
        unit(&mut vector, Some(2)).unwrap();
        assert!(vector.len() == 2 && (vector[0] - 0.6).abs() < 1e-6 && (vector[1] - 0.8).abs() < 1e-6);
        assert!(unit(&mut vector, Some(3)).is_err() && unit(&mut vector, Some(0)).is_err());
    }
}
