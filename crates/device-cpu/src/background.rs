//! A step in the background: computed in parts, between the steps that are submitted.
//!
//! It has tables, activations and scratch of its own, for few rows of one sequence, and shares weights, pages and states with the
//! other steps. A part is what the workers compute between two barriers: mostly one command. How long each takes is kept from step to
//! step, so that a part begins only where it is expected to end in time.

use crate::isa::Isa;
use crate::pool::{Interrupted, Pool};
use crate::program::{Kept, Lowered, Tables};
use crate::weights::Interleaved;
use device::{BackgroundProgress, Limits, OwnedStep, Plan, Result};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How much longer than the last time a part may take for that to be believed at once: an interruption is no cost.
const OUTLIER: u32 = 2;

/// The sizes that steps in the background are compiled for; `None`: there are none.
pub fn limits(limits: &Limits) -> Option<Limits> {
    (limits.background_rows > 0).then(|| Limits {
        max_rows: limits.background_rows,
        max_outputs: 1,
        max_spans: 1,
        background_rows: 0,
        ..limits.clone()
    })
}

/// The step, and what it is computed with.
pub struct Background {
    tables: Tables,
    step: OwnedStep,
    /// The command with which its next part begins.
    next: usize,
    longest: Duration,
    /// What the part that ends with each command took last time; by plan and [one row, many rows].
    costs: Vec<[Vec<Option<Cost>>; 2]>,
}

/// What a part took, with so many rows.
#[derive(Clone, Copy)]
struct Cost {
    duration: Duration,
    n_rows: usize,
}

impl Cost {
    /// Of so many rows: as much for each, but no less for fewer.
    fn of_rows(self, n_rows: usize) -> Duration {
        self.duration.mul_f64((n_rows as f64 / self.n_rows.max(1) as f64).max(1.0))
    }
}

impl Background {
    /// Take the memory and write the tables, for the sizes that [`limits`] gave.
    ///
    /// # Errors
    /// Memory was refused.
    pub fn new(
        plans: &[Plan],
        limits: &Limits,
        kept: &Kept,
        weights: Arc<Interleaved>,
        isa: Isa,
        n_workers: usize,
    ) -> Result<Background> {
        let lowered = Lowered::new(plans, limits, isa, n_workers);
        let tables = Tables::new(&lowered, limits, kept, weights, isa)?;
        let unknown = |plan| [1, 2].map(|n_rows| vec![None; tables.commands(plan, n_rows).len()]);
        let costs = (0..plans.len()).map(unknown).collect();
        Ok(Background { tables, step: OwnedStep::default(), next: 0, longest: Duration::ZERO, costs })
    }

    /// Begin a step.
    pub fn begin(&mut self, step: &device::Step, kept: &Kept, n_workers: usize) {
        self.step.assign(step);
        (self.next, self.longest) = (0, Duration::ZERO);
        self.tables.prepare(&self.step.borrow(), kept, n_workers);
    }

    /// Compute its next part, and more as long as they are expected to end before `until`.
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
            // Of what was never seen, the longest so far.
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

/// The commands from `first` to the next one that ends with a barrier.
fn part(tables: &Tables, plan: usize, n_rows: usize, first: usize) -> Range<usize> {
    let commands = tables.commands(plan, n_rows);
    let barrier = commands[first..].iter().position(|command| command.sync);
    first..barrier.map_or(commands.len(), |at| first + at + 1)
}
