//! The keys of sampling that the APIs share, with the extensions that clients of llama.cpp and vLLM send.

use std::sync::Arc;

use engine::{Dry, DryBreakers, Mirostat, SamplerName, SamplingChoice, SamplingParams};
use serde::Deserialize;
use serde_json::{Value, json};
use text::{Grammar, Trigger};

use crate::error::{ApiError, ErrorKind, Result};
use crate::request::{GenerateOptions, KeepAlive};

/// The bias of a token that is forbidden: far below every logit.
pub(super) const FORBIDDEN: f32 = -1e9;

/// A seed of 64 bits, as a number with a sign or without one.
fn seed<'de, D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Option<i64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected an integer of 64 bits")]
    enum Seed {
        Signed(i64),
        Unsigned(u64),
    }
    Ok(Option::deserialize(deserializer)?.map(|seed| match seed {
        Seed::Signed(seed) => seed,
        Seed::Unsigned(seed) => seed as i64,
    }))
}

/// Flattened into the requests of several APIs. `null` is as if the key were not there.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct SamplingKeys {
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<i64>,
    min_p: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    #[serde(alias = "repetition_penalty")]
    repeat_penalty: Option<f32>,
    repeat_last_n: Option<i64>,
    #[serde(default, deserialize_with = "seed")]
    seed: Option<i64>,
    /// An object of tokens' ids, or pairs of them and of a number or `false`.
    logit_bias: Option<Value>,
    ignore_eos: Option<bool>,
    min_tokens: Option<usize>,
    stop_token_ids: Option<Vec<u32>>,
    priority: Option<i32>,
    keep_alive: Option<Value>,
    cache_prompt: Option<bool>,
    #[serde(flatten)]
    more: MoreSamplers,
    #[serde(flatten)]
    unbuilt: Unbuilt,
    /// The grammar begins where a trigger stands in the text.
    grammar_lazy: Option<bool>,
    grammar_triggers: Option<Vec<TriggerKeys>>,
    structural_tag: Option<Value>,
    /// As vLLM has them.
    structured_outputs: Option<Value>,
    // What the answer must be.
    /// GBNF.
    grammar: Option<String>,
    #[serde(alias = "guided_json")]
    json_schema: Option<Value>,
    #[serde(alias = "regex")]
    guided_regex: Option<String>,
    guided_choice: Option<Vec<String>>,
    #[serde(alias = "ebnf")]
    guided_grammar: Option<String>,
}

/// A trigger as llama-server has it.
#[derive(Clone, Debug, Deserialize)]
struct TriggerKeys {
    /// 0: a token, 1: a word, 2: a regular expression, 3: one of all the text.
    #[serde(rename = "type")]
    kind: u32,
    #[serde(default)]
    value: String,
    token: Option<u32>,
}

/// Keys of vLLM and SGLang that would change the answer or what is told of it: refused unless they ask for nothing.
#[derive(Clone, Debug, Default, Deserialize)]
struct Unbuilt {
    allowed_token_ids: Option<Value>,
    bad_words: Option<Value>,
    chat_template: Option<Value>,
    documents: Option<Value>,
    include_stop_str_in_output: Option<bool>,
    prompt_logprobs: Option<Value>,
    return_token_ids: Option<bool>,
    return_tokens_as_token_ids: Option<bool>,
    skip_special_tokens: Option<bool>,
    truncate_prompt_tokens: Option<Value>,
    use_beam_search: Option<bool>,
}

impl Unbuilt {
    fn check(&self) -> Result<()> {
        let asks = |value: &Option<Value>| match value {
            None | Some(Value::Null) => false,
            Some(Value::Array(list)) => !list.is_empty(),
            Some(_) => true,
        };
        let found = [
            ("allowed_token_ids", asks(&self.allowed_token_ids)),
            ("bad_words", asks(&self.bad_words)),
            ("chat_template", asks(&self.chat_template)),
            ("documents", asks(&self.documents)),
            ("include_stop_str_in_output", self.include_stop_str_in_output == Some(true)),
            ("prompt_logprobs", asks(&self.prompt_logprobs)),
            ("return_token_ids", self.return_token_ids == Some(true)),
            ("return_tokens_as_token_ids", self.return_tokens_as_token_ids == Some(true)),
            ("skip_special_tokens", self.skip_special_tokens == Some(false)),
            ("truncate_prompt_tokens", asks(&self.truncate_prompt_tokens)),
            ("use_beam_search", self.use_beam_search == Some(true)),
        ];
        match found.into_iter().find(|(_, is_asked)| *is_asked) {
            Some((name, _)) => Err(ApiError::unsupported(name)),
            None => Ok(()),
        }
    }
}

