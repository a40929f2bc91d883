//! Answers as models write them, generated from the description of each format. The guard masks
//! none of their tokens, and the parser returns the generated values, whatever the pieces.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::super::formats::{CallFormat, FORMATS, GENERIC, REASONINGS, Syntax, Tags};
use super::super::*;
use super::{Read, collect};
use crate::GrammarCompiler;

const END: &str = "<|test_end|>";

/// Pseudo-random numbers from a seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }

    fn coin(&mut self) -> bool {
        self.roll(2) == 0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.roll(from.len())]
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for n in (1..items.len()).rev() {
            items.swap(n, self.roll(n + 1));
        }
    }
}

fn tools() -> Vec<Value> {
    let f = json!({ "type": "object", "properties": {
        "a": { "type": "integer" }, "s": { "type": "string" }, "b": { "type": "boolean" },
        "ns": { "type": ["string", "null"] }, "arr": { "type": "array", "items": { "type": "string" } },
        "o": { "type": "object", "properties": { "x": { "type": "integer" }, "y": { "type": "string" } } },
    }});
    let h = json!({ "type": "object", "properties": {
        "e": { "type": "string", "enum": ["x", "y z"] }, "path": { "$ref": "#/$defs/path" }, "n": { "type": "number" },
    }, "required": ["path", "e"], "$defs": { "path": { "type": "string" } } });
    let tool = |name: &str, parameters: Value| json!({ "type": "function", "function": { "name": name, "description": "d", "parameters": parameters } });
    vec![tool("f", f), json!({ "type": "function", "function": { "name": "g" } }), tool("h", h)]
}

const STRINGS: [&str; 7] = ["it", "a < b", "one\ntwo", "{\"k\": [1]}", "é 日本", "say \"hi\"", "it's"];

/// A call's name, and its arguments in the order of writing.
fn call(dice: &mut Dice) -> (String, Vec<(String, Value)>) {
    let name = dice.pick(&["f", "g", "h"]);
    let mut arguments: Vec<(String, Value)> = Vec::new();
    let mut push = |key: &str, value: Value| arguments.push((key.to_owned(), value));
    match name {
        "f" => {
            for key in ["a", "s", "b", "ns", "arr", "o"] {
                if dice.coin() {
                    continue;
                }
                push(
                    key,
                    match key {
                        "a" => json!(dice.pick(&[1, -7, 120])),
                        "b" => json!(dice.coin()),
                        "ns" if dice.coin() => Value::Null,
                        "s" | "ns" => json!(dice.pick(&STRINGS)),
                        "arr" => json!([dice.pick(&STRINGS), "x"]),
                        _ => match dice.coin() {
                            true => json!({ "y": "1", "x": 2 }),
                            false => json!({ "x": 2 }),
                        },
                    },
                );
            }
        }
        "h" => {
            push("e", json!(dice.pick(&["x", "y z"])));
            push("path", json!(dice.pick(&STRINGS)));
            if dice.coin() {
                push("n", json!(1.5));
            }
        }
        _ => {}
    }
    dice.shuffle(&mut arguments);
    (name.to_owned(), arguments)
}

/// The spacing of JSON.
#[derive(Clone, Copy)]
enum Space {
    Compact,
    Spaced,
    Pretty,
}

fn write_json(value: &Value, space: Space, depth: usize) -> String {
    let (open, comma, colon, close) = match space {
        Space::Compact => (String::new(), ",".to_owned(), ":", String::new()),
        Space::Spaced => (String::new(), ", ".to_owned(), ": ", String::new()),
        Space::Pretty => {
            let indent = |n: usize| format!("\n{}", "  ".repeat(n));
            (indent(depth + 1), format!(",{}", indent(depth + 1)), ": ", indent(depth))
        }
    };
    match value {
        Value::Object(members) if !members.is_empty() => {
            let members: Vec<String> = members
                .iter()
                .map(|(key, value)| {
                    format!("{}{colon}{}", Value::from(key.as_str()), write_json(value, space, depth + 1))
                })
                .collect();
            format!("{{{open}{}{close}}}", members.join(&comma))
        }
        Value::Array(items) if !items.is_empty() => {
            let items: Vec<String> = items.iter().map(|item| write_json(item, space, depth + 1)).collect();
            format!("[{open}{}{close}]", items.join(&comma))
        }
        value => value.to_string(),
    }
}

