//! Neutral metadata: what a header or a config.json says, whatever the format.

use std::collections::HashMap;

use crate::Bytes;

/// One value of the metadata.
#[derive(Clone, Debug)]
pub enum Value {
    /// Any unsigned or signed integer, or a boolean's source width lost: integers fit i128 without loss.
    Int(i128),
    /// f32 or f64.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// Text.
    Str(String),
    /// A list of one kind.
    Array(Array),
    /// An explicit null (config.json).
    Null,
}

/// A homogeneous list. Strings stay where they lie in the file: a vocabulary of 150,000 is not copied to be listed.
#[derive(Clone, Debug)]
pub enum Array {
    /// Integers of any width.
    Int(Vec<i64>),
    /// Floats of any width.
    Float(Vec<f32>),
    /// Truth values.
    Bool(Vec<bool>),
    /// Strings, each `(offset, len)` in `bytes`, which were checked to be UTF-8 or are replaced lossily when read.
    Str {
        /// What the offsets point into.
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

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of string `i`, when this is a list of strings that long.
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
    /// Add an entry. False, and nothing changes, if the key is there already.
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

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// An integer that is not negative.
    pub fn usize(&self, key: &str) -> Option<usize> {
        let Value::Int(i) = self.get(key)? else { return None };
        usize::try_from(*i).ok()
    }

    /// A number, integer or float.
    pub fn f64(&self, key: &str) -> Option<f64> {
        match self.get(key)? {
            Value::Int(i) => Some(*i as f64),
            Value::Float(f) => Some(*f),
            _ => None,
        }
    }

    /// A truth value.
    pub fn bool(&self, key: &str) -> Option<bool> {
        let Value::Bool(b) = self.get(key)? else { return None };
        Some(*b)
    }

    /// Text.
    pub fn str(&self, key: &str) -> Option<&str> {
        let Value::Str(s) = self.get(key)? else { return None };
        Some(s)
    }

    /// A list.
    pub fn array(&self, key: &str) -> Option<&Array> {
        let Value::Array(a) = self.get(key)? else { return None };
        Some(a)
    }
}
