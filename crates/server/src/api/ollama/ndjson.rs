//! Streams of this API: one JSON object per line.

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt};
use serde_json::Value;

/// Returns a response of these lines.
pub(super) fn response(lines: impl Stream<Item = Value> + Send + 'static) -> Response {
    let lines = lines.map(|line| Ok::<_, std::convert::Infallible>(Bytes::from(format!("{line}\n"))));
    let mut response = Body::from_stream(lines).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Tells proxies not to buffer the stream.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}
