//! The tokens that are left, in the order in which they are weighed.

use super::{Candidate, Temperature};

/// The candidates of one choice, best first: the larger logit, the lower id of equals. They are put in order only as far as
/// somebody looks, which mostly is a small part of a vocabulary. The order is that of the logits before the temperature,
/// whose quotient may make equals of neighbours.
pub struct Ranking<'a> {
    candidates: &'a mut Vec<Candidate>,
    /// How many are in order; all others are worse.
    n_sorted: usize,
    temperature: Temperature,
    /// The largest logit.
    best: f32,
}

/// How many are put in order at a time.
const CHUNK: usize = 256;

impl<'a> Ranking<'a> {
    /// Of candidates of which all or none are in order.
    pub fn new(candidates: &'a mut Vec<Candidate>, sorted: bool, temperature: Temperature) -> Ranking<'a> {
        let best = candidates.iter().map(|c| c.logit).fold(f32::NEG_INFINITY, f32::max);
        let n_sorted = if sorted { candidates.len() } else { 0 };
        Ranking { candidates, n_sorted, temperature, best }
    }

    /// Sum of the weights `exp((l - l_max) / T)` of all.
    pub fn total(&self) -> f64 {
        self.candidates.iter().map(|c| self.weight(c)).sum()
    }

    /// The first at which the sum of the weights down to it is as `enough` wants it; `None`: nowhere. One without weight
    /// is never the one.
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

    /// The last one with a weight; `None`: none has one, which an infinite logit does.
    pub fn last(&self) -> Option<usize> {
        self.candidates.iter().rposition(|c| self.weight(c) > 0.0)
    }

    /// The token at a place that [`Self::first`] has seen.
    pub fn id(&self, place: usize) -> u32 {
        self.candidates[place].id
    }

    /// The logarithm of the part that the weight of this place has of all.
    pub fn logprob(&self, place: usize) -> f64 {
        (self.weight(&self.candidates[place]) / self.total()).ln()
    }

    /// Append the `n` best that have a weight, and the logarithms of their parts of all weights.
    pub fn likeliest(&mut self, n: usize, left: &mut Vec<(u32, f32)>) {
        let n = n.min(self.candidates.len());
        while self.n_sorted < n {
            self.sort_next();
        }
        let total = if n > 0 { self.total() } else { 1.0 };
        let best = self.candidates[..n].iter().map(|c| (c.id, self.weight(c)));
        left.extend(best.filter(|(_, w)| *w > 0.0).map(|(id, w)| (id, (w / total).ln() as f32)));
    }

    /// Keep the best `n`, as many as [`Self::first`] has seen at most.
    pub fn truncate(&mut self, n: usize) {
        self.candidates.truncate(n);
        self.n_sorted = self.n_sorted.min(n);
    }

    /// Keep those with `(l - l_max) / T >= floor`.
    pub fn keep_above(&mut self, floor: f32) {
        let (temperature, best) = (self.temperature, self.best);
        self.candidates.retain(|c| temperature.exponent(c.logit, best) >= floor);
        // What is worse went first: either all that are in order stayed, or nothing else did.
        self.n_sorted = self.n_sorted.min(self.candidates.len());
    }

    fn weight(&self, candidate: &Candidate) -> f64 {
        f64::from(self.temperature.exponent(candidate.logit, self.best).exp())
    }

    /// Put a further chunk of the best in order. The chunk doubles, so that a flat distribution costs no more than sorting
    /// all of it.
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
