//! JSON types that a schema allows, and parameters written as plain text.

use serde_json::Value;

use super::values::{Dialect, Parsed};

/// Maximum number of nested references that are resolved.
const MAX_DEPTH: usize = 16;

/// A set of JSON types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kinds(u8);

impl Kinds {
    pub(super) const STRING: Kinds = Kinds(1);
    pub(super) const INTEGER: Kinds = Kinds(2);
    /// Numbers that are not integers.
    pub(super) const FRACTION: Kinds = Kinds(4);
    pub(super) const BOOLEAN: Kinds = Kinds(8);
    pub(super) const NULL: Kinds = Kinds(16);
    pub(super) const ARRAY: Kinds = Kinds(32);
    pub(super) const OBJECT: Kinds = Kinds(64);
    pub(super) const ANY: Kinds = Kinds(127);

    /// Returns true if all types of `other` are in the set.
    pub(super) fn has(self, other: Kinds) -> bool {
        self.0 & other.0 == other.0
    }

    fn and(self, other: Kinds) -> Kinds {
        Kinds(self.0 & other.0)
    }

    fn or(self, other: Kinds) -> Kinds {
        Kinds(self.0 | other.0)
    }

    fn named(name: &str) -> Kinds {
        match name {
            "string" => Kinds::STRING,
            "integer" => Kinds::INTEGER,
            "number" => Kinds::INTEGER.or(Kinds::FRACTION),
            "boolean" => Kinds::BOOLEAN,
            "null" => Kinds::NULL,
            "array" => Kinds::ARRAY,
            "object" => Kinds::OBJECT,
            _ => Kinds::ANY,
        }
    }

    /// The type of a value.
    pub(super) fn of_value(value: &Value) -> Kinds {
        match value {
            Value::Null => Kinds::NULL,
            Value::Bool(_) => Kinds::BOOLEAN,
            Value::Number(number) if number.is_f64() => Kinds::FRACTION,
            Value::Number(_) => Kinds::INTEGER,
            Value::String(_) => Kinds::STRING,
            Value::Array(_) => Kinds::ARRAY,
            Value::Object(_) => Kinds::OBJECT,
        }
    }

    /// Types that `schema` allows, with references resolved in `root`. Unknown restrictions are
    /// ignored.
    pub(super) fn of(schema: &Value, root: &Value) -> Kinds {
        Kinds::nested(schema, root, 0)
    }

    fn nested(schema: &Value, root: &Value, depth: usize) -> Kinds {
        let Value::Object(keys) = schema else { return Kinds::ANY };
        if depth > MAX_DEPTH {
            return Kinds::ANY;
        }
        let mut kinds = match keys.get("type") {
            Some(Value::String(name)) => Kinds::named(name),
            Some(Value::Array(names)) => {
                let names = names.iter().filter_map(Value::as_str).map(Kinds::named);
                names.fold(Kinds(0), Kinds::or)
            }
            _ => Kinds::ANY,
        };
        if let Some(value) = keys.get("const") {
            kinds = kinds.and(Kinds::of_value(value));
        }
        if let Some(Value::Array(values)) = keys.get("enum") {
            kinds = kinds.and(values.iter().map(Kinds::of_value).fold(Kinds(0), Kinds::or));
        }
        if let Some(target) = keys.get("$ref").and_then(Value::as_str) {
            let target = target.strip_prefix('#').and_then(|pointer| root.pointer(pointer));
            kinds = kinds.and(target.map_or(Kinds::ANY, |target| Kinds::nested(target, root, depth + 1)));
        }
        for key in ["anyOf", "oneOf"] {
            if let Some(Value::Array(schemas)) = keys.get(key) {
                let of = schemas.iter().map(|schema| Kinds::nested(schema, root, depth + 1));
                kinds = kinds.and(of.fold(Kinds(0), Kinds::or));
            }
        }
        if let Some(Value::Array(schemas)) = keys.get("allOf") {
            let of = schemas.iter().map(|schema| Kinds::nested(schema, root, depth + 1));
            kinds = of.fold(kinds, Kinds::and);
        }
        kinds
    }

