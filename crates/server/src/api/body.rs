//! JSON bodies. Errors name the path of the wrong value; unknown keys are ignored.

use axum::body::Bytes;
use axum::extract::{FromRef, FromRequest, Request};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::error::{ApiError, HttpResult};
use crate::handlers::SMALL;
use crate::limits::{self, MAX_BODY};
use runner::Runner;
use runner::{ErrorKind, RequestError};

/// A body parsed as JSON of `T`, whatever its content type.
pub struct JsonBody<T>(pub T);

impl<T, S> FromRequest<S> for JsonBody<T>
where
    T: DeserializeOwned + Send + 'static,
    S: Send + Sync,
    Runner: FromRef<S>,
{
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> HttpResult<Self> {
        let bytes =
            Bytes::from_request(request, state).await.map_err(|rejection| match rejection.status() {
                axum::http::StatusCode::PAYLOAD_TOO_LARGE => {
                    let message = format!("the body is too long, expected at most {MAX_BODY} bytes");
                    RequestError::new(ErrorKind::TooLarge, message)
                }
                _ => RequestError::new(ErrorKind::Invalid, rejection.body_text()),
            })?;
        // Some Windows programs begin texts with a byte order mark, which RFC 8259 lets parsers
        // ignore.
        let bytes = match bytes.starts_with(BYTE_ORDER_MARK) {
            true => bytes.slice(BYTE_ORDER_MARK.len()..),
            false => bytes,
        };
        let is_small = bytes.len() <= SMALL;
        let read = move || limits::check(&bytes).and_then(|()| parse(&bytes));
        let found = match is_small {
            true => read(),
            false => Runner::from_ref(state).preparing().run(move |_| read()).await,
        };
        Ok(JsonBody(found?))
    }
}

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// A text; empty for `null`, which clients send if no model is set.
///
/// # Errors
/// The value is neither.
pub fn text_or_null<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Reads some of an object's keys. An error names the path of the wrong value after `prefix`, which
/// a struct that holds `T` flattened would lose.
///
/// # Errors
/// A value is not as expected.
pub fn part<T: DeserializeOwned>(object: &Value, prefix: &str) -> Result<T, RequestError> {
    serde_path_to_error::deserialize(object).map_err(|error| {
        let found = wrong(&error, prefix);
        let is_searched = |body: &&Map<String, Value>| found.param.is_none() && is_small(body);
        let key = object.as_object().filter(is_searched).and_then(wrong_key::<T>);
        key.map_or(found, |key| about(&format!("{prefix}{key}"), error.inner()))
    })
}

/// Maximum number of bytes and keys of a body that is parsed again without each key, to find the
/// wrong one.
const MAX_SEARCHED: usize = 16 << 10;
const MAX_KEYS_SEARCHED: usize = 64;

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, RequestError> {
    // serde would read a list as the values of the struct's fields.
    if bytes.trim_ascii_start().starts_with(b"[") {
        return Err(RequestError::new(ErrorKind::Invalid, "the body is a list, expected an object"));
    }
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let found = match serde_path_to_error::deserialize(&mut json) {
        Ok(found) => found,
        Err(error) => {
            return with_integers(bytes).unwrap_or(Err(error)).map_err(|error| {
                let found = wrong(&error, "");
                let key = Some(bytes).filter(|_| found.param.is_none()).and_then(wrong_key_of_text::<T>);
                key.map_or(found, |key| about(&key, error.inner()))
            });
        }
    };
    match json.end() {
        Ok(()) => Ok(found),
        Err(error) => {
            let message = format!("found text after the body's JSON, expected its end: {error}");
            Err(RequestError::new(ErrorKind::Invalid, message))
        }
    }
}

type Parsed<T> = std::result::Result<T, serde_path_to_error::Error<serde_json::Error>>;

/// Parses a body with fractions such as 8.0 as integers, which JSON does not distinguish. `None` if
/// there are none.
fn with_integers<T: DeserializeOwned>(bytes: &[u8]) -> Option<Parsed<T>> {
    let mut body = serde_json::from_slice(bytes).ok()?;
    make_integers(&mut body).then(|| serde_path_to_error::deserialize(body))
}

/// Replaces fractions that are integers. Returns true if there were any. The parser has bounded the
/// depth.
fn make_integers(value: &mut Value) -> bool {
    match value {
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            // Larger fractions may have been rounded.
            Some(fraction) if fraction.fract() == 0.0 && fraction.abs() < (1_u64 << 53) as f64 => {
                *number = (fraction as i64).into();
                true
            }
            _ => false,
        },
        Value::Array(values) => values.iter_mut().fold(false, |any, value| make_integers(value) | any),
        Value::Object(values) => values.values_mut().fold(false, |any, value| make_integers(value) | any),
        Value::Null | Value::Bool(_) | Value::String(_) => false,
    }
}

