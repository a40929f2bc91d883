//! Vocabularies that are searched instead of merged: Unigram, RWKV, PLaMo-2. Expected ids are
//! llama.cpp's for the same files, except where a test says otherwise.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.

use ingle_text::{Specials, Tokenizer};
use proptest::prelude::*;
use weights::{Array, Metadata, Value};

use crate::tokenizers::{changed, metadata, strings, text};

type Entries = Vec<(&'static str, Value)>;

fn entries(model: &str, pieces: &[(&str, f32, i64)]) -> Entries {
    vec![
        ("model", text(model)),
        ("tokens", strings(&pieces.iter().map(|p| p.0).collect::<Vec<_>>())),
        ("scores", Value::Array(Array::Float(pieces.iter().map(|p| p.1).collect()))),
        ("token_type", Value::Array(Array::Int(pieces.iter().map(|p| p.2).collect()))),
    ]
}

fn unigram(space_prefix: bool, merge_spaces: bool) -> Entries {
    let mut entries = entries(
        "t5",
        &[
            ("<pad>", 0.0, 3),
            ("</s>", 0.0, 3),
            ("<unk>", 0.0, 2),
            ("▁", -2.0, 1),
            ("a", -3.0, 1),
            ("b", -3.5, 1),
            ("ab", -4.0, 1),
            ("▁a", -3.2, 1),
            ("▁ab", -6.0, 1),
            ("ba", -5.0, 1),
            ("aba", -6.5, 1),
            ("<x>", 0.0, 4),
            ("é", -7.0, 1),
            ("b▁", -4.0, 1),
            ("unused", -1.0, 5),
        ],
    );
    entries.push(("add_space_prefix", Value::Bool(space_prefix)));
    entries.push(("remove_extra_whitespaces", Value::Bool(merge_spaces)));
    entries
}

fn encode(meta: &Metadata, text: &str) -> Vec<u32> {
    Tokenizer::from_gguf(meta).unwrap().encode(text, Specials::Parse).unwrap()
}

#[test]
fn the_best_sum_of_scores_spells_a_text() {
    let plain = metadata(unigram(false, false));
    assert_eq!(encode(&plain, "aba"), [10]);
    assert_eq!(encode(&plain, "  a  b "), [3, 7, 3, 3, 13]);
    assert_eq!(encode(&plain, "ab<x>ab"), [6, 11, 6]);
    assert_eq!(encode(&plain, "cca"), [2, 4]); // Adjacent unknown characters are one token.
    assert_eq!(encode(&plain, "é b"), [12, 3, 5]);
    assert_eq!(encode(&plain, ""), [0; 0]);
    assert_eq!(encode(&plain, "▁ ▁a"), [3, 3, 7]);
    let t = Tokenizer::from_gguf(&plain).unwrap();
    assert_eq!(t.encode_with_bos("ab", Specials::Parse).unwrap(), [6, 1]);
    assert!(t.is_end(1));
}

#[test]
fn spaces_are_put_before_words_and_merged_as_the_file_says() {
    let prefixed = metadata(unigram(true, false));
    assert_eq!(encode(&prefixed, "aba"), [7, 9]);
    assert_eq!(encode(&prefixed, "  a  b "), [3, 3, 7, 3, 3, 13]);
    let merged = metadata(unigram(true, true));
    assert_eq!(encode(&merged, "  a  b "), [7, 3, 5]);
    assert_eq!(encode(&merged, "▁ ▁a"), [3, 3, 3, 7]);
    // SentencePiece's own result: llama.cpp puts a space before the first word here as well.
    assert_eq!(encode(&metadata(unigram(false, true)), "  a  b "), [4, 3, 5]);
    let t = Tokenizer::from_gguf(&merged).unwrap();
    assert_eq!(t.decode(&encode(&merged, "ab  ab"), true), "ab ab");
}

/// A charsmap of single bytes and their replacements; crates/text/src/charsmap.rs describes the
/// format.
fn charsmap(pieces: &[(u8, &str)]) -> Value {
    let mut units = vec![0u32; 1024];
    units[0] = 256 << 10;
    let mut replacements = Vec::new();
    for &(byte, text) in pieces {
        let at = 256 ^ usize::from(byte);
        units[at] = u32::from(byte) | 1 << 8 | 512 << 10;
        units[at ^ 512] = 1 << 31 | replacements.len() as u32;
        replacements.extend_from_slice(text.as_bytes());
        replacements.push(0);
    }
    let bytes = 4096u32.to_le_bytes().into_iter();
    let bytes = bytes.chain(units.iter().flat_map(|unit| unit.to_le_bytes())).chain(replacements);
    Value::Array(Array::Int(bytes.map(i64::from).collect()))
}

#[test]
fn text_is_normalised_by_the_charsmap() {
    let mut entries = unigram(true, true);
    let map = charsmap(&[(b'A', "a"), (b'\t', " "), (b'0', ""), (b'2', "aba")]);
    entries.push(("precompiled_charsmap", map));
    let meta = metadata(entries);
    assert_eq!(encode(&meta, "A\t0b"), [7, 3, 5]);
    assert_eq!(encode(&meta, "2"), [7, 9]);
    assert_eq!(encode(&meta, "0"), [0; 0]);
    // GGUF files also store the bytes as i8.
    let Value::Array(Array::Int(bytes)) = charsmap(&[(b'A', "é")]) else { unreachable!() };
    let signed = bytes.iter().map(|&byte| i64::from(byte as u8 as i8)).collect();
    let mut entries = unigram(false, false);
    entries.push(("precompiled_charsmap", Value::Array(Array::Int(signed))));
    assert_eq!(encode(&metadata(entries), "Aa"), [12, 4]);
}

fn rwkv() -> Entries {
    let tokens = [
        "<s>",
        r"\n",
        "h",
        "he",
        "hello",
        " w",
        r"\xe6\xbc",
        r"\xa2",
        r"\xc3\xa9",
        r"\\",
        r"\'",
        "l",
        "o",
        " ",
    ];
    let mut types = vec![1; tokens.len()];
    types[0] = 3;
    vec![
        ("model", text("rwkv")),
        ("tokens", strings(&tokens)),
        ("token_type", Value::Array(Array::Int(types))),
        ("unknown_token_id", Value::Int(0)),
    ]
}

#[test]
fn rwkv_uses_the_longest_token() {
    let meta = metadata(rwkv());
    assert_eq!(encode(&meta, "hello\nhe漢é\\'x wlo"), [4, 1, 3, 6, 7, 8, 9, 10, 0, 5, 11, 12]);
    assert_eq!(encode(&meta, "hex"), [3, 0]);
    assert_eq!(encode(&meta, " w<s>h"), [5, 0, 2]);
    let t = Tokenizer::from_gguf(&meta).unwrap();
    assert_eq!(t.decode(&[4, 1, 6, 7, 8, 9, 10], false), "hello\n漢é\\'");
    // The text "<s>" is not a token, and its characters are unknown.
    assert_eq!(t.encode("<s>", Specials::Literal).unwrap(), [0, 0, 0]);
    assert_eq!(encode(&changed(rwkv(), "unknown_token_id", None), "hex"), [3]);
}

fn plamo2() -> Entries {
    let bytes: Vec<String> = (0..256).map(|byte| format!("<0x{byte:02X}>")).collect();
    let mut pieces = vec![
        ("<|plamo:unk|>", 0.0, 2),
        ("<|plamo:bos|>", 0.0, 3),
        ("<|plamo:eos|>", 0.0, 3),
        ("<|plamo:pad|>", 0.0, 3),
    ];
    pieces.extend(bytes.iter().map(|byte| (byte.as_str(), 0.0, 6)));
    pieces.extend([
        ("a", -3.0, 1),
        ("b", -3.0, 1),
        ("ab", -4.5, 1),
        ("abc", -7.5, 1),
        ("c", -3.0, 1),
        ("bc", -4.5, 1),
        ("日", -2.0, 1),
        ("日本", -3.0, 1),
        ("本", -5.0, 1),
        (" ", -1.0, 1),
        ("aa", -6.0, 1),
        ("aaa", -9.0, 1),
    ]);
    entries("plamo2", &pieces)
}

#[test]
fn plamo2_prefers_long_tokens_at_the_beginning_and_falls_back_to_bytes() {
    let meta = metadata(plamo2());
    assert_eq!(encode(&meta, "abc"), [263]);
    assert_eq!(encode(&meta, "aaaa"), [271, 260]);
    assert_eq!(encode(&meta, "日本日x"), [267, 266, 124]);
    assert_eq!(encode(&meta, "\u{FEFF}a"), [260]);
    assert_eq!(encode(&meta, "é b"), [199, 173, 269, 261]);
    assert_eq!(encode(&meta, "cab"), [264, 262]);
    let t = Tokenizer::from_gguf(&meta).unwrap();
    assert_eq!(t.decode(&[199, 173, 269, 261], true), "é b");
    assert_eq!((t.bos(), t.eos()), (Some(1), Some(2)));
}

#[test]
fn words_without_their_spaces_are_merged_by_characters() {
    let mut tokens: Vec<String> = vec!["<unk>".into()];
    tokens.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
    tokens.extend(["h", "e", "l", "o", "H", "he", "ll", "hell", "hello"].map(String::from));
    let mut types = vec![6; 257];
    types[0] = 2;
    types.resize(tokens.len(), 1);
    let entries = vec![
        ("model", text("whitespace")),
        ("pre", text("whitespace")),
        ("tokens", strings(&tokens)),
        ("token_type", Value::Array(Array::Int(types))),
        ("merges", strings(&["h e", "l l", "he ll", "hell o"])),
    ];
    assert_eq!(encode(&metadata(entries.clone()), "Hell hello\né"), [261, 258, 263, 265, 196, 170]);
    let lower = changed(entries.clone(), "tokenizer.ggml.normalizer.lowercase", Some(Value::Bool(true)));
    assert_eq!(encode(&lower, "HELLO é"), [265, 196, 170]);
    // Under `gpt2` the spaces stay.
    assert_eq!(encode(&changed(entries, "model", Some(text("gpt2"))), "hello h"), [265, 33, 257]);
}

#[test]
fn errors_name_the_cause() {
    let check = |entries: Entries, key: &'static str, value: Option<Value>, parts: &[&str]| {
        let got = Tokenizer::from_gguf(&changed(entries, key, value)).unwrap_err().to_string();
        assert!(parts.iter().all(|part| got.contains(part)), "{got:?} does not say {parts:?}");
    };
    let ints = |v: &[i64]| Some(Value::Array(Array::Int(v.to_vec())));
    let floats = |v: &[f32]| Some(Value::Array(Array::Float(v.to_vec())));
    let plain = || unigram(false, false);
    check(plain(), "scores", None, &["scores is missing"]);
    check(plain(), "scores", floats(&[f32::NAN; 15]), &["scores[0]", "NaN"]);
    check(plain(), "tokens", Some(strings::<&str>(&[])), &["tokens"]);
    check(plain(), "precompiled_charsmap", ints(&[1, 2]), &["precompiled_charsmap", "2 bytes"]);
    check(plain(), "precompiled_charsmap", ints(&[256; 9]), &["precompiled_charsmap", "8 bits"]);
    check(plain(), "precompiled_charsmap", ints(&[255; 9]), &["precompiled_charsmap", "4294967295"]);
    check(plain(), "precompiled_charsmap", Some(text("x")), &["precompiled_charsmap", "list of bytes"]);
    let mut long = unigram(false, false);
    long[1].1 = strings(&["<pad>", "</s>", "<unk>", &"a".repeat(5000)]);
    long[2].1 = Value::Array(Array::Float(vec![0.0; 4]));
    check(long, "token_type", None, &["tokens[3]", "5000 bytes", "4096"]);
    let mut two = unigram(false, false);
    two[1].1 = strings(&["a", "b"]);
    two[2].1 = Value::Array(Array::Float(vec![0.0; 2]));
    check(two, "token_type", None, &["unknown_token_id is missing"]);
    let mut no_byte = plamo2();
    no_byte[3].1 = Value::Array(Array::Int(vec![1; 272]));
    check(no_byte, "x", None, &["<0x00>", "byte token for each byte"]);
    check(plamo2(), "scores", None, &["scores is missing"]);
}

