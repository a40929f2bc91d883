//! Min-p.

use super::Ranking;

/// Stage 5 keeps tokens with `probability >= p * (probability of the best)`, which is `(l - l_max)
/// / T >= ln p` (Nguyen et al. 2024, arXiv:2407.01082); 0 keeps all.
#[derive(Clone, Copy, Debug)]
pub struct MinP(pub f32);

impl MinP {
    /// Truncates the ranking.
    pub fn apply(self, ranking: &mut Ranking<'_>) {
        if self.0 > 0.0 {
            ranking.keep_above(self.0.ln());
        }
    }
}
