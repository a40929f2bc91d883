//! Rules for scripts of other sites: refused, unless their origin is allowed (CORS,
//! <https://fetch.spec.whatwg.org/#http-cors-protocol>).
//!
//! Without keys, only its address protects a server on this machine. Web pages can still send
//! requests there from the user's browser. A form needs no permission of the server, and a page may
//! point a host name of its own at this machine (DNS rebinding). So requests with an `Origin` of
//! another site are refused, and those with a `Host` that is not the server's. Images and frames of
//! other sites have no `Origin`, but browsers mark them in `Sec-Fetch-Site`
//! (<https://www.w3.org/TR/fetch-metadata/>). Those requests get the pages and nothing else, since
//! even a GET may load a model.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use crate::error::ApiError;
use runner::{ErrorKind, RequestError};

/// Allowed origins of scripts, and host names of the server.
#[derive(Clone, Debug, Default)]
pub struct Origins {
    allowed: Arc<[HeaderValue]>,
    /// Host names in lower case, without ports; `None` for any.
    hosts: Option<Arc<[String]>>,
}

impl Origins {
    /// Reads origins such as `https://chat.example.org`, or `*` for all.
    ///
    /// # Errors
    /// An entry is no origin, in words for people.
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

    /// Refuses requests for hosts other than these and this machine's own names.
    #[must_use]
    pub fn only_hosts(self, names: &[String]) -> Origins {
        Origins { hosts: Some(names.iter().map(|name| name.to_ascii_lowercase()).collect()), ..self }
    }

    fn allows_all(&self) -> bool {
        self.allowed.iter().any(|origin| origin == "*")
    }

    /// Layer that answers preflights and tells browsers who may read a response; `None` without
    /// allowed origins.
    pub(crate) fn cors(&self) -> Option<CorsLayer> {
        let origins = match self.allows_all() {
            _ if self.allowed.is_empty() => return None,
            true => AllowOrigin::any(),
            false => AllowOrigin::list(self.allowed.iter().cloned()),
        };
        let exposed = ["x-request-id", "retry-after", "x-ingle-warning"].map(HeaderName::from_static);
        // Keys are sent in headers, never in cookies, so any header that a script adds is harmless.
        let layer = CorsLayer::new().allow_origin(origins).allow_headers(AllowHeaders::mirror_request());
        let methods = [Method::GET, Method::POST, Method::DELETE];
        Some(layer.allow_methods(methods).expose_headers(exposed).max_age(Duration::from_secs(3600)))
    }

    /// Checks a request.
    ///
    /// # Errors
    /// Its host is ambiguous or another one, or it comes from another site's page.
    fn check(&self, asked: &Asked<'_>) -> Result<(), RequestError> {
        let refuse = |message| Err(RequestError::new(ErrorKind::Forbidden, message));
        let host = asked.host()?;
        if let (Some(known), Some(host)) = (&self.hosts, &host) {
            let name = host.host().trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
            let is_this_machine = name == "localhost"
                || name.ends_with(".localhost")
                || name.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
            if !is_this_machine && !known.contains(&name) {
                return refuse(format!(
                    "the request is for the host `{name}`, expected localhost or a name given with --allow-host"
                ));
            }
        }
        if self.allows_all() {
            return Ok(());
        }
        let is_page = crate::page::PUBLIC.contains(&asked.uri.path());
        let is_public = is_page && matches!(*asked.method, Method::GET | Method::HEAD);
        let Some(origin) = asked.headers.get(header::ORIGIN) else {
            // Only browsers send this header, and no script can change it.
            let site = asked.headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
            return match site {
                None | Some(b"none" | b"same-origin") => Ok(()),
                Some(_) if is_public => Ok(()),
                Some(_) => refuse("this server refuses requests from pages of other sites".to_owned()),
            };
        };
        let origin = origin.to_str().unwrap_or_default().to_ascii_lowercase();
        let own = origin.split_once("://").map(|(_, own)| own);
        let is_own = own.zip(host).is_some_and(|(own, host)| own.eq_ignore_ascii_case(host.as_str()));
        match is_own || is_public || self.allowed.iter().any(|allowed| *allowed == origin) {
            true => Ok(()),
            false => refuse(format!(
                "this server refuses requests from pages of `{origin}`; to allow them, start it with --allow-origin {origin}"
            )),
        }
    }
}

