//! Which experts run a row, and how much each counts: the `k` largest of a softmax, x `(n, n_experts)`, ids and weights
//! `(n, k)`.
//!
//! Rows are shared among the workers. Each of the `k` is found by a pass over the row: the next in the order of falling
//! values, of equals the lower id first, so that nothing needs to be marked. NaN is never found; where too few numbers are
//! left, id 0 stands in, so that every id is one. Sums in order. Bytes: `4 k` a column, from the first cache.

use crate::command::Worker;
use device::RowCount;

/// Parameters.
#[derive(Clone, Copy)]
pub struct Params {
    /// `(n, n_experts)`
    pub x: *const f32,
    /// Columns of `x`.
    pub n_experts: usize,
    /// How many are chosen.
    pub k: usize,
    /// Whether the chosen are made to sum to 1.
    pub normalise: bool,
    /// On every weight.
    pub factor: f32,
    /// `(n_experts)`; null: 1.
    pub scales: *const f32,
    /// `(n, k)`
    pub ids: *mut u32,
    /// `(n, k)`
    pub weights: *mut f32,
    /// Which rows.
    pub rows: RowCount,
}

/// The kernel.
///
/// # Safety
/// As [`crate::command::Kernel`].
pub unsafe fn route(p: &Params, worker: &Worker<'_>) {
    for row in worker.share(worker.step.n_rows(p.rows), 1) {
        // SAFETY: the row lies within the values; the scales have one for each expert.
        unsafe {
            let x = std::slice::from_raw_parts(p.x.add(row * p.n_experts), p.n_experts);
            let ids = std::slice::from_raw_parts_mut(p.ids.add(row * p.k), p.k);
            let weights = std::slice::from_raw_parts_mut(p.weights.add(row * p.k), p.k);
            choose(x, ids, weights);
            let max = weights[0];
            let sum: f32 = x.iter().map(|v| (v - max).exp()).sum();
            let mut chosen = 0.0;
            for weight in weights.iter_mut() {
                *weight = (*weight - max).exp() / sum;
                chosen += *weight;
            }
            let divisor = if p.normalise { chosen } else { 1.0 };
            for (weight, id) in weights.iter_mut().zip(ids) {
                let scale = if p.scales.is_null() { 1.0 } else { *p.scales.add(*id as usize) };
                *weight = *weight / divisor * scale * p.factor;
            }
        }
    }
}

/// The largest values of `x` and where they stand.
fn choose(x: &[f32], ids: &mut [u32], values: &mut [f32]) {
    let mut last = (f32::INFINITY, None);
    for (to, value) in ids.iter_mut().zip(values) {
        let mut best = (f32::NEG_INFINITY, None);
        for (id, v) in x.iter().enumerate() {
            // `v` comes after `last`, and before every other that does.
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
