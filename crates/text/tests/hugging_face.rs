//! tokenizer.json in its common forms, the files beside it, and errors of broken ones.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.

use ingle_text::{Error, GgufTokenizer, Specials, Tokenizer, gguf_from_base, gguf_from_folder};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use weights::{Metadata, Value as Entry};

fn added(id: u32, content: &str, special: bool) -> Value {
    json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
           "special": special})
}

/// GPT-2's form.
fn byte_level() -> Value {
    json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 100}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0,
                    "pad_type_id": 0, "pad_token": "!"},
        "added_tokens": [added(0, "<|endoftext|>", true), added(11, "<tool>", false)],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": 0.9, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                  "vocab": {"<|endoftext|>": 0, "a": 1, "b": 2, "Ġ": 3, "Ã": 4, "©": 5, "<": 6, ">": 7, "ab": 8, "Ġab": 9, "|": 10},
                  "merges": ["a b", "Ġ ab"]}
    })
}

/// Gemma's form.
fn byte_fallback() -> Value {
    json!({
        "version": "1.0",
        "added_tokens": [added(0, "<unk>", true), added(1, "<bos>", true), added(2, "<eos>", true)],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                       {"SpecialToken": {"id": "<eos>", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<bos>": {"id": "<bos>", "ids": [1], "tokens": ["<bos>"]},
                               "<eos>": {"id": "<eos>", "ids": [2], "tokens": ["<eos>"]}}},
        "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                    {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
                  "vocab": {"<unk>": 0, "<bos>": 1, "<eos>": 2, "<0xC3>": 3, "<0xA9>": 4, "▁": 5, "a": 6, "b": 7, "▁a": 8, "ab": 9},
                  "merges": [["▁", "a"], ["a", "b"]]}
    })
}

/// BERT's form.
fn word_piece() -> Value {
    json!({
        "version": "1.0",
        "added_tokens": [added(0, "[UNK]", true), added(1, "[CLS]", true), added(2, "[SEP]", true)],
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 2], "cls": ["[CLS]", 1]},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
                  "vocab": {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "un": 3, "##aff": 4, "##able": 5, ",": 6, "cafe": 7}}
    })
}

/// ALBERT's form, without the compiled character map.
fn unigram() -> Value {
    json!({
        "version": "1.0",
        "added_tokens": [added(0, "<unk>", true)],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}]},
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
        "post_processor": null,
        "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
        "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": false,
                  "vocab": [["<unk>", 0.0], ["▁", -2.0], ["a", -3.0], ["b", -3.5], ["▁ab", -4.0], ["ab", -5.0]]}
    })
}

fn load(json: &Value) -> Result<Tokenizer, Error> {
    Tokenizer::from_json(json.to_string().as_bytes(), None)
}

#[test]
fn byte_level_without_dropout_truncation_and_padding() {
    let t = load(&byte_level()).unwrap();
    assert_eq!(t.encode("ab ab é", Specials::Parse).unwrap(), [8, 9, 3, 4, 5]);
    assert_eq!(t.encode("<|endoftext|>a<tool>", Specials::Parse).unwrap(), [0, 1, 11]);
    // Letters without a token are dropped. The end mark is not parsed as text, but the tool mark is
    // a token in either mode.
    assert_eq!(t.encode("<|endoftext|>a<tool>", Specials::Literal).unwrap(), [6, 10, 10, 7, 1, 11]);
    assert_eq!(t.decode(&[8, 9, 3, 4, 5, 0, 11], false), "ab ab é<|endoftext|><tool>");
    assert_eq!(t.decode(&[8, 0, 11], true), "ab<tool>");
    assert_eq!((t.token_bytes(9), t.token_bytes(4), t.n_tokens()), (&b" ab"[..], &b"\xC3"[..], 12));
    assert!(t.is_end(0) && t.is_special(0) && !t.is_special(11));
}

