//! `ingle serve` with speech models and a chat model: forms of OpenAI's clients, and the responses.

#![allow(clippy::unwrap_used)] // A test that cannot go on fails.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::{SMOLLM2, fixture, ok};
use crate::serve::{CHAT, Server, chat};

const TINY: &str = "whisper:tiny.en";
const BASE: &str = "whisper:base";
const TRANSCRIPTIONS: &str = "/v1/audio/transcriptions";
const TRANSLATIONS: &str = "/v1/audio/translations";

fn speech() -> Vec<u8> {
    std::fs::read(fixture("audio/jfk.wav")).unwrap()
}

/// The speech, repeated: 16 kHz, mono, 16 bits.
fn long_speech(n_times: usize) -> Vec<u8> {
    let whole = speech();
    let data = whole.windows(4).position(|bytes| bytes == b"data").unwrap() + 8;
    let samples = whole[data..].repeat(n_times);
    let mut out = b"RIFF".to_vec();
    out.extend((36 + samples.len() as u32).to_le_bytes());
    out.extend(b"WAVEfmt \x10\0\0\0\x01\0\x01\0\x80\x3e\0\0\0\x7d\0\0\x02\0\x10\0data");
    out.extend((samples.len() as u32).to_le_bytes());
    out.extend(samples);
    out
}

fn form(file: &[u8], fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in fields {
        let part = format!("--edge\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n");
        out.extend(part.as_bytes());
    }
    out.extend(b"--edge\r\nContent-Disposition: form-data; name=\"file\"; filename=\"speech.wav\"\r\n");
    out.extend(b"Content-Type: audio/wav\r\n\r\n");
    out.extend(file);
    out.extend(b"\r\n--edge--\r\n");
    out
}

pub(crate) fn send(
    server: &Server,
    path: &str,
    file: &[u8],
    fields: &[(&str, &str)],
) -> ureq::http::Response<ureq::Body> {
    let request = Server::agent().post(format!("{}{path}", server.url));
    let request = request.header("content-type", "multipart/form-data; boundary=edge");
    request.send(&form(file, fields)[..]).unwrap()
}

fn text(server: &Server, path: &str, fields: &[(&str, &str)]) -> String {
    let mut response = send(server, path, &speech(), fields);
    let text = response.body_mut().read_to_string().unwrap();
    assert_eq!(response.status(), 200, "{text}");
    text
}

fn json_of(server: &Server, path: &str, fields: &[(&str, &str)]) -> Value {
    serde_json::from_str(&text(server, path, fields)).unwrap()
}

/// The entry of a model in the list.
fn listed(server: &Server, model: &str) -> Value {
    let models: Value = serde_json::from_str(&server.get("/v1/models").1).unwrap();
    models["data"].as_array().unwrap().iter().find(|entry| entry["id"] == model).unwrap().clone()
}

