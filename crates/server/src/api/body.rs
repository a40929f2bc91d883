//! JSON bodies: what is wrong is named by its path, unknown keys are ignored.

use axum::body::Bytes;
use axum::extract::{FromRef, FromRequest, Request};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::app::App;
use crate::error::{ApiError, ErrorKind};
use crate::handlers::SMALL;
use crate::limits::{self, MAX_BODY};

/// A body that is JSON of `T`, whatever its content type says.
pub struct JsonBody<T>(pub T);

impl<T, S> FromRequest<S> for JsonBody<T>
where
    T: DeserializeOwned + Send + 'static,
    S: Send + Sync,
    App: FromRef<S>,
{
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let bytes =
            Bytes::from_request(request, state).await.map_err(|rejection| match rejection.status() {
                axum::http::StatusCode::PAYLOAD_TOO_LARGE => {
                    let message =
                        format!("the body is longer than it may be, expected at most {MAX_BODY} bytes");
                    ApiError::new(ErrorKind::TooLarge, message)
                }
                _ => ApiError::new(ErrorKind::Invalid, rejection.body_text()),
            })?;
        let is_small = bytes.len() <= SMALL;
        let read = move || limits::check(&bytes).and_then(|()| parse(&bytes));
        let found = match is_small {
            true => read(),
            false => App::from_ref(state).preparing().run(move |_| read()).await,
        };
        found.map(JsonBody)
    }
}

/// A text, empty for `null`: clients that set no model say so.
///
/// # Errors
/// It is neither.
pub fn text_or_null<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Some of an object's keys; what is wrong is named by its path after `prefix`, which a flattened struct would lose.
///
/// # Errors
/// A value is not as expected.
pub fn part<'de, T: Deserialize<'de>>(object: &'de Value, prefix: &str) -> Result<T, ApiError> {
    serde_path_to_error::deserialize(object).map_err(|error| wrong(&error, prefix))
}

/// A body of at most so many bytes and keys is read again, once for each key, to find which of them is wrong.
const MAX_SEARCHED: usize = 16 << 10;
const MAX_KEYS_SEARCHED: usize = 64;

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let found = match serde_path_to_error::deserialize(&mut json) {
        Ok(found) => found,
        Err(error) => {
            return with_integers(bytes).unwrap_or(Err(error)).map_err(|error| {
                let error = wrong(&error, "");
                match wrong_key::<T>(bytes).filter(|_| error.param.is_none()) {
                    Some(key) => ApiError::invalid(&key, format!("`{key}`: {}", error.message)),
                    None => error,
                }
            });
        }
    };
    match json.end() {
        Ok(()) => Ok(found),
        Err(error) => {
            let message = format!("found more after the body's JSON, expected its end: {error}");
            Err(ApiError::new(ErrorKind::Invalid, message))
        }
    }
}

type Parsed<T> = std::result::Result<T, serde_path_to_error::Error<serde_json::Error>>;

/// A body read with its integers that are written as fractions: in JSON 8.0 is the integer 8. `None`: there are none.
fn with_integers<T: DeserializeOwned>(bytes: &[u8]) -> Option<Parsed<T>> {
    let mut body = serde_json::from_slice(bytes).ok()?;
    make_integers(&mut body).then(|| serde_path_to_error::deserialize(body))
}

/// Whether there were fractions that are integers. JSON's depth has been bounded by its parser.
fn make_integers(value: &mut Value) -> bool {
    match value {
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            // Larger ones need not be what the client meant.
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

/// The key without which the body would be as expected. Errors within flattened structs have no path.
fn wrong_key<T: DeserializeOwned>(bytes: &[u8]) -> Option<String> {
    if bytes.len() > MAX_SEARCHED {
        return None;
    }
    let body: Map<String, Value> = serde_json::from_slice(bytes).ok()?;
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

fn wrong(error: &serde_path_to_error::Error<serde_json::Error>, prefix: &str) -> ApiError {
    // Clients know nothing of the names of our structs.
    let message = error.inner().to_string().replace("expected struct Body", "expected an object");
    // Of these the path leads to the object, not to the key.
    let named = |begin: &str| Some(message.strip_prefix(begin)?.split_once('`')?.0.to_owned());
    let missing = named("missing field `").or_else(|| named("duplicate field `"));
    let message = format!("the body is not as expected: {message}");
    match error.path().to_string().as_str() {
        // The second where the text is not JSON.
        "." | "?" => ApiError { param: missing, ..ApiError::new(ErrorKind::Invalid, message) },
        path => ApiError::invalid(format!("{prefix}{path}"), format!("`{prefix}{path}`: {message}")),
    }
}

#[cfg(test)]
mod tests {
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
        assert!(error.param.is_none() && error.message.contains("invalid type"), "{}", error.message);
        // Each key by itself took minutes.
        assert!(begun.elapsed() < std::time::Duration::from_secs(20), "{:?}", begun.elapsed());
    }

    #[test]
    fn errors_name_the_key() {
        assert!(parse::<Body>(br#"{"list":[1,2],"other":3}"#).is_ok());
        let error = parse::<Body>(br#"{"list":[1,"x"]}"#).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("list[1]"));
        assert!(error.message.contains("invalid type: string \"x\""), "{}", error.message);
        assert_eq!(parse::<Body>(b"{").unwrap_err().kind, ErrorKind::Invalid);
        assert_eq!(parse::<Body>(b"{}").unwrap_err().param.as_deref(), Some("list"));
        let error = parse::<Body>(br#"{"list":[],"number":"x"}"#).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("number"), "{}", error.message);
        let error = parse::<Body>(br#"{"number":1,"list":[1],"list":[2]}"#).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("list"), "{}", error.message);
        let error = parse::<Body>(br#"{"number":1,"list":[1],"number":2}"#).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("number"), "{}", error.message);
        let error = parse::<Body>(b"7").unwrap_err();
        assert!(error.message.ends_with("expected an object at line 1 column 1"), "{}", error.message);
        assert!(parse::<Body>(b"{\"list\":[]} \n").is_ok());
        let error = parse::<Body>(br#"{"list":[]} x"#).unwrap_err();
        assert!(error.message.contains("expected its end"), "{}", error.message);
    }
}
