//! Values of a schema in JSON, as plain text, and in other languages' notations.

use serde_json::{Map, Value};

use super::lark::{Lark, LarkMember, WHITE, literal};
use crate::answer::kinds::Kinds;
use crate::{Result, SchemaOptions, prepare_schema, prepare_tool};

/// Models write the keys of a call's arguments in any order.
const ANY_ORDER: SchemaOptions = SchemaOptions { open_objects: false, any_order: true };

/// Maximum number of levels of nested values that are enforced in notations other than JSON. Deeper
/// values may be any.
const MAX_DEPTH: usize = 6;

/// Keys of a schema that do not restrict its values.
const ANNOTATIONS: [&str; 14] = [
    "title",
    "description",
    "default",
    "example",
    "examples",
    "$schema",
    "$defs",
    "definitions",
    "$comment",
    "deprecated",
    "readOnly",
    "writeOnly",
    "strict",
    "x-guidance",
];

/// The notation of values.
#[derive(Clone, Copy)]
pub(super) enum Notation {
    Python,
    /// Gemma's: keys without quotes, and this mark around strings.
    Quoted(&'static str),
}

/// An object schema with nothing but properties.
pub(super) struct PlainObject<'a> {
    properties: &'a Map<String, Value>,
    required: Vec<&'a str>,
    /// The schema of properties that are not listed; `None` if they are not allowed.
    additional: Option<&'a Value>,
}

impl<'a> PlainObject<'a> {
    /// Reads a schema; `None` if it has further restrictions.
    pub(super) fn of(schema: &'a Value) -> Option<PlainObject<'a>> {
        let keys = schema.as_object()?;
        let is_known = |key: &String| {
            matches!(key.as_str(), "type" | "properties" | "required" | "additionalProperties")
                || ANNOTATIONS.contains(&key.as_str())
        };
        let is_object = match keys.get("type") {
            None => true,
            Some(kind) => kind == "object",
        };
        if !is_object || !keys.keys().all(is_known) {
            return None;
        }
        let properties = keys.get("properties")?.as_object()?;
        let required = match keys.get("required") {
            None => Vec::new(),
            Some(required) => required.as_array()?.iter().map(Value::as_str).collect::<Option<Vec<_>>>()?,
        };
        if !required.iter().all(|key| properties.contains_key(*key)) {
            return None;
        }
        let additional = keys.get("additionalProperties").filter(|schema| **schema != Value::Bool(false));
        Some(PlainObject { properties, required, additional })
    }

    fn is_required(&self, key: &str) -> bool {
        self.required.contains(&key)
    }

    /// Names and schemas of properties, and true for required ones.
    pub(super) fn properties(&self) -> impl Iterator<Item = (&'a str, &'a Value, bool)> {
        self.properties.iter().map(|(key, schema)| (key.as_str(), schema, self.is_required(key)))
    }

    /// Returns true if unlisted properties are allowed.
    pub(super) fn is_open(&self) -> bool {
        self.additional.is_some()
    }

    /// Returns true if an object without properties is valid.
    pub(super) fn may_be_empty(&self) -> bool {
        self.required.is_empty()
    }
}

/// The schema that a reference names, if `schema` is nothing but a reference.
fn resolved<'a>(schema: &'a Value, root: &'a Value) -> &'a Value {
    let target = schema.get("$ref").and_then(Value::as_str).and_then(|target| target.strip_prefix('#'));
    let is_alone = schema
        .as_object()
        .is_some_and(|keys| keys.keys().all(|key| key == "$ref" || ANNOTATIONS.contains(&key.as_str())));
    match target.filter(|_| is_alone).and_then(|pointer| root.pointer(pointer)) {
        Some(found) => found,
        None => schema,
    }
}

impl Lark<'_> {
    /// Grammar of a tool's arguments in JSON, with keys in any order. Any object if the schema
    /// cannot be enforced.
    pub(super) fn arguments(&mut self, schema: &Value) -> Result<String> {
        Ok(self.prepared(prepare_tool(schema, &ANY_ORDER)?))
    }

    /// Grammar of a part of a tool's schema in JSON. Any value if it cannot be enforced.
    fn json_part(&mut self, schema: &Value, root: &Value) -> Result<String> {
        let mut part = resolved(schema, root).clone();
        if let Value::Object(keys) = &mut part {
            for definitions in ["$defs", "definitions"] {
                if let Some(found) = root.get(definitions) {
                    keys.insert(definitions.to_owned(), found.clone());
                }
            }
        }
        let prepared = match prepare_schema(&part, &ANY_ORDER) {
            Ok(prepared) => prepared,
            Err(error) => {
                let mut any = prepare_schema(&Value::Bool(true), &ANY_ORDER)?;
                any.unenforced.push(error.to_string());
                any
            }
        };
        Ok(self.prepared(prepared))
    }