/// Samplers of llama.cpp, by its names; a value that llama.cpp takes for off is off.
#[derive(Clone, Debug, Default, Deserialize)]
struct MoreSamplers {
    typical_p: Option<f32>,
    top_n_sigma: Option<f32>,
    xtc_probability: Option<f32>,
    xtc_threshold: Option<f32>,
    dynatemp_range: Option<f32>,
    dynatemp_exponent: Option<f32>,
    mirostat: Option<i64>,
    mirostat_tau: Option<f32>,
    mirostat_eta: Option<f32>,
    dry_multiplier: Option<f32>,
    dry_base: Option<f32>,
    dry_allowed_length: Option<i64>,
    dry_penalty_last_n: Option<i64>,
    dry_sequence_breakers: Option<Vec<String>>,
    samplers: Option<Value>,
}

impl MoreSamplers {
    fn apply(&self, sampling: &mut SamplingParams) -> Result<()> {
        let set = |target: &mut f32, value: Option<f32>| *target = value.unwrap_or(*target);
        set(&mut sampling.typical_p, self.typical_p);
        set(&mut sampling.top_n_sigma, self.top_n_sigma.map(|n| n.max(0.0)));
        set(&mut sampling.xtc_probability, self.xtc_probability);
        set(&mut sampling.xtc_threshold, self.xtc_threshold);
        set(&mut sampling.dynatemp_range, self.dynatemp_range);
        set(&mut sampling.dynatemp_exponent, self.dynatemp_exponent);
        if let Some(version) = self.mirostat.filter(|version| *version != 0) {
            let version = u32::try_from(version).unwrap_or(u32::MAX);
            let (tau, eta) = (self.mirostat_tau.unwrap_or(5.0), self.mirostat_eta.unwrap_or(0.1));
            sampling.mirostat = Some(Mirostat { version, tau, eta });
        }
        // 0 tokens back is off, -1 the whole context, for which the engine says 0.
        if let Some(multiplier) =
            self.dry_multiplier.filter(|m| *m != 0.0 && self.dry_penalty_last_n != Some(0))
        {
            let default = Dry::default();
            sampling.dry = Some(Dry {
                multiplier,
                base: self.dry_base.unwrap_or(default.base),
                allowed_length: self
                    .dry_allowed_length
                    .map_or(default.allowed_length, |n| usize::try_from(n).unwrap_or(0)),
                window: self.dry_penalty_last_n.map_or(0, |n| usize::try_from(n).unwrap_or(0)),
                breakers: self.dry_sequence_breakers.clone().map_or(default.breakers, DryBreakers::from),
            });
        }
        sampling.order = self.samplers.as_ref().map(order).transpose()?.flatten();
        Ok(())
    }
}

/// Names of samplers, or their letters; `null`: as by default.
fn order(samplers: &Value) -> Result<Option<Vec<SamplerName>>> {
    let unknown = |found: String| {
        let expected = "penalties, dry, top_n_sigma, top_k, typ_p, top_p, min_p, xtc and temperature";
        ApiError::invalid("samplers", format!("`samplers` has {found}, expected names among {expected}"))
    };
    let named = |name: &Value| {
        let found = name.as_str().and_then(SamplerName::named);
        found.ok_or_else(|| unknown(name.to_string()))
    };
    match samplers {
        Value::Null => Ok(None),
        Value::Array(names) => names.iter().map(named).collect::<Result<_>>().map(Some),
        Value::String(letters) => {
            let lettered =
                |letter| SamplerName::of_letter(letter).ok_or_else(|| unknown(format!("{letter:?}")));
            letters.chars().map(lettered).collect::<Result<_>>().map(Some)
        }
        other => Err(unknown(other.to_string())),
    }
}

