//! Contradictory vocabularies that other programs tolerate: those that load, and their meaning.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.

use ingle_text::{Error, Specials, Tokenizer};
use serde_json::{Value as Json, json};
use weights::{Array, Value};

use crate::tokenizers::{changed, metadata, strings, text};

type Entries = Vec<(&'static str, Value)>;

fn ints(list: &[i64]) -> Value {
    Value::Array(Array::Int(list.to_vec()))
}

fn floats(list: &[f32]) -> Value {
    Value::Array(Array::Float(list.to_vec()))
}

/// Ids 0 to 2 are special and 3 is a space; "a", "b" and "ab" occur twice, and `<unused>` three
/// times.
const TOKENS: [&str; 13] =
    ["<unk>", "<s>", "</s>", "▁", "a", "b", "ab", "a", "b", "ab", "<unused>", "<unused>", "<unused>"];
const KINDS: [i64; 13] = [2, 3, 3, 1, 1, 1, 1, 1, 1, 1, 5, 5, 5];

fn scored(model: &'static str) -> Entries {
    let scores: Vec<f32> = (0..TOKENS.len()).map(|i| -(i as f32)).collect();
    vec![
        ("model", text(model)),
        ("tokens", strings(&TOKENS)),
        ("token_type", ints(&KINDS)),
        ("scores", floats(&scores)),
        ("unknown_token_id", Value::Int(0)),
        ("bos_token_id", Value::Int(1)),
        ("eos_token_id", Value::Int(2)),
        ("add_bos_token", Value::Bool(false)),
        ("add_eos_token", Value::Bool(false)),
        ("add_space_prefix", Value::Bool(false)),
    ]
}

/// The tokens above with merges.
fn merged(merges: &[&str]) -> Entries {
    let mut entries = scored("gpt2");
    entries.retain(|(key, _)| *key != "scores");
    entries.push(("merges", strings(merges)));
    entries
}

fn load(entries: Entries) -> Tokenizer {
    Tokenizer::from_gguf(&metadata(entries)).unwrap()
}

fn encode(t: &Tokenizer, s: &str) -> Vec<u32> {
    t.encode(s, Specials::Parse).unwrap()
}

#[test]
fn the_first_of_equal_tokens_is_encoded_and_each_decodes() {
    let mut word_piece = scored("bert");
    word_piece.retain(|(key, _)| *key != "tokens");
    let spelled = TOKENS.map(|token| if token == "b" { "▁b" } else { token });
    word_piece.push(("tokens", strings(&spelled)));
    word_piece.push(("cls_token_id", Value::Int(1)));
    let kinds: [(&str, Entries, &str, &[u32]); 5] = [
        ("SentencePiece", scored("llama"), "ab b<s>a", &[6, 3, 5, 1, 4]),
        ("Unigram", scored("t5"), "ab b<s>a", &[6, 3, 5, 1, 4]),
        ("BPE", merged(&["a b"]), "abb<s>a", &[6, 5, 1, 4]),
        ("RWKV", scored("rwkv"), "abb<s>a", &[6, 5, 1, 4]),
        ("WordPiece", word_piece, "bab", &[5, 6]),
    ];
    for (name, entries, s, expected) in kinds {
        let t = load(entries);
        assert_eq!(encode(&t, s), expected, "{name}");
        for (first, later) in [(4, 7), (6, 9), (10, 11), (10, 12)] {
            assert_eq!(t.token_bytes(first), t.token_bytes(later), "{name}");
            assert_eq!(t.decode(&[first, later], false).len(), 2 * t.token_bytes(later).len(), "{name}");
        }
        assert_eq!((t.n_tokens(), t.n_repeated(), t.token_id("<unused>")), (13, 5, Some(10)), "{name}");
    }
}

#[test]
fn a_repeated_mark_is_one_mark_and_either_token_ends_an_answer() {
    let tokens = ["a", "<|im_end|>", "<|im_end|>", "b", "<|im_end|>", "<|im_start|>", "<|im_start|>"];
    let entries = vec![
        ("model", text("gpt2")),
        ("tokens", strings(&tokens)),
        // The first of each repeated mark is text, as far as its kind allows.
        ("token_type", ints(&[1, 1, 3, 1, 3, 1, 3])),
        ("merges", strings::<&str>(&[])),
        ("eos_token_id", Value::Int(4)),
    ];
    let t = load(entries);
    assert_eq!(t.ends(), [1, 2, 4]);
    assert_eq!(encode(&t, "a<|im_start|>b<|im_end|>"), [0, 6, 3, 1]);
    assert_eq!(t.decode(&[0, 1, 2, 4], true), "a");
}

#[test]
fn lists_of_other_lengths_than_that_of_the_tokens_are_read_as_far_as_they_go() {
    for n in [0, 4, 7, 12, 13, 40] {
        let (mut kinds, mut scores) = (KINDS.to_vec(), (0..13).map(|i| -(i as f32)).collect::<Vec<f32>>());
        kinds.resize(n, 1);
        scores.resize(n, -99.0);
        for model in ["llama", "t5"] {
            let entries = scored(model).into_iter().map(|(key, value)| match key {
                "token_type" => (key, ints(&kinds)),
                "scores" => (key, floats(&scores)),
                _ => (key, value),
            });
            let t = load(entries.collect());
            assert_eq!(encode(&t, "a"), [4], "{model}, {n}");
            if n > 6 {
                assert_eq!(encode(&t, "ab"), [6], "{model}, {n}");
            }
        }
    }
    let odd = changed(scored("llama"), "token_type", Some(ints(&[9; 13])));
    assert_eq!(encode(&Tokenizer::from_gguf(&odd).unwrap(), "ab"), [6]);
}

#[test]
fn merges_of_texts_without_tokens_make_symbols_that_become_bytes() {
    let merged = |merges: &[&str]| {
        let entries = vec![
            ("model", text("gpt2")),
            ("tokens", strings(&["a", "b", "c", "abc", "d"])),
            ("merges", strings(merges)),
        ];
        load(entries)
    };
    // "ab" is not a token: alone it becomes its bytes, and within "abc" it does not matter.
    let t = merged(&["a b", "ab c", "x y", "", "d", "nospace", "a b"]);
    assert_eq!(encode(&t, "abc"), [3]);
    assert_eq!(encode(&t, "abdab"), [0, 1, 4, 0, 1]);
    // A part that is not a token, and a merge with a worse rank than its own.
    let t = merged(&["x a", "a b", "ab c", "c d"]);
    assert_eq!(encode(&t, "xabcd"), [0, 1, 2, 4], "xa is merged first, and x has no token");
    assert_eq!(t.n_tokens(), 5);
}

#[test]
fn a_merge_that_occurs_twice_has_its_first_rank() {
    let t = load(vec![
        ("model", text("gpt2")),
        ("tokens", strings(&["a", "b", "c", "ab", "bc"])),
        ("merges", strings(&["a b", "b c", "a b"])),
    ]);
    assert_eq!(encode(&t, "abc"), [3, 2], "with its last rank, b and c would be merged");
}

#[test]
fn declared_ids_without_a_token_are_ignored() {
    let odd = [Value::Int(13), Value::Int(-1), Value::Int(1 << 40), Value::Int(u32::MAX.into())];
    for value in odd {
        let t = Tokenizer::from_gguf(&changed(scored("llama"), "eos_token_id", Some(value.clone()))).unwrap();
        assert_eq!(t.eos(), Some(2), "Llama's own id is taken instead of {value:?}");
        let t = Tokenizer::from_gguf(&changed(merged(&["a b"]), "bos_token_id", Some(value))).unwrap();
        assert_eq!((t.bos(), encode(&t, "ab")), (None, vec![6]));
    }
}

#[test]
fn several_ends_are_a_list() {
    let t =
        Tokenizer::from_gguf(&changed(scored("llama"), "eos_token_id", Some(ints(&[2, 10, 99])))).unwrap();
    assert_eq!((t.eos(), t.ends()), (Some(2), &[2, 10][..]));
    let mut entries = scored("llama");
    entries.push(("eos_token_ids", ints(&[2, 11])));
    assert_eq!(load(entries).ends(), [2, 11]);
}

#[test]
fn invalid_utf8_and_empty_tokens_are_decoded() {
    let tokens: [&[u8]; 5] = [b"a", b"\xC3", b"\xA9b", b"", b""];
    let entries =
        vec![("model", text("gpt2")), ("tokens", strings(&tokens)), ("merges", strings::<&str>(&[]))];
    let t = load(entries);
    assert_eq!(t.decode(&[0, 1, 2, 3, 4], false), "aéb");
    assert_eq!(encode(&t, "a"), [0]);
}

fn bpe_json() -> Json {
    json!({
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "<": 3, ">": 4}, "merges": ["a b"]}
    })
}

