//! Keys that `/api/chat` and `/api/generate` share: `options`, `format`, `think`.

use serde::Deserialize;
use serde_json::{Map, Number, Value, json};
use text::Grammar;

use super::common::texts;
use crate::api::body::part;
use crate::api::keep_alive::keep_alive;
use crate::api::sampling::SamplingKeys;
use runner::Effort;
use runner::warnings::warn;
use runner::{GenerateOptions, KeepAlive};
use runner::{RequestError, Result};

/// Keys other than the messages or the prompt.
#[derive(Debug, Deserialize)]
pub(super) struct Common {
    #[serde(default)]
    pub(super) model: String,
    pub(super) stream: Option<bool>,
    options: Option<Map<String, Value>>,
    format: Option<Value>,
    keep_alive: Option<Value>,
    think: Option<Value>,
    logprobs: Option<bool>,
    top_logprobs: Option<usize>,
    shift: Option<bool>,
    pub(super) truncate: Option<bool>,
}

/// Keys of `options` beyond the sampling keys. Keys about loading (`num_gpu`, `num_thread`, …) are
/// the operator's decision and are ignored.
#[derive(Debug, Deserialize)]
struct OptionKeys {
    num_predict: Option<i64>,
    num_ctx: Option<i64>,
    stop: Option<Value>,
    tfs_z: Option<f32>,
    penalize_newline: Option<bool>,
}

/// Default window of penalties in tokens.
const PENALTY_WINDOW: usize = 64;

/// Common keys after parsing.
#[derive(Debug, Default)]
pub(super) struct Read {
    pub(super) options: GenerateOptions,
    pub(super) grammar: Option<Grammar>,
    pub(super) thinking: Option<bool>,
    pub(super) effort: Option<Effort>,
    /// `num_ctx` of the request, in tokens.
    pub(super) n_ctx: Option<usize>,
}

impl Common {
    pub(super) fn keep_alive(&self) -> Result<Option<KeepAlive>> {
        self.keep_alive.as_ref().filter(|value| !value.is_null()).map(keep_alive).transpose()
    }

    pub(super) fn read(&self) -> Result<Read> {
        if self.shift == Some(true) {
            warn("`shift` is ignored: an answer ends where the context is full");
        }
        let with_logprobs = self.logprobs.unwrap_or(false);
        if self.top_logprobs.is_some_and(|n| n > 0) && !with_logprobs {
            return Err(RequestError::invalid("top_logprobs", "`top_logprobs` needs `logprobs` to be true"));
        }
        let (keys, sampling) = self.option_keys()?;
        let mut options = GenerateOptions {
            // -1 and -2 mean until the model ends or the context is full.
            max_tokens: keys.num_predict.and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0),
            stop: texts("options.stop", keys.stop)?,
            logprobs: with_logprobs.then(|| self.top_logprobs.unwrap_or(0)),
            ..GenerateOptions::default()
        };
        sampling.apply(&mut options)?;
        if options.given.penalty_window.is_none() {
            options.sampling.penalty_window = PENALTY_WINDOW;
        }
        options.keep_alive = self.keep_alive()?;
        for (name, is_asked) in [
            ("options.tfs_z", keys.tfs_z.is_some_and(|z| z != 1.0)),
            ("options.penalize_newline", keys.penalize_newline == Some(false)),
        ] {
            if is_asked {
                return Err(RequestError::unsupported(name));
            }
        }
        let grammar = sampling.grammar(self.format()?)?;
        let (thinking, effort) = self.think()?;
        let n_ctx = keys.num_ctx.and_then(|n| usize::try_from(n).ok());
        Ok(Read { options, grammar, thinking, effort, n_ctx })
    }

    fn option_keys(&self) -> Result<(OptionKeys, SamplingKeys)> {
        let mut given = self.options.clone().unwrap_or_default();
        given.retain(|_, value| !value.is_null());
        given.values_mut().for_each(whole);
        let given = Value::Object(given);
        Ok((part(&given, "options.")?, part(&given, "options.")?))
    }

    fn format(&self) -> Result<Option<Grammar>> {
        match &self.format {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(word)) if word.is_empty() => Ok(None),
            Some(Value::String(word)) if word == "json" => Ok(Some(Grammar::AnyJson)),
            Some(schema @ Value::Object(_)) => Ok(Some(Grammar::JsonSchema(schema.clone()))),
            Some(other) => {
                let message = format!("`format` is {other}, expected \"json\" or a JSON Schema");
                Err(RequestError::invalid("format", message))
            }
        }
    }

    /// Reads `think`: on or off, and the effort.
    fn think(&self) -> Result<(Option<bool>, Option<Effort>)> {
        match &self.think {
            None | Some(Value::Null) => Ok((None, None)),
            Some(Value::Bool(thinks)) => Ok((Some(*thinks), None)),
            Some(Value::String(word)) => match word.as_str() {
                "" => Ok((None, None)),
                "true" => Ok((Some(true), None)),
                "false" => Ok((Some(false), None)),
                other => match Effort::named(other) {
                    Some(effort) => Ok((Some(effort.thinks().unwrap_or(true)), Some(effort))),
                    None => Err(wrong_think(&json!(other))),
                },
            },
            Some(other) => Err(wrong_think(other)),
        }
    }
}

