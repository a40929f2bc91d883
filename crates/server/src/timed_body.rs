//! Limits of a request before its body is read: length of headers, length and coding of the body,
//! and time. The time limit stops clients from holding a connection open by sending single bytes.
//! The memory of all bodies together is limited too.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use tokio::time::{Instant, timeout_at};

use crate::error::ApiError;
use crate::limits::MAX_BODY;
use runner::preparing::who;
use runner::{ErrorKind, RequestError, Result};

/// Longest time from the end of a request's headers to the end of its body.
const TIME: Duration = Duration::from_secs(120);

/// Maximum number of bytes of a request's first line and headers.
const MAX_HEADER_BYTES: usize = 64 << 10;

/// Maximum number of bytes of bodies held at once, over all requests.
const MAX_HELD: usize = 1 << 30;

/// Maximum number of bytes of bodies held for one key, or for one address on a server without keys.
const MAX_HELD_EACH: usize = MAX_HELD / 4;

/// Bytes of received bodies by client, until their requests are answered.
#[derive(Clone, Default)]
pub(crate) struct Bodies(Arc<Mutex<HashMap<u64, usize>>>);

/// The bytes of one request's body.
struct HeldBytes {
    bodies: Bodies,
    who: u64,
    bytes: AtomicUsize,
    is_refused: AtomicBool,
}

impl HeldBytes {
    /// Reserves `n` more bytes. Returns false if there is no room.
    fn grow(&self, n: usize) -> bool {
        let mut all = self.bodies.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (total, own) = (all.values().sum::<usize>() + n, all.entry(self.who).or_default());
        if total > MAX_HELD || *own + n > MAX_HELD_EACH {
            self.is_refused.store(true, Ordering::Relaxed);
            return false;
        }
        *own += n;
        self.bytes.fetch_add(n, Ordering::Relaxed);
        true
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        let mut all = self.bodies.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = all.get_mut(&self.who) {
            *own = own.saturating_sub(self.bytes.load(Ordering::Relaxed));
        }
        all.retain(|_, bytes| *bytes > 0);
    }
}

/// The layer that sets the limits.
pub(crate) async fn layer(State(bodies): State<Bodies>, request: Request, next: Next) -> Response {
    let checked = check_length(request.method(), request.uri(), request.headers());
    if let Err(error) = checked.and_then(|()| check(request.headers())) {
        return ApiError(error).into_response();
    }
    let (bytes, is_refused) = (AtomicUsize::new(0), AtomicBool::new(false));
    let held = Arc::new(HeldBytes { bodies, who: who(), bytes, is_refused });
    let response = next.run(request.map(|body| limit(body, TIME, held.clone()))).await;
    match held.is_refused.load(Ordering::Relaxed) {
        false => response,
        true => {
            let message = "request bodies have used up their memory; try again later";
            let retry_after = Some(Duration::from_secs(1));
            let error = RequestError { retry_after, ..RequestError::new(ErrorKind::Overloaded, message) };
            ApiError(error).into_response()
        }
    }
}

/// Checks the length of the request line and headers.
///
/// # Errors
/// They have more than [`MAX_HEADER_BYTES`], without optional white space.
fn check_length(method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<()> {
    let path = uri.path_and_query().map_or(0, |path| path.as_str().len());
    let first = method.as_str().len() + path + "  HTTP/1.1\r\n".len();
    let bytes = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + ": \r\n".len());
    match first + bytes.sum::<usize>() + "\r\n".len() {
        0..=MAX_HEADER_BYTES => Ok(()),
        n => {
            let message =
                format!("the request's headers have {n} bytes, expected at most {MAX_HEADER_BYTES}");
            Err(RequestError::new(ErrorKind::HeadersTooLarge, message))
        }
    }
}

