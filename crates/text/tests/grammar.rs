//! Masks of grammars, compared with trying every token.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.

use ingle_text::{Grammar, GrammarCompiler, Matcher, Tokenizer};
use serde_json::json;
use weights::{Array, Value};

use crate::tokenizers::{metadata, strings, text};

/// All bytes except the space, some words of several letters, and control tokens, one of which ends
/// an answer. Rows of padding follow.
pub(crate) fn tokenizer() -> Tokenizer {
    let bytes = (b'!'..=b'~').map(|byte| (byte as char).to_string());
    let words = [
        "Ġ", "Ċ", "ĉ", "al", "alp", "pha", "be", "beta", "{\"", "\":", "tru", "true", "12", "<eos>", "<mark>",
    ];
    let tokens: Vec<String> = bytes.chain(words.map(str::to_owned)).collect();
    let mut kinds = vec![1; tokens.len()];
    let n = kinds.len();
    kinds[n - 2..].fill(3);
    let kinds = Value::Array(Array::Int(kinds));
    Tokenizer::from_gguf(&metadata(vec![
        ("model", text("gpt2")),
        ("pre", text("gpt-2")),
        ("tokens", strings(&tokens)),
        ("token_type", kinds),
        ("merges", strings::<&str>(&[])),
        ("eos_token_id", Value::Int(n as i128 - 2)),
    ]))
    .unwrap()
}

const N_PADDING: usize = 3;

pub(crate) fn compiler(tokenizer: &Tokenizer) -> GrammarCompiler {
    GrammarCompiler::new(tokenizer, tokenizer.n_tokens() + N_PADDING).unwrap()
}

fn allowed(matcher: &mut Matcher, n_vocab: usize) -> Vec<u32> {
    let mut words = vec![0; n_vocab.div_ceil(32)];
    matcher.mask(&mut words).unwrap();
    (0..n_vocab as u32).filter(|t| words[*t as usize / 32] >> (t % 32) & 1 == 1).collect()
}

/// At each position of each choice, a token is allowed if a choice continues with its bytes. An end
/// token is allowed if a choice is complete.
#[test]
fn masks_of_choices_are_those_of_every_token_tried() {
    let tokenizer = tokenizer();
    let n_vocab = tokenizer.n_tokens() + N_PADDING;
    let choices = ["alpha", "al", "beta max", "b"].map(str::to_owned);
    let begin = compiler(&tokenizer).compile(&Grammar::Choice(choices.to_vec())).unwrap();
    let mut n_states = 0;
    let mut open = vec![(begin, String::new())];
    while let Some((mut matcher, so_far)) = open.pop() {
        n_states += 1;
        let goes_on = |id: &u32| {
            if tokenizer.is_end(*id) {
                return choices.contains(&so_far);
            }
            let bytes = tokenizer.token_bytes(*id);
            let text = [so_far.as_bytes(), bytes].concat();
            !bytes.is_empty()
                && !tokenizer.is_special(*id)
                && choices.iter().any(|c| c.as_bytes().starts_with(&text))
        };
        let expected: Vec<u32> = (0..n_vocab as u32).filter(goes_on).collect();
        assert_eq!(allowed(&mut matcher, n_vocab), expected, "{so_far:?}");
        for id in expected.into_iter().filter(|id| !tokenizer.is_end(*id)) {
            assert_eq!(matcher.n_valid(&[id]), 1);
            let mut next = matcher.clone();
            next.accept(id).unwrap();
            // Rolling back and continuing gives the same result.
            matcher.accept(id).unwrap();
            matcher.roll_back(1).unwrap();
            open.push((next, format!("{so_far}{}", String::from_utf8_lossy(tokenizer.token_bytes(id)))));
        }
    }
    assert!(n_states > 15, "{n_states}");
}

#[test]
fn invalid_grammars_are_errors() {
    let compiler = compiler(&tokenizer());
    for grammar in [
        Grammar::JsonSchema(json!({ "type": "nonsense" })),
        Grammar::JsonSchema(json!({ "type": "string", "pattern": "(" })),
        Grammar::JsonSchema(json!({ "$ref": "#/nowhere" })),
        Grammar::Regex("[".into()),
        Grammar::Lark("start: nothing".into()),
        Grammar::Choice(Vec::new()),
        Grammar::Regex("a".repeat(2 << 20)),
    ] {
        let error = compiler.compile(&grammar).err().unwrap().to_string();
        assert!(error.starts_with("the grammar: ") && error.len() > 20, "{error}");
    }
}