impl SamplingKeys {
    /// Set what is given.
    ///
    /// # Errors
    /// A value outside its limits, or a key that cannot be honoured, by name.
    pub fn apply(&self, options: &mut GenerateOptions) -> Result<()> {
        self.unbuilt.check()?;
        options.triggers = self.triggers()?;
        options.given = self.given();
        let sampling = &mut options.sampling;
        let set = |target: &mut f32, value: Option<f32>| *target = value.unwrap_or(*target);
        set(&mut sampling.temperature, self.temperature);
        set(&mut sampling.top_p, self.top_p);
        set(&mut sampling.min_p, self.min_p);
        set(&mut sampling.presence_penalty, self.presence_penalty);
        set(&mut sampling.frequency_penalty, self.frequency_penalty);
        set(&mut sampling.repeat_penalty, self.repeat_penalty);
        if let Some(top_k) = self.top_k {
            // Clients of vLLM say -1 for all.
            sampling.top_k = usize::try_from(top_k).unwrap_or(0);
        }
        if let Some(last) = self.repeat_last_n {
            match last {
                0 => sampling.repeat_penalty = 1.0,
                // -1: the whole context, for which the engine says 0.
                last => sampling.penalty_window = usize::try_from(last).unwrap_or(0),
            }
        } else {
            // OpenAI's penalties count the whole text.
            sampling.penalty_window = 0;
        }
        // Clients of llama.cpp say -1 for a random one.
        sampling.seed = self.seed.filter(|seed| *seed != -1).map(|seed| seed as u64);
        sampling.logit_bias = self.logit_bias()?;
        self.more.apply(sampling)?;
        options.ignore_end = self.ignore_eos.unwrap_or(false);
        options.min_tokens = self.min_tokens.unwrap_or(0);
        options.stop_tokens = self.stop_token_ids.clone().unwrap_or_default();
        // Nobody puts itself before others.
        options.priority = self.priority.unwrap_or(0).min(0);
        options.cache_prompt = self.cache_prompt.unwrap_or(true);
        options.keep_alive = self.keep_alive.as_ref().map(keep_alive).transpose()?;
        check(sampling)
    }

    /// What these keys say of sampling.
    pub fn given(&self) -> SamplingChoice {
        SamplingChoice {
            temperature: self.temperature,
            top_k: self.top_k.map(|k| usize::try_from(k).unwrap_or(0)),
            top_p: self.top_p,
            min_p: self.min_p,
            // To look back at nothing is to have no penalty.
            repeat_penalty: self.repeat_penalty.or((self.repeat_last_n == Some(0)).then_some(1.0)),
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            penalty_window: self.repeat_last_n.map(|n| usize::try_from(n).unwrap_or(0)),
            seed: self.seed.map(|seed| (seed != -1).then_some(seed as u64)),
        }
    }

    /// What the answer must be, beside what the API's own keys say.
    ///
    /// # Errors
    /// More than one is given.
    pub fn grammar(&self, own: Option<Grammar>) -> Result<Option<Grammar>> {
        let tag =
            self.structural_tag.as_ref().filter(|tag| !tag.is_null()).map(structural_tag).transpose()?;
        let structured = self.structured_outputs.as_ref().filter(|outputs| !outputs.is_null());
        let given = [
            own,
            tag,
            structured.map(structured_outputs).transpose()?.flatten(),
            self.json_schema.clone().filter(|schema| !schema.is_null()).map(Grammar::JsonSchema),
            self.guided_regex.clone().map(Grammar::Regex),
            self.guided_choice.clone().map(Grammar::Choice),
            self.guided_grammar.clone().map(|text| of_text("guided_grammar", text)).transpose()?,
            // Clients of llama.cpp send an empty one for none.
            self.grammar.clone().filter(|text| !text.is_empty()).map(Grammar::Gbnf),
        ];
        let mut given = given.into_iter().flatten();
        match (given.next(), given.next()) {
            (first, None) => Ok(first),
            (_, Some(_)) => Err(ApiError::new(
                ErrorKind::Invalid,
                "the answer is to follow several grammars, expected one of response_format, json_schema, guided_json, \
                 guided_regex, guided_choice, guided_grammar, structural_tag, structured_outputs and grammar",
            )),
        }
    }

