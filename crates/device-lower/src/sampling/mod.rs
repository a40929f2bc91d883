//! From logits to a token on the host: biases → mask → penalties → temperature → top-k → top-p → min-p → pick, always in
//! this order; or, after the penalties, the stages of a [`Chain`] in their order. Devices that compute on the host choose with it,
//! and others are compared with it.
//!
//! Each stage is a small value in its own file with its formula. A [`Chooser`] holds the buffers; after construction nothing is
//! allocated.
//!
//! A stage that changes nothing (`top_k = 0`, `top_p = 1`, …) costs nothing. The temperature is applied where a token is
//! weighed: dividing by a positive number keeps the order.

mod chain;
mod min_p;
mod penalties;
mod pick;
mod ranking;
mod temperature;
mod top_k;
mod top_p;

pub use ranking::Ranking;

use std::cmp::Ordering;

use chain::Chain;
use device::{Choose, Chosen, MAX_BEST, Step, Want};
use min_p::MinP;
use temperature::Temperature;
use top_k::TopK;
use top_p::TopP;

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

/// Buffers for choosing tokens from logits of a vocabulary.
#[derive(Debug)]
pub struct Chooser {
    /// `(n_vocab)` logits with biases, mask and penalties applied.
    changed: Vec<f32>,
    /// Capacity `n_vocab`.
    candidates: Vec<Candidate>,
    /// `(n_vocab)` how often a token counts; all zero between calls.
    counts: Vec<u32>,
    /// Capacity [`MAX_BEST`].
    best: Vec<Candidate>,
}

impl Chooser {
    /// Buffers for a vocabulary of `n_vocab` tokens.
    pub fn new(n_vocab: usize) -> Chooser {
        Chooser {
            changed: Vec::with_capacity(n_vocab),
            candidates: Vec::with_capacity(n_vocab),
            counts: vec![0; n_vocab],
            best: Vec::with_capacity(MAX_BEST),
        }
    }

    /// What [`Self::new`] takes, in bytes.
    pub const fn bytes(n_vocab: usize) -> u64 {
        let a_token = size_of::<Candidate>() + size_of::<u32>() + size_of::<f32>();
        (n_vocab * a_token + MAX_BEST * size_of::<Candidate>()) as u64
    }

    /// Choose the token of an output. `logits` is `(n_vocab)`; `pending` gives the tokens of [`Want::pending`], all of which
    /// are known by now. Allocates nothing.
    pub fn choose(
        &mut self,
        logits: &[f32],
        want: &Want,
        step: &Step,
        pending: impl Iterator<Item = u32> + Clone,
    ) -> Chosen {
        let mut surprise = f32::NAN;
        let token = match (&want.choose, want.is_plain()) {
            (Choose::Nothing, _) => None,
            (Choose::Best, true) => argmax(logits),
            (Choose::Best, false) => {
                self.change(logits, want, step, pending);
                argmax(&self.changed)
            }
            (Choose::Sample(sampling), plain) => {
                if !plain {
                    self.change(logits, want, step, pending);
                }
                let logits = if plain { logits } else { &self.changed };
                let sorted = TopK(sampling.top_k).gather(logits, &mut self.candidates);
                let mut ranking =
                    Ranking::new(&mut self.candidates, sorted, Temperature(sampling.temperature));
                TopP(sampling.top_p).apply(&mut ranking);
                MinP(sampling.min_p).apply(&mut ranking);
                pick::pick(&mut ranking, sampling.random)
            }
            (Choose::Chain(chain), plain) => {
                if !plain {
                    self.change(logits, want, step, pending);
                }
                let logits = if plain { logits } else { &self.changed };
                let stages = chain.stages.of(step.stages);
                let picked = Chain::run(stages, logits, &mut self.candidates).pick(chain.random);
                picked.map(|(token, bits)| {
                    surprise = bits;
                    token
                })
            }
        };
        let logprob = match token.filter(|_| want.logprob) {
            Some(token) => logprob(logits, token),
            None => f32::NAN,
        };
        Chosen { token, logprob, surprise }
    }

    /// The `n` best tokens and the log-probabilities that the model itself gives them, best first. Allocates nothing.
    pub fn best<'a>(&'a mut self, logits: &[f32], n: usize) -> impl Iterator<Item = (u32, f32)> + 'a {
        self.best.clear();
        let mut normalizer = 0.0;
        if n > 0 {
            normalizer = log_sum_exp(logits);
            // Few of them: `gather` keeps a heap of `n`, unless the vocabulary is smaller.
            TopK(n).gather(logits, &mut self.candidates);
            self.candidates.sort_unstable_by(best_first);
            self.best.extend(self.candidates.iter().take(n.min(MAX_BEST)));
        }
        self.best.iter().map(move |c| (c.id, (f64::from(c.logit) - normalizer) as f32))
    }

    /// The logits with biases, mask and penalties applied.
    fn change(
        &mut self,
        logits: &[f32],
        want: &Want,
        step: &Step,
        pending: impl Iterator<Item = u32> + Clone,
    ) {
        self.changed.clear();
        self.changed.extend_from_slice(logits);
        for &(token, bias) in want.biases.of(step.biases) {
            self.changed[token as usize] += bias;
        }
        if let Some(mask) = want.mask {
            step.masks.with(&mut |words| forbid(mask.of(words), &mut self.changed));
        }
        if let Some(penalties) = &want.penalties {
            let tokens = want.recent.of(step.recent).iter().copied().chain(pending);
            penalties::apply(penalties, &mut self.changed, tokens, &mut self.counts);
        }
    }
}

/// Tokens whose bit in the mask is 0 get minus infinity.
fn forbid(mask: &[u32], logits: &mut [f32]) {
    for (word, logits) in mask.iter().zip(logits.chunks_mut(32)) {
        match *word {
            u32::MAX => {}
            0 => logits.fill(f32::NEG_INFINITY),
            word => {
                for (bit, logit) in logits.iter_mut().enumerate() {
                    if word >> bit & 1 == 0 {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            }
        }
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

/// The natural logarithm of the probability that the logits give a token.
pub fn logprob(logits: &[f32], token: u32) -> f32 {
    (f64::from(logits[token as usize]) - log_sum_exp(logits)) as f32
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
