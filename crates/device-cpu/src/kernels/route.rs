//! Routing: the `k` largest of a softmax choose a row's experts and their weights; x `(n,
//! n_experts)`, ids and weights `(n, k)`.
//!
//! Rows are shared among the workers. Each of the `k` experts is found by a pass over the row, in
//! descending order, the lower id first among equals. So no entry needs a mark. NaN is never found.
//! If too few numbers are left, id 0 is used, so that every id is valid. Sums are in order. Bytes:
//! `4 k` a column, from the first-level cache.
//!
//! With sigmoids, a bias or groups, the scores of all columns are stored in scratch first. Scores
//! of groups that are not used become the smallest.

use crate::command::Worker;
use device::{RouterGroups, RouterScores, RowCount};

/// Parameters.
#[derive(Clone, Copy)]
pub struct RouteParams {
    /// `(n, n_experts)`
    pub x: *const f32,
    /// Columns of `x`.
    pub n_experts: usize,
    /// Number of chosen experts.
    pub k: usize,
    /// True if the chosen weights are normalised to a sum of 1.
    pub normalise: bool,
    /// Factor on every weight.
    pub factor: f32,
    /// Function from `x` to scores.
    pub scores: RouterScores,
    /// `(n_experts)`; null for 0.
    pub bias: *const f32,
    /// Groups of experts.
    pub groups: Option<RouterGroups>,
    /// `(n_experts)`; null for 1.
    pub scales: *const f32,
    /// `(n, k)`
    pub ids: *mut u32,
    /// `(n, k)`
    pub weights: *mut f32,
    /// Kind of rows (tokens or outputs).
    pub rows: RowCount,
}

/// Bytes of scratch: scores, biased scores, and three values for each group.
pub fn scratch_bytes(n_experts: usize, groups: Option<RouterGroups>) -> usize {
    super::round_up((2 * n_experts + 3 * groups.map_or(0, |g| g.n)) * 4)
}

/// Computes the scores of a row, then the ids of the chosen experts, with their scores as weights.
fn by_scores(
    p: &RouteParams,
    x: &[f32],
    bias: &[f32],
    scratch: &mut [f32],
    ids: &mut [u32],
    weights: &mut [f32],
) {
    let (scores, rest) = scratch.split_at_mut(x.len());
    let (sizes, rest) = rest.split_at_mut(x.len());
    match p.scores {
        RouterScores::Sigmoid => scores.iter_mut().zip(x).for_each(|(s, v)| *s = 1.0 / (1.0 + (-v).exp())),
        RouterScores::Softmax => {
            let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            scores.iter_mut().zip(x).for_each(|(s, v)| *s = (v - max).exp());
            let sum: f32 = scores.iter().sum();
            scores.iter_mut().for_each(|s| *s /= sum);
        }
    }
    sizes.copy_from_slice(scores);
    sizes.iter_mut().zip(bias).for_each(|(size, bias)| *size += bias);
    if let Some(groups) = p.groups {
        let (sums, rest) = rest.split_at_mut(groups.n);
        let (used, found) = rest.split_at_mut(groups.n);
        let group = x.len() / groups.n;
        for (sum, sizes) in sums.iter_mut().zip(sizes.chunks_exact(group)) {
            *sum = best(sizes).take(groups.n_best).map(|(_, size)| size).sum();
        }
        used.fill(0.0);
        found.fill(0.0);
        for (id, _) in best(sums).take(groups.n_used) {
            used[id] = 1.0;
        }
        for (sizes, used) in sizes.chunks_exact_mut(group).zip(used) {
            if *used == 0.0 {
                sizes.fill(f32::NEG_INFINITY);
            }
        }
    }
    choose(sizes, ids, weights);
    for (weight, id) in weights.iter_mut().zip(ids) {
        *weight = scores[*id as usize];
    }
}

