//! Top-k.

use super::{Candidate, best_first};

/// Stage 3: keep the `k` best tokens (the lower id of equals); 0 keeps all.
#[derive(Clone, Copy, Debug)]
pub struct TopK(pub usize);

impl TopK {
    /// Fill `candidates` (its capacity is at least `n_vocab`) with the survivors of `logits`; NaN and minus infinity
    /// never survive. Returns whether they are sorted, best first.
    ///
    /// One pass with a heap of `k`, its root the worst survivor: nearly every logit is refused by one comparison.
    pub fn gather(self, logits: &[f32], candidates: &mut Vec<Candidate>) -> bool {
        candidates.clear();
        let mut all = logits
            .iter()
            .enumerate()
            .filter(|(_, l)| **l > f32::NEG_INFINITY)
            .map(|(id, &logit)| Candidate { id: id as u32, logit });
        if self.0 == 0 || self.0 >= logits.len() {
            candidates.extend(all);
            return false;
        }
        candidates.extend(all.by_ref().take(self.0));
        for root in (0..candidates.len() / 2).rev() {
            sift_down(candidates, root);
        }
        for candidate in all {
            // Ids ascend, so an equal logit comes later and loses.
            if candidates.first().is_some_and(|worst| candidate.logit > worst.logit) {
                candidates[0] = candidate;
                sift_down(candidates, 0);
            }
        }
        candidates.sort_unstable_by(best_first);
        true
    }
}

/// Restore the heap below `root`: a parent is worse than its children.
fn sift_down(heap: &mut [Candidate], mut root: usize) {
    loop {
        let mut worst = root;
        for child in [2 * root + 1, 2 * root + 2] {
            if child < heap.len() && best_first(&heap[child], &heap[worst]).is_gt() {
                worst = child;
            }
        }
        if worst == root {
            return;
        }
        heap.swap(root, worst);
        root = worst;
    }
}