fn object(members: &[(String, Value)]) -> Value {
    Value::Object(Map::from_iter(members.iter().cloned()))
}

fn json_call(
    (name_key, arguments_key): (&str, &str),
    is_bare: bool,
    (name, arguments): &(String, Vec<(String, Value)>),
    dice: &mut Dice,
) -> String {
    let space = dice.pick(&[Space::Compact, Space::Spaced, Space::Pretty]);
    let name = (name_key.to_owned(), json!(name));
    let kind = ("type".to_owned(), json!("function"));
    let object_of = object(arguments);
    if name_key.is_empty() {
        return write_json(&object(&[(name.1.as_str().unwrap().to_owned(), object_of)]), space, 0);
    }
    let arguments_of = (arguments_key.to_owned(), object_of.clone());
    let members = match dice.roll(if is_bare { 3 } else { 6 }) {
        0 | 1 => vec![name, arguments_of],
        2 => vec![kind, name, arguments_of],
        3 => vec![arguments_of, name],
        4 => vec![kind, ("function".to_owned(), object(&[name, arguments_of]))],
        _ if arguments.is_empty() => vec![name],
        _ => vec![name, (arguments_key.to_owned(), json!(object_of.to_string()))],
    };
    write_json(&object(&members), space, 0)
}

fn tagged_call(
    tags: &Tags,
    close: &str,
    (name, arguments): &(String, Vec<(String, Value)>),
    dice: &mut Dice,
) -> String {
    let line = if dice.coin() { "\n" } else { "" };
    let mut text = format!("{}{name}", tags.name_before);
    text.push_str(if tags.name_after == "\n" { line } else { tags.name_after });
    for (key, value) in arguments {
        let value = match value {
            Value::String(text) => text.clone(),
            Value::Bool(true) if dice.coin() => "True".to_owned(),
            Value::Array(_) | Value::Object(_) if dice.roll(3) == 0 => python(value, dice),
            value => write_json(value, dice.pick(&[Space::Compact, Space::Spaced]), 0),
        };
        text.push_str(&format!("{line}{}{key}", tags.key_before));
        let marks: Vec<&str> = tags.key_after.iter().map(|spellings| dice.pick(spellings)).collect();
        text.push_str(&marks.join(line));
        let white = if tags.name_before.is_empty() { "" } else { line };
        text.push_str(&format!("{white}{value}{white}{}", tags.value_after));
    }
    let end = if tags.end.is_empty() { close } else { tags.end };
    format!("{text}{line}{end}")
}

fn python(value: &Value, dice: &mut Dice) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => dice.pick(&["True", "true"]).to_owned(),
        Value::Bool(false) => dice.pick(&["False", "false"]).to_owned(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => {
            let text = text.replace('\\', "\\\\").replace('\n', "\\n");
            match dice.coin() {
                true => format!("\"{}\"", text.replace('"', "\\\"")),
                false => format!("'{}'", text.replace('\'', "\\'")),
            }
        }
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(|item| python(item, dice)).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(members) => {
            let members: Vec<String> = members
                .iter()
                .map(|(key, value)| format!("{}: {}", python(&json!(key), dice), python(value, dice)))
                .collect();
            format!("{{{}}}", members.join(", "))
        }
    }
}

fn braces(value: &Value, quote: &str) -> String {
    match value {
        Value::String(text) => format!("{quote}{text}{quote}"),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(|item| braces(item, quote)).collect();
            format!("[{}]", items.join(","))
        }
        Value::Object(members) => {
            let members: Vec<String> =
                members.iter().map(|(key, value)| format!("{key}:{}", braces(value, quote))).collect();
            format!("{{{}}}", members.join(","))
        }
        value => value.to_string(),
    }
}

