//! Anthropic's Messages API.

mod arguments;
mod blocks;
mod error;
mod events;
mod messages;
mod request;

use axum::Router;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use axum::routing::post;

pub use error::error_json;
pub use events::{Event, Events, stop_reason};

use runner::Runner;

/// The paths of this API.
pub fn router() -> Router<Runner> {
    Router::new()
        .route("/v1/messages", post(messages::create))
        .route("/v1/messages/count_tokens", post(messages::count_tokens))
}

/// Converts errors to this API's shape, also those raised outside its handlers: a missing key, a
/// wrong method. This layer goes around the one that names requests.
pub(crate) async fn errors(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let is_ours = path == "/v1/messages" || path.starts_with("/v1/messages/");
    let response = next.run(request).await;
    if !is_ours {
        return response;
    }
    let request_id = response.headers().get("x-request-id").and_then(|id| id.to_str().ok());
    let request_id = request_id.unwrap_or_default().to_owned();
    crate::error::reshape(response, |error| error_json(error, &request_id))
}
