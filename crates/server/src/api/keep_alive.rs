//! `keep_alive`: how long a model stays loaded after a request.

use serde_json::Value;

use runner::KeepAlive;
use runner::{RequestError, Result};

/// Reads seconds, or a duration such as `5m`, `1h30m` or `300ms`. Negative values mean forever.
///
/// # Errors
/// The value is anything else.
pub fn keep_alive(value: &Value) -> Result<KeepAlive> {
    let wrong = || {
        let message = format!(
            "`keep_alive` is {value}, expected seconds or a duration such as \"5m\", or a negative value to keep the model loaded"
        );
        RequestError::invalid("keep_alive", message)
    };
    let seconds = match value {
        Value::Number(number) => number.as_f64().ok_or_else(wrong)?,
        Value::String(text) => duration(text).ok_or_else(wrong)?,
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => return Err(wrong()),
    };
    if seconds < 0.0 {
        return Ok(KeepAlive::Always);
    }
    std::time::Duration::try_from_secs_f64(seconds).map(KeepAlive::For).map_err(|_| wrong())
}

/// Parses `1h30m`, `-1` or `300ms` to seconds.
fn duration(text: &str) -> Option<f64> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text),
    };
    if let Ok(seconds) = rest.parse::<f64>() {
        return Some(sign * seconds);
    }
    if rest.is_empty() {
        return None;
    }
    let mut sum = 0.0;
    while !rest.is_empty() {
        let n_digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..n_digits].parse().ok()?;
        rest = &rest[n_digits..];
        let n_letters = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let unit = match &rest[..n_letters] {
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        sum += number * unit;
        rest = &rest[n_letters..];
    }
    Some(sign * sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::time::Duration;

    #[test]
    fn durations() {
        let of = |value: Value| keep_alive(&value).ok();
        assert_eq!(of(json!("1h30m")), Some(KeepAlive::For(Duration::from_secs(5400))));
        assert_eq!(of(json!("300ms")), Some(KeepAlive::For(Duration::from_millis(300))));
        assert_eq!(of(json!(0)), Some(KeepAlive::For(Duration::ZERO)));
        assert_eq!(of(json!("-1m")), Some(KeepAlive::Always));
        assert_eq!(of(json!("5x")), None);
        assert_eq!(of(json!("")), None);
    }
}
