//! Schemas as programs write them. All compile; texts that their grammars accept are valid in
//! another implementation; and usual texts are accepted.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.

use ingle_text::{
    Grammar, GrammarCompiler, Matcher, Prepared, SchemaOptions, Tokenizer, prepare_schema, prepare_tool,
};
use serde_json::{Value, json};

use crate::grammar::{compiler, tokenizer};

mod keys;
mod own;

use own::own;

/// Schemas of pydantic, zod, zod-to-json-schema, Instructor and servers of the Model Context
/// Protocol, without prose.
const CORPORA: [(&str, &str); 3] = [
    ("pydantic", include_str!("schemas/pydantic.json")),
    ("zod", include_str!("schemas/zod.json")),
    ("mcp", include_str!("schemas/mcp.json")),
];

fn corpus() -> Vec<(String, Value)> {
    let mut all = Vec::new();
    for (_, text) in CORPORA {
        let list: Vec<Value> = serde_json::from_str(text).unwrap();
        all.extend(
            list.into_iter()
                .map(|mut entry| (entry["name"].as_str().unwrap().to_owned(), entry["schema"].take())),
        );
    }
    all
}

fn prepared(schema: &Value) -> Prepared {
    prepare_schema(schema, &SchemaOptions::default()).unwrap_or_else(|error| panic!("{error}: {schema}"))
}

/// Schemas and texts with one small vocabulary.
struct Bench {
    tokenizer: Tokenizer,
    compiler: GrammarCompiler,
}

impl Bench {
    fn new() -> Bench {
        let tokenizer = tokenizer();
        let compiler = compiler(&tokenizer);
        Bench { tokenizer, compiler }
    }

    fn matcher(&self, schema: &Value) -> Matcher {
        let grammar = Grammar::JsonSchema(schema.clone());
        self.compiler.compile(&grammar).unwrap_or_else(|error| panic!("{error}: {schema}"))
    }

    fn allowed(&self, matcher: &mut Matcher) -> Vec<u32> {
        let n_vocab = self.tokenizer.n_tokens();
        let mut words = vec![0; n_vocab.div_ceil(32) + 1];
        matcher.mask(&mut words).unwrap();
        (0..n_vocab as u32).filter(|t| words[*t as usize / 32] >> (t % 32) & 1 == 1).collect()
    }

    fn token(&self, c: char) -> u32 {
        let text = match c {
            ' ' => "Ġ".to_owned(),
            '\n' => "Ċ".to_owned(),
            '\t' => "ĉ".to_owned(),
            c => c.to_string(),
        };
        self.tokenizer.token_id(&text).unwrap_or_else(|| panic!("{c:?}"))
    }

    /// Returns true if the matcher accepts the text, and nothing may follow.
    fn takes(&self, matcher: &Matcher, text: &str) -> bool {
        let mut matcher = matcher.clone();
        let is_accepted = text.chars().all(|c| matcher.accept(self.token(c)).is_ok());
        is_accepted && self.allowed(&mut matcher).iter().any(|id| self.tokenizer.is_end(*id))
    }

    /// A random text that the grammar accepts; `None` if it does not end.
    fn walk(&self, matcher: &Matcher, seed: u64) -> Option<String> {
        let mut matcher = matcher.clone();
        let mut bytes = Vec::new();
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        for n in 0..1_500 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let allowed = self.allowed(&mut matcher);
            assert!(!allowed.is_empty(), "a dead end after {:?}", String::from_utf8_lossy(&bytes));
            if allowed.iter().any(|id| self.tokenizer.is_end(*id))
                && (n > 150 || state.is_multiple_of(4) || allowed.len() == 1)
            {
                return Some(String::from_utf8(bytes).unwrap());
            }
            let others: Vec<u32> = allowed.into_iter().filter(|id| !self.tokenizer.is_end(*id)).collect();
            let is_mark = |id: &&u32| matches!(self.tokenizer.token_bytes(**id), b"\"" | b"}" | b"]");
            let marks: Vec<u32> = others.iter().filter(is_mark).copied().collect();
            let pool = match n > 150 || state.is_multiple_of(3) {
                true if !marks.is_empty() => marks,
                true | false => others,
            };
            let token = pool[(state >> 20) as usize % pool.len()];
            bytes.extend(self.tokenizer.token_bytes(token));
            matcher.accept(token).unwrap();
        }
        None
    }
}