/// Facts of a request about its target and its origin.
struct Asked<'a> {
    method: &'a Method,
    uri: &'a Uri,
    version: Version,
    headers: &'a HeaderMap,
}

impl Asked<'_> {
    /// The host of the request; `None` if HTTP/1.0 omits it.
    ///
    /// # Errors
    /// There is no or more than one host, or it is no `NAME[:PORT]` (RFC 9112, section 3.2).
    fn host(&self) -> Result<Option<Authority>, RequestError> {
        let wrong = |found: String| {
            let message = format!("{found}, expected one header `Host: NAME[:PORT]`");
            Err(RequestError::new(ErrorKind::Invalid, message))
        };
        let mut given = self.headers.get_all(header::HOST).iter();
        let host = match (given.next(), given.next()) {
            (Some(host), None) => host.to_str().ok().and_then(authority),
            (None, _) if self.version < Version::HTTP_11 => return Ok(self.uri.authority().cloned()),
            (None, _) => return wrong("the request names no host".to_owned()),
            (Some(_), Some(_)) => return wrong("the request names two hosts".to_owned()),
        };
        match (host, self.uri.authority()) {
            (None, _) => wrong("the host of the request is not valid".to_owned()),
            // An absolute URL in the request line takes precedence over the header; a mismatch is
            // refused as an attack.
            (Some(host), Some(target)) if !target.as_str().eq_ignore_ascii_case(host.as_str()) => {
                wrong(format!("the request's address is of `{target}` and its host is `{host}`"))
            }
            (Some(host), _) => Ok(Some(host)),
        }
    }
}

/// A name or an address, with an optional port and nothing else.
fn authority(text: &str) -> Option<Authority> {
    let parsed: Authority = text.parse().ok()?;
    let (host, port) = (parsed.host(), parsed.port_u16());
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~%".contains(&byte))
    };
    let is_fine = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').is_some_and(|ip| ip.parse::<std::net::Ipv6Addr>().is_ok()),
        None => is_name(host),
    };
    // The rest would be a user's name or an invalid port.
    let whole = port.map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
    let is_whole = text == whole || text.strip_suffix(':') == Some(host);
    (is_fine && is_whole).then_some(parsed)
}

