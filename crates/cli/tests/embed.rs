//! `ingle embed` with the catalog's sentence model (fetched into the user's cache on first use),
//! compared with sentence-transformers.

#![allow(clippy::unwrap_used)] // A test that cannot go on fails.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::common::{error, fixture, ingle, json};
use serde_json::Value;

const MODEL: &str = "minilm:l6";

fn vectors(value: &Value) -> Vec<Vec<f64>> {
    let row = |v: &Value| v.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect();
    value.as_array().unwrap().iter().map(row).collect()
}

fn answers() -> (Vec<String>, Vec<Vec<f64>>, Vec<Vec<f64>>) {
    let text = std::fs::read_to_string(fixture("embeddings/minilm.json")).unwrap();
    let value: Value = serde_json::from_str(&text).unwrap();
    let sentences = value["sentences"].as_array().unwrap().iter().map(|s| s.as_str().unwrap().to_owned());
    (sentences.collect(), vectors(&value["embeddings"]), vectors(&value["similarities"]))
}

#[test]
fn vectors_and_similarities_are_those_of_sentence_transformers() {
    let (sentences, embeddings, similarities) = answers();
    for device in [&["--device", "cpu"][..], &["--device", "reference"], &["--chunk", "1", "--deterministic"]]
    {
        let mut args = vec!["embed", MODEL, "--json"];
        args.extend(device);
        args.push("--");
        args.extend(sentences.iter().map(String::as_str));
        let found = vectors(&json(&args)["embeddings"]);
        assert_eq!(found.len(), embeddings.len());
        for (i, (a, b)) in found.iter().zip(&embeddings).enumerate() {
            let worst = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            // All values are f32, summed in other orders: measured below 1e-6.
            assert!(a.len() == b.len() && worst < 1e-5, "{device:?}, text {i}: {worst}");
            for (j, other) in found.iter().enumerate() {
                let cosine: f64 = a.iter().zip(other).map(|(a, b)| a * b).sum();
                assert!((cosine - similarities[i][j]).abs() < 1e-4, "{device:?}, {i} and {j}: {cosine}");
            }
        }
    }
}

#[test]
fn arguments_files_and_stdin_give_the_same() {
    let (sentences, ..) = answers();
    let sentences = &sentences[..6];
    let mut args = vec!["embed", MODEL, "--json"];
    args.extend(sentences.iter().map(String::as_str));
    let expected = json(&args);
    let lines = sentences.join("\n") + "\n";
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(lines.as_bytes()).unwrap();
    assert_eq!(json(&["embed", MODEL, "--json", "--file", file.path().to_str().unwrap()]), expected);
    let mut child = Command::new(env!("CARGO_BIN_EXE_ingle"))
        .args(["embed", MODEL, "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let out = child.wait_with_output().unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&out.stdout).unwrap(), expected);
    let out = String::from_utf8(ingle(&["embed", MODEL, "one", "two"]).stdout).unwrap();
    assert_eq!(out.lines().map(|line| line.split(' ').count()).collect::<Vec<_>>(), [384, 384]);
}

#[test]
fn cut_texts_are_noted_and_errors_are_clear() {
    let long = "word ".repeat(300);
    let out = ingle(&["embed", MODEL, "short", &long]);
    let notes = String::from_utf8(out.stderr).unwrap();
    assert!(notes.contains("text 2 is longer than 256 tokens"), "{notes}");
    let whole = ingle(&["embed", MODEL, "--ctx", "512", &long]).stderr;
    assert!(!String::from_utf8(whole).unwrap().contains("longer than"));
    for (args, part) in [
        (&["embed", MODEL, "--ctx", "513", "x"][..], "512 positions"),
        (&["embed", MODEL, "--validate-prefill", "x"], "whole text"),
        (&["embed", MODEL, "--file", "/no/such/file"], "/no/such/file"),
        (&["complete", MODEL, "--prompt", "x"], "no logits"),
    ] {
        let message = error(args);
        assert!(message.contains(part), "{args:?}: {message}");
    }
    let folder = fixture("models/llama");
    assert!(error(&["embed", folder.to_str().unwrap(), "x"]).contains("pooling_type"));
}
