//! Top-k.

use super::{Allowed, Candidate, best_first};

/// Stage 3 keeps the `k` best tokens, ties by the lower id; 0 keeps all.
#[derive(Clone, Copy, Debug)]
pub struct TopK(pub usize);

impl TopK {
    /// Fills `candidates` (capacity at least `n_vocab`) with the survivors of `logits`; NaN and
    /// minus infinity never survive. Returns true if they are sorted, best first.
    ///
    /// One pass with a heap of `k`, whose root is the worst survivor: a single comparison rejects
    /// nearly every logit.
    pub fn gather(self, logits: Allowed<'_>, candidates: &mut Vec<Candidate>) -> bool {
        candidates.clear();
        let k = if self.0 == 0 { usize::MAX } else { self.0 };
        logits.above(|candidate| {
            if candidates.len() < k {
                candidates.push(candidate);
                if candidates.len() < k {
                    return f32::NEG_INFINITY;
                }
                for root in (0..k / 2).rev() {
                    sift_down(candidates, root);
                }
            } else {
                // Ids ascend, so an equal logit comes later and loses: it is not above the worst.
                candidates[0] = candidate;
                sift_down(candidates, 0);
            }
            candidates[0].logit
        });
        let sorted = k < logits.n_vocab();
        if sorted {
            candidates.sort_unstable_by(best_first);
        }
        sorted
    }
}

/// Restores the heap below `root`: a parent is worse than its children.
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
