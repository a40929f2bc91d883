//! One request over a connection of its own.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::sse::Reader;

/// Whom to ask.
#[derive(Clone)]
pub struct Target {
    /// Host and port, as in the URL.
    authority: String,
    /// Path before `/v1`, without its last slash.
    path: String,
    api_key: Option<String>,
    /// `model` of every request.
    pub model: String,
    /// After which a request has failed.
    timeout: Duration,
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// 429: the server said at once that it is full, in these words.
    Refused(String),
    /// We hung up, as planned.
    HungUp,
    /// The stream ended without `finish_reason`.
    Killed,
    Failed(String),
}

/// A request and what came back. Times are those of chunks with text.
#[derive(Clone, Debug)]
pub struct Answer {
    pub messages: Value,
    /// Tokens asked for.
    pub n_answer: usize,
    /// When it should have been sent.
    pub scheduled: Instant,
    pub chunks: Vec<Instant>,
    pub ended: Instant,
    pub outcome: Outcome,
    pub text: String,
    /// Tokens, as the server counts them.
    pub n_prompt: u64,
    pub n_cached: u64,
    pub n_generated: u64,
}

/// Ends a connection with its owner.
struct Connection(JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Target {
    /// The server at `url`, as `http://host:port`, with or without `/v1`.
    pub fn new(url: &str, api_key: Option<String>, timeout: Duration) -> anyhow::Result<Target> {
        let Some(rest) = url.strip_prefix("http://") else {
            bail!("{url} is not a URL that begins with http://, and no other can be measured");
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        ensure!(!authority.is_empty(), "{url} names no host");
        let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let authority = if has_port { authority.to_owned() } else { format!("{authority}:80") };
        let path = path.trim_end_matches('/');
        let path = path.strip_suffix("v1").unwrap_or(path).trim_end_matches('/');
        let path = if path.is_empty() { String::new() } else { format!("/{path}") };
        Ok(Target { authority, path, api_key, model: String::new(), timeout })
    }

    async fn send(
        &self,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<(Response<Incoming>, Connection)> {
        let stream = tokio::net::TcpStream::connect(&self.authority)
            .await
            .with_context(|| format!("connecting to {}", self.authority))?;
        stream.set_nodelay(true)?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        // A failed connection is seen by whoever reads the body.
        let connection = Connection(tokio::spawn(async move { drop(connection.await) }));
        let mut request = Request::builder()
            .method(if body.is_some() { "POST" } else { "GET" })
            .uri(format!("{}{path}", self.path))
            .header("host", &self.authority)
            .header("content-type", "application/json");
        if let Some(key) = &self.api_key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = request.body(Full::new(Bytes::from(body)))?;
        Ok((sender.send_request(request).await?, connection))
    }

    /// The id of the first model that the server lists.
    pub async fn first_model(&self) -> anyhow::Result<String> {
        let (response, _connection) = self.send("/v1/models", None).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        ensure!(status == 200, "/v1/models answers {status}: {}", String::from_utf8_lossy(&body));
        let list: Value = serde_json::from_slice(&body).context("reading /v1/models")?;
        let id = list["data"][0]["id"].as_str();
        Ok(id.context("/v1/models lists no model; name one with --model")?.to_owned())
    }

    /// Ask for `n_answer` tokens and read the stream, hanging up after `hang_up_after` chunks.
    pub async fn ask(
        &self,
        messages: Value,
        n_answer: usize,
        scheduled: Instant,
        hang_up_after: Option<usize>,
    ) -> Answer {
        let mut answer = Answer {
            messages,
            n_answer,
            scheduled,
            chunks: Vec::new(),
            ended: scheduled,
            outcome: Outcome::Killed,
            text: String::new(),
            n_prompt: 0,
            n_cached: 0,
            n_generated: 0,
        };
        let streamed = tokio::time::timeout(self.timeout, self.stream(&mut answer, hang_up_after));
        answer.outcome = match streamed.await {
            Ok(Ok(outcome)) => outcome,
            // Cut off after it began.
            Ok(Err(_)) if !answer.chunks.is_empty() => Outcome::Killed,
            Ok(Err(error)) => Outcome::Failed(crate::output::message(&error)),
            Err(_) => {
                let seconds = self.timeout.as_secs();
                Outcome::Failed(format!("no whole answer within {seconds} s (--timeout)"))
            }
        };
        answer.ended = Instant::now();
        answer
    }

    async fn stream(&self, answer: &mut Answer, hang_up_after: Option<usize>) -> anyhow::Result<Outcome> {
        let body = json!({
            "model": self.model, "messages": answer.messages, "max_tokens": answer.n_answer,
            "temperature": 0, "seed": 0, "ignore_eos": true,
            "stream": true, "stream_options": { "include_usage": true },
        });
        let (response, _connection) = self.send("/v1/chat/completions", Some(&body)).await?;
        let status = response.status();
        let mut body = response.into_body();
        if status != 200 {
            let bytes = body.collect().await?.to_bytes();
            let text = String::from_utf8_lossy(&bytes).trim().to_owned();
            if status == 429 {
                return Ok(Outcome::Refused(text));
            }
            bail!("{status}: {text}");
        }
        let (mut reader, mut finished) = (Reader::default(), false);
        while let Some(frame) = body.frame().await {
            let frame = frame?;
            let now = Instant::now();
            for data in frame.data_ref().map(|bytes| reader.feed(bytes)).unwrap_or_default() {
                if data == "[DONE]" {
                    continue;
                }
                let event: Value = serde_json::from_str(&data)
                    .with_context(|| format!("an event that is not JSON: {data}"))?;
                if let Some(error) = event.get("error") {
                    return Ok(Outcome::Failed(error.to_string()));
                }
                if let Some(usage) = event.get("usage").filter(|usage| usage.is_object()) {
                    answer.n_prompt = usage["prompt_tokens"].as_u64().unwrap_or(0);
                    answer.n_generated = usage["completion_tokens"].as_u64().unwrap_or(0);
                    answer.n_cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
                }
                let choice = &event["choices"][0];
                finished |= choice["finish_reason"].is_string();
                let delta = &choice["delta"];
                let texts = [&delta["reasoning_content"], &delta["content"]];
                let texts: String = texts.iter().filter_map(|text| text.as_str()).collect();
                if !texts.is_empty() {
                    answer.chunks.push(now);
                    answer.text.push_str(&texts);
                }
            }
            if hang_up_after.is_some_and(|n| answer.chunks.len() >= n) {
                return Ok(Outcome::HungUp);
            }
        }
        Ok(if finished { Outcome::Done } else { Outcome::Killed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_with_and_without_v1_are_one_server() {
        for (url, authority, path) in [
            ("http://localhost:8080", "localhost:8080", ""),
            ("http://localhost:8080/v1/", "localhost:8080", ""),
            ("http://host/a/v1", "host:80", "/a"),
            ("http://[::1]:90", "[::1]:90", ""),
        ] {
            let target = Target::new(url, None, Duration::MAX).expect(url);
            assert_eq!((&*target.authority, &*target.path), (authority, path), "{url}");
        }
        for url in ["https://host", "host:80", "http:///v1"] {
            assert!(Target::new(url, None, Duration::MAX).is_err(), "{url}");
        }
    }
}
