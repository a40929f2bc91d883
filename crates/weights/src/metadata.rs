//! Neutral metadata: the content of a header or a config.json, for any format.

use std::collections::HashMap;

use crate::Bytes;

/// One value of the metadata.
#[derive(Clone, Debug)]
pub enum Value {
    /// Any integer: i128 holds all signed and unsigned types without loss.
    Int(i128),
    /// f32 or f64.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// Text.
    Str(String),
    /// A list of values of one kind.
    Array(Array),
    /// An explicit null (config.json).
    Null,
}

/// A homogeneous list. Strings stay in the file's bytes, so that a vocabulary of 150,000 is not
/// copied.
#[derive(Clone, Debug)]
pub enum Array {
    /// Integers of any width.
    Int(Vec<i64>),
    /// Floats of any width.
    Float(Vec<f32>),
    /// Truth values.
    Bool(Vec<bool>),
    /// Strings, each `(offset, len)` in `bytes`. Readers checked that they are UTF-8, or replace
    /// invalid ones lossily.
    Str {
        /// Bytes that the offsets refer to.
        bytes: Bytes,
        /// Byte offset and length of each string.
        spans: Vec<(u32, u32)>,
    },
}

impl Array {
    /// Number of items.
    pub fn len(&self) -> usize {
        match self {
            Array::Int(v) => v.len(),
            Array::Float(v) => v.len(),
            Array::Bool(v) => v.len(),
            Array::Str { spans, .. } => spans.len(),
        }
    }

    /// True if the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of string `i`, if this is a list of strings with at least `i + 1` items.
    pub fn str_bytes(&self, i: usize) -> Option<&[u8]> {
        let Array::Str { bytes, spans } = self else { return None };
        let (at, len) = *spans.get(i)?;
        bytes.get(at as usize..at as usize + len as usize)
    }
}

/// Keys and values in file order, looked up by key.
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
    index: HashMap<String, usize>,
}

impl Metadata {
    /// Adds an entry. Returns false and changes nothing if the key exists already.
    pub fn insert(&mut self, key: String, value: Value) -> bool {
        if self.index.contains_key(&key) {
            return false;
        }
        self.index.insert(key.clone(), self.entries.len());
        self.entries.push((key, value));
        true
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&i| &self.entries[i].1)
    }

    /// All entries in file order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(k, v)| (k.as_str(), v))
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Value of a key, if it is an integer that is not negative and fits a `usize`.
    pub fn usize(&self, key: &str) -> Option<usize> {
        let Value::Int(i) = self.get(key)? else { return None };
        usize::try_from(*i).ok()
    }

    /// Value of a key, if it is an integer or a float.
    pub fn f64(&self, key: &str) -> Option<f64> {
        match self.get(key)? {
            Value::Int(i) => Some(*i as f64),
            Value::Float(f) => Some(*f),
            Value::Bool(_) | Value::Str(_) | Value::Array(_) | Value::Null => None,
        }
    }

    /// Value of a key, if it is a truth value.
    pub fn bool(&self, key: &str) -> Option<bool> {
        let Value::Bool(b) = self.get(key)? else { return None };
        Some(*b)
    }

    /// Value of a key, if it is text.
    pub fn str(&self, key: &str) -> Option<&str> {
        let Value::Str(s) = self.get(key)? else { return None };
        Some(s)
    }

    /// Value of a key, if it is a list.
    pub fn array(&self, key: &str) -> Option<&Array> {
        let Value::Array(a) = self.get(key)? else { return None };
        Some(a)
    }
}
