//! Images on the command line and over HTTP: the same image gives the same answer by every way.
#![allow(clippy::unwrap_used)] // A test that cannot go on fails.

#[path = "../../engine/tests/common/pictures.rs"]
mod pictures;

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::common::{error, fixture, ids, ingle, json as printed_json};
use crate::serve::Server;
use crate::serve_audio::send;
use pictures::fixtures_with_a_picture;

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

fn commas(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// Compares a model's logits with those of transformers for the fixture.
fn agrees(name: &str, model: &str, more: &[&str]) {
    let folder = fixture("models").join(name);
    let expected: Value =
        serde_json::from_slice(&std::fs::read(folder.join("expected.json")).unwrap()).unwrap();
    let (given, image) = (commas(&ids(&expected["input_ids"])), text(&folder.join("image.png")));
    let args = ["logits", model, "--tokens", &given, "--image", &image, "--top", "160", "--json"];
    let found = printed_json(&[&args[..], &["--kv-type", "f32", "-t", "1"], more].concat());
    for (at, logits) in
        expected["positions"].as_array().unwrap().iter().zip(expected["logits"].as_array().unwrap())
    {
        for entry in found["top"][at.as_u64().unwrap() as usize].as_array().unwrap() {
            let expected = logits[entry[0].as_u64().unwrap() as usize].as_f64().unwrap();
            let found = entry[1].as_f64().unwrap();
            // Pixels equal those of transformers to the byte; the rest is f32 in another order.
            assert!((found - expected).abs() < 2e-3, "{name}: {found}, expected {expected}");
        }
    }
}

#[test]
fn a_gguf_file_sees_with_its_tower_beside_it_or_named() {
    for name in &fixtures_with_a_picture() {
        let dir = tempfile::tempdir().unwrap();
        let (source, output) = (text(&fixture("models").join(name)), text(&dir.path().join("model.gguf")));
        let said = ingle(&["convert", &source, "-o", &output, "--to", "gguf"]);
        let notes = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(said.status.success() && notes.contains("mmproj-model.gguf"), "{name}: {notes}");
        agrees(name, &output, &[]);
        let elsewhere = dir.path().join("tower");
        std::fs::create_dir(&elsewhere).unwrap();
        let tower = text(&elsewhere.join("a.gguf"));
        std::fs::rename(dir.path().join("mmproj-model.gguf"), &tower).unwrap();
        let image = text(&fixture("models").join(name).join("image.png"));
        let blind = error(&["logits", &output, "--tokens", "1,2", "--image", &image]);
        assert!(blind.contains("sees no images"), "{name}: {blind}");
        agrees(name, &output, &["--mmproj", &tower]);
        let wrong = error(&["logits", &output, "--tokens", "1,2", "--mmproj", &output]);
        assert!(wrong.contains("clip") && wrong.contains("--mmproj"), "{name}: {wrong}");
        let folder = error(&["logits", &source, "--tokens", "1,2", "--mmproj", &tower]);
        assert!(folder.contains("expected GGUF"), "{name}: {folder}");
    }
}

#[test]
fn a_tower_that_llama_cpps_converter_wrote_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let (name, output) = ("gemma4_vl", text(&dir.path().join("model.gguf")));
    let said = ingle(&["convert", &text(&fixture("models").join(name)), "-o", &output, "--to", "gguf"]);
    assert!(said.status.success());
    std::fs::remove_file(dir.path().join("mmproj-model.gguf")).unwrap();
    agrees(name, &output, &["--mmproj", &text(&fixture("formats/mmproj/gemma4_vl.gguf"))]);
}

/// In the hub's cache, the image encoder may be in the repository's outermost folder.
#[test]
fn a_model_in_the_hubs_cache_sees() {
    let name = "gemma3_vl";
    let dir = tempfile::tempdir().unwrap();
    let repo = dir.path().join("models--org--model");
    let snapshot = repo.join("snapshots").join("ab".repeat(20));
    let model = snapshot.join("Q8_0").join("m-Q8_0.gguf");
    std::fs::create_dir_all(model.parent().unwrap()).unwrap();
    std::fs::create_dir_all(repo.join("refs")).unwrap();
    std::fs::write(repo.join("refs/main"), "ab".repeat(20)).unwrap();
    let said = ingle(&["convert", &text(&fixture("models").join(name)), "-o", &text(&model), "--to", "gguf"]);
    assert!(said.status.success());
    std::fs::rename(model.with_file_name("mmproj-m-Q8_0.gguf"), snapshot.join("mmproj-F16.gguf")).unwrap();
    for reference in ["hf:org/model:Q8_0", "hf:org/model/Q8_0/m-Q8_0.gguf"] {
        agrees(name, reference, &["--hf-cache", &text(dir.path()), "--offline"]);
    }
}

