//! JSON into neutral metadata.

use std::path::Path;

use serde_json::Value as Json;

use crate::{Access, Array, Bytes, Error, Map, Metadata, Result, Value};

/// The largest JSON file that is read: far over any config or index.
const MAX_JSON_BYTES: usize = 64 << 20;

/// Read a JSON file.
pub(crate) fn read_json(path: &Path) -> Result<Json> {
    let map = Map::open(path, Access::Map)?;
    if map.len() > MAX_JSON_BYTES {
        return Err(Error::malformed(
            path,
            "size",
            format_args!("{} bytes", map.len()),
            format_args!("at most {MAX_JSON_BYTES}"),
        ));
    }
    serde_json::from_slice(&map).map_err(|e| Error::malformed(path, "JSON", e, "a JSON document"))
}

/// Append the entries of a JSON object, with `prefix` before their keys.
///
/// The keys of nested objects are joined with dots. A list whose items are all integers, all numbers, all truth
/// values or all strings is one [`Value::Array`]; any other list is flattened with its items' indices for keys. An
/// empty object leaves nothing behind, an empty list an empty list of integers.
///
/// # Errors
/// `json` is no object, or a flattened key is there already.
pub fn flatten(json: &Json, prefix: &str, path: &Path, metadata: &mut Metadata) -> Result<()> {
    let Some(object) = json.as_object() else {
        return Err(Error::malformed(path, "JSON", "something else", "an object"));
    };
    for (key, value) in object {
        flatten_value(value, format!("{prefix}{key}"), path, metadata)?;
    }
    Ok(())
}

// Depth is bounded: the JSON parser refuses more than 128 levels.
fn flatten_value(json: &Json, key: String, path: &Path, metadata: &mut Metadata) -> Result<()> {
    let value = match json {
        Json::Null => Value::Null,
        Json::Bool(b) => Value::Bool(*b),
        Json::Number(n) => match (n.as_i128(), n.as_f64()) {
            (Some(int), _) => Value::Int(int),
            (None, Some(float)) => Value::Float(float),
            (None, None) => return Err(Error::malformed(path, format_args!("key {key:?}"), n, "a number")),
        },
        Json::String(s) => Value::Str(s.clone()),
        Json::Array(items) => match scalar_array(items) {
            Some(array) => Value::Array(array),
            None => {
                for (i, item) in items.iter().enumerate() {
                    flatten_value(item, format!("{key}.{i}"), path, metadata)?;
                }
                return Ok(());
            }
        },
        Json::Object(object) => {
            for (inner, value) in object {
                flatten_value(value, format!("{key}.{inner}"), path, metadata)?;
            }
            return Ok(());
        }
    };
    if metadata.get(&key).is_some() {
        return Err(Error::malformed(
            path,
            format_args!("key {key:?}"),
            "it a second time",
            "every key once",
        ));
    }
    metadata.insert(key, value);
    Ok(())
}

/// The list, if its items are scalars of one kind.
fn scalar_array(items: &[Json]) -> Option<Array> {
    if let Some(ints) = items.iter().map(Json::as_i64).collect() {
        return Some(Array::Int(ints));
    }
    if let Some(floats) = items.iter().map(|v| v.as_f64().map(|f| f as f32)).collect() {
        return Some(Array::Float(floats));
    }
    if let Some(bools) = items.iter().map(Json::as_bool).collect() {
        return Some(Array::Bool(bools));
    }
    let strings: Vec<&str> = items.iter().map(Json::as_str).collect::<Option<_>>()?;
    // Offsets lie within u32, by the limit on the file's size.
    let (mut text, mut spans) = (String::new(), Vec::with_capacity(strings.len()));
    for s in strings {
        spans.push((text.len() as u32, s.len() as u32));
        text.push_str(s);
    }
    Some(Array::Str { bytes: Bytes::from_slice(text.as_bytes()), spans })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flat(json: &str) -> Result<Metadata> {
        let mut metadata = Metadata::default();
        let json = serde_json::from_str(json).unwrap();
        flatten(&json, "", Path::new("config.json"), &mut metadata).map(|()| metadata)
    }

    #[test]
    fn everything_has_its_place() {
        let m = flat(
            r#"{"n": 3, "neg": -1, "big": 18446744073709551615, "eps": 1e-6, "tie": true, "none": null,
                "name": "x", "rope": {"full": {"theta": 1000000.0}, "empty": {}}, "types": ["a", "", "çé"],
                "ids": [1, 2], "factors": [1, 2.5], "flags": [true, false], "nothing": [],
                "layers": [{"n": 1}, {"n": 2}], "mixed": ["a", 1, null, [2, 3]]}"#,
        )
        .unwrap();
        assert_eq!(m.usize("n"), Some(3));
        assert!(matches!(m.get("neg"), Some(Value::Int(-1))));
        assert!(matches!(m.get("big"), Some(Value::Int(n)) if *n == u64::MAX.into()));
        assert_eq!(m.f64("eps"), Some(1e-6));
        assert_eq!(m.bool("tie"), Some(true));
        assert!(matches!(m.get("none"), Some(Value::Null)));
        assert_eq!(m.str("name"), Some("x"));
        assert_eq!(m.f64("rope.full.theta"), Some(1e6));
        let types = m.array("types").unwrap();
        assert_eq!([0, 1, 2].map(|i| types.str_bytes(i).unwrap()), ["a".as_bytes(), b"", "çé".as_bytes()]);
        assert!(matches!(m.array("ids"), Some(Array::Int(v)) if *v == [1, 2]));
        assert!(matches!(m.array("factors"), Some(Array::Float(v)) if *v == [1.0, 2.5]));
        assert!(matches!(m.array("flags"), Some(Array::Bool(v)) if *v == [true, false]));
        assert_eq!(m.array("nothing").unwrap().len(), 0);
        assert_eq!(m.usize("layers.1.n"), Some(2));
        assert_eq!(m.str("mixed.0"), Some("a"));
        assert!(matches!(m.get("mixed.2"), Some(Value::Null)));
        assert_eq!(m.array("mixed.3").unwrap().len(), 2);
        assert_eq!(m.len(), 19);
    }

    #[test]
    fn colliding_keys_are_refused() {
        let error = flat(r#"{"a": {"b": 1}, "a.b": 2}"#).unwrap_err().to_string();
        assert!(error.contains("config.json") && error.contains("a.b"), "{error}");
        assert!(flat("[1]").is_err());
    }
}
