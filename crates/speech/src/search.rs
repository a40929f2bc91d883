//! Search for the best continuation of a prompt: beam search, and sampling.
//!
//! Beam search keeps the `n` most probable hypotheses. A step considers the `2 n` best
//! continuations of all of them. Those among the first `n` that end are finished, and the next
//! continuations take their places. The search ends when `patience * n` hypotheses have ended
//! (Graves 2012; patience: Kasai et al. 2022, arXiv:2204.05424; the order of CTranslate2's search).

use engine::sampling::Rng;

use crate::Result;
use crate::math;
use crate::rules::Rules;

/// Operations of a model that a search needs.
pub(crate) trait Beams {
    /// Logits `(n_beams, n_vocab)` after each beam; at first those of one beam, the prompt. The
    /// search may write to them.
    fn logits(&mut self) -> &mut [f32];

    /// Continues beam `parents[i]` with `tokens[i]` as beam `i`.
    ///
    /// # Errors
    /// The device fails, or the search is cancelled.
    fn advance(&mut self, parents: &[usize], tokens: &[u32]) -> Result<()>;
}

/// Limits of a search.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Size of the vocabulary: columns of the logits.
    pub(crate) n_vocab: usize,
    /// Maximum number of tokens of a hypothesis.
    pub(crate) max_tokens: usize,
    /// A hypothesis' log-probability is divided by its length to this power.
    pub(crate) length_penalty: f32,
}

/// A possible transcript of a window.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Hypothesis {
    /// Tokens, without the end token.
    pub(crate) tokens: Vec<u32>,
    /// Sum of the log-probabilities of the tokens and the end.
    pub(crate) log_prob: f32,
}

impl Hypothesis {
    /// Mean log-probability of the tokens and the end.
    pub(crate) fn mean_log_prob(&self) -> f32 {
        self.log_prob / (self.tokens.len() + 1) as f32
    }

    fn score(&self, length_penalty: f32) -> f32 {
        self.log_prob / (self.tokens.len().max(1) as f32).powf(length_penalty)
    }
}

/// A continuation: a beam, a token, and the log-probability of both together.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Candidate {
    beam: usize,
    token: u32,
    log_prob: f32,
}

/// The `limit` best candidates, best first. Of equal candidates, the earlier one comes first.
#[derive(Debug)]
struct Best {
    limit: usize,
    candidates: Vec<Candidate>,
}

impl Best {
    /// The log-probability that a new candidate must exceed.
    fn threshold(&self) -> f32 {
        match self.candidates.last() {
            Some(last) if self.candidates.len() == self.limit => last.log_prob,
            _ => f32::NEG_INFINITY,
        }
    }

    fn offer(&mut self, candidate: Candidate) {
        // NaN fails this comparison, so it is never added.
        if candidate.log_prob > self.threshold() {
            if self.candidates.len() == self.limit {
                self.candidates.pop();
            }
            let at = self.candidates.partition_point(|other| other.log_prob >= candidate.log_prob);
            self.candidates.insert(at, candidate);
        }
    }

    /// Adds all tokens `first..` of a beam with these logits, each increased by `base`.
    fn offer_all(&mut self, beam: usize, first: usize, logits: &[f32], base: f32) {
        const BLOCK: usize = 64;
        for (block, values) in logits.chunks(BLOCK).enumerate() {
            // Few blocks have one of the best candidates.
            if math::max(values) + base <= self.threshold() {
                continue;
            }
            for (at, value) in values.iter().enumerate() {
                let token = (first + block * BLOCK + at) as u32;
                self.offer(Candidate { beam, token, log_prob: value + base });
            }
        }
    }
}