    /// Grammar of a schema's value in this notation.
    pub(super) fn value(&mut self, notation: Notation, schema: &Value, root: &Value) -> String {
        self.value_part(notation, schema, root, 0)
    }

    fn value_part(&mut self, notation: Notation, schema: &Value, root: &Value, depth: usize) -> String {
        let schema = resolved(schema, root);
        if depth >= MAX_DEPTH {
            return self.any_value(notation);
        }
        let choices = match (schema.get("const"), schema.get("enum")) {
            (Some(value), _) => Some(std::slice::from_ref(value)),
            (None, Some(Value::Array(values))) => Some(values.as_slice()),
            (None, _) => None,
        };
        if let Some(choices) = choices {
            let choices: Vec<String> = choices.iter().map(|value| self.constant(notation, value)).collect();
            return self.rule(&choices.join(" | "));
        }
        if let Some(object) = PlainObject::of(schema) {
            return self.object(notation, &object, root, depth);
        }
        if let Some(items) = plain_items(schema) {
            let item = self.value_part(notation, items, root, depth + 1);
            return self.rule(&list(&item));
        }
        let kinds = Kinds::of(schema, root);
        if kinds == Kinds::ANY {
            return self.any_value(notation);
        }
        let mut alternatives = Vec::new();
        for kind in [Kinds::STRING, Kinds::INTEGER, Kinds::FRACTION, Kinds::BOOLEAN, Kinds::NULL] {
            if kinds.has(kind) {
                alternatives.push(self.scalar(notation, kind));
            }
        }
        if kinds.has(Kinds::ARRAY) {
            let item = self.any_value(notation);
            alternatives.push(list(&item));
        }
        if kinds.has(Kinds::OBJECT) {
            alternatives.push(self.any_object(notation));
        }
        self.rule(&alternatives.join(" | "))
    }

