//! Lists and objects of a template. Each knows its depth and size, and charges the budget for every
//! item that is read, so that every traversal is bounded.
//!
//! The depth is limited when they are made, since comparing, hashing, printing and dropping recurse
//! once for each level.

use std::fmt;
use std::sync::Arc;

use minijinja::value::{DynObject, Enumerator, Object, ObjectRepr, Tuple, ValueKind};
use minijinja::{Error, Value};
use serde_json::Value as Json;

use super::budget::{self, Charged};
use super::python::{self, MAX_DEPTH, invalid};

/// Charge for a list's item: its value, and a share of its container.
pub(super) const ITEM_BYTES: u64 = 64;

/// The kind of a list in Python.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListKind {
    List,
    Tuple,
    /// Iterators and views, which are not sequences.
    View,
    /// A group of `groupby`: a pair with named items.
    Group,
}

/// A list, a tuple, or a similar type.
pub(super) struct List {
    items: Vec<Value>,
    kind: ListKind,
    /// Number of values and bytes of texts in it, counted each time that they occur.
    weight: u64,
    /// Levels below and including this one.
    depth: usize,
}

impl List {
    /// A list of `items`.
    ///
    /// # Errors
    /// It would be too deep, an item may not be in a list, or the budget is used up.
    pub(super) fn value(items: Vec<Value>, kind: ListKind) -> Result<Value, Error> {
        budget::create(ITEM_BYTES * (1 + items.len() as u64))?;
        let (weight, depth) = measure(items.iter())?;
        Ok(Value::from_object(List { items, kind, weight, depth }))
    }

    pub(super) fn items(&self) -> &[Value] {
        &self.items
    }

    pub(super) fn kind(&self) -> ListKind {
        self.kind
    }
}

/// Weight and depth of a container of `items`.
fn measure<'a>(items: impl Iterator<Item = &'a Value>) -> Result<(u64, usize), Error> {
    let (mut total, mut deepest) = (1u64, 0);
    for item in items {
        check_storable(item)?;
        total = total.saturating_add(weight(item));
        deepest = deepest.max(depth(item));
    }
    if deepest >= MAX_DEPTH {
        return Err(invalid(format!("a value nested deeper than {MAX_DEPTH}")));
    }
    Ok((total, deepest + 1))
}

/// Checks that a value may be stored in a list, an object or a namespace. Mutable values, and loops
/// with their subjects, would form chains and cycles of any depth.
pub(super) fn check_storable(value: &Value) -> Result<(), Error> {
    let Some(object) = value.as_object() else { return Ok(()) };
    if object.is::<List>() || object.is::<Dict>() || object.repr() == ObjectRepr::Plain || is_macro(object) {
        return Ok(());
    }
    Err(invalid("a loop or a namespace cannot be put into a list, an object or a namespace".into()))
}

fn is_macro(object: &DynObject) -> bool {
    object.type_name().ends_with("::Macro")
}

/// True for a loop variable.
pub(super) fn is_loop(value: &Value) -> bool {
    value.as_object().is_some_and(|object| object.type_name().ends_with("::Loop"))
}

/// True for values that Python prints as tuples.
pub(super) fn is_tuple(value: &Value) -> bool {
    value
        .downcast_object_ref::<List>()
        .is_some_and(|list| matches!(list.kind, ListKind::Tuple | ListKind::Group))
}

fn depth(value: &Value) -> usize {
    match value.as_object() {
        None => 0,
        Some(object) => match (object.downcast_ref::<List>(), object.downcast_ref::<Dict>()) {
            (Some(list), _) => list.depth,
            (None, Some(dict)) => dict.depth,
            (None, None) => 0,
        },
    }
}

/// Cost of reading a whole value: 1 for each value in it and each byte of a text.
pub(super) fn weight(value: &Value) -> u64 {
    match (value.as_object(), text_len(value)) {
        (None, len) => 1 + len,
        (Some(object), _) => match (object.downcast_ref::<List>(), object.downcast_ref::<Dict>()) {
            (Some(list), _) => list.weight,
            (None, Some(dict)) => dict.weight,
            // A namespace, whose values are no namespaces, or the arguments of a call.
            (None, None) => object
                .try_iter_pairs()
                .filter(|_| object.repr() == ObjectRepr::Map && !is_loop(value))
                .map_or(1, |pairs| pairs.fold(1, |sum, (_, item)| sum.saturating_add(own_weight(&item)))),
        },
    }
}

/// [`weight`] of a namespace's content.
fn own_weight(value: &Value) -> u64 {
    if check_storable(value).is_ok() { weight(value) } else { 1 }
}

/// Bytes of a text; 0 for other values.
pub(super) fn text_len(value: &Value) -> u64 {
    match value.kind() {
        ValueKind::String | ValueKind::Bytes => value.as_bytes().map_or(0, |bytes| bytes.len() as u64),
        _ => 0,
    }
}

impl Object for List {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        match self.kind {
            ListKind::List | ListKind::Tuple | ListKind::Group => ObjectRepr::Seq,
            ListKind::View => ObjectRepr::Iterable,
        }
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let index = match key.as_str().filter(|_| self.kind == ListKind::Group) {
            Some("grouper") => Some(0),
            Some("list") => Some(1),
            Some(_) | None => key.as_usize(),
        };
        self.items.get(index?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Iter(Box::new(Items { list: self.clone(), at: 0 }))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.items.len())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        render(Value::from_dyn_object(self.clone()), f)
    }
}

/// Items of a list, each charged when it is read.
struct Items {
    list: Arc<List>,
    at: usize,
}

impl Iterator for Items {
    type Item = Value;

