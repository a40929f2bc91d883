//! The tokenizer of a `.base` file equals that of its source folder, whichever program wrote the
//! file.
#![allow(clippy::unwrap_used)] // Tests may unwrap.
use ingle_text::{Specials, Tokenizer};
use weights::{Array, Metadata, Value};

const TOKENIZER: &str = r#"{
    "version": "1.0", "added_tokens": [{"id": 3, "content": "</s>", "special": true, "single_word": false,
        "lstrip": false, "rstrip": false, "normalized": false}],
    "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
    "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "<unk>": 2, "</s>": 3}, "unk_token": "<unk>"}
}"#;
const CONFIG: &str = r#"{"chat_template": "old {{ messages }}", "eos_token": "</s>"}"#;
const TEMPLATE: &str = "new {{ messages }}";

fn metadata(entries: &[(&str, &str)]) -> Metadata {
    let mut metadata = Metadata::default();
    for (key, text) in entries {
        metadata.insert((*key).to_owned(), Value::Str((*text).to_owned()));
    }
    metadata
}

#[test]
fn every_way_of_storing_the_files_gives_the_same_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in
        [("tokenizer.json", TOKENIZER), ("tokenizer_config.json", CONFIG), ("chat_template.jinja", TEMPLATE)]
    {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let expected = Tokenizer::from_folder(folder.path()).unwrap().unwrap();
    let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    let object = serde_json::json!({
        "tokenizer_type": "hf", "tokenizer.json": json(TOKENIZER), "tokenizer_config.json": json(CONFIG),
        "tokenizer.chat_template": TEMPLATE,
    });
    for kept in [
        metadata(&[
            ("files.tokenizer.json", TOKENIZER),
            ("files.tokenizer_config.json", CONFIG),
            ("files.chat_template.jinja", TEMPLATE),
        ]),
        metadata(&[("tokenizer.huggingface.json", &object.to_string())]),
    ] {
        let found = Tokenizer::from_base(&kept).unwrap().unwrap();
        assert_eq!(found.chat_template(), Some(TEMPLATE));
        assert_eq!(found.eos(), expected.eos());
        let text = "b a x</s>";
        for specials in [Specials::Parse, Specials::Literal] {
            assert_eq!(found.encode(text, specials).unwrap(), expected.encode(text, specials).unwrap());
        }
    }
}

#[test]
fn ends_come_from_the_configuration_in_the_metadata() {
    let ends = |keys: &[(&str, Value)]| {
        let mut metadata = metadata(&[("tokenizer.huggingface.json", TOKENIZER)]);
        keys.iter().for_each(|(key, value)| _ = metadata.insert((*key).to_owned(), value.clone()));
        let found = Tokenizer::from_base(&metadata).unwrap().unwrap();
        (0..4).filter(|&id| found.eos() == Some(id) || found.ends().contains(&id)).collect::<Vec<u32>>()
    };
    let list = |ids: &[i64]| Value::Array(Array::Int(ids.to_vec()));
    // The template's text shows that token 3 ends an answer.
    assert_eq!(ends(&[]), [3]);
    assert_eq!(ends(&[("eos_token_id", Value::Int(1))]), [1, 3]);
    assert_eq!(ends(&[("eos_token_id", list(&[0, 1]))]), [0, 1, 3]);
    assert_eq!(ends(&[("eos_token_id", Value::Int(0)), ("eos_token_ids", list(&[1]))]), [0, 1, 3]);
    assert_eq!(
        ends(&[("generation_config.eos_token_id", list(&[1])), ("eos_token_id", Value::Int(0))]),
        [1, 3]
    );
}

#[test]
fn broken_files_are_named() {
    assert!(Tokenizer::from_base(&Metadata::default()).unwrap().is_none());
    assert!(Tokenizer::from_base(&metadata(&[("tokenizer.huggingface.json", "{}")])).unwrap().is_none());
    for (key, text, part) in [
        ("tokenizer.huggingface.json", "{", "tokenizer.huggingface.json"),
        ("files.tokenizer.json", "[", "tokenizer.json"),
    ] {
        let error = Tokenizer::from_base(&metadata(&[(key, text)])).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}
