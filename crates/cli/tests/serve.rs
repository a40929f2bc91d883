//! `ingle serve`: the real binary with a real model and requests of clients.
//!
//! Past 600 lines, because one way to start, watch and stop a server serves all tests.

#![allow(clippy::unwrap_used)] // A test that cannot go on fails.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::{SMOLLM2, error, fixture};

/// A server of SmolLM2 at a free port, killed when dropped.
pub(crate) struct Server {
    child: Child,
    pub(crate) url: String,
}

impl Server {
    /// A server that has answered no request.
    pub(crate) fn start(more: &[&str]) -> Server {
        Self::warmed(&[&["--no-warmup"], more].concat())
    }

    fn warmed(more: &[&str]) -> Server {
        Self::of(&SMOLLM2.path(), more)
    }

    /// A server of another model.
    pub(crate) fn of(model: &str, more: &[&str]) -> Server {
        Self::run(Command::new(env!("CARGO_BIN_EXE_ingle")), model, more)
    }

    /// A server started by a command of `ingle`.
    pub(crate) fn run(mut ingle: Command, model: &str, more: &[&str]) -> Server {
        ingle.args(["serve", model, "--port", "0", "-t", "1"]).args(more);
        let mut child = ingle.stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let first = lines.next().unwrap().unwrap();
        let url = first.strip_prefix("listening at ").unwrap().to_owned();
        // The rest of stderr is drained, so that it does not fill the pipe.
        thread::spawn(move || lines.for_each(drop));
        let server = Server { child, url };
        let begun = Instant::now();
        while server.get("/health").0 != 200 {
            assert!(begun.elapsed() < Duration::from_secs(120), "the server does not become ready");
            thread::sleep(Duration::from_millis(20));
        }
        server
    }

