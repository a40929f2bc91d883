//! `/completion`

use std::time::Duration;

use axum::extract::{Extension, State};
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::answer::{self, CompletionShape};
use crate::api::body::{JsonBody, part};
use crate::api::sampling::{FORBIDDEN, SamplingKeys};
use crate::api::timing::TimingKeys;
use crate::error::HttpResult;
use runner::Runner;
use runner::{Caller, CompletionRequest, GenerateOptions, Prompt};
use runner::{RequestError, Result};

/// Keys other than the prompt.
#[derive(Deserialize)]
pub(super) struct Keys {
    #[serde(default)]
    pub(super) model: String,
    #[serde(alias = "max_tokens")]
    n_predict: Option<i64>,
    stream: Option<bool>,
    stop: Option<Vec<String>>,
    n_probs: Option<usize>,
    return_tokens: Option<bool>,
    response_fields: Option<Vec<String>>,
    /// Time limit in milliseconds.
    t_max_predict_ms: Option<i64>,
    #[serde(skip)]
    timing: TimingKeys,
    post_sampling_probs: Option<bool>,
    // Known keys that are not built. Values that would change the answer are refused.
    n_indent: Option<i64>,
    n_keep: Option<i64>,
    n_cmpl: Option<usize>,
    lora: Option<Value>,
    #[serde(skip)]
    sampling: SamplingKeys,
}

/// Default window of penalties in tokens. The other APIs count the whole text.
pub(super) const PENALTY_WINDOW: usize = 64;

/// Removes `null` values and converts `stop` to a list.
pub(super) fn tidy(mut body: Map<String, Value>) -> Value {
    body.retain(|_, value| !value.is_null());
    // llama-server accepts one text instead of a list.
    if let Some(stop) = body.get_mut("stop").filter(|stop| stop.is_string()) {
        *stop = json!([stop]);
    }
    Value::Object(body)
}

impl Keys {
    pub(super) fn of(body: &Value) -> Result<Keys> {
        let keys: Keys = part(body, "")?;
        Ok(Keys { sampling: part(body, "")?, timing: part(body, "")?, ..keys })
    }

