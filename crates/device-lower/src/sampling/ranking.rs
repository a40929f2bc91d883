//! The remaining tokens in the order in which they are weighted.

use super::{Candidate, Temperature};

/// The candidates of one choice, best first, ties by the lower id. They are sorted only as far as a
/// stage reads them, usually a small part of a vocabulary. The order is that of the logits before
/// the temperature, because division may make neighbours equal.
pub struct Ranking<'a> {
    candidates: &'a mut Vec<Candidate>,
    /// Number of sorted candidates; all others are worse.
    n_sorted: usize,
    temperature: Temperature,
    /// The largest logit.
    best: f32,
}

/// Number of candidates that are sorted at a time.
const CHUNK: usize = 256;

impl<'a> Ranking<'a> {
    /// A ranking of candidates, all of which or none are sorted.
    pub fn new(candidates: &'a mut Vec<Candidate>, sorted: bool, temperature: Temperature) -> Ranking<'a> {
        let best = candidates.iter().map(|c| c.logit).fold(f32::NEG_INFINITY, f32::max);
        let n_sorted = if sorted { candidates.len() } else { 0 };
        Ranking { candidates, n_sorted, temperature, best }
    }

    /// Sum of the weights `exp((l - l_max) / T)` of all candidates.
    pub fn total(&self) -> f64 {
        self.candidates.iter().map(|c| self.weight(c)).sum()
    }

    /// Index of the first candidate at which the sum of the weights satisfies `enough`; `None` if
    /// there is none. A candidate of weight 0 is never returned.
    pub fn first(&mut self, enough: impl Fn(f64) -> bool) -> Option<usize> {
        let mut sum = 0.0;
        for i in 0..self.candidates.len() {
            if i == self.n_sorted {
                self.sort_next();
            }
            let weight = self.weight(&self.candidates[i]);
            sum += weight;
            if weight > 0.0 && enough(sum) {
                return Some(i);
            }
        }
        None
    }

    /// Index of the last candidate with a weight; `None` if none has one, which an infinite logit
    /// causes.
    pub fn last(&self) -> Option<usize> {
        self.candidates.iter().rposition(|c| self.weight(c) > 0.0)
    }

    /// The token at an index that [`Self::first`] has reached.
    pub fn id(&self, place: usize) -> u32 {
        self.candidates[place].id
    }

    /// Logarithm of the weight at this index as a part of all weights.
    pub fn logprob(&self, place: usize) -> f64 {
        (self.weight(&self.candidates[place]) / self.total()).ln()
    }

    /// Appends the `n` best candidates that have a weight, and the logarithms of their parts of all
    /// weights.
    pub fn likeliest(&mut self, n: usize, left: &mut Vec<(u32, f32)>) {
        let n = n.min(self.candidates.len());
        while self.n_sorted < n {
            self.sort_next();
        }
        let total = if n > 0 { self.total() } else { 1.0 };
        let best = self.candidates[..n].iter().map(|c| (c.id, self.weight(c)));
        left.extend(best.filter(|(_, w)| *w > 0.0).map(|(id, w)| (id, (w / total).ln() as f32)));
    }

    /// Keeps the best `n`, at most as many as [`Self::first`] has reached.
    pub fn truncate(&mut self, n: usize) {
        self.candidates.truncate(n);
        self.n_sorted = self.n_sorted.min(n);
    }

    /// Keeps candidates with `(l - l_max) / T >= floor`.
    pub fn keep_above(&mut self, floor: f32) {
        let (temperature, best) = (self.temperature, self.best);
        self.candidates.retain(|c| temperature.exponent(c.logit, best) >= floor);
        // Removed candidates were the worst: either all sorted ones stayed, or no unsorted one did.
        self.n_sorted = self.n_sorted.min(self.candidates.len());
    }

    fn weight(&self, candidate: &Candidate) -> f64 {
        f64::from(self.temperature.exponent(candidate.logit, self.best).exp())
    }

    /// Sorts another chunk of the best. The chunk doubles, so that a flat distribution costs no
    /// more than sorting everything.
    fn sort_next(&mut self) {
        let rest = &mut self.candidates[self.n_sorted..];
        let chunk = CHUNK.max(self.n_sorted).min(rest.len());
        if chunk < rest.len() {
            rest.select_nth_unstable_by(chunk, super::best_first);
        }
        rest[..chunk].sort_unstable_by(super::best_first);
        self.n_sorted += chunk;
    }
}
