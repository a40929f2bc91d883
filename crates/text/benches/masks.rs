//! Time of masks on a vocabulary of 150,000 generated tokens, or on that of a GGUF file. Prints the
//! median and 99th percentile in microseconds.
//!
//!     cargo bench -p ingle-text --bench masks [-- FILE.gguf]
//!
//! Each grammar is followed along random texts, chosen from the tokens that its masks allow.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // Prints for people.

use std::collections::HashSet;
use std::time::Instant;

use ingle_text::{Grammar, GrammarCompiler, Tokenizer};
use serde_json::json;
use weights::{Array, Bytes, Metadata, Value};

const N_VOCAB: usize = 150_000;
const N_MASKS: usize = 4_000;

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % n
    }
}

/// All bytes, pieces of JSON, numbers, and words of syllables: with a leading space, in capitals,
/// and in other scripts.
fn vocabulary(random: &mut Random) -> Vec<String> {
    // The letters that stand for bytes in GPT-2's vocabularies.
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut n_other = 0;
    let letters: Vec<char> = (0..=255u8)
        .map(|byte| match printable(byte) {
            true => char::from(byte),
            false => {
                n_other += 1;
                char::from_u32(255 + n_other).unwrap()
            }
        })
        .collect();
    let mut tokens: Vec<String> = letters.iter().map(|letter| letter.to_string()).collect();
    let mut seen: HashSet<String> = tokens.iter().cloned().collect();
    let pieces = [
        "{\"", "\":", "\",", "\"}", "},", "],", "[{", "}]", "\":\"", "\":{", "\":[", "\",\"", "ĊĠĠ", "true",
        "null", "Ċ",
    ];
    let numbers = (0..1000).map(|n| n.to_string());
    for token in pieces.into_iter().map(str::to_owned).chain(numbers) {
        if seen.insert(token.clone()) {
            tokens.push(token);
        }
    }
    let syllables: Vec<String> = (0..400)
        .map(|_| {
            let onset = ["b", "c", "d", "f", "g", "l", "m", "n", "p", "r", "s", "t", "st", "tr", "ch", ""];
            let coda = ["", "n", "r", "s", "t", "ng", "l", "ck"];
            let vowel = ["a", "e", "i", "o", "u", "ea", "ou"];
            let of = |list: &[&str], random: &mut Random| list[random.below(list.len())].to_owned();
            of(&onset, random) + &of(&vowel, random) + &of(&coda, random)
        })
        .collect();
    while tokens.len() < N_VOCAB - 1 {
        let mut word: String =
            (0..1 + random.below(4)).map(|_| syllables[random.below(syllables.len())].as_str()).collect();
        match random.below(10) {
            0 => word = word.to_uppercase(),
            1 => word[..1].make_ascii_uppercase(),
            2 | 3 => {
                // Characters of three UTF-8 bytes, as in Chinese.
                let character = |random: &mut Random| {
                    char::from_u32(0x4e00 + random.below(0x5000) as u32).unwrap().to_string()
                };
                let text: String = (0..1 + random.below(3)).map(|_| character(random)).collect();
                word = text.bytes().map(|byte| letters[byte as usize]).collect();
            }
            _ => {}
        }
        if random.below(2) == 0 {
            word.insert(0, 'Ġ');
        }
        if seen.insert(word.clone()) {
            tokens.push(word);
        }
    }
    tokens.push("<eos>".into());
    tokens
}

fn strings(items: &[String]) -> Value {
    let (mut bytes, mut spans) = (Vec::new(), Vec::new());
    for item in items {
        spans.push((bytes.len() as u32, item.len() as u32));
        bytes.extend_from_slice(item.as_bytes());
    }
    Value::Array(Array::Str { bytes: Bytes::from_slice(&bytes), spans })
}

