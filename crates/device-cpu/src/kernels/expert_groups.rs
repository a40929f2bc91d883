//! The pairs of rows and experts of a step, grouped by expert, so that each used expert's weights are read once.
//!
//! A *pair* is a row and one of its `k` experts; pair `p` is of row `p / k`. [`group`] sorts the pairs by expert (a counting
//! sort, so pairs of an expert stay in order); [`gather`] brings the rows into that order in the form that the matrix
//! kernels read. Grouping is one worker's; the rows are shared.

use super::linear::ActivationKind;
use crate::command::Worker;
use crate::isa::Isa;
use device::RowCount;

/// The groups of a step.
#[derive(Clone, Copy)]
pub struct Groups {
    /// `(n * k)`: pairs, those of expert 0 first.
    pub order: *mut u32,
    /// `(n_experts)`: where the pairs of each expert end in `order`.
    pub ends: *mut u32,
}

impl Groups {
    /// The places in `order` of an expert's pairs.
    ///
    /// # Safety
    /// [`group`] has run; the expert is one.
    #[inline(always)]
    pub unsafe fn of(&self, expert: usize) -> std::ops::Range<usize> {
        // SAFETY: by the caller, `group` has run and the expert is below their number.
        unsafe {
            let start = if expert == 0 { 0 } else { *self.ends.add(expert - 1) };
            start as usize..*self.ends.add(expert) as usize
        }
    }
}

/// Parameters of [`group`].
#[derive(Clone, Copy)]
pub struct Params {
    /// `(n, k)`, each below `n_experts`.
    pub ids: *const u32,
    /// Experts of a row.
    pub k: usize,
    /// Experts.
    pub n_experts: usize,
    /// Which rows.
    pub rows: RowCount,
    /// Where they go.
    pub groups: Groups,
}

/// Sort the pairs by expert.
///
/// # Safety
/// As [`crate::command::Kernel`]; the groups have room for the step's pairs and the experts.
pub unsafe fn group(p: &Params, worker: &Worker<'_>) {
    if worker.index != 0 {
        return;
    }
    let n = worker.step.n_rows(p.rows) * p.k;
    // SAFETY: by the caller, the parameters' pointers are valid for the rows of the step, no other worker
    // writes what this one reads, and the instruction set is available; ids are below the number of experts.
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
        // Each is a start now, and moves to its end as pairs come in.
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
    /// `(n, n_in)`, or `(n, k * n_in)` if each pair has its own.
    pub x: *const f32,
    /// Columns of a matrix.
    pub n_in: usize,
    /// Experts of a row.
    pub k: usize,
    /// Whether each pair has its own input.
    pub own: bool,
    /// Which rows.
    pub rows: RowCount,
    /// In which order.
    pub groups: Groups,
    /// In which form they are wanted.
    pub kind: ActivationKind,
    /// `n * k` rows of it.
    pub out: *mut u8,
    /// What brings them into it.
    pub isa: Isa,
}

/// The input of every pair, in the order of the groups.
///
/// # Safety
/// As [`crate::command::Kernel`].
pub unsafe fn gather(p: &GatherParams, worker: &Worker<'_>) {
    for place in worker.share(worker.step.n_rows(p.rows) * p.k, 1) {
        // SAFETY: the order holds pairs of the step; the buffers have room for all of them.
        unsafe {
            let pair = *p.groups.order.add(place) as usize;
            let x = p.x.add(if p.own { pair } else { pair / p.k } * p.n_in);
            p.kind.write_row(p.isa, x, p.n_in, p.out.add(place * p.kind.row_bytes(p.n_in)));
        }
    }
}

/// Bytes of the groups of so many pairs and experts.
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
        let groups = Groups { order: order.as_mut_ptr(), ends: ends.as_mut_ptr() };
        let params = Params { ids: ids.as_ptr(), k: 2, n_experts: 5, rows: RowCount::Tokens, groups };
        let step = StepState { tokens: &[0; 3], ..EMPTY_STEP };
        // SAFETY: three rows of two pairs, and five experts.
        let ranges = unsafe {
            run(group, &params, &step, 3, 64);
            [0, 1, 2, 3, 4].map(|expert| groups.of(expert))
        };
        assert_eq!(ranges, [0..1, 1..3, 3..3, 3..6, 6..6]);
        assert_eq!(order, [1, 2, 5, 0, 3, 4]);
    }
}
