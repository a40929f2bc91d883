//! The last stage: one token at random.

use super::Ranking;

/// Stage 6: a token with probability `w / sum w`, by inverting the cumulative sum of the weights, best first: the first
/// token at which it exceeds `u * sum w`, `u` uniform in `[0, 1)`. Sums are f64. Its place; `None` if there is no
/// candidate.
pub fn pick(ranking: &mut Ranking<'_>, random: f64) -> Option<usize> {
    let total = ranking.total();
    // Rounding may leave a little over.
    ranking.first(|sum| sum > random * total).or_else(|| ranking.last())
}