proptest! {
    /// Whatever the scores and the charsmap, a text has a result in which known characters survive.
    #[test]
    fn hostile_numbers_end(
        scores in prop::collection::vec(prop::num::f32::ANY.prop_filter("NaN is refused", |x| !x.is_nan()), 15),
        map in prop::collection::vec(any::<u8>(), 0..600),
        said in "[ab é▁<>x\\PC]{0,40}",
        flags in any::<(bool, bool)>(),
    ) {
        let mut entries = unigram(flags.0, flags.1);
        entries[2].1 = Value::Array(Array::Float(scores));
        let t = Tokenizer::from_gguf(&metadata(entries.clone())).unwrap();
        let ids = t.encode(&said, Specials::Literal).unwrap();
        prop_assert!(ids.iter().all(|&id| (id as usize) < t.n_tokens()));
        // A charsmap of random units, complete so that it is accepted.
        let mut bytes = (map.len() as u32 / 4 * 4).to_le_bytes().to_vec();
        bytes.extend_from_slice(&map[..map.len() / 4 * 4]);
        bytes.extend_from_slice(b"a\0b\0");
        let list = bytes.iter().map(|&byte| i64::from(byte)).collect();
        entries.push(("precompiled_charsmap", Value::Array(Array::Int(list))));
        if let Ok(t) = Tokenizer::from_gguf(&metadata(entries)) {
            t.encode(&said, Specials::Literal).unwrap();
        }
    }

    /// Unigram finds the best of all spellings, compared with an exhaustive search.
    #[test]
    fn no_spelling_is_better(said in "[ab]{1,9}") {
        fn best(rest: &str, tokens: &[(&str, f64)]) -> f64 {
            if rest.is_empty() {
                return 0.0;
            }
            let with = |&(token, score): &(&str, f64)| Some(score + best(rest.strip_prefix(token)?, tokens));
            tokens.iter().filter_map(with).fold(f64::NEG_INFINITY, f64::max)
        }
        let tokens = [("a", -3.0), ("b", -3.5), ("ab", -4.0), ("ba", -5.0), ("aba", -6.5)];
        let t = Tokenizer::from_gguf(&metadata(unigram(false, false))).unwrap();
        let ids = t.encode(&said, Specials::Parse).unwrap();
        prop_assert_eq!(t.decode(&ids, true), said.clone());
        let score = |id: &u32| tokens.iter().find(|(text, _)| *text == t.token_text(*id)).unwrap().1;
        let sum: f64 = ids.iter().map(score).sum();
        prop_assert!((sum - best(&said, &tokens)).abs() < 1e-9);
    }
}