fn wrong_think(found: &Value) -> RequestError {
    RequestError::invalid(
        "think",
        format!("`think` is {found}, expected true, false, \"low\", \"medium\" or \"high\""),
    )
}

/// Converts `40.0` to `40`, for clients whose language has no integers.
fn whole(value: &mut Value) {
    if let Some(number) = value.as_f64().filter(|n| value.is_f64() && n.fract() == 0.0 && n.abs() < 1e15) {
        *value = Value::Number(Number::from(number as i64));
    }
}

/// Logs that a client wants a longer context than the model has. It is no error: most clients send
/// `num_ctx` without need.
pub(super) fn note_context(wanted: Option<usize>, n_ctx: Option<usize>, model: &str) {
    if let (Some(wanted), Some(n_ctx)) = (wanted, n_ctx)
        && wanted > n_ctx
    {
        tracing::warn!(
            "a client requests a context of {wanted} tokens (num_ctx) for {model}, which has {n_ctx}; see --ctx"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use engine::SamplingChoice;

    use super::*;

    fn read(body: Value) -> Result<Read> {
        serde_json::from_value::<Common>(body).unwrap().read()
    }

    #[test]
    fn missing_options_are_left_to_the_model() {
        let options = read(json!({ "options": { "top_p": null, "num_gpu": 99 } })).unwrap().options;
        assert_eq!(options.given, SamplingChoice::default());
        assert_eq!(options.sampling.penalty_window, 64);
    }

    #[test]
    fn options_become_options() {
        let found = read(json!({
            "keep_alive": "5m", "think": "high", "format": "json", "logprobs": true, "top_logprobs": 2,
            "options": {
                "num_predict": 7.0, "num_ctx": 4096, "stop": "x", "temperature": 0, "top_k": 3.0, "repeat_last_n": -1,
                "keep_alive": 3, "mirostat": 2,
            },
        }))
        .unwrap();
        let Read { options, grammar, thinking, effort, n_ctx } = found;
        assert_eq!((options.max_tokens, n_ctx, options.logprobs), (Some(7), Some(4096), Some(2)));
        assert_eq!((options.sampling.temperature, options.sampling.top_k), (0.0, 3));
        assert_eq!((options.sampling.penalty_window, options.stop), (0, vec!["x".to_owned()]));
        assert_eq!(options.keep_alive, Some(KeepAlive::For(Duration::from_secs(300))));
        assert_eq!(options.sampling.mirostat.map(|mirostat| mirostat.version), Some(2));
        assert!(matches!(grammar, Some(Grammar::AnyJson)));
        assert_eq!((thinking, effort), (Some(true), Some(Effort::High)));
        for n in [-1, -2, 0] {
            assert_eq!(read(json!({ "options": { "num_predict": n } })).unwrap().options.max_tokens, None);
        }
        assert_eq!(read(json!({ "think": false })).unwrap().thinking, Some(false));
        // `true` is Ollama's default.
        assert!(read(json!({ "shift": true })).is_ok());
        assert!(read(json!({ "format": "" })).unwrap().grammar.is_none());
    }

    #[test]
    fn errors_name_the_value() {
        for (body, param) in [
            (json!({ "format": "yaml" }), "format"),
            (json!({ "think": "a lot" }), "think"),
            (json!({ "think": 1 }), "think"),
            (json!({ "keep_alive": "soon" }), "keep_alive"),
            (json!({ "top_logprobs": 3 }), "top_logprobs"),
            (json!({ "options": { "num_predict": "many" } }), "options.num_predict"),
            (json!({ "options": { "temperature": -1 } }), "temperature"),
            (json!({ "options": { "temperature": "hot" } }), "options.temperature"),
            (json!({ "options": { "stop": ["a", 1] } }), "options.stop"),
            (json!({ "options": { "tfs_z": 0.5 } }), "options.tfs_z"),
        ] {
            assert_eq!(read(body.clone()).unwrap_err().param.as_deref(), Some(param), "{body}");
        }
    }
}