    /// A client that trusts the certificate of the tests.
    pub(crate) fn agent() -> ureq::Agent {
        let pem = std::fs::read(fixture("tls/localhost.crt")).unwrap();
        let trusted = [ureq::tls::Certificate::from_pem(&pem).unwrap()];
        let tls = ureq::tls::TlsConfig::builder().root_certs(ureq::tls::RootCerts::new_with_certs(&trusted));
        ureq::Agent::config_builder().http_status_as_error(false).tls_config(tls.build()).build().into()
    }

    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        let mut response = Self::agent().get(format!("{}{path}", self.url)).call().unwrap();
        (response.status().as_u16(), response.body_mut().read_to_string().unwrap())
    }

    pub(crate) fn open(
        &self,
        path: &str,
        key: Option<&str>,
        body: &Value,
    ) -> ureq::http::Response<ureq::Body> {
        let mut request = Self::agent().post(format!("{}{path}", self.url));
        if let Some(key) = key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        request.send(body.to_string()).unwrap()
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let mut response = self.open(path, None, body);
        let text = response.body_mut().read_to_string().unwrap();
        (response.status().as_u16(), serde_json::from_str(&text).unwrap())
    }

    #[track_caller]
    pub(crate) fn ok(&self, path: &str, body: &Value) -> Value {
        let (status, answer) = self.post(path, body);
        assert_eq!(status, 200, "{answer}");
        answer
    }

    /// The data of a stream's events, without the final `[DONE]`.
    pub(crate) fn stream(&self, path: &str, body: &Value) -> Vec<Value> {
        let mut response = self.open(path, None, body);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let text = response.body_mut().read_to_string().unwrap();
        let mut events: Vec<&str> = text.split_terminator("\n\n").collect();
        assert_eq!(events.pop(), Some("data: [DONE]"));
        events
            .iter()
            .map(|event| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap())
            .collect()
    }

    /// The value of a metric in `/metrics`.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").1;
        let line = text.lines().find(|line| line.starts_with(name) && line[name.len()..].starts_with('{'));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// Peak resident bytes of the server; `None` if the system does not report them.
    pub(crate) fn peak_memory(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
    }

    #[cfg(unix)]
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// True while the process runs.
    #[cfg(unix)]
    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    #[cfg(unix)]
    pub(crate) fn terminate(mut self) -> ExitStatus {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        self.child.wait().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may already have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn chat(text: &str, more: Value) -> Value {
    let mut body = json!({ "messages": [{ "role": "user", "content": text }], "temperature": 0 });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

pub(crate) const CHAT: &str = "/v1/chat/completions";

#[test]
fn an_answer_is_the_same_whole_streamed_and_among_others() {
    let server = Server::warmed(&["--deterministic", "--slots", "4"]);
    let questions =
        ["What is a hearth?", "Name three colours.", "Why do leaves fall?", "Count to five.", "Who are you?"];
    let solo: Vec<Value> =
        questions.iter().map(|text| server.ok(CHAT, &chat(text, json!({ "max_tokens": 24 })))).collect();
    for answer in &solo {
        assert_eq!(answer["object"], "chat.completion");
        assert_eq!(answer["usage"]["completion_tokens"], 24);
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
        assert_eq!(answer["choices"][0]["message"].get("refusal"), Some(&Value::Null));
    }
    // More streams than slots run at the same time.
    let streamed: Vec<Vec<Value>> = thread::scope(|scope| {
        let ask = |text: &'static str| {
            let body =
                json!({ "max_tokens": 24.0, "stream": true, "stream_options": { "include_usage": true } });
            scope.spawn(|| server.stream(CHAT, &chat(text, body)))
        };
        let asked: Vec<_> = questions.iter().map(|text| ask(text)).collect();
        asked.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (solo, events) in solo.iter().zip(&streamed) {
        assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
        let texts = events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str());
        assert_eq!(solo["choices"][0]["message"]["content"], texts.collect::<String>());
        let (usage, end) = (&events[events.len() - 1], &events[events.len() - 2]);
        assert_eq!(end["choices"][0]["finish_reason"], "length");
        assert_eq!(usage["choices"], json!([]));
        // All chunks have the key usage, and only the last has its value.
        let others = &events[..events.len() - 1];
        assert!(others.iter().all(|event| event.get("usage") == Some(&Value::Null)), "{others:?}");
        assert_eq!(usage["usage"]["total_tokens"], solo["usage"]["total_tokens"]);
        // Each prompt had been computed before.
        let usage = &usage["usage"];
        assert!(usage["prompt_tokens_details"]["cached_tokens"].as_u64() > Some(8), "{usage}");
    }
    // Metrics are updated after the step that they count. The warm-up does not count.
    let begun = Instant::now();
    while server.metric("ingle_tokens_generated_total") != 24.0 * 10.0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "{}", server.get("/metrics").1);
    }
}

