//! Conversion of a user's schema to [`Node`]s.

use std::collections::{BTreeSet, HashMap, VecDeque};

use serde_json::{Map, Value};

use super::decimal::Decimal;
use super::effort::Effort;
use super::node::{Bound, Contains, Id, Node, Types};
use super::pattern::PatternError;
use super::reference::{Document, Target};
use super::rx::Rx;
use super::{format, pattern};

/// Maximum number of nodes of one schema, with those of negations.
const MAX_NODES: usize = 50_000;
/// Maximum number of properties of one object, and values of one `enum`.
const MAX_LISTED: usize = 5_000;
/// Largest count that llguidance reads.
const MAX_COUNT: usize = i32::MAX as usize;
/// Maximum number of names of properties that are matched with patterns, for one object.
const MAX_MATCHED: usize = 20_000;
/// Maximum number of branches of a `oneOf` that are compared with each other.
const MAX_BRANCHES: usize = 150;

/// Nodes of a schema; the first is its root.
pub(super) struct Nodes {
    pub(super) nodes: Vec<Node>,
    /// Keys that are not enforced, with their paths.
    pub(super) unenforced: BTreeSet<(&'static str, String)>,
}

/// Parses a schema. With `is_open`, objects that list properties may have others.
///
/// # Errors
/// A key has an invalid value, the target of a reference is missing, or the schema is too large.
pub(super) fn nodes(schema: &Value, is_open: bool, effort: Effort) -> Result<Nodes, String> {
    let mut parser = Parser {
        document: Document::new(schema),
        is_open,
        effort,
        nodes: Vec::new(),
        unenforced: BTreeSet::new(),
        seen: HashMap::new(),
        pending: VecDeque::new(),
        choices: Vec::new(),
        negations: HashMap::new(),
        pending_negations: VecDeque::new(),
    };
    parser.id(schema, "", "#");
    while let Some((id, schema, base, place)) = parser.pending.pop_front() {
        parser.nodes[id] = parser.node(schema, &base, &place)?;
        if parser.nodes.len() > MAX_NODES {
            return Err(format!("it has over {MAX_NODES} parts"));
        }
    }
    for (id, branches) in std::mem::take(&mut parser.choices) {
        let apart = branches.iter().map(|branch| parser.apart(*branch, &branches)).collect();
        parser.nodes[id].any.push(apart);
    }
    while let Some((id, negation, key)) = parser.pending_negations.pop_front() {
        parser.nodes[negation] = parser.negated(id, key);
        if parser.nodes.len() > MAX_NODES {
            return Err(format!("with its negations it has over {MAX_NODES} parts"));
        }
    }
    Ok(Nodes { nodes: parser.nodes, unenforced: parser.unenforced })
}

pub(super) struct Parser<'a> {
    document: Document<'a>,
    pub(super) is_open: bool,
    pub(super) effort: Effort,
    pub(super) nodes: Vec<Node>,
    unenforced: BTreeSet<(&'static str, String)>,
    /// Nodes by the address of their schema in the document, and its base.
    seen: HashMap<(*const Value, String), Id>,
    pending: VecDeque<(Id, &'a Value, String, String)>,
    /// Nodes with the branches of their `oneOf`.
    choices: Vec<(Id, Vec<Id>)>,
    negations: HashMap<Id, Id>,
    pending_negations: VecDeque<(Id, Id, &'static str)>,
}

/// One schema that is being parsed.
struct Reader<'a, 'r> {
    object: &'a Map<String, Value>,
    base: &'r str,
    place: &'r str,
}

impl<'a> Reader<'a, '_> {
    /// The value of a key. Null counts as missing, since schema generators write it for unset keys.
    fn get(&self, key: &str) -> Option<&'a Value> {
        self.object.get(key).filter(|value| !value.is_null())
    }

    fn wrong(&self, key: &str, expected: &str) -> String {
        let mut found = self.object.get(key).map(Value::to_string).unwrap_or_default();
        if found.chars().count() > 100 {
            found = found.chars().take(100).chain("…".chars()).collect();
        }
        format!("{key} at {} is {found}, expected {expected}", self.place)
    }

    /// A count, which may be written as 2.0.
    fn count(&self, key: &str) -> Result<Option<usize>, String> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let number = value.as_u64().or_else(|| {
            let number =
                value.as_f64().filter(|n| n.fract() == 0.0 && (0.0..=u64::MAX as f64).contains(n))?;
            Some(number as u64)
        });
        let number = number.ok_or_else(|| self.wrong(key, "a whole number of at least 0"))?;
        match usize::try_from(number).ok().filter(|number| *number <= MAX_COUNT) {
            Some(number) => Ok(Some(number)),
            // No answer is that long.
            None if key.starts_with("max") => Ok(None),
            None => Err(self.wrong(key, &format!("at most {MAX_COUNT}"))),
        }
    }

