//! The keys of sampling that the APIs share, with the extensions that clients of other servers
//! send.
//!
//! | keys | from |
//! |---|---|
//! | `ChoiceKeys` | OpenAI, and those that llama.cpp, vLLM and SGLang share |
//! | `LlamaSamplers` | llama.cpp |
//! | `GrammarKeys` | llama.cpp, vLLM, SGLang |
//! | `AnswerKeys` | vLLM, llama.cpp, Ollama |
//! | `Unbuilt` | vLLM and SGLang; refused |

mod grammar;
mod llama;
mod unbuilt;

use std::sync::Arc;

use engine::{SamplingChoice, SamplingParams};
use serde::Deserialize;
use serde_json::{Value, json};
use text::Grammar;

use self::grammar::GrammarKeys;
pub(super) use self::grammar::structural_tag;
use self::llama::LlamaSamplers;
use self::unbuilt::Unbuilt;
use super::keep_alive::keep_alive;
use runner::GenerateOptions;
use runner::{RequestError, Result};

/// Bias of a forbidden token, far below every logit.
pub(super) const FORBIDDEN: f32 = -1e9;

/// Reads a 64-bit seed, signed or unsigned.
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

/// Sampling keys of a request, which several APIs flatten into theirs. `null` is as if the key were
/// not there.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct SamplingKeys {
    #[serde(flatten)]
    choice: ChoiceKeys,
    #[serde(flatten)]
    llama: LlamaSamplers,
    #[serde(flatten)]
    grammar: GrammarKeys,
    #[serde(flatten)]
    more: AnswerKeys,
    #[serde(flatten)]
    unbuilt: Unbuilt,
}

/// Keys that an operator may set defaults for: OpenAI's, and those that llama.cpp, vLLM and SGLang
/// share.
#[derive(Clone, Debug, Default, Deserialize)]
struct ChoiceKeys {
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
}

/// Keys about the tokens of one answer, and about how the server handles the request.
#[derive(Clone, Debug, Default, Deserialize)]
struct AnswerKeys {
    /// An object of token ids and biases, or a list of pairs of an id, and a bias or `false`.
    logit_bias: Option<Value>,
    // vLLM.
    ignore_eos: Option<bool>,
    min_tokens: Option<usize>,
    stop_token_ids: Option<Vec<u32>>,
    priority: Option<i32>,
    // llama.cpp.
    cache_prompt: Option<bool>,
    // Ollama.
    keep_alive: Option<Value>,
}

impl SamplingKeys {
    /// Sets the options that the request gives.
    ///
    /// # Errors
    /// A value outside its limits, or a key that cannot be honoured, by name.
    pub fn apply(&self, options: &mut GenerateOptions) -> Result<()> {
        self.unbuilt.check()?;
        options.triggers = self.grammar.triggers()?;
        options.given = self.given();
        self.choice.apply(&mut options.sampling);
        self.llama.apply(&mut options.sampling)?;
        self.more.apply(options)?;
        check(&options.sampling)
    }

    /// The sampling parameters that the request gives.
    pub fn given(&self) -> SamplingChoice {
        self.choice.given()
    }

    /// The grammar of the answer, from these keys or from the API's `own`.
    ///
    /// # Errors
    /// More than one is given.
    pub fn grammar(&self, own: Option<Grammar>) -> Result<Option<Grammar>> {
        self.grammar.grammar(own)
    }
}

impl ChoiceKeys {
    fn apply(&self, sampling: &mut SamplingParams) {
        let set = |target: &mut f32, value: Option<f32>| *target = value.unwrap_or(*target);
        set(&mut sampling.temperature, self.temperature);
        set(&mut sampling.top_p, self.top_p);
        set(&mut sampling.min_p, self.min_p);
        set(&mut sampling.presence_penalty, self.presence_penalty);
        set(&mut sampling.frequency_penalty, self.frequency_penalty);
        set(&mut sampling.repeat_penalty, self.repeat_penalty);
        if let Some(top_k) = self.top_k {
            // Clients of vLLM send -1 for all tokens.
            sampling.top_k = usize::try_from(top_k).unwrap_or(0);
        }
        match self.repeat_last_n {
            // OpenAI's penalties count the whole text.
            None => sampling.penalty_window = 0,
            Some(0) => sampling.repeat_penalty = 1.0,
            // -1 is the whole context, which is 0 in the engine.
            Some(last) => sampling.penalty_window = usize::try_from(last).unwrap_or(0),
        }
        // Clients of llama.cpp send -1 for a random seed.
        sampling.seed = self.seed.filter(|seed| *seed != -1).map(|seed| seed as u64);
    }

    fn given(&self) -> SamplingChoice {
        SamplingChoice {
            temperature: self.temperature,
            top_k: self.top_k.map(|k| usize::try_from(k).unwrap_or(0)),
            top_p: self.top_p,
            min_p: self.min_p,
            // A window of no tokens means no penalty.
            repeat_penalty: self.repeat_penalty.or((self.repeat_last_n == Some(0)).then_some(1.0)),
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            penalty_window: self.repeat_last_n.map(|n| usize::try_from(n).unwrap_or(0)),
            seed: self.seed.map(|seed| (seed != -1).then_some(seed as u64)),
        }
    }
}

impl AnswerKeys {
    fn apply(&self, options: &mut GenerateOptions) -> Result<()> {
        options.sampling.logit_bias = self.logit_bias()?;
        options.ignore_end = self.ignore_eos.unwrap_or(false);
        options.min_tokens = self.min_tokens.unwrap_or(0);
        options.stop_tokens = self.stop_token_ids.clone().unwrap_or_default();
        // A request may lower its priority, but not raise it above that of others.
        options.priority = self.priority.unwrap_or(0).min(0);
        options.cache_prompt = self.cache_prompt.unwrap_or(true);
        options.keep_alive = self.keep_alive.as_ref().map(keep_alive).transpose()?;
        Ok(())
    }

    /// Reads the biases by token. The engine adds the biases of a token that is named twice.
    fn logit_bias(&self) -> Result<Arc<[(u32, f32)]>> {
        let wrong = |found: &Value| {
            let expected =
                "an object of tokens' ids and numbers, or a list of pairs of an id, and a number or false";
            RequestError::invalid("logit_bias", format!("`logit_bias` has {found}, expected {expected}"))
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

/// Checks limits that hold for every model. The engine checks those that depend on the vocabulary.
fn check(sampling: &SamplingParams) -> Result<()> {
    let without_biases = SamplingParams { logit_bias: Arc::default(), ..sampling.clone() };
    without_biases.check(1).map_err(|wrong| RequestError::invalid(wrong.name, wrong.to_string()))
}

#[cfg(test)]
mod tests {
    use engine::{Dry, Mirostat, SamplerName};
    use text::Trigger;

    use super::*;

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
    fn unsupported_values_are_refused_by_name() {
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
}