    /// What a lazy grammar waits for.
    fn triggers(&self) -> Result<Option<Arc<[Trigger]>>> {
        if self.grammar_lazy != Some(true) {
            return Ok(None);
        }
        let wrong = |message: String| ApiError::invalid("grammar_triggers", message);
        if self.grammar.as_ref().is_none_or(String::is_empty) {
            let message = "`grammar_lazy` needs `grammar`, which is missing";
            return Err(ApiError::invalid("grammar_lazy", message));
        }
        let trigger = |(index, keys): (usize, &TriggerKeys)| match (keys.kind, keys.token) {
            (0, Some(token)) => Ok(Trigger::Token(token)),
            (0, None) => {
                Err(wrong(format!("`grammar_triggers[{index}].token` is missing, expected a token's id")))
            }
            (1, _) => Ok(Trigger::Word(keys.value.clone())),
            (2, _) => Ok(Trigger::Pattern(keys.value.clone())),
            (3, _) => Ok(Trigger::WholePattern(keys.value.clone())),
            (kind, _) => Err(wrong(format!("`grammar_triggers[{index}].type` is {kind}, expected 0 to 3"))),
        };
        let triggers = self.grammar_triggers.iter().flatten().enumerate().map(trigger);
        let triggers = triggers.collect::<Result<Vec<_>>>()?;
        match triggers.is_empty() {
            true => Err(wrong("`grammar_triggers` is empty, expected at least one trigger".into())),
            false => Ok(Some(triggers.into())),
        }
    }

    /// The biases by token; of a token that is named twice the sum counts.
    fn logit_bias(&self) -> Result<Arc<[(u32, f32)]>> {
        let wrong = |found: &Value| {
            let expected =
                "an object of tokens' ids and numbers, or a list of pairs of an id, and a number or false";
            ApiError::invalid("logit_bias", format!("`logit_bias` has {found}, expected {expected}"))
        };
        let entry = |token: &Value, bias: &Value| {
            let id = match token {
                Value::String(id) => id.parse().ok(),
                token => token.as_u64().and_then(|id| u32::try_from(id).ok()),
            };
            let bias = match bias {
                Value::Bool(false) => Some(FORBIDDEN),
                bias => bias.as_f64().map(|bias| bias as f32),
            };
            id.zip(bias).ok_or_else(|| wrong(&json!([token, bias])))
        };
        match &self.logit_bias {
            None | Some(Value::Null) => Ok(Arc::default()),
            Some(Value::Object(biases)) => {
                biases.iter().map(|(token, bias)| entry(&json!(token), bias)).collect()
            }
            Some(Value::Array(pairs)) => {
                let read = |pair: &Value| match pair.as_array().map(Vec::as_slice) {
                    Some([token, bias]) => entry(token, bias),
                    _ => Err(wrong(pair)),
                };
                pairs.iter().map(read).collect()
            }
            Some(other) => Err(wrong(other)),
        }
    }
}

/// The grammar of a structural tag: an object, or its text.
///
/// # Errors
/// It is not as vLLM and SGLang have it.
pub(super) fn structural_tag(tag: &Value) -> Result<Grammar> {
    let parsed = tag.as_str().map(|text| serde_json::from_str(text).unwrap_or_default());
    let grammar = Grammar::of_structural_tag(parsed.as_ref().unwrap_or(tag));
    grammar.map_err(|error| ApiError::invalid("structural_tag", error.to_string()))
}

/// A grammar in either dialect.
///
/// # Errors
/// Compiling it would take too much memory.
fn of_text(key: &str, text: String) -> Result<Grammar> {
    if !text.contains("::=") {
        text::check_lark(&text).map_err(|error| ApiError::invalid(key, format!("`{key}`: {error}")))?;
    }
    Ok(Grammar::of_text(text))
}

