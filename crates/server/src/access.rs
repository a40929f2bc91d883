//! Access to the server: API keys, their rates, and an id for each request.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use governor::clock::{Clock, DefaultClock};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::error::ApiError;
use crate::warnings;
use runner::Caller;
use runner::preparing::on_behalf_of;
use runner::tenant::of_tenant;
use runner::{ErrorKind, RequestError};

/// The keys of a server. Without any, everybody is tenant 0.
#[derive(Clone)]
pub struct Access {
    tenants: Arc<[Tenant]>,
    /// True if a request needs a key; without keys there is one tenant.
    has_keys: bool,
    n_requests: Arc<AtomicU64>,
    /// Random number that distinguishes request ids of one start from those of another.
    start: u32,
}

/// The holder of an API key.
struct Tenant {
    id: u64,
    /// Hash of the key, so that a comparison takes the same time for every length.
    key_hash: [u8; 32],
    /// Limit of the request rate; `None` for no limit.
    rate: Option<DefaultDirectRateLimiter>,
}

impl Tenant {
    /// Counts a request.
    ///
    /// # Errors
    /// The tenant has sent too many.
    fn count(&self) -> Result<(), RequestError> {
        let Some(rate) = &self.rate else { return Ok(()) };
        rate.check().map_err(|until| RequestError {
            code: Some("rate_limit_exceeded"),
            retry_after: Some(until.wait_time_from(DefaultClock::default().now())),
            ..RequestError::new(
                ErrorKind::RateLimited,
                format!("this key may send {} requests a minute", until.quota().burst_size()),
            )
        })
    }
}

impl Access {
    /// Makes each key a tenant. Tenants do not share cached prefixes, and each gets its part of the
    /// machine. `rate` is the number of requests that a tenant may send each minute, and at once. A
    /// tenant's number names what is stored for it. The number is derived from the key and
    /// `secret`, so it does not reveal the key.
    pub fn new(keys: &[String], secret: &[u8; 32], rate: Option<NonZeroU32>) -> Access {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let limiter = || rate.map(|rate| RateLimiter::direct(Quota::per_minute(rate)));
        let tenant = |key: &String| {
            let key_hash = hash(key.as_bytes());
            let keyed = hash(&[&secret[..], &key_hash[..]].concat());
            let mut id = [0; 8];
            id.copy_from_slice(&keyed[..8]);
            // 0 is the tenant of a server without keys.
            Tenant { id: u64::from_le_bytes(id).max(1), key_hash, rate: limiter() }
        };
        let everybody = || Tenant { id: 0, key_hash: [0; 32], rate: limiter() };
        Access {
            tenants: match keys {
                [] => Arc::new([everybody()]),
                keys => keys.iter().map(tenant).collect(),
            },
            has_keys: !keys.is_empty(),
            n_requests: Arc::default(),
            start: now.map_or(0, |time| time.as_millis() as u32),
        }
    }

    /// The tenant of a request; `None` if its key is missing or wrong.
    fn tenant(&self, headers: &HeaderMap) -> Option<&Tenant> {
        if !self.has_keys {
            return self.tenants.first();
        }
        let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
            let (scheme, key) = value.to_str().ok()?.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| key.trim().as_bytes())
        });
        let given = bearer.or_else(|| headers.get("x-api-key").map(HeaderValue::as_bytes))?;
        let given = hash(given);
        // All keys are compared, so that the time does not tell which one matches.
        let matches = |tenant: &Tenant| bool::from(tenant.key_hash.ct_eq(&given));
        self.tenants.iter().fold(None, |found, tenant| if matches(tenant) { Some(tenant) } else { found })
    }

    fn request_id(&self, headers: &HeaderMap) -> String {
        let is_fine = |id: &&str| {
            (1..=64).contains(&id.len())
                && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        };
        let given = headers.get("x-request-id").and_then(|id| id.to_str().ok()).filter(is_fine);
        given.map(str::to_owned).unwrap_or_else(|| {
            let n = self.n_requests.fetch_add(1, Ordering::Relaxed);
            format!("{:08x}{n:08x}", self.start)
        })
    }
}

fn hash(key: &[u8]) -> [u8; 32] {
    Sha256::digest(key).into()
}

