//! From JSON to neutral metadata.

use std::path::Path;

use serde_json::Value as Json;
use weights::{Access, Array, Bytes, Error, Map, Metadata, Result, Value};

/// Largest JSON file that is read, in bytes; configs and indexes are far smaller.
const MAX_JSON_BYTES: usize = 64 << 20;

/// The longest flattened key in bytes, and the most keys of a checkpoint. A flattened key repeats
/// its parents, so a file of megabytes could otherwise need terabytes. Real configs stay far below.
const MAX_KEY_BYTES: usize = 512;
const MAX_KEYS: usize = 1 << 18;

/// Numbers that are not finite, as Python's `json` writes them; JSON lacks them.
const NON_FINITE: [(&str, f64); 3] =
    [("NaN", f64::NAN), ("Infinity", f64::INFINITY), ("-Infinity", f64::NEG_INFINITY)];

/// Reads a JSON file. Non-finite numbers, which Python writes though JSON lacks them, become
/// strings that [`flatten`] turns back. They are refused only where a number is used.
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
    parse_json(&map).map_err(|e| Error::malformed(path, "JSON", e, "a JSON document"))
}

fn parse_json(text: &[u8]) -> serde_json::Result<Json> {
    serde_json::from_slice(text).or_else(|error| match mark_non_finite(text) {
        Some(marked) => serde_json::from_slice(&marked),
        None => Err(error),
    })
}

/// The text with each non-finite number as a string that begins with NUL; `None` if there is no
/// such number.
fn mark_non_finite(text: &[u8]) -> Option<Vec<u8>> {
    let mut marked = Vec::with_capacity(text.len());
    let (mut in_string, mut found) = (false, false);
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        let word = NON_FINITE.iter().find(|(word, _)| !in_string && rest.starts_with(word.as_bytes()));
        if let Some((word, _)) = word {
            marked.extend(br#""\u0000"#);
            marked.extend(word.as_bytes());
            marked.push(b'"');
            rest = rest.get(word.len()..).unwrap_or_default();
            found = true;
            continue;
        }
        marked.push(byte);
        rest = after;
        match (byte, after.split_first()) {
            (b'"', _) => in_string = !in_string,
            (b'\\', Some((escaped, after))) if in_string => {
                marked.push(*escaped);
                rest = after;
            }
            _ => {}
        }
    }
    found.then_some(marked)
}

/// A number as JSON. A non-finite one is a string that begins with NUL, which [`flatten`] turns
/// back.
pub(crate) fn number(number: f64) -> Json {
    let word = if number.is_nan() {
        NON_FINITE[0].0
    } else if number > 0.0 {
        NON_FINITE[1].0
    } else {
        NON_FINITE[2].0
    };
    serde_json::Number::from_f64(number).map_or_else(|| Json::String(format!("\0{word}")), Json::Number)
}

/// The non-finite number of a marked string, or of an object as transformers 5 writes it:
/// `{"__float__": "Infinity"}`.
fn non_finite(json: &Json) -> Option<f64> {
    let word = match json {
        Json::String(text) => text.strip_prefix('\0')?,
        Json::Object(object) if object.len() == 1 => object.get("__float__")?.as_str()?,
        _ => return None,
    };
    NON_FINITE.iter().find(|(known, _)| *known == word).map(|(_, number)| *number)
}

/// Appends the entries of a JSON object, with `prefix` before their keys.
///
/// Keys of nested objects are joined with dots. A list of only integers, numbers, booleans or
/// strings becomes one [`Value::Array`]; other lists are flattened with indices as keys. An empty
/// object adds nothing, and an empty list adds an empty list of integers.
///
/// # Errors
/// `json` is not an object, a flattened key is present already or too long, or there are too many
/// keys.
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
    if key.len() > MAX_KEY_BYTES {
        let start: String = key.chars().take(40).collect();
        return Err(Error::malformed(
            path,
            format_args!("key {start:?}…"),
            format_args!("{} bytes, parent keys included", key.len()),
            format_args!("at most {MAX_KEY_BYTES}"),
        ));
    }
    if let Some(number) = non_finite(json) {
        return insert(Value::Float(number), key, path, metadata);
    }
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
    insert(value, key, path, metadata)
}