    fn object(&self, key: &str) -> Result<Option<&'a Map<String, Value>>, String> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let object = value.as_object().ok_or_else(|| self.wrong(key, "an object"))?;
        self.limited(key, object.len())?;
        Ok(Some(object))
    }

    fn list(&self, key: &str) -> Result<Option<&'a Vec<Value>>, String> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let list = value.as_array().ok_or_else(|| self.wrong(key, "a list"))?;
        self.limited(key, list.len())?;
        Ok(Some(list))
    }

    fn limited(&self, key: &str, n: usize) -> Result<(), String> {
        match n {
            n if n > MAX_LISTED => {
                Err(format!("{key} at {} has {n} entries, expected at most {MAX_LISTED}", self.place))
            }
            _ => Ok(()),
        }
    }

    fn decimal(&self, key: &str) -> Result<Option<Decimal>, String> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let number = value.as_number().and_then(Decimal::of);
        number.map(Some).ok_or_else(|| self.wrong(key, "a number of at most 400 digits"))
    }

    fn names(&self, key: &str, value: &Value) -> Result<Vec<String>, String> {
        self.limited(key, value.as_array().map_or(0, Vec::len))?;
        let names =
            value.as_array().map(|names| names.iter().map(|name| name.as_str().map(str::to_owned)).collect());
        names.flatten().ok_or_else(|| self.wrong(key, "a list of names"))
    }
}

impl<'a> Parser<'a> {
    /// The node of a schema, parsed now or later.
    fn id(&mut self, schema: &'a Value, base: &str, place: &str) -> Id {
        let base = self.document.base(schema, base);
        if let Some(id) = self.seen.get(&(std::ptr::from_ref(schema), base.clone())) {
            return *id;
        }
        let id = self.add(Node::at(place));
        self.seen.insert((std::ptr::from_ref(schema), base.clone()), id);
        self.pending.push_back((id, schema, base, place.to_owned()));
        id
    }

    pub(super) fn add(&mut self, node: Node) -> Id {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    pub(super) fn report(&mut self, key: &'static str, place: &str) {
        self.unenforced.insert((key, place.to_owned()));
    }

    /// The negation of a node, made later.
    pub(super) fn negation(&mut self, id: Id, key: &'static str) -> Id {
        if let Some(negation) = self.negations.get(&id) {
            return *negation;
        }
        let place = self.nodes[id].place.clone();
        let negation = self.add(Node::at(&place));
        self.negations.insert(id, negation);
        self.negations.insert(negation, id);
        self.pending_negations.push_back((id, negation, key));
        negation
    }

    /// A branch of a `oneOf` without the values of another branch.
    fn apart(&mut self, branch: Id, branches: &[Id]) -> Id {
        if branches.len() > MAX_BRANCHES {
            let place = self.nodes[branch].place.clone();
            self.report("oneOf", &place);
            return branch;
        }
        let others = branches.iter().copied().filter(|other| *other != branch);
        let overlaps: Vec<Id> = others.filter(|other| !self.is_apart(branch, *other)).collect();
        let n_same = branches.iter().filter(|other| **other == branch).count();
        let place = self.nodes[branch].place.clone();
        if n_same > 1 {
            return self.add(Node::of_types(Types::NONE, &place));
        }
        if overlaps.is_empty() {
            return branch;
        }
        if overlaps.len() > self.effort.n_overlaps {
            self.report("oneOf", &place);
            return branch;
        }
        let mut all = vec![branch];
        all.extend(overlaps.into_iter().map(|other| self.negation(other, "oneOf")));
        self.add(Node { all, ..Node::at(&place) })
    }

    fn node(&mut self, schema: &'a Value, base: &str, place: &str) -> Result<Node, String> {
        let object = match schema {
            Value::Bool(true) => return Ok(Node::at(place)),
            Value::Bool(false) => return Ok(Node::of_types(Types::NONE, place)),
            Value::Object(object) => object,
            Value::Null | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                return Err(format!("the schema at {place} is {schema}, expected an object or a boolean"));
            }
        };
        let reader = Reader { object, base, place };
        let mut node = Node::at(place);
        self.types(&reader, &mut node)?;
        self.numbers(&reader, &mut node)?;
        self.strings(&reader, &mut node)?;
        self.arrays(&reader, &mut node)?;
        self.objects(&reader, &mut node)?;
        self.references(&reader, &mut node)?;
        self.combinations(&reader, &mut node)?;
        self.conditions(&reader, &mut node)?;
        Ok(node)
    }

