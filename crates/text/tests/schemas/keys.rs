//! The effect of each key of a schema, by a text that it allows and one that it forbids; the
//! documentation must agree.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.

use std::collections::BTreeSet;

use ingle_text::{SchemaOptions, prepare_schema};
use serde_json::{Value, json};

use super::{Bench, prepared};

/// Names in a row of the table in the documentation.
fn documented(title: &str) -> BTreeSet<String> {
    let page = include_str!("../../../../docs/server.md");
    let line = page.lines().find(|line| line.starts_with(&format!("| **{title}**"))).unwrap();
    line.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The table of keys in the documentation is true: an enforced key allows one text and forbids
/// another, and an ignored key allows all JSON.
#[test]
fn the_documentation_lists_the_effect_of_each_key() {
    let cases = keys();
    let bench = Bench::new();
    let mut seen: BTreeSet<String> = BTreeSet::new();
    for (key, schema, good, bad) in cases {
        assert!(
            schema.to_string().contains(&format!("\"{}\"", key.trim_start_matches("x-guidance."))),
            "{key}: {schema}"
        );
        let matcher = bench.matcher(&schema);
        assert!(bench.takes(&matcher, good), "{key}: {good} should be let through by {schema}");
        assert!(!bench.takes(&matcher, bad), "{key}: {bad} should not be let through by {schema}");
        assert!(prepared(&schema).unenforced.is_empty(), "{key}");
        seen.insert(key.to_owned());
    }
    let enforced = documented("enforced").union(&documented("enforced in part")).cloned().collect();
    assert_eq!(seen, enforced);
    let any = prepared(&json!({}));
    for key in documented("ignored") {
        for value in [json!("x"), json!(true), json!({ "a": { "type": "null" } })] {
            assert_eq!(prepared(&json!({ &key: value })), any, "{key}");
        }
    }
    for key in documented("refused") {
        let option = key.trim_start_matches("x-guidance.");
        assert!(
            prepare_schema(&json!({ "x-guidance": { option: true } }), &SchemaOptions::default()).is_err(),
            "{key}"
        );
    }
    for name in documented("formats enforced") {
        assert!(
            !bench.takes(&bench.matcher(&json!({ "type": "string", "format": name })), "\" \""),
            "{name}"
        );
    }
    for name in [
        "path",
        "password",
        "binary",
        "byte",
        "uri-reference",
        "iri",
        "regex",
        "json-pointer",
        "url",
        "jwt",
        "ulid",
        "phone",
        "",
    ] {
        let schema = json!({ "type": "string", "format": name });
        assert_eq!(prepared(&schema), prepared(&json!({ "type": "string" })), "{name}");
    }
}

/// A key, a schema with it, a text that the schema allows, and one that only this key forbids.
type KeyCase = (&'static str, Value, &'static str, &'static str);

fn string() -> Value {
    json!({ "type": "string" })
}

fn object(key: &str, value: Value) -> Value {
    json!({ "type": "object", key: value })
}

fn list(key: &str, value: Value) -> Value {
    json!({ "type": "array", key: value })
}

fn list_of(key: &str, value: Value, more: Value) -> Value {
    let mut schema = list(key, value);
    schema.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    schema
}

/// Cases of all keys.
fn keys() -> Vec<KeyCase> {
    [keys_of_references(), first_keys(), last_keys(), keys_of_guidance()].concat()
}

/// Cases of the keys that begin with `$`.
fn keys_of_references() -> Vec<KeyCase> {
    vec![
        (
            "$anchor",
            json!({ "$ref": "#x", "$defs": { "a": { "$anchor": "x", "type": "string" } } }),
            "\"\"",
            "1",
        ),
        ("$defs", json!({ "$ref": "#/$defs/a", "$defs": { "a": string() } }), "\"\"", "1"),
        (
            "$dynamicAnchor",
            json!({ "$ref": "#x", "$defs": { "a": { "$dynamicAnchor": "x", "type": "string" } } }),
            "\"\"",
            "1",
        ),
        ("$dynamicRef", json!({ "$dynamicRef": "#/$defs/a", "$defs": { "a": string() } }), "\"\"", "1"),
        (
            "$id",
            json!({ "$ref": "urn:x", "$defs": { "a": { "$id": "urn:x", "type": "string" } } }),
            "\"\"",
            "1",
        ),
        ("$recursiveRef", list("items", json!({ "$recursiveRef": "#" })), "[[]]", "[1]"),
        ("$ref", json!({ "$ref": "#/$defs/a", "$defs": { "a": string() } }), "\"\"", "1"),
    ]
}

/// Cases of the first half of the other keys, in alphabetical order.
fn first_keys() -> Vec<KeyCase> {
    let one_or_list =
        json!({ "if": { "type": "integer" }, "then": { "minimum": 5 }, "else": { "type": "array" } });
    vec![
        (
            "additionalItems",
            list_of("items", json!([true]), json!({ "additionalItems": { "type": "null" } })),
            "[1, null]",
            "[1, 2]",
        ),
        (
            "additionalProperties",
            object("additionalProperties", json!({ "type": "null" })),
            "{\"a\": null}",
            "{\"a\": 1}",
        ),
        ("allOf", json!({ "allOf": [{ "minimum": 2 }, { "type": "integer" }] }), "2", "1"),
        ("anyOf", json!({ "anyOf": [{ "type": "null" }, { "type": "boolean" }] }), "true", "1"),
        ("const", json!({ "const": "a" }), "\"a\"", "\"b\""),
        ("contains", list("contains", json!({ "const": 1 })), "[2, 1]", "[2]"),
        ("definitions", json!({ "$ref": "#/definitions/a", "definitions": { "a": string() } }), "\"\"", "1"),
        (
            "dependencies",
            json!({ "type": "object", "properties": { "a": {}, "b": {} }, "dependencies": { "a": ["b"] } }),
            "{\"a\": 1, \"b\": 2}",
            "{\"a\": 1}",
        ),
        (
            "dependentRequired",
            json!({ "type": "object", "properties": { "a": {}, "b": {} }, "dependentRequired": { "a": ["b"] } }),
            "{\"b\": 2}",
            "{\"a\": 1}",
        ),
        (
            "dependentSchemas",
            json!({ "type": "object", "properties": { "a": {}, "b": {} },
            "dependentSchemas": { "a": { "required": ["b"] } } }),
            "{\"a\": 1, \"b\": 2}",
            "{\"a\": 1}",
        ),
        ("else", one_or_list.clone(), "[]", "\"\""),
        ("enum", json!({ "enum": [1, "a"] }), "1", "2"),
        ("exclusiveMaximum", json!({ "type": "integer", "exclusiveMaximum": 3 }), "2", "3"),
        ("exclusiveMinimum", json!({ "type": "integer", "exclusiveMinimum": 3 }), "4", "3"),
        ("format", json!({ "type": "string", "format": "date" }), "\"2024-02-29\"", "\"2024-02-30\""),
        ("if", one_or_list.clone(), "5", "\"\""),
        ("items", list("items", json!({ "type": "null" })), "[null]", "[1]"),
        (
            "maxContains",
            list_of("contains", json!({ "const": 1 }), json!({ "maxContains": 1 })),
            "[2, 1]",
            "[1, 1]",
        ),
        ("maximum", json!({ "type": "number", "maximum": 1.5 }), "1.5", "1.6"),
        ("maxItems", list("maxItems", json!(1)), "[1]", "[1, 2]"),
        ("maxLength", json!({ "type": "string", "maxLength": 1 }), "\"a\"", "\"ab\""),
    ]
}

/// Cases of the second half of the other keys.
fn last_keys() -> Vec<KeyCase> {
    let one_or_list =
        json!({ "if": { "type": "integer" }, "then": { "minimum": 5 }, "else": { "type": "array" } });
    vec![
        ("maxProperties", object("maxProperties", json!(1)), "{\"a\": 1}", "{\"a\": 1, \"b\": 1}"),
        (
            "minContains",
            list_of("contains", json!({ "const": 1 }), json!({ "minContains": 2 })),
            "[1, 1]",
            "[1]",
        ),
        ("minimum", json!({ "type": "number", "minimum": -1.5 }), "-1.5", "-1.6"),
        ("minItems", list("minItems", json!(1)), "[1]", "[]"),
        ("minLength", json!({ "type": "string", "minLength": 1 }), "\"a\"", "\"\""),
        ("minProperties", object("minProperties", json!(1)), "{\"a\": 1}", "{}"),
        ("multipleOf", json!({ "type": "integer", "multipleOf": 6 }), "12", "13"),
        ("not", json!({ "type": "string", "not": { "const": "a" } }), "\"b\"", "\"a\""),
        ("nullable", json!({ "type": "string", "nullable": true }), "null", "1"),
        ("oneOf", json!({ "oneOf": [{ "type": "integer" }, { "type": "number" }] }), "1.5", "1"),
        ("pattern", json!({ "type": "string", "pattern": "^a" }), "\"ab\"", "\"b\""),
        (
            "patternProperties",
            object("patternProperties", json!({ "^a": { "type": "null" } })),
            "{\"a\": null}",
            "{\"a\": 1}",
        ),
        ("prefixItems", list("prefixItems", json!([{ "type": "null" }])), "[null]", "[1]"),
        (
            "properties",
            object("properties", json!({ "a": { "type": "null" } })),
            "{\"a\": null}",
            "{\"a\": 1}",
        ),
        ("propertyNames", object("propertyNames", json!({ "maxLength": 1 })), "{\"a\": 1}", "{\"ab\": 1}"),
        ("required", object("required", json!(["a"])), "{\"a\": 1}", "{}"),
        ("then", one_or_list, "5", "4"),
        ("type", json!({ "type": ["integer", "null"] }), "1", "\"\""),
        (
            "unevaluatedItems",
            list_of("prefixItems", json!([true]), json!({ "unevaluatedItems": { "type": "null" } })),
            "[1, null]",
            "[1, 2]",
        ),
        (
            "unevaluatedProperties",
            json!({ "type": "object", "allOf": [{ "properties": { "a": {} } }],
            "unevaluatedProperties": { "type": "null" } }),
            "{\"a\": 1, \"b\": null}",
            "{\"a\": 1, \"b\": 1}",
        ),
        (
            "uniqueItems",
            list_of("items", json!({ "enum": [1, 2] }), json!({ "uniqueItems": true })),
            "[2, 1]",
            "[1, 1]",
        ),
    ]
}

/// Cases of the options in `x-guidance`.
fn keys_of_guidance() -> Vec<KeyCase> {
    vec![
        (
            "x-guidance.item_separator",
            json!({ "type": "array", "x-guidance": { "item_separator": ";" } }),
            "[1;2]",
            "[1,2]",
        ),
        (
            "x-guidance.key_separator",
            json!({ "type": "object", "x-guidance": { "key_separator": " = " } }),
            "{\"a\" = 1}",
            "{\"a\": 1}",
        ),
        (
            "x-guidance.open_objects",
            json!({ "type": "object", "properties": { "a": {} }, "required": ["a"], "x-guidance": { "open_objects": true } }),
            "{\"a\": 1, \"b\": 1}",
            "{\"b\": 1}",
        ),
        (
            "x-guidance.whitespace_flexible",
            json!({ "type": "array", "x-guidance": { "whitespace_flexible": false } }),
            "[1,2]",
            "[1, 2]",
        ),
        (
            "x-guidance.whitespace_pattern",
            json!({ "type": "array", "x-guidance": { "whitespace_pattern": "  " } }),
            "[1,  2]",
            "[1, 2]",
        ),
    ]
}