/// Indices and values in descending order, the lower index first among equals.
fn best(values: &[f32]) -> impl Iterator<Item = (usize, f32)> + '_ {
    let mut last = (usize::MAX, f32::INFINITY);
    std::iter::from_fn(move || {
        let mut best: Option<(usize, f32)> = None;
        for (id, v) in values.iter().enumerate() {
            let follows = *v < last.1 || (*v == last.1 && (last.0 == usize::MAX || id > last.0));
            if follows && best.is_none_or(|(_, most)| *v > most) {
                best = Some((id, *v));
            }
        }
        last = best?;
        best
    })
}

/// The kernel.
///
/// # Safety
/// As [`crate::command::Kernel`].
pub unsafe fn route(p: &RouteParams, worker: &Worker<'_>) {
    let by_logits = p.scores == RouterScores::Softmax && p.bias.is_null() && p.groups.is_none();
    for row in worker.share(worker.step.n_rows(p.rows), 1) {
        // SAFETY: `row` is below the step's rows, for which `x`, `ids` and `weights` are valid;
        // `bias` and `scales` have one value for each expert, and the scratch has `scratch_bytes`.
        unsafe {
            let x = std::slice::from_raw_parts(p.x.add(row * p.n_experts), p.n_experts);
            let ids = std::slice::from_raw_parts_mut(p.ids.add(row * p.k), p.k);
            let weights = std::slice::from_raw_parts_mut(p.weights.add(row * p.k), p.k);
            if by_logits {
                choose(x, ids, weights);
                let max = weights[0];
                let sum: f32 = x.iter().map(|v| (v - max).exp()).sum();
                weights.iter_mut().for_each(|weight| *weight = (*weight - max).exp() / sum);
            } else {
                let bias = match p.bias.is_null() {
                    true => &[][..],
                    false => std::slice::from_raw_parts(p.bias, p.n_experts),
                };
                let len = 2 * p.n_experts + 3 * p.groups.map_or(0, |g| g.n);
                let scratch = std::slice::from_raw_parts_mut(worker.scratch.cast(), len);
                by_scores(p, x, bias, scratch, ids, weights);
            }
            let chosen = weights.iter().sum::<f32>().max(f32::MIN_POSITIVE);
            let divisor = if p.normalise { chosen } else { 1.0 };
            for (weight, id) in weights.iter_mut().zip(ids) {
                let scale = if p.scales.is_null() { 1.0 } else { *p.scales.add(*id as usize) };
                *weight = *weight / divisor * scale * p.factor;
            }
        }
    }
}

/// Finds the largest values of `x` and their indices.
fn choose(x: &[f32], ids: &mut [u32], values: &mut [f32]) {
    let mut last = (f32::INFINITY, None);
    for (to, value) in ids.iter_mut().zip(values) {
        let mut best = (f32::NEG_INFINITY, None);
        for (id, v) in x.iter().enumerate() {
            // `v` comes after `last` in the order, and before every other candidate.
            let follows = *v < last.0 || (*v == last.0 && last.1.is_none_or(|l| id > l));
            if follows && (*v > best.0 || best.1.is_none()) {
                best = (*v, Some(id));
            }
        }
        *to = best.1.unwrap_or(0) as u32;
        *value = best.0;
        last = best;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(x: &[f32], k: usize) -> Vec<u32> {
        let (mut ids, mut values) = (vec![9; k], vec![0.0; k]);
        choose(x, &mut ids, &mut values);
        ids
    }

    #[test]
    fn largest_first_and_the_lower_of_equals() {
        assert_eq!(chosen(&[1.0, 3.0, 2.0, 3.0, 1.0], 4), [1, 3, 2, 0]);
        assert_eq!(chosen(&[5.0; 3], 3), [0, 1, 2]);
        assert_eq!(chosen(&[f32::NEG_INFINITY, 1.0], 2), [1, 0]);
    }

    #[test]
    fn what_is_no_number_still_gives_ids() {
        assert_eq!(chosen(&[f32::NAN, 2.0, f32::NAN], 2), [1, 0]);
        assert_eq!(chosen(&[f32::NAN; 3], 2), [0, 0]);
        assert_eq!(chosen(&[f32::INFINITY, 2.0], 2), [0, 1]);
    }
}
