//! `/v1/rerank`: relevance of documents to a query, in the shape of Jina's and Cohere's APIs.

use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};

use super::body::JsonBody;
use super::keep_alive::keep_alive;
use crate::error::HttpResult;
use runner::Prompt;
use runner::RequestError;
use runner::{EmbedRequest, Runner};

/// The path.
pub fn router() -> Router<Runner> {
    Router::new().route("/v1/rerank", post(create))
}

#[derive(Deserialize)]
struct RerankBody {
    #[serde(default)]
    model: String,
    query: String,
    documents: Vec<Document>,
    top_n: Option<usize>,
    #[serde(default)]
    return_documents: bool,
    keep_alive: Option<Value>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Document {
    Text(String),
    Object { text: String },
}

impl Document {
    fn text(&self) -> &str {
        let (Document::Text(text) | Document::Object { text }) = self;
        text
    }
}

/// Maximum number of documents of one request.
const MAX_DOCUMENTS: usize = 2048;

async fn create(
    State(runner): State<Runner>,
    JsonBody(body): JsonBody<RerankBody>,
) -> HttpResult<Json<Value>> {
    let n = body.documents.len();
    if !(1..=MAX_DOCUMENTS).contains(&n) {
        let message = format!("`documents` has {n} entries, expected 1 to {MAX_DOCUMENTS}");
        return Err(RequestError::invalid("documents", message).into());
    }
    let query: std::sync::Arc<str> = body.query.into();
    let pair =
        |document: &Document| Prompt::Pair { query: query.clone(), document: document.text().to_owned() };
    let request = EmbedRequest {
        model: body.model,
        inputs: body.documents.iter().map(pair).collect(),
        truncate: true,
        keep_alive: body.keep_alive.as_ref().map(keep_alive).transpose()?,
    };
    let found = runner.embed(request).await?;
    let score =
        |index: &usize| found.vectors.get(*index).and_then(|v| v.first().copied()).unwrap_or(f32::MIN);
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|a, b| score(b).total_cmp(&score(a)));
    order.truncate(body.top_n.unwrap_or(n));
    let result = |index: usize| {
        let mut result = json!({ "index": index, "relevance_score": score(&index) });
        if body.return_documents {
            result["document"] = json!({ "text": body.documents[index].text() });
        }
        result
    };
    let results: Vec<Value> = order.into_iter().map(result).collect();
    Ok(Json(json!({
        "object": "list", "model": found.model, "results": results,
        "usage": { "prompt_tokens": found.n_tokens, "total_tokens": found.n_tokens },
    })))
}
