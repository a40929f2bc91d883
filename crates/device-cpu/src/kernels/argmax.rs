//! Index of the largest column, the lowest among equals: x `(n_outputs, n_vocab)`, out `(n_outputs,
//! 1)` u32.
//!
//! Every worker searches its share of each row's columns. The last one to finish combines the
//! results. NaN is never the largest; a row of NaN only returns 0. Bytes: 4 read a column. The
//! kernel does nothing unless the step needs the result.

use crate::command::Worker;
use crate::simd::{Simd, variants};
use device::RowCount;
use std::sync::atomic::Ordering;

/// Largest column that one worker found in a row.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Found {
    value: f32,
    index: u32,
}

/// Parameters.
#[derive(Clone, Copy)]
pub struct ArgmaxParams {
    /// `(n_outputs, n_vocab)`
    pub x: *const f32,
    /// Columns.
    pub n_vocab: usize,
    /// `(max_outputs, n_workers)`
    pub found: *mut Found,
    /// `(n_outputs, 1)`
    pub out: *mut u32,
}

/// # Safety
/// As [`crate::command::Kernel`].
#[inline(always)]
unsafe fn body<S: Simd>(p: &ArgmaxParams, worker: &Worker<'_>) {
    if !worker.step.argmax {
        return;
    }
    let n = worker.step.n_rows(RowCount::Outputs);
    let share = worker.share(p.n_vocab, 64);
    // SAFETY: `share` is within a row of `n_vocab` columns. Each worker writes its own entry of
    // `p.found`, and the last one reads them after all have written, by the counter's ordering.
    unsafe {
        for row in 0..n {
            let found = search::<S>(p.x.add(row * p.n_vocab), share.clone());
            p.found.add(row * worker.n + worker.index).write(found);
        }
        if worker.taken[0].fetch_add(1, Ordering::AcqRel) + 1 < worker.n {
            return;
        }
        for row in 0..n {
            let mut best = *p.found.add(row * worker.n);
            for other in 1..worker.n {
                let found = *p.found.add(row * worker.n + other);
                if found.value > best.value {
                    best = found;
                }
            }
            p.out.add(row).write(best.index);
        }
    }
}

variants!(
    /// The kernel for an instruction set.
    argmax, body, ArgmaxParams
);

/// Finds the largest value of a range of columns, and the first column that has it.
///
/// # Safety
/// `x` is valid for reads of the range; the instruction set is available.
#[inline(always)]
unsafe fn search<S: Simd>(x: *const f32, range: std::ops::Range<usize>) -> Found {
    // SAFETY: the caller guarantees that `x` is valid for `range`, and the instruction set.
    unsafe {
        let mut best = f32::NEG_INFINITY;
        let mut at = range.start;
        let mut piece = range.start; // where the best so far is, to 64 columns
        let lowest = S::splat(f32::NEG_INFINITY);
        while at + 64 <= range.end {
            let mut m = lowest;
            for i in (0..64).step_by(S::N) {
                let v = S::load(x.add(at + i));
                m = S::select_lt(m, v, v, m);
            }
            let m = S::max_lane(m);
            if m > best {
                (best, piece) = (m, at);
            }
            at += 64;
        }
        for i in at..range.end {
            if *x.add(i) > best {
                (best, piece) = (*x.add(i), i);
            }
        }
        let index = (piece..range.end).find(|i| *x.add(*i) == best).unwrap_or(range.start);
        Found { value: best, index: index as u32 }
    }
}