fn added(id: u32, content: &str) -> Json {
    json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
           "special": true})
}

fn from_json(json: &Json) -> Result<Tokenizer, Error> {
    Tokenizer::from_json(json.to_string().as_bytes(), None)
}

#[test]
fn added_tokens_may_be_repeated_known_or_empty() {
    let mut json = bpe_json();
    json["added_tokens"] = json!([
        added(2, "ab"),
        added(5, "<x>"),
        added(6, "<x>"),
        added(7, ""),
        added(5, "<x>"),
        added(9, "<y>")
    ]);
    let t = from_json(&json).unwrap();
    // The library numbers added tokens itself: new ones follow the last id.
    assert_eq!(encode(&t, "<x>ab<y>a"), [5, 2, 6, 0]);
    assert_eq!((t.decode(&[5, 6, 0], false), t.is_special(2)), ("<x><y>a".to_owned(), true));
}

#[test]
fn a_vocabulary_may_have_holes_and_two_texts_for_an_id() {
    let mut json = bpe_json();
    json["model"]["vocab"] = json!({"a": 0, "b": 9, "ab": 4, "aa": 4, "c": 6});
    // Five texts, so that the library gives the added token the id 5, then 6, which is in use.
    json["added_tokens"] = json!([added(5, "<x>"), added(6, "<y>")]);
    let t = from_json(&json).unwrap();
    assert_eq!(encode(&t, "abc<x><y>"), [4, 6, 5, 6]);
    assert_eq!(t.n_tokens(), 10);
    let texts: Vec<String> = (0..10).map(|id| t.token_text(id)).collect();
    assert_eq!(texts, ["a", "", "", "", "aa", "<x>", "<y>", "", "", "b"]);
}

