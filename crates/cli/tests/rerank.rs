//! `ingle rerank` and `ingle embed --tokens` agree with transformers, and `inspect --missing` lists
//! the unknown parts.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use crate::serve::Server;

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models").join(name)
}

fn run(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_ingle")).args(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn expected(name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(fixture(name).join("expected.json")).unwrap()).unwrap()
}

fn ids(value: &Value) -> String {
    let ids: Vec<String> = value.as_array().unwrap().iter().map(Value::to_string).collect();
    ids.join(",")
}

fn close(found: &Value, wanted: &Value) {
    match (found, wanted) {
        (Value::Array(found), Value::Array(wanted)) => {
            assert_eq!(found.len(), wanted.len());
            found.iter().zip(wanted).for_each(|(found, wanted)| close(found, wanted));
        }
        _ => {
            let off = (found.as_f64().unwrap() - wanted.as_f64().unwrap()).abs();
            assert!(off < 1e-3, "{found} {wanted}");
        }
    }
}

#[test]
fn pairs_are_judged() {
    let folder = fixture("xlm_roberta_reranker");
    let json = expected("xlm_roberta_reranker");
    let pairs = json["pairs"].as_array().unwrap();
    let tokens: Vec<String> = pairs.iter().map(|pair| ids(&pair["input_ids"])).collect();
    let mut args = vec!["rerank", folder.to_str().unwrap(), "--json"];
    tokens.iter().for_each(|tokens| args.extend(["--tokens", tokens]));
    let found: Value = serde_json::from_str(&run(&args)).unwrap();
    let scores: Vec<Value> = pairs.iter().map(|pair| pair["score"].clone()).collect();
    close(&found["scores"], &Value::Array(scores));
}

#[test]
fn a_language_model_judges_by_yes_and_no_from_a_folder_and_from_gguf() {
    let folder = fixture("qwen3_reranker");
    let json = expected("qwen3_reranker");
    let dir = tempfile::tempdir().unwrap();
    let gguf = dir.path().join("judge.gguf");
    run(&["convert", folder.to_str().unwrap(), "-o", gguf.to_str().unwrap(), "--to", "gguf:f32"]);
    for model in [&folder, &gguf] {
        for pair in json["pairs"].as_array().unwrap() {
            let (query, document) = (pair["query"].as_str().unwrap(), pair["document"].as_str().unwrap());
            let found = run(&["rerank", model.to_str().unwrap(), query, document, "--json"]);
            let found: Value = serde_json::from_str(&found).unwrap();
            let off = (found["scores"][0].as_f64().unwrap() - pair["score"].as_f64().unwrap()).abs();
            assert!(off < 1e-4, "{query}: {found}, expected {}", pair["score"]);
        }
    }
    let server = Server::start(&[folder.to_str().unwrap()]);
    let models: Value = serde_json::from_str(&server.get("/v1/models").1).unwrap();
    let pair = &json["pairs"][1];
    let documents = json!([json["pairs"][0]["document"], pair["document"]]);
    let id = &models["data"].as_array().unwrap().last().unwrap()["id"];
    let body = json!({ "model": id, "query": pair["query"], "documents": documents });
    let found = server.ok("/v1/rerank", &body);
    for (result, index) in found["results"].as_array().unwrap().iter().zip([1, 0]) {
        assert_eq!(result["index"], index, "{found}");
        let score = json["pairs"][index]["score"].as_f64().unwrap();
        assert!((result["relevance_score"].as_f64().unwrap() - score).abs() < 1e-4, "{found}");
    }
    // A document that is too long loses its end, and the query stays.
    let long = "bamboo ".repeat(2000);
    let found: Value =
        serde_json::from_str(&run(&["rerank", folder.to_str().unwrap(), "q", &long, "--json"])).unwrap();
    let score = found["scores"][0].as_f64().unwrap();
    assert!(score > 0.0 && score < 1.0, "{found}");
}

#[test]
fn vectors_and_states_of_tokens() {
    for name in ["embedding_gemma", "modernbert", "qwen3_embedding"] {
        let (folder, json) = (fixture(name), expected(name));
        let tokens = ids(&json["input_ids"]);
        let args = ["embed", folder.to_str().unwrap(), "--tokens", &tokens, "--kv-type", "f32", "--json"];
        let found: Value = serde_json::from_str(&run(&args)).unwrap();
        close(&found["embeddings"], &Value::Array(vec![json["embedding"].clone()]));
        let found: Value = serde_json::from_str(&run(&[&args[..], &["--hidden"]].concat())).unwrap();
        close(&found["embeddings"], &json["last_hidden_state"]);
    }
}

#[test]
fn what_no_family_knows_is_listed() {
    let folder = tempfile::tempdir().unwrap();
    let source = fixture("phi");
    std::fs::copy(source.join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
    let config = std::fs::read_to_string(source.join("config.json")).unwrap();
    let config = config.replace("\"model_type\": \"phi\"", "\"model_type\": \"other\", \"swirl\": 3");
    let config = config.replace("PhiForCausalLM", "OtherForCausalLM");
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    let found = run(&["inspect", folder.path().to_str().unwrap(), "--missing"]);
    assert!(
        found.contains("the most similar family, Phi") && found.contains("unknown key: swirl"),
        "{found}"
    );
    let known = run(&["inspect", source.to_str().unwrap(), "--missing"]);
    assert_eq!(known.lines().filter(|line| line.starts_with("unknown tensor")).count(), 0, "{known}");
}