fn figure(server: &Server, name: &str, model: &str) -> u64 {
    let metrics = server.get("/metrics").1;
    let begin = format!("{name}{{model=\"{model}\"}} ");
    metrics.lines().find_map(|line| line.strip_prefix(&begin)).map_or(0, |number| number.parse().unwrap())
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn speech_becomes_text_in_every_format() {
    // The kind of a model is known before it is loaded, if its file is on this machine.
    ok(&["pull", BASE]);
    let server = Server::start(&[TINY, BASE]);
    wait_until("kinds are not found", || listed(&server, BASE)["capabilities"] == json!(["transcription"]));
    assert!(listed(&server, BASE)["meta"].is_null());
    assert_eq!(listed(&server, &SMOLLM2.path())["capabilities"], json!(["completion", "chat"]));

    let plain = json_of(&server, TRANSCRIPTIONS, &[("model", TINY), ("unheard_of", "1")]);
    let said = plain["text"].as_str().unwrap();
    assert!(said.to_lowercase().contains("ask what you can do for your country"), "{said}");
    assert_eq!(plain["usage"], json!({ "type": "duration", "seconds": 11 }));
    assert_eq!(
        text(&server, TRANSCRIPTIONS, &[("model", TINY), ("response_format", "text")]).trim_end(),
        said
    );
    // Subtitles equal those of the command.
    let file = fixture("audio/jfk.wav");
    for format in ["srt", "vtt"] {
        let found = text(&server, TRANSCRIPTIONS, &[("response_format", format), ("model", TINY)]);
        let args = ["transcribe", TINY, file.to_str().unwrap(), "-t", "1", "--format", format];
        assert_eq!(found, ok(&args));
    }

    let verbose = [
        ("model", BASE),
        ("response_format", "verbose_json"),
        ("timestamp_granularities[]", "word"),
        ("timestamp_granularities[]", "segment"),
        ("language", "English"),
    ];
    let found = json_of(&server, TRANSCRIPTIONS, &verbose);
    assert_eq!((&found["task"], &found["language"]), (&json!("transcribe"), &json!("english")));
    assert_eq!((&found["duration"], found["words"].as_array().unwrap().len()), (&json!(11.0), 22));
    let segment = &found["segments"][0];
    for key in
        ["id", "seek", "start", "end", "temperature", "avg_logprob", "compression_ratio", "no_speech_prob"]
    {
        assert!(segment[key].is_number(), "{key} in {segment}");
    }
    assert!(segment["tokens"].is_array() && segment["text"].is_string() && segment.get("words").is_none());
    let expected = std::fs::read_to_string(fixture("audio/transcript_whisper_base.json")).unwrap();
    let expected: Value = serde_json::from_str(&expected).unwrap();
    let starts = |words: Vec<&Value>| words.iter().map(|w| w["start"].as_f64().unwrap()).collect::<Vec<_>>();
    let expected = expected["segments"].as_array().unwrap().iter();
    let expected = starts(expected.flat_map(|s| s["words"].as_array().unwrap()).collect());
    let words = starts(found["words"].as_array().unwrap().iter().collect());
    assert!(words.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= 0.1), "{words:?} for {expected:?}");
    assert_eq!(found["words"][2]["word"], "my");
    let only_words = json_of(&server, TRANSCRIPTIONS, &verbose[..3]);
    assert!(only_words.get("segments").is_none() && only_words["words"].is_array());

    let stream = text(&server, TRANSCRIPTIONS, &[("model", TINY), ("stream", "true")]);
    let events: Vec<Value> = stream
        .split_terminator("\n\n")
        .map(|event| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap())
        .collect();
    let (done, deltas) = events.split_last().unwrap();
    assert!(deltas.iter().all(|event| event["type"] == "transcript.text.delta") && !deltas.is_empty());
    assert_eq!(deltas.iter().map(|event| event["delta"].as_str().unwrap()).collect::<String>(), said);
    assert_eq!((&done["type"], done["text"].as_str()), (&json!("transcript.text.done"), Some(said)));
    assert_eq!(done["usage"], plain["usage"]);

    let translated = json_of(&server, TRANSLATIONS, &[("model", BASE), ("response_format", "verbose_json")]);
    assert_eq!((&translated["task"], &translated["language"]), (&json!("translate"), &json!("english")));
    assert!(translated["text"].as_str().unwrap().contains("country") && translated["segments"].is_array());

    // Requests of both kinds run at the same time. The speech model is unloaded when its time is
    // over.
    let answer = thread::scope(|scope| {
        let heard =
            scope.spawn(|| json_of(&server, TRANSCRIPTIONS, &[("model", TINY), ("keep_alive", "100ms")]));
        let answer = server.ok(CHAT, &chat("Hello", json!({ "max_tokens": 8 })));
        assert_eq!(heard.join().unwrap(), plain);
        answer
    });
    assert_eq!(answer["usage"]["completion_tokens"], 8);
    wait_until("it stays loaded", || listed(&server, TINY)["meta"].is_null());
    assert_eq!(listed(&server, TINY)["capabilities"], json!(["transcription"]));
    invalid_requests_are_refused(&server);
}

