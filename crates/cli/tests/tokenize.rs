//! `ingle tokenize` needs only a vocabulary.
#![allow(clippy::unwrap_used)] // A test that cannot go on fails.

use std::path::Path;

use formats::gguf::{MetaValue, Writer};

use crate::common::{error, fixture, ids, ingle, json, ok};

const TOKENS: [&str; 10] = ["<s>", "</s>", "<|user|>", "h", "e", "l", "o", "he", "ll", "hello"];

/// Writes a file with this tokenizer model, an unknown family, and no tensors.
fn vocabulary(path: &Path, model: &str, chat_template: Option<&str>) {
    let mut writer = Writer::new();
    let mut put = |key: &str, value: MetaValue| writer.metadata(key, value).unwrap();
    let strings = |list: &[&str]| MetaValue::Strs(list.iter().map(|s| s.as_bytes().to_vec()).collect());
    put("general.architecture", MetaValue::Str("unheard-of".into()));
    put("tokenizer.ggml.model", MetaValue::Str(model.into()));
    put("tokenizer.ggml.pre", MetaValue::Str("gpt-2".into()));
    put("tokenizer.ggml.tokens", strings(&TOKENS));
    put("tokenizer.ggml.token_type", MetaValue::I32s(vec![3, 3, 3, 1, 1, 1, 1, 1, 1, 1]));
    put("tokenizer.ggml.merges", strings(&["h e", "l l"]));
    put("tokenizer.ggml.bos_token_id", MetaValue::U32(0));
    put("tokenizer.ggml.eos_token_id", MetaValue::U32(1));
    put("tokenizer.ggml.add_bos_token", MetaValue::Bool(true));
    if let Some(template) = chat_template {
        put("tokenizer.chat_template", MetaValue::Str(template.into()));
    }
    let mut header = Vec::new();
    writer.begin(&mut header).unwrap();
    std::fs::write(path, header).unwrap();
}

#[test]
fn a_vocabulary_alone_is_enough() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vocabulary.gguf");
    vocabulary(&path, "gpt2", Some("{{ bos_token }}<|user|>{{ messages[0].content }}{{ eos_token }}"));
    let path = path.to_str().unwrap();
    let tokens = |more: &[&str]| {
        let arguments = [&["tokenize", path, "hello<|user|>", "--json"], more].concat();
        ids(&json(&arguments)["tokens"])
    };
    assert_eq!(tokens(&[]), [0, 7, 8, 6, 2]);
    assert_eq!(tokens(&["--no-bos"]), [7, 8, 6, 2]);
    let literal = tokens(&["--no-bos", "--no-specials"]);
    assert!(literal.starts_with(&[7, 8, 6]) && !literal.contains(&2), "{literal:?}");
    let chat = json(&["tokenize", path, "hello", "--chat", "--json"]);
    assert_eq!(chat["text"], "<s><|user|>hello</s>");
    assert_eq!(ids(&chat["tokens"]), [0, 2, 7, 8, 6, 1]);
    let lines = ok(&["tokenize", path, "hello", "--chat"]);
    assert!(lines.starts_with("       0  \"<s>\"\n       2  \"<|user|>\"\n"), "{lines}");
    assert_eq!(ingle(&["tokenize", path, "hello", "--chat", "--no-bos"]).status.code(), Some(2));
}

#[test]
fn what_is_missing_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, model: &str| {
        let path = folder.path().join(name);
        vocabulary(&path, model, None);
        path.to_str().unwrap().to_owned()
    };
    let message = error(&["tokenize", &write("plain.gguf", "gpt2"), "hello", "--chat"]);
    assert!(message.contains("plain.gguf") && message.contains("no chat template"), "{message}");
    let message = error(&["tokenize", &write("none.gguf", "none"), "hello"]);
    assert!(message.contains("none.gguf") && message.contains("no vocabulary"), "{message}");
    let message = error(&["tokenize", &write("dna.gguf", "hybriddna"), "hello"]);
    assert!(message.contains("dna.gguf") && message.contains("hybriddna"), "{message}");
    let message = error(&["tokenize", fixture("models/llama").to_str().unwrap(), "hello"]);
    assert!(message.contains("llama") && message.contains("no vocabulary"), "{message}");
}