#[test]
fn completions_of_texts_and_tokens() {
    let server = Server::start(&["--deterministic"]);
    let text = "The capital of France is";
    let answer =
        server.ok("/v1/completions", &json!({ "prompt": [text, text], "max_tokens": 3, "temperature": 0 }));
    assert_eq!(answer["object"], "text_completion");
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!((choices.len(), &choices[0]["text"]), (2, &choices[1]["text"]));
    assert!(choices[0]["text"].as_str().unwrap().starts_with(" Paris"), "{answer}");
    // The prompt as tokens gives the same answer, with log-probabilities.
    let tokens = server.ok("/tokenize", &json!({ "content": text, "add_special": true }))["tokens"].clone();
    assert_eq!(server.ok("/detokenize", &json!({ "tokens": tokens }))["content"], text);
    let body = json!({ "prompt": tokens, "max_tokens": 3, "temperature": 0, "logprobs": 0 });
    let again = server.ok("/v1/completions", &body);
    assert_eq!(again["choices"][0]["text"], choices[0]["text"]);
    let logprobs = &again["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"][0], " Paris");
    assert!(logprobs["token_logprobs"].as_array().unwrap().iter().all(|p| p.as_f64().unwrap() < 0.0));
    // An echo also has log-probabilities of the prompt, cached or not. The first token has none.
    let body = json!({ "prompt": text, "max_tokens": 1, "temperature": 0, "logprobs": 2, "echo": true });
    let echo = server.ok("/v1/completions", &body)["choices"][0].clone();
    assert_eq!(echo["text"], format!("{text} Paris"));
    let list = |key: &str| echo["logprobs"][key].as_array().unwrap().clone();
    assert_eq!(
        list("tokens").iter().map(|t| t.as_str().unwrap()).collect::<String>(),
        format!("{text} Paris")
    );
    assert_eq!(
        (&list("token_logprobs")[0], list("token_logprobs").len()),
        (&Value::Null, list("tokens").len())
    );
    assert!(list("token_logprobs")[1..].iter().all(|p| p.as_f64().unwrap() < 0.0));
    assert!(list("top_logprobs")[1..].iter().all(|top| top.as_object().unwrap().len() == 2));
    assert_eq!(list("token_logprobs").last(), logprobs["token_logprobs"].get(0));
    // A stop string is not part of the answer. A seed repeats it, and the answers of one request
    // differ.
    let stopped = server.ok("/v1/completions", &json!({ "prompt": text, "temperature": 0, "stop": "aris" }));
    assert_eq!(
        (&stopped["choices"][0]["text"], &stopped["choices"][0]["finish_reason"]),
        (&json!(" P"), &json!("stop"))
    );
    let body = json!({ "prompt": text, "max_tokens": 8, "temperature": 1.5, "seed": 7, "n": 2 });
    let (one, two) = (server.ok("/v1/completions", &body), server.ok("/v1/completions", &body));
    assert_eq!(one["choices"], two["choices"]);
    assert_ne!(one["choices"][0]["text"], one["choices"][1]["text"]);
}

