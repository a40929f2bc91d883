//! Resolution of `$ref` within its document.

use serde_json::Value;

/// The document, and the schemas in it that have names.
pub(super) struct Document<'a> {
    root: &'a Value,
    /// Schemas by their resolved `$id`.
    ids: Vec<(String, &'a Value)>,
    /// Schemas by `$anchor` and the `$id` of their resource.
    anchors: Vec<(String, String, &'a Value)>,
}

/// The target of a reference.
pub(super) enum Target<'a> {
    /// A schema of the document, and the `$id` that is the base of its own references.
    Here(&'a Value, String),
    /// A schema of another document, which is not fetched.
    Elsewhere,
    /// A missing schema of this document.
    Missing,
}

impl<'a> Document<'a> {
    pub(super) fn new(root: &'a Value) -> Document<'a> {
        let mut document = Document { root, ids: Vec::new(), anchors: Vec::new() };
        document.index(root, "");
        document
    }

    fn index(&mut self, value: &'a Value, base: &str) {
        let mut base = base.to_owned();
        if let Value::Object(object) = value {
            if let Some(id) = id_of(value) {
                match id.strip_prefix('#') {
                    // Draft 4 names parts this way.
                    Some(name) => self.anchors.push((base.clone(), name.to_owned(), value)),
                    None => {
                        base = joined(&base, id);
                        self.ids.push((base.clone(), value));
                    }
                }
            }
            for key in ["$anchor", "$dynamicAnchor"] {
                if let Some(name) = object.get(key).and_then(Value::as_str) {
                    self.anchors.push((base.clone(), name.to_owned(), value));
                }
            }
        }
        match value {
            // Values are not schemas, even if they look alike.
            Value::Object(object) => {
                let schemas = object
                    .iter()
                    .filter(|(key, _)| !["enum", "const", "default", "examples"].contains(&key.as_str()));
                schemas.for_each(|(_, value)| self.index(value, &base));
            }
            Value::Array(items) => items.iter().for_each(|item| self.index(item, &base)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    /// The `$id` that is the base of references in a schema.
    pub(super) fn base(&self, schema: &Value, outer: &str) -> String {
        match id_of(schema).filter(|id| !id.starts_with('#')) {
            Some(id) => joined(outer, id),
            None => outer.to_owned(),
        }
    }

    /// Resolves a reference from a schema with this base.
    pub(super) fn target(&self, reference: &str, base: &str) -> Target<'a> {
        let (address, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let fragment = percent_decoded(fragment);
        let wanted = if address.is_empty() { base.to_owned() } else { joined(base, address) };
        let resource =
            match self.ids.iter().find(|(id, _)| *id == wanted || (!address.is_empty() && id == address)) {
                Some((_, resource)) => Some(*resource),
                None if address.is_empty() => Some(self.root),
                None => None,
            };
        let Some(resource) = resource else { return Target::Elsewhere };
        if fragment.is_empty() || fragment == "/" && self.root.get("").is_none() {
            return Target::Here(resource, wanted);
        }
        let found = match fragment.starts_with('/') {
            // Many documents give parts an `$id` and still resolve from the root.
            true => resource.pointer(&fragment).or_else(|| self.root.pointer(&fragment)),
            false => {
                let named = |exact: bool| {
                    let mut anchors = self.anchors.iter();
                    anchors.find(|(id, name, _)| *name == fragment && (!exact || *id == wanted))
                };
                named(true).or_else(|| named(false)).map(|(_, _, value)| *value)
            }
        };
        found.map_or(Target::Missing, |value| Target::Here(value, wanted))
    }
}

fn id_of(schema: &Value) -> Option<&str> {
    let object = schema.as_object()?;
    // A property may be called `id`; its value is a schema then.
    object.get("$id").or_else(|| object.get("id"))?.as_str()
}

/// A reference relative to an address, in the forms that schemas use.
fn joined(base: &str, reference: &str) -> String {
    let reference = reference.trim_end_matches('#');
    let has_scheme = reference.split_once(':').is_some_and(|(scheme, _)| !scheme.contains('/'));
    if has_scheme || base.is_empty() {
        return reference.to_owned();
    }
    let authority = base.find("://").map_or(0, |at| at + 3);
    let path = base[authority..].find('/').map_or(base.len(), |at| authority + at);
    if reference.starts_with('/') {
        return format!("{}{reference}", &base[..path]);
    }
    let folder = base[path..].rfind('/').map_or(base.len(), |at| path + at);
    format!("{}/{reference}", &base[..folder])
}

fn percent_decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let [first, after @ ..] = rest {
        let code = (*first == b'%').then(|| std::str::from_utf8(after.get(..2)?).ok()).flatten();
        match code.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