/// Checks the headers that describe the body, before it is sent. The length is refused here only if
/// the client waits for `100 Continue`. Others keep sending and would find a closed connection
/// instead of the answer.
fn check(headers: &HeaderMap) -> Result<()> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let length = text(header::CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok()).unwrap_or(0);
    let waits = text(header::EXPECT).is_some_and(|expect| expect.eq_ignore_ascii_case("100-continue"));
    if waits && length > MAX_BODY as u64 {
        let message = format!("the body has {length} bytes, expected at most {MAX_BODY}");
        return Err(RequestError::new(ErrorKind::TooLarge, message));
    }
    match text(header::CONTENT_ENCODING) {
        None | Some("" | "identity") => Ok(()),
        Some(coding) => {
            let message = format!("the body has the Content-Encoding {coding:?}, expected none");
            Err(RequestError::new(ErrorKind::UnsupportedMediaType, message))
        }
    }
}

/// Limits a body. It fails with [`std::io::ErrorKind::TimedOut`] after `time`, and with another
/// error if there is no room for it.
fn limit(body: Body, time: Duration, held: Arc<HeldBytes>) -> Body {
    // Most requests of operators have no body and need no timer.
    if body.is_end_stream() {
        return body;
    }
    let end = Instant::now() + time;
    Body::from_stream(futures_util::stream::unfold(Some(body.into_data_stream()), move |chunks| {
        let held = held.clone();
        async move {
            let mut chunks = chunks?;
            match timeout_at(end, chunks.next()).await {
                Ok(Some(Ok(chunk))) if !held.grow(chunk.len()) => {
                    Some((Err(std::io::Error::from(std::io::ErrorKind::QuotaExceeded).into()), None))
                }
                Ok(Some(Ok(chunk))) => Some((Ok(chunk), Some(chunks))),
                Ok(Some(Err(error))) => Some((Err(axum::BoxError::from(error)), None)),
                Ok(None) => None,
                Err(_) => {
                    let message = format!("the body was not complete after {} s", time.as_secs_f64());
                    Some((Err(std::io::Error::new(std::io::ErrorKind::TimedOut, message).into()), None))
                }
            }
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_that_are_too_long_or_compressed_are_refused_unread() {
        let kind = |name, value: &str| {
            let expect = (header::EXPECT, "100-continue".parse().unwrap());
            let headers = HeaderMap::from_iter([(name, value.parse().unwrap()), expect]);
            check(&headers).map_err(|error| error.kind)
        };
        assert_eq!(kind(header::CONTENT_LENGTH, "33554432"), Ok(()));
        assert_eq!(kind(header::CONTENT_LENGTH, "33554433"), Err(ErrorKind::TooLarge));
        assert_eq!(kind(header::CONTENT_ENCODING, "identity"), Ok(()));
        assert_eq!(kind(header::CONTENT_ENCODING, "gzip"), Err(ErrorKind::UnsupportedMediaType));
    }

    fn held(bodies: &Bodies, who: u64) -> Arc<HeldBytes> {
        let (bytes, is_refused) = (AtomicUsize::new(0), AtomicBool::new(false));
        Arc::new(HeldBytes { bodies: bodies.clone(), who, bytes, is_refused })
    }

    #[test]
    fn bodies_are_limited_together_and_by_key() {
        let bodies = Bodies::default();
        let one = held(&bodies, 1);
        assert!(one.grow(MAX_HELD_EACH) && !one.grow(1) && one.is_refused.load(Ordering::Relaxed));
        let others: Vec<_> = (2..5).map(|who| held(&bodies, who)).collect();
        assert!(others.iter().all(|other| other.grow(MAX_HELD_EACH)));
        let last = held(&bodies, 5);
        assert!(!last.grow(1));
        drop(one);
        assert!(last.grow(1));
        drop((others, last));
        assert!(bodies.0.lock().unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_body_that_does_not_end_fails_and_others_pass() {
        let pieces = [Ok::<_, std::io::Error>("ab"), Ok("c")];
        let whole = Body::from_stream(futures_util::stream::iter(pieces));
        let bytes = axum::body::to_bytes(limit(whole, TIME, held(&Bodies::default(), 0)), 10).await.unwrap();
        assert_eq!(&bytes[..], b"abc");
        let endless =
            Body::from_stream(futures_util::stream::pending::<std::result::Result<&str, std::io::Error>>());
        let error =
            axum::body::to_bytes(limit(endless, Duration::from_millis(10), held(&Bodies::default(), 0)), 10)
                .await
                .unwrap_err();
        assert!(error.to_string().contains("was not complete"), "{error}");
    }
}
