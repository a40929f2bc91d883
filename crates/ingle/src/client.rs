//! A client of a server that runs elsewhere: `run --server`, `ps`, `stop`.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use engine::CancelFlag;
use serde_json::Value;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};

use crate::sse;

/// Which server.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Server")]
pub struct ServerArgs {
    /// Where the server listens
    #[arg(long, default_value = "http://127.0.0.1:8080", value_name = "URL")]
    server: String,

    /// The server's API key [default: INGLE_API_KEY]
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,

    /// Trust only the certificates in this PEM file
    #[arg(long, value_name = "FILE")]
    ca_cert: Option<PathBuf>,
}

impl ServerArgs {
    pub fn client(&self) -> anyhow::Result<Client> {
        Client::new(&self.server, self.api_key.clone(), self.ca_cert.as_deref())
    }
}

/// See the module.
pub struct Client {
    agent: ureq::Agent,
    url: String,
    key: Option<String>,
}

impl Client {
    /// Of the server at `url`, with or without `/v1`; without a key, `INGLE_API_KEY` is asked. With a file of certificates, these
    /// alone are trusted.
    ///
    /// # Errors
    /// The file cannot be read, or has no certificate.
    pub fn new(url: &str, key: Option<String>, ca_cert: Option<&Path>) -> anyhow::Result<Client> {
        let url = url.trim_end_matches('/');
        let url = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let mut config = ureq::Agent::config_builder().http_status_as_error(false);
        if let Some(file) = ca_cert {
            config = config.tls_config(TlsConfig::builder().root_certs(trusted(file)?).build());
        }
        Ok(Client {
            agent: config.build().into(),
            url: url.strip_suffix("/v1").unwrap_or(&url).to_owned(),
            key: key.or_else(|| std::env::var("INGLE_API_KEY").ok()).filter(|key| !key.is_empty()),
        })
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// # Errors
    /// The server cannot be reached, or refuses.
    pub fn get(&self, path: &str) -> anyhow::Result<Value> {
        let mut request = self.agent.get(format!("{}{path}", self.url));
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        self.read(request.call())
    }

    /// # Errors
    /// As [`Self::get`].
    pub fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.read(self.send(path, body))
    }

    /// The data of a stream's events, until `[DONE]` or until `cancel` is set.
    ///
    /// # Errors
    /// As [`Self::get`], or of `on_event`.
    pub fn stream(
        &self,
        path: &str,
        body: &Value,
        cancel: &CancelFlag,
        on_event: &mut dyn FnMut(Value) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut response =
            self.send(path, body).map_err(|error| self.unreachable(error)).with_context(|| self.asking())?;
        if !response.status().is_success() {
            return self.read(Ok(response)).map(drop);
        }
        let mut body = response.body_mut().as_reader();
        let (mut reader, mut bytes) = (sse::Reader::default(), [0; 8192]);
        while !cancel.is_cancelled() {
            let n = body.read(&mut bytes).with_context(|| self.asking())?;
            if n == 0 {
                bail!("{}: the answer broke off", self.url);
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

    fn send(&self, path: &str, body: &Value) -> Result<Response, ureq::Error> {
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
        let text = response.body_mut().read_to_string().with_context(|| self.asking())?;
        let body: Option<Value> = serde_json::from_str(&text).ok();
        match body {
            Some(body) if status.is_success() => Ok(body),
            Some(body) => bail!("{}: {}", self.url, message(body.get("error").unwrap_or(&body))),
            None => bail!(
                "{}: found status {status} and no JSON; is it a server such as `ingle serve`?",
                self.url
            ),
        }
    }

    /// Why there is no answer at all.
    fn unreachable(&self, error: ureq::Error) -> anyhow::Error {
        match &error {
            ureq::Error::Io(io) if io.kind() == std::io::ErrorKind::ConnectionRefused => anyhow::anyhow!(
                "no server runs at {}; start one with `ingle serve MODEL`, or name another with --server URL",
                self.url
            ),
            ureq::Error::HostNotFound => {
                anyhow::anyhow!("{}: no machine has this name; expected --server http://HOST:PORT", self.url)
            }
            _ => anyhow::Error::new(error).context(self.asking()),
        }
    }

    fn asking(&self) -> String {
        format!("asking the server at {}", self.url)
    }
}

/// The certificates of a PEM file.
fn trusted(file: &Path) -> anyhow::Result<RootCerts> {
    let pem = std::fs::read(file).with_context(|| format!("--ca-cert: reading {}", file.display()))?;
    let mut certificates = Vec::new();
    for item in parse_pem(&pem) {
        let item = item.with_context(|| format!("--ca-cert {}: no valid PEM", file.display()))?;
        // A key is nobody's to trust.
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

type Response = ureq::http::Response<ureq::Body>;

/// What an error says, in the shape of OpenAI's API or of Ollama's.
fn message(error: &Value) -> String {
    let text = error.get("message").unwrap_or(error);
    text.as_str().map_or_else(|| text.to_string(), str::to_owned)
}