/// Appends an entry.
fn insert(value: Value, key: String, path: &Path, metadata: &mut Metadata) -> Result<()> {
    if metadata.get(&key).is_some() {
        return Err(Error::malformed(
            path,
            format_args!("key {key:?}"),
            "it a second time",
            "every key once",
        ));
    }
    if metadata.len() >= MAX_KEYS {
        return Err(Error::malformed(
            path,
            format_args!("key {key:?}"),
            format_args!("{MAX_KEYS} keys before it"),
            "fewer",
        ));
    }
    metadata.insert(key, value);
    Ok(())
}

/// The list as an array, if its items are scalars of one kind.
fn scalar_array(items: &[Json]) -> Option<Array> {
    if let Some(ints) = items.iter().map(Json::as_i64).collect() {
        return Some(Array::Int(ints));
    }
    let float = |v: &Json| v.as_f64().or_else(|| non_finite(v));
    if let Some(floats) = items.iter().map(|v| float(v).map(|f| f as f32)).collect() {
        return Some(Array::Float(floats));
    }
    if let Some(bools) = items.iter().map(Json::as_bool).collect() {
        return Some(Array::Bool(bools));
    }
    let text = |v| Json::as_str(v).filter(|_| non_finite(v).is_none());
    let strings: Vec<&str> = items.iter().map(text).collect::<Option<_>>()?;
    // Offsets fit into u32, because the file's size is limited.
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
    fn numbers_that_are_not_finite_are_read_as_python_writes_them() {
        let json = r#"{"a": NaN, "b": [-Infinity, 1, Infinity], "c": "NaN \" Infinity", "d\\": Infinity, "e": {"f":NaN},
            "g": ["x", NaN], "h": {"__float__": "-Infinity"}, "i": [0.5, {"__float__": "Infinity"}],
            "j": {"__float__": "1"}}"#;
        let mut m = Metadata::default();
        flatten(&parse_json(json.as_bytes()).unwrap(), "", Path::new("config.json"), &mut m).unwrap();
        assert!(m.f64("a").unwrap().is_nan() && m.f64("e.f").unwrap().is_nan());
        let expected = [f32::NEG_INFINITY, 1.0, f32::INFINITY];
        assert!(matches!(m.array("b"), Some(Array::Float(v)) if *v == expected));
        assert_eq!(m.str("c"), Some("NaN \" Infinity"), "words in a string stay");
        assert_eq!(m.f64("d\\"), Some(f64::INFINITY));
        assert_eq!((m.f64("h"), m.str("j.__float__")), (Some(f64::NEG_INFINITY), Some("1")));
        assert!(matches!(m.array("i"), Some(Array::Float(v)) if *v == [0.5, f32::INFINITY]));
        assert!(m.str("g.0") == Some("x") && m.f64("g.1").unwrap().is_nan());
        // Other words are not numbers, and a number ends at a delimiter.
        for bad in
            [r#"{"a": nan}"#, r#"{"a": NaN1}"#, r#"{"a": -NaN}"#, r#"{"a": "NaN}"#, "NaN NaN", r#"{"a": "\"#]
        {
            assert!(parse_json(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn colliding_keys_are_refused() {
        let error = flat(r#"{"a": {"b": 1}, "a.b": 2}"#).unwrap_err().to_string();
        assert!(error.contains("config.json") && error.contains("a.b"), "{error}");
        assert!(flat("[1]").is_err());
    }

    #[test]
    fn nesting_cannot_multiply_a_file() {
        // Three nested keys of 200 bytes contain thousands of short ones, each of which would
        // repeat them.
        let long = "k".repeat(200);
        let leaves: Vec<String> = (0..10_000).map(|i| format!("\"{i}\": 1")).collect();
        let leaves = leaves.join(",");
        let nested = format!("{{\"{long}\": {{\"{long}\": {{\"{long}\": {{{leaves}}}}}}}}}");
        let error = flat(&nested).unwrap_err().to_string();
        assert!(error.contains("602 bytes") && error.contains("at most 512"), "{error}");
        let many: Vec<String> = (0..=MAX_KEYS).map(|i| format!("\"{i}\":1")).collect();
        let error = flat(&format!("{{{}}}", many.join(","))).unwrap_err().to_string();
        assert!(error.contains("262144 keys"), "{error}");
    }
}
