//! Adapters over HTTP, as in vLLM: they are models with their own names, loaded and unloaded while
//! the server runs.

#![allow(clippy::unwrap_used)] // A test that cannot go on fails.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::common::SMOLLM2;
use crate::serve::Server;

const COMPLETIONS: &str = "/v1/completions";
const TEXT: &str = "The capital of France is";

/// Writes an adapter of the first layer's down projection, with `values` in a pattern of `seed`.
fn write_adapter(folder: &Path, seed: usize) {
    std::fs::create_dir(folder).unwrap();
    let config = json!({ "peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["down_proj"], "bias": "none" });
    std::fs::write(folder.join("adapter_config.json"), config.to_string()).unwrap();
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (which, shape) in [("A", [2, 1536]), ("B", [576, 2])] {
        let begin = data.len();
        for i in 0..shape[0] * shape[1] {
            let value = ((i * 37 + seed * 11) % 17) as f32 / 8.0 - 1.0;
            data.extend(value.to_le_bytes());
        }
        let name = format!("base_model.model.model.layers.0.mlp.down_proj.lora_{which}.weight");
        header.insert(name, json!({ "dtype": "F32", "shape": shape, "data_offsets": [begin, data.len()] }));
    }
    let header = Value::Object(header).to_string();
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    std::fs::write(folder.join("adapter_model.safetensors"), bytes).unwrap();
}

/// Sends a request whose response is not JSON if it succeeds.
fn call(server: &Server, path: &str, body: &Value) -> (u16, String) {
    let mut response = server.open(path, None, body);
    (response.status().as_u16(), response.body_mut().read_to_string().unwrap())
}

#[test]
fn adapters_are_models_that_come_and_go() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_adapter(&at("first"), 1);
    write_adapter(&at("second"), 2);
    let lora = format!("loud={}", at("first").display());
    let directory = folder.path().display().to_string();
    // Answers are then independent of concurrent requests.
    let server = Server::start(&["--lora", &lora, "--lora-dir", &directory, "--deterministic"]);
    let base = SMOLLM2.path();
    let answer = |model: &str| {
        let body = json!({ "model": model, "prompt": TEXT, "max_tokens": 8, "temperature": 0 });
        let (status, answer) = server.post(COMPLETIONS, &body);
        (status, answer["choices"][0]["text"].as_str().unwrap_or_default().to_owned(), answer)
    };
    let (plain, loud) = (answer(&base).1, answer("loud"));
    assert!(plain.starts_with(" Paris"), "{plain}");
    assert!(loud.0 == 200 && loud.1 != plain, "{loud:?}");
    assert_eq!(loud.2["model"], "loud");
    // The command line gives the same answer with the same adapter.
    let flags = [
        "complete",
        &base,
        "--lora",
        &lora,
        "-p",
        TEXT,
        "--greedy",
        "-n",
        "8",
        "--json",
        "-t",
        "1",
        "--deterministic",
    ];
    let said = Command::new(env!("CARGO_BIN_EXE_ingle")).args(flags).output().unwrap();
    let said: Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!(said["text"].as_str().unwrap(), loud.1);
    let models: Value = serde_json::from_str(&server.get("/v1/models").1).unwrap();
    let listed = models["data"].as_array().unwrap().iter().find(|m| m["id"] == "loud").unwrap();
    assert_eq!((&listed["parent"], &listed["root"]), (&json!(base), &json!("first")));

    let load = |name: &str, path: &str| {
        call(&server, "/v1/load_lora_adapter", &json!({ "lora_name": name, "lora_path": path }))
    };
    assert_eq!(answer("other").0, 404);
    let (status, said) = load("other", "second");
    assert_eq!((status, said.as_str()), (200, "Success: LoRA adapter 'other' added successfully."));
    let other = answer("other");
    assert!(other.0 == 200 && other.1 != loud.1 && other.1 != plain, "{other:?}");
    assert_eq!((answer(&base).1, answer("loud").1), (plain, loud.1.clone()));
    // The cache survives, and running answers continue, while adapters are loaded and unloaded.
    let prompt = TEXT.repeat(20);
    let long = |model: &str, n: usize| {
        let body = json!({ "model": model, "prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": true });
        let answer = server.post(COMPLETIONS, &body).1;
        let n_cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        (answer["choices"][0]["text"].as_str().unwrap().to_owned(), n_cached)
    };
    let alone = ["loud", "other"].map(|model| long(model, 96).0);
    let unload = |name: &str| call(&server, "/v1/unload_lora_adapter", &json!({ "lora_name": name }));
    std::thread::scope(|scope| {
        let running = ["loud", "other"].map(|model| scope.spawn(move || long(model, 96)));
        // Both answers are running.
        while !server
            .get("/metrics")
            .1
            .lines()
            .any(|line| line.starts_with("ingle_requests_running") && line.ends_with(" 2"))
        {
            std::thread::yield_now();
        }
        assert_eq!(unload("other").0, 200);
        assert_eq!(answer("other").0, 404);
        assert_eq!(load("third", "first").0, 200);
        let answers = running.map(|running| running.join().unwrap());
        assert_eq!(answers.each_ref().map(|(text, _)| text.clone()), alone);
    });
    let (text, n_cached) = long("loud", 96);
    assert!(text == alone[0] && n_cached > 60, "{n_cached} cached tokens");
    assert_eq!(unload("third").0, 200);
    assert_eq!(load("other", "second").0, 200);
    invalid_paths_are_refused(folder.path(), &load);
    assert_eq!(load("", "second").0, 400);
    assert_eq!(answer("third").0, 404);
    assert_eq!(unload("other"), (200, "Success: LoRA adapter 'other' removed successfully.".to_owned()));
    assert_eq!((answer("other").0, unload("other").0, answer("loud").0), (404, 404, 200));
}

/// The name is in use, the path is outside the folder or missing, or the folder is not an adapter.
fn invalid_paths_are_refused(folder: &Path, load: &dyn Fn(&str, &str) -> (u16, String)) {
    let directory = folder.display().to_string();
    assert_eq!(load("other", "second").0, 400);
    let elsewhere = ["/etc", "../", "missing", "/nothing/there", "../../../etc/passwd"];
    for path in elsewhere {
        let (status, said) = load("third", path);
        let expected = format!("there is no adapter {path:?} in the folder of --lora-dir");
        let said: Value = serde_json::from_str(&said).unwrap();
        assert_eq!((status, said["error"]["message"].as_str()), (404, Some(expected.as_str())));
    }
    // The error for a folder that is not an adapter has its name only.
    std::fs::create_dir(folder.join("empty")).unwrap();
    std::fs::write(folder.join("empty").join("adapter_config.json"), "{").unwrap();
    let (status, said) = load("third", "empty");
    assert!(
        status == 400 && said.contains("adapter_config.json") && !said.contains(&directory),
        "{status} {said}"
    );
}

/// Only the key that loaded an adapter may replace and unload it; other keys may use it.
#[test]
fn an_adapter_is_of_the_key_that_loaded_it() {
    let folder = tempfile::tempdir().unwrap();
    write_adapter(&folder.path().join("first"), 1);
    let lora = format!("fixed={}", folder.path().join("first").display());
    let directory = folder.path().display().to_string();
    let server =
        Server::start(&["--lora", &lora, "--lora-dir", &directory, "--api-key", "a", "--api-key", "b"]);
    let call = |key: &str, path: &str, body: &Value| {
        let mut response = server.open(path, Some(key), body);
        (response.status().as_u16(), response.body_mut().read_to_string().unwrap())
    };
    let load = |key: &str, name: &str, inplace: bool| {
        let body = json!({ "lora_name": name, "lora_path": "first", "load_inplace": inplace });
        call(key, "/v1/load_lora_adapter", &body).0
    };
    let unload = |key: &str, name: &str| call(key, "/v1/unload_lora_adapter", &json!({ "lora_name": name }));
    assert_eq!(load("a", "mine", false), 200);
    assert_eq!((load("b", "mine", true), unload("b", "mine").0), (403, 403));
    let (status, said) = unload("b", "fixed");
    assert!(status == 403 && said.contains("was not loaded with this key"), "{status} {said}");
    let body = json!({ "model": "mine", "prompt": TEXT, "max_tokens": 1 });
    assert_eq!(call("b", COMPLETIONS, &body).0, 200);
    assert_eq!((load("a", "mine", true), unload("a", "mine").0), (200, 200));
    assert_eq!(load("b", "mine", false), 200, "the name is free again");
}

/// Clients may load adapters only if the server was started with a folder.
#[test]
fn clients_load_nothing_without_a_folder() {
    let server = Server::start(&[]);
    let body = json!({ "lora_name": "a", "lora_path": "a" });
    let (status, said) = call(&server, "/v1/load_lora_adapter", &body);
    assert!(status == 403 && said.contains("--lora-dir"), "{status} {said}");
}