    fn child(&mut self, reader: &Reader<'a, '_>, schema: &'a Value, path: &str) -> Id {
        let place = format!("{}/{path}", reader.place);
        self.id(schema, reader.base, &place)
    }

    fn types(&mut self, reader: &Reader<'a, '_>, node: &mut Node) -> Result<(), String> {
        let expected = "null, boolean, integer, number, string, array, object, or a list of these";
        let named = |value: &Value| value.as_str().and_then(Types::named);
        let types = match reader.get("type") {
            None => Some(Types::ALL),
            Some(Value::Array(names)) => {
                names.iter().try_fold(Types::NONE, |types, name| Some(types.or(named(name)?)))
            }
            Some(name) => named(name),
        };
        node.types = types.ok_or_else(|| reader.wrong("type", expected))?;
        node.allowed = reader.list("enum")?.cloned();
        // A constant may be null.
        if let Some(value) = reader.object.get("const") {
            let is_allowed = node.allowed.as_ref().is_none_or(|allowed| allowed.contains(value));
            node.allowed = Some(if is_allowed { vec![value.clone()] } else { Vec::new() });
        }
        if reader.get("nullable") == Some(&Value::Bool(true)) {
            node.types = node.types.or(Types::NULL);
            if let Some(allowed) = node.allowed.as_mut().filter(|allowed| !allowed.contains(&Value::Null)) {
                allowed.push(Value::Null);
            }
        }
        Ok(())
    }

    fn numbers(&mut self, reader: &Reader<'a, '_>, node: &mut Node) -> Result<(), String> {
        for (key, exclusive, is_least) in
            [("minimum", "exclusiveMinimum", true), ("maximum", "exclusiveMaximum", false)]
        {
            // Draft 4 has a boolean beside the bound.
            let flag = reader.get(exclusive).and_then(Value::as_bool);
            if let Some(at) = reader.decimal(key)? {
                node.bounds.push(Bound { at, is_least, is_exclusive: flag == Some(true) });
            }
            if flag.is_none() {
                let at = reader.decimal(exclusive)?;
                node.bounds.extend(at.map(|at| Bound { at, is_least, is_exclusive: true }));
            }
        }
        if let Some(step) = reader.decimal("multipleOf")? {
            node.multiples.push(Decimal { is_negative: false, ..step });
        }
        Ok(())
    }