#[test]
fn byte_fallback_with_a_template_around_the_text() {
    let t = load(&byte_fallback()).unwrap();
    assert_eq!(t.encode_with_bos("ab aé", Specials::Parse).unwrap(), [1, 9, 8, 3, 4, 2]);
    assert_eq!(t.encode("<bos>a", Specials::Parse).unwrap(), [1, 6]);
    assert!(!t.encode("<bos>a", Specials::Literal).unwrap().contains(&1));
    assert_eq!(t.decode(&[1, 8, 3, 4, 2], true), " aé");
    assert_eq!((t.token_bytes(3), t.token_bytes(8)), (&b"\xC3"[..], &b" a"[..]));
}

#[test]
fn word_piece_and_unigram() {
    let t = load(&word_piece()).unwrap();
    assert_eq!(t.encode_with_bos("Unaffable, CAFÉ x", Specials::Parse).unwrap(), [1, 3, 4, 5, 6, 7, 0, 2]);
    assert_eq!(t.decode(&[1, 3, 4, 5, 7, 2], true), "unaffable cafe");
    let t = load(&unigram()).unwrap();
    assert_eq!(t.encode("AB ab", Specials::Parse).unwrap(), [4, 4]);
    assert_eq!(t.encode("abab", Specials::Parse).unwrap(), [4, 5]);
    assert_eq!(t.decode(&[4, 4], false), "ab ab");
}

#[test]
fn the_files_beside_it_have_its_settings() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, json: Value| std::fs::write(dir.path().join(name), json.to_string()).unwrap();
    assert!(Tokenizer::from_folder(dir.path()).unwrap().is_none());
    write("tokenizer.json", byte_fallback());
    write(
        "tokenizer_config.json",
        json!({
        "bos_token": {"content": "<bos>", "lstrip": false}, "eos_token": null, "add_bos_token": false,
        "chat_template": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]}),
    );
    write("special_tokens_map.json", json!({"eos_token": "<eos>"}));
    write("generation_config.json", json!({"eos_token_id": [2, 9]}));
    let t = Tokenizer::from_folder(dir.path()).unwrap().unwrap();
    assert_eq!((t.bos(), t.eos(), t.ends()), (Some(1), Some(2), &[2, 9][..]));
    assert_eq!((t.chat_template(), t.chat_template_named("tool_use")), (Some("D"), Some("T")));
    assert_eq!(t.encode_with_bos("a", Specials::Parse).unwrap(), [6, 2]);

    std::fs::write(dir.path().join("chat_template.jinja"), "J").unwrap();
    let t = Tokenizer::from_folder(dir.path()).unwrap().unwrap();
    assert_eq!((t.chat_template(), t.chat_template_named("tool_use")), (Some("J"), Some("T")));

    // Ids without a token are ignored.
    write("generation_config.json", json!({"eos_token_id": [10, 9, -1]}));
    assert_eq!(Tokenizer::from_folder(dir.path()).unwrap().unwrap().ends(), [2, 9]);
    std::fs::write(dir.path().join("tokenizer.json"), "{").unwrap();
    assert!(Tokenizer::from_folder(dir.path()).unwrap_err().to_string().starts_with("tokenizer.json: EOF"));
}

