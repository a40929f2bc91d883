//! Temperature.

/// Stage 2: `l = l / T`, T > 0. Values below 1 favour likely tokens, above 1 unlikely ones. Greedy
/// sampling (T = 0) does not use this stage.
#[derive(Clone, Copy, Debug)]
pub struct Temperature(pub f32);

impl Temperature {
    /// `(l - l_max) / T`. Softmax ignores the shift by the best logit, which keeps a tiny T from
    /// making two good tokens infinite.
    pub fn exponent(self, logit: f32, best: f32) -> f32 {
        (logit - best) / self.0
    }
}
