//! Commands: the entries of a table, and the state that a worker sees while it runs one.

use crate::kernels::attention::schedule::Schedule;
use device::{RowCount, Span, StateUse};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A kernel, which computes one worker's share of a command.
///
/// # Safety
/// The pointers in `params` are valid for the rows of the worker's step. No other thread writes the
/// memory that the kernel reads. The instruction set that it was compiled for is available.
pub type Kernel<P> = unsafe fn(params: &P, worker: &Worker<'_>);

/// 8-byte words of a command's parameters.
const PARAM_WORDS: usize = 62;

/// One entry of a table: a kernel and its parameters with resolved addresses, in eight cache lines.
#[repr(C, align(64))]
pub struct Command {
    kernel: unsafe fn(*const (), &Worker<'_>),
    /// True if a barrier follows the command.
    pub sync: bool,
    params: [MaybeUninit<u64>; PARAM_WORDS],
}

// SAFETY: parameters are plain values and pointers to memory that the program owns.
unsafe impl Send for Command {}
// SAFETY: as above.
unsafe impl Sync for Command {}

impl Command {
    /// A command followed by a barrier.
    pub fn new<P: Copy + 'static>(kernel: Kernel<P>, params: P) -> Command {
        const {
            assert!(size_of::<P>() <= PARAM_WORDS * 8, "parameters are too large for a command");
            assert!(align_of::<P>() <= 8);
        }
        let mut words = [MaybeUninit::uninit(); PARAM_WORDS];
        // SAFETY: `words` has `PARAM_WORDS * 8` bytes aligned to 8, and `P` fits in both, as
        // asserted above.
        unsafe { words.as_mut_ptr().cast::<P>().write(params) };
        // SAFETY: `&P` and `*const ()` have the same ABI, and `run` passes the address of the `P`
        // written above.
        let kernel = unsafe { std::mem::transmute::<Kernel<P>, unsafe fn(*const (), &Worker<'_>)>(kernel) };
        Command { kernel, sync: true, params: words }
    }

    /// Removes the barrier; the next command must not depend on this one.
    pub fn without_sync(self) -> Command {
        Command { sync: false, ..self }
    }

    /// Runs the worker's share.
    ///
    /// # Safety
    /// As [`Kernel`].
    #[inline]
    pub unsafe fn run(&self, worker: &Worker<'_>) {
        // SAFETY: `params` holds the type that `kernel` was made for; the caller guarantees what
        // [`Kernel`] demands.
        unsafe { (self.kernel)(self.params.as_ptr().cast(), worker) }
    }
}

/// The step, as kernels see it.
pub struct StepState<'a> {
    /// `(n_rows)`
    pub tokens: &'a [u32],
    /// Values of the plan's Input, from the caller.
    pub input: &'a [f32],
    /// Spans in row order.
    pub spans: &'a [Span],
    /// `(n_spans)` state of each span; empty without recurrent layers.
    pub states: &'a [StateUse],
    /// `(n_spans)` adapter of each span; empty without adapters.
    pub adapters: &'a [u32],
    /// `(n_rows)` the position of each row in its sequence.
    pub positions: &'a [u32],
    /// `(n_rows)` the slot of each row.
    pub slots: &'a [u32],
    /// `(n_slots, n_groups, pages_per_table)`
    pub page_tables: &'a [u32],
    /// Entries of one table.
    pub pages_per_table: usize,
    /// KV groups.
    pub n_groups: usize,
    /// `(n_outputs)`
    pub outputs: &'a [u32],
    /// True if the token of the largest logit is computed.
    pub argmax: bool,
    /// Work units of attention, by schedule of the plan.
    pub attention: &'a [Schedule],
}

impl<'a> StepState<'a> {
    /// Number of rows of a value.
    #[inline(always)]
    pub fn n_rows(&self, rows: RowCount) -> usize {
        rows.count(self.tokens.len(), self.outputs.len())
    }

    /// Page table of a slot for a KV group.
    #[inline(always)]
    pub fn page_table(&self, slot: u32, group: usize) -> &'a [u32] {
        let start = (slot as usize * self.n_groups + group) * self.pages_per_table;
        &self.page_tables[start..start + self.pages_per_table]
    }
}

/// A worker during one command.
pub struct Worker<'a> {
    /// Index of the worker.
    pub index: usize,
    /// Number of workers.
    pub n: usize,
    /// Scratch of this worker, of the size that the layout computed, aligned to 64.
    pub scratch: *mut u8,
    /// `(n)` units taken so far: all in the first counter, or one counter for each worker's part.
    /// The counters are 0 when the command starts.
    pub taken: &'a [AtomicUsize],
    /// The step.
    pub step: &'a StepState<'a>,
}