/// The generated vocabulary as metadata of a file.
fn made_up(random: &mut Random) -> Metadata {
    let tokens = vocabulary(random);
    let mut kinds = vec![1; tokens.len()];
    kinds[N_VOCAB - 1] = 3;
    let mut metadata = Metadata::default();
    let text = |text: &str| Value::Str(text.to_owned());
    for (key, value) in [
        ("model", text("gpt2")),
        ("pre", text("gpt-2")),
        ("tokens", strings(&tokens)),
        ("token_type", Value::Array(Array::Int(kinds))),
        ("merges", strings(&[])),
        ("eos_token_id", Value::Int(N_VOCAB as i128 - 1)),
    ] {
        metadata.insert(format!("tokenizer.ggml.{key}"), value);
    }
    metadata
}

fn main() {
    let mut random = Random(7);
    // Cargo adds the argument `--bench`.
    let file = std::env::args().skip(1).find(|argument| !argument.starts_with("--"));
    let metadata = match &file {
        Some(file) => formats::open(file.as_ref(), weights::Access::Map).unwrap().metadata,
        None => made_up(&mut random),
    };
    let tokenizer = Tokenizer::from_gguf(&metadata).unwrap();
    let n_vocab = tokenizer.n_tokens();
    let begun = Instant::now();
    let compiler = GrammarCompiler::new(&tokenizer, n_vocab).unwrap();
    println!("{n_vocab} tokens; made ready in {:.0} ms", begun.elapsed().as_secs_f64() * 1e3);
    let person = json!({
        "type": "object", "required": ["name", "age", "emails", "address"], "additionalProperties": false,
        "properties": {
            "name": { "type": "string", "maxLength": 40 }, "age": { "type": "integer", "minimum": 0, "maximum": 150 },
            "emails": { "type": "array", "items": { "type": "string", "format": "email" }, "maxItems": 4 },
            "address": { "type": "object", "required": ["city", "kind"], "properties": {
                "city": { "type": "string" }, "kind": { "enum": ["home", "work", "other"] },
            }},
        },
    });
    let list = "root ::= item+\nitem ::= \"- \" [^\\n]+ \"\\n\"\n";
    let grammars = [
        ("JSON of a schema", Grammar::JsonSchema(person)),
        ("any JSON object", Grammar::AnyJson),
        ("a regular expression", Grammar::Regex("([A-Z][a-z]+ ){2,6}[0-9]{4}-[0-9]{2}-[0-9]{2}".into())),
        ("GBNF", Grammar::Gbnf(list.into())),
    ];
    println!("{:<22} {:>9} {:>9} {:>9} {:>10}", "grammar", "compile", "median", "p99", "most");
    let mut all = Vec::new();
    for (name, grammar) in grammars {
        let begun = Instant::now();
        let begin = compiler.compile(&grammar).unwrap();
        let compile = begun.elapsed().as_secs_f64() * 1e6;
        let mut times = Vec::with_capacity(N_MASKS);
        let mut matcher = begin.clone();
        let mut words = vec![0u32; n_vocab.div_ceil(32)];
        while times.len() < N_MASKS {
            words.fill(0);
            let begun = Instant::now();
            matcher.mask(&mut words).unwrap();
            times.push(begun.elapsed().as_secs_f64() * 1e6);
            let allowed: Vec<u32> = (0..n_vocab as u32)
                .filter(|t| !tokenizer.is_end(*t) && words[*t as usize / 32] >> (t % 32) & 1 == 1)
                .collect();
            if allowed.is_empty() {
                matcher = begin.clone();
                continue;
            }
            matcher.accept(allowed[random.below(allowed.len())]).unwrap();
            if matcher.is_over() {
                matcher = begin.clone();
            }
        }
        all.extend_from_slice(&times);
        print(name, Some(compile), &mut times);
    }
    print("all", None, &mut all);
}

fn print(name: &str, compile: Option<f64>, times: &mut [f64]) {
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    let compile = compile.map_or(String::new(), |time| format!("{time:.0} us"));
    println!("{name:<22} {compile:>9} {:>6.1} us {:>6.0} us {:>7.0} us", at(0.5), at(0.99), at(1.0));
}