/// Calls from the first mark to the last.
fn write_calls(
    format: &CallFormat,
    open: &str,
    calls: &[(String, Vec<(String, Value)>)],
    dice: &mut Dice,
) -> String {
    let close = format.close;
    let line = if dice.coin() { "\n" } else { "" };
    let between = dice.pick(&["", "\n", "\n\n"]);
    match &format.syntax {
        Syntax::Json { name, arguments, list } => {
            let bodies: Vec<String> =
                calls.iter().map(|call| json_call((name, arguments), open.is_empty(), call, dice)).collect();
            match list {
                true => format!("{open}{line}[{}]{line}{close}", bodies.join(dice.pick(&[",", ", ", ",\n"]))),
                false if close.is_empty() => format!("{open}{}", bodies.join("; ")),
                false => {
                    let units = bodies.iter().map(|body| format!("{open}{line}{body}{line}{close}"));
                    units.collect::<Vec<_>>().join(between)
                }
            }
        }
        Syntax::Named { prefix, separator, after } => {
            let units = calls.iter().enumerate().map(|(n, (name, arguments))| {
                let number = if format.name == "kimi" { format!(":{n}") } else { String::new() };
                let arguments =
                    write_json(&object(arguments), dice.pick(&[Space::Compact, Space::Spaced]), 0);
                format!("{open}{prefix}{name}{number}{separator}{arguments}{after}{close}")
            });
            units.collect::<Vec<_>>().join(if close.is_empty() { "" } else { between })
        }
        Syntax::Tagged(tags) => {
            let bodies: Vec<String> = calls.iter().map(|call| tagged_call(tags, close, call, dice)).collect();
            if tags.end.is_empty() {
                let units = bodies.iter().map(|body| format!("{open}{body}"));
                return units.collect::<Vec<_>>().join(between);
            }
            // The mark that opens a call may be missing.
            let units = bodies.iter().enumerate().map(|(n, body)| match n == 0 && dice.roll(4) == 0 {
                true => format!("{body}{line}{close}"),
                false => format!("{open}{}{line}{body}{line}{close}", dice.pick(&["", tags.skipped])),
            });
            units.collect::<Vec<_>>().join(between)
        }
        Syntax::Pythonic { list } => {
            let bodies: Vec<String> = calls
                .iter()
                .map(|(name, arguments)| {
                    let arguments: Vec<String> = arguments
                        .iter()
                        .map(|(key, value)| format!("{key}={}", python(value, dice)))
                        .collect();
                    match dice.roll(4) {
                        0 if !arguments.is_empty() => format!("{name}(\n  {},\n)", arguments.join(",\n  ")),
                        _ => format!("{name}({})", arguments.join(", ")),
                    }
                })
                .collect();
            match list {
                true => format!("{open}[{}]{close}", bodies.join(", ")),
                false => format!("{open}\n{}\n{close}", bodies.join("\n")),
            }
        }
        Syntax::Braces { quote } => {
            let units = calls
                .iter()
                .map(|(name, arguments)| format!("{open}{name}{}{close}", braces(&object(arguments), quote)));
            units.collect::<Vec<_>>().join(if dice.coin() { "" } else { "\n" })
        }
        Syntax::Harmony => {
            let units = calls.iter().map(|(name, arguments)| {
                let arguments =
                    write_json(&object(arguments), dice.pick(&[Space::Compact, Space::Spaced]), 0);
                let header = match dice.roll(4) {
                    3 => format!("<|channel|>commentary to=functions.{name} json<|message|>"),
                    0 => format!("<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"),
                    1 => format!(" to=functions.{name}<|channel|>commentary <|constrain|>json<|message|>"),
                    _ => format!("<|channel|>commentary to=functions.{name}<|message|>"),
                };
                format!("{header}{arguments}<|call|>")
            });
            units.collect::<Vec<_>>().join("<|start|>assistant")
        }
    }
}

/// An answer and its expected parts.
struct Written {
    text: String,
    read: Read,
}

const CONTENTS: [&str; 4] =
    ["Sure!", "I look: {\"a\": [1, 2]} and 1 < 2.", "A [list](x) of <b>tags</b>.", "Ça va"];

