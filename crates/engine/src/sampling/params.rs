//! Sampling parameters and their limits.

use std::sync::Arc;

use super::dry::{DryBreakers, MAX_DRY_BREAKER, MAX_DRY_BREAKERS};
use super::order::SamplerName;

/// Largest absolute value of a parameter that is added to logits, divides them or counts them. Sums
/// and products of such numbers with logits do not overflow an f32.
const MOST: f32 = 1e6;

/// Maximum number of samplers in an order.
const MAX_SAMPLERS: usize = 32;

/// Largest bias of a token; its negative forbids the token.
const MOST_BIAS: f32 = 1e9;

/// DRY penalties on repetitions: see llama.cpp's `--dry-…`.
#[derive(Clone, Debug, PartialEq)]
pub struct Dry {
    /// Factor of the penalty `multiplier * base^(length - allowed_length)`.
    pub multiplier: f32,
    /// Base of the penalty, at least 1.
    pub base: f32,
    /// Longest repetition without a penalty, in tokens.
    pub allowed_length: usize,
    /// Number of last tokens that are searched, prompt included; 0 is the whole sequence.
    pub window: usize,
    /// Texts over which no repetition extends: at most [`MAX_DRY_BREAKERS`] of [`MAX_DRY_BREAKER`]
    /// bytes each.
    pub breakers: DryBreakers,
}

impl Default for Dry {
    fn default() -> Dry {
        Dry { multiplier: 0.8, base: 1.75, allowed_length: 2, window: 0, breakers: DryBreakers::default() }
    }
}

/// Mirostat (Basu et al. 2021, arXiv:2007.14966), which keeps the surprise of tokens near a target.
/// Only penalties and the temperature run beside it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mirostat {
    /// Version, 1 or 2.
    pub version: u32,
    /// Target surprise, in bits.
    pub tau: f32,
    /// Learning rate.
    pub eta: f32,
}

/// Parameters of sampling. [`Default`] samples from the model's own distribution.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divisor of the logits; 0 chooses the best token.
    pub temperature: f32,
    /// Keep the best `top_k` tokens; 0 keeps all, 1 chooses the best.
    pub top_k: usize,
    /// Keep the fewest best tokens whose probabilities reach this sum; 1 keeps all.
    pub top_p: f32,
    /// Drop tokens less likely than this fraction of the likeliest; 0 keeps all.
    pub min_p: f32,
    /// Divides positive logits of recent tokens and multiplies negative ones; 1 is off.
    pub repeat_penalty: f32,
    /// Subtracted from the logits of recent tokens.
    pub presence_penalty: f32,
    /// Subtracted from the logits of recent tokens for each time they occurred.
    pub frequency_penalty: f32,
    /// Number of last tokens that the penalties count, prompt included; 0 is the whole sequence.
    pub penalty_window: usize,
    /// `(token, bias)` added to logits; minus infinity forbids a token.
    pub logit_bias: Arc<[(u32, f32)]>,
    /// Keep the fewest tokens whose probabilities reach this sum, those whose surprise is nearest
    /// to the entropy first; 1 keeps all.
    pub typical_p: f32,
    /// Keep tokens whose logit is at most this many standard deviations below the best; 0 keeps
    /// all.
    pub top_n_sigma: f32,
    /// Probability with which all top choices but the least likely are dropped; 0 is never.
    pub xtc_probability: f32,
    /// Least probability of a top choice; above 0.5 there are never two.
    pub xtc_threshold: f32,
    /// Largest change of the temperature: lower for a sharp distribution, higher for a flat one; 0
    /// is off.
    pub dynatemp_range: f32,
    /// Exponent of the distribution's normalised entropy, for `dynatemp_range`.
    pub dynatemp_exponent: f32,
    /// Mirostat; `None` is off.
    pub mirostat: Option<Mirostat>,
    /// DRY; `None` is off.
    pub dry: Option<Dry>,
    /// Samplers that run, in this order; penalties and DRY must be first. `None`: all of them. If
    /// one of the six above other than DRY is on, the order is then [`SamplerName::LLAMA_CPP`];
    /// otherwise penalties, temperature, top-k, top-p, min-p.
    pub order: Option<Vec<SamplerName>>,
    /// Seed of the random numbers; `None` draws one.
    pub seed: Option<u64>,
    /// Report the log-probability of each chosen token.
    pub logprobs: bool,
    /// Number of likeliest tokens to report with each token, at most [`device::MAX_BEST`]. As with
    /// `logprobs`, their log-probabilities are the model's own: before temperature, penalties,
    /// biases and constraints.
    pub n_best_logprobs: usize,
    /// Report the log-probabilities with which the token was drawn, after all other parameters,
    /// instead of the model's own.
    pub drawn_logprobs: bool,
}

