//! Sampling on the host, from logits to a token: biases → mask → penalties → temperature → top-k →
//! top-p → min-p → pick, always in this order. A [`Chain`] replaces the stages after the penalties
//! by its own. Devices that compute on the host choose tokens with this code, and other devices are
//! compared with it.
//!
//! A penalty leaves minus infinity unchanged, so the mask is not written into the logits. Loops
//! over tokens skip forbidden ones ([`Allowed`]), and logits are copied only for biases and
//! penalties.
//!
//! Each stage is a small value in its own file with its formula. A [`Chooser`] holds the buffers;
//! nothing is allocated after construction.
//!
//! A stage that changes nothing (`top_k = 0`, `top_p = 1`, …) costs nothing. The temperature is
//! applied only when tokens are weighted, because dividing by a positive number keeps the order.

mod allowed;
mod chain;
mod min_p;
mod penalties;
mod pick;
mod ranking;
mod temperature;
mod top_k;
mod top_p;

pub use allowed::Allowed;
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
    /// The token's logit after the stages so far.
    pub logit: f32,
}

/// Orders candidates best first, ties by the lower id. The order is total: `gather` removed NaN,
/// and adding 0 makes the two zeros equal.
fn best_first(a: &Candidate, b: &Candidate) -> Ordering {
    (b.logit + 0.0).total_cmp(&(a.logit + 0.0)).then(a.id.cmp(&b.id))
}

/// Buffers for choosing tokens from logits of a vocabulary.
#[derive(Debug)]
pub struct Chooser {
    /// `(n_vocab)` logits with biases and penalties applied.
    changed: Vec<f32>,
    /// Remaining tokens; capacity `n_vocab`.
    candidates: Vec<Candidate>,
    /// `(n_vocab)` occurrences of each token; all zero between calls.
    counts: Vec<u32>,
    /// Best tokens; capacity [`MAX_BEST`].
    best: Vec<Candidate>,
    /// The best remaining tokens of the last choice, with their log-probabilities; capacity
    /// [`MAX_BEST`].
    left: Vec<(u32, f32)>,
}

/// A token that was picked.
#[derive(Clone, Copy, Debug)]
struct Picked {
    token: u32,
    /// `-log2` of its probability if a chain chose it, otherwise NaN.
    surprise: f32,
    /// Natural logarithm of the probability with which the token was drawn; NaN unless wanted.
    logprob: f64,
}

impl Chooser {
    /// Buffers for a vocabulary of `n_vocab` tokens.
    pub fn new(n_vocab: usize) -> Chooser {
        Chooser {
            changed: Vec::with_capacity(n_vocab),
            candidates: Vec::with_capacity(n_vocab),
            counts: vec![0; n_vocab],
            best: Vec::with_capacity(MAX_BEST),
            left: Vec::with_capacity(MAX_BEST),
        }
    }

    /// Bytes that [`Self::new`] allocates.
    pub const fn bytes(n_vocab: usize) -> u64 {
        let a_token = size_of::<Candidate>() + size_of::<u32>() + size_of::<f32>();
        let a_best = size_of::<Candidate>() + size_of::<(u32, f32)>();
        (n_vocab * a_token + MAX_BEST * a_best) as u64
    }

    /// Chooses the token of an output. `logits` is `(n_vocab)`; `pending` yields the tokens of
    /// [`Want::pending`], which are all known by now. Allocates nothing.
    pub fn choose(
        &mut self,
        logits: &[f32],
        want: &Want,
        step: &Step,
        pending: impl Iterator<Item = u32> + Clone,
    ) -> Chosen {
        let is_changed = want.penalties.is_some() || want.biases.len > 0;
        if is_changed && want.choose != Choose::Nothing {
            self.change(logits, want, step, pending);
        }
        let Chooser { changed, candidates, left, .. } = self;
        left.clear();
        let of = if is_changed { changed.as_slice() } else { logits };
        let mut picked = None;
        match want.mask.filter(|_| want.choose != Choose::Nothing) {
            None => picked = pick_from(Allowed::all(of), want, step, candidates, left),
            Some(mask) => step.masks.with(mask, &mut |words| {
                picked = pick_from(Allowed::masked(of, words), want, step, candidates, left);
            }),
        }
        let logprob = match picked.filter(|_| want.logprob) {
            Some(picked) if want.drawn => picked.logprob as f32,
            Some(picked) => logprob(logits, picked.token),
            None => f32::NAN,
        };
        let surprise = picked.map_or(f32::NAN, |picked| picked.surprise);
        Chosen { token: picked.map(|picked| picked.token), logprob, surprise }
    }

