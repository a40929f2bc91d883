//! Sampling of requests without parameters: every API uses the recommendations of the model's file.

#![allow(clippy::unwrap_used)] // A test that cannot go on fails.

use std::path::Path;

use serde_json::{Value, json};

use crate::common::SMOLLM2;
use crate::serve::{CHAT, Server};

/// Writes a copy of SmolLM2 whose file recommends greedy sampling.
fn greedy(path: &Path) {
    let mut file = std::fs::read(SMOLLM2.path()).unwrap();
    let key = |key: &str, kind: u32, value: &[u8]| {
        [&(key.len() as u64).to_le_bytes()[..], key.as_bytes(), &kind.to_le_bytes(), value].concat()
    };
    let mut keys = key("general.sampling.temp", 6, &0_f32.to_le_bytes());
    keys.extend(key("general.sampling.top_k", 4, &5_u32.to_le_bytes()));
    // The length of the text keeps the tensors aligned.
    let n = 31 - (keys.len() + 8 + 4 + 4 + 8 + 31) % 32;
    keys.extend(key("fill", 8, &[&(n as u64).to_le_bytes()[..], &vec![b'x'; n]].concat()));
    assert_eq!(keys.len() % 32, 0);
    let n_keys = u64::from_le_bytes(file[16..24].try_into().unwrap()) + 3;
    file[16..24].copy_from_slice(&n_keys.to_le_bytes());
    file.splice(24..24, keys);
    std::fs::write(path, file).unwrap();
}

#[test]
fn every_api_takes_what_the_file_recommends_unless_the_request_says() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model.gguf");
    greedy(&model);
    let server = Server::of(model.to_str().unwrap(), &["--no-warmup", "--deterministic"]);
    let text = "Tell me a story.";
    let messages = json!([{ "role": "user", "content": text }]);
    // For each path: its body, a flag if sampling keys are in `options`, and the place of the
    // answer's text.
    for (path, body, in_options, place) in [
        (CHAT, json!({ "messages": messages, "max_tokens": 9 }), false, "/choices/0/message/content"),
        ("/v1/completions", json!({ "prompt": text, "max_tokens": 9 }), false, "/choices/0/text"),
        (
            "/v1/responses",
            json!({ "input": text, "max_output_tokens": 9 }),
            false,
            "/output/0/content/0/text",
        ),
        ("/v1/messages", json!({ "messages": messages, "max_tokens": 9 }), false, "/content/0/text"),
        ("/completion", json!({ "prompt": text, "n_predict": 9 }), false, "/content"),
        ("/api/chat", json!({ "messages": messages, "stream": false }), true, "/message/content"),
        ("/api/generate", json!({ "prompt": text, "stream": false }), true, "/response"),
    ] {
        let ask = |keys: Value| {
            let mut body = body.clone();
            match in_options {
                true => {
                    body["options"] = keys;
                    body["options"]["num_predict"] = json!(9);
                }
                false => body.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone()),
            }
            let answer = server.ok(path, &body);
            answer.pointer(place).unwrap_or_else(|| panic!("{path}: {answer}")).as_str().unwrap().to_owned()
        };
        let best = ask(json!({ "seed": 1 }));
        assert_eq!(best, ask(json!({ "seed": 2 })), "{path}");
        assert_eq!(best, ask(json!({ "temperature": 0, "seed": 3 })), "{path}");
        let hot =
            [1, 2, 3].map(|seed| ask(json!({ "temperature": 3, "top_k": 0, "min_p": 0, "seed": seed })));
        assert!(hot.iter().any(|one| *one != best), "{path}: {hot:?}");
    }
    let props: Value = serde_json::from_str(&server.get("/props").1).unwrap();
    let params = &props["default_generation_settings"]["params"];
    let found = ["temperature", "top_k", "top_p", "min_p"].map(|key| params[key].as_f64().unwrap() as f32);
    assert_eq!(found, [0.0, 5.0, 0.95, 0.05]);
    // Paths without a version, and with a slash at the end.
    assert_eq!(server.get("/v1/models/").0, 200);
    assert_eq!(
        server.post("/v1/chat/completions/", &json!({ "messages": messages, "max_tokens": 1 })).0,
        200
    );
    for path in ["/embeddings", "/embedding", "/embeddings/"] {
        let (status, answer) = server.post(path, &json!({ "input": "a" }));
        assert!(
            status == 400 && answer["error"]["message"].as_str().unwrap().contains("no embeddings"),
            "{answer}"
        );
    }
}