    fn next(&mut self) -> Option<Value> {
        let item = self.list.items.get(self.at)?;
        budget::work(1 + text_len(item)).ok()?;
        self.at += 1;
        Some(item.clone())
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let n = self.list.items.len() - self.at;
        (n, Some(n))
    }
}

/// An object in insertion order.
pub(super) struct Dict {
    /// The engine's own map of values.
    map: DynObject,
    weight: u64,
    depth: usize,
}

impl Dict {
    /// An object of `pairs`; the last of equal keys wins.
    ///
    /// # Errors
    /// It would be too deep, a value may not be in an object, or the budget is used up.
    pub(super) fn value(pairs: Vec<(Value, Value)>) -> Result<Value, Error> {
        budget::create(2 * ITEM_BYTES * (1 + pairs.len() as u64))?;
        budget::work(pairs.iter().fold(0, |sum: u64, (key, _)| sum.saturating_add(weight(key))))?;
        let (weight, depth) = measure(pairs.iter().flat_map(|(key, value)| [key, value]))?;
        let map = Value::from_pairs(pairs);
        match map.as_object().cloned() {
            Some(map) => Ok(Value::from_object(Dict { map, weight, depth })),
            None => Ok(map),
        }
    }
}

impl Object for Dict {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        budget::work(weight(key)).ok()?;
        self.map.get_value(key)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        self.map.get_value_by_str(key)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        match self.map.try_iter_pairs() {
            Some(pairs) => Enumerator::KeyValueIter(Box::new(Pairs(pairs))),
            None => Enumerator::Empty,
        }
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        self.map.enumerator_len()
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        render(Value::from_dyn_object(self.clone()), f)
    }
}

/// Pairs of an object, each charged when it is read.
struct Pairs<I>(I);

impl<I: Iterator<Item = (Value, Value)>> Iterator for Pairs<I> {
    type Item = (Value, Value);

    fn next(&mut self) -> Option<(Value, Value)> {
        let (key, value) = self.0.next()?;
        budget::work(1 + text_len(&key) + text_len(&value)).ok()?;
        Some((key, value))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

/// Prints as Python does. If the budget runs out, the text ends here and the rendering fails soon
/// after. An error of `Display` would panic in the caller.
fn render(value: Value, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match python::str(&value, &mut Charged(f)) {
        Err(_) if !budget::is_spent() => Err(fmt::Error),
        Ok(()) | Err(_) => Ok(()),
    }
}

// The form in the engine's error messages, without the content, which may be long.
impl fmt::Debug for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of {} items", self.items.len())
    }
}

impl fmt::Debug for Dict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object of {} keys", self.map.enumerator_len().unwrap_or(0))
    }
}

/// Converts results of the engine's own filters to this module's lists and objects.
///
/// # Errors
/// It is too deep, or the budget is used up.
pub(super) fn own(value: Value) -> Result<Value, Error> {
    own_at(value, 0)
}

fn own_at(value: Value, level: usize) -> Result<Value, Error> {
    let Some(object) = value.as_object() else { return Ok(value) };
    if object.is::<List>() || object.is::<Dict>() {
        return Ok(value);
    }
    if level > MAX_DEPTH {
        return Err(invalid(format!("a value nested deeper than {MAX_DEPTH}")));
    }
    match object.repr() {
        ObjectRepr::Seq | ObjectRepr::Iterable => {
            let kind = match (object.is::<Tuple>(), object.repr()) {
                (true, _) => ListKind::Tuple,
                _ if object.type_name().ends_with("::GroupTuple") => ListKind::Group,
                (false, ObjectRepr::Seq) => ListKind::List,
                _ => ListKind::View,
            };
            let mut items = Vec::new();
            for item in value.try_iter()?.checked() {
                budget::create(ITEM_BYTES)?;
                items.push(own_at(item?, level + 1)?);
            }
            // A group's items are a list in Jinja2, and a view in the engine.
            if kind == ListKind::Group
                && let Some(last) = items.pop()
            {
                items.push(match last.downcast_object_ref::<List>() {
                    Some(list) => List::value(list.items.clone(), ListKind::List)?,
                    None => last,
                });
            }
            List::value(items, kind)
        }
        ObjectRepr::Map if is_map(object) => {
            let mut pairs = Vec::new();
            for (key, item) in object.try_iter_pairs().into_iter().flatten() {
                budget::create(ITEM_BYTES)?;
                pairs.push((own_at(key, level + 1)?, own_at(item, level + 1)?));
            }
            Dict::value(pairs)
        }
        _ => Ok(value),
    }
}

/// True for a map, but not for a namespace, a loop, a macro, or the arguments of a call.
fn is_map(object: &DynObject) -> bool {
    let name = object.type_name();
    ["IndexMap<", "BTreeMap<", "HashMap<"].iter().any(|map| name.contains(map))
        || name.ends_with("::MergeDict")
}

/// Converts a JSON value of a conversation.
///
/// # Errors
/// It is too deep.
pub(super) fn from_json(json: &Json) -> Result<Value, Error> {
    Ok(match json {
        Json::Null => Value::from(()),
        Json::Bool(bool) => Value::from(*bool),
        Json::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(n), _, _) => Value::from(n),
            (None, Some(n), _) => Value::from(n),
            (None, None, Some(x)) => Value::from(x),
            (None, None, None) => Value::from(number.to_string()),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => {
            List::value(items.iter().map(from_json).collect::<Result<_, _>>()?, ListKind::List)?
        }
        Json::Object(fields) => Dict::value(
            fields
                .iter()
                .map(|(key, value)| Ok((Value::from(key.as_str()), from_json(value)?)))
                .collect::<Result<_, Error>>()?,
        )?,
    })
}