    /// The [`Want::n_best`] best tokens of the last chosen output with their log-probabilities,
    /// best first. Allocates nothing.
    pub fn best<'a>(&'a mut self, logits: &[f32], want: &Want) -> impl Iterator<Item = (u32, f32)> + 'a {
        self.best.clear();
        let n = if want.drawn { 0 } else { (want.n_best as usize).min(MAX_BEST) };
        if !want.drawn {
            self.left.clear();
        }
        let mut normalizer = 0.0;
        if n > 0 {
            normalizer = log_sum_exp(logits);
            // `gather` keeps a heap of `n`, unless the vocabulary is smaller.
            TopK(n).gather(Allowed::all(logits), &mut self.candidates);
            self.candidates.sort_unstable_by(best_first);
            self.best.extend(self.candidates.iter().take(n));
        }
        let own = self.best.iter().map(move |c| (c.id, (f64::from(c.logit) - normalizer) as f32));
        self.left.iter().copied().chain(own)
    }

    /// The logits after biases and penalties.
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
        if let Some(penalties) = &want.penalties {
            let tokens = want.recent.of(step.recent).iter().copied().chain(pending);
            penalties::apply(penalties, &mut self.changed, tokens, &mut self.counts);
        }
    }
}

/// Picks among the allowed tokens. With [`Want::drawn`], `left` receives the best tokens that could
/// have been picked. `candidates` has capacity for all tokens.
fn pick_from(
    logits: Allowed<'_>,
    want: &Want,
    step: &Step,
    candidates: &mut Vec<Candidate>,
    left: &mut Vec<(u32, f32)>,
) -> Option<Picked> {
    let n = if want.drawn { (want.n_best as usize).min(MAX_BEST) } else { 0 };
    match &want.choose {
        Choose::Nothing => None,
        Choose::Best => {
            let token = logits.best()?;
            left.extend((n > 0).then_some((token, 0.0)));
            Some(Picked { token, surprise: f32::NAN, logprob: 0.0 })
        }
        Choose::Sample(sampling) => {
            let sorted = TopK(sampling.top_k).gather(logits, candidates);
            let mut ranking = Ranking::new(candidates, sorted, Temperature(sampling.temperature));
            TopP(sampling.top_p).apply(&mut ranking);
            MinP(sampling.min_p).apply(&mut ranking);
            let place = pick::pick(&mut ranking, sampling.random)?;
            let logprob = if want.drawn { ranking.logprob(place) } else { f64::NAN };
            let picked = Picked { token: ranking.id(place), surprise: f32::NAN, logprob };
            ranking.likeliest(n, left);
            Some(picked)
        }
        Choose::Chain(chain) => {
            let mut stages = Chain::run(chain.stages.of(step.stages), logits, candidates);
            stages.likeliest(n, left);
            let (token, surprise) = stages.pick(chain.random)?;
            Some(Picked { token, surprise, logprob: -f64::from(surprise) * std::f64::consts::LN_2 })
        }
    }
}

/// The best token, ties to the lowest id; `None` if every logit is NaN or minus infinity.
pub fn argmax(logits: &[f32]) -> Option<u32> {
    Allowed::all(logits).best()
}

/// Natural logarithm of a token's probability.
pub fn logprob(logits: &[f32], token: u32) -> f32 {
    (f64::from(logits[token as usize]) - log_sum_exp(logits)) as f32
}

/// `ln sum exp(logits)` in f64, shifted by the largest so that nothing overflows; NaN counts as
/// minus infinity.
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
