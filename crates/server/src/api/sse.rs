//! Server-sent events, in a body that ends with its answer.

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::Stream;
use serde::Serialize;

use crate::error::openai_json;
use runner::RequestError;

/// Frame `data: …` of an event without a name.
pub fn data(value: &impl Serialize) -> Bytes {
    frame(None, value)
}

/// Frame `event: …` and `data: …`.
pub fn event(name: &str, value: &impl Serialize) -> Bytes {
    frame(Some(name), value)
}

fn frame(name: Option<&str>, value: &impl Serialize) -> Bytes {
    let mut out = Vec::with_capacity(256);
    if let Some(name) = name {
        out.extend_from_slice(b"event: ");
        out.extend_from_slice(name.as_bytes());
        out.push(b'\n');
    }
    out.extend_from_slice(b"data: ");
    // JSON text has no line breaks. Serialization of these types fails only for keys that are no
    // texts, which they lack.
    if serde_json::to_writer(&mut out, value).is_err() {
        out.extend_from_slice(b"{\"error\":{\"message\":\"an event could not be written\"}}");
    }
    out.extend_from_slice(b"\n\n");
    out.into()
}

/// Returns a response of these frames.
pub fn response(frames: impl Stream<Item = Bytes> + Send + 'static) -> Response {
    let frames = futures_util::StreamExt::map(frames, Ok::<_, std::convert::Infallible>);
    let mut response = Body::from_stream(frames).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Tells proxies not to buffer the stream.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// OpenAI's event for an answer that fails after its status has been sent.
pub fn error(error: &RequestError) -> Bytes {
    data(&serde_json::json!({ "error": openai_json(error) }))
}
