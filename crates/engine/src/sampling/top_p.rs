//! Top-p (nucleus sampling).

use super::{Candidate, best_first};

/// Stage 4: keep the fewest best tokens whose probabilities sum to at least `p`, at least one (Holtzman et al. 2020,
/// arXiv:1904.09751). Probabilities are over the tokens that reached this stage; 1 keeps all.
#[derive(Clone, Copy, Debug)]
pub struct TopP(pub f32);

/// How many are sorted at a time when the whole vocabulary is here: the nucleus is mostly far smaller.
const CHUNK: usize = 256;

impl TopP {
    /// Cut `candidates`. `sorted` says whether they are best first already; returns whether they are afterwards.
    pub fn apply(self, candidates: &mut Vec<Candidate>, sorted: bool) -> bool {
        if self.0 >= 1.0 || candidates.len() < 2 {
            return sorted;
        }
        let max = candidates.iter().map(|c| c.logit).fold(f32::NEG_INFINITY, f32::max);
        let weight = |c: &Candidate| f64::from((c.logit - max).exp());
        let goal = f64::from(self.0) * candidates.iter().map(weight).sum::<f64>();

        let mut sum = 0.0;
        let mut n_sorted = if sorted { candidates.len() } else { 0 };
        for i in 0..candidates.len() {
            if i == n_sorted {
                n_sorted = sort_next(candidates, n_sorted);
            }
            sum += weight(&candidates[i]);
            if sum >= goal {
                candidates.truncate(i + 1);
                break;
            }
        }
        true
    }
}

/// Sort a further chunk of the best behind the first `n_sorted`; returns how many are sorted then. The chunk doubles,
/// so that a flat distribution costs no more than sorting all of it.
fn sort_next(candidates: &mut [Candidate], n_sorted: usize) -> usize {
    let rest = &mut candidates[n_sorted..];
    let chunk = CHUNK.max(n_sorted).min(rest.len());
    if chunk < rest.len() {
        rest.select_nth_unstable_by(chunk, best_first);
    }
    rest[..chunk].sort_unstable_by(best_first);
    n_sorted + chunk
}
