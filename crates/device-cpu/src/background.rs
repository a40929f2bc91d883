//! A background step, which is computed in parts between the submitted steps.
//!
//! It has its own tables, activations and scratch, sized for a few rows of one sequence. It shares
//! weights, pages and states with the other steps. A part is the commands between two barriers,
//! usually one command. The duration of each part is remembered from step to step, so that a part
//! starts only if it is expected to end in time.

use crate::isa::Isa;
use crate::layout::LaidOut;
use crate::pool::{Interrupted, Pool};
use crate::tables::{Kept, Tables};
use crate::weights::InterleavedWeights;
use device::{BackgroundProgress, Limits, OwnedStep, Plan, Result};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Largest ratio of a measured duration to the previous one that is stored at once. A longer one
/// was probably an interruption.
const OUTLIER: u32 = 2;

/// Limits that background steps are compiled for; `None` if there are none.
pub fn limits(limits: &Limits) -> Option<Limits> {
    (limits.background_rows > 0).then(|| Limits {
        max_rows: limits.background_rows,
        max_outputs: 1,
        max_spans: 1,
        background_rows: 0,
        ..limits.clone()
    })
}

/// A background step and its tables.
pub struct Background {
    tables: Tables,
    step: OwnedStep,
    /// Index of the first command of the next part.
    next: usize,
    longest: Duration,
    /// Last duration of the part that ends with each command, by plan and by [one row, many rows].
    costs: Vec<[Vec<Option<Cost>>; 2]>,
}

/// Measured duration of a part, with the number of rows of its step.
#[derive(Clone, Copy)]
struct Cost {
    duration: Duration,
    n_rows: usize,
}

impl Cost {
    /// Expected duration with `n_rows`: proportional to the rows, but no less than measured.
    fn of_rows(self, n_rows: usize) -> Duration {
        self.duration.mul_f64((n_rows as f64 / self.n_rows.max(1) as f64).max(1.0))
    }
}

impl Background {
    /// Allocates the memory and writes the tables, for the sizes returned by [`limits`].
    ///
    /// # Errors
    /// Memory allocation failed.
    pub fn new(
        plans: &[Plan],
        limits: &Limits,
        kept: &Kept,
        weights: Arc<InterleavedWeights>,
        isa: Isa,
        n_workers: usize,
    ) -> Result<Background> {
        let laid_out = LaidOut::new(plans, limits, isa, n_workers);
        let tables = Tables::new(&laid_out, limits, kept, weights, isa)?;
        let unknown = |plan| [1, 2].map(|n_rows| vec![None; tables.commands(plan, n_rows).len()]);
        let costs = (0..plans.len()).map(unknown).collect();
        Ok(Background { tables, step: OwnedStep::default(), next: 0, longest: Duration::ZERO, costs })
    }

    /// Starts a step.
    pub fn begin(&mut self, step: &device::Step, kept: &Kept, n_workers: usize) {
        self.step.assign(step);
        (self.next, self.longest) = (0, Duration::ZERO);
        self.tables.prepare(&self.step.borrow(), kept, n_workers);
    }

    /// Computes the next part, then further parts that are expected to end before `until`.
    ///
    /// # Errors
    /// A worker panicked.
    pub fn advance(
        &mut self,
        until: Option<Instant>,
        kept: &Kept,
        pool: &Pool,
    ) -> std::result::Result<BackgroundProgress, Interrupted> {
        let step = self.step.borrow();
        let n_rows = step.tokens.len();
        let n_commands = self.tables.commands(step.plan, n_rows).len();
        let costs = &mut self.costs[step.plan][usize::from(n_rows > 1)];
        let mut now = Instant::now();
        let mut is_first = true;
        while self.next < n_commands {
            let part = part(&self.tables, step.plan, n_rows, self.next);
            let cost = &mut costs[part.end - 1];
            // A part that never ran is expected to take as long as the longest one so far.
            let expected = cost.map_or(self.longest, |cost| cost.of_rows(n_rows));
            if !is_first && until.is_some_and(|until| now + expected > until) {
                break;
            }
            self.tables.run(&step, part.clone(), false, None, kept, pool)?;
            let begun = std::mem::replace(&mut now, Instant::now());
            let took = now.saturating_duration_since(begun);
            let duration = cost.map_or(took, |cost| took.min(OUTLIER * cost.of_rows(n_rows)));
            *cost = Some(Cost { duration, n_rows });
            self.longest = self.longest.max(duration);
            (self.next, is_first) = (part.end, false);
        }
        Ok(BackgroundProgress { is_done: self.next == n_commands, longest_part: self.longest })
    }
}

/// Range of commands from `first` to the next one that ends with a barrier.
fn part(tables: &Tables, plan: usize, n_rows: usize, first: usize) -> Range<usize> {
    let commands = tables.commands(plan, n_rows);
    let barrier = commands[first..].iter().position(|command| command.sync);
    first..barrier.map_or(commands.len(), |at| first + at + 1)
}