/// Names a request, checks its key and logs it.
pub(crate) async fn check(State(access): State<Access>, mut request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let request_id = access.request_id(request.headers());
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    // Load balancers and supervisors have no key.
    let is_public = matches!(path.as_str(), "/health" | "/v1/health" | "/health_generate")
        || crate::page::PUBLIC.contains(&path.as_str());
    let tenant = match access.tenant(request.headers()) {
        _ if is_public => Ok(0),
        // Lists and metrics are not counted.
        Some(tenant) if method == Method::POST => tenant.count().map(|()| tenant.id),
        Some(tenant) => Ok(tenant.id),
        None => Err(RequestError {
            code: Some("invalid_api_key"),
            ..RequestError::new(
                ErrorKind::Unauthorized,
                "no valid API key was given, expected one as `Authorization: Bearer KEY` or `x-api-key: KEY`",
            )
        }),
    };
    let mut response = match tenant {
        Ok(tenant) => {
            let who = if access.has_keys { tenant } else { address(&request) };
            request.extensions_mut().insert(Caller { request_id: request_id.clone(), tenant });
            let answer = warnings::answer(next.run(request));
            of_tenant(tenant, on_behalf_of(who, answer)).await
        }
        Err(error) => ApiError(error).into_response(),
    };
    if let Ok(value) = HeaderValue::from_str(&request_id) {
        response.headers_mut().insert("x-request-id", value);
    }
    tracing::info!(
        "{request_id} {method} {path} {} {:.1} ms",
        response.status().as_u16(),
        begun.elapsed().as_secs_f64() * 1e3
    );
    response
}

/// A number for the client's address.
fn address(request: &Request) -> u64 {
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
    peer.map_or(0, |ConnectInfo(peer)| match peer.ip().to_canonical() {
        IpAddr::V4(ip) => u64::from(ip.to_bits()),
        // A /64 network is one household.
        IpAddr::V6(ip) => (ip.to_bits() >> 64) as u64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(keys: &[&str], name: &'static str, value: &str) -> Option<u64> {
        let keys: Vec<_> = keys.iter().map(|key| (*key).to_owned()).collect();
        let access = Access::new(&keys, &[7; 32], None);
        let headers = HeaderMap::from_iter([(
            header::HeaderName::from_static(name),
            HeaderValue::from_str(value).unwrap(),
        )]);
        access.tenant(&headers).map(|tenant| tenant.id)
    }

    #[test]
    fn a_key_is_a_tenant() {
        assert_eq!(tenant(&[], "accept", "x"), Some(0));
        assert_eq!(tenant(&["a", "b"], "accept", "x"), None);
        assert_eq!(tenant(&["a", "b"], "authorization", "Bearer c"), None);
        assert_eq!(tenant(&["a", "b"], "authorization", "Basic a"), None);
        let a = tenant(&["a", "b"], "authorization", "bearer a");
        let b = tenant(&["a", "b"], "x-api-key", "b");
        assert!(a.is_some() && b.is_some() && a != b && a != Some(0));
        // The number does not depend on the other keys.
        assert_eq!(tenant(&["a"], "x-api-key", "a"), a);
        // The number depends on the secret.
        let other = Access::new(&["a".to_owned()], &[8; 32], None);
        assert_ne!(other.tenants.first().map(|tenant| tenant.id), a);
    }

    #[test]
    fn a_tenant_that_has_used_up_its_rate_leaves_the_others_theirs() {
        let access = Access::new(&["a".to_owned(), "b".to_owned()], &[0; 32], NonZeroU32::new(2));
        let [a, b] = &*access.tenants else { panic!("two tenants") };
        assert!(a.count().is_ok() && a.count().is_ok());
        let error = a.count().unwrap_err();
        assert_eq!(error.kind, ErrorKind::RateLimited);
        assert!(error.message.contains("2 requests a minute"), "{error}");
        assert!((20..=30).contains(&error.retry_after.unwrap().as_secs()), "{error:?}");
        assert!(b.count().is_ok());
    }

    #[test]
    fn request_ids_are_taken_over_if_they_are_fit_for_a_log() {
        let access = Access::new(&[], &[0; 32], None);
        let id = |value: &'static str| {
            access.request_id(&HeaderMap::from_iter([(
                header::HeaderName::from_static("x-request-id"),
                HeaderValue::from_static(value),
            )]))
        };
        assert_eq!(id("abc-1"), "abc-1");
        assert_ne!(id("a b"), "a b");
        assert_ne!(access.request_id(&HeaderMap::new()), access.request_id(&HeaderMap::new()));
    }
}
