//! Tests of limits that protect other clients from a request, a client or a fault. They cover sizes
//! of requests, numbers of connections, panics in a model's thread, and prompt shutdown.

#![allow(clippy::unwrap_used)] // A test that cannot go on fails.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use device::Device;
use device_cpu::{CpuDevice, Options as CpuOptions};
use engine::{
    Engine, LoadOptions, Model, Proposer, SamplingChoice, SamplingParams, Speculate, Target, TokenizerSource,
};
use runner::{
    Caller, CompletionRequest, EventKind, GenerateOptions, KeepAlive, LoadError, Loaded, Loader, Prompt,
    Runner, StopReason,
};
use serde_json::{Map, Value, json};
use weights::Access;

use crate::common::SMOLLM2;
use crate::serve::{CHAT, Server, chat};

/// Longest wait of other clients. (It is usually far shorter, but machines that run tests are
/// busy.)
const MOST_WAIT: Duration = Duration::from_secs(30);

/// Largest resident memory of a server of SmolLM2, in bytes. Without hostile requests it is about
/// 200 MB.
const MOST_MEMORY: u64 = 900 << 20;

/// The schema with its references resolved.
fn resolved<'a>(api: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        Some(name) => &api["components"]["schemas"][name.rsplit('/').next().unwrap()],
        None => schema,
    }
}

/// The keys of a request's body, with their schemas.
fn keys_of(api: &Value, schema: &Value) -> Map<String, Value> {
    let schema = resolved(api, schema);
    let mut keys = schema["properties"].as_object().cloned().unwrap_or_default();
    let parts = ["allOf", "anyOf"].iter().filter_map(|name| schema[*name].as_array()).flatten();
    for part in parts {
        keys.extend(keys_of(api, part));
    }
    keys
}

/// True if a value may have this type.
fn may_be(api: &Value, schema: &Value, kind: &str) -> bool {
    let schema = resolved(api, schema);
    let any = ["anyOf", "oneOf", "allOf"].iter().filter_map(|name| schema[*name].as_array()).flatten();
    schema["type"] == kind
        || schema["type"].as_array().is_some_and(|kinds| kinds.iter().any(|of| of == kind))
        || any.into_iter().any(|part| may_be(api, part, kind))
}

/// A small request with the required keys of a path.
fn base(keys: &Map<String, Value>) -> Map<String, Value> {
    let values = json!({
        "messages": [{ "role": "user", "content": "a" }], "prompt": "a", "content": "a", "input": "a", "tokens": [1],
        "query": "a", "documents": ["a"], "lora_name": "a", "lora_path": "a", "max_tokens": 1, "max_output_tokens": 16,
        "n_predict": 1, "temperature": 0, "model": "", "dry_multiplier": 1, "options": { "num_predict": 1 },
    });
    let values = values.as_object().unwrap().clone();
    values.into_iter().filter(|(key, _)| keys.contains_key(key)).collect()
}

/// Another client, which requests a token from time to time, and a health check.
struct Others {
    is_over: AtomicBool,
    /// Time of the slowest response in milliseconds.
    slowest: AtomicU64,
    n: AtomicUsize,
}