    /// Returns true if text without quotes is always a string.
    pub(super) fn is_string_alone(self) -> bool {
        self == Kinds::STRING
    }

    /// JSON of a value that a model wrote as plain `text`, in which a string has no quotes.
    /// Python's words are accepted, since templates that print values with `string` teach them.
    pub(super) fn json_of_text(self, text: &str) -> String {
        if self.is_string_alone() {
            return Value::from(text).to_string();
        }
        let trimmed = text.trim();
        // A number keeps its digits as written.
        let as_written = serde_json::from_str::<Value>(trimmed).ok().map(|value| (value, trimmed.to_owned()));
        let parsed = as_written.or_else(|| {
            let value = python_value(trimmed)?;
            let json = value.to_string();
            Some((value, json))
        });
        match parsed {
            Some((_, json)) if self == Kinds::ANY => json,
            // A value that may be a string is one, unless it has another allowed type.
            Some((Value::String(_), _)) if self.has(Kinds::STRING) => Value::from(text).to_string(),
            Some((value, json)) if !self.has(Kinds::STRING) || self.has(Kinds::of_value(&value)) => json,
            Some(_) | None => Value::from(text).to_string(),
        }
    }
}

/// A Python literal that spans the whole text.
fn python_value(text: &str) -> Option<Value> {
    match text.as_bytes().first()? {
        b'T' | b'F' | b'N' | b'[' | b'{' | b'\'' => {}
        _ => return None,
    }
    // A word ends only at another character.
    match Dialect::Python.value(&format!("{text} "), 0) {
        Parsed::Value(value, end) if end == text.len() => Some(value),
        Parsed::Value(..) | Parsed::Open | Parsed::Wrong => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_types_that_a_schema_allows() {
        let root = json!({ "$defs": { "n": { "type": "number" }, "loop": { "$ref": "#/$defs/loop" } } });
        for (schema, kinds) in [
            (json!({ "type": "string" }), Kinds::STRING),
            (json!({ "type": ["string", "null"] }), Kinds::STRING.or(Kinds::NULL)),
            (json!({ "anyOf": [{ "type": "integer" }, { "type": "null" }] }), Kinds::INTEGER.or(Kinds::NULL)),
            (json!({ "$ref": "#/$defs/n" }), Kinds::INTEGER.or(Kinds::FRACTION)),
            (json!({ "$ref": "#/$defs/loop" }), Kinds::ANY),
            (json!({ "enum": ["a", 1] }), Kinds::STRING.or(Kinds::INTEGER)),
            (json!({ "const": null }), Kinds::NULL),
            (json!({ "allOf": [{ "type": ["string", "null"] }, { "type": "string" }] }), Kinds::STRING),
            (json!(true), Kinds::ANY),
            (json!({}), Kinds::ANY),
        ] {
            assert_eq!(Kinds::of(&schema, &root), kinds, "{schema}");
        }
    }

    #[test]
    fn plain_text_becomes_a_value_that_the_schema_allows() {
        let (string, integer, null) = (Kinds::STRING, Kinds::INTEGER, Kinds::NULL);
        for (kinds, text, json) in [
            (string, "5", "\"5\""),
            (string, " \"x\" ", "\" \\\"x\\\" \""),
            (string.or(null), "hello", "\"hello\""),
            (string.or(null), "null", "null"),
            (string.or(null), "None", "null"),
            (string.or(null), "5", "\"5\""),
            (string.or(integer), "5", "5"),
            (integer, " -0 ", "-0"),
            (integer, "12345678901234567890123", "12345678901234567890123"),
            (Kinds::BOOLEAN, "True", "true"),
            (Kinds::BOOLEAN, "false", "false"),
            (Kinds::ARRAY, "['a', 1]", "[\"a\",1]"),
            (Kinds::ARRAY, "[1, 2]", "[1, 2]"),
            (integer, "many", "\"many\""),
            (Kinds::ANY, "12", "12"),
            (Kinds::ANY, "a b", "\"a b\""),
        ] {
            assert_eq!(kinds.json_of_text(text), json, "{kinds:?} {text}");
        }
    }
}