#[test]
fn logits_of_tokens_and_a_picture_are_those_of_transformers() {
    for name in &fixtures_with_a_picture() {
        let folder = fixture("models").join(name);
        let expected: Value =
            serde_json::from_slice(&std::fs::read(folder.join("expected.json")).unwrap()).unwrap();
        let tokens = ids(&expected["input_ids"]);
        let (model, image) = (text(&folder), text(&folder.join("image.png")));
        agrees(name, &model, &[]);
        let fewer = commas(&tokens[..tokens.len() - 15]);
        let said = error(&["logits", &model, "--tokens", &fewer, "--image", &image, "--json"]);
        assert!(said.contains("placeholders"), "{name}: {said}");
    }
    let model = text(&fixture("models/qwen3"));
    let image = text(&fixture("models/smolvlm/image.png"));
    let said = error(&["logits", &model, "--tokens", "1,2", "--image", &image]);
    assert!(said.contains("sees no images"), "{said}");
    let no_image = text(&fixture("models/smolvlm/config.json"));
    let model = text(&fixture("models/smolvlm"));
    let said = error(&["logits", &model, "--tokens", "1,2", "--image", &no_image]);
    assert!(said.contains("expected PNG, JPEG or WebP"), "{said}");
}

/// The fixture with a byte vocabulary, special tokens and a template.
fn folder_with_text() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "preprocessor_config.json", "model.safetensors"] {
        std::fs::copy(fixture("models/smolvlm").join(file), folder.path().join(file)).unwrap();
    }
    let mut vocab = serde_json::Map::new();
    vocab.insert("\u{10a}".into(), json!(13)); // line end
    vocab.insert("\u{120}".into(), json!(108)); // space
    (b'!'..=b'~').for_each(|byte| drop(vocab.insert(char::from(byte).to_string(), json!(byte - b'!' + 14))));
    let marks = [
        (1, "<s>"),
        (2, "</s>"),
        (130, "<row_1_col_1>"),
        (131, "<row_1_col_2>"),
        (132, "<row_2_col_1>"),
        (133, "<row_2_col_2>"),
        (147, "<global-img>"),
        (148, "<fake_token_around_image>"),
        (151, "<image>"),
    ];
    marks.iter().for_each(|(id, mark)| drop(vocab.insert((*mark).to_owned(), json!(id))));
    let taken: Vec<u64> = vocab.values().filter_map(Value::as_u64).collect();
    for id in (0..160).filter(|id| !taken.contains(id)) {
        vocab.insert(format!("<unused{id}>"), json!(id));
    }
    let added = |(id, content): &(u32, &str)| {
        json!({ "id": id, "content": content, "special": true, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false })
    };
    let byte_level =
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false });
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": marks.iter().map(added).collect::<Vec<_>>(),
        "pre_tokenizer": byte_level, "decoder": byte_level,
        "model": { "type": "BPE", "vocab": vocab, "merges": [] },
    });
    let template = "{% for m in messages %}{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}\
                    {% for p in m.content %}{% if p.type == 'image' %}<image>{% else %}{{ p.text }}{% endif %}{% endfor %}\
                    {% endif %}\n{% endfor %}{% if add_generation_prompt %}A:{% endif %}";
    let config = json!({ "bos_token": "<s>", "eos_token": "</s>", "chat_template": template });
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    folder
}