/// The grammar of vLLM's `structured_outputs`.
fn structured_outputs(outputs: &Value) -> Result<Option<Grammar>> {
    let wrong = |key: &str, found: &Value, expected: &str| {
        let path = format!("structured_outputs{key}");
        Err(ApiError::invalid(path.clone(), format!("`{path}` is {found}, expected {expected}")))
    };
    let Some(outputs) = outputs.as_object() else {
        return wrong(
            "",
            outputs,
            "an object with one of json, regex, choice, grammar, json_object, structural_tag",
        );
    };
    let mut grammars = Vec::new();
    for (key, value) in outputs.iter().filter(|(_, value)| !value.is_null()) {
        grammars.push(match (key.as_str(), value) {
            ("json", Value::Object(_) | Value::Bool(_)) => Grammar::JsonSchema(value.clone()),
            ("json", Value::String(text)) => match serde_json::from_str(text) {
                Ok(schema) => Grammar::JsonSchema(schema),
                Err(_) => return wrong(".json", value, "a JSON Schema"),
            },
            ("regex", Value::String(regex)) => Grammar::Regex(regex.clone()),
            ("grammar", Value::String(text)) => of_text("structured_outputs.grammar", text.clone())?,
            ("choice", Value::Array(list)) if list.iter().all(Value::is_string) => {
                Grammar::Choice(list.iter().filter_map(Value::as_str).map(str::to_owned).collect())
            }
            ("json_object", Value::Bool(true)) => Grammar::AnyJson,
            ("json_object", Value::Bool(false)) => continue,
            ("structural_tag", tag) => structural_tag(tag)?,
            ("json" | "regex" | "grammar" | "choice" | "json_object", _) => {
                return wrong(&format!(".{key}"), value, "what the key says");
            }
            (other, _) => return Err(ApiError::unsupported(format!("structured_outputs.{other}"))),
        });
    }
    if grammars.len() > 1 {
        return wrong("", &Value::Object(outputs.clone()), "one of its keys");
    }
    Ok(grammars.pop())
}

/// The limits that hold for every model; what depends on the vocabulary, the engine checks.
fn check(sampling: &SamplingParams) -> Result<()> {
    let without_biases = SamplingParams { logit_bias: Arc::default(), ..sampling.clone() };
    without_biases.check(1).map_err(|wrong| ApiError::invalid(wrong.name, wrong.to_string()))
}