#[test]
fn every_schema_of_the_corpus_compiles_and_allows_valid_texts_only() {
    let bench = Bench::new();
    let (mut n_walks, mut n_endless) = (0, 0);
    let (mut unenforced, mut wrong) = (Vec::new(), Vec::new());
    for (name, schema) in corpus().into_iter().chain(own()) {
        let prepared = prepared(&schema);
        unenforced.extend(prepared.unenforced.iter().map(|what| format!("{name}: {what}")));
        let matcher = bench.matcher(&schema);
        let validator = jsonschema::options().should_validate_formats(true).build(&schema);
        // OpenAPI 3.0 and Draft 4 have keys that later drafts refuse or ignore.
        let validator = validator.ok().filter(|_| !schema.to_string().contains("\"nullable\""));
        let n_seeds = if name.starts_with("own") { 3 } else { 1 };
        for seed in 1..=n_seeds {
            n_walks += 1;
            let Some(text) = bench.walk(&matcher, seed) else {
                n_endless += 1;
                continue;
            };
            let value: Value =
                serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}: {text}"));
            let error = validator.as_ref().and_then(|validator| validator.validate(&value).err());
            if let Some(error) = error.filter(|_| prepared.unenforced.is_empty()) {
                wrong.push(format!("{name}: {error}\n{text}\n{schema}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert!(n_endless * 20 < n_walks, "{n_endless} of {n_walks} texts did not end");
    // Only unique items with infinitely many values are not enforced.
    assert!(unenforced.iter().all(|what| what.contains(": uniqueItems at #/")), "{unenforced:?}");
}

/// A schema, valid texts, and invalid texts.
type Case = (Value, &'static [&'static str], &'static [&'static str]);

fn check(cases: &[Case]) {
    let bench = Bench::new();
    for (schema, good, bad) in cases {
        let matcher = bench.matcher(schema);
        for text in *good {
            assert!(bench.takes(&matcher, text), "{text} should be let through by {schema}");
        }
        for text in *bad {
            assert!(!bench.takes(&matcher, text), "{text} should not be let through by {schema}");
        }
    }
}

#[test]
fn integers_keep_all_their_digits() {
    check(&[
        (
            json!({ "const": 9_007_199_254_740_993_u64 }),
            &["9007199254740993"],
            &["9007199254740992", "9007199254740994"],
        ),
        (
            json!({ "enum": [9_007_199_254_740_993_u64, 12_345_678_901_234_567_890_u64, -9_223_372_036_854_775_808_i64] }),
            &["9007199254740993", "12345678901234567890", "-9223372036854775808"],
            &["12345678901234567000", "12345678901234567891"],
        ),
        (
            json!({ "type": "integer", "minimum": 1_234_567_890_123_456_789_u64, "maximum": 1_234_567_890_123_456_799_u64 }),
            &["1234567890123456789", "1234567890123456790", "1234567890123456799"],
            &[
                "1234567890123456788",
                "1234567890123456800",
                "1234567890123456768",
                "-1234567890123456789",
                "1234567890123456789.0",
            ],
        ),
        (
            json!({ "type": "integer", "exclusiveMinimum": -9_007_199_254_740_993_i64, "maximum": -9_007_199_254_740_991_i64 }),
            &["-9007199254740992", "-9007199254740991"],
            &["-9007199254740993", "-9007199254740990"],
        ),
        (
            json!({ "type": "object", "properties": { "id": { "const": 9_007_199_254_740_993_u64 } }, "required": ["id"] }),
            &["{\"id\": 9007199254740993}"],
            &["{\"id\": 9007199254740992}"],
        ),
    ]);
}

/// Lists at the documented limits are accepted to their end, in a time that does not grow with the
/// square of the length.
#[test]
fn the_longest_lists_and_the_largest_numbers_can_be_written() {
    let bench = Bench::new();
    let names = |n: usize| (0..n).map(|n| format!("v{n}"));
    let words: Vec<String> = names(5_000).collect();
    let objects: Vec<Value> = (0..1_500).map(|n| json!({ "a": n })).collect();
    let properties = names(3_000).map(|name| (name, json!({ "type": "null" })));
    let properties = Value::Object(properties.collect());
    let small: Vec<usize> = (0..63).collect();
    let unique = format!("[{}]", small.iter().map(usize::to_string).collect::<Vec<_>>().join(","));
    for (schema, good, bad) in [
        (json!({ "enum": words }), "\"v4999\"", "\"v5000\""),
        (json!({ "enum": objects }), "{\"a\": 1499}", "{\"a\": 1500}"),
        (
            json!({ "type": "object", "properties": properties }),
            "{\"v7\": null, \"v2999\": null}",
            "{\"v3000\": null}",
        ),
        (
            json!({ "type": "array", "uniqueItems": true, "items": { "enum": small } }),
            unique.as_str(),
            "[1, 2, 1]",
        ),
        (json!({ "type": "integer", "multipleOf": 3_600 }), "86400", "86401"),
        (
            json!({ "type": "array", "maxItems": 10_u64.pow(18), "items": { "type": "null" } }),
            "[null]",
            "[1]",
        ),
    ] {
        let start = std::time::Instant::now();
        let matcher = bench.matcher(&schema);
        assert!(bench.takes(&matcher, good), "{good} should be let through");
        assert!(!bench.takes(&matcher, bad), "{bad} should not be let through");
        assert!(start.elapsed().as_secs() < 60, "{good} took {:?}", start.elapsed());
    }
    for step in [json!(999_983), json!(86_400), json!(0.123_456_789)] {
        let schema = json!({ "type": "integer", "multipleOf": step });
        assert_eq!(prepared(&schema).unenforced, ["multipleOf at #"], "{schema}");
        assert!(bench.takes(&bench.matcher(&schema), "0"));
    }
    let many = json!({ "type": "array", "minItems": 10_u64.pow(18) });
    let error = prepare_schema(&many, &SchemaOptions::default()).unwrap_err().to_string();
    assert!(error.contains("minItems at # is 1000000000000000000, expected at most 2147483647"), "{error}");
}

#[test]
fn white_space_is_one_blank_or_one_line_end_with_its_indentation() {
    let good = [
        r#"{"a": 1, "b": [1, 2]}"#,
        "{\n  \"a\": 1\n}",
        r#"{"a":1}"#,
        r#"{ "a": 1 }"#,
        "{\n\t\"a\": 1,\n\t\"b\": [\n\t\t1,\n\t\t2\n\t]\n}",
        "{\n    \"b\": [\n        1\n    ]\n}",
        r#"{"a" : 1}"#,
        "{}",
        "{\n}",
        r#"{"b": [ ]}"#,
    ];
    let bad = [
        r#"{"a":  1}"#,
        "{\n\n\"a\": 1}",
        "{\"a\"\n: 1}",
        "{\"a\": 1\n, \"b\": []}",
        "{  }",
        "{ \n}",
        r#"{"a": 1}  "#,
    ];
    let schema =
        json!({ "type": "object", "properties": { "a": { "type": "integer" }, "b": { "type": "array" } } });
    let bench = Bench::new();
    let any = bench.compiler.compile(&Grammar::AnyJson).unwrap();
    for matcher in [bench.matcher(&schema), any] {
        for text in good {
            assert!(bench.takes(&matcher, text), "{text:?}");
        }
        for text in bad {
            assert!(!bench.takes(&matcher, text), "{text:?}");
        }
    }
    let compact = bench.matcher(&json!({ "type": "object", "x-guidance": { "whitespace_flexible": false } }));
    assert!(bench.takes(&compact, r#"{"a":[1,2]}"#) && !bench.takes(&compact, r#"{"a": 1}"#));
}

#[test]
fn objects_that_list_properties_have_no_others() {
    let person = json!({ "type": "object", "properties": { "name": { "type": "string" }, "age": { "type": "integer" } },
        "required": ["name"] });
    let with = |key: &str, value: Value| {
        let mut schema = person.clone();
        schema[key] = value;
        schema
    };
    let one: &[&str] = &["{\"name\": \"x\"}", "{\"name\": \"x\", \"age\": 1}"];
    let other: &[&str] = &["{\"name\": \"x\", \"b\": 1}"];
    check(&[
        (person.clone(), one, other),
        (with("additionalProperties", json!(true)), other, &["{\"b\": 1}"]),
        (
            with("additionalProperties", json!({ "type": "integer" })),
            other,
            &["{\"name\": \"x\", \"b\": \"y\"}"],
        ),
        (with("x-guidance", json!({ "open_objects": true })), other, &["{\"b\": 1}"]),
        (json!({ "type": "object" }), &["{\"b\": 1}", "{}"], &["[]"]),
        (json!({ "type": "object", "properties": {} }), &["{}"], &["{\"b\": 1}"]),
        // Together they list both properties.
        (
            json!({ "allOf": [{ "properties": { "a": { "type": "integer" } } }, { "properties": { "b": { "type": "null" } } }],
                "type": "object" }),
            &["{\"a\": 1, \"b\": null}", "{\"b\": null}"],
            &["{\"a\": 1, \"c\": null}", "{\"b\": 1}"],
        ),
        (
            json!({ "type": "object", "properties": { "a": {} }, "anyOf": [{ "properties": { "b": { "const": 1 } } },
                { "properties": { "c": { "const": 2 } }, "required": ["c"] }] }),
            &["{\"a\": 0, \"b\": 1}", "{\"a\": 0, \"c\": 2}"],
            &["{\"a\": 0, \"b\": 1, \"c\": 2}", "{\"d\": 1}"],
        ),
        // A required property counts as listed.
        (
            json!({ "properties": { "a": {} }, "required": ["b"], "type": "object" }),
            &["{\"a\": 1, \"b\": 2}"],
            &["{\"a\": 1}"],
        ),
    ]);
    let open =
        prepare_schema(&person, &SchemaOptions { open_objects: true, ..SchemaOptions::default() }).unwrap();
    assert_ne!(open.grammar(), prepared(&person).grammar());
}

#[test]
fn references_may_point_to_any_schema() {
    let hello: &[&str] = &["\"x\""];
    let number: &[&str] = &["1"];
    let string = json!({ "type": "string" });
    check(&[
        (json!({ "$ref": "#/$defs/List%5Bint%5D", "$defs": { "List[int]": string } }), hello, number),
        (
            json!({ "$ref": "#/paths/~1foo~1%7Bid%7D/get", "paths": { "/foo/{id}": { "get": string } } }),
            hello,
            number,
        ),
        (json!({ "$ref": "#/$defs/a~0b", "$defs": { "a~b": string } }), hello, number),
        (json!({ "$ref": "#/$defs/list/1", "$defs": { "list": [true, string] } }), hello, number),
        (
            json!({ "$ref": "#word", "$defs": { "x": { "$anchor": "word", "type": "string" } } }),
            hello,
            number,
        ),
        (
            json!({ "$ref": "#word", "definitions": { "x": { "id": "#word", "type": "string" } } }),
            hello,
            number,
        ),
        (
            json!({ "$ref": "http://x.org/word.json", "$defs": { "x": { "$id": "http://x.org/word.json", "type": "string" } } }),
            hello,
            number,
        ),
        (
            json!({ "$id": "http://x.org/root.json", "$ref": "word.json", "$defs": { "x": { "$id": "word.json", "type": "string" } } }),
            hello,
            number,
        ),
        (
            json!({ "$id": "http://x.org/root.json", "$ref": "http://x.org/root.json#/$defs/x", "$defs": { "x": string } }),
            hello,
            number,
        ),
        (
            json!({ "$id": "http://x.org/a", "$ref": "b#/$defs/y", "$defs": { "x": { "$id": "b", "$defs": { "y": string } } } }),
            hello,
            number,
        ),
        (json!({ "items": { "$ref": "#" }, "type": "array" }), &["[]", "[[], [[]]]"], &["[1]"]),
        (json!({ "$ref": "#/$defs/a", "maxLength": 1, "$defs": { "a": string } }), hello, &["\"xy\"", "1"]),
        (
            json!({ "$defs": { "a": { "$ref": "#/$defs/b" }, "b": string }, "$ref": "#/$defs/a" }),
            hello,
            number,
        ),
        (json!({ "anyOf": [{ "$ref": "#/anyOf/1" }, string] }), hello, number),
    ]);
}

#[test]
fn keys_are_read_as_programs_write_them() {
    check(&[
        (
            json!({ "type": "string", "minLength": 2.0, "maxLength": 3.0 }),
            &["\"ab\"", "\"abc\""],
            &["\"a\"", "\"abcd\""],
        ),
        (
            json!({ "type": "array", "minItems": 1.0, "maxItems": 2.0, "items": { "type": "null" } }),
            &["[null]"],
            &["[]"],
        ),
        (json!({ "type": "integer", "minimum": 3, "exclusiveMinimum": true }), &["4"], &["3"]),
        (json!({ "type": "string", "nullable": true }), &["null", "\"\""], &["1"]),
        (json!({ "type": "string", "enum": ["a"], "nullable": true }), &["null", "\"a\""], &["\"b\""]),
        (json!({ "type": ["string", "null"], "items": null, "enum": null }), &["null", "\"a\""], &["[]"]),
        (json!({ "const": null }), &["null"], &["1"]),
        (
            json!({ "properties": { "a": { "type": "string", "required": true } }, "type": "object" }),
            &["{}", "{\"a\": \"\"}"],
            &[],
        ),
        (
            json!({ "type": "object", "propertyNames": { "type": "string" }, "additionalProperties": { "type": "integer" } }),
            &["{\"a\": 1}"],
            &["{\"a\": null}"],
        ),
        (
            json!({ "type": "object", "properties": { "a": { "not": {} }, "b": {} } }),
            &["{\"b\": 1}"],
            &["{\"a\": 1}"],
        ),
        (json!({ "type": "string", "format": "password" }), &["\"any thing\""], &["1"]),
        (
            json!({ "type": "string", "format": "uuid" }),
            &["\"123e4567-e89b-12d3-a456-426614174000\""],
            &["\"x\""],
        ),
        (json!({ "type": "integer", "format": "int64" }), &["1"], &["1.5"]),
        // Unnecessary escapes are JSON too.
        (
            json!({ "type": "string", "maxLength": 2 }),
            &[r#""\u00e9\n""#, r#""\ud83d\ude00a""#, r#""\/""#],
            &[r#""\ud83d""#, r#""\x""#],
        ),
        (json!({ "type": "string", "pattern": "^a\"\\\\$" }), &[r#""a\"\\""#], &[r#""a""#]),
        // A repeated key counts once.
        (
            json!({ "type": "object", "minProperties": 3, "additionalProperties": { "type": "null" } }),
            &[r#"{"a":null,"b":null,"c":null}"#, r#"{"a":null,"b":null,"c":null,"c2":null}"#],
            &[r#"{"a":null,"a":null,"a":null}"#, r#"{"a":null,"b":null}"#],
        ),
    ]);
}

#[test]
fn decimals_of_pydantic_are_held_to_their_digits() {
    check(&[
        (
            json!({ "type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$" }),
            &["\"1\"", "\"-0.50\"", "\"+.5\"", "\"12.\""],
            &["\"\"", "\".\"", "\"-\"", "\"1.2.3\"", "\"x\""],
        ),
        (
            json!({ "type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*(?:\d{0,3}|(?=[\d.]{1,6}0*$)\d{0,3}\.\d{0,2}0*$)" }),
            &["\"123\"", "\"123.45\"", "\"-1.5\"", "\"007.25\""],
            &["\"+\"", "\"123.4567\"", "\"abc\"", "\"12345\""],
        ),
        (
            json!({ "type": "string", "pattern": r"^(?=.*\d)(?=.*[a-z]).{4,}$" }),
            &["\"abc1\"", "\"1xxx\""],
            &["\"abcd\"", "\"1234\"", "\"a1\""],
        ),
    ]);
}

#[test]
fn unenforced_keys_are_named() {
    for (schema, key) in [
        (json!({ "type": "array", "items": { "type": "string" }, "uniqueItems": true }), "uniqueItems at #"),
        (
            json!({ "type": "object", "properties": { "a~/": { "type": "string", "pattern": "\\bword\\b" } } }),
            "pattern at #/properties/a~0~1",
        ),
        (json!({ "$ref": "https://example.org/other.json" }), "$ref at #"),
        (json!({ "not": { "multipleOf": 3 } }), "not at #/not"),
        (json!({ "type": "integer", "multipleOf": 7, "not": { "const": 14 } }), "multipleOf at #"),
    ] {
        assert_eq!(prepared(&schema).unenforced, [key], "{schema}");
    }
    let closed = json!({ "type": "array", "items": { "enum": [1, 2, 3] }, "uniqueItems": true });
    assert!(prepared(&closed).unenforced.is_empty());
}

#[test]
fn an_invalid_schema_is_an_error_that_names_the_key() {
    for (schema, words) in [
        (json!({ "type": "nonsense" }), &["type at #", "\"nonsense\"", "array"][..]),
        (json!({ "properties": { "a": { "minLength": -1 } } }), &["minLength at #/properties/a", "-1"]),
        (json!({ "type": "string", "pattern": "(" }), &["pattern at #", "\"(\""]),
        (json!({ "$ref": "#/nowhere" }), &["$ref at #", "#/nowhere"]),
        (json!({ "allOf": [{ "type": "string" }, { "type": "integer" }] }), &["no value"]),
        (json!({ "enum": [] }), &["no value"]),
        (json!({ "type": "object", "x-guidance": { "lenient": true } }), &["x-guidance", "lenient"]),
        (json!([]), &["the schema at #"]),
        // No value ends.
        (
            json!({ "type": "object", "properties": { "a": { "$ref": "#" } }, "required": ["a"] }),
            &["no value"],
        ),
    ] {
        let error = prepare_schema(&schema, &SchemaOptions::default()).unwrap_err().to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
        // A tool with this schema does not affect other tools.
        let tool = prepare_tool(&schema, &SchemaOptions::default()).unwrap();
        assert_eq!(tool.unenforced.len(), 1, "{tool:?}");
    }
    // A tool without parameters accepts none.
    let none = prepare_tool(&json!({}), &SchemaOptions::default()).unwrap();
    assert_eq!(none, prepared(&json!({ "type": "object", "properties": {} })));
}

/// The schema accepts the same texts as a part of another grammar.
#[test]
fn a_prepared_schema_may_be_part_of_a_grammar() {
    let bench = Bench::new();
    let one = prepared(
        &json!({ "type": "object", "properties": { "a": { "type": "integer" } }, "required": ["a"] }),
    );
    let two = prepared(&json!({ "type": "string", "pattern": "^b+$" }));
    let lark = format!(
        "start: \"<\" ({} | {}) \">\" x\nx: {}\n",
        one.expression(),
        two.expression(),
        two.expression()
    );
    let matcher = bench.compiler.compile(&Grammar::Lark(lark)).unwrap();
    for text in ["<{\"a\": 1}>\"b\"", "<\"bbb\">\"b\""] {
        assert!(bench.takes(&matcher, text), "{text}");
    }
    assert!(!bench.takes(&matcher, "<{}>\"b\"") && !bench.takes(&matcher, "<1>\"b\""));
}

#[test]
fn properties_come_in_any_order_if_requested() {
    let bench = Bench::new();
    let schema = json!({ "type": "object", "properties": { "a": { "type": "integer" }, "b": { "type": "object", "properties":
        { "x": {}, "y": {} } }, "c": { "type": "null" } }, "required": ["a", "c"] });
    let options = SchemaOptions { any_order: true, ..SchemaOptions::default() };
    let prepared = prepare_schema(&schema, &options).unwrap();
    let lark = format!("start: {}\n", prepared.expression());
    let matcher = bench.compiler.compile(&Grammar::Lark(lark)).unwrap();
    for text in [
        "{\"a\": 1, \"c\": null}",
        "{\"c\": null, \"b\": {\"y\": 1, \"x\": 2}, \"a\": 1}",
        "{\"b\": {}, \"c\": null, \"a\": 1}",
    ] {
        assert!(bench.takes(&matcher, text), "{text}");
    }
    for text in ["{\"a\": 1}", "{\"a\": 1, \"a\": 1, \"c\": null}", "{\"c\": null, \"d\": 1, \"a\": 1}", "{}"]
    {
        assert!(!bench.takes(&matcher, text), "{text}");
    }
    assert!(!bench.takes(&bench.matcher(&schema), "{\"c\": null, \"a\": 1}"));
}
