//! Validation of the values that a schema lists itself (`enum`, `const`) against the rest of it.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::decimal::Decimal;
use super::node::{Id, Node, Types};

/// Maximum number of nested references that are followed.
const MAX_DEPTH: usize = 200;

/// Returns true if the values are equal; 1 and 1.0 are.
pub(super) fn is_same(one: &Value, two: &Value) -> bool {
    match (one, two) {
        (Value::Number(a), Value::Number(b)) => match (Decimal::of(a), Decimal::of(b)) {
            (Some(a), Some(b)) => a == b,
            (Some(_) | None, _) => a == b,
        },
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| is_same(a, b)))
        }
        _ => one == two,
    }
}

/// Returns true if a node allows a value, or if deciding that takes too much work.
pub(super) fn admits(nodes: &[Node], id: Id, value: &Value) -> bool {
    Checker::new(nodes).admits(id, value)
}

/// A text that is the same for equal values.
pub(super) fn canonical(value: &Value) -> String {
    match value {
        Value::Number(number) => match Decimal::of(number) {
            Some(number) if number.is_zero() => "0".into(),
            Some(number) => {
                let sign = if number.is_negative { "-" } else { "" };
                format!("{sign}{}.{}", number.whole(), number.fraction)
            }
            None => number.to_string(),
        },
        Value::Array(items) => format!("[{}]", items.iter().map(canonical).collect::<Vec<_>>().join(",")),
        Value::Object(object) => {
            let entry = |(name, value): (&String, &Value)| {
                format!("{}:{}", Value::from(name.as_str()), canonical(value))
            };
            let mut entries: Vec<String> = object.iter().map(entry).collect();
            entries.sort_unstable();
            format!("{{{}}}", entries.join(","))
        }
        Value::Null | Value::Bool(_) | Value::String(_) => value.to_string(),
    }
}

/// Checks many values of the same nodes.
pub(super) struct Checker<'a> {
    nodes: &'a [Node],
    /// The values that nodes list, in their canonical form.
    listed: HashMap<Id, HashSet<String>>,
    depth: usize,
}

impl<'a> Checker<'a> {
    pub(super) fn new(nodes: &'a [Node]) -> Checker<'a> {
        Checker { nodes, listed: HashMap::new(), depth: 0 }
    }

    fn lists(&mut self, id: Id, allowed: &[Value], value: &Value) -> bool {
        let listed = self.listed.entry(id).or_insert_with(|| allowed.iter().map(canonical).collect());
        listed.contains(&canonical(value))
    }

    pub(super) fn admits(&mut self, id: Id, value: &Value) -> bool {
        if self.depth > MAX_DEPTH {
            return true;
        }
        self.depth += 1;
        let node = &self.nodes[id];
        let is_allowed = node.types.has(Types::of(value))
            && node.allowed.as_ref().is_none_or(|allowed| self.lists(id, allowed, value))
            && !node.forbidden.iter().any(|other| is_same(other, value))
            && match value {
                Value::Null | Value::Bool(_) => true,
                Value::Number(number) => {
                    let number = Decimal::of(number);
                    number.is_none_or(|number| {
                        node.bounds.iter().all(|bound| bound.admits(&number))
                            && node.multiples.iter().all(|step| number.is_multiple_of(step).unwrap_or(true))
                    })
                }
                Value::String(text) => {
                    let length = text.chars().count();
                    length >= node.min_length as usize
                        && node.max_length.is_none_or(|max| length <= max as usize)
                        && node.texts.iter().all(|rx| rx.matches(text).unwrap_or(true))
                }
                Value::Array(items) => self.admits_items(node, items),
                Value::Object(_) => self.admits_properties(node, value),
            }
            && node.all.iter().all(|part| self.admits(*part, value))
            && node.any.iter().all(|group| group.iter().any(|option| self.admits(*option, value)));
        self.depth -= 1;
        is_allowed
    }

    fn admits_items(&mut self, node: &Node, items: &[Value]) -> bool {
        let schemas = node.prefix.iter().copied().map(Some).chain(std::iter::repeat(node.items));
        let has_right_length =
            items.len() >= node.min_items && node.max_items.is_none_or(|max| items.len() <= max);
        let is_unique = |items: &[Value]| {
            let mut pairs = items.iter().enumerate();
            pairs.all(|(n, item)| !items[..n].iter().any(|other| is_same(other, item)))
        };
        has_right_length
            && (!node.is_unique || is_unique(items))
            && items.iter().zip(schemas).all(|(item, id)| id.is_none_or(|id| self.admits(id, item)))
            && node.contains.as_ref().is_none_or(|contains| {
                let n = items.iter().filter(|item| self.admits(contains.item, item)).count();
                n >= contains.min && contains.max.is_none_or(|max| n <= max)
            })
    }

    fn admits_properties(&mut self, node: &Node, value: &Value) -> bool {
        let Some(object) = value.as_object() else { return true };
        object.len() >= node.min_properties
            && node.max_properties.is_none_or(|max| object.len() <= max)
            && node.required.iter().all(|name| object.contains_key(name))
            && object.iter().all(|(name, value)| {
                let key = Value::from(name.as_str());
                node.names.iter().all(|id| self.admits(*id, &key))
                    && node.property(name).into_iter().all(|id| self.admits(id, value))
            })
    }
}