/// Uploads the image, and refers to it by `file_id` until it is deleted.
fn by_file(server: &Server, model: &str, image: &[u8], seen: &str) {
    let mut uploaded = send(server, "/v1/files", image, &[("purpose", "vision")]);
    let file: Value = serde_json::from_str(&uploaded.body_mut().read_to_string().unwrap()).unwrap();
    assert_eq!((&file["object"], &file["bytes"]), (&json!("file"), &json!(image.len())), "{file}");
    let id = file["id"].as_str().unwrap();
    let listed: Value = serde_json::from_str(&server.get("/v1/files?purpose=vision").1).unwrap();
    assert_eq!(listed["data"], json!([file]));
    let mut content = Server::agent().get(format!("{}/v1/files/{id}/content", server.url)).call().unwrap();
    assert_eq!(content.body_mut().read_to_vec().unwrap(), image);
    let parts =
        json!([{ "type": "input_image", "file_id": id }, { "type": "input_text", "text": "What is it?" }]);
    let ask = |more: Value| {
        let mut body = json!({ "model": model, "temperature": 0, "max_output_tokens": 8 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let first = ask(json!({ "input": [{ "role": "user", "content": parts }] }));
    let found = server.ok("/v1/responses", &first);
    assert_eq!(found["output"][0]["content"][0]["text"], seen, "{found}");
    let next = ask(json!({ "input": "And?", "previous_response_id": found["id"] }));
    server.ok("/v1/responses", &next);
    let deleted = Server::agent().delete(format!("{}/v1/files/{id}", server.url)).call().unwrap();
    assert_eq!(deleted.status(), 200);
    for body in [first, next] {
        let (status, answer) = server.post("/v1/responses", &body);
        let param = answer["error"]["param"].as_str().unwrap_or_default();
        assert!(status == 404 && param.ends_with(".content[0].file_id"), "{status} {answer}");
    }
    let mut wrong = send(server, "/v1/files", image, &[("purpose", "fine-tune")]);
    assert_eq!(wrong.status(), 400);
    assert!(wrong.body_mut().read_to_string().unwrap().contains("expected vision"));
}

#[test]
fn a_picture_gives_one_answer_on_the_command_line_and_by_every_api() {
    let folder = folder_with_text();
    let (model, image) = (text(folder.path()), text(&fixture("models/smolvlm/image.png")));
    let flags = ["--greedy", "--max-tokens", "8", "--json", "--deterministic"];
    let answer = |more: &[&str]| {
        let found = printed_json(&[&["run", &model, "What is it?"], more, &flags[..]].concat());
        found["text"].as_str().unwrap().to_owned()
    };
    let seen = answer(&["--image", &image]);
    assert!(!seen.is_empty() && seen != answer(&[]), "{seen:?}");
    // With random weights, the best two tokens may be as close as roundings.
    let server = Server::start(&[&model, "--deterministic"]);
    let models: Value = serde_json::from_str(&server.get("/v1/models").1).unwrap();
    let mut listed = models["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap());
    let id = listed.next_back().unwrap();
    let data = STANDARD.encode(std::fs::read(&image).unwrap());
    let url = format!("data:image/png;base64,{data}");
    let openai = |url: &str| {
        let parts = json!([{ "type": "image_url", "image_url": { "url": url } }, { "type": "text", "text": "What is it?" }]);
        json!({ "model": id, "temperature": 0, "max_tokens": 8, "messages": [{ "role": "user", "content": parts }] })
    };
    let found = server.ok("/v1/chat/completions", &openai(&url));
    assert_eq!(found["choices"][0]["message"]["content"], seen, "{found}");
    let parts =
        json!([{ "type": "input_image", "image_url": url }, { "type": "input_text", "text": "What is it?" }]);
    let body = json!({ "model": id, "temperature": 0, "max_output_tokens": 8, "input": [{ "role": "user", "content": parts }] });
    let found = server.ok("/v1/responses", &body);
    assert_eq!(found["output"][0]["content"][0]["text"], seen, "{found}");
    let source = json!({ "type": "base64", "media_type": "image/png", "data": data });
    let parts = json!([{ "type": "image", "source": source }, { "type": "text", "text": "What is it?" }]);
    let body = json!({ "model": id, "temperature": 0, "max_tokens": 8, "messages": [{ "role": "user", "content": parts }] });
    let found = server.ok("/v1/messages", &body);
    assert_eq!(found["content"][0]["text"], seen, "{found}");
    let message = json!({ "role": "user", "content": "What is it?", "images": [data] });
    // Ollama's repeat penalty is off, as in the other APIs.
    let options = json!({ "temperature": 0, "num_predict": 8, "repeat_penalty": 1.0 });
    let found = server
        .ok("/api/chat", &json!({ "model": id, "stream": false, "options": options, "messages": [message] }));
    assert_eq!(found["message"]["content"], seen, "{found}");
    by_file(&server, id, &std::fs::read(&image).unwrap(), &seen);
    for (url, expected) in [
        ("https://example.org/a.png", "not downloaded"),
        ("data:image/png;base64,QUJDREVGRw==", "expected PNG, JPEG or WebP"),
        ("data:image/png;base64,***", "expected base64"),
    ] {
        let (status, answer) = server.post("/v1/chat/completions", &openai(url));
        assert_eq!(status, 400, "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains(expected), "{answer}");
    }
}