#[test]
fn errors_name_the_cause() {
    let check = |mut json: Value, pointer: &str, value: Value, parts: &[&str]| {
        *json.pointer_mut(pointer).unwrap() = value;
        let got = load(&json).unwrap_err().to_string();
        assert!(parts.iter().all(|part| got.contains(part)), "{got:?} does not say {parts:?}");
    };
    check(byte_level(), "", json!([]), &["an object"]);
    check(byte_level(), "/model", json!(null), &["model is missing"]);
    check(byte_level(), "/model/type", json!("LSTM"), &["model.type", "LSTM", "Unigram"]);
    check(byte_level(), "/model/vocab", json!(null), &["model.vocab is missing"]);
    check(byte_level(), "/model/vocab/a", json!(4_000_000_000u32), &["4000000000", "4194304"]);
    // Longer than any token: the library would write past its buffer's end.
    check(byte_level(), "/model/merges", json!(["<|endoftext|> <|endoftext|>"]), &["merge 0", "not a token"]);
    check(byte_level(), "/model/merges/0", json!("a c"), &["merge 0", "\"c\""]);
    check(byte_level(), "/model/merges/0", json!("ab"), &["merges[0]", "space between"]);
    check(byte_level(), "/model/continuing_subword_prefix", json!("####"), &["merges[0]", "continued"]);
    check(byte_level(), "/pre_tokenizer/type", json!("Magic"), &["pre_tokenizer.type", "Magic", "Metaspace"]);
    check(
        unigram(),
        "/normalizer/normalizers/0",
        json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
        &["normalizer.type", "Precompiled"],
    );
    let replace = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "a".repeat(100)});
    check(
        unigram(),
        "/normalizer/normalizers",
        json!([replace, replace, replace]),
        &["normalizer", "1000000 times"],
    );
    check(word_piece(), "/model/max_input_chars_per_word", json!(100_000), &["100000", "at most 1000"]);
    check(unigram(), "/model/unk_id", json!(6), &["unk_id", "6 tokens"]);
    check(word_piece(), "/post_processor/cls", json!(["[CLS]", 8]), &["post_processor is 8", "8 tokens"]);
    check(byte_fallback(), "/post_processor/special_tokens", json!({}), &["special_tokens.<bos> is missing"]);
    check(byte_level(), "/added_tokens/0/content", json!(3), &["added_tokens[0].content", "text"]);
    assert!(Tokenizer::from_json(b"[[[", None).is_err());
    assert!(Tokenizer::from_json(byte_level().to_string().as_bytes(), Some(b"nonsense")).is_err());
}

/// GGUF's keys for a tokenizer.json with a tokenizer_config.json beside it, as stored in a `.base`
/// file.
fn export(json: &Value, config: &Value, n_vocab: usize) -> Result<GgufTokenizer, Error> {
    let mut kept = Metadata::default();
    for (name, file) in [("tokenizer.json", json), ("tokenizer_config.json", config)] {
        kept.insert(format!("files.{name}"), Entry::Str(file.to_string()));
    }
    gguf_from_base(&kept, n_vocab).map(Option::unwrap)
}

/// The document with a token for each byte.
fn all_bytes(mut json: Value) -> Value {
    let vocab = json["model"]["vocab"].as_object_mut().unwrap();
    for byte in 0..=255u8 {
        let next = vocab.len();
        vocab.entry(format!("<0x{byte:02X}>")).or_insert(next.into());
    }
    json
}