/// Seconds as a number, or a duration as `5m`, `1h30m`, `300ms`; negative: for ever.
///
/// # Errors
/// Anything else.
pub fn keep_alive(value: &Value) -> Result<KeepAlive> {
    let wrong = || {
        let message = format!(
            "`keep_alive` is {value}, expected seconds or a duration such as \"5m\"; negative keeps it"
        );
        ApiError::invalid("keep_alive", message)
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

/// Seconds of `1h30m`, `-1`, `300ms`.
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
    use std::time::Duration;

    fn apply(keys: Value) -> Result<GenerateOptions> {
        let keys: SamplingKeys = serde_json::from_value(keys).unwrap();
        let mut options = GenerateOptions::default();
        keys.apply(&mut options)?;
        Ok(options)
    }

    #[test]
    fn keys_become_options() {
        let options = apply(json!({
            "temperature": 0.5, "top_k": -1, "repetition_penalty": 1.25, "seed": -1, "logit_bias": {"7": -100},
            "ignore_eos": true, "unknown": 1, "grammar": ""
        }))
        .unwrap();
        assert_eq!((options.sampling.temperature, options.sampling.top_k), (0.5, 0));
        assert_eq!((options.sampling.repeat_penalty, options.sampling.seed), (1.25, None));
        assert_eq!(*options.sampling.logit_bias, [(7, -100.0)]);
        assert!(options.ignore_end);
        let pairs =
            json!({ "logit_bias": [[7, 1.5], ["8", false]], "bad_words": [], "skip_special_tokens": true });
        assert_eq!(*apply(pairs).unwrap().sampling.logit_bias, [(7, 1.5), (8, FORBIDDEN)]);
    }

    #[test]
    fn samplers_of_llama_cpp_have_its_names_and_its_values_for_off() {
        let sampling = |keys: Value| apply(keys).unwrap().sampling;
        let off = json!({
            "typical_p": 1.0, "top_n_sigma": -1.0, "xtc_probability": 0, "mirostat": 0, "dynatemp_range": 0,
            "dry_multiplier": 0.0, "samplers": null
        });
        let default = SamplingParams { penalty_window: 0, ..SamplingParams::default() };
        assert_eq!(sampling(off), default);
        assert_eq!(sampling(json!({ "dry_multiplier": 1, "dry_penalty_last_n": 0 })), default);
        let found = sampling(json!({
            "mirostat": 2, "mirostat_tau": 3, "dry_multiplier": 1.5, "dry_penalty_last_n": -1,
            "dry_sequence_breakers": ["x"], "samplers": "ekt"
        }));
        assert_eq!(found.mirostat, Some(Mirostat { version: 2, tau: 3.0, eta: 0.1 }));
        let dry = Dry { multiplier: 1.5, window: 0, breakers: vec!["x".into()].into(), ..Dry::default() };
        assert_eq!(found.dry, Some(dry));
        let order = vec![SamplerName::Penalties, SamplerName::TopK, SamplerName::Temperature];
        assert_eq!(found.order, Some(order.clone()));
        assert_eq!(sampling(json!({ "samplers": ["penalties", "top-k", "temp"] })).order, Some(order));
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_by_name() {
        for (keys, name) in [
            (json!({"temperature": -1}), "temperature"),
            (json!({"top_p": 2}), "top_p"),
            (json!({"logit_bias": {"x": 1}}), "logit_bias"),
            (json!({"logit_bias": {"7": true}}), "logit_bias"),
            (json!({"logit_bias": [[7]]}), "logit_bias"),
            (json!({"logit_bias": 7}), "logit_bias"),
            (json!({"bad_words": ["a"]}), "bad_words"),
            (json!({"prompt_logprobs": 0}), "prompt_logprobs"),
            (json!({"skip_special_tokens": false}), "skip_special_tokens"),
            (json!({"mirostat": 3}), "mirostat"),
            (json!({"typical_p": 1.5}), "typical_p"),
            (json!({"samplers": ["top_k", "top_q"]}), "samplers"),
            (json!({"samplers": ["top_k", "dry"]}), "samplers"),
            (json!({"dry_multiplier": 1, "dry_base": 0.5}), "dry_base"),
            (json!({"grammar": "root ::= \"a\"", "grammar_lazy": true}), "grammar_triggers"),
            (json!({"grammar_lazy": true, "grammar_triggers": [{"type": 1, "value": "a"}]}), "grammar_lazy"),
            (
                json!({"grammar": "root ::= \"a\"", "grammar_lazy": true, "grammar_triggers": [{"type": 7}]}),
                "grammar_triggers",
            ),
            (json!({"keep_alive": "soon"}), "keep_alive"),
        ] {
            assert_eq!(apply(keys).unwrap_err().param.as_deref(), Some(name));
        }
    }

    #[test]
    fn grammars_wait_for_triggers_as_llama_server_has_them() {
        let keys = json!({
            "grammar": "root ::= \"<a>\"", "grammar_lazy": true,
            "grammar_triggers": [{"type": 1, "value": "<a>"}, {"type": 0, "value": "", "token": 7}],
        });
        let triggers = apply(keys).unwrap().triggers.unwrap();
        assert_eq!(*triggers, [Trigger::Word("<a>".into()), Trigger::Token(7)]);
        let grammar = |keys: Value| serde_json::from_value::<SamplingKeys>(keys).unwrap().grammar(None);
        let wrong = |keys: Value| grammar(keys).unwrap_err().param.unwrap();
        assert_eq!(wrong(json!({ "structural_tag": {} })), "structural_tag");
        let structured = |outputs: Value| grammar(json!({ "structured_outputs": outputs })).unwrap();
        assert_eq!(structured(json!({})), None);
        assert_eq!(structured(json!({ "regex": "a", "json": null })), Some(Grammar::Regex("a".into())));
        assert_eq!(structured(json!({ "choice": ["a"] })), Some(Grammar::Choice(vec!["a".into()])));
        assert_eq!(structured(json!({ "json": "{}" })), Some(Grammar::JsonSchema(json!({}))));
        for (outputs, param) in [
            (json!(7), "structured_outputs"),
            (json!({ "regex": 7 }), "structured_outputs.regex"),
            (json!({ "regex": "a", "json": {} }), "structured_outputs"),
            (json!({ "whitespace_pattern": "a" }), "structured_outputs.whitespace_pattern"),
        ] {
            assert_eq!(wrong(json!({ "structured_outputs": outputs })), param);
        }
    }

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
