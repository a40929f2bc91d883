//! Threads for the handlers of requests that are large or may have large answers. Parsing,
//! converting and answering those takes long, so the HTTP threads stay free for all other requests.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::runtime::Runtime;
use tokio::task::AbortHandle;

use crate::error::ApiError;
use runner::RequestError;
use runner::preparing::{on_behalf_of, who};
use runner::tenant::{of_tenant, tenant};
use runner::warnings::Warnings;

/// Maximum number of bytes of a body that the HTTP threads handle.
pub(crate) const SMALL: usize = 64 << 10;

/// Threads that run handlers. Without them, handlers run on the calling thread.
pub(crate) struct Handlers(Option<Runtime>);

impl Handlers {
    pub(crate) fn new() -> Handlers {
        let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get).max(2);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("requests")
            .enable_all()
            .build();
        if let Err(error) = &runtime {
            tracing::warn!("no threads for large requests, so HTTP threads handle them: {error}");
        }
        Handlers(runtime.ok())
    }
}

impl Drop for Handlers {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // This may be dropped on a thread of another runtime, which must not block.
            runtime.shutdown_background();
        }
    }
}

/// Aborts the handler of a client that has disconnected.
struct Abort(AbortHandle);

impl Drop for Abort {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Returns true if the body is large, or if its length is unknown.
fn is_large(headers: &HeaderMap) -> bool {
    let length =
        headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    match length {
        Some(length) => length > SMALL,
        None => headers.contains_key(header::TRANSFER_ENCODING),
    }
}

/// Layer that moves handlers of large requests to other threads.
pub(crate) async fn layer(State(handlers): State<Arc<Handlers>>, request: Request, next: Next) -> Response {
    // A small request may have a large answer.
    let moves = is_large(request.headers()) || request.method() == Method::POST;
    let Some(runtime) = handlers.0.as_ref().filter(|_| moves) else { return next.run(request).await };
    // Task-local facts about the request move with it.
    let answer = Warnings::current().scope(next.run(request));
    let task = runtime.spawn(of_tenant(tenant(), on_behalf_of(who(), answer)));
    let _abort = Abort(task.abort_handle());
    match task.await {
        Ok(response) => response,
        Err(error) => {
            ApiError(RequestError::internal(format!("answering the request failed: {error}"))).into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_of_unknown_length_are_large() {
        let of = |name, value: &str| is_large(&HeaderMap::from_iter([(name, value.parse().unwrap())]));
        assert!(!of(header::CONTENT_LENGTH, "65536") && of(header::CONTENT_LENGTH, "65537"));
        assert!(of(header::TRANSFER_ENCODING, "chunked") && !of(header::ACCEPT, "x"));
    }
}
