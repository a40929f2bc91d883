//! The last stage: one token at random.

use super::{Candidate, Rng};

/// Stage 6: token `i` with probability `exp(l_i) / sum exp(l)`, by inverting the cumulative sum: the first token at which
/// the running sum exceeds `u * sum`, `u` uniform in `[0, 1)`. Sums are f64. `None` if there is no candidate.
pub fn pick(candidates: &[Candidate], rng: &mut Rng) -> Option<u32> {
    let max = candidates.iter().map(|c| c.logit).fold(f32::NEG_INFINITY, f32::max);
    let weight = |c: &Candidate| f64::from((c.logit - max).exp());
    let total: f64 = candidates.iter().map(weight).sum();
    let mut left = rng.uniform() * total;
    let mut last = None;
    for candidate in candidates {
        let w = weight(candidate);
        if w > 0.0 {
            last = Some(candidate.id);
            if left < w {
                return last;
            }
        }
        left -= w;
    }
    last // rounding may leave a little over
}
