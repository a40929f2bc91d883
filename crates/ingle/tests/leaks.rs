//! Ten thousand requests leave the resident memory where it was. A binary of its own, since other
//! tests would change that memory.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use ingle::device::DeviceKind;
use ingle::{Completion, Generation, LoadOptions, Model};
use serde_json::{Map, Value, json};

/// The folder of a tiny model, with a tokenizer of its vocabulary: 160 letters of GPT-2's alphabet
/// of bytes and fillers.
fn tiny() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/models/llama");
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(format!("{source}/{name}"), folder.path().join(name)).unwrap();
    }
    let letter = |id: u32| char::from_u32(33 + id).filter(char::is_ascii_graphic);
    let token = |id| letter(id).map_or_else(|| format!("<{id}>"), String::from);
    let vocab: Map<String, Value> = (0..160).map(|id| (token(id), json!(id))).collect();
    let tokenizer = json!({
        "version": "1.0", "added_tokens": [], "normalizer": null, "post_processor": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    });
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    folder
}

/// Bytes that this process has in memory, from `/proc/self/statm` (proc(5)).
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// Requests of three tokens with several prompts; every fifth answer is dropped before its end.
fn ask(model: &Model, n: u32) {
    for i in 0..n {
        let generation = Generation::new().max_tokens(3).seed(u64::from(i)).with_tokens(true);
        let prompt = vec![1, 2 + i % 7, 20 + i % 130];
        let mut answer = model.complete(Completion::tokens(prompt).generation(generation)).unwrap();
        if i % 5 == 0 {
            answer.next().unwrap().unwrap();
        } else {
            assert!(answer.reply().unwrap().end.usage.completion_tokens <= 3);
        }
    }
}

#[test]
fn memory_stays_where_it_was() {
    let mut options = LoadOptions::default();
    options.device.kind = DeviceKind::Cpu;
    options.device.threads = Some(1);
    options.n_ctx = Some(64);
    options.kv_budget = Some(1 << 20);
    let folder = tiny();
    let model = Model::load_with(folder.path(), &options).unwrap();
    ask(&model, 1000);
    let before = resident();
    ask(&model, 10_000);
    let after = resident();
    assert!(after < before + (2 << 20), "{before} bytes before, {after} after 10,000 requests");
}