/// Layer that refuses requests of other sites.
pub(crate) async fn check(State(origins): State<Origins>, request: Request, next: Next) -> Response {
    let (method, uri, headers) = (request.method(), request.uri(), request.headers());
    match origins.check(&Asked { method, uri, version: request.version(), headers }) {
        Ok(()) => next.run(request).await,
        Err(error) => ApiError(error).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::status;

    /// The status of a refused request; 200 if it is accepted.
    fn asked(origins: &Origins, method: Method, path: &str, headers: &[(&'static str, &[u8])]) -> u16 {
        let pair = |&(name, value): &(&'static str, &[u8])| {
            (HeaderName::from_static(name), HeaderValue::from_bytes(value).unwrap())
        };
        let mut map = HeaderMap::new();
        for (name, value) in headers.iter().map(pair) {
            map.append(name, value);
        }
        let uri = path.parse().unwrap();
        let asked = Asked { method: &method, uri: &uri, version: Version::HTTP_11, headers: &map };
        origins.check(&asked).map_or_else(|error| status(error.kind).as_u16(), |()| 200)
    }

    fn named(origins: &[&str]) -> Origins {
        Origins::new(&origins.iter().map(|origin| (*origin).to_owned()).collect::<Vec<_>>()).unwrap()
    }

    const HOST: (&str, &[u8]) = ("host", b"localhost:8080");

    #[test]
    fn pages_of_other_sites_are_refused_unless_allowed() {
        for method in [Method::POST, Method::GET, Method::DELETE, Method::HEAD] {
            let from = |allowed: &[&str], origin: &str| {
                let headers = [HOST, ("origin", origin.as_bytes())];
                asked(&named(allowed), method.clone(), "/props", &headers)
            };
            assert_eq!(from(&[], "http://localhost:8080"), 200);
            assert_eq!(from(&[], "http://localhost:3000"), 403);
            assert_eq!(from(&[], "https://a.org"), 403);
            assert_eq!(from(&[], "null"), 403);
            assert_eq!(from(&["https://A.org"], "https://a.org"), 200);
            assert_eq!(from(&["https://a.org"], "https://a.org.evil.org"), 403);
            assert_eq!(from(&["*"], "null"), 200);
            // Programs send no origin.
            assert_eq!(asked(&named(&[]), method.clone(), "/props", &[HOST]), 200);
        }
    }

    #[test]
    fn images_and_frames_of_other_sites_get_the_pages_alone() {
        let get = |allowed: &[&str], path: &str, site: &'static [u8]| {
            asked(&named(allowed), Method::GET, path, &[HOST, ("sec-fetch-site", site)])
        };
        for site in [&b"cross-site"[..], b"same-site", b"anything"] {
            assert_eq!(get(&[], "/tokenizer_info?model=m", site), 403);
            assert_eq!(get(&[], "/v1/models", site), 403);
            assert_eq!(get(&[], "/", site), 200, "a link leads to the page");
            assert_eq!(get(&["*"], "/props", site), 200);
        }
        // A typed address, and the page's own requests.
        assert_eq!((get(&[], "/props", b"none"), get(&[], "/props", b"same-origin")), (200, 200));
    }

    #[test]
    fn a_name_that_points_at_this_machine_is_not_enough() {
        let origins = named(&[]).only_hosts(&["Box.lan".to_owned()]);
        let of = |origins: &Origins, host: &'static str| {
            asked(origins, Method::POST, "/props", &[("host", host.as_bytes())])
        };
        for host in [
            "localhost:8080",
            "127.0.0.1:8080",
            "[::1]:8080",
            "[::1]",
            "a.localhost",
            "box.lan:8080",
            "BOX.LAN",
        ] {
            assert_eq!(of(&origins, host), 200, "{host}");
        }
        for host in ["evil.org:8080", "localhost.evil.org", "192.168.1.5:8080", "[::2]"] {
            assert_eq!(of(&origins, host), 403, "{host}");
            assert_eq!(of(&named(&[]), host), 200, "{host}");
        }
    }

    #[test]
    fn a_request_says_in_one_way_which_host_it_is_for() {
        // The result does not depend on configured host names.
        for origins in [named(&[]), named(&[]).only_hosts(&[])] {
            let of = |path: &str, hosts: &[&'static [u8]]| {
                let headers: Vec<_> = hosts.iter().map(|host| ("host", *host)).collect();
                asked(&origins, Method::GET, path, &headers)
            };
            assert_eq!(of("/props", &[]), 400);
            assert_eq!(of("/props", &[b"localhost", b"localhost"]), 400);
            assert_eq!(of("/props", &[b"localhost", b"evil.org"]), 400);
            for host in [
                &b"ev\xffil.org"[..],
                b"\xffil",
                b"",
                b":80",
                b"[localhost]x",
                b"[localhost]",
                b"[::1]x",
                b"[::1",
                b"::1",
                b"localhost:x",
                b"localhost:99999",
                b"localhost:80:80",
                b"user@localhost",
                b"local host",
                b"localhost, evil.org",
                b"localhost/x",
                b"http://localhost",
            ] {
                assert_eq!(of("/props", &[host]), 400, "{}", String::from_utf8_lossy(host));
            }
            assert_eq!(of("http://localhost:8080/props", &[b"LOCALHOST:8080"]), 200);
            assert_eq!(of("http://evil.org/props", &[b"localhost"]), 400);
        }
    }

    #[test]
    fn invalid_origins_are_refused() {
        for origin in ["a.org", "https://", "https://a.org/path", "https://*.a.org", ""] {
            assert!(Origins::new(&[origin.to_owned()]).unwrap_err().contains("expected SCHEME"), "{origin}");
        }
    }
}