#[test]
fn a_unigram_file_may_repeat_pieces_and_lack_an_unknown_token() {
    let file = |unknown: Json| {
        json!({
            "version": "1.0", "added_tokens": [],
            "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": true},
            "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": true},
            "model": {"type": "Unigram", "unk_id": unknown,
                      "vocab": [["<unk>", 0.0], ["a", -1.0], ["b", -1.0], ["a", -1.5], ["ab", -9.0]]}
        })
    };
    // The library uses the last of equal pieces, as transformers does.
    let t = from_json(&file(json!(0))).unwrap();
    assert_eq!(encode(&t, "abx"), [3, 2, 0]);
    assert_eq!(t.decode(&[1, 3], false), "aa");
    for unknown in [json!(null), json!(0)] {
        assert_eq!(encode(&from_json(&file(unknown)).unwrap(), "ba"), [2, 3]);
    }
    let none = from_json(&file(json!(null))).unwrap();
    assert!(none.encode("x", Specials::Parse).unwrap_err().to_string().contains("unk_id"));
}

#[test]
fn a_model_without_a_type_is_known_by_what_it_has() {
    let mut json = bpe_json();
    json["model"].as_object_mut().unwrap().remove("type");
    assert_eq!(encode(&from_json(&json).unwrap(), "ab"), [2]);
    // A missing unknown token matters only if text needs it.
    let mut words = json!({
        "version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": {"unk_token": "?", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
                  "vocab": {"un": 0, "##able": 1}}
    });
    let t = from_json(&words).unwrap();
    assert_eq!(encode(&t, "unable"), [0, 1]);
    assert!(t.encode("x", Specials::Parse).is_err());
    words["model"]["vocab"]["?"] = json!(2);
    assert_eq!(encode(&from_json(&words).unwrap(), "x"), [2]);
}