    fn strings(&mut self, reader: &Reader<'a, '_>, node: &mut Node) -> Result<(), String> {
        let length = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        node.min_length = reader.count("minLength")?.map_or(0, length);
        node.max_length = reader.count("maxLength")?.map(length);
        if let Some(value) = reader.get("pattern") {
            let text = value.as_str().ok_or_else(|| reader.wrong("pattern", "a regular expression"))?;
            // Pydantic's pattern for decimals lacks the end of some branches, so it would match any
            // text.
            let text = match text.starts_with("^(?!^[-+.]*$)") {
                true => format!("^(?:{text})$"),
                false => text.to_owned(),
            };
            match self.pattern("pattern", &text, reader.place)? {
                Some(rx) => node.texts.push(rx),
                None => node.is_partial = true,
            }
        }
        if let Some(value) = reader.get("format") {
            let name = value.as_str().ok_or_else(|| reader.wrong("format", "a name"))?;
            node.texts.extend(format::texts(name));
        }
        Ok(())
    }

    /// The texts of a regular expression; `None`, and a report, if it has unsupported features.
    fn pattern(&mut self, key: &'static str, text: &str, place: &str) -> Result<Option<Rx>, String> {
        match pattern::search(text) {
            Ok(rx) => Ok(Some(rx)),
            Err(PatternError::Unsupported(_)) => {
                self.report(key, place);
                Ok(None)
            }
            Err(PatternError::Malformed(what)) => {
                Err(format!("{key} at {place} is no regular expression: {what} in {text:?}"))
            }
        }
    }

    fn arrays(&mut self, reader: &Reader<'a, '_>, node: &mut Node) -> Result<(), String> {
        let (prefix, rest) = match (reader.get("prefixItems"), reader.get("items")) {
            // Before draft 2020-12, a list of `items` was today's `prefixItems`.
            (None, Some(Value::Array(items))) => (Some(("items", items)), Some("additionalItems")),
            (Some(_), _) => (reader.list("prefixItems")?.map(|items| ("prefixItems", items)), Some("items")),
            (None, _) => (None, Some("items")),
        };
        if let Some((key, items)) = prefix {
            let ids =
                items.iter().enumerate().map(|(n, item)| self.child(reader, item, &format!("{key}/{n}")));
            node.prefix = ids.collect();
        }
        if let Some((key, schema)) = rest.and_then(|key| Some((key, reader.get(key)?))) {
            node.items = Some(self.child(reader, schema, key));
        }
        node.min_items = reader.count("minItems")?.unwrap_or(0);
        node.max_items = reader.count("maxItems")?;
        node.is_unique = reader.get("uniqueItems") == Some(&Value::Bool(true));
        if let Some(schema) = reader.get("contains") {
            let item = self.child(reader, schema, "contains");
            let (min, max) = (reader.count("minContains")?.unwrap_or(1), reader.count("maxContains")?);
            let other = if max.is_some() { self.negation(item, "maxContains") } else { item };
            node.contains = Some(Contains { item, other, min, max });
        }
        if let Some(schema) = reader.get("unevaluatedItems") {
            let applied = ["allOf", "anyOf", "oneOf", "$ref", "$dynamicRef", "if", "contains"];
            match applied.iter().any(|key| reader.get(key).is_some()) {
                true if *schema == Value::Bool(true) => {}
                true => self.report("unevaluatedItems", reader.place),
                false if node.items.is_none() => {
                    node.items = Some(self.child(reader, schema, "unevaluatedItems"));
                }
                false => {}
            }
        }
        Ok(())
    }

    fn objects(&mut self, reader: &Reader<'a, '_>, node: &mut Node) -> Result<(), String> {
        if let Some(properties) = reader.object("properties")? {
            node.lists = true;
            for (name, schema) in properties {
                let id = self.child(reader, schema, &format!("properties/{}", escaped(name)));
                node.properties.push((name.clone(), id));
            }
        }
        if let Some(patterns) = reader.object("patternProperties")? {
            node.lists = true;
            for (text, schema) in patterns {
                let path = format!("patternProperties/{}", escaped(text));
                let id = self.child(reader, schema, &path);
                match self.pattern("patternProperties", text, reader.place)? {
                    Some(rx) => node.patterns.push((rx, id)),
                    None => node.is_partial = true,
                }
            }
        }
        let n_matched = node.properties.len().saturating_mul(node.patterns.len());
        if n_matched > MAX_MATCHED {
            return Err(format!(
                "properties times patternProperties at {} are {n_matched}, expected at most {MAX_MATCHED}",
                reader.place
            ));
        }
        if let Some(schema) = reader.get("additionalProperties") {
            node.additional = Some(self.child(reader, schema, "additionalProperties"));
        }
        if let Some(schema) = reader.get("unevaluatedProperties") {
            node.unevaluated = Some(self.child(reader, schema, "unevaluatedProperties"));
        }
        match reader.get("required") {
            // Draft 3 has a boolean in the property itself.
            None | Some(Value::Bool(_)) => {}
            Some(value) => node.required = reader.names("required", value)?,
        }
        node.min_properties = reader.count("minProperties")?.unwrap_or(0);
        node.max_properties = reader.count("maxProperties")?;
        if let Some(schema) = reader.get("propertyNames") {
            node.names.push(self.child(reader, schema, "propertyNames"));
        }
        Ok(())
    }