    pub(super) fn wants_stream(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    /// Makes a request that continues `prompt`.
    pub(super) fn request(&self, prompt: Prompt) -> Result<CompletionRequest> {
        self.refuse_unbuilt()?;
        let mut options = GenerateOptions {
            // -1 is no limit; -2 means until the context is full.
            max_tokens: self.n_predict.and_then(|n| usize::try_from(n).ok()),
            stop: self.stop.clone().unwrap_or_default(),
            logprobs: self.n_probs.filter(|n| *n > 0),
            drawn_logprobs: self.post_sampling_probs == Some(true),
            // Events always include their tokens.
            with_tokens: self.return_tokens == Some(true) || self.wants_stream(),
            progress: self.timing.progress(self.wants_stream()),
            timeout: self
                .t_max_predict_ms
                .and_then(|ms| u64::try_from(ms).ok())
                .filter(|ms| *ms > 0)
                .map(Duration::from_millis),
            ..GenerateOptions::default()
        };
        self.sampling.apply(&mut options)?;
        if options.given.penalty_window.is_none() {
            options.sampling.penalty_window = PENALTY_WINDOW;
        }
        let grammar = self.sampling.grammar(None)?;
        Ok(CompletionRequest {
            model: self.model.clone(),
            prompt,
            grammar,
            options,
            ..CompletionRequest::default()
        })
    }

    pub(super) fn shape(&self, prompt: Value, request: &CompletionRequest) -> CompletionShape {
        CompletionShape {
            with_probs: self.n_probs.is_some_and(|n| n > 0),
            as_drawn: request.options.drawn_logprobs,
            with_tokens: request.options.with_tokens,
            timing: self.timing,
            fields: self.response_fields.clone().unwrap_or_default(),
            prompt,
            settings: self.settings(request),
        }
    }

    /// The generation settings in llama-server's words.
    fn settings(&self, request: &CompletionRequest) -> Value {
        let (options, sampling) = (&request.options, &request.options.sampling);
        let n_predict = self.n_predict.unwrap_or(-1);
        let bias = |(token, bias): &(u32, f32)| json!({ "token": token, "bias": bias });
        json!({
            "n_predict": n_predict, "max_tokens": n_predict, "stream": self.wants_stream(), "stop": options.stop,
            "n_probs": self.n_probs.unwrap_or(0), "ignore_eos": options.ignore_end, "seed": sampling.seed,
            "temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p,
            "min_p": sampling.min_p, "typical_p": sampling.typical_p, "top_n_sigma": sampling.top_n_sigma,
            "xtc_probability": sampling.xtc_probability, "xtc_threshold": sampling.xtc_threshold,
            "dynatemp_range": sampling.dynatemp_range, "dynatemp_exponent": sampling.dynatemp_exponent,
            "repeat_penalty": sampling.repeat_penalty, "repeat_last_n": sampling.penalty_window,
            "presence_penalty": sampling.presence_penalty, "frequency_penalty": sampling.frequency_penalty,
            "logit_bias": sampling.logit_bias.iter().map(bias).collect::<Vec<_>>(),
            "has_grammar": request.grammar.is_some(),
        })
    }

    fn refuse_unbuilt(&self) -> Result<()> {
        let found = [
            ("n_indent", self.n_indent.is_some_and(|n| n > 0)),
            ("n_keep", self.n_keep.is_some_and(|n| n != 0)),
            ("n_cmpl", self.n_cmpl.is_some_and(|n| n > 1)),
            (
                "lora",
                self.lora.as_ref().is_some_and(|lora| lora.as_array().is_none_or(|list| !list.is_empty())),
            ),
        ];
        match found.into_iter().find(|(_, is_asked)| *is_asked) {
            Some((name, _)) => Err(RequestError::unsupported(name)),
            None => Ok(()),
        }
    }
}

/// Converts `logit_bias` to an object of ids, as the other APIs have it. Here it may be a list of
/// pairs, and a text stands for each of its tokens. The bias `false` forbids a token.
pub(super) async fn with_biases(runner: &Runner, mut body: Value) -> Result<Value> {
    let wrong = |found: &Value| {
        let message =
            format!("`logit_bias` has {found}, expected pairs of a token or text, and a number or false");
        RequestError::invalid("logit_bias", message)
    };
    let pairs: Vec<(Value, Value)> = match body.get_mut("logit_bias").map(Value::take) {
        None => return Ok(body),
        Some(Value::Object(biases)) => {
            biases.into_iter().map(|(token, bias)| (Value::String(token), bias)).collect()
        }
        Some(Value::Array(pairs)) => {
            let pair = |pair: Value| match pair {
                Value::Array(mut two) if two.len() == 2 => Ok((two[0].take(), two[1].take())),
                other => Err(wrong(&other)),
            };
            pairs.into_iter().map(pair).collect::<Result<_>>()?
        }
        Some(other) => return Err(wrong(&other)),
    };
    let model = body["model"].as_str().unwrap_or_default().to_owned();
    let mut biases = Map::new();
    for (token, bias) in pairs {
        let bias = match bias {
            Value::Bool(false) => json!(FORBIDDEN),
            Value::Number(_) => bias,
            other => return Err(wrong(&other)),
        };
        match token {
            Value::Number(id) => drop(biases.insert(id.to_string(), bias)),
            Value::String(id) if id.parse::<u32>().is_ok() => drop(biases.insert(id, bias)),
            Value::String(text) => {
                for (id, _) in runner.tokenize(&model, text, false, true).await? {
                    biases.insert(id.to_string(), bias.clone());
                }
            }
            other => return Err(wrong(&other)),
        }
    }
    body["logit_bias"] = Value::Object(biases);
    Ok(body)
}

/// Maximum number of prompts of one request.
const MAX_PROMPTS: usize = 256;

pub(super) async fn create(
    State(runner): State<Runner>,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody<Map<String, Value>>,
) -> HttpResult<Response> {
    let body = with_biases(&runner, tidy(body)).await?;
    let given = body.get("prompt").cloned().ok_or_else(|| {
        RequestError::invalid("prompt", "`prompt` is missing, expected a text, tokens, or a list of either")
    })?;
    let keys = Keys::of(&body)?;
    let prompts = prompts(given)?;
    if keys.wants_stream() && prompts.len() > 1 {
        return Err(RequestError::invalid(
            "stream",
            "`prompt` has several prompts, expected one with `stream`",
        )
        .into());
    }
    let mut answers = Vec::new();
    for prompt in prompts {
        let mut request = keys.request(read(&runner, &keys.model, prompt.clone()).await?)?;
        // The answer repeats the settings.
        runner.fill_in(&keys.model, &mut request.options).await?;
        let shape = keys.shape(prompt, &request);
        answers.push((runner.complete(&caller, request).await?, shape));
    }
    if keys.wants_stream() {
        let only =
            answers.into_iter().next().ok_or_else(|| RequestError::internal("no answer was started"))?;
        return Ok(answer::stream(only.0, only.1));
    }
    let mut out = Vec::new();
    for (index, (begun, shape)) in answers.into_iter().enumerate() {
        out.push(answer::whole(begun, index, shape).await?);
    }
    Ok(answer::respond(out))
}

/// Splits `prompt`. A list of texts or of lists is several prompts; a list of tokens, or of tokens
/// and texts, is one.
fn prompts(given: Value) -> Result<Vec<Value>> {
    let several = match given {
        Value::Array(parts) => {
            let is_one = parts.iter().any(Value::is_number);
            if is_one { vec![Value::Array(parts)] } else { parts }
        }
        one => vec![one],
    };
    match (1..=MAX_PROMPTS).contains(&several.len()) {
        true => Ok(several),
        false => {
            let message = format!("`prompt` has {} entries, expected 1 to {MAX_PROMPTS}", several.len());
            Err(RequestError::invalid("prompt", message))
        }
    }
}

/// Tokens of a prompt: a text, `{"prompt_string": text}`, or a list of tokens and texts.
async fn read(runner: &Runner, model: &str, given: Value) -> Result<Prompt> {
    let wrong = |found: &Value| {
        let message = format!("`prompt` has {found}, expected a text, tokens, or a list of either");
        RequestError::invalid("prompt", message)
    };
    match given {
        Value::String(text) => Ok(Prompt::Text { text, parse_special: true }),
        Value::Object(mut object) => match object.remove("prompt_string") {
            Some(Value::String(text)) if !object.contains_key("multimodal_data") => {
                Ok(Prompt::Text { text, parse_special: true })
            }
            Some(Value::String(_)) => Err(RequestError::unsupported("multimodal_data")),
            _ => Err(wrong(&Value::Object(object))),
        },
        Value::Array(parts) => {
            let mut tokens = Vec::new();
            for part in parts {
                match part {
                    Value::String(text) => {
                        let begins = tokens.is_empty();
                        let found = runner.tokenize(model, text, begins, true).await?;
                        tokens.extend(found.into_iter().map(|(id, _)| id));
                    }
                    part => {
                        let id = part.as_u64().and_then(|id| u32::try_from(id).ok());
                        tokens.push(id.ok_or_else(|| wrong(&part))?);
                    }
                }
            }
            Ok(Prompt::Tokens(tokens))
        }
        other => Err(wrong(&other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_with_a_token_is_one_prompt() {
        let count = |given: Value| prompts(given).map(|prompts| prompts.len()).ok();
        assert_eq!(count(json!("a")), Some(1));
        assert_eq!(count(json!([1, 2])), Some(1));
        assert_eq!(count(json!([1, "a"])), Some(1));
        assert_eq!(count(json!(["a", "b"])), Some(2));
        assert_eq!(count(json!([[1], "b", [2, "c"]])), Some(3));
        assert_eq!(count(json!([])), None);
    }

    #[test]
    fn unsupported_keys_are_refused_by_name() {
        let request = |body: Value| {
            let Value::Object(body) = body else { panic!("an object") };
            Keys::of(&tidy(body)).and_then(|keys| keys.request(Prompt::default()))
        };
        for (body, name) in [
            (json!({ "n_keep": -1 }), "n_keep"),
            (json!({ "temperature": "hot" }), "temperature"),
            (json!({ "stop": 7 }), "stop"),
            (json!({ "mirostat": 3 }), "mirostat"),
        ] {
            let error = request(body).unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
        }
        let options = request(json!({ "n_predict": -1, "stop": "x", "n_probs": 3 })).unwrap().options;
        assert_eq!((options.max_tokens, options.logprobs), (None, Some(3)));
        assert_eq!((options.stop, options.sampling.penalty_window), (vec!["x".to_owned()], 64));
    }
}