impl Default for SamplingParams {
    fn default() -> SamplingParams {
        SamplingParams {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repeat_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_window: 64,
            logit_bias: Arc::default(),
            typical_p: 1.0,
            top_n_sigma: 0.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
            mirostat: None,
            dry: None,
            order: None,
            seed: None,
            logprobs: false,
            n_best_logprobs: 0,
            drawn_logprobs: false,
        }
    }
}

/// A parameter outside its limits.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{name} is {value}, expected {expected}")]
pub struct ParamError {
    /// The parameter's name as in [`SamplingParams`].
    pub name: &'static str,
    /// The given value.
    pub value: String,
    /// The allowed values.
    pub expected: String,
}

impl SamplingParams {
    /// Parameters that always choose the best token.
    pub fn greedy() -> SamplingParams {
        SamplingParams { temperature: 0.0, ..SamplingParams::default() }
    }

    /// Check every parameter for a vocabulary of `n_vocab` tokens.
    ///
    /// # Errors
    /// The first parameter outside its limits.
    pub fn check(&self, n_vocab: usize) -> Result<(), ParamError> {
        within("temperature", self.temperature, 0.0, MOST)?;
        within("top_p", self.top_p, 0.0, 1.0)?;
        within("min_p", self.min_p, 0.0, 1.0)?;
        within("presence_penalty", self.presence_penalty, -MOST, MOST)?;
        within("frequency_penalty", self.frequency_penalty, -MOST, MOST)?;
        within("typical_p", self.typical_p, 0.0, 1.0)?;
        within("top_n_sigma", self.top_n_sigma, 0.0, MOST)?;
        within("xtc_probability", self.xtc_probability, 0.0, 1.0)?;
        within("xtc_threshold", self.xtc_threshold, 0.0, 1.0)?;
        within("dynatemp_range", self.dynatemp_range, 0.0, MOST)?;
        within("dynatemp_exponent", self.dynatemp_exponent, 1.0 / MOST, MOST)?;
        if let Some(Mirostat { version, tau, eta }) = self.mirostat {
            within("mirostat", version as f32, 1.0, 2.0)?;
            within("mirostat_tau", tau, 0.0, MOST)?;
            within("mirostat_eta", eta, 0.0, MOST)?;
        }
        if let Some(dry) = &self.dry {
            within("dry_multiplier", dry.multiplier, 0.0, MOST)?;
            within("dry_base", dry.base, 1.0, MOST)?;
            check_breakers(dry.breakers.texts())?;
        }
        if let Some(n) = self.order.as_ref().map(Vec::len).filter(|n| *n > MAX_SAMPLERS) {
            return Err(ParamError {
                name: "samplers",
                value: format!("{n} names"),
                expected: format!("at most {MAX_SAMPLERS}"),
            });
        }
        if let Some(order) = &self.order
            && let n_first = order.iter().take_while(|name| name.is_penalty()).count()
            && order[n_first..].iter().any(|name| name.is_penalty())
        {
            return Err(ParamError {
                name: "samplers",
                value: format!("{order:?}"),
                expected: "penalties and dry before all others".into(),
            });
        }
        within("repeat_penalty", self.repeat_penalty, 1.0 / MOST, MOST)?;
        if self.n_best_logprobs > device::MAX_BEST {
            return Err(ParamError {
                name: "n_best_logprobs",
                value: self.n_best_logprobs.to_string(),
                expected: format!("at most {}", device::MAX_BEST),
            });
        }
        for &(token, bias) in self.logit_bias.iter() {
            if token as usize >= n_vocab {
                return Err(ParamError {
                    name: "logit_bias",
                    value: format!("a bias for token {token}"),
                    expected: format!("token ids below {n_vocab}"),
                });
            }
            if bias.is_nan() || bias > MOST_BIAS {
                return Err(ParamError {
                    name: "logit_bias",
                    value: format!("{bias} for token {token}"),
                    expected: format!("a number of at most {MOST_BIAS}, or -inf to forbid the token"),
                });
            }
        }
        Ok(())
    }
}

fn check_breakers(breakers: &[String]) -> Result<(), ParamError> {
    let longest = breakers.iter().map(String::len).max().unwrap_or(0);
    let wrong =
        |value: String, expected: String| Err(ParamError { name: "dry_sequence_breakers", value, expected });
    match (breakers.len(), longest) {
        (0..=MAX_DRY_BREAKERS, 0..=MAX_DRY_BREAKER) => Ok(()),
        (0..=MAX_DRY_BREAKERS, n) => {
            wrong(format!("a text of {n} bytes"), format!("at most {MAX_DRY_BREAKER} bytes in each"))
        }
        (n, _) => wrong(format!("{n} texts"), format!("at most {MAX_DRY_BREAKERS}")),
    }
}

fn within(name: &'static str, value: f32, low: f32, high: f32) -> Result<(), ParamError> {
    if value >= low && value <= high {
        return Ok(());
    }
    let expected = format!("a number from {low} to {high}");
    Err(ParamError { name, value: value.to_string(), expected })
}