#[test]
fn answers_follow_their_grammar() {
    let server = Server::start(&["--slots", "4"]);
    let schema = json!({
        "type": "object", "additionalProperties": false, "required": ["name", "age", "tags"],
        "properties": {
            "name": { "type": "string", "maxLength": 12 },
            "age": { "type": "integer", "minimum": 0, "maximum": 120 },
            "tags": { "type": "array", "items": { "enum": ["red", "green"] }, "minItems": 1, "maxItems": 3 },
        },
    });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "person", "schema": schema } });
    // The requests share a batch and a high temperature, so only the grammar makes the answers
    // JSON.
    thread::scope(|scope| {
        for seed in 0..6 {
            let (server, format) = (&server, &format);
            scope.spawn(move || {
                let more =
                    json!({ "response_format": format, "seed": seed, "temperature": 1.5, "max_tokens": 200 });
                let answer = server.ok(CHAT, &chat("Describe a person.", more));
                assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{answer}");
                let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
                let person: Value =
                    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
                assert_eq!(person.as_object().unwrap().len(), 3, "{text}");
                assert!(person["name"].as_str().unwrap().chars().count() <= 12, "{text}");
                assert!((0..=120).contains(&person["age"].as_i64().unwrap()), "{text}");
                assert!((1..=3).contains(&person["tags"].as_array().unwrap().len()), "{text}");
            });
        }
    });
    let complete = |more: Value| {
        let mut body = json!({ "prompt": "The answer is", "max_tokens": 40, "temperature": 1.0, "seed": 3 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.ok("/v1/completions", &body)["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    let date = complete(json!({ "guided_regex": "[0-9]{4}-[01][0-9]" }));
    assert!(date.len() == 7 && date.as_bytes()[4] == b'-', "{date}");
    assert!(["yes \"sir\"", "no"].contains(&&*complete(json!({ "guided_choice": ["yes \"sir\"", "no"] }))));
    let lark = "start: \"<\" /[a-c]/+ \">\"";
    let gbnf = complete(json!({ "grammar": "root ::= (\"ab\" | \"c\"){2,4} \"!\"" }));
    assert!(gbnf.ends_with('!') && gbnf.trim_end_matches('!').chars().all(|c| "abc".contains(c)), "{gbnf}");
    let text = complete(json!({ "guided_grammar": lark }));
    assert!(
        text.starts_with('<') && text[1..].trim_end_matches('>').chars().all(|c| ('a'..='c').contains(&c)),
        "{text}"
    );
    // A schema that cannot be compiled is an error, never ignored.
    for format in [json!({ "type": "nonsense" }), json!({ "type": "string", "pattern": "(" })] {
        let body = chat("a", json!({ "json_schema": format }));
        let (status, answer) = server.post(CHAT, &body);
        assert_eq!(status, 400, "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains("grammar"), "{answer}");
    }
    // Given end tokens replace the model's own, and end the answer at their place.
    let tokens = server.ok("/tokenize", &json!({ "content": " Paris" }))["tokens"].clone();
    let body = json!({ "prompt": "The capital of France is", "temperature": 0, "stop_token_ids": tokens, "logprobs": 3 });
    let stopped = server.ok("/v1/completions", &body);
    assert_eq!(
        (&stopped["choices"][0]["text"], &stopped["choices"][0]["finish_reason"]),
        (&json!(""), &json!("stop"))
    );
    let body =
        chat("Say hi.", json!({ "max_tokens": 4, "logprobs": true, "top_logprobs": 3, "min_tokens": 4 }));
    for token in server.ok(CHAT, &body)["choices"][0]["logprobs"]["content"].as_array().unwrap() {
        let top = token["top_logprobs"].as_array().unwrap();
        assert!(top.len() == 3 && top[0]["logprob"].as_f64() >= top[1]["logprob"].as_f64(), "{token}");
        assert_eq!((&top[0]["token"], &top[0]["logprob"]), (&token["token"], &token["logprob"]));
        assert!(top[0].get("top_logprobs").is_none(), "{token}");
    }
}

#[test]
fn messages_as_anthropic_has_them() {
    let server = Server::start(&["--deterministic", "--api-key", "one"]);
    let ask = |path: &str, body: &Value| {
        let request = Server::agent().post(format!("{}{path}", server.url)).header("x-api-key", "one");
        let mut response = request.send(body.to_string()).unwrap();
        (response.status().as_u16(), response.body_mut().read_to_string().unwrap())
    };
    let body = |more: Value| {
        let mut body = json!({
            "model": SMOLLM2.path(), "max_tokens": 12, "temperature": 0, "system": "Be brief.",
            "messages": [{ "role": "user", "content": [{ "type": "text", "text": "What is a hearth?" }] }],
        });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    // Errors before a handler also have the form of this API.
    for (path, key, status) in [("/v1/messages", "two", 401), ("/v1/messages/none", "one", 404)] {
        let request = Server::agent().post(format!("{}{path}", server.url)).header("x-api-key", key);
        let mut response = request.send("{}").unwrap();
        let refused: Value = serde_json::from_str(&response.body_mut().read_to_string().unwrap()).unwrap();
        assert_eq!((response.status().as_u16(), &refused["type"]), (status, &json!("error")), "{refused}");
        assert_eq!(
            Some(&refused["request_id"]),
            response.headers().get("x-request-id").map(|id| json!(id.to_str().unwrap())).as_ref()
        );
    }
    // A base address without a version works, too.
    assert_eq!(
        ask("/messages/count_tokens/", &body(json!({}))),
        ask("/v1/messages/count_tokens", &body(json!({})))
    );
    // Both APIs list models at the same path.
    let request =
        Server::agent().get(format!("{}/v1/models?limit=1000", server.url)).header("x-api-key", "one");
    let list: Value =
        serde_json::from_str(&request.call().unwrap().body_mut().read_to_string().unwrap()).unwrap();
    let model = &list["data"][0];
    assert_eq!(
        (&list["has_more"], &list["first_id"], &list["last_id"]),
        (&json!(false), &model["id"], &model["id"])
    );
    assert_eq!(
        (&model["type"], &model["object"], &model["display_name"]),
        (&json!("model"), &json!("model"), &model["id"])
    );
    assert!(model["created_at"].as_str().unwrap().ends_with('Z') && model["created"].is_u64(), "{model}");
    let (status, text) = ask("/v1/messages", &body(json!({})));
    assert_eq!(status, 200, "{text}");
    let whole: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (&whole["type"], &whole["role"], &whole["stop_reason"]),
        (&json!("message"), &json!("assistant"), &json!("max_tokens"))
    );
    assert_eq!(whole["usage"]["output_tokens"], 12);
    let (_, stream) = ask("/v1/messages", &body(json!({ "stream": true })));
    let mut names = Vec::new();
    let mut said = String::new();
    for event in stream.split_terminator("\n\n") {
        let (name, data) = event.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str());
        said.push_str(data["delta"]["text"].as_str().unwrap_or_default());
        names.push(data["type"].as_str().unwrap().to_owned());
    }
    assert_eq!(whole["content"][0]["text"], said);
    names.dedup();
    names.retain(|name| name != "ping");
    let expected = [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(names, expected);
    let (_, count) = ask("/v1/messages/count_tokens", &body(json!({})));
    let count: Value = serde_json::from_str(&count).unwrap();
    let usage = |key: &str| whole["usage"][key].as_u64().unwrap_or(0);
    assert_eq!(count["input_tokens"], usage("input_tokens") + usage("cache_read_input_tokens"));
    let (status, wrong) = ask("/v1/messages", &json!({ "model": "x", "messages": [] }));
    let wrong: Value = serde_json::from_str(&wrong).unwrap();
    assert_eq!((status, &wrong["type"]), (400, &json!("error")), "{wrong}");
    assert_eq!(wrong["error"]["type"], "invalid_request_error");
}

#[test]
fn wrong_requests_are_told_what_is_wrong() {
    let server = Server::start(&[]);
    let long = "word ".repeat(9000);
    let user = json!([{ "role": "user", "content": "a" }]);
    for (path, body, status, param, code) in [
        (CHAT, json!({ "messages": "a" }), 400, "messages", Value::Null),
        (CHAT, json!({ "messages": user, "temperature": -1 }), 400, "temperature", Value::Null),
        (CHAT, json!({ "messages": user, "model": "gpt-9" }), 404, "model", json!("model_not_found")),
        (CHAT, chat(&long, json!({})), 400, "messages", json!("context_length_exceeded")),
        (CHAT, json!({ "messages": user, "grammar": "root ::= missing" }), 400, "null", Value::Null),
        (CHAT, json!({ "messages": user, "structural_tag": {} }), 400, "structural_tag", Value::Null),
        (CHAT, json!({ "messages": user, "mirostat": 3 }), 400, "mirostat", Value::Null),
        ("/v1/completions", json!({ "prompt": [1, 99_999_999] }), 400, "null", Value::Null),
        ("/v1/completions", json!({ "prompt": "a", "n": 2, "best_of": 1 }), 400, "best_of", Value::Null),
        ("/v1/nothing", json!({}), 404, "null", Value::Null),
    ] {
        let (found, answer) = server.post(path, &body);
        let error = &answer["error"];
        assert_eq!(found, status, "{answer}");
        assert_eq!(error["param"].as_str().unwrap_or("null"), param, "{answer}");
        assert_eq!(error["code"], code, "{answer}");
        assert!(error["message"].as_str().unwrap().len() > 20 && error["type"].is_string(), "{answer}");
    }
    assert_eq!(server.get(CHAT).0, 405);
    let (status, missing) = server.post("/v1/v1/chat/completions", &json!({}));
    let message = missing["error"]["message"].as_str().unwrap();
    assert!(status == 404 && message.ends_with("expected /v1/chat/completions"), "{message}");
    // Unknown keys are ignored.
    server.ok(CHAT, &chat("a", json!({ "max_tokens": 1, "a_key_of_a_router": [1] })));
}

#[test]
fn whoever_hangs_up_is_not_computed_for() {
    let server = Server::start(&["--slots", "1", "--max-waiting", "0"]);
    let body = chat("Tell a long story.", json!({ "stream": true, "ignore_eos": true, "max_tokens": 4000 }));
    let response = server.open(CHAT, None, &body);
    let mut reader = response.into_body().into_reader();
    assert!(reader.read(&mut [0; 64]).unwrap() > 0);
    // The only slot is in use, and the queue has no room.
    let begun = Instant::now();
    while server.metric("ingle_requests_running") < 1.0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "it does not begin");
    }
    let full = server.open(CHAT, None, &chat("Hello", json!({ "max_tokens": 1 })));
    assert_eq!(
        (full.status().as_u16(), &full.headers()["retry-after"]),
        (429, &ureq::http::HeaderValue::from(1))
    );
    let slots: Value = serde_json::from_str(&server.get("/slots").1).unwrap();
    assert_eq!(slots[0]["is_processing"], true);
    drop(reader);
    while server.metric("ingle_requests_running") > 0.0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "it goes on for nobody");
        thread::sleep(Duration::from_millis(5));
    }
    assert!(server.metric("ingle_tokens_generated_total") < 4000.0);
    server.ok(CHAT, &chat("Hello", json!({ "max_tokens": 1 })));
}