fn write(format: &'static CallFormat, reasoning: Option<&'static Reasoning>, dice: &mut Dice) -> Written {
    let is_harmony = matches!(format.syntax, Syntax::Harmony);
    // Without marks around it, a call begins with the mark before its name.
    let open = if format.open.is_empty() { "" } else { dice.pick(format.open) };
    let n_calls = dice.roll(4);
    let calls: Vec<_> = (0..n_calls).map(|_| call(dice)).collect();
    let mut text = String::new();
    let thought = match (dice.coin(), reasoning) {
        (true, Some(reasoning)) => {
            let line = if dice.coin() { "\n" } else { "" };
            text.push_str(&format!("{}{line}Hm, {{1}} < 2.{line}{}{line}", reasoning.open, reasoning.close));
            "Hm, {1} < 2."
        }
        (true, None) if is_harmony => {
            text.push_str("<|channel|>analysis<|message|>Hm, {1} < 2.<|end|><|start|>assistant");
            "Hm, {1} < 2."
        }
        _ => "",
    };
    // Text before a call without a mark would hide the call.
    let may_say = n_calls == 0 || !open.is_empty() || format.open.is_empty();
    let mut content = match (n_calls, may_say && dice.coin()) {
        (0, _) => match dice.roll(6) {
            0 => "{\"answer\": 42}".to_owned(),
            1 => "[1, 2, 3] is the list.".to_owned(),
            2 if !open.is_empty() && !is_harmony => format!("The tag {open} starts a call."),
            _ => dice.pick(&CONTENTS).to_owned(),
        },
        (_, true) => dice.pick(&CONTENTS).to_owned(),
        (_, false) => String::new(),
    };
    match (is_harmony, n_calls) {
        (true, 0) => text.push_str(&format!("<|channel|>final<|message|>{content}")),
        (true, _) if !content.is_empty() => {
            text.push_str(&format!("<|channel|>commentary<|message|>{content}<|end|><|start|>assistant"));
        }
        (true, _) => {}
        (false, 0) if format.name == "command" && dice.coin() => {
            text.push_str(&format!("<|START_RESPONSE|>{content}<|END_RESPONSE|>"));
        }
        (false, 0) => text.push_str(&content),
        (false, _) if content.is_empty() => {}
        (false, _) => text.push_str(&format!("{content}{}", dice.pick(&["", "\n", "\n\n", " "]))),
    }
    if n_calls > 0 {
        let has_section = format.silent.first().is_some_and(|mark| mark.contains("calls")) && dice.coin();
        let section = if has_section { [format.silent[0], format.silent[1]] } else { ["", ""] };
        text.push_str(section[0]);
        text.push_str(&write_calls(format, open, &calls, dice));
        text.push_str(section[1]);
        if !is_harmony && dice.roll(3) == 0 {
            text.push_str("\nDone.");
            content.push_str("Done.");
        }
    }
    let calls = calls.iter().map(|(name, arguments)| (name.clone(), object(arguments).to_string()));
    Written { text, read: (thought.to_owned(), content, calls.collect()) }
}

/// Letters of GPT-2's byte alphabet.
fn letters(bytes: &[u8]) -> String {
    let is_kept = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    bytes
        .iter()
        .map(|&byte| match is_kept(byte) {
            true => char::from(byte),
            false => {
                let n = (0..byte).filter(|other| !is_kept(*other)).count() as u32;
                char::from_u32(256 + n).unwrap()
            }
        })
        .collect()
}

/// A vocabulary of every byte, these marks as control or user-defined tokens, and these texts.
fn tokenizer(marks: &[&str], are_control: bool, texts: &BTreeSet<String>) -> Tokenizer {
    let mut vocab = Map::new();
    for byte in 0..=255 {
        vocab.insert(letters(&[byte]), json!(vocab.len()));
    }
    for text in texts {
        let n = vocab.len();
        vocab.entry(letters(text.as_bytes())).or_insert(json!(n));
    }
    let mut added = Vec::new();
    for (n, mark) in marks.iter().chain([&END]).enumerate() {
        added.push(json!({
            "id": vocab.len() + n, "content": mark, "special": are_control || *mark == END, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false,
        }));
    }
    let json = json!({
        "model": { "type": "BPE", "vocab": vocab, "merges": [] }, "added_tokens": added,
        "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false },
        "decoder": { "type": "ByteLevel" },
    });
    let config = json!({ "eos_token": END }).to_string();
    Tokenizer::from_json(json.to_string().as_bytes(), Some(config.as_bytes())).unwrap()
}

/// The text in pieces: marks, and runs of some characters.
fn pieces(text: &str, marks: &[&str], dice: &mut Dice) -> Vec<String> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let mark = marks.iter().filter(|mark| rest.starts_with(**mark)).max_by_key(|mark| mark.len());
        let len = match mark {
            Some(mark) => mark.len(),
            None => {
                let next = marks.iter().filter_map(|mark| rest.find(mark)).min().unwrap_or(rest.len());
                let wanted = 1 + dice.roll(6);
                let end = rest.char_indices().nth(wanted).map_or(rest.len(), |(at, _)| at);
                end.min(next)
            }
        };
        pieces.push(rest[..len].to_owned());
        rest = &rest[len..];
    }
    pieces
}

