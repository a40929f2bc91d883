//! From logits to a token: penalties → temperature → top-k → top-p → min-p → pick, always in this order.
//!
//! Each stage is a small value in its own file with its formula. A [`Sampler`] holds the stages and the random state of
//! one sequence; [`Scratch`] holds the buffers, which all sequences share. After construction nothing is allocated.
//!
//! A stage that changes nothing (`top_k = 0`, `top_p = 1`, …) costs nothing. Two shortcuts give what the order above
//! gives: the temperature is applied where a token is weighed (dividing by a positive number keeps the order), and a
//! temperature of 0 or `top_k = 1` takes the best token without random numbers.
//!
//! A device may choose the tokens of a chain by itself ([`device::Sampling`]). It gets what the stages are and the random
//! numbers that [`pick`] would draw, one for each token, and so a seed gives the same answer with and without chains.

mod min_p;
mod params;
mod penalties;
mod pick;
mod ranking;
mod rng;
mod temperature;
mod top_k;
mod top_p;

pub use min_p::MinP;
pub use params::{ParamError, SamplingParams};
pub use penalties::Penalties;
pub use pick::pick;
pub use ranking::Ranking;
pub use rng::Rng;
pub use temperature::Temperature;
pub use top_k::TopK;
pub use top_p::TopP;

use std::cmp::Ordering;

use device::Sampling;

use crate::{Error, Result};

/// A token that may still be picked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Token id.
    pub id: u32,
    /// Its logit after the stages so far.
    pub logit: f32,
}

/// Best first; the lower id of equals. A total order: NaN was removed when candidates were gathered, and adding 0 makes the
/// two zeros one.
fn best_first(a: &Candidate, b: &Candidate) -> Ordering {
    (b.logit + 0.0).total_cmp(&(a.logit + 0.0)).then(a.id.cmp(&b.id))
}

/// Buffers of the sampler, allocated once for a vocabulary and shared by all sequences of an engine.
#[derive(Debug)]
pub struct Scratch {
    /// Capacity `n_vocab`.
    candidates: Vec<Candidate>,
    /// `(n_vocab)` how often a token occurred in the penalty window; all zero between calls.
    counts: Vec<u32>,
    /// Logits as the model gave them, of tokens that penalties or biases changed; capacity `n_vocab`.
    changed: Vec<Candidate>,
    /// Random numbers that were drawn ahead; capacity [`MOST_AHEAD`].
    randoms: Vec<f64>,
}

/// Random numbers drawn ahead for a device that chooses by itself, at most.
const MOST_AHEAD: usize = 128;

impl Scratch {
    /// Buffers for a vocabulary of `n_vocab` tokens: 20 bytes a token, and 1 KiB.
    pub fn new(n_vocab: usize) -> Scratch {
        Scratch {
            candidates: Vec::with_capacity(n_vocab),
            counts: vec![0; n_vocab],
            changed: Vec::with_capacity(n_vocab),
            randoms: Vec::with_capacity(MOST_AHEAD),
        }
    }

    /// What [`Self::new`] takes, in bytes.
    pub const fn bytes(n_vocab: usize) -> u64 {
        (n_vocab * (2 * size_of::<Candidate>() + size_of::<u32>()) + MOST_AHEAD * size_of::<f64>()) as u64
    }
}

/// A chosen token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// Token id.
    pub id: u32,
    /// Natural logarithm of the probability that the model itself gave it (before penalties and temperature), if asked.
    pub logprob: Option<f32>,
}

/// The stages and the random state of one sequence.
#[derive(Clone, Debug)]
pub struct Sampler {
    penalties: Penalties,
    temperature: Temperature,
    top_k: TopK,
    top_p: TopP,
    min_p: MinP,
    rng: Rng,
    seed: u64,
    logprobs: bool,
}

impl Sampler {
    /// Checked stages for a vocabulary of `n_vocab` tokens.
    ///
    /// # Errors
    /// A parameter is outside its limits.
    pub fn new(params: &SamplingParams, n_vocab: usize) -> std::result::Result<Sampler, ParamError> {
        params.check(n_vocab)?;
        let seed = params.seed.unwrap_or_else(rng::fresh_seed);
        Ok(Sampler {
            penalties: Penalties {
                repeat: params.repeat_penalty,
                presence: params.presence_penalty,
                frequency: params.frequency_penalty,
                window: params.penalty_window,
                bias: params.logit_bias.clone(),
            },
            temperature: Temperature(params.temperature),
            top_k: TopK(params.top_k),
            top_p: TopP(params.top_p),
            min_p: MinP(params.min_p),
            rng: Rng::new(seed),
            seed,
            logprobs: params.logprobs,
        })
    }

