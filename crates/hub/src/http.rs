//! HTTP for the hub. Redirects are followed by hand, so that the token is sent to the hub only.
//! Failures are either transient, and retried, or final.

use std::io::Read;
use std::time::Duration;

use ureq::http::{HeaderMap, Method, Request, Uri};

use crate::error::{Error, Result};
use crate::names;
use crate::options::{Options, ProxyChoice, Token};
use crate::progress::Progress;

/// Redirects followed before giving up. The hub uses one or two.
const REDIRECTS_MAX: usize = 10;
/// The longest response read into memory, in bytes. The listing of a repository with ten thousand
/// files has about 1 MiB.
pub(crate) const ANSWER_MAX: u64 = 16 << 20;
/// The longest delay between two tries, whether ours or requested by the server.
const WAIT_MAX: Duration = Duration::from_secs(16);

/// A client of one hub and of the hosts that it redirects to.
pub(crate) struct Client {
    agent: ureq::Agent,
    endpoint: String,
    origin: Origin,
    token: Option<Token>,
    backoff: Duration,
}

/// A response that is not a redirect to be followed.
pub(crate) struct Answer {
    /// The address that responded.
    pub url: String,
    /// The HTTP status.
    pub status: u16,
    /// True if the hub itself responded, not a host that it redirected to.
    pub from_hub: bool,
    headers: HeaderMap,
    /// Headers of the hub's redirects to this response, in order.
    passed: Vec<HeaderMap>,
    body: ureq::Body,
}

/// Scheme, host and port: the scope of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Origin {
    https: bool,
    host: String,
    port: u16,
}

impl Client {
    /// A client for the hub in the options.
    pub(crate) fn new(options: &Options) -> Result<Self> {
        let endpoint = options.endpoint.trim_end_matches('/').to_string();
        let bad = |reason: String| Error::BadOption {
            option: "the hub's address",
            value: names::printable(&endpoint),
            reason,
        };
        let origin = endpoint
            .parse::<Uri>()
            .map_err(|e| bad(e.to_string()))
            .and_then(|uri| Origin::of(&uri).map_err(&bad))?;
        let proxy = match &options.proxy {
            ProxyChoice::Direct => None,
            ProxyChoice::Environment => ureq::Proxy::try_from_env(),
            ProxyChoice::Address(address) => {
                Some(ureq::Proxy::new(address).map_err(|e| Error::BadOption {
                    option: "the proxy",
                    value: names::printable(address),
                    reason: e.to_string(),
                })?)
            }
        };
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(proxy)
            .tls_config(tls(options)?)
            .user_agent(concat!("ingle/", env!("CARGO_PKG_VERSION")))
            // A compressed response would have other lengths and ranges than the file.
            .accept_encoding("identity")
            .timeout_connect(Some(options.connect_timeout))
            .timeout_recv_response(Some(options.connect_timeout.max(options.silence_timeout)))
            .timeout_per_read(Some(options.silence_timeout))
            .build()
            .new_agent();
        Ok(Self { agent, endpoint, origin, token: options.token.clone(), backoff: options.backoff })
    }

    /// The hub's address, without a slash at the end.
    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// True if requests to the hub carry a token.
    pub(crate) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Sends a request and follows redirects. The token is sent to the hub's own origin only.
    ///
    /// With `describe`, a redirect away from the hub that already describes the file
    /// (`X-Linked-Etag`) is the response.
    pub(crate) fn send(
        &self,
        method: &Method,
        url: &str,
        headers: &[(&str, String)],
        describe: bool,
    ) -> Result<Answer> {
        let mut uri: Uri = url.parse().map_err(|e| Error::BadAnswer {
            url: names::printable(url),
            reason: format!("not an address: {e}"),
        })?;
        let mut passed = Vec::new();
        for _ in 0..=REDIRECTS_MAX {
            let here = Origin::of(&uri).map_err(|reason| Error::BadRedirect { url: shown(&uri), reason })?;
            let mut request = Request::builder().method(method.clone()).uri(uri.clone());
            for (name, value) in headers {
                request = request.header(*name, value);
            }
            if let Some(token) = self.token.as_ref().filter(|_| here == self.origin) {
                request = request.header("Authorization", format!("Bearer {}", token.secret()));
            }
            let request = request.body(()).map_err(|e| Error::BadAnswer {
                url: shown(&uri),
                reason: format!("the request cannot be made: {e}"),
            })?;
            let (parts, body) = self.agent.run(request).map_err(|e| transport(&uri, e))?.into_parts();
            let status = parts.status.as_u16();
            let answer = |passed, uri: &Uri| Answer {
                url: shown(uri),
                status,
                from_hub: here == self.origin,
                headers: parts.headers.clone(),
                passed,
                body,
            };
            if !matches!(status, 301 | 302 | 303 | 307 | 308) {
                return Ok(answer(passed, &uri));
            }
            let next = redirect_target(&uri, &parts.headers)
                .map_err(|reason| Error::BadRedirect { url: shown(&uri), reason })?;
            let there =
                Origin::of(&next).map_err(|reason| Error::BadRedirect { url: shown(&uri), reason })?;
            if here.https && !there.https {
                let reason = format!("it leads from https to {} without https", there.host);
                return Err(Error::BadRedirect { url: shown(&uri), reason });
            }
            if describe && here == self.origin && there != here && parts.headers.contains_key("x-linked-etag")
            {
                return Ok(answer(passed, &uri));
            }
            if here == self.origin {
                passed.push(parts.headers);
            }
            uri = next;
        }
        let reason = format!("more than {REDIRECTS_MAX} redirects");
        Err(Error::BadRedirect { url: names::printable(url), reason })
    }