#[test]
fn keys_are_asked_for() {
    let server = Server::start(&["--api-key", "one", "--api-key", "two"]);
    let body = chat("What is a hearth made of, and why?", json!({ "max_tokens": 1 }));
    assert_eq!(server.open(CHAT, None, &body).status(), 401);
    assert_eq!(server.open(CHAT, Some("three"), &body).status(), 401);
    assert_eq!(server.get("/v1/models").0, 401);
    let cached = |key| {
        let mut response = server.open(CHAT, Some(key), &body);
        assert_eq!(response.headers()["x-request-id"].len(), 16);
        let answer: Value = serde_json::from_str(&response.body_mut().read_to_string().unwrap()).unwrap();
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    // One tenant cannot detect cached prompts of another.
    assert_eq!(cached("one"), 0);
    assert!(cached("one") > 0);
    assert_eq!(cached("two"), 0);

    let message = error(&["serve", "nothing.gguf", "--host", "0.0.0.0", "--port", "0"]);
    assert!(message.contains("--api-key") && message.contains("--insecure"), "{message}");
}

#[test]
fn embeddings_are_those_of_sentence_transformers() {
    let text = std::fs::read_to_string(fixture("embeddings/minilm.json")).unwrap();
    let answers: Value = serde_json::from_str(&text).unwrap();
    // A context larger than the embedder's limit applies to the other models.
    let server = Server::start(&["minilm:l6", "--ctx", "1024"]);
    let body = json!({ "model": "minilm:l6", "input": answers["sentences"], "truncate": true });
    let found = server.ok("/v1/embeddings", &body);
    let numbers =
        |v: &Value| -> Vec<f64> { v.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect() };
    let data = found["data"].as_array().unwrap();
    assert_eq!(data.len(), answers["embeddings"].as_array().unwrap().len());
    for (entry, exact) in data.iter().zip(answers["embeddings"].as_array().unwrap()) {
        let worst = numbers(&entry["embedding"])
            .iter()
            .zip(numbers(exact))
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, f64::max);
        // All values are f32, summed in other orders: measured below 1e-6.
        assert!(worst < 1e-5, "{worst}");
    }
    assert!(found["usage"]["prompt_tokens"].as_u64() > Some(data.len() as u64));
    // The base64 text is of little-endian f32, so it begins with that of the first value.
    let base64 =
        json!({ "model": "minilm:l6", "input": answers["sentences"][0], "encoding_format": "base64" });
    let text = server.ok("/v1/embeddings", &base64)["data"][0]["embedding"].as_str().unwrap().to_owned();
    assert_eq!(text.len(), (384 * 4_usize).div_ceil(3) * 4);
    let short = json!({ "model": "minilm:l6", "input": [[101, 7592, 102]], "dimensions": 16 });
    let vector = numbers(&server.ok("/v1/embeddings", &short)["data"][0]["embedding"]);
    assert!(vector.len() == 16 && (vector.iter().map(|x| x * x).sum::<f64>() - 1.0).abs() < 1e-5);
    // Each model rejects the requests of other kinds.
    let (status, wrong) = server.post("/v1/embeddings", &json!({ "input": "a" }));
    assert_eq!((status, &wrong["error"]["param"]), (400, &json!("model")));
    let (status, wrong) = server.post(CHAT, &chat("a", json!({ "model": "minilm:l6" })));
    assert_eq!((status, &wrong["error"]["param"]), (400, &json!("model")));
    let long = json!({ "model": "minilm:l6", "input": "word ".repeat(600) });
    assert_eq!(server.post("/v1/embeddings", &long).1["error"]["code"], "context_length_exceeded");
}