/// Documents of the kinds that GGUF has, each with its configuration.
fn for_gguf() -> Vec<(&'static str, Value, Value)> {
    let with = |mut json: Value, changes: &[(&str, Value)]| {
        for (pointer, value) in changes {
            *json.pointer_mut(pointer).unwrap() = value.clone();
        }
        json
    };
    let split = |pattern: &str| {
        json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]})
    };
    let digits = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": true},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}]});
    let llama3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let qwen2 = llama3.replace("{1,3}", "");
    // The merges "b a" and "▁ b" are missing, though the tokens exist: scores cannot express that.
    let mut merged = byte_fallback();
    merged["model"]["vocab"]["ba"] = json!(10);
    merged["model"]["vocab"]["▁b"] = json!(11);
    merged["post_processor"]["single"] =
        json!([{"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]);
    let prepended = json!({"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]});
    let stripped = json!({"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]});
    vec![
        ("gpt-2", byte_level(), json!({"eos_token": "<|endoftext|>", "pad_token": {"content": "<tool>"}})),
        ("smollm", with(byte_level(), &[("/pre_tokenizer", digits)]), json!({"bos_token": "<|endoftext|>"})),
        (
            "llama3",
            with(byte_level(), &[("/pre_tokenizer", split(llama3)), ("/model/ignore_merges", json!(true))]),
            json!({"bos_token": "<|endoftext|>", "add_bos_token": true}),
        ),
        ("qwen2", with(byte_level(), &[("/pre_tokenizer", split(&qwen2))]), json!(null)),
        (
            "default",
            all_bytes(byte_fallback()),
            json!({"bos_token": "<bos>", "eos_token": "<eos>", "chat_template": "T"}),
        ),
        (
            "default",
            with(all_bytes(byte_fallback()), &[("/normalizer", prepended), ("/decoder", stripped)]),
            json!({"eos_token_id": [2, 1]}),
        ),
        ("gemma4", all_bytes(merged), json!({"bos_token": "<bos>"})),
        ("default", word_piece(), json!({"unk_token": "[UNK]"})),
    ]
}

#[test]
fn exported_to_gguf_the_ids_are_the_same() {
    let texts = [
        "",
        "a",
        "ab",
        " ab",
        "ab ab é",
        "aba",
        "ba  ab",
        "a\nb",
        "<|endoftext|>a<tool>",
        "<bos>ab",
        "12 345ab|",
        "Unaffable, CAFÉ x",
        "[SEP]un",
        "unaff ,able",
        "bab aab  ",
        "<eos> b",
    ];
    for (pre, json, config) in for_gguf() {
        let (bytes, beside) = (json.to_string(), config.to_string());
        let source = Tokenizer::from_json(bytes.as_bytes(), Some(beside.as_bytes())).unwrap();
        // Some rows of the embedding have no token.
        let n_vocab = source.n_tokens() + 4;
        let meta = export(&json, &config, n_vocab).unwrap().metadata;
        assert_eq!(meta.str("tokenizer.ggml.pre"), Some(pre), "{json}");
        assert_eq!(meta.array("tokenizer.ggml.tokens").unwrap().len(), n_vocab);
        let read = Tokenizer::from_gguf(&meta).unwrap();
        for text in texts {
            for specials in [Specials::Parse, Specials::Literal] {
                let ids = source.encode(text, specials).unwrap();
                assert_eq!(read.encode(text, specials).unwrap(), ids, "{pre}: {text:?}, {specials:?}");
                let ids = source.encode_with_bos(text, specials).unwrap();
                assert_eq!(
                    read.encode_with_bos(text, specials).unwrap(),
                    ids,
                    "{pre}: {text:?}, {specials:?}"
                );
                assert_eq!(read.decode(&ids, true), source.decode(&ids, true), "{pre}: {text:?}");
            }
        }
        assert_eq!((read.eos(), read.ends()), (source.eos(), source.ends()), "{pre}");
        assert_eq!(read.chat_template(), source.chat_template());
    }
    let meta = export(&word_piece(), &json!({}), 9).unwrap().metadata;
    let tokens = meta.array("tokenizer.ggml.tokens").unwrap();
    let token = |i| String::from_utf8_lossy(tokens.str_bytes(i).unwrap()).into_owned();
    assert_eq!([token(0), token(3), token(4), token(8)], ["[UNK]", "▁un", "aff", "[PAD8]"]);
}

#[test]
fn a_folder_is_exported_with_the_files_beside_it() {
    let dir = tempfile::tempdir().unwrap();
    assert!(gguf_from_folder(dir.path(), 12).unwrap().is_none());
    std::fs::write(dir.path().join("tokenizer.json"), byte_level().to_string()).unwrap();
    std::fs::write(dir.path().join("generation_config.json"), r#"{"eos_token_id": [0, 7]}"#).unwrap();
    std::fs::write(dir.path().join("chat_template.jinja"), "J").unwrap();
    let meta = gguf_from_folder(dir.path(), 12).unwrap().unwrap().metadata;
    assert_eq!(meta.usize("tokenizer.ggml.eos_token_id"), Some(0));
    assert_eq!(meta.usize("tokenizer.ggml.eot_token_id"), Some(7));
    assert_eq!(meta.str("tokenizer.chat_template"), Some("J"));
}

#[test]
fn features_that_gguf_cannot_express_are_errors() {
    let check = |mut json: Value, pointer: &str, value: Value, parts: &[&str]| {
        *json.pointer_mut(pointer).unwrap() = value;
        let got = export(&json, &json!({}), 300).unwrap_err().to_string();
        assert!(parts.iter().all(|part| got.contains(part)), "{got:?} does not say {parts:?}");
    };
    let regex = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": "[a-z]+"}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false, "trim_offsets": true}]});
    check(byte_level(), "/pre_tokenizer", regex, &["pre_tokenizer", "[a-z]+", "can name"]);
    check(byte_level(), "/pre_tokenizer/add_prefix_space", json!(true), &["add_prefix_space"]);
    check(byte_level(), "/normalizer", json!({"type": "Lowercase"}), &["normalizer", "Lowercase", "NFC"]);
    check(byte_fallback(), "/normalizer", json!({"type": "NFKC"}), &["normalizer", "NFKC"]);
    check(byte_fallback(), "/version", json!("1.0"), &["2 byte tokens", "256"]);
    check(word_piece(), "/normalizer/clean_text", json!(false), &["normalizer", "cleans text"]);
    check(word_piece(), "/post_processor", json!(null), &["post_processor", "[]"]);
    check(unigram(), "/version", json!("1.0"), &["model.type", "Unigram", "WordPiece"]);
    let error = export(&byte_level(), &json!({}), 5).unwrap_err().to_string();
    assert!(error.contains("12 tokens") && error.contains("5 rows"), "{error}");
    // Dropped features are reported.
    let mut json = byte_level();
    assert!(export(&json, &json!({}), 12).unwrap().notes.is_empty());
    json["normalizer"] = json!({"type": "NFC"});
    json["added_tokens"][1]["rstrip"] = json!(true);
    let notes = export(&json, &json!({}), 12).unwrap().notes;
    assert!(
        matches!(&notes[..], [nfc, spaces] if nfc.contains("NFC") && spaces.contains("<tool>")),
        "{notes:?}"
    );
}

/// Every place in a document, as a JSON pointer.
fn places(json: &Value, at: String, out: &mut Vec<String>) {
    match json {
        Value::Object(fields) => {
            fields.iter().for_each(|(key, value)| places(value, format!("{at}/{key}"), out))
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(i, item)| places(item, format!("{at}/{i}"), out))
        }
        _ => {}
    }
    out.push(at);
}

/// Number of panics in any thread, even caught ones, except for failing tests of this file.
static PANICS: AtomicUsize = AtomicUsize::new(0);

fn count_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let known = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if info.location().is_none_or(|at| at.file() != file!()) {
                PANICS.fetch_add(1, Ordering::Relaxed);
            }
            known(info);
        }));
    });
}

