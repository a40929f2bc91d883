//! The HTTP client of `run --server`, `ps`, `stop` and `bench-serve`.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use engine::CancelFlag;
use serde_json::Value;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};

use crate::sse;

/// The server of a command.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Server")]
pub struct ServerArgs {
    /// The server's address
    #[arg(long, default_value = "http://127.0.0.1:8080", value_name = "URL")]
    server: String,

    /// The server's API key [default: INGLE_API_KEY]
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,

    /// Trust only the server certificates in this PEM file
    #[arg(long, value_name = "FILE")]
    ca_cert: Option<PathBuf>,
}

impl ServerArgs {
    pub fn client(&self) -> anyhow::Result<Client> {
        Client::new(&self.server, self.api_key.clone(), self.ca_cert.as_deref())
    }
}

/// A client of one server.
pub struct Client {
    agent: ureq::Agent,
    url: String,
    key: Option<String>,
}

impl Client {
    /// A client of the server at `url`, with or without `/v1`. The default of `key` is
    /// `INGLE_API_KEY`. Only certificates in the file `ca_cert`, if there is one, are trusted.
    ///
    /// # Errors
    /// The file cannot be read, or has no certificate.
    pub fn new(url: &str, key: Option<String>, ca_cert: Option<&Path>) -> anyhow::Result<Client> {
        let mut config = ureq::Agent::config_builder().http_status_as_error(false);
        if let Some(file) = ca_cert {
            config = config.tls_config(TlsConfig::builder().root_certs(trusted(file)?).build());
        }
        Ok(Client::with_agent(url, key, config.build().into()))
    }

    /// A client like [`Self::new`], with a new connection for each request, which fails after
    /// `timeout`.
    pub fn unpooled(url: &str, key: Option<String>, timeout: Duration) -> Client {
        let config = ureq::Agent::config_builder().http_status_as_error(false);
        let config = config.max_idle_connections(0).timeout_global(Some(timeout)).proxy(None);
        Client::with_agent(url, key, config.build().into())
    }

    fn with_agent(url: &str, key: Option<String>, agent: ureq::Agent) -> Client {
        let url = url.trim_end_matches('/');
        let url = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        Client {
            agent,
            url: url.strip_suffix("/v1").unwrap_or(&url).to_owned(),
            key: key.or_else(|| std::env::var("INGLE_API_KEY").ok()).filter(|key| !key.is_empty()),
        }
    }

    /// The server's address, without `/v1`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The JSON at `path`.
    ///
    /// # Errors
    /// The server cannot be reached, or answers with an error.
    pub fn get(&self, path: &str) -> anyhow::Result<Value> {
        let mut request = self.agent.get(format!("{}{path}", self.url));
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        self.read(request.call())
    }

    /// The JSON answer to a POST request.
    ///
    /// # Errors
    /// The errors of [`Self::get`].
    pub fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.read(self.try_send(path, body))
    }

    /// Calls `on_event` with the data of each event of a stream, until `[DONE]` or until `cancel`
    /// is set.
    ///
    /// # Errors
    /// The errors of [`Self::get`] and of `on_event`.
    pub fn stream(
        &self,
        path: &str,
        body: &Value,
        cancel: &CancelFlag,
        on_event: &mut dyn FnMut(Value) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut response = self.send(path, body).with_context(|| self.requesting())?;
        if !response.status().is_success() {
            return self.read(Ok(response)).map(drop);
        }
        let mut body = response.body_mut().as_reader();
        let (mut reader, mut bytes) = (sse::Reader::default(), [0; 8192]);
        while !cancel.is_cancelled() {
            let n = body.read(&mut bytes).with_context(|| self.requesting())?;
            if n == 0 {
                bail!("{}: the connection ended within the answer", self.url);
            }
            for event in reader.feed(&bytes[..n]) {
                if event == "[DONE]" {
                    return Ok(());
                }
                let event: Value = serde_json::from_str(&event)
                    .with_context(|| format!("{}: found {event:?}, expected JSON", self.url))?;
                match event.get("error") {
                    Some(error) => bail!("{}: {}", self.url, message(error)),
                    None => on_event(event)?,
                }
            }
        }
        Ok(())
    }

    /// The response to a POST request, whatever its status.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub fn send(&self, path: &str, body: &Value) -> anyhow::Result<Response> {
        self.try_send(path, body).map_err(|error| self.unreachable(error))
    }

    fn try_send(&self, path: &str, body: &Value) -> Result<Response, ureq::Error> {
        let mut request =
            self.agent.post(format!("{}{path}", self.url)).header("content-type", "application/json");
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        request.send(body.to_string())
    }

    fn read(&self, response: Result<Response, ureq::Error>) -> anyhow::Result<Value> {
        let mut response = response.map_err(|error| self.unreachable(error))?;
        let status = response.status();
        let text = response.body_mut().read_to_string().with_context(|| self.requesting())?;
        let body: Option<Value> = serde_json::from_str(&text).ok();
        match body {
            Some(body) if status.is_success() => Ok(body),
            Some(body) => bail!("{}: {}", self.url, message(body.get("error").unwrap_or(&body))),
            None => bail!(
                "{}: found status {status} without JSON, expected a server such as `ingle serve`",
                self.url
            ),
        }
    }

    /// The error of a request without a response.
    fn unreachable(&self, error: ureq::Error) -> anyhow::Error {
        match &error {
            ureq::Error::Io(io) if io.kind() == std::io::ErrorKind::ConnectionRefused => anyhow::anyhow!(
                "no server runs at {}; start one with `ingle serve MODEL`, or name another URL",
                self.url
            ),
            ureq::Error::HostNotFound => {
                anyhow::anyhow!(
                    "{}: no machine has this name; expected a URL such as http://HOST:PORT",
                    self.url
                )
            }
            _ => anyhow::Error::new(error).context(self.requesting()),
        }
    }

    fn requesting(&self) -> String {
        format!("requesting {}", self.url)
    }
}

/// Reads the certificates of a PEM file.
fn trusted(file: &Path) -> anyhow::Result<RootCerts> {
    let pem = std::fs::read(file).with_context(|| format!("--ca-cert: reading {}", file.display()))?;
    let mut certificates = Vec::new();
    for item in parse_pem(&pem) {
        let item = item.with_context(|| format!("--ca-cert {}: invalid PEM", file.display()))?;
        // Private keys in the file are ignored.
        if let PemItem::Certificate(certificate) = item {
            certificates.push(certificate);
        }
    }
    anyhow::ensure!(
        !certificates.is_empty(),
        "--ca-cert {}: found no certificate, expected `-----BEGIN CERTIFICATE-----`",
        file.display()
    );
    Ok(certificates.into())
}

/// A response whose body is not read yet.
pub type Response = ureq::http::Response<ureq::Body>;

/// The message of an error in the form of OpenAI's or Ollama's API.
fn message(error: &Value) -> String {
    let text = error.get("message").unwrap_or(error);
    text.as_str().map_or_else(|| text.to_string(), str::to_owned)
}