    /// Grammar of a value other than a list or an object.
    fn scalar(&mut self, notation: Notation, kind: Kinds) -> String {
        match (kind, notation) {
            (Kinds::STRING, Notation::Python) => {
                self.terminal(r#"/"([^"\\]|\\(?s:.))*"/ | /'([^'\\]|\\(?s:.))*'/"#)
            }
            (Kinds::STRING, Notation::Quoted(mark)) => format!("{} {}", self.marks(mark), self.until(mark)),
            (Kinds::INTEGER, _) => self.terminal("/-?(0|[1-9][0-9]{0,40})/"),
            (Kinds::FRACTION, _) => {
                self.terminal(r"/-?(0|[1-9][0-9]{0,40})(\.[0-9]{1,40})?([eE][-+]?[0-9]{1,4})?/")
            }
            (Kinds::BOOLEAN, Notation::Python) => r#"("True" | "False" | "true" | "false")"#.to_owned(),
            (Kinds::BOOLEAN, Notation::Quoted(_)) => r#"("true" | "false")"#.to_owned(),
            (_, Notation::Python) => r#"("None" | "null")"#.to_owned(),
            (_, Notation::Quoted(_)) => r#""null""#.to_owned(),
        }
    }

    /// Grammar of exactly this value.
    fn constant(&mut self, notation: Notation, value: &Value) -> String {
        match (value, notation) {
            (Value::String(text), Notation::Quoted(mark)) => self.marks(&format!("{mark}{text}{mark}")),
            (Value::String(text), Notation::Python) => {
                let text = text.replace('\\', "\\\\").replace('\n', "\\n");
                let double = literal(&format!("\"{}\"", text.replace('"', "\\\"")));
                let single = literal(&format!("'{}'", text.replace('\'', "\\'")));
                format!("({double} | {single})")
            }
            (Value::Bool(is_true), Notation::Python) => {
                if *is_true { r#"("True" | "true")"# } else { r#"("False" | "false")"# }.to_owned()
            }
            (Value::Null, Notation::Python) => r#"("None" | "null")"#.to_owned(),
            (value, _) => literal(&value.to_string()),
        }
    }

    fn object(&mut self, notation: Notation, object: &PlainObject<'_>, root: &Value, depth: usize) -> String {
        let mut members = Vec::new();
        for (key, schema, is_required) in object.properties() {
            let value = self.value_part(notation, schema, root, depth + 1);
            let key = match notation {
                Notation::Python => self.constant(notation, &Value::from(key)),
                Notation::Quoted(_) => literal(key),
            };
            members.push(LarkMember { rule: self.rule(&format!("{key} ws \":\" ws {value}")), is_required });
        }
        let extra = object.is_open().then(|| self.any_member(notation));
        let members = self.members(members, extra.as_deref(), "ws \",\" ws", "ws \"}\"");
        self.rule(&format!("\"{{\" ws {members}"))
    }

    fn any_value(&mut self, notation: Notation) -> String {
        self.recursive_rule("any value", |lark, any| {
            let mut alternatives: Vec<String> = [Kinds::STRING, Kinds::FRACTION, Kinds::BOOLEAN, Kinds::NULL]
                .into_iter()
                .map(|kind| lark.scalar(notation, kind))
                .collect();
            alternatives.push(list(any));
            alternatives.push(lark.any_object(notation));
            alternatives.join(" | ")
        })
    }

    fn any_object(&mut self, notation: Notation) -> String {
        self.recursive_rule("any object", |lark, _| {
            let member = lark.any_member(notation);
            format!("\"{{\" ws (\"}}\" | {member} (ws \",\" ws {member})* ws \"}}\")")
        })
    }

    fn any_member(&mut self, notation: Notation) -> String {
        self.recursive_rule("any member", |lark, _| {
            let key = match notation {
                Notation::Python => lark.scalar(notation, Kinds::STRING),
                Notation::Quoted(mark) => {
                    let plain = lark.terminal("/[A-Za-z0-9_.$-]{1,64}/");
                    format!("({plain} | {} {})", lark.marks(mark), lark.until(mark))
                }
            };
            let value = lark.any_value(notation);
            format!("{key} ws \":\" ws {value}")
        })
    }

    /// Grammar of a parameter's value as plain text, up to and including the mark after it.
    pub(super) fn plain_text(&mut self, schema: &Value, root: &Value, mark: &str) -> Result<String> {
        let kinds = Kinds::of(schema, root);
        if kinds.is_string_alone()
            && let Some(Value::Array(texts)) = resolved(schema, root).get("enum")
        {
            let texts: Vec<String> = texts.iter().filter_map(Value::as_str).map(literal).collect();
            return Ok(format!("\"\\n\"? ({}) \"\\n\"? {}", texts.join(" | "), self.marks(mark)));
        }
        if kinds.has(Kinds::STRING) {
            return Ok(self.until(mark));
        }
        let mut alternatives = vec![self.json_part(schema, root)?];
        // Models also write lists and objects in Python's notation, in which only plain schemas are
        // enforced.
        if (kinds.has(Kinds::ARRAY) || kinds.has(Kinds::OBJECT)) && is_plain(schema, root, 0) {
            alternatives.push(self.value(Notation::Python, schema, root));
        }
        // Templates that print values with `string` teach Python's words.
        if kinds.has(Kinds::BOOLEAN) {
            alternatives.push(r#""True" | "False""#.to_owned());
        }
        if kinds.has(Kinds::NULL) {
            alternatives.push(r#""None""#.to_owned());
        }
        Ok(format!("{WHITE} ({}) {WHITE} {}", alternatives.join(" | "), self.marks(mark)))
    }
}

/// Returns true if [`Lark::value`] enforces the whole schema.
fn is_plain(schema: &Value, root: &Value, depth: usize) -> bool {
    let schema = resolved(schema, root);
    if depth >= MAX_DEPTH {
        return false;
    }
    if let Some(object) = PlainObject::of(schema) {
        let is_free = object.additional.is_none_or(|schema| *schema == Value::Bool(true));
        return is_free && object.properties().all(|(_, part, _)| is_plain(part, root, depth + 1));
    }
    if let Some(items) = plain_items(schema) {
        return is_plain(items, root, depth + 1);
    }
    let is_known = |key: &String| {
        matches!(key.as_str(), "type" | "enum" | "const") || ANNOTATIONS.contains(&key.as_str())
    };
    match schema {
        Value::Object(keys) => keys.keys().all(is_known),
        Value::Bool(allows) => *allows,
        _ => false,
    }
}

/// The schema of an array's items, if the array's schema has no other restriction.
fn plain_items(schema: &Value) -> Option<&Value> {
    let keys = schema.as_object()?;
    let is_plain = |key: &String| key == "type" || key == "items" || ANNOTATIONS.contains(&key.as_str());
    (keys.get("type")? == "array" && keys.keys().all(is_plain)).then(|| keys.get("items"))?
}

fn list(item: &str) -> String {
    format!("\"[\" ws (\"]\" | {item} (ws \",\" ws {item})* ws \"]\")")
}
