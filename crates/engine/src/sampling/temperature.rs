//! Temperature.

use super::Candidate;

/// Stage 2: `l = l / T`, T > 0. Below 1 it favours likely tokens, above 1 unlikely ones. (0 means greedy and never gets
/// here.) The quotient is kept finite, so that a tiny T cannot turn two good tokens into infinities.
#[derive(Clone, Copy, Debug)]
pub struct Temperature(pub f32);

impl Temperature {
    /// Change the logits in place.
    pub fn apply(self, candidates: &mut [Candidate]) {
        if self.0 == 1.0 {
            return;
        }
        // Relative to the best, which softmax does not notice: the best becomes 0, all others negative.
        let max = candidates.iter().map(|c| c.logit).fold(f32::NEG_INFINITY, f32::max);
        for candidate in candidates {
            candidate.logit = (candidate.logit - max) / self.0;
        }
    }
}
