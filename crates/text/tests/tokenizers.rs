//! Each kind of vocabulary, small enough to be checked by hand, and errors of broken ones.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.
use ingle_text::{Detokenizer, Error, ShowSpecial, Specials, StopStrings, Stops, Tokenizer};
use proptest::prelude::*;
use weights::{Array, Bytes, Metadata, Value};

pub(crate) fn strings<S: AsRef<[u8]>>(items: &[S]) -> Value {
    let (mut bytes, mut spans) = (Vec::new(), Vec::new());
    for item in items {
        spans.push((bytes.len() as u32, item.as_ref().len() as u32));
        bytes.extend_from_slice(item.as_ref());
    }
    Value::Array(Array::Str { bytes: Bytes::from_slice(&bytes), spans })
}

pub(crate) fn text(s: &str) -> Value {
    Value::Str(s.into())
}

pub(crate) fn metadata(entries: Vec<(&str, Value)>) -> Metadata {
    let mut meta = Metadata::default();
    for (key, value) in entries {
        let key = if key.contains('.') { key.to_string() } else { format!("tokenizer.ggml.{key}") };
        assert!(meta.insert(key, value));
    }
    meta
}

/// The entries with some keys replaced or removed.
pub(crate) fn changed(
    entries: Vec<(&'static str, Value)>,
    key: &'static str,
    value: Option<Value>,
) -> Metadata {
    let mut entries: Vec<_> = entries.into_iter().filter(|(k, _)| *k != key).collect();
    entries.extend(value.map(|value| (key, value)));
    metadata(entries)
}

const BYTE_TOKENS: [&str; 15] = [
    "<|endoftext|>",
    "<|im_start|>",
    "h",
    "e",
    "l",
    "o",
    "Ġ",
    "w",
    "Ã",
    "©",
    "he",
    "ll",
    "hell",
    "hello",
    "Ġw",
];

fn byte_level() -> Vec<(&'static str, Value)> {
    let mut types = vec![1; BYTE_TOKENS.len()];
    types[..2].fill(3);
    vec![
        ("model", text("gpt2")),
        ("pre", text("gpt-2")),
        ("tokens", strings(&BYTE_TOKENS)),
        ("token_type", Value::Array(Array::Int(types))),
        ("merges", strings(&["h e", "l l", "he ll", "hell o", "Ġ w"])),
        ("bos_token_id", Value::Int(1)),
        ("eos_token_id", Value::Int(0)),
    ]
}

#[test]
fn byte_level_merges_by_rank_within_words() {
    let t = Tokenizer::from_gguf(&metadata(byte_level())).unwrap();
    let encode = |s: &str| t.encode(s, Specials::Parse).unwrap();
    assert_eq!(encode("hello"), [13]);
    assert_eq!(encode("hellhello"), [12, 13]);
    assert_eq!(encode("hello wé"), [13, 14, 8, 9]);
    assert_eq!(encode("helo"), [10, 4, 5]);
    assert_eq!(encode("x"), [0; 0]); // No token has this byte.
    assert_eq!(encode(""), [0; 0]);
    assert_eq!((t.bos(), t.eos(), t.n_tokens(), t.token_id("Ġw")), (Some(1), Some(0), 15, Some(14)));
    assert_eq!(
        (t.token_bytes(14), t.token_bytes(8), t.token_bytes(99)),
        (&b" w"[..], &b"\xC3"[..], &b""[..])
    );
    assert_eq!(t.token_text(8), "\u{FFFD}");
}

#[test]
fn control_tokens_are_parsed_or_literal() {
    let t = Tokenizer::from_gguf(&metadata(byte_level())).unwrap();
    assert_eq!(t.encode("he<|im_start|>hello", Specials::Parse).unwrap(), [10, 1, 13]);
    let literal = t.encode("he<|im_start|>hello", Specials::Literal).unwrap();
    assert!(!literal.contains(&1), "{literal:?}");
    assert_eq!(t.decode(&[10, 1, 13, 0], false), "he<|im_start|>hello<|endoftext|>");
    assert_eq!(t.decode(&[10, 1, 13, 0], true), "hehello");
    assert!(t.is_special(1) && !t.is_special(2) && t.is_end(0) && !t.is_end(1) && !t.is_end(99));
}

#[test]
fn user_defined_tokens_are_tokens_in_either_mode() {
    let mut types = vec![1; BYTE_TOKENS.len()];
    (types[0], types[1]) = (3, 4);
    let types = Some(Value::Array(Array::Int(types)));
    let t = Tokenizer::from_gguf(&changed(byte_level(), "token_type", types)).unwrap();
    assert_eq!(t.encode("he<|im_start|>", Specials::Literal).unwrap(), [10, 1]);
}

#[test]
fn bos_comes_where_the_file_or_its_pre_tokenizer_wants_it() {
    let encode =
        |meta: &Metadata, s| Tokenizer::from_gguf(meta).unwrap().encode_with_bos(s, Specials::Parse).unwrap();
    assert_eq!(encode(&metadata(byte_level()), "he"), [10]);
    assert_eq!(encode(&changed(byte_level(), "add_bos_token", Some(Value::Bool(true))), "he"), [1, 10]);
    let llama = changed(byte_level(), "pre", Some(text("llama-bpe")));
    assert_eq!(encode(&llama, "he"), [1, 10]);
    assert_eq!(encode(&llama, "<|im_start|>he"), [1, 1, 10]);
    assert_eq!(encode(&llama, ""), [1]);
    assert_eq!(encode(&changed(byte_level(), "add_eos_token", Some(Value::Bool(true))), "he"), [10, 0]);
}

#[test]
fn whole_words_win_over_merges_where_the_vocabulary_says_so() {
    let mut entries = byte_level();
    entries[3].1 = Value::Array(Array::Int(vec![3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]));
    let mut tokens = BYTE_TOKENS.to_vec();
    tokens.push("lowe"); // No merges produce it.
    entries[2].1 = strings(&tokens);
    let gpt2 = Tokenizer::from_gguf(&metadata(entries.clone())).unwrap();
    assert_eq!(gpt2.encode("lowe", Specials::Parse).unwrap(), [4, 5, 7, 3]);
    let llama = Tokenizer::from_gguf(&changed(entries, "pre", Some(text("llama3")))).unwrap();
    assert_eq!(llama.encode("lowe", Specials::Parse).unwrap(), [15]);
}

const PIECES: [(&str, f32, i64); 16] = [
    ("<unk>", 0.0, 2),
    ("<s>", 0.0, 3),
    ("</s>", 0.0, 3),
    ("<0x0A>", 0.0, 6),
    ("<0xC3>", 0.0, 6),
    ("<0xA9>", 0.0, 6),
    ("▁", -1.0, 1),
    ("a", -2.0, 1),
    ("b", -3.0, 1),
    ("ab", -10.0, 1),
    ("ba", -9.0, 1),
    ("▁a", -8.0, 1),
    ("aba", -20.0, 1),
    ("▁▁", -5.0, 1),
    ("<", -30.0, 1),
    ("<s", -31.0, 1),
];

fn sentence_piece() -> Vec<(&'static str, Value)> {
    let pieces: Vec<&str> = PIECES.iter().map(|p| p.0).collect();
    vec![
        ("model", text("llama")),
        ("tokens", strings(&pieces)),
        ("scores", Value::Array(Array::Float(PIECES.iter().map(|p| p.1).collect()))),
        ("token_type", Value::Array(Array::Int(PIECES.iter().map(|p| p.2).collect()))),
    ]
}

#[test]
fn sentence_piece_merges_by_score_and_falls_back_to_bytes() {
    let t = Tokenizer::from_gguf(&changed(sentence_piece(), "add_space_prefix", Some(Value::Bool(false))))
        .unwrap();
    let encode = |s: &str| t.encode(s, Specials::Parse).unwrap();
    assert_eq!(encode("aba"), [12]); // a + ba (-9) before ab (-10), then aba (-20).
    assert_eq!(encode("abb"), [9, 8]);
    assert_eq!(encode(" a  b"), [11, 13, 8]);
    assert_eq!(encode("é\n"), [4, 5, 3]);
    assert_eq!(encode("c"), [0]); // Without a byte token it is unknown.
    assert_eq!(encode("<s>a"), [1, 7]);
    assert_eq!(t.encode_with_bos("a", Specials::Parse).unwrap(), [1, 7]);
    assert_eq!(t.decode(&[11, 13, 8, 4, 5, 3], false), " a  bé\n");
    // As plain text, <s> ends in a character without a piece, and never becomes the control token.
    assert_eq!(t.encode("<s>", Specials::Literal).unwrap(), [15, 0]);
}

#[test]
fn the_space_put_before_a_text_is_removed_again() {
    let t = Tokenizer::from_gguf(&metadata(sentence_piece())).unwrap();
    assert_eq!(t.encode("a", Specials::Parse).unwrap(), [11]);
    assert_eq!(t.encode("<s>a<s>", Specials::Parse).unwrap(), [1, 11, 1]);
    assert_eq!(t.encode("", Specials::Parse).unwrap(), [0; 0]);
    assert_eq!(t.decode(&[11, 11], false), "a a");
    assert_eq!(t.decode(&[1, 11], true), "a");
    // A stream continues a text, so its first space stays.
    let mut stream = Detokenizer::new(&t, ShowSpecial::Nothing);
    assert_eq!(stream.push(&t, 11), " a");
    assert!(t.is_end(2) && !t.is_end(1));
}

#[test]
fn merges_over_characters_fall_back_to_bytes() {
    let tokens = ["<pad>", "<bos>", "<0xC3>", "<0xA9>", "▁", "a", "b", "▁a", "\n", "\n\n"];
    let t = Tokenizer::from_gguf(&metadata(vec![
        ("model", text("gemma4")),
        ("tokens", strings(&tokens)),
        ("token_type", Value::Array(Array::Int(vec![3, 3, 6, 6, 1, 1, 1, 1, 1, 1]))),
        ("merges", strings(&["▁ a"])),
        ("bos_token_id", Value::Int(1)),
    ]))
    .unwrap();
    assert_eq!(t.encode_with_bos("b a\n\né", Specials::Parse).unwrap(), [1, 6, 7, 9, 2, 3]);
    assert_eq!(t.decode(&[6, 7, 9, 2, 3], true), "b a\n\né");
}

fn word_piece() -> Vec<(&'static str, Value)> {
    let tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁un", "aff", "able", "▁,", "▁cafe", "▁you", "r"];
    let mut types = vec![1; tokens.len()];
    types[..4].fill(3);
    vec![
        ("model", text("bert")),
        ("tokens", strings(&tokens)),
        ("token_type", Value::Array(Array::Int(types))),
        ("bos_token_id", Value::Int(2)),
        ("seperator_token_id", Value::Int(3)),
        ("unknown_token_id", Value::Int(1)),
    ]
}

#[test]
fn word_piece_uses_the_longest_token_or_the_unknown_one() {
    let t = Tokenizer::from_gguf(&metadata(word_piece())).unwrap();
    let encode = |s: &str| t.encode(s, Specials::Parse).unwrap();
    assert_eq!(encode("Unaffable, YOUR café"), [4, 5, 6, 7, 9, 10, 8]);
    assert_eq!(encode("unaffablex your"), [1, 9, 10]);
    assert_eq!(encode(&"un".repeat(60)), [1]);
    assert_eq!(t.encode_with_bos("your", Specials::Parse).unwrap(), [2, 9, 10, 3]);
    assert_eq!(t.decode(&[2, 4, 5, 6, 9, 10, 3], true), "unaffable your");
}

#[test]
fn chat_templates_are_found_by_name() {
    let mut entries = byte_level();
    entries.push(("tokenizer.chat_template.tool_use", text("T")));
    assert_eq!(Tokenizer::from_gguf(&metadata(entries.clone())).unwrap().chat_template(), None);
    entries.push(("tokenizer.chat_template", text("D")));
    let t = Tokenizer::from_gguf(&metadata(entries)).unwrap();
    assert_eq!((t.chat_template(), t.chat_template_named("tool_use")), (Some("D"), Some("T")));
}

#[test]
fn tokens_that_end_an_answer_are_known_by_name_as_well() {
    let with = |tokens: &[&str]| {
        let entries =
            vec![("model", text("gpt2")), ("tokens", strings(tokens)), ("merges", strings::<&str>(&[]))];
        Tokenizer::from_gguf(&metadata(entries)).unwrap()
    };
    assert_eq!(with(&["a", "<|im_end|>", "<end_of_turn>", "</s>"]).ends(), [1, 2]);
    assert!(with(&["a", "<|im_end|>"]).is_special(1));
    assert_eq!(with(&["<|end|>", "<|return|>", "<|call|>"]).ends(), [1, 2]);
    assert_eq!(with(&["<|end|>"]).ends(), [0]);
}

#[test]
fn spaces_after_a_mark_are_absorbed_if_the_model_absorbed_them() {
    let mut entries = sentence_piece();
    entries.push(("add_space_prefix", Value::Bool(false)));
    let plain = Tokenizer::from_gguf(&metadata(entries.clone())).unwrap();
    assert_eq!(plain.encode("</s> \n a", Specials::Parse).unwrap(), [2, 6, 3, 11]);
    entries.push(("general.name", text("Phi-3 mini")));
    let phi = Tokenizer::from_gguf(&metadata(entries)).unwrap();
    assert_eq!(phi.encode("</s> \n a<s> a", Specials::Parse).unwrap(), [2, 7, 1, 11]);
}

/// The error message of a changed file.
fn error(entries: Vec<(&'static str, Value)>, key: &'static str, value: Option<Value>) -> String {
    Tokenizer::from_gguf(&changed(entries, key, value)).unwrap_err().to_string()
}

#[test]
fn errors_of_a_vocabulary_are_named() {
    let ints = |v: &[i64]| Some(Value::Array(Array::Int(v.to_vec())));
    let floats = |v: &[f32]| Some(Value::Array(Array::Float(v.to_vec())));
    let list = |v: &[&str]| Some(strings(v));
    let check = |got: String, parts: &[&str]| {
        assert!(parts.iter().all(|part| got.contains(part)), "{got:?} does not say {parts:?}");
    };
    for model in [None, Some(text("no_vocab")), Some(text("none"))] {
        let e = Tokenizer::from_gguf(&changed(byte_level(), "model", model)).unwrap_err();
        assert!(matches!(e, Error::NoVocabulary { .. }), "{e}");
    }
    check(
        error(byte_level(), "model", Some(text("sumerian"))),
        &["tokenizer.ggml.model", "sumerian", "gpt2, llama"],
    );
    check(error(byte_level(), "model", Some(Value::Int(3))), &["tokenizer.ggml.model", "Int(3)", "text"]);
    check(error(byte_level(), "pre", Some(text("klingon"))), &["tokenizer.ggml.pre", "klingon", "qwen2"]);
    check(error(byte_level(), "tokens", None), &["tokenizer.ggml.tokens is missing"]);
    check(error(byte_level(), "tokens", ints(&[1; 15])), &["tokenizer.ggml.tokens", "list of strings"]);
    check(error(byte_level(), "token_type", Some(text("x"))), &["token_type", "list of integers"]);
    check(error(byte_level(), "merges", None), &["merges is missing"]);
    check(error(byte_level(), "merges", ints(&[1])), &["merges", "list of strings"]);
    check(error(byte_level(), "eot_token_id", Some(text("x"))), &["eot_token_id", "token id"]);
    check(error(byte_level(), "add_bos_token", Some(Value::Int(1))), &["add_bos_token", "true or false"]);
    check(error(sentence_piece(), "scores", None), &["scores is missing"]);
    check(error(sentence_piece(), "scores", floats(&[f32::NAN; 16])), &["scores[0]", "NaN"]);
    check(error(sentence_piece(), "scores", list(&["0"])), &["scores", "numbers"]);
}

#[test]
fn cyclic_merges_end() {
    // Merges a + b = ab, ab + a = … cannot grow forever, since each merge uses up a symbol.
    let entries = vec![
        ("model", text("gpt2")),
        ("tokens", strings(&["a", "b", "ab", "aba", "ba", "bab"])),
        ("merges", strings(&["a b", "b a", "ab a", "a ba", "b ab", "ba b", "a b"])),
    ];
    let t = Tokenizer::from_gguf(&metadata(entries)).unwrap();
    let ids = t.encode(&"ab".repeat(1000), Specials::Parse).unwrap();
    assert_eq!(t.decode(&ids, false), "ab".repeat(1000));
}

/// A byte-level tokenizer with all single bytes, and some longer tokens that end within characters.
fn all_bytes() -> Tokenizer {
    let mut tokens: Vec<String> = Vec::new();
    let char_of = |b: u8| match b {
        b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => char::from(b),
        _ => char::from_u32(
            0x100 + (0..b).filter(|b| !matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)).count() as u32,
        )
        .unwrap(),
    };
    tokens.extend((0..=255).map(|b| char_of(b).to_string()));
    for bytes in [&b"a\xF0\x9F"[..], b"\x98\x80b", b"\xE2\x82", b"\xC3\xA9\xC3", b"\xFFx\xE2"] {
        tokens.push(bytes.iter().map(|&b| char_of(b)).collect());
    }
    tokens.push("<|im_end|>".into());
    let entries =
        vec![("model", text("gpt2")), ("tokens", strings(&tokens)), ("merges", strings::<&str>(&[]))];
    Tokenizer::from_gguf(&metadata(entries)).unwrap()
}

#[test]
fn a_stream_never_splits_a_character() {
    let t = all_bytes();
    let mut stream = Detokenizer::new(&t, ShowSpecial::Nothing);
    let mut pieces = Vec::new();
    for byte in "é😀".bytes() {
        pieces.push(stream.push(&t, u32::from(byte)).to_string());
    }
    assert_eq!(pieces, ["", "é", "", "", "", "😀"]);
    assert_eq!(stream.push(&t, 256), "a"); // Bytes a F0 9F.
    assert_eq!(stream.push(&t, 261), ""); // <|im_end|> is skipped.
    assert_eq!(stream.push(&t, 257), "😀b");
    assert_eq!(stream.push(&t, 258), "");
    assert_eq!(stream.push(&t, u32::from(b'x')), "\u{FFFD}x");
    assert_eq!(stream.push(&t, 258), "");
    assert_eq!(stream.finish(), "\u{FFFD}");
    assert_eq!(stream.finish(), "");
    stream.push(&t, 258);
    stream.reset();
    assert_eq!(stream.push(&t, u32::from(b'y')), "y");
}

proptest! {
    #[test]
    fn a_stream_of_any_tokens_equals_their_decoding(tokens in prop::collection::vec(0u32..263, 0..60), skip: bool) {
        let t = all_bytes();
        let mut stream = Detokenizer::new(&t, if skip { ShowSpecial::Nothing } else { ShowSpecial::All });
        let mut streamed = String::new();
        for &id in &tokens {
            streamed += stream.push(&t, id);
        }
        streamed += stream.finish();
        prop_assert_eq!(streamed, t.decode(&tokens, skip));
    }

    #[test]
    fn encoded_text_decodes_to_itself(s in "\\PC{0,40}[ \n\t]{0,3}\\PC{0,40}") {
        let t = all_bytes();
        let ids = t.encode(&s, Specials::Parse).unwrap();
        prop_assert_eq!(t.decode(&ids, false), s);
    }

    #[test]
    fn any_metadata_gives_a_result(
        tokens in prop::collection::vec("[ab▁Ġ<>x0-9]{0,4}", 0..20),
        merges in prop::collection::vec("[ab▁Ġ ]{0,5}", 0..6),
        types in prop::collection::vec(0i64..8, 0..20),
        model in prop::sample::select(vec!["gpt2", "llama", "bert", "gemma4", "t5", ""]),
        s in "[ab <>x▁0-9é]{0,30}",
    ) {
        let n = tokens.len();
        let mut types = types;
        types.resize(n, 1);
        let meta = metadata(vec![
            ("model", text(model)),
            ("tokens", strings(&tokens)),
            ("merges", strings(&merges)),
            ("token_type", Value::Array(Array::Int(types))),
            ("scores", Value::Array(Array::Float((0..n).map(|i| -(i as f32)).collect()))),
        ]);
        if let Ok(t) = Tokenizer::from_gguf(&meta) {
            for specials in [Specials::Parse, Specials::Literal] {
                let ids = t.encode_with_bos(&s, specials).unwrap();
                prop_assert!(ids.iter().all(|&id| (id as usize) < n));
                t.decode(&ids, false);
            }
        }
    }
}

#[test]
fn a_stop_string_is_found_across_tokens() {
    let t = all_bytes();
    let mut stream = Detokenizer::new(&t, ShowSpecial::Nothing);
    let mut stops = StopStrings::new(Stops::new(&["😀b"]).unwrap());
    let mut shown = String::new();
    for id in [u32::from(b'x'), 256, 257] {
        let released = stops.push(stream.push(&t, id));
        shown += released.text;
        assert_eq!(released.stop.is_some(), id == 257);
    }
    assert_eq!(shown, "xa");
}
