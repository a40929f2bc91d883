//! Anthropic's Messages API.

mod error;
mod events;
mod messages;
mod request;

use axum::Router;
use axum::extract::{Extension, Request};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::post;

pub use error::error_json;
pub use events::{Event, Events, stop_reason};

use crate::app::App;
use crate::request::Caller;

/// The paths of this API.
pub fn router() -> Router<App> {
    Router::new()
        .route("/v1/messages", post(messages::create))
        .route("/v1/messages/count_tokens", post(messages::count_tokens))
        .layer(from_fn(errors))
}

/// Errors in this API's shape.
async fn errors(Extension(caller): Extension<Caller>, request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    crate::reshape(response, |error| error_json(error, &caller.request_id))
}