#[test]
fn an_idle_model_is_unloaded_and_comes_back() {
    // A second name of the same file is a model that is loaded at its first request.
    let server = Server::start(&[SMOLLM2.name, "--keep-alive", "-1"]);
    let is_loaded = || {
        let models: Value = serde_json::from_str(&server.get("/v1/models").1).unwrap();
        assert_eq!(models["data"][1]["id"], SMOLLM2.name);
        models["data"][1]["meta"].is_object()
    };
    assert!(!is_loaded());
    let body = chat("Hello", json!({ "model": SMOLLM2.name, "max_tokens": 2, "keep_alive": "100ms" }));
    let first = server.ok(CHAT, &body);
    assert_eq!(first["model"], SMOLLM2.name);
    let begun = Instant::now();
    while is_loaded() {
        assert!(begun.elapsed() < Duration::from_secs(20), "it stays loaded");
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(server.ok(CHAT, &body)["choices"], first["choices"]);
}

#[test]
#[cfg(unix)]
fn a_signal_lets_answers_end() {
    let server = Server::start(&[]);
    let url = format!("{}{CHAT}", server.url);
    let body = chat("Tell a story.", json!({ "stream": true, "ignore_eos": true, "max_tokens": 150 }));
    let mut reader = server.open(CHAT, None, &body).into_body().into_reader();
    assert!(reader.read(&mut [0; 64]).unwrap() > 0);
    let rest = thread::spawn(move || {
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        text
    });
    let status = server.terminate();
    assert_eq!(status.code(), Some(0));
    let text = rest.join().unwrap();
    assert!(text.ends_with("data: [DONE]\n\n") && text.contains("\"finish_reason\":\"length\""), "{text}");
    assert!(Server::agent().post(url).send("{}").is_err());
}

/// Draft tokens change no answer, also not of concurrent requests. A model without such a layer
/// ends the server.
#[test]
fn models_guess_by_their_own_layers() {
    let (folder, source) = (tempfile::tempdir().unwrap(), fixture("models/glm4_moe_mtp"));
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(source.join(file), folder.path().join(file)).unwrap();
    }
    // Each token is a character.
    let character = |id: u64| char::from_u32(0x4e00 + id as u32).unwrap().to_string();
    let vocab: serde_json::Map<String, Value> = (0..160).map(|id| (character(id), json!(id))).collect();
    let tokenizer = json!({
        "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null, "post_processor": null,
        "decoder": null, "model": { "type": "BPE", "vocab": vocab, "merges": [] },
    });
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let text = std::fs::read_to_string(source.join("expected.json")).unwrap();
    let expected: Value = serde_json::from_str(&text).unwrap();
    let answer: String = expected["answer"].as_array().unwrap()[..30]
        .iter()
        .map(|id| character(id.as_u64().unwrap()))
        .collect();
    let server = Server::of(folder.path().to_str().unwrap(), &["--mtp", "--deterministic", "--ctx", "128"]);
    let body = json!({ "prompt": expected["input_ids"], "max_tokens": 30, "temperature": 0 });
    thread::scope(|scope| {
        let ask = || server.post("/v1/completions", &body);
        for asked in [(); 3].map(|()| scope.spawn(ask)) {
            let (status, found) = asked.join().unwrap();
            assert_eq!((status, &found["choices"][0]["text"]), (200, &json!(answer)), "{found}");
        }
    });
    let message = error(&["serve", &SMOLLM2.path(), "--mtp", "--port", "0", "-t", "1"]);
    assert!(message.contains("no layer that predicts one token more"), "{message}");
}
