//! Top-p (nucleus sampling).

use super::Ranking;

/// Stage 4 keeps the fewest best tokens whose probabilities sum to at least `p`, at least one
/// (Holtzman et al. 2020, arXiv:1904.09751). Probabilities are over the tokens that reached this
/// stage; 1 keeps all.
#[derive(Clone, Copy, Debug)]
pub struct TopP(pub f32);

impl TopP {
    /// Truncates the ranking.
    pub fn apply(self, ranking: &mut Ranking<'_>) {
        if self.0 >= 1.0 {
            return;
        }
        let goal = f64::from(self.0) * ranking.total();
        if let Some(last) = ranking.first(|sum| sum >= goal) {
            ranking.truncate(last + 1);
        }
    }
}