#[test]
fn white_space_in_json_ends() {
    let tokenizer = tokenizer();
    let mut matcher = compiler(&tokenizer).compile(&Grammar::AnyJson).unwrap();
    let id = |text: &str| tokenizer.token_id(text).unwrap();
    matcher.accept(id("{")).unwrap();
    let mut n_spaces = 0;
    while matcher.n_valid(&[id("Ġ")]) == 1 {
        matcher.accept(id("Ġ")).unwrap();
        n_spaces += 1;
        assert!(n_spaces <= 1);
    }
    matcher.accept(id("}")).unwrap();
    assert!(allowed(&mut matcher, tokenizer.n_tokens()).iter().all(|id| tokenizer.is_end(*id)));
}

/// A schema must not weaken its own enforcement.
#[test]
fn a_schema_cannot_weaken_its_enforcement() {
    let compiler = compiler(&tokenizer());
    for option in ["lenient", "coerce_one_of"] {
        let schema = json!({ "type": "object", "x-guidance": { option: true } });
        let error = compiler.compile(&Grammar::JsonSchema(schema)).err().unwrap().to_string();
        assert!(error.contains("x-guidance") && error.contains(option), "{error}");
    }
    // Options about the form of JSON stay allowed.
    let schema =
        json!({ "type": "object", "x-guidance": { "lenient": false, "whitespace_flexible": false } });
    assert!(compiler.compile(&Grammar::JsonSchema(schema)).is_ok());
}

/// Untrusted grammars give an error, or a matcher whose first mask is within the limits, and never
/// crash the process.
#[test]
fn hostile_grammars_end_within_limits() {
    let tokenizer = tokenizer();
    let n_vocab = tokenizer.n_tokens() + N_PADDING;
    let compiler = compiler(&tokenizer);
    let parentheses = format!("start: {}\"a\"{}", "(".repeat(100_000), ")".repeat(100_000));
    let arrays = format!("start: %json {}{}", "{\"items\":".repeat(50_000), "}".repeat(50_000));
    for deep in [parentheses, arrays] {
        assert!(compiler.compile(&Grammar::Lark(deep)).is_err());
    }
    // The deepest JSON that HTTP requests may have.
    let deep =
        (0..120).fold(json!({ "type": "string" }), |items, _| json!({ "type": "array", "items": items }));
    for large in [
        Grammar::JsonSchema(deep),
        Grammar::JsonSchema(json!({ "type": "string", "maxLength": 100_000_000 })),
        Grammar::JsonSchema(json!({ "type": "array", "minItems": 100_000, "items": { "type": "integer" } })),
        Grammar::Regex("((a{1,1000}){1,1000}){1,1000}".into()),
        Grammar::Regex("(a|b)*a(a|b){200}".into()),
    ] {
        let mut matcher = compiler.compile(&large).unwrap();
        assert!(!allowed(&mut matcher, n_vocab).is_empty(), "{large:?}");
    }
}

#[test]
fn text_that_the_vocabulary_cannot_spell_has_no_token() {
    let tokenizer = tokenizer();
    let n_vocab = tokenizer.n_tokens() + N_PADDING;
    // No token has the bytes of é.
    let mut matcher = compiler(&tokenizer).compile(&Grammar::Choice(vec!["aé".into()])).unwrap();
    let [first] = allowed(&mut matcher, n_vocab)[..] else { panic!("more than one token") };
    matcher.accept(first).unwrap();
    assert!(allowed(&mut matcher, n_vocab).is_empty());
}

#[test]
fn a_structural_tag_enforces_the_text_after_its_trigger() {
    let tokenizer = tokenizer();
    let tag = json!({
        "triggers": ["<f="],
        "structures": [
            { "begin": "<f=a>", "schema": { "type": "object", "properties": { "n": { "type": "integer" } },
              "required": ["n"], "additionalProperties": false }, "end": "</f>" },
            { "begin": "<f=b>", "schema": { "type": "object", "additionalProperties": false }, "end": "</f>" },
        ],
    });
    let grammar = Grammar::of_structural_tag(&tag).unwrap();
    let takes = |text: &str| {
        let mut matcher = compiler(&tokenizer).compile(&grammar).unwrap();
        let tokens = tokenizer.encode(text, ingle_text::Specials::Literal).unwrap();
        matcher.n_valid(&tokens) == tokens.len()
    };
    assert!(takes("free text, {\"n\":x} <f"));
    assert!(takes("x<f=a>{\"n\":12}</f>and<f=b>{}</f>."));
    assert!(!takes("x<f=a>{\"n\":x"));
    assert!(!takes("x<f=c"));
    for (key, wrong) in [("triggers", json!([])), ("structures", json!([])), ("triggers", json!(["<g"]))] {
        let mut tag = tag.clone();
        tag[key] = wrong;
        assert!(Grammar::of_structural_tag(&tag).unwrap_err().to_string().contains("structural_tag"));
    }
}
