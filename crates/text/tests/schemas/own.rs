//! Schemas that people write and no library generates.
#![allow(clippy::unwrap_used)] // The table is constant and valid.

use serde_json::{Value, json};

/// Schemas as people write them for tools, configuration and forms.
pub(super) fn own() -> Vec<(String, Value)> {
    let list = json!([
        { "type": "object", "properties": { "a": { "type": "string" }, "b": { "type": "integer" } }, "minProperties": 1 },
        { "type": "object", "properties": { "a": {}, "b": {}, "c": {} }, "minProperties": 2, "maxProperties": 2 },
        { "type": "object", "minProperties": 3, "additionalProperties": { "type": "null" } },
        { "type": "object", "minProperties": 2, "maxProperties": 4, "patternProperties": { "^[a-z]+$": { "type": "integer" } },
          "additionalProperties": false },
        { "type": "object", "patternProperties": { "^a": { "type": "integer" }, "z$": { "minimum": 5 } } },
        { "type": "object", "propertyNames": { "pattern": "^[a-c]{1,2}$" }, "additionalProperties": { "type": "boolean" } },
        { "type": "object", "propertyNames": { "enum": ["x", "y"] } },
        { "type": "object", "properties": { "kind": { "enum": ["a", "b"] } }, "required": ["kind"],
          "if": { "properties": { "kind": { "const": "a" } } },
          "then": { "properties": { "one": { "type": "integer" } }, "required": ["one"] },
          "else": { "properties": { "two": { "type": "string" } }, "required": ["two"] } },
        { "type": "object", "properties": { "card": { "type": "integer" }, "address": { "type": "string" } },
          "dependentRequired": { "card": ["address"] } },
        { "type": "object", "properties": { "card": { "type": "integer" } },
          "dependentSchemas": { "card": { "properties": { "code": { "type": "string" } }, "required": ["code"] } } },
        { "allOf": [{ "type": "object", "properties": { "a": { "type": "integer" } }, "required": ["a"] },
                    { "type": "object", "properties": { "b": { "type": "string" } } }] },
        { "$ref": "#/$defs/base", "properties": { "more": { "type": "boolean" } },
          "$defs": { "base": { "type": "object", "properties": { "id": { "type": "integer" } }, "required": ["id"] } } },
        { "oneOf": [{ "type": "integer" }, { "type": "number" }] },
        { "oneOf": [{ "required": ["a"] }, { "required": ["b"] }], "type": "object",
          "properties": { "a": { "type": "integer" }, "b": { "type": "integer" } } },
        { "anyOf": [{ "required": ["a"] }, { "required": ["b"] }], "type": "object",
          "properties": { "a": { "type": "integer" }, "b": { "type": "integer" } } },
        { "oneOf": [{ "multipleOf": 5, "type": "integer" }, { "minimum": 10, "type": "integer" }] },
        { "not": { "type": ["object", "array", "string"] } },
        { "type": "string", "not": { "enum": ["a", "b", ""] } },
        { "type": "string", "not": { "pattern": "^a" }, "maxLength": 4 },
        { "type": "object", "properties": { "a": { "not": {} }, "b": { "type": "integer" } } },
        { "type": "integer", "minimum": -5, "exclusiveMaximum": 1e1, "not": { "const": 3 } },
        { "type": "number", "minimum": 0.25, "maximum": 1.5 },
        { "type": "number", "exclusiveMinimum": -1, "exclusiveMaximum": 0 },
        { "type": "number", "multipleOf": 0.05, "maximum": 100 },
        { "type": "integer", "multipleOf": 7 },
        { "anyOf": [{ "type": "integer", "multipleOf": 60 }, { "type": "string", "maxLength": 3 }, { "type": "array" }] },
        { "type": "array", "items": { "enum": ["a", "b", "c"] }, "uniqueItems": true, "minItems": 2 },
        { "type": "array", "items": { "type": "boolean" }, "uniqueItems": true },
        { "type": "array", "items": { "type": "integer", "minimum": 1, "maximum": 5 }, "uniqueItems": true, "minItems": 3 },
        { "type": "array", "contains": { "const": "x" }, "items": { "type": "string", "maxLength": 2 }, "maxItems": 4 },
        { "type": "array", "contains": { "type": "integer" }, "minContains": 2, "maxContains": 3 },
        { "type": "array", "items": [{ "type": "string" }, { "type": "integer" }], "additionalItems": false },
        { "type": "array", "prefixItems": [{ "type": "string" }], "items": { "type": "null" }, "minItems": 2, "maxItems": 3 },
        { "definitions": { "node": { "type": "object", "properties": { "next": { "anyOf": [{ "$ref": "#/definitions/node" },
          { "type": "null" }] } }, "required": ["next"] } }, "$ref": "#/definitions/node" },
        { "$ref": "#/$defs/a", "$defs": { "a": { "type": "object", "properties": { "c": { "$ref": "#/$defs/a" } }, "allOf":
          [{ "$ref": "#/$defs/b" }] }, "b": { "type": "object", "properties": { "c": { "$ref": "#/$defs/b" }, "n": { "type": "integer" } } } } },
        { "enum": [null, true, 1, 2.5, "x", ["a", 1], { "k": "v" }] },
        { "const": { "a": [1, { "b": null }] } },
        { "type": ["string", "null"], "enum": ["a", null, 3] },
        { "type": "object", "properties": { "a": { "type": "object", "properties": {} } }, "unevaluatedProperties": false },
        { "type": "object", "allOf": [{ "properties": { "a": { "type": "null" } } }], "unevaluatedProperties": false },
        true,
        {},
        { "type": "string", "format": "no such format" },
        { "type": "object", "additionalProperties": true, "properties": { "a": { "const": 1 } }, "required": ["a", "z"] },
    ]);
    list.as_array()
        .unwrap()
        .iter()
        .enumerate()
        .map(|(n, schema)| (format!("own {n}"), schema.clone()))
        .collect()
}
