//! Model files that change while they are served, and a machine without a home folder.

#![allow(clippy::unwrap_used)] // A test that cannot go on fails.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::process::Command;

use serde_json::{Value, json};

use crate::common::SMOLLM2;
use crate::serve::{CHAT, Server, chat};

fn ingle_without_home() -> Command {
    let mut ingle = Command::new(env!("CARGO_BIN_EXE_ingle"));
    for name in ["HOME", "XDG_CACHE_HOME", "INGLE_CACHE", "HF_HOME", "HF_HUB_CACHE"] {
        ingle.env_remove(name);
    }
    ingle
}

fn ask(model: &Value, n: usize) -> Value {
    chat("Count from one to a thousand.", json!({ "model": model, "max_tokens": n, "temperature": 0 }))
}

#[test]
#[cfg(unix)]
fn a_file_that_is_cut_while_it_is_served_ends_the_answers_of_its_model_only() {
    let folder = tempfile::tempdir().unwrap();
    let [cut, other] = ["cut.gguf", "other.gguf"].map(|name| {
        let path = folder.path().join(name);
        fs::copy(SMOLLM2.path(), &path).unwrap();
        path
    });
    let server =
        Server::run(ingle_without_home(), cut.to_str().unwrap(), &[other.to_str().unwrap(), "--no-warmup"]);
    let models: Value = serde_json::from_str(&server.get("/v1/models").1).unwrap();
    let [cut_name, other_name] = [0, 1].map(|i| models["data"][i]["id"].clone());
    let before = server.ok(CHAT, &ask(&cut_name, 8))["choices"][0]["message"]["content"].clone();

    // The file changes in the middle of an answer.
    let mut endless = ask(&cut_name, 4000);
    endless["stream"] = json!(true);
    endless["ignore_eos"] = json!(true);
    let mut stream = BufReader::new(server.open(CHAT, None, &endless).into_body().into_reader());
    let mut line = String::new();
    while !line.contains("content\":\"") {
        line.clear();
        assert!(stream.read_line(&mut line).unwrap() > 0, "the stream ends before its first token");
    }
    File::options().write(true).open(&cut).unwrap().set_len(0).unwrap();
    let rest: String = stream.lines().map_while(Result::ok).collect();
    assert!(rest.contains("error") && rest.contains("cut.gguf") && rest.contains("changed"), "{rest}");

    // The server runs, the other model answers, and the error names this model's file.
    let answer = server.ok(CHAT, &ask(&other_name, 8));
    assert_eq!(answer["choices"][0]["message"]["content"], before);
    let (status, refused) = server.post(CHAT, &ask(&cut_name, 8));
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(status >= 500 && message.contains("could not be loaded"), "{status} {message}");

    // The model answers again as soon as its file is complete.
    fs::copy(&other, &cut).unwrap();
    assert_eq!(server.ok(CHAT, &ask(&cut_name, 8))["choices"][0]["message"]["content"], before);
}

#[test]
fn a_local_file_needs_no_home() {
    let path = SMOLLM2.path();
    for args in [
        &["inspect", &path][..],
        &["tokenize", &path, "Hello"],
        &["complete", &path, "-p", "Hello", "-n", "2"],
        &["inspect", "/no/such/file.gguf"],
        &["inspect", "smollm2:135m"],
    ] {
        let out = ingle_without_home().args(args).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        match args[1] {
            "/no/such/file.gguf" => assert!(said.contains("/no/such/file.gguf"), "{said}"),
            // A model of the hub needs a cache folder.
            "smollm2:135m" => assert!(said.contains("no folder for the model cache"), "{said}"),
            _ => assert!(out.status.success(), "{args:?}: {said}"),
        }
    }
}