    fn references(&mut self, reader: &Reader<'a, '_>, node: &mut Node) -> Result<(), String> {
        for key in ["$ref", "$dynamicRef", "$recursiveRef"] {
            let Some(value) = reader.get(key) else { continue };
            let reference = value.as_str().ok_or_else(|| reader.wrong(key, "a reference"))?;
            match self.document.target(reference, reader.base) {
                Target::Here(schema, base) => node.all.push(self.id(schema, &base, reference)),
                Target::Elsewhere => {
                    self.report(key, reader.place);
                    node.is_partial = true;
                }
                Target::Missing => return Err(reader.wrong(key, "a reference to a schema in this document")),
            }
        }
        Ok(())
    }

    fn combinations(&mut self, reader: &Reader<'a, '_>, node: &mut Node) -> Result<(), String> {
        for key in ["allOf", "anyOf", "oneOf"] {
            // An empty list is invalid and has no effect.
            let Some(schemas) = reader.list(key)?.filter(|schemas| !schemas.is_empty()) else { continue };
            let ids: Vec<Id> = schemas
                .iter()
                .enumerate()
                .map(|(n, s)| self.child(reader, s, &format!("{key}/{n}")))
                .collect();
            match key {
                "allOf" => node.all.extend(ids),
                "anyOf" => node.any.push(ids),
                _ => {
                    let id = self.add(Node::at(reader.place));
                    self.choices.push((id, ids));
                    node.all.push(id);
                }
            }
        }
        if let Some(schema) = reader.get("not") {
            let id = self.child(reader, schema, "not");
            node.all.push(self.negation(id, "not"));
        }
        Ok(())
    }

    fn conditions(&mut self, reader: &Reader<'a, '_>, node: &mut Node) -> Result<(), String> {
        let [then, otherwise] = ["then", "else"].map(|key| reader.get(key).map(|schema| (key, schema)));
        if let Some(schema) = reader.get("if").filter(|_| then.is_some() || otherwise.is_some()) {
            let condition = self.child(reader, schema, "if");
            let negation = self.negation(condition, "if");
            let options = [(condition, then), (negation, otherwise)].map(|(id, schema)| {
                let mut all = vec![id];
                all.extend(schema.map(|(key, schema)| self.child(reader, schema, key)));
                self.add(Node { all, ..Node::at(reader.place) })
            });
            node.any.push(options.to_vec());
        }
        for key in ["dependentRequired", "dependentSchemas", "dependencies"] {
            for (name, value) in reader.object(key)?.into_iter().flatten() {
                let never = self.add(Node::of_types(Types::NONE, reader.place));
                let absent =
                    self.add(Node { properties: vec![(name.clone(), never)], ..Node::at(reader.place) });
                let mut present = Node { required: vec![name.clone()], ..Node::at(reader.place) };
                match value {
                    Value::Array(_) => present.required.extend(reader.names(key, value)?),
                    Value::String(other) if key == "dependencies" => present.required.push(other.clone()),
                    schema => {
                        present.all.push(self.child(reader, schema, &format!("{key}/{}", escaped(name))))
                    }
                }
                let present = self.add(present);
                node.any.push(vec![absent, present]);
            }
        }
        Ok(())
    }
}

/// A name as a part of a JSON pointer.
fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}
