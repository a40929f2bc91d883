//! A request's body must have come by a certain time, so that nobody holds a connection open by sending a byte now and then.

use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use futures_util::StreamExt;
use tokio::time::{Instant, timeout_at};

/// From the end of a request's headers to the end of its body.
const TIME: Duration = Duration::from_secs(120);

/// The layer that sets the limit.
pub(crate) async fn layer(request: Request, next: Next) -> Response {
    next.run(request.map(|body| limit(body, TIME))).await
}

/// The body fails with [`std::io::ErrorKind::TimedOut`] if it has not ended after `time`.
fn limit(body: Body, time: Duration) -> Body {
    // Most requests of operators have none: they need no timer.
    if body.is_end_stream() {
        return body;
    }
    let end = Instant::now() + time;
    Body::from_stream(futures_util::stream::unfold(Some(body.into_data_stream()), move |chunks| async move {
        let mut chunks = chunks?;
        match timeout_at(end, chunks.next()).await {
            Ok(Some(Ok(chunk))) => Some((Ok(chunk), Some(chunks))),
            Ok(Some(Err(error))) => Some((Err(axum::BoxError::from(error)), None)),
            Ok(None) => None,
            Err(_) => {
                let message = format!("the body had not ended after {} s", time.as_secs_f64());
                Some((Err(std::io::Error::new(std::io::ErrorKind::TimedOut, message).into()), None))
            }
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_body_that_does_not_end_fails_and_others_pass() {
        let pieces = [Ok::<_, std::io::Error>("ab"), Ok("c")];
        let whole = Body::from_stream(futures_util::stream::iter(pieces));
        let bytes = axum::body::to_bytes(limit(whole, TIME), 10).await.unwrap();
        assert_eq!(&bytes[..], b"abc");
        let endless = Body::from_stream(futures_util::stream::pending::<Result<&str, std::io::Error>>());
        let error = axum::body::to_bytes(limit(endless, Duration::from_millis(10)), 10).await.unwrap_err();
        assert!(error.to_string().contains("had not ended"), "{error}");
    }
}
