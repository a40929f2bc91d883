//! Min-p.

use super::Candidate;

/// Stage 5: keep tokens with `probability >= p * (probability of the best)`, that is `l >= l_max + ln p`
/// (Nguyen et al. 2024, arXiv:2407.01082); 0 keeps all.
#[derive(Clone, Copy, Debug)]
pub struct MinP(pub f32);

impl MinP {
    /// Cut `candidates`, keeping their order; `sorted` says that they are best first.
    pub fn apply(self, candidates: &mut Vec<Candidate>, sorted: bool) {
        if self.0 <= 0.0 {
            return;
        }
        if sorted {
            let Some(best) = candidates.first() else { return };
            let floor = best.logit + self.0.ln();
            let n = candidates.partition_point(|c| c.logit >= floor);
            candidates.truncate(n.max(1));
        } else {
            let max = candidates.iter().map(|c| c.logit).fold(f32::NEG_INFINITY, f32::max);
            let floor = max + self.0.ln();
            candidates.retain(|c| c.logit >= floor);
        }
    }
}