fn check(format: &'static CallFormat, seed: u64) {
    let mut dice = Dice(seed | 1);
    let is_harmony = matches!(format.syntax, Syntax::Harmony);
    let reasoning = if is_harmony { None } else { Some(&REASONINGS[dice.roll(REASONINGS.len())]) };
    let reasoning = reasoning.filter(|_| dice.roll(4) > 0);
    let answer = AnswerFormat { calls: format, reasoning, is_reasoning_told: reasoning.is_some() };
    let Written { text, read } = write(format, answer.reasoning, &mut dice);
    let tools = tools();

    // Marks are control tokens, user-defined tokens, or plain text.
    let marks: Vec<&str> = match dice.roll(3) {
        0 if !is_harmony => Vec::new(),
        _ => {
            let marks: BTreeSet<&str> = answer.marks().into_iter().filter(|mark| is_token(mark)).collect();
            marks.into_iter().collect()
        }
    };
    let are_control = is_harmony || dice.coin();
    let pieces = pieces(&text, &marks, &mut dice);
    let tokenizer = Arc::new(tokenizer(&marks, are_control, &pieces.iter().cloned().collect()));
    let compiler = GrammarCompiler::new(&tokenizer, tokenizer.n_tokens()).unwrap();
    let held = answer.held_calls(&tools, &tokenizer, |grammar| compiler.compile(grammar));
    let mut guard = answer.guard(held, &tools, true, "", &tokenizer).unwrap();
    assert!(guard.has_grammar(), "{}: the schemas compile", format.name);
    for (n, piece) in pieces.iter().enumerate() {
        let id = match marks.contains(&piece.as_str()) {
            true => tokenizer.token_id(piece),
            false => tokenizer.token_id(&letters(piece.as_bytes())),
        };
        let id = id.unwrap_or_else(|| panic!("{piece:?} is a token"));
        let mut words = vec![0; tokenizer.n_tokens().div_ceil(32)];
        let is_held = guard.mask(&mut words).unwrap();
        assert!(
            !is_held || words[id as usize / 32] >> (id % 32) & 1 == 1,
            "{}, seed {seed}: {piece:?} is masked after {:?} of {text:?}",
            format.name,
            pieces[..n].concat()
        );
        guard.accept(id).unwrap();
    }
    let mut words = vec![0; tokenizer.n_tokens().div_ceil(32)];
    let end = tokenizer.token_id(END).unwrap();
    let may_end = !guard.mask(&mut words).unwrap() || words[end as usize / 32] >> (end % 32) & 1 == 1;
    assert!(may_end, "{}, seed {seed}: the answer may end after {text:?}", format.name);

    let expected = normal(&read);
    let mut cuts: Vec<Vec<String>> = vec![vec![text.clone()], pieces];
    cuts.push(text.chars().map(String::from).collect());
    for cut in cuts {
        let mut parser = answer.parser("", &tools);
        let mut parts = Vec::new();
        for piece in &cut {
            parser.push(piece, &mut parts);
        }
        parser.finish(&mut parts);
        assert_eq!(normal(&collect(&parts)), expected, "{}, seed {seed}: {text:?} as {cut:?}", format.name);
    }
}

/// Returns true if published vocabularies have a mark as one token.
fn is_token(mark: &str) -> bool {
    let is_closed = |open: char, close: char| {
        mark.starts_with(open) && mark.ends_with(close) && mark.matches(open).count() == 1
    };
    (is_closed('<', '>') || is_closed('[', ']')) && !mark.contains(['=', ' ', '\n'])
}

/// Arguments as values, so that spacing does not matter.
fn normal((reasoning, content, calls): &Read) -> (String, String, Vec<(String, Value)>) {
    let value =
        |text: &str| serde_json::from_str(text).unwrap_or_else(|error| panic!("arguments {text:?}: {error}"));
    let calls = calls.iter().map(|(name, arguments)| (name.clone(), value(arguments))).collect();
    (reasoning.clone(), content.clone(), calls)
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 0, failure_persistence: None, ..ProptestConfig::with_cases(48) })]

    #[test]
    fn texts_of_models_are_accepted_and_parsed(seed in any::<u64>()) {
        for format in FORMATS.iter().chain([&GENERIC]).skip((seed % 12) as usize).step_by(12) {
            check(format, seed);
        }
    }
}
