//! The last stage: one token at random.

use super::Ranking;

/// Stage 6 picks a token with probability `w / sum w`. It is the first at which the cumulative sum
/// of the weights, best first, exceeds `u * sum w`, with `u` uniform in `[0, 1)`. Sums are f64.
/// Returns its index; `None` if there is no candidate.
pub fn pick(ranking: &mut Ranking<'_>, random: f64) -> Option<usize> {
    let total = ranking.total();
    // Rounding may leave a little over, so the last candidate is the fallback.
    ranking.first(|sum| sum > random * total).or_else(|| ranking.last())
}
