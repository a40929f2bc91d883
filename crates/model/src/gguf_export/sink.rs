//! Values of a GGUF file's metadata, and the keys of its architecture.

use weights::{Array, Bytes, Metadata, Value};

use crate::names::Key;

/// A number rounded to f32.
pub(super) fn real(value: f64) -> Value {
    Value::Float(f64::from(value as f32))
}

pub(super) fn count(value: usize) -> Value {
    Value::Int(value as i128)
}

pub(super) fn strings(items: &[&str]) -> Value {
    let mut at = 0;
    let span = |item: &&str| {
        at += item.len() as u32;
        (at - item.len() as u32, item.len() as u32)
    };
    let spans = items.iter().map(span).collect();
    Value::Array(Array::Str { bytes: Bytes::from_slice(items.concat().as_bytes()), spans })
}

/// The value that all layers share, or a list.
pub(super) fn counts(values: &[usize]) -> Value {
    match values {
        [first, rest @ ..] if rest.iter().all(|v| v == first) => count(*first),
        _ => Value::Array(Array::Int(values.iter().map(|v| *v as i64).collect())),
    }
}

/// Writes keys that begin with the architecture's name.
pub(super) struct Sink<'a> {
    pub architecture: &'a str,
    pub metadata: &'a mut Metadata,
}

impl Sink<'_> {
    /// Writes a number under the key's first name.
    pub fn put(&mut self, key: Key, value: Value) {
        self.put_as(key.row().gguf.first().copied().unwrap_or_default(), value);
    }

    /// Writes a number that applies to layers with a window, under the key with `_swa`.
    pub fn put_window(&mut self, key: Key, value: Value) {
        let name = key.row().gguf.first().copied().unwrap_or_default();
        self.put_as(&format!("{name}_swa"), value);
    }

    /// Writes a number under a name.
    pub fn put_as(&mut self, name: &str, value: Value) {
        self.metadata.insert(format!("{}.{name}", self.architecture), value);
    }
}

/// Writes the source's split of a head's pairs among position axes. GGUF has four axes.
pub(super) fn sections(source: &Metadata, usual: Vec<i64>, sink: &mut Sink<'_>) {
    let objects =
        ["text_config.rope_parameters", "rope_parameters", "text_config.rope_scaling", "rope_scaling"];
    let said = |object: &&str| match source.get(&format!("{object}.mrope_section")) {
        Some(Value::Array(Array::Int(list))) => Some(list.clone()),
        _ => None,
    };
    let mut sections = objects.iter().find_map(said).unwrap_or(usual);
    sections.resize(4, 0);
    sink.put_as("rope.dimension_sections", Value::Array(Array::Int(sections)));
}
