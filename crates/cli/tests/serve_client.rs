//! `ingle run --server`, `ps` and `stop` with a real server.

#![allow(clippy::unwrap_used)] // A test that cannot go on fails.

use serde_json::{Value, json};

use crate::common::{SMOLLM2, error, fixture, ok};
use crate::serve::{CHAT, Server, chat};

#[test]
fn a_model_on_a_server_answers_as_one_that_runs_here() {
    let server = Server::start(&["--deterministic", "--api-key", "k"]);
    let model = SMOLLM2.path();
    let asked = ["What is a hearth?", "--greedy", "-n", "16", "--server", &server.url, "--api-key", "k"];
    let text = ok(&[&["run", &model], &asked[..]].concat());
    let body = chat(asked[0], json!({ "max_tokens": 16 }));
    let mut whole = server.open(CHAT, Some("k"), &body);
    let whole: Value = serde_json::from_str(&whole.body_mut().read_to_string().unwrap()).unwrap();
    let expected = whole["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(text.trim_end_matches('\n'), expected.trim_end_matches('\n'));
    let text = ok(&[&["run", &model], &asked[..], &["--json", "--regex", "[A-F]{8}"]].concat());
    let answer: Value = serde_json::from_str(&text).unwrap();
    let text = answer["text"].as_str().unwrap();
    assert!(text.len() == 8 && text.bytes().all(|b| (b'A'..=b'F').contains(&b)), "{answer}");
    assert_eq!(answer["stop"], "stop");
    assert!(answer["usage"]["prompt_tokens"].as_u64() > Some(4), "{answer}");
    // Errors have the server's message.
    let message = error(&["run", &model, "Hello", "--server", &server.url, "--api-key", "no"]);
    assert!(message.contains("no valid API key"), "{message}");
    let message = error(&["run", "other", "Hello", "--server", &server.url, "--api-key", "k"]);
    assert!(message.contains("`other` does not exist here"), "{message}");
    let message = error(&["run", &model, "Hello", "--server", "http://127.0.0.1:9"]);
    assert!(message.contains("requesting http://127.0.0.1:9"), "{message}");
}

#[test]
fn a_file_names_models_and_their_options_and_stop_unloads_one() {
    let folder = tempfile::tempdir().unwrap();
    let (config, model) = (folder.path().join("models.toml"), SMOLLM2.path());
    let text = format!(
        "[[models]]\nname = \"small\"\nsource = {model:?}\nctx = 128\nslots = 2\nkv_type = \"f16\"\n"
    );
    std::fs::write(&config, text).unwrap();
    let server = Server::start(&["--config", config.to_str().unwrap()]);
    let models: Value = serde_json::from_str(&server.get("/v1/models").1).unwrap();
    assert_eq!(models["data"][1]["id"], "small");
    let body =
        json!({ "model": "small", "messages": [{ "role": "user", "content": "Hello" }], "max_tokens": 2 });
    server.ok(CHAT, &body);
    let models: Value = serde_json::from_str(&server.get("/v1/models").1).unwrap();
    assert_eq!(models["data"][1]["max_model_len"], 128);
    let listed = ok(&["ps", "--server", &server.url]);
    assert!(listed.lines().any(|line| line.starts_with("small ") && line.contains("128")), "{listed}");
    ok(&["stop", "small", "--server", &server.url]);
    let listed = ok(&["ps", "--server", &server.url]);
    assert!(!listed.contains("small ") && listed.contains(&model), "{listed}");
    let message = error(&["stop", "other", "--server", &server.url]);
    assert!(message.contains("other"), "{message}");
}

#[test]
fn a_server_with_a_certificate_of_its_own_is_trusted_when_it_is_named() {
    let [cert, key] = ["crt", "key"].map(|end| fixture(&format!("tls/localhost.{end}")));
    let [cert, key] = [&cert, &key].map(|path| path.to_str().unwrap());
    let server = Server::start(&["--tls-cert", cert, "--tls-key", key]);
    let port = server.url.rsplit_once(':').unwrap().1;
    let url = format!("https://localhost:{port}");
    let listed = ok(&["ps", "--server", &url, "--ca-cert", cert]);
    assert!(listed.contains(&SMOLLM2.path()), "{listed}");
    let message = error(&["ps", "--server", &url]);
    assert!(message.contains("requesting http"), "{message}");
    let message = error(&["ps", "--server", &url, "--ca-cert", key]);
    assert!(message.contains("found no certificate"), "{message}");
}
