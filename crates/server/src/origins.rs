//! What scripts of other sites may do: nothing, unless their origin was named (CORS,
//! <https://fetch.spec.whatwg.org/#http-cors-protocol>).
//!
//! Without keys, a server on this machine is protected by nothing but its address. A page on the web can still send requests
//! there from the reader's browser: as a form would, which needs no leave of the server's, or under a name of its own that it
//! points at this machine (DNS rebinding). So a request whose `Origin` is another site is refused, and so is one for a `Host`
//! that the server is not known by.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use crate::error::{ApiError, ErrorKind};

/// Origins whose scripts may ask, and names that the server is known by.
#[derive(Clone, Debug, Default)]
pub struct Origins {
    allowed: Arc<[HeaderValue]>,
    /// In lower case, without ports; `None`: any.
    hosts: Option<Arc<[String]>>,
}

impl Origins {
    /// Origins such as `https://chat.example.org`, or `*` for all.
    ///
    /// # Errors
    /// One is no origin, in words for people.
    pub fn new(origins: &[String]) -> Result<Origins, String> {
        let read = |origin: &String| {
            let host = origin.split_once("://").map(|(_, host)| host);
            let is_origin = host.is_some_and(|host| !host.is_empty() && !host.contains(['/', '?', '#', '*']));
            match HeaderValue::from_str(&origin.to_ascii_lowercase()) {
                Ok(value) if is_origin || origin == "*" => Ok(value),
                _ => Err(format!(
                    "found the origin {origin:?}, expected SCHEME://HOST[:PORT] without a path, or * for all"
                )),
            }
        };
        Ok(Origins { allowed: origins.iter().map(read).collect::<Result<_, _>>()?, hosts: None })
    }

    /// Refuse requests for a host other than these and this machine's own names.
    #[must_use]
    pub fn only_hosts(self, names: &[String]) -> Origins {
        Origins { hosts: Some(names.iter().map(|name| name.to_ascii_lowercase()).collect()), ..self }
    }

    fn allows_all(&self) -> bool {
        self.allowed.iter().any(|origin| origin == "*")
    }

    /// Answers preflights and tells browsers who may read a response; `None`: nobody may.
    pub(crate) fn cors(&self) -> Option<CorsLayer> {
        let origins = match self.allows_all() {
            _ if self.allowed.is_empty() => return None,
            true => AllowOrigin::any(),
            false => AllowOrigin::list(self.allowed.iter().cloned()),
        };
        let exposed = ["x-request-id", "retry-after", "x-ingle-warning"].map(HeaderName::from_static);
        // Keys are given in headers, never in cookies, so no header that a script adds does harm.
        let layer = CorsLayer::new().allow_origin(origins).allow_headers(AllowHeaders::mirror_request());
        let methods = [Method::GET, Method::POST, Method::DELETE];
        Some(layer.allow_methods(methods).expose_headers(exposed).max_age(Duration::from_secs(3600)))
    }

    /// # Errors
    /// The request is for another host, or comes from a page of one.
    fn check(&self, method: &Method, headers: &HeaderMap) -> Result<(), ApiError> {
        let refuse = |message| Err(ApiError::new(ErrorKind::Forbidden, message));
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
        if let (Some(known), Some(host)) = (&self.hosts, host) {
            let name = name_of(host).to_ascii_lowercase();
            let is_this_machine = name == "localhost"
                || name.ends_with(".localhost")
                || name.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
            if !is_this_machine && !known.contains(&name) {
                return refuse(format!(
                    "the request is for the host `{name}`, expected localhost or a name given with --allow-host"
                ));
            }
        }
        let Some(origin) = headers.get(header::ORIGIN).filter(|_| *method != Method::GET) else {
            return Ok(());
        };
        let origin = origin.to_str().unwrap_or_default().to_ascii_lowercase();
        let own = origin.split_once("://").map(|(_, own)| own);
        let is_own = own.zip(host).is_some_and(|(own, host)| own.eq_ignore_ascii_case(host));
        match is_own || self.allows_all() || self.allowed.iter().any(|allowed| *allowed == origin) {
            true => Ok(()),
            false => refuse(format!(
                "pages of `{origin}` may not ask this server; start it with --allow-origin {origin} if they should"
            )),
        }
    }
}

/// The name in `name:port` or `[address]:port`.
fn name_of(host: &str) -> &str {
    match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    }
}

/// The layer that refuses what comes from other sites.
pub(crate) async fn check(State(origins): State<Origins>, request: Request, next: Next) -> Response {
    match origins.check(request.method(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_allowed(origins: &Origins, headers: &[(HeaderName, &'static str)]) -> bool {
        let headers = headers.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value)));
        origins.check(&Method::POST, &headers.collect()).is_ok()
    }

    fn named(origins: &[&str]) -> Origins {
        Origins::new(&origins.iter().map(|origin| (*origin).to_owned()).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn pages_of_other_sites_may_not_ask_unless_they_were_named() {
        let from = |allowed: &[&str], origin| {
            is_allowed(&named(allowed), &[(header::HOST, "localhost:8080"), (header::ORIGIN, origin)])
        };
        assert!(from(&[], "http://localhost:8080"));
        assert!(!from(&[], "http://localhost:3000"));
        assert!(!from(&[], "https://a.org"));
        assert!(!from(&[], "null"));
        assert!(from(&["https://A.org"], "https://a.org"));
        assert!(!from(&["https://a.org"], "https://a.org.evil.org"));
        assert!(from(&["*"], "null"));
        // Programs send no origin.
        assert!(is_allowed(&named(&[]), &[(header::HOST, "localhost:8080")]));
    }

    #[test]
    fn a_name_that_points_at_this_machine_is_not_enough() {
        let origins = named(&[]).only_hosts(&["Box.lan".to_owned()]);
        for host in
            ["localhost:8080", "127.0.0.1:8080", "[::1]:8080", "a.localhost", "box.lan:8080", "BOX.LAN"]
        {
            assert!(is_allowed(&origins, &[(header::HOST, host)]), "{host}");
        }
        for host in ["evil.org:8080", "localhost.evil.org", "192.168.1.5:8080"] {
            assert!(!is_allowed(&origins, &[(header::HOST, host)]), "{host}");
            assert!(is_allowed(&named(&[]), &[(header::HOST, host)]), "{host}");
        }
    }

    #[test]
    fn what_is_no_origin_is_refused() {
        for origin in ["a.org", "https://", "https://a.org/path", "https://*.a.org", ""] {
            assert!(Origins::new(&[origin.to_owned()]).unwrap_err().contains("expected SCHEME"), "{origin}");
        }
    }
}