impl Worker<'_> {
    /// This worker's contiguous part of `n` equal units, in multiples of `grain` except at the end.
    #[inline(always)]
    pub fn share(&self, n: usize, grain: usize) -> Range<usize> {
        share_of(self.index, self.n, n, grain)
    }

    /// The next unit below `n` that no worker has taken.
    #[inline(always)]
    pub fn take(&self, n: usize) -> Option<usize> {
        let unit = self.taken[0].fetch_add(1, Ordering::Relaxed);
        (unit < n).then_some(unit)
    }

    /// The next of `n` units: first of this worker's contiguous part in order, then of slower
    /// workers' parts. `helped` counts the workers whose parts are empty; it starts at 0.
    #[inline(always)]
    pub fn take_near(&self, n: usize, helped: &mut usize) -> Option<usize> {
        while *helped < self.n {
            let whose = (self.index + *helped) % self.n;
            let part = share_of(whose, self.n, n, 1);
            let unit = part.start + self.taken[whose].fetch_add(1, Ordering::Relaxed);
            if unit < part.end {
                return Some(unit);
            }
            *helped += 1;
        }
        None
    }
}

/// Part `index` of `n_parts` of `n` equal units, in multiples of `grain` except at the end.
#[inline(always)]
fn share_of(index: usize, n_parts: usize, n: usize, grain: usize) -> Range<usize> {
    let grains = n.div_ceil(grain);
    let start = (grains * index / n_parts * grain).min(n);
    let end = (grains * (index + 1) / n_parts * grain).min(n);
    start..end
}

#[cfg(test)]
pub mod testing {
    use super::*;

    /// A step without rows.
    pub const EMPTY_STEP: StepState<'static> = StepState {
        tokens: &[],
        input: &[],
        spans: &[],
        states: &[],
        adapters: &[],
        positions: &[],
        slots: &[],
        page_tables: &[],
        pages_per_table: 0,
        n_groups: 0,
        outputs: &[],
        argmax: false,
        attention: &[],
    };

    /// Runs a kernel as `n_workers` workers, one after another.
    ///
    /// # Safety
    /// As [`Kernel`].
    pub unsafe fn run<P>(
        kernel: Kernel<P>,
        params: &P,
        step: &StepState<'_>,
        n_workers: usize,
        scratch: usize,
    ) {
        let taken: Vec<AtomicUsize> = (0..n_workers).map(|_| AtomicUsize::new(0)).collect();
        for index in 0..n_workers {
            let scratch = crate::memory::Buffer::zeroed("test", scratch).unwrap();
            let worker = Worker { index, n: n_workers, scratch: scratch.start(), taken: &taken, step };
            // SAFETY: the caller guarantees that `params` fits `kernel` and `step`; workers run one
            // at a time here.
            unsafe { kernel(params, &worker) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::EMPTY_STEP;
    use super::*;

    #[test]
    fn shares_cover_everything_once() {
        let taken = [AtomicUsize::new(0)];
        let step = EMPTY_STEP;
        for (total, n, grain) in [(0, 3, 1), (1, 2, 16), (17, 2, 16), (100, 7, 4), (5, 8, 1)] {
            let mut next = 0;
            for index in 0..n {
                let worker = Worker { index, n, scratch: std::ptr::null_mut(), taken: &taken, step: &step };
                let share = worker.share(total, grain);
                assert_eq!(share.start, next);
                assert!(share.start.is_multiple_of(grain) || share.start == total);
                next = share.end;
            }
            assert_eq!(next, total);
        }
    }

    #[test]
    fn every_unit_is_taken_once_whoever_is_slow() {
        let step = EMPTY_STEP;
        for (units, n) in [(0, 2), (1, 3), (7, 3), (100, 4)] {
            let taken: Vec<AtomicUsize> = (0..n).map(|_| AtomicUsize::new(0)).collect();
            let mut seen = vec![0; units];
            // The last worker takes most units; the first ones start late.
            for index in (0..n).rev() {
                let worker = Worker { index, n, scratch: std::ptr::null_mut(), taken: &taken, step: &step };
                let (mut helped, mut last_own) = (0, None);
                while let Some(unit) = worker.take_near(units, &mut helped) {
                    seen[unit] += 1;
                    if helped == 0 {
                        assert!(last_own.is_none_or(|last| unit == last + 1), "its own part is in order");
                        last_own = Some(unit);
                    }
                }
            }
            assert!(seen.iter().all(|n| *n == 1), "{units} units, {n} workers: {seen:?}");
        }
    }

    #[test]
    fn parameters_arrive_in_the_kernel() {
        #[derive(Clone, Copy)]
        struct Params {
            out: *mut [u64; 3],
            values: [u64; 3],
        }
        unsafe fn kernel(p: &Params, _: &Worker<'_>) {
            // SAFETY: `out` points to the array of the test, which outlives the command.
            unsafe { *p.out = p.values }
        }
        let mut out = [0; 3];
        let command = Command::new(kernel, Params { out: &mut out, values: [1, 2, 3] });
        let (taken, step) = ([AtomicUsize::new(0)], EMPTY_STEP);
        let worker = Worker { index: 0, n: 1, scratch: std::ptr::null_mut(), taken: &taken, step: &step };
        // SAFETY: the pointer in the parameters is valid, and the kernel needs no instruction set.
        unsafe { command.run(&worker) };
        assert_eq!(out, [1, 2, 3]);
    }
}
