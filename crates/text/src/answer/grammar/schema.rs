//! Values of a schema in JSON, as plain text, and in the notations of other languages.

use serde_json::{Map, Value};

use super::lark::{Lark, Member, WHITE, literal};
use crate::answer::kinds::Kinds;
use crate::{Result, SchemaOptions, prepare_schema, prepare_tool};

/// Calls have their keys in any order.
const ANY_ORDER: SchemaOptions = SchemaOptions { open_objects: false, any_order: true };

/// Values within values that are held to their schemas in notations other than JSON. Deeper ones may
/// be any.
const MAX_DEPTH: usize = 6;

/// Keys of a schema that say nothing about which values it allows.
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

/// How values are written.
#[derive(Clone, Copy)]
pub(super) enum Notation {
    Python,
    /// Gemma's: keys without quotes, strings between this mark.
    Quoted(&'static str),
}

/// An object that only lists its properties.
pub(super) struct PlainObject<'a> {
    properties: &'a Map<String, Value>,
    required: Vec<&'a str>,
    /// The schema of properties that are not listed; `None`: there are none.
    additional: Option<&'a Value>,
}

impl<'a> PlainObject<'a> {
    /// `None`: the schema says more than that.
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

    /// Names and schemas, and whether each is required.
    pub(super) fn properties(&self) -> impl Iterator<Item = (&'a str, &'a Value, bool)> {
        self.properties.iter().map(|(key, schema)| (key.as_str(), schema, self.is_required(key)))
    }

    /// Whether properties may come that are not listed.
    pub(super) fn is_open(&self) -> bool {
        self.additional.is_some()
    }

    /// Whether an object without properties is one of these.
    pub(super) fn may_be_empty(&self) -> bool {
        self.required.is_empty()
    }
}

/// The schema that a reference names, if that is all that `schema` says.
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
    /// JSON of a tool's arguments, with keys in any order. Any object where the schema cannot be followed.
    pub(super) fn arguments(&mut self, schema: &Value) -> Result<String> {
        Ok(self.prepared(prepare_tool(schema, &ANY_ORDER)?))
    }

    /// JSON of a part of a tool's schema. Any value where it cannot be followed.
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

    /// A value of a schema in this notation.
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

    /// A value that is neither a list nor an object.
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

    /// Exactly this value.
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
            members.push(Member { rule: self.rule(&format!("{key} ws \":\" ws {value}")), is_required });
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

    /// A parameter's value as plain text, up to and with the mark after it.
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
        // Models write lists and objects in Python's notation too, which holds plain schemas only.
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

/// Whether a schema says nothing that [`Lark::value`] does not hold values to.
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

/// The schema of an array's items, if the array's schema says nothing else.
fn plain_items(schema: &Value) -> Option<&Value> {
    let keys = schema.as_object()?;
    let is_plain = |key: &String| key == "type" || key == "items" || ANNOTATIONS.contains(&key.as_str());
    (keys.get("type")? == "array" && keys.keys().all(is_plain)).then(|| keys.get("items"))?
}

fn list(item: &str) -> String {
    format!("\"[\" ws (\"]\" | {item} (ws \",\" ws {item})* ws \"]\")")
}