    /// Runs `request` until it succeeds, fails permanently, or has been retried `retries` times.
    pub(crate) fn retrying<T>(
        &self,
        retries: u32,
        progress: &mut dyn Progress,
        mut request: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        let mut failures = 0;
        loop {
            match request() {
                Err(error) if error.is_transient() && failures < retries => {
                    failures += 1;
                    self.pause(failures, retries, &error, progress);
                }
                result => return result,
            }
        }
    }

    /// Waits before the next try: twice the last time, or longer if the server requests it, up to a
    /// limit.
    pub(crate) fn pause(&self, failures: u32, retries: u32, error: &Error, progress: &mut dyn Progress) {
        let doubled = self.backoff.saturating_mul(1 << failures.saturating_sub(1).min(10));
        let wait = error.retry_after().map_or(doubled, |asked| asked.max(doubled)).min(WAIT_MAX);
        progress
            .note(&format!("{error}; trying again in {:.1} s ({failures} of {retries})", wait.as_secs_f64()));
        std::thread::sleep(wait);
    }
}

impl Answer {
    /// A header of the response itself.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// A header that only the hub may set, from the first of its responses that has it. Headers of
    /// other hosts do not count.
    pub(crate) fn hub_header(&self, name: &str) -> Option<&str> {
        let own = self.from_hub.then_some(&self.headers);
        self.passed.iter().chain(own).find_map(|headers| headers.get(name))?.to_str().ok()
    }

    /// The body's length in bytes, if the server states it.
    pub(crate) fn content_length(&self) -> Option<u64> {
        self.header("content-length")?.trim().parse().ok()
    }

    /// The body.
    pub(crate) fn into_reader(self) -> impl Read {
        self.body.into_reader()
    }

    /// The whole body, if it has at most `limit` bytes.
    pub(crate) fn into_bytes(self, limit: u64) -> Result<Vec<u8>> {
        let url = self.url.clone();
        let mut bytes = Vec::new();
        // Reading one byte more than allowed shows that the body is too long.
        self.into_reader()
            .take(limit.saturating_add(1))
            .read_to_end(&mut bytes)
            .map_err(|e| Error::Unreachable { url: url.clone(), reason: e.to_string() })?;
        if bytes.len() as u64 > limit {
            return Err(Error::BadAnswer {
                url,
                reason: format!("the response is longer than {limit} bytes"),
            });
        }
        Ok(bytes)
    }

    /// The error for a status that has no variant of its own.
    pub(crate) fn into_status_error(self) -> Error {
        let (url, status) = (self.url.clone(), self.status);
        let retry_after =
            self.header("retry-after").and_then(|text| text.trim().parse().ok()).map(Duration::from_secs);
        let message = self.header("x-error-message").map(names::printable).unwrap_or_default();
        Error::Status { url, status, message, retry_after }
    }
}

impl Origin {
    fn of(uri: &Uri) -> std::result::Result<Self, String> {
        let https = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            other => {
                return Err(format!("scheme is {:?}, expected http or https", other.unwrap_or_default()));
            }
        };
        let host = uri.host().filter(|host| !host.is_empty()).ok_or("there is no host")?.to_ascii_lowercase();
        Ok(Self { https, host, port: uri.port_u16().unwrap_or(if https { 443 } else { 80 }) })
    }
}

/// The target of a redirect. `Location` is absolute, or relative to the address that sent it
/// (RFC 9110, 10.2.2).
fn redirect_target(from: &Uri, headers: &HeaderMap) -> std::result::Result<Uri, String> {
    let location = headers.get("location").ok_or("there is no Location header")?;
    let location = location.to_str().map_err(|_| "Location is not ASCII")?.trim();
    absolute(from, location)
}

