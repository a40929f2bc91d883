//! Warnings about parts of a request that are not honoured, in the log and in a header of the
//! answer.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use axum::http::{HeaderValue, header::HeaderName};
use axum::response::Response;

/// The header, repeated for each warning.
pub(crate) const HEADER: HeaderName = HeaderName::from_static("x-ingle-warning");
/// The most warnings of one answer.
const MAX_WARNINGS: usize = 16;
/// The most bytes of one warning.
const MAX_LENGTH: usize = 200;

/// Warnings of one request, shared by its tasks.
#[derive(Clone, Default)]
pub(crate) struct Warnings(Arc<Mutex<Vec<String>>>);

tokio::task_local! {
    static CURRENT: Warnings;
}

impl Warnings {
    /// The warnings of this task's request; outside of a request, a new list that is never read.
    pub(crate) fn current() -> Warnings {
        CURRENT.try_with(Warnings::clone).unwrap_or_default()
    }

    /// Runs a future in another task, with these warnings.
    pub(crate) async fn scope<T>(self, work: impl Future<Output = T>) -> T {
        CURRENT.scope(self, work).await
    }

    /// Runs work on another thread, with these warnings.
    pub(crate) fn within<T>(self, work: impl FnOnce() -> T) -> T {
        CURRENT.sync_scope(self, work)
    }
}

/// Adds a warning to this task's request.
pub(crate) fn warn(what: &str) {
    let warnings = Warnings::current();
    let mut list = warnings.0.lock().unwrap_or_else(PoisonError::into_inner);
    if list.len() < MAX_WARNINGS && !list.iter().any(|other| other == what) {
        tracing::warn!("{what}");
        list.push(what.to_owned());
    }
}

/// Warns about keys of schemas that a grammar does not enforce.
pub(crate) fn unenforced(keys: &[String]) {
    keys.iter().for_each(|key| warn(&format!("not enforced: {key}")));
}

/// Adds its warnings to the answer of a request.
pub(crate) async fn answer(make: impl Future<Output = Response>) -> Response {
    let warnings = Warnings::default();
    let mut response = warnings.clone().scope(make).await;
    for what in warnings.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
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
