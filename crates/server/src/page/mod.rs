//! The server's own pages: `/` is a chat, `/status` shows the server's activity.
//!
//! A page is an HTML file that names its styles and scripts. Those are inlined, so it is served as
//! one file and loads nothing from other hosts. The content security policy lists the hash of each
//! inline block, so markup from a model cannot run scripts.

use std::sync::LazyLock;

use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use sha2::{Digest, Sha256};

static CHAT: LazyLock<Page> = LazyLock::new(|| Page::new(include_str!("chat.html")));
static STATUS: LazyLock<Page> = LazyLock::new(|| Page::new(include_str!("status.html")));

/// Styles and scripts that the pages name. Scripts of a page share one scope, in the order of their
/// names.
const FILES: [(&str, &str); 9] = [
    ("common.css", include_str!("common.css")),
    ("chat.css", include_str!("chat.css")),
    ("status.css", include_str!("status.css")),
    ("common.js", include_str!("common.js")),
    ("math.js", include_str!("math.js")),
    ("markdown.js", include_str!("markdown.js")),
    ("store.js", include_str!("store.js")),
    ("chat.js", include_str!("chat.js")),
    ("status.js", include_str!("status.js")),
];

/// Paths that need no API key. The pages hold no secrets and prompt for the key themselves.
pub(crate) const PUBLIC: [&str; 2] = ["/", "/status"];

/// Routes of `/` and `/status`, for GET and HEAD.
pub fn router<S: Clone + Send + Sync + 'static>() -> axum::Router<S> {
    axum::Router::new()
        .route("/", get(|headers: HeaderMap| async move { CHAT.respond(&headers) }))
        .route("/status", get(|headers: HeaderMap| async move { STATUS.respond(&headers) }))
}

/// A page and the headers that depend on its text.
struct Page {
    html: Bytes,
    etag: String,
    policy: String,
}

impl Page {
    fn new(named: &str) -> Page {
        let html = with_files(named);
        let etag = format!("\"{}\"", URL_SAFE_NO_PAD.encode(&Sha256::digest(&html)[..12]));
        let policy = format!(
            "default-src 'none'; script-src {}; style-src {}; img-src 'self' data: blob:; media-src 'self' data: blob:; \
             connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
            hashes(&html, "script"),
            hashes(&html, "style"),
        );
        Page { html: html.into(), etag, policy }
    }

    fn respond(&self, headers: &HeaderMap) -> Response {
        let known = headers
            .get_all(header::IF_NONE_MATCH)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .any(|tag| matches!(tag.trim().trim_start_matches("W/"), tag if tag == "*" || tag == self.etag));
        let mut response = match known {
            true => StatusCode::NOT_MODIFIED.into_response(),
            false => self.html.clone().into_response(),
        };
        let fixed = [
            (header::CONTENT_TYPE, "text/html; charset=utf-8"),
            // Browsers revalidate, so that a new binary's page is seen at once.
            (header::CACHE_CONTROL, "no-cache"),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::REFERRER_POLICY, "no-referrer"),
        ];
        for (name, value) in fixed {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        for (name, value) in [(header::ETAG, &self.etag), (header::CONTENT_SECURITY_POLICY, &self.policy)] {
            if let Ok(value) = HeaderValue::from_str(value) {
                response.headers_mut().insert(name, value);
            }
        }
        response
    }
}

/// The HTML of a page with its styles and scripts inlined.
fn with_files(named: &str) -> String {
    FILES.iter().fold(named.to_owned(), |html, (name, text)| {
        html.replace(
            &format!("<link rel=\"stylesheet\" href=\"{name}\">"),
            &format!("<style>\n{text}</style>"),
        )
        .replace(&format!("<script src=\"{name}\"></script>"), &format!("<script>\n{text}</script>"))
    })
}

/// Sources of the policy that allow the page's own inline blocks of this element, and no others.
fn hashes(html: &str, element: &str) -> String {
    let (open, close) = (format!("<{element}>"), format!("</{element}>"));
    let blocks = html.split(&open).skip(1).filter_map(|rest| rest.split_once(&close));
    let sources: Vec<String> =
        blocks.map(|(block, _)| format!("'sha256-{}'", STANDARD.encode(Sha256::digest(block)))).collect();
    match sources.is_empty() {
        true => "'none'".to_owned(),
        false => sources.join(" "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_hold_the_hashes_of_inline_blocks() {
        // The hash of `alert(1)`, computed by `openssl dgst -sha256 -binary | base64`.
        let html = "<style>a{}</style><script>alert(1)</script>";
        assert_eq!(hashes(html, "script"), "'sha256-bhHHL3z2vDgxUt0W3dWQOrprscmda2Y5pLsLg4GF+pI='");
        assert_eq!(hashes("<p>", "script"), "'none'");
    }

    #[test]
    fn pages_have_no_inline_handlers_and_load_from_no_other_host() {
        for (page, n_blocks) in [(&*CHAT, 7), (&*STATUS, 4)] {
            assert_eq!(page.policy.matches("'sha256-").count(), n_blocks, "each style and each script");
            let html = std::str::from_utf8(&page.html).unwrap();
            for forbidden in
                [" onclick=", " onload=", " style=", " src=\"", "stylesheet", "innerHTML", "eval("]
            {
                assert!(!html.contains(forbidden), "{forbidden} would break the policy or be unsafe");
            }
        }
    }

    #[test]
    fn a_known_page_is_not_sent_again() {
        let first = CHAT.respond(&HeaderMap::new());
        assert_eq!(first.status(), StatusCode::OK);
        let etag = first.headers()[header::ETAG].clone();
        for given in [etag.to_str().unwrap().to_owned(), format!("\"x\", W/{}", etag.to_str().unwrap())] {
            let headers =
                HeaderMap::from_iter([(header::IF_NONE_MATCH, HeaderValue::from_str(&given).unwrap())]);
            assert_eq!(CHAT.respond(&headers).status(), StatusCode::NOT_MODIFIED);
        }
        let other = HeaderMap::from_iter([(header::IF_NONE_MATCH, HeaderValue::from_static("\"x\""))]);
        assert_eq!(CHAT.respond(&other).status(), StatusCode::OK);
    }
}
