//! The restrictions of one schema, after its keys were read and its references resolved.

use serde_json::{Number, Value};

use super::decimal::Decimal;
use super::rx::Rx;

/// A node, by its index in a list.
pub(super) type Id = usize;

/// A set of types. Integers and other numbers are separate types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Types(u8);

impl Types {
    pub(super) const NULL: Types = Types(1);
    pub(super) const BOOLEAN: Types = Types(2);
    pub(super) const INTEGER: Types = Types(4);
    pub(super) const FRACTION: Types = Types(8);
    pub(super) const STRING: Types = Types(16);
    pub(super) const ARRAY: Types = Types(32);
    pub(super) const OBJECT: Types = Types(64);
    pub(super) const NUMBER: Types = Types(12);
    pub(super) const ALL: Types = Types(127);
    pub(super) const NONE: Types = Types(0);

    /// The types that a name in a schema's `type` denotes.
    pub(super) fn named(name: &str) -> Option<Types> {
        Some(match name {
            "null" => Types::NULL,
            "boolean" => Types::BOOLEAN,
            "integer" => Types::INTEGER,
            "number" => Types::NUMBER,
            "string" => Types::STRING,
            "array" => Types::ARRAY,
            "object" => Types::OBJECT,
            _ => return None,
        })
    }

    /// The type of a value.
    pub(super) fn of(value: &Value) -> Types {
        match value {
            Value::Null => Types::NULL,
            Value::Bool(_) => Types::BOOLEAN,
            Value::Number(number) if is_integer(number) => Types::INTEGER,
            Value::Number(_) => Types::FRACTION,
            Value::String(_) => Types::STRING,
            Value::Array(_) => Types::ARRAY,
            Value::Object(_) => Types::OBJECT,
        }
    }

    /// Returns true if the sets have a common type.
    pub(super) fn has(self, other: Types) -> bool {
        self.0 & other.0 != 0
    }

    pub(super) fn and(self, other: Types) -> Types {
        Types(self.0 & other.0)
    }

    pub(super) fn or(self, other: Types) -> Types {
        Types(self.0 | other.0)
    }

    pub(super) fn others(self) -> Types {
        Types(!self.0 & Types::ALL.0)
    }
}

fn is_integer(number: &Number) -> bool {
    number.is_i64() || number.is_u64() || Decimal::of(number).is_some_and(|number| number.is_integer())
}

/// A bound of numbers.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Bound {
    pub(super) at: Decimal,
    /// True for a lower bound, false for an upper bound.
    pub(super) is_least: bool,
    pub(super) is_exclusive: bool,
}

impl Bound {
    pub(super) fn admits(&self, value: &Decimal) -> bool {
        match value.cmp(&self.at) {
            std::cmp::Ordering::Equal => !self.is_exclusive,
            std::cmp::Ordering::Less => !self.is_least,
            std::cmp::Ordering::Greater => self.is_least,
        }
    }
}

/// Items, some of which must match.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Contains {
    pub(super) item: Id,
    /// Schema of the items that do not match.
    pub(super) other: Id,
    pub(super) min: usize,
    pub(super) max: Option<usize>,
}

/// All restrictions of a schema. The default of each field allows everything.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Node {
    pub(super) types: Types,
    /// `enum` and `const`.
    pub(super) allowed: Option<Vec<Value>>,
    /// Values of `not`.
    pub(super) forbidden: Vec<Value>,

    pub(super) bounds: Vec<Bound>,
    pub(super) multiples: Vec<Decimal>,

    pub(super) min_length: u32,
    pub(super) max_length: Option<u32>,
    /// `pattern` and `format`.
    pub(super) texts: Vec<Rx>,

    pub(super) prefix: Vec<Id>,
    pub(super) items: Option<Id>,
    pub(super) min_items: usize,
    pub(super) max_items: Option<usize>,
    pub(super) is_unique: bool,
    pub(super) contains: Option<Contains>,

    pub(super) properties: Vec<(String, Id)>,
    pub(super) patterns: Vec<(Rx, Id)>,
    pub(super) additional: Option<Id>,
    pub(super) unevaluated: Option<Id>,
    pub(super) required: Vec<String>,
    pub(super) min_properties: usize,
    pub(super) max_properties: Option<usize>,
    /// `propertyNames`.
    pub(super) names: Vec<Id>,
    /// True if the user's schema lists properties here.
    pub(super) lists: bool,

    /// Nodes that must all hold too.
    pub(super) all: Vec<Id>,
    /// Lists of nodes; at least one node of each list must hold, too.
    pub(super) any: Vec<Vec<Id>>,
    /// Path in the user's schema, as a JSON pointer.
    pub(super) place: String,
    /// True if the schema has restrictions that a [`Node`] cannot express, so its negation is
    /// unknown.
    pub(super) is_partial: bool,
}

impl Node {
    /// A node that allows everything.
    pub(super) fn at(place: &str) -> Node {
        Node {
            types: Types::ALL,
            allowed: None,
            forbidden: Vec::new(),
            bounds: Vec::new(),
            multiples: Vec::new(),
            min_length: 0,
            max_length: None,
            texts: Vec::new(),
            prefix: Vec::new(),
            items: None,
            min_items: 0,
            max_items: None,
            is_unique: false,
            contains: None,
            properties: Vec::new(),
            patterns: Vec::new(),
            additional: None,
            unevaluated: None,
            required: Vec::new(),
            min_properties: 0,
            max_properties: None,
            names: Vec::new(),
            lists: false,
            all: Vec::new(),
            any: Vec::new(),
            place: place.to_owned(),
            is_partial: false,
        }
    }

    pub(super) fn of_types(types: Types, place: &str) -> Node {
        Node { types, ..Node::at(place) }
    }

    /// Nodes of a property of this name: its own, those of matching patterns, or the additional
    /// one. A pattern that cannot be evaluated counts as matching.
    pub(super) fn property(&self, name: &str) -> Vec<Id> {
        let listed = self.properties.iter().filter(|(key, _)| key == name).map(|(_, id)| *id);
        let matching = self.patterns.iter().filter(|(rx, _)| rx.matches(name).unwrap_or(true));
        let mut found: Vec<Id> = listed.chain(matching.map(|(_, id)| *id)).collect();
        if found.is_empty() {
            found.extend(self.additional);
        }
        found
    }
}
