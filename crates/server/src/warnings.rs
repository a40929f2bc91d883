//! Warnings about parts of a request that are not honoured, in a header of the answer.

use std::future::Future;

use axum::http::{HeaderValue, header::HeaderName};
use axum::response::Response;
use runner::warnings::Warnings;

/// The header, repeated for each warning.
pub(crate) const HEADER: HeaderName = HeaderName::from_static("x-ingle-warning");

/// The most bytes of one warning.
const MAX_LENGTH: usize = 200;

/// Adds its warnings to the answer of a request.
pub(crate) async fn answer(make: impl Future<Output = Response>) -> Response {
    let warnings = Warnings::default();
    let mut response = warnings.clone().scope(make).await;
    for what in warnings.list() {
        // Header values are visible ASCII.
        let visible = what.chars().map(|c| if c == ' ' || c.is_ascii_graphic() { c } else { '?' });
        let text: String = visible.take(MAX_LENGTH).collect();
        if let Ok(value) = HeaderValue::from_str(&text) {
            response.headers_mut().append(HEADER, value);
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse;
    use runner::warnings::warn;

    use super::*;

    #[tokio::test]
    async fn warnings_of_other_threads_are_in_the_answer_once() {
        let work = async {
            warn("a");
            let warnings = Warnings::current();
            let thread = tokio::task::spawn_blocking(move || {
                warnings.within(|| {
                    warn("a");
                    warn("é at #/b");
                });
            });
            thread.await.unwrap();
            "text".into_response()
        };
        let response = answer(work).await;
        let found: Vec<_> =
            response.headers().get_all(HEADER).iter().map(|value| value.to_str().unwrap()).collect();
        assert_eq!(found, ["a", "? at #/b"]);
        // No request receives this warning.
        warn("b");
    }
}
