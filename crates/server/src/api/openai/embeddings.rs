//! `/v1/embeddings`

use axum::Json;
use axum::extract::State;
use base64::Engine;
use serde::Deserialize;
use serde_json::{Value, json};

use super::common::Prompts;
use crate::api::body::{JsonBody, text_or_null};
use crate::api::keep_alive::keep_alive;
use crate::error::HttpResult;
use runner::Prompt;
use runner::{EmbedRequest, Runner};
use runner::{RequestError, Result};

#[derive(Deserialize)]
pub(in crate::api) struct EmbeddingBody {
    #[serde(default, deserialize_with = "text_or_null")]
    model: String,
    input: Prompts,
    encoding_format: Option<Encoding>,
    dimensions: Option<usize>,
    truncate: Option<bool>,
    keep_alive: Option<Value>,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Encoding {
    #[default]
    Float,
    Base64,
}

/// Maximum number of texts of one request.
const MAX_INPUTS: usize = 2048;

pub(in crate::api) async fn create(
    State(runner): State<Runner>,
    JsonBody(body): JsonBody<EmbeddingBody>,
) -> HttpResult<Json<Value>> {
    let inputs = inputs("input", body.input)?;
    let request = EmbedRequest {
        model: body.model,
        inputs,
        truncate: body.truncate.unwrap_or(false),
        keep_alive: body.keep_alive.as_ref().map(keep_alive).transpose()?,
    };
    let found = runner.embed(request).await.map_err(|error| error.of_key("input"))?;
    let encoding = body.encoding_format.unwrap_or_default();
    let mut data = Vec::with_capacity(found.vectors.len());
    for (index, mut vector) in found.vectors.into_iter().enumerate() {
        if let Some(dimensions) = body.dimensions {
            shorten(&mut vector, dimensions)?;
        }
        let embedding = match encoding {
            Encoding::Float => json!(vector),
            Encoding::Base64 => {
                let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
                json!(base64::engine::general_purpose::STANDARD.encode(bytes))
            }
        };
        data.push(json!({ "object": "embedding", "index": index, "embedding": embedding }));
    }
    Ok(Json(json!({
        "object": "list", "data": data, "model": found.model,
        "usage": { "prompt_tokens": found.n_tokens, "total_tokens": found.n_tokens },
    })))
}

/// The texts of a request, under its key `name`.
pub(in crate::api) fn inputs(name: &str, given: Prompts) -> Result<Vec<Prompt>> {
    let inputs = given.list();
    match (1..=MAX_INPUTS).contains(&inputs.len()) {
        true => Ok(inputs),
        false => {
            let message = format!("`{name}` has {} entries, expected 1 to {MAX_INPUTS}", inputs.len());
            Err(RequestError::invalid(name, message))
        }
    }
}

/// Keeps the first columns and normalises them to length 1, for models trained for fewer dimensions
/// (Matryoshka).
pub(in crate::api) fn shorten(vector: &mut Vec<f32>, dimensions: usize) -> Result<()> {
    if !(1..=vector.len()).contains(&dimensions) {
        let message = format!("`dimensions` is {dimensions}, expected a number from 1 to {}", vector.len());
        return Err(RequestError::invalid("dimensions", message));
    }
    if dimensions < vector.len() {
        vector.truncate(dimensions);
        normalise(vector);
    }
    Ok(())
}

/// Normalises a vector to length 1.
pub(in crate::api) fn normalise(vector: &mut [f32]) {
    let norm = vector.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    if norm > 0.0 {
        vector.iter_mut().for_each(|x| *x = (f64::from(*x) / norm) as f32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortened_vectors_have_length_one() {
        let mut vector = vec![3.0, 4.0, 12.0];
        shorten(&mut vector, 2).unwrap();
        assert_eq!(vector, [0.6, 0.8]);
        assert!(shorten(&mut vector, 3).is_err() && shorten(&mut vector, 0).is_err());
    }
}
