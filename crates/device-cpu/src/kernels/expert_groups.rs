//! Pairs of rows and experts of a step, grouped by expert, so that each used expert's weights are
//! read once.
//!
//! A *pair* is a row and one of its `k` experts; pair `p` belongs to row `p / k`. [`group`] sorts
//! the pairs by expert with a stable counting sort. [`gather`] copies the rows in that order, in
//! the form that the matrix kernels read. One worker groups; the rows are shared.

use super::linear::ActivationKind;
use crate::command::Worker;
use crate::isa::Isa;
use device::RowCount;

/// Pairs of a step, grouped by expert.
#[derive(Clone, Copy)]
pub struct ExpertGroups {
    /// `(n * k)` pairs, those of expert 0 first.
    pub order: *mut u32,
    /// `(n_experts)` end of each expert's pairs in `order`.
    pub ends: *mut u32,
}

impl ExpertGroups {
    /// Range of an expert's pairs in `order`.
    ///
    /// # Safety
    /// [`group`] has run; `expert` is below the number of experts.
    #[inline(always)]
    pub unsafe fn of(&self, expert: usize) -> std::ops::Range<usize> {
        // SAFETY: the caller guarantees that `group` has written `ends`, and that `expert` is below
        // their number.
        unsafe {
            let start = if expert == 0 { 0 } else { *self.ends.add(expert - 1) };
            start as usize..*self.ends.add(expert) as usize
        }
    }
}

/// Parameters of [`group`].
#[derive(Clone, Copy)]
pub struct ExpertGroupsParams {
    /// `(n, k)`, each below `n_experts`.
    pub ids: *const u32,
    /// Experts of a row.
    pub k: usize,
    /// Experts.
    pub n_experts: usize,
    /// Kind of rows (tokens or outputs).
    pub rows: RowCount,
    /// Destination of the groups.
    pub groups: ExpertGroups,
}

/// Sorts the pairs by expert.
///
/// # Safety
/// As [`crate::command::Kernel`]; the groups have room for the step's pairs and all experts.
pub unsafe fn group(p: &ExpertGroupsParams, worker: &Worker<'_>) {
    if worker.index != 0 {
        return;
    }
    let n = worker.step.n_rows(p.rows) * p.k;
    // SAFETY: the caller guarantees `n` ids and room in `p.groups`; ids are below `n_experts`, so
    // `at` is below `n`.
    unsafe {
        let ids = std::slice::from_raw_parts(p.ids, n);
        let ends = std::slice::from_raw_parts_mut(p.groups.ends, p.n_experts);
        ends.fill(0);
        for id in ids {
            ends[*id as usize] += 1;
        }
        let mut start = 0;
        for end in ends.iter_mut() {
            start += std::mem::replace(end, start);
        }
        // Each entry is the start of its expert's pairs here, and becomes their end as pairs are
        // added.
        for (pair, id) in ids.iter().enumerate() {
            let at = &mut ends[*id as usize];
            p.groups.order.add(*at as usize).write(pair as u32);
            *at += 1;
        }
    }
}

/// Parameters of [`gather`].
#[derive(Clone, Copy)]
pub struct GatherParams {
    /// `(n, n_in)`, or `(n, k * n_in)` if each pair has its own row.
    pub x: *const f32,
    /// Columns of a matrix.
    pub n_in: usize,
    /// Experts of a row.
    pub k: usize,
    /// True if each pair has its own input row.
    pub own: bool,
    /// Kind of rows (tokens or outputs).
    pub rows: RowCount,
    /// Order of the pairs.
    pub groups: ExpertGroups,
    /// Form of the rows.
    pub kind: ActivationKind,
    /// `n * k` rows in that form.
    pub out: *mut u8,
    /// Instruction set that converts the rows.
    pub isa: Isa,
}

/// Gathers the input row of every pair, in the order of the groups.
///
/// # Safety
/// As [`crate::command::Kernel`].
pub unsafe fn gather(p: &GatherParams, worker: &Worker<'_>) {
    for place in worker.share(worker.step.n_rows(p.rows) * p.k, 1) {
        // SAFETY: `group` wrote pairs of the step to `order`, so `pair` is below rows times `k`;
        // `x` and `out` have a row for each.
        unsafe {
            let pair = *p.groups.order.add(place) as usize;
            let x = p.x.add(if p.own { pair } else { pair / p.k } * p.n_in);
            p.kind.write_row(p.isa, x, p.n_in, p.out.add(place * p.kind.row_bytes(p.n_in)));
        }
    }
}

/// Bytes of the groups of `n_pairs` pairs and `n_experts` experts.
pub fn group_bytes(n_pairs: usize, n_experts: usize) -> usize {
    (n_pairs + n_experts) * 4
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::StepState;
    use crate::command::testing::{EMPTY_STEP, run};

    #[test]
    fn pairs_are_sorted_by_expert() {
        let ids = [3u32, 0, 1, 3, 3, 1];
        let (mut order, mut ends) = ([9u32; 6], [9u32; 5]);
        let groups = ExpertGroups { order: order.as_mut_ptr(), ends: ends.as_mut_ptr() };
        let params =
            ExpertGroupsParams { ids: ids.as_ptr(), k: 2, n_experts: 5, rows: RowCount::Tokens, groups };
        let step = StepState { tokens: &[0; 3], ..EMPTY_STEP };
        // SAFETY: the buffers have three rows of two pairs, and five experts.
        let ranges = unsafe {
            run(group, &params, &step, 3, 64);
            [0, 1, 2, 3, 4].map(|expert| groups.of(expert))
        };
        assert_eq!(ranges, [0..1, 1..3, 3..3, 3..6, 6..6]);
        assert_eq!(order, [1, 2, 5, 0, 3, 4]);
    }
}