impl Others {
    fn ask(&self, server: &Server, about: impl Fn(&Server)) {
        while !self.is_over.load(Ordering::Relaxed) {
            let begun = Instant::now();
            about(server);
            self.slowest.fetch_max(begun.elapsed().as_millis() as u64, Ordering::Relaxed);
            self.n.fetch_add(1, Ordering::Relaxed);
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Sends requests while other clients use the server, which must not slow down for them.
fn beside_others(server: &Server, send: impl FnOnce()) {
    let others = Others { is_over: false.into(), slowest: 0.into(), n: 0.into() };
    thread::scope(|scope| {
        scope.spawn(|| others.ask(server, |server| assert_eq!(server.get("/health").0, 200)));
        scope.spawn(|| {
            others.ask(server, |server| drop(server.ok(CHAT, &chat("Hi", json!({ "max_tokens": 1 })))));
        });
        struct Over<'a>(&'a AtomicBool);
        impl Drop for Over<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _over = Over(&others.is_over);
        send();
    });
    let slowest = Duration::from_millis(others.slowest.load(Ordering::Relaxed));
    assert!(slowest < MOST_WAIT, "somebody else waited for {slowest:?}");
    assert!(others.n.load(Ordering::Relaxed) > 2);
    if let Some(peak) = server.peak_memory() {
        assert!(peak < MOST_MEMORY, "{peak} bytes were resident");
    }
}

/// Every key in /openapi.json that accepts a list, a text or an object. New keys are tested
/// automatically.
#[test]
fn no_key_stops_the_server_however_much_it_brings() {
    let server = Server::start(&["--ctx", "2048"]);
    let api: Value = serde_json::from_str(&server.get("/openapi.json").1).unwrap();
    let list: Value = (0..100_000).map(|n| format!("{n}")).collect();
    let text: Value = "a b ".repeat(750_000).into();
    let object: Value = Value::Object((0..100_000).map(|n| (n.to_string(), json!(1))).collect());
    let (mut seen, mut n_refused) = (BTreeSet::new(), 0);
    beside_others(&server, || {
        for (path, operations) in api["paths"].as_object().unwrap() {
            let schema = &operations["post"]["requestBody"]["content"]["application/json"]["schema"];
            // Two paths with the same struct have the same keys.
            if schema.is_null() || (schema["$ref"].is_string() && !seen.insert(schema.to_string())) {
                continue;
            }
            let keys = keys_of(&api, schema);
            assert!(!keys.is_empty(), "{path}");
            for (key, schema) in &keys {
                for (kind, value) in [("array", &list), ("string", &text), ("object", &object)] {
                    if !may_be(&api, schema, kind) {
                        continue;
                    }
                    let mut body = base(&keys);
                    body.insert(key.clone(), value.clone());
                    let begun = Instant::now();
                    let mut response = server.open(path, None, &body.into());
                    let answer = response.body_mut().read_to_string().unwrap();
                    let status = response.status().as_u16();
                    assert!(status < 500 || status == 501, "{path} {key} {kind}: {status} {answer:.300}");
                    assert!(begun.elapsed() < 2 * MOST_WAIT, "{path} {key} {kind}: {:?}", begun.elapsed());
                    n_refused += usize::from(status == 400);
                }
            }
        }
    });
    assert!(n_refused > 150, "{n_refused}");
}

/// Requests that once stopped or killed a server, and similar ones. Each error names the key and
/// the limit.
#[test]
fn requests_that_once_stopped_a_server_are_refused_by_their_keys() {
    let server = Server::start(&["--ctx", "2048"]);
    let strings = |n: usize| -> Vec<String> { (0..n).map(|n| format!("text {n}")).collect() };
    let unknown: Map<String, Value> = (0..6500).map(|n| (format!("k{n}"), json!(1))).collect();
    let patterns = |n: usize, of: fn(usize) -> String| {
        let parts: Vec<Value> = (0..n).map(|i| json!({ "pattern": of(i) })).collect();
        json!({ "type": "string", "allOf": parts })
    };
    let names =
        |n: usize| -> Map<String, Value> { (0..n).map(|n| (format!("^a.*{n}$"), json!({}))).collect() };
    // Each level doubles the choices, most of which are impossible.
    let conditions = |n: usize| {
        let one = |n: usize| {
            let then = json!({ "properties": { format!("b{n}"): { "type": "string" } } });
            json!({ "if": { "properties": { "a": { "const": n } } }, "then": then })
        };
        json!({ "allOf": (0..n).map(one).collect::<Vec<_>>() })
    };
    let triggers: Vec<Value> =
        (0..30).map(|n| json!({ "type": 2, "value": format!("{n}\\w{{50}}") })).collect();
    let biases: Vec<Value> = (0..400_000).map(|n| json!([n % 1000, 0.5])).collect();
    let grammar = json!("root ::= \"a\"");
    let cases: Vec<(&str, Value)> = vec![
        ("dry_sequence_breakers", json!({ "dry_multiplier": 1, "dry_sequence_breakers": strings(1000) })),
        (
            "dry_sequence_breakers",
            json!({ "dry_multiplier": 1, "dry_sequence_breakers": ["x".repeat(65)], "n": 128 }),
        ),
        (
            "keys",
            [unknown, chat("a", json!({ "temperature": "x" })).as_object().unwrap().clone()].concat_maps(),
        ),
        (
            "grammar_triggers",
            json!({ "grammar": grammar, "grammar_lazy": true, "grammar_triggers": triggers }),
        ),
        ("logit_bias", json!({ "logit_bias": biases, "n": 128 })),
        ("stop", json!({ "stop": strings(150_000), "n": 128 })),
        ("stop", json!({ "stop": "x".repeat(2000) })),
        (
            "one string has 300 patterns",
            json!({ "json_schema": patterns(300, |i| format!("^.*x.{{{i}}}$")) }),
        ),
        (
            "one string has 24 patterns",
            json!({ "json_schema": patterns(24, |i| format!("^.*x.{{0,{i}}}$")) }),
        ),
        ("&", json!({ "guided_grammar": format!("start: A\nA: {}", vec!["/.*x.{0,20}/"; 24].join(" & ")) })),
        ("guided_regex", json!({ "guided_regex": "a".repeat(70_000) })),
        ("repetitions", json!({ "guided_regex": "a?".repeat(30_000) })),
        ("repetitions", json!({ "guided_grammar": format!("start: A\nA: {}", "\"a\"? ".repeat(30_000)) })),
        ("300 patterns", json!({ "json_schema": { "type": "object", "patternProperties": names(300) } })),
        ("takes over 10 s", json!({ "json_schema": conditions(300) })),
        ("stop_token_ids", json!({ "stop_token_ids": vec![1; 2000] })),
        ("samplers", json!({ "samplers": vec!["top_k"; 40] })),
        ("frequency_penalty", json!({ "frequency_penalty": -3e38 })),
        ("presence_penalty", json!({ "presence_penalty": 3e38 })),
        ("repeat_penalty", json!({ "repeat_penalty": 1e-45 })),
        ("logit_bias", json!({ "logit_bias": { "7": 3e38, "8": 3e38 } })),
        ("mirostat_eta", json!({ "mirostat": 2, "mirostat_eta": 3e38 })),
        ("dynatemp_range", json!({ "dynatemp_range": 3e38 })),
    ];
    beside_others(&server, || {
        for (words, more) in cases {
            let body = chat("Hi", json!({ "max_tokens": 2 }));
            let body: Value =
                [body.as_object().unwrap().clone(), more.as_object().unwrap().clone()].concat_maps();
            let (status, answer) = server.post(CHAT, &body);
            let message = answer["error"]["message"].as_str().unwrap_or_default();
            assert_eq!(status, 400, "{words}: {answer}");
            assert!(message.contains(words), "{words}: {answer}");
        }
        // Every API rejects texts that cannot fit, by their bytes.
        let long = "word ".repeat(2_000_000);
        for (path, body) in [
            (CHAT, json!({ "messages": [{ "role": "user", "content": long }] })),
            ("/v1/completions", json!({ "prompt": long })),
            ("/v1/responses", json!({ "input": long })),
            (
                "/v1/messages",
                json!({ "model": "", "max_tokens": 1, "messages": [{ "role": "user", "content": long }] }),
            ),
            ("/api/generate", json!({ "model": "", "prompt": long, "raw": true })),
            ("/completion", json!({ "prompt": long })),
            ("/tokenize", json!({ "content": long })),
        ] {
            let (status, answer) = server.post(path, &body);
            assert_eq!(status, 400, "{path}: {answer}");
            assert!(answer.to_string().contains("bytes of text"), "{path}: {answer}");
        }
        let many = json!({ "messages": vec![json!({ "role": "user", "content": "" }); 5000] });
        let (status, answer) = server.post(CHAT, &many);
        assert_eq!(status, 400);
        assert!(answer.to_string().contains("5000 entries"), "{answer}");
    });
}

trait ConcatMaps {
    fn concat_maps(self) -> Value;
}

impl ConcatMaps for [Map<String, Value>; 2] {
    fn concat_maps(self) -> Value {
        Value::Object(self.into_iter().flatten().collect())
    }
}

#[test]
fn a_key_that_fills_the_queue_keeps_no_other_key_out() {
    let server =
        Server::start(&["--slots", "1", "--max-waiting", "4", "--api-key", "a-key", "--api-key", "b-key"]);
    let ask = |key: &str, more: Value| server.open(CHAT, Some(key), &chat("Hi", more)).status().as_u16();
    let many = chat("Hi", json!({ "n": 5, "max_tokens": 150, "ignore_eos": true, "stream": true }));
    let response = server.open(CHAT, Some("a-key"), &many);
    let mut stream = response.into_body().into_reader();
    stream.read_exact(&mut [0; 64]).unwrap();
    assert_eq!(ask("a-key", json!({ "max_tokens": 1 })), 429);
    assert_eq!(ask("b-key", json!({ "max_tokens": 1 })), 200);
    // The number of alternatives exceeds the limit.
    assert_eq!(ask("b-key", json!({ "n": 30, "logprobs": true, "top_logprobs": 20 })), 400);
}

#[test]
fn thousands_of_texts_to_embed_delay_a_single_one_by_a_part_and_end_with_their_client() {
    let server = Server::start(&["minilm:l6"]);
    let one = json!({ "model": "minilm:l6", "input": "a" });
    server.ok("/v1/embeddings", &one);
    let many = json!({ "model": "minilm:l6", "input": vec!["many words ".repeat(100); 2048] }).to_string();
    let address = server.url.split_once("://").unwrap().1;
    let mut stream = TcpStream::connect(address).unwrap();
    let head = format!(
        "POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        many.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(many.as_bytes()).unwrap();
    let is_running = || server.get("/metrics").1.contains("ingle_requests_running{model=\"minilm:l6\"} 1");
    let begun = Instant::now();
    while !is_running() {
        assert!(begun.elapsed() < MOST_WAIT, "it does not begin");
        thread::sleep(Duration::from_millis(20));
    }
    for _ in 0..3 {
        server.ok("/v1/embeddings", &one);
    }
    assert!(is_running(), "it is over too soon to tell anything");
    drop(stream);
    let begun = Instant::now();
    while is_running() {
        assert!(begun.elapsed() < MOST_WAIT, "nobody wants it any more");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn connections_that_ask_nothing_keep_nobody_out() {
    let server = Server::start(&["--max-connections", "20", "--max-connections-per-address", "15"]);
    let address = server.url.split_once("://").unwrap().1.to_owned();
    let idle: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(&address).unwrap()).collect();
    let begun = Instant::now();
    assert_eq!(server.get("/health").0, 200);
    server.ok(CHAT, &chat("Hi", json!({ "max_tokens": 1 })));
    assert!(begun.elapsed() < MOST_WAIT, "{:?}", begun.elapsed());
    // The first connection was closed in favour of a new one.
    let mut first = &idle[0];
    first.set_read_timeout(Some(MOST_WAIT)).unwrap();
    let ended = first.read(&mut [0; 1]).map_err(|error| error.kind());
    assert!(matches!(ended, Ok(0) | Err(std::io::ErrorKind::ConnectionReset)), "{ended:?}");
}

#[cfg(unix)]
#[test]
fn a_second_ctrl_c_ends_a_draining_server_at_once() {
    let mut server = Server::start(&["--drain", "600", "--slots", "2"]);
    let body = chat("Tell a story.", json!({ "max_tokens": 1500, "stream": true, "ignore_eos": true }));
    let mut response = server.open(CHAT, None, &body);
    let mut stream = response.body_mut().as_reader();
    let mut heard = vec![0; 64];
    stream.read_exact(&mut heard).unwrap();
    let id = server.id().to_string();
    let interrupt = || {
        assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    };
    interrupt();
    // The server finishes the running answer.
    thread::sleep(Duration::from_millis(500));
    assert!(server.is_running());
    let begun = Instant::now();
    interrupt();
    stream.read_to_end(&mut heard).unwrap();
    let text = String::from_utf8_lossy(&heard);
    let last = text.trim_end().rsplit("\n\n").next().unwrap();
    assert!(last.contains("\"error\"") && last.contains("shutting down"), "{last}");
    while server.is_running() {
        assert!(begun.elapsed() < MOST_WAIT, "the server goes on");
        thread::sleep(Duration::from_millis(10));
    }
}

/// The next action of the proposer, in the model's thread.
#[derive(Default)]
struct Fault {
    panics: AtomicBool,
    sleeps: AtomicBool,
    n_loads: AtomicUsize,
}

/// A proposer that drafts nothing, and fails on demand.
struct Faulty(Arc<Fault>);

impl Proposer for Faulty {
    fn propose(
        &mut self,
        _: usize,
        _: &[u32],
        _: usize,
        _: &mut Vec<u32>,
        _: &mut Target<'_>,
    ) -> engine::Result<()> {
        if self.0.sleeps.swap(false, Ordering::Relaxed) {
            thread::sleep(Duration::from_secs(2));
        }
        assert!(!self.0.panics.swap(false, Ordering::Relaxed), "as asked");
        Ok(())
    }
}

struct FaultyLoader {
    model: Arc<Model>,
    device: Arc<dyn Device>,
    fault: Arc<Fault>,
}

impl Loader for FaultyLoader {
    fn load(&self, _: &str) -> Result<Loaded, LoadError> {
        let options = LoadOptions {
            n_ctx: Some(512),
            n_sequences: 2,
            speculate: Speculate::Auto,
            ..LoadOptions::default()
        };
        let mut engine = Engine::new(self.model.clone(), &self.device, &options).unwrap();
        engine.set_proposer(Box::new(Faulty(self.fault.clone())));
        self.fault.n_loads.fetch_add(1, Ordering::Relaxed);
        Ok(Loaded::Text(Box::new(engine)))
    }

    fn open(&self, _: &str) -> Result<Model, LoadError> {
        Err(LoadError { message: "not asked for".to_owned(), does_not_fit: false })
    }
}

fn story(max_tokens: usize) -> CompletionRequest {
    CompletionRequest {
        prompt: Prompt::Text { text: "Once upon a time".to_owned(), parse_special: false },
        options: GenerateOptions {
            sampling: SamplingParams::greedy(),
            given: SamplingChoice { temperature: Some(0.0), ..SamplingChoice::default() },
            max_tokens: Some(max_tokens),
            ignore_end: true,
            ..GenerateOptions::default()
        },
        ..CompletionRequest::default()
    }
}

#[test]
fn a_panic_on_the_models_thread_ends_its_answers_and_the_model_is_loaded_anew() {
    let path = SMOLLM2.path();
    let file = formats::open(Path::new(&path), Access::Map).unwrap();
    let model = Model::from_opened(Path::new(&path), file, &TokenizerSource::Own).unwrap();
    let fault = Arc::new(Fault::default());
    let loader = FaultyLoader {
        model: Arc::new(model),
        device: Arc::new(CpuDevice::new(CpuOptions { threads: Some(1), isa: None }).unwrap()),
        fault: fault.clone(),
    };
    let options = runner::Options {
        models: vec!["m".to_owned()],
        keep_alive: KeepAlive::Always,
        max_waiting: 8,
        max_wait: Duration::from_secs(300),
        governor: None,
        max_tokens: None,
        stream_interval: Duration::ZERO,
        sampling: SamplingChoice::default(),
    };
    let runner = Runner::new(options, Arc::new(loader));
    let caller = Caller { request_id: "test".to_owned(), tenant: 0 };
    let stuck = |after: Duration| {
        let models = runner.models();
        models[0].loaded.as_ref().and_then(|loaded| loaded.stats().pulse.stuck_after(after))
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let expected = runner.complete(&caller, story(20)).await.unwrap().collect().await.unwrap();
        // A watchdog reports a thread that hangs.
        assert_eq!(stuck(Duration::from_millis(500)), None);
        fault.sleeps.store(true, Ordering::Relaxed);
        let answer = runner.complete(&caller, story(20)).await.unwrap();
        let begun = Instant::now();
        while stuck(Duration::from_millis(500)).is_none() {
            assert!(begun.elapsed() < MOST_WAIT, "nobody saw that the thread sleeps");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        answer.collect().await.unwrap();
        // One answer is streamed, the other collected.
        let mut streamed = runner.complete(&caller, story(400)).await.unwrap();
        let collected = runner.complete(&caller, story(400)).await.unwrap();
        assert!(streamed.next().await.is_some());
        fault.panics.store(true, Ordering::Relaxed);
        let error = collected.collect().await.unwrap_err();
        assert_eq!(error.kind, runner::ErrorKind::Internal);
        let mut last = None;
        while let Some(event) = streamed.next().await {
            last = Some(event.kind);
        }
        let Some(EventKind::Done(finish)) = last else { panic!("{last:?}") };
        assert!(
            matches!(&finish.reason, StopReason::Failed(words) if words.contains("panicked")),
            "{finish:?}"
        );
        drop(streamed);
        // The next request waits until the memory is free, and then loads the model again.
        let again = runner.complete(&caller, story(20)).await.unwrap().collect().await.unwrap();
        assert_eq!(again[0].content, expected[0].content);
        assert_eq!(fault.n_loads.load(Ordering::Relaxed), 2);
        assert_eq!(stuck(Duration::ZERO), None);
    });
}