/// The address that `location` denotes in a page at `from`: absolute, or relative to it.
pub(crate) fn absolute(from: &Uri, location: &str) -> std::result::Result<Uri, String> {
    let scheme = from.scheme_str().unwrap_or("https");
    let authority = from.authority().map_or("", |authority| authority.as_str());
    let has_scheme = location
        .split_once("://")
        .is_some_and(|(scheme, _)| scheme.bytes().all(|b| b.is_ascii_alphanumeric()));
    let absolute = if has_scheme {
        location.to_string()
    } else if let Some(rest) = location.strip_prefix("//") {
        format!("{scheme}://{rest}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else {
        // Dot segments are resolved (RFC 3986, 5.2.4).
        let mut folder: Vec<&str> = from.path().split('/').skip(1).collect();
        folder.pop();
        let mut rest = location;
        while let Some((segment @ ("." | ".."), after)) = rest.split_once('/') {
            if segment == ".." {
                folder.pop();
            }
            rest = after;
        }
        let folder: String = folder.iter().flat_map(|segment| ["/", segment]).collect();
        format!("{scheme}://{authority}{folder}/{rest}")
    };
    absolute.parse().map_err(|e| format!("the address {:?}: {e}", names::printable(location)))
}

/// An address for a message, without its query, which may contain a secret signature.
fn shown(uri: &Uri) -> String {
    names::printable(&format!(
        "{}://{}{}",
        uri.scheme_str().unwrap_or_default(),
        uri.host().unwrap_or_default().to_string()
            + &uri.port().map_or_else(String::new, |port| format!(":{port}")),
        uri.path()
    ))
}

/// A failure below HTTP: most are temporary, but a malformed response or an untrusted certificate
/// is not.
fn transport(uri: &Uri, error: ureq::Error) -> Error {
    let (url, reason) = (shown(uri), error.to_string());
    match error {
        ureq::Error::Io(e) if e.kind() != std::io::ErrorKind::InvalidData => {
            Error::Unreachable { url, reason }
        }
        ureq::Error::Timeout(_) | ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => {
            Error::Unreachable { url, reason }
        }
        _ => Error::BadAnswer { url, reason },
    }
}

/// The certificate authorities to trust.
fn tls(options: &Options) -> Result<ureq::tls::TlsConfig> {
    let builder = ureq::tls::TlsConfig::builder();
    let Some(path) = &options.certificates else {
        return Ok(builder.build());
    };
    let pem = std::fs::read(path).map_err(|e| Error::io(path, "reading the certificates", e))?;
    let certificates: Vec<_> = ureq::tls::parse_pem(&pem)
        .filter_map(|item| match item {
            Ok(ureq::tls::PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if certificates.is_empty() {
        return Err(Error::BadOption {
            option: "the certificate file",
            value: path.display().to_string(),
            reason: "it holds no certificate in PEM form".into(),
        });
    }
    Ok(builder.root_certs(ureq::tls::RootCerts::new_with_certs(&certificates)).build())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(from: &str, location: &str) -> std::result::Result<String, String> {
        let mut headers = HeaderMap::new();
        headers.insert("location", location.parse().unwrap());
        redirect_target(&from.parse().unwrap(), &headers).map(|uri| uri.to_string())
    }

    #[test]
    fn locations_relative_and_absolute() {
        let from = "https://hub.example:8443/o/r/resolve/main/f";
        assert_eq!(target(from, "https://cdn.example/x?s=1").unwrap(), "https://cdn.example/x?s=1");
        assert_eq!(target(from, "//cdn.example/x").unwrap(), "https://cdn.example/x");
        assert_eq!(target(from, "/p/q?u=http://y").unwrap(), "https://hub.example:8443/p/q?u=http://y");
        assert_eq!(target(from, "g").unwrap(), "https://hub.example:8443/o/r/resolve/main/g");
        assert_eq!(target(from, "./../../g/h").unwrap(), "https://hub.example:8443/o/r/g/h");
        assert_eq!(target("https://a/b", "../../g").unwrap(), "https://a/g");
        assert!(
            target(from, "https://").is_err()
                && redirect_target(&from.parse().unwrap(), &HeaderMap::new()).is_err()
        );
        assert!(Origin::of(&target(from, "ftp://x/y").unwrap().parse().unwrap()).is_err());
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        let of = |text: &str| Origin::of(&text.parse().unwrap()).unwrap();
        assert_eq!(of("https://Hub.example/a"), of("https://hub.example:443/b"));
        assert_ne!(of("https://hub.example"), of("http://hub.example"));
        assert_ne!(of("http://127.0.0.1:1"), of("http://127.0.0.1:2"));
    }

    #[test]
    fn a_message_shows_no_signature() {
        assert_eq!(
            shown(&"https://u:p@cdn.example:1/x?Signature=abc".parse().unwrap()),
            "https://cdn.example:1/x"
        );
    }

    #[test]
    fn invalid_endpoints_are_errors() {
        for bad in ["", "huggingface.co", "ftp://x", "http://"] {
            let options = Options { endpoint: bad.into(), ..Options::default() };
            assert!(matches!(Client::new(&options), Err(Error::BadOption { .. })), "{bad}");
        }
    }
}