    /// The seed in use: the one asked for, or the one that was drawn.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Whether it always takes the best token.
    pub fn is_greedy(&self) -> bool {
        self.temperature.0 == 0.0 || self.top_k.0 == 1
    }

    /// Whether the device's own argmax is the answer: greedy, and nothing changes the logits.
    pub fn wants_argmax(&self) -> bool {
        self.is_greedy() && self.penalties.is_off() && !self.logprobs
    }

    /// What a device must know to choose tokens as this sampler would, for as many as it has random numbers for, which stay
    /// the sampler's until [`Self::took_one`]. `tokens` are those of the sequence so far. `None`: only the sampler can, for
    /// it has biases or gives log-probabilities. Allocates nothing.
    pub fn ahead<'a>(&self, tokens: &'a [u32], scratch: &'a mut Scratch) -> Option<Sampling<'a>> {
        if self.logprobs || !self.penalties.bias.is_empty() {
            return None;
        }
        let greedy = self.is_greedy();
        let mut rng = self.rng.clone();
        let draw = || if greedy { 0.0 } else { rng.uniform() };
        scratch.randoms.clear();
        scratch.randoms.extend(std::iter::repeat_with(draw).take(MOST_AHEAD));
        Some(Sampling {
            temperature: if greedy { 1.0 } else { self.temperature.0 },
            top_k: if greedy { 1 } else { self.top_k.0 },
            top_p: self.top_p.0,
            min_p: self.min_p.0,
            penalties: self.penalties.ahead(tokens),
            randoms: &scratch.randoms,
        })
    }

    /// A device chose a token with the random number that was next.
    pub fn took_one(&mut self) {
        if !self.is_greedy() {
            self.rng.next_u64();
        }
    }

    /// Choose a token. `logits` is `(n_vocab)` and is changed in place; `tokens` are those of the sequence so far.
    /// Allocates nothing.
    ///
    /// # Errors
    /// No token has a probability: every logit is NaN or minus infinity.
    pub fn sample(&mut self, logits: &mut [f32], tokens: &[u32], scratch: &mut Scratch) -> Result<Choice> {
        let normalizer = if self.logprobs { log_sum_exp(logits) } else { 0.0 };
        self.penalties.apply(logits, tokens, &mut scratch.counts, &mut scratch.changed);
        let id = self.choose(logits, &mut scratch.candidates)?;
        let logprob = self.logprobs.then(|| {
            let original = scratch.changed.iter().find(|c| c.id == id).map(|c| c.logit);
            (f64::from(original.unwrap_or(logits[id as usize])) - normalizer) as f32
        });
        Ok(Choice { id, logprob })
    }

    fn choose(&mut self, logits: &[f32], candidates: &mut Vec<Candidate>) -> Result<u32> {
        if self.is_greedy() {
            return argmax(logits).ok_or(Error::NoCandidate { n_vocab: logits.len() });
        }
        let sorted = self.top_k.gather(logits, candidates);
        let mut ranking = Ranking::new(candidates, sorted, self.temperature);
        self.top_p.apply(&mut ranking);
        self.min_p.apply(&mut ranking);
        pick(&mut ranking, &mut self.rng).ok_or(Error::NoCandidate { n_vocab: logits.len() })
    }
}

/// The best token, the lowest id of equals; `None` if every logit is NaN or minus infinity.
pub fn argmax(logits: &[f32]) -> Option<u32> {
    let mut best: Option<(usize, f32)> = None;
    for (id, &logit) in logits.iter().enumerate() {
        if logit > best.map_or(f32::NEG_INFINITY, |b| b.1) {
            best = Some((id, logit));
        }
    }
    best.map(|b| b.0 as u32)
}

/// `ln sum exp(logits)` in f64, shifted by the largest so that nothing overflows; NaN counts as minus infinity.
pub fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    if max == f64::NEG_INFINITY {
        return max;
    }
    let sum: f64 = logits.iter().filter(|l| !l.is_nan()).map(|&l| (f64::from(l) - max).exp()).sum();
    max + sum.ln()
}

#[cfg(test)]
mod tests;