proptest! {
    #[test]
    fn no_change_of_a_document_makes_it_panic(
        which in 0usize..4,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..4),
        text in "[ab <>|éA,\u{0}\u{301}世]{0,20}",
    ) {
        count_panics();
        let documents = [byte_level(), byte_fallback(), word_piece(), unigram()];
        let mut json = documents[which].clone();
        let mut values = vec![json!(null), json!(true), json!(-1), json!(0), json!(1e300), json!(4294967295u32), json!(""),
                              json!("▁"), json!("a"), json!("(a*)*b"), json!([]), json!({}), json!({"Regex": "(?=a)|\\b|"}),
                              json!({"Regex": "(a|aa)+$"}), json!({"String": ""}), json!([["", 0]]), json!("Removed")];
        for document in &documents {
            let mut pointers = Vec::new();
            places(document, String::new(), &mut pointers);
            values.extend(pointers.iter().filter_map(|pointer| document.pointer(pointer).cloned()));
        }
        for (place, value) in &changes {
            let mut pointers = Vec::new();
            places(&json, String::new(), &mut pointers);
            if let Some(slot) = json.pointer_mut(place.get(&pointers).as_str()) {
                *slot = value.get(&values).clone();
            }
        }
        if let Ok(t) = load(&json) {
            for specials in [Specials::Parse, Specials::Literal] {
                if let Ok(ids) = t.encode_with_bos(&text, specials) {
                    t.decode(&ids, true);
                }
            }
        }
        prop_assert_eq!(PANICS.load(Ordering::Relaxed), 0, "{}", json);
    }
}