/// Invalid forms, and requests of other kinds, name the wrong parameter.
fn invalid_requests_are_refused(server: &Server) {
    for (path, file, fields, status, param, part) in [
        (TRANSCRIPTIONS, &b"no audio"[..], &[("model", BASE)][..], 400, "file", "speech.wav: not a readable"),
        (TRANSCRIPTIONS, b"", &[("model", BASE)], 400, "file", "empty"),
        (TRANSCRIPTIONS, b"x", &[("model", BASE), ("language", "xx")], 400, "language", "de (german)"),
        (
            TRANSCRIPTIONS,
            b"x",
            &[("model", TINY), ("language", "de")],
            400,
            "language",
            "one of en (english)",
        ),
        (TRANSLATIONS, b"x", &[("model", TINY)], 400, "model", "English only"),
        (TRANSCRIPTIONS, b"x", &[], 400, "model", "does not transcribe"),
        (TRANSCRIPTIONS, b"x", &[("model", "whisper-1")], 404, "model", "expected one of"),
        (TRANSCRIPTIONS, b"x", &[("model", BASE), ("include[]", "logprobs")], 400, "include", "include"),
        (TRANSCRIPTIONS, b"x", &[("model", BASE), ("temperature", "-1")], 400, "temperature", "from 0 to 1"),
        (TRANSCRIPTIONS, &vec![0; 33 << 20], &[("model", BASE)], 413, "file", "32 MiB"),
    ] {
        let mut response = send(server, path, file, fields);
        let answer: Value = serde_json::from_str(&response.body_mut().read_to_string().unwrap()).unwrap();
        let (error, found) = (&answer["error"], response.status().as_u16());
        assert_eq!((found, error["param"].as_str()), (status, Some(param)), "{answer}");
        assert!(error["message"].as_str().unwrap().contains(part), "{answer}");
        assert!(status == 404 || error["type"] == "invalid_request_error", "{answer}");
    }
    // A stream of something that is not a recording also has an error status.
    let empty = [&speech()[..40], &[0; 4]].concat();
    let response = send(server, TRANSCRIPTIONS, &empty, &[("model", BASE), ("stream", "true")]);
    assert_eq!(response.status(), 400);
    for (path, body) in [
        (CHAT, chat("Hello", json!({ "model": BASE }))),
        ("/v1/completions", json!({ "model": BASE, "prompt": "a" })),
        ("/v1/embeddings", json!({ "model": BASE, "input": "a" })),
        ("/tokenize", json!({ "model": BASE, "content": "a" })),
    ] {
        let (status, answer) = server.post(path, &body);
        assert_eq!((status, &answer["error"]["param"]), (400, &json!("model")), "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains(TRANSCRIPTIONS), "{answer}");
    }
    assert_eq!(server.open(TRANSCRIPTIONS, None, &json!({})).status(), 415);
}

#[test]
fn the_queue_for_speech_is_bounded_and_left_by_whoever_hangs_up() {
    let server = Server::start(&[TINY, "--max-waiting", "0"]);
    let running = || figure(&server, "ingle_requests_running", TINY);
    let n_tokens = || figure(&server, "ingle_tokens_generated_total", TINY);
    // Twelve repetitions of 22 words, in five windows.
    let long = long_speech(12);
    let response = send(&server, TRANSCRIPTIONS, &long, &[("model", TINY), ("stream", "true")]);
    let mut reader = response.into_body().into_reader();
    assert!(reader.read(&mut [0; 64]).unwrap() > 0);
    let full = send(&server, TRANSCRIPTIONS, &speech(), &[("model", TINY)]);
    assert_eq!(
        (full.status().as_u16(), &full.headers()["retry-after"]),
        (429, &ureq::http::HeaderValue::from(1))
    );
    drop(reader);
    wait_until("it goes on for nobody", || running() == 0);
    let of_stream = n_tokens();
    assert!((1..200).contains(&of_stream), "{of_stream}");

    // The response without a stream is the same.
    let mut socket = TcpStream::connect(server.url.strip_prefix("http://").unwrap()).unwrap();
    let body = form(&long, &[("model", TINY)]);
    let head = format!(
        "POST {TRANSCRIPTIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=edge\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    socket.write_all(head.as_bytes()).unwrap();
    socket.write_all(&body).unwrap();
    wait_until("it does not begin", || running() == 1);
    drop(socket);
    wait_until("it goes on for nobody", || running() == 0);
    assert!(n_tokens() - of_stream < 200);
    for _ in 0..2 {
        assert!(text(&server, TRANSCRIPTIONS, &[("model", TINY)]).contains("country"));
    }
}