/// The most probable hypothesis of a search with `n_beams` beams. `None` if no logit is a number.
///
/// # Errors
/// Errors of [`Beams::advance`].
pub(crate) fn beam_search(
    model: &mut dyn Beams,
    rules: &Rules,
    n_beams: usize,
    patience: f32,
    bounds: &Bounds,
) -> Result<Option<Hypothesis>> {
    let n_wanted = ((n_beams as f32 * patience).round() as usize).max(1);
    let mut beams = vec![Hypothesis::default()];
    let mut ended: Vec<Hypothesis> = Vec::with_capacity(n_wanted + n_beams);
    let mut best = Best { limit: 2 * n_beams, candidates: Vec::with_capacity(2 * n_beams) };
    let (mut parents, mut tokens) = (Vec::with_capacity(n_beams), Vec::with_capacity(n_beams));
    for step in 0..bounds.max_tokens {
        let is_last = step + 1 == bounds.max_tokens;
        best.candidates.clear();
        for (index, (row, beam)) in model.logits().chunks_mut(bounds.n_vocab).zip(&beams).enumerate() {
            let scored = rules.score(&beam.tokens, row);
            for ids in scored.ids {
                let logits = row.get(ids.clone()).unwrap_or_default();
                best.offer_all(index, ids.start, logits, beam.log_prob - scored.normaliser);
            }
        }
        let grown = |candidate: &Candidate| {
            let mut grown = beams.get(candidate.beam).cloned().unwrap_or_default();
            grown.log_prob = candidate.log_prob;
            if candidate.token != rules.eot() {
                grown.tokens.push(candidate.token);
            }
            grown
        };
        let mut next = Vec::with_capacity(n_beams);
        parents.clear();
        tokens.clear();
        let mut go_on = |candidate: &Candidate| {
            next.push(grown(candidate));
            parents.push(candidate.beam);
            tokens.push(candidate.token);
        };
        let (first, second) = best.candidates.split_at(n_beams.min(best.candidates.len()));
        let mut substitutes = second.iter().filter(|candidate| candidate.token != rules.eot());
        for candidate in first {
            if candidate.token == rules.eot() || is_last {
                ended.push(grown(candidate));
                if let Some(substitute) = substitutes.next() {
                    go_on(substitute);
                }
            } else {
                go_on(candidate);
            }
        }
        beams = next;
        if ended.len() >= n_wanted || is_last || beams.is_empty() {
            break;
        }
        model.advance(&parents, &tokens)?;
    }
    Ok(best_of(ended, bounds.length_penalty))
}

/// The most probable of `n` independent samples at a temperature above 0. `None` if no logit is a
/// number.
///
/// # Errors
/// Errors of [`Beams::advance`].
pub(crate) fn sample(
    model: &mut dyn Beams,
    rules: &Rules,
    n: usize,
    temperature: f32,
    rng: &mut Rng,
    bounds: &Bounds,
) -> Result<Option<Hypothesis>> {
    let mut ended = Vec::with_capacity(n);
    let mut beams = vec![Hypothesis::default(); n];
    let (mut parents, mut tokens) = (Vec::with_capacity(n), Vec::with_capacity(n));
    let mut weights = Vec::new();
    for step in 0..bounds.max_tokens {
        let is_last = step + 1 == bounds.max_tokens;
        parents.clear();
        tokens.clear();
        let mut next = Vec::with_capacity(beams.len());
        let logits = model.logits();
        for (index, mut beam) in beams.into_iter().enumerate() {
            // Before the first step all samples share one row, the prompt's.
            let parent = if step == 0 { 0 } else { index };
            let rows = parent * bounds.n_vocab..(parent + 1) * bounds.n_vocab;
            let Some(row) = logits.get_mut(rows) else { continue };
            let scored = rules.score(&beam.tokens, row);
            let Some(token) = pick(row, &scored.ids, temperature, rng, &mut weights) else { continue };
            beam.log_prob += row.get(token as usize).copied().unwrap_or_default() - scored.normaliser;
            if token != rules.eot() {
                beam.tokens.push(token);
            }
            if token == rules.eot() || is_last {
                ended.push(beam);
            } else {
                next.push(beam);
                parents.push(parent);
                tokens.push(token);
            }
        }
        beams = next;
        if beams.is_empty() {
            break;
        }
        model.advance(&parents, &tokens)?;
    }
    Ok(best_of(ended, bounds.length_penalty))
}

/// Draws a token by its probability at a temperature; `None` if no logit is a number.
fn pick(
    logits: &[f32],
    ids: &[std::ops::Range<usize>; 2],
    temperature: f32,
    rng: &mut Rng,
    weights: &mut Vec<f32>,
) -> Option<u32> {
    let of = |ids: &std::ops::Range<usize>| logits.get(ids.clone()).unwrap_or_default();
    let highest = ids.iter().map(|ids| math::max(of(ids))).fold(f32::NEG_INFINITY, f32::max);
    if !highest.is_finite() {
        return None;
    }
    weights.clear();
    for ids in ids {
        weights.extend(of(ids).iter().map(|logit| math::exp((logit - highest) / temperature)));
    }
    let total: f64 = weights.iter().map(|w| f64::from(*w)).sum();
    let mut left = rng.uniform() * total;
    let tokens = ids.iter().flat_map(|ids| ids.clone());
    let mut last = None;
    for (token, (weight, logit)) in tokens.zip(weights.iter().zip(ids.iter().flat_map(of))) {
        // This exponential of minus infinity is almost 0, not 0.
        if *logit == f32::NEG_INFINITY {
            continue;
        }
        last = Some(token as u32);
        left -= f64::from(*weight);
        if left < 0.0 {
            break;
        }
    }
    last
}

fn best_of(hypotheses: Vec<Hypothesis>, length_penalty: f32) -> Option<Hypothesis> {
    hypotheses.into_iter().max_by(|a, b| a.score(length_penalty).total_cmp(&b.score(length_penalty)))
}

#[cfg(test)]
mod tests;
