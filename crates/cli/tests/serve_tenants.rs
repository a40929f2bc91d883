//! Several keys on one server: no key sees another's requests, or takes its resources.

#![allow(clippy::unwrap_used)] // A test that cannot go on fails.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::common::SMOLLM2;
use crate::serve::{CHAT, Server, chat};

fn get(server: &Server, key: &str, path: &str) -> Value {
    let request = Server::agent().get(format!("{}{path}", server.url));
    let mut response = request.header("authorization", format!("Bearer {key}")).call().unwrap();
    serde_json::from_str(&response.body_mut().read_to_string().unwrap()).unwrap()
}

fn post(server: &Server, key: &str, path: &str, body: &Value) -> (u16, String) {
    let mut response = server.open(path, Some(key), body);
    (response.status().as_u16(), response.body_mut().read_to_string().unwrap())
}

#[test]
fn a_slot_of_another_key_is_busy_and_nothing_more() {
    let server = Server::start(&["--api-key", "a", "--api-key", "b"]);
    let mut body = chat("Tell a long story.", json!({ "max_tokens": 400, "stream": true }));
    body["ignore_eos"] = json!(true);
    let running = server.open(CHAT, Some("a"), &body);
    let busy = |key: &str| -> Vec<Value> {
        let slots = get(&server, key, "/slots");
        slots.as_array().unwrap().iter().filter(|slot| slot["is_processing"] == true).cloned().collect()
    };
    let (own, others) = (busy("a"), busy("b"));
    assert!(
        own.len() == 1 && own[0]["request_id"].is_string() && own[0]["n_prompt_tokens"].is_u64(),
        "{own:?}"
    );
    assert_eq!(others, [json!({ "id": 0, "model": SMOLLM2.path(), "is_processing": true })]);
    drop(running);
}

#[test]
fn a_model_stays_while_another_key_uses_it() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("models.toml");
    std::fs::write(&config, format!("[[models]]\nname = \"second\"\nsource = {:?}\n", SMOLLM2.path()))
        .unwrap();
    let server = Server::start(&["--api-key", "a", "--api-key", "b", "--config", config.to_str().unwrap()]);
    let is_loaded = || {
        let ps = get(&server, "a", "/api/ps");
        ps["models"].as_array().unwrap().iter().any(|model| model["name"] == "second")
    };
    let ask = |key: &str, more: Value| {
        let mut body =
            json!({ "model": "second", "prompt": "a", "stream": false, "options": { "num_predict": 1 } });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        post(&server, key, "/api/generate", &body).0
    };
    let unload =
        |key: &str| post(&server, key, "/api/generate", &json!({ "model": "second", "keep_alive": 0 }));
    assert_eq!((ask("a", json!({})), ask("b", json!({ "keep_alive": 0 }))), (200, 200));
    assert!(is_loaded(), "the one key's `keep_alive` is not the other's");
    let (status, said) = unload("b");
    assert!(status == 403 && said.contains("another key"), "{status} {said}");
    assert!(is_loaded());
    // The adapter is unloaded with the last key that wants it.
    assert_eq!(unload("a").0, 200);
    assert!(!is_loaded());
    assert_eq!((ask("b", json!({})), unload("b").0), (200, 200));
    assert!(!is_loaded());
    assert_eq!(
        (ask("a", json!({ "keep_alive": "1h" })), ask("b", json!({ "keep_alive": "1ms" }))),
        (200, 200)
    );
    // Expired models are unloaded twice a second.
    std::thread::sleep(Duration::from_millis(1500));
    assert!(is_loaded());
    assert_eq!(ask("a", json!({ "keep_alive": "1ms" })), 200);
    let begun = Instant::now();
    while is_loaded() {
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "it stays loaded: {}",
            get(&server, "a", "/api/ps")
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(unix)]
#[test]
fn kept_prefixes_are_of_their_key_which_their_names_do_not_tell() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("prefixes");
    let flags = ["--prefix-cache", cache.to_str().unwrap(), "--api-key", "a#1", "--api-key", "b"];
    let body = chat(&"The hearth is warm. ".repeat(20), json!({ "max_tokens": 1 }));
    let n_cached = |server: &Server, key: &str| {
        let answer: Value = serde_json::from_str(&post(server, key, CHAT, &body).1).unwrap();
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    let server = Server::start(&flags);
    assert_eq!(n_cached(&server, "a#1"), 0);
    assert!(server.terminate().success());
    let mut files = Vec::new();
    for inner in std::fs::read_dir(&cache).unwrap().map(|entry| entry.unwrap().path()) {
        match inner.is_dir() {
            true => files.extend(std::fs::read_dir(inner).unwrap().map(|entry| entry.unwrap().path())),
            false => files.push(inner),
        }
    }
    assert_eq!(files.len(), 2, "the secret and a prefix: {files:?}");
    let hash = Sha256::digest("a#1");
    let told = u64::from_le_bytes(hash[..8].try_into().unwrap());
    for file in &files {
        assert_eq!(std::fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600, "{file:?}");
        assert!(!file.to_str().unwrap().contains(&format!("{told:016x}")), "{file:?}");
    }
    // The next server finds the cached prompt, for the same key only.
    let server = Server::start(&flags);
    assert!(n_cached(&server, "a#1") > 60);
    assert_eq!(n_cached(&server, "b"), 0);
}
