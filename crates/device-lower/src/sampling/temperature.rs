//! Temperature.

/// Stage 2: `l = l / T`, T > 0. Below 1 it favours likely tokens, above 1 unlikely ones. (0 means greedy and never gets
/// here.)
#[derive(Clone, Copy, Debug)]
pub struct Temperature(pub f32);

impl Temperature {
    /// `(l - l_max) / T`: relative to the best, which softmax does not notice, so that a tiny T cannot turn two good tokens
    /// into infinities.
    pub fn exponent(self, logit: f32, best: f32) -> f32 {
        (logit - best) / self.0
    }
}