/// Finds the key without which the body is valid. Errors within flattened structs have no path.
fn wrong_key_of_text<T: DeserializeOwned>(bytes: &[u8]) -> Option<String> {
    if bytes.len() > MAX_SEARCHED {
        return None;
    }
    wrong_key::<T>(&serde_json::from_slice(bytes).ok()?)
}

/// Returns true if the JSON of a body has at most [`MAX_SEARCHED`] bytes. Stops at the limit.
fn is_small(body: &Map<String, Value>) -> bool {
    struct Budget(usize);
    impl std::io::Write for Budget {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 = self.0.checked_sub(bytes.len()).ok_or(std::io::ErrorKind::WriteZero)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    serde_json::to_writer(Budget(MAX_SEARCHED), body).is_ok()
}

/// Finds the key without which these keys are valid.
fn wrong_key<T: DeserializeOwned>(body: &Map<String, Value>) -> Option<String> {
    if body.len() > MAX_KEYS_SEARCHED {
        return None;
    }
    let is_wrong = |key: &&String| {
        let mut others = body.clone();
        others.remove(*key);
        T::deserialize(Value::Object(others)).is_ok()
    };
    body.keys().find(is_wrong).cloned()
}

fn wrong(error: &serde_path_to_error::Error<serde_json::Error>, prefix: &str) -> RequestError {
    match error.path().to_string().as_str() {
        // "?" is the path of text that is not JSON.
        "." | "?" => about("", error.inner()),
        path => about(&format!("{prefix}{path}"), error.inner()),
    }
}

/// Describes the wrong value at this path in JSON's words, since clients do not know Rust's types.
/// The path of the body itself is empty.
fn about(path: &str, error: &serde_json::Error) -> RequestError {
    let whole = error.to_string();
    if !error.is_data() {
        let message = match (error.is_eof(), error.line(), error.column()) {
            (true, 1, 0) => "the body is empty, expected a JSON object".to_owned(),
            _ => format!("the body is not JSON: {whole}"),
        };
        return RequestError::new(ErrorKind::Invalid, message);
    }
    // The key is more useful than line and column.
    let message = whole.rsplit_once(" at line ").map_or(whole.as_str(), |(before, _)| before);
    let quoted = |begin: &str| Some(message.strip_prefix(begin)?.split_once('`')?.0);
    // The path of a missing or duplicate key names its object.
    let joined = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    if let Some(key) = quoted("missing field `") {
        return RequestError::invalid(joined(key), format!("`{}` is missing", joined(key)));
    }
    if let Some(key) = quoted("duplicate field `") {
        return RequestError::invalid(joined(key), format!("`{}` occurs twice, expected once", joined(key)));
    }
    let place = if path.is_empty() { "the body".to_owned() } else { format!("`{path}`") };
    let (found, expected) = match message.rsplit_once(", expected ") {
        Some((found, expected)) => (found, in_json(expected)),
        None => ("", ""),
    };
    let value = ["invalid type: ", "invalid value: ", "unknown variant "]
        .into_iter()
        .find_map(|begin| found.strip_prefix(begin));
    let message = match value {
        Some(value) => format!("{place} is {}, expected {expected}", found_in_json(value)),
        None if message.starts_with("expected ") => format!("{place}: {message}"),
        None => format!("{place} is not as expected: {message}"),
    };
    match path {
        "" => RequestError::new(ErrorKind::Invalid, message),
        path => RequestError::invalid(path, message),
    }
}

/// JSON's name of a Rust type; an expectation that a type words itself stays.
fn in_json(expected: &str) -> &str {
    match expected {
        "f32" | "f64" => "a number",
        "i64" => "an integer of 64 bits",
        "i8" | "i16" | "i32" => "an integer",
        "u8" | "u16" | "u32" | "u64" | "usize" => "an integer of at least 0",
        "a sequence" => "a list",
        "a map" => "an object",
        "a string" => "a text",
        "a boolean" => "true or false",
        other if other.starts_with("struct ") => "an object",
        other => other,
    }
}

/// A found value as JSON writes it.
fn found_in_json(found: &str) -> &str {
    let quoted =
        ["integer `", "floating point `", "boolean `"].into_iter().find_map(|kind| found.strip_prefix(kind));
    match (quoted, found) {
        (Some(value), _) => value.trim_end_matches('`'),
        (None, "sequence") => "a list",
        (None, "map") => "an object",
        (None, other) => other.strip_prefix("string ").unwrap_or(other),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[derive(Debug, serde::Deserialize)]
    #[allow(dead_code)]
    struct Body {
        list: Vec<u32>,
        #[serde(flatten)]
        more: More,
    }

    #[derive(Debug, serde::Deserialize)]
    #[allow(dead_code)]
    struct More {
        number: Option<f32>,
    }

    #[test]
    fn errors_name_no_rust_types() {
        #[derive(Debug, serde::Deserialize)]
        #[allow(dead_code)]
        struct Kinds {
            integer: Option<i64>,
            count: Option<usize>,
            flag: Option<bool>,
            text: Option<String>,
            word: Option<Word>,
            inner: Option<Body>,
        }
        #[derive(Debug, serde::Deserialize)]
        #[serde(rename_all = "lowercase")]
        enum Word {
            Float,
            Base64,
        }
        for (body, message) in [
            (r#"{"integer":"7"}"#, "`integer` is \"7\", expected an integer of 64 bits"),
            (
                r#"{"integer":9223372036854775808}"#,
                "`integer` is 9223372036854775808, expected an integer of 64 bits",
            ),
            (r#"{"count":-1}"#, "`count` is -1, expected an integer of at least 0"),
            (r#"{"count":1.5}"#, "`count` is 1.5, expected an integer of at least 0"),
            (r#"{"count":true}"#, "`count` is true, expected an integer of at least 0"),
            (r#"{"flag":5}"#, "`flag` is 5, expected true or false"),
            (r#"{"text":[]}"#, "`text` is a list, expected a text"),
            (r#"{"text":{}}"#, "`text` is an object, expected a text"),
            (r#"{"word":"x"}"#, "`word` is `x`, expected `float` or `base64`"),
            (r#"{"inner":5}"#, "`inner` is 5, expected an object"),
            (r#"{"inner":{"list":null}}"#, "`inner.list` is null, expected a list"),
            (r#"{"inner":{}}"#, "`inner.list` is missing"),
            ("[1]", "the body is a list, expected an object"),
        ] {
            let error = parse::<Kinds>(body.as_bytes()).unwrap_err();
            assert_eq!(error.message, message, "{body}");
        }
    }

    #[test]
    fn integers_may_be_written_as_fractions() {
        let found = parse::<Body>(br#"{"list":[1.0,2e0],"number":0.5}"#).unwrap();
        assert_eq!((found.list, found.more.number), (vec![1, 2], Some(0.5)));
        let error = parse::<Body>(br#"{"list":[1.0,2.5]}"#).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("list[1]"), "{}", error.message);
        assert!(parse::<Body>(br#"{"list":[1.0]} x"#).is_err());
    }

    #[test]
    fn a_wrong_key_among_many_is_not_looked_for() {
        let keys: Vec<String> = (0..6500).map(|n| format!("\"k{n}\":1")).collect();
        let body = format!("{{\"list\":[],{},\"number\":\"x\"}}", keys.join(","));
        let begun = std::time::Instant::now();
        let error = parse::<Body>(body.as_bytes()).unwrap_err();
        assert!(error.param.is_none() && error.message.ends_with("expected a number"), "{}", error.message);
        // Parsing once for each key took minutes.
        assert!(begun.elapsed() < std::time::Duration::from_secs(20), "{:?}", begun.elapsed());
    }

    #[test]
    fn errors_name_the_key() {
        assert!(parse::<Body>(br#"{"list":[1,2],"other":3}"#).is_ok());
        let error = parse::<Body>(br#"{"list":[1,"x"]}"#).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("list[1]"));
        assert_eq!(error.message, "`list[1]` is \"x\", expected an integer of at least 0");
        assert_eq!(parse::<Body>(b"{").unwrap_err().kind, ErrorKind::Invalid);
        assert_eq!(parse::<Body>(b"{}").unwrap_err().param.as_deref(), Some("list"));
        let error = parse::<Body>(br#"{"list":[],"number":"x"}"#).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("number"), "{}", error.message);
        let error = parse::<Body>(br#"{"number":1,"list":[1],"list":[2]}"#).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("list"), "{}", error.message);
        let error = parse::<Body>(br#"{"number":1,"list":[1],"number":2}"#).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("number"), "{}", error.message);
        let error = parse::<Body>(b"7").unwrap_err();
        assert_eq!(error.message, "the body is 7, expected an object");
        assert_eq!(parse::<Body>(b"").unwrap_err().message, "the body is empty, expected a JSON object");
        assert_eq!(parse::<Body>(br#"{"number":1}"#).unwrap_err().message, "`list` is missing");
        assert!(parse::<Body>(b"{\"list\":[]} \n").is_ok());
        let error = parse::<Body>(br#"{"list":[]} x"#).unwrap_err();
        assert!(error.message.contains("expected its end"), "{}", error.message);
    }

    #[test]
    fn parts_of_small_bodies_name_flattened_keys() {
        #[derive(Debug, Deserialize)]
        struct FlatKeys {
            n: Option<u32>,
        }
        #[derive(Debug, Deserialize)]
        struct KeyHolder {
            #[serde(flatten)]
            keys: FlatKeys,
        }
        let read = |body: Value| part::<KeyHolder>(&body, "options.");
        assert_eq!(read(json!({ "n": 7 })).unwrap().keys.n, Some(7));
        let param = |body: Value| read(body).unwrap_err().param;
        assert_eq!(param(json!({ "a": 1, "n": "x" })).as_deref(), Some("options.n"));
        assert_eq!(param(json!({ "a": "x".repeat(MAX_SEARCHED), "n": "x" })), None);
    }
}
