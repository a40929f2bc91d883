//! Choice of the number of draft tokens that gives the most tokens a second.
//!
//! A step of `n` rows takes `c(n)` seconds, which is measured. A row costs between nothing (if
//! reading the weights takes all the time) and as much as a step of its own. Adding `k` draft
//! tokens, with an expected gain of `g(k)` tokens, pays if it raises `(t + g(k)) / (c(n + k) + k
//! d)`, where the step gives `t` tokens without them and a draft token takes `d` seconds.

use super::Acceptance;

/// Assumed cost of each row beyond a known size, relative to the known step. It is rather too
/// small, since a size that looks cheap is tried and then known.
const SLOPE: f64 = 1.0 / 32.0;

/// Least weight of a new measurement.
const WEIGHT: f64 = 1.0 / 8.0;

/// A step that takes more than this multiple of the mean was interrupted.
const OUTLIER: f64 = 3.0;

/// Least advantage over no draft tokens, so that noise does not decide.
const MARGIN: f64 = 1.05;

/// Share of the belief in other sizes that each step with likely draft tokens removes, so that one
/// bad measurement does not last.
const FORGET: f64 = 1.0 / 1024.0;

/// An exponential mean, which starts as a plain one.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    value: f64,
    n: u32,
    /// Belief in the mean: 1 after a sample, less with time.
    belief: f64,
}

impl Mean {
    fn add(&mut self, sample: f64) {
        let sample = if self.n == 0 { sample } else { sample.min(OUTLIER * self.value) };
        self.n = self.n.saturating_add(1);
        self.belief = 1.0;
        self.value += (sample - self.value) * WEIGHT.max(1.0 / f64::from(self.n));
    }
}

/// Costs of steps, and the step that is being filled.
#[derive(Debug)]
pub(crate) struct Controller {
    /// `(max_rows + 1)` seconds of a step by its number of rows.
    steps: Vec<Mean>,
    /// Seconds for a draft token.
    guess: Mean,
    /// The step: its sequences, its rows, the expected number of its tokens, and the seconds spent
    /// on its draft tokens.
    n_sequences: usize,
    n_rows: usize,
    n_tokens: f64,
    guess_seconds: f64,
    /// Rows of the step without draft tokens.
    n_certain: usize,
    /// True if a wrong draft token makes the next step recompute the rows of its sequence.
    goes_back: bool,
}

impl Controller {
    /// A controller for steps of up to `max_rows` rows, without measurements.
    pub(crate) fn new(max_rows: usize, goes_back: bool) -> Controller {
        Controller {
            steps: vec![Mean::default(); max_rows + 1],
            guess: Mean::default(),
            n_sequences: 0,
            n_rows: 0,
            n_tokens: 0.0,
            guess_seconds: 0.0,
            n_certain: 0,
            goes_back,
        }
    }

    /// Begin a step of `n_rows` rows that give `n` sequences a token each.
    pub(crate) fn begin_step(&mut self, n: usize, n_rows: usize) {
        (self.n_sequences, self.n_rows, self.n_tokens, self.guess_seconds) = (n, n_rows, n as f64, 0.0);
        self.n_certain = n_rows;
    }

    /// Number of draft tokens to add to the step for a sequence with `n_certain` rows in it, at
    /// most `most`.
    pub(crate) fn n_draft(&mut self, acceptance: &Acceptance, most: usize, n_certain: usize) -> usize {
        // Steps without draft tokens must be known for comparison, and be measured again now and
        // then.
        let is_known = self.steps.get(self.n_sequences).is_some_and(|mean| mean.n > 0 && mean.belief > 0.5);
        if !is_known && self.n_rows == self.n_certain {
            return 0;
        }
        let Some(seconds) = self.seconds(self.n_rows) else { return 0 };
        let mut best = (0, MARGIN * self.n_tokens / (seconds + self.guess_seconds));
        for n in 1..=most {
            // The rows that a wrong draft token makes the next step recompute are counted in this
            // one.
            let again = if self.goes_back { acceptance.n_again(n, n_certain).round() as usize } else { 0 };
            let Some(seconds) = self.seconds(self.n_rows + n + again) else { break };
            let seconds = seconds + self.guess_seconds + n as f64 * self.guess.value;
            let rate = (self.n_tokens + acceptance.gain(n)) / seconds;
            if rate > best.1 {
                best = (n, rate);
            }
        }
        if acceptance.is_likely() {
            self.steps.iter_mut().for_each(|mean| mean.belief *= 1.0 - FORGET);
        }
        best.0
    }

    /// Count `n` draft tokens of a sequence, which took `seconds` to make; `is_typical` says that
    /// others will take as long.
    pub(crate) fn add_draft(&mut self, acceptance: &Acceptance, n: usize, seconds: f64, is_typical: bool) {
        if n > 0 && is_typical {
            self.guess.add(seconds / n as f64);
        }
        self.guess_seconds += seconds;
        self.n_rows += n;
        self.n_tokens += acceptance.gain(n);
    }

    /// Record the seconds of a step. A step larger than the known ones counts as at most as slow
    /// for each row as they are: more was an interruption.
    pub(crate) fn observe(&mut self, n_rows: usize, seconds: f64) {
        let known = |(n, mean): (usize, &Mean)| (mean.n > 0).then(|| mean.value / n as f64);
        let row = self.steps.iter().enumerate().take(n_rows).skip(1).find_map(known);
        if let Some(mean) = self.steps.get_mut(n_rows) {
            mean.add(row.map_or(seconds, |row| seconds.min(row * n_rows as f64)));
        }
    }

    /// Expected seconds of a step of `n` rows: the measurement, as far as it is believed, or an
    /// interpolation between the nearest measured sizes. `None` if no step of at most `n` rows was
    /// measured.
    fn seconds(&self, n: usize) -> Option<f64> {
        let base = self.steps.get(self.n_sequences).filter(|mean| mean.n > 0)?.value;
        let least = |n: usize| base * (1.0 + SLOPE * n.saturating_sub(self.n_sequences) as f64);
        let believed = |n: usize, mean: &Mean| least(n) + (mean.value - least(n)).max(0.0) * mean.belief;
        let known = |(n, mean): (usize, &Mean)| (mean.n > 0).then(|| (n as f64, believed(n, mean)));
        let below = self.steps.iter().enumerate().take(n + 1).rev().find_map(known)?;
        let above = self.steps.iter().enumerate().skip(n + 1).find_map(known);
        let slope = match above {
            Some(above) => (above.1 - below.1) / (above.0 - below.0),
            None => SLOPE * base,
        };
        Some(below.1 + slope * (n as f64 - below.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A session of one sequence: `cost(rows)` seconds a step, and draft tokens that are right with
    /// probability `right`. Returns the draft tokens and tokens of each step.
    fn session(
        controller: &mut Controller,
        acceptance: &mut Acceptance,
        n_steps: usize,
        right: f64,
        cost: impl Fn(usize) -> f64,
    ) -> Vec<(usize, usize)> {
        let mut rng = crate::sampling::Rng::new(7);
        let mut steps = Vec::new();
        for _ in 0..n_steps {
            controller.begin_step(1, 1);
            let n = controller.n_draft(acceptance, 8, 1);
            controller.add_draft(acceptance, n, 0.0, true);
            controller.observe(1 + n, cost(1 + n));
            let mut draw = || rng.uniform() < right;
            if n == 0 {
                acceptance.set_unverified(Some(1));
                let first = u32::from(draw());
                acceptance.observe(0, 0, first);
                steps.push((0, 1));
            } else {
                let accepted = (0..n).take_while(|_| draw()).count();
                acceptance.observe(n, accepted, 0);
                steps.push((n, 1 + accepted));
            }
        }
        steps
    }

    fn rate(steps: &[(usize, usize)], cost: impl Fn(usize) -> f64) -> f64 {
        let tokens: usize = steps.iter().map(|s| s.1).sum();
        tokens as f64 / steps.iter().map(|s| cost(1 + s.0)).sum::<f64>()
    }

    #[test]
    fn rows_that_cost_nothing_are_used_and_rows_that_cost_a_step_are_not() {
        // Costs bound by memory, in between, and bound by arithmetic, relative to a step of one
        // row.
        let cheap = |n: usize| 1.0 + 0.02 * n as f64;
        let middle = |n: usize| 1.0 + 0.2 * (n - 1) as f64;
        let dear = |n: usize| n as f64;
        let run = |right: f64, cost: &dyn Fn(usize) -> f64| {
            let (mut c, mut a) = (Controller::new(9, false), Acceptance::new());
            let steps = session(&mut c, &mut a, 2000, right, cost);
            (rate(&steps, cost), steps.iter().filter(|s| s.0 > 0).count())
        };
        assert!(run(0.95, &cheap).0 > 5.0);
        assert!(run(0.95, &middle).0 > 2.3);
        for right in [0.95, 0.5, 0.0] {
            let (rate, n_used) = run(right, &dear);
            assert!(
                rate > 0.96,
                "right {right}: {rate}, {n_used} of 2000 steps with drafts, no gain is possible"
            );
        }
        // Little can be gained, and nothing is lost.
        for right in [0.0, 0.2, 0.4] {
            let (rate, n_used) = run(right, &middle);
            assert!(rate > 0.95, "right {right}: {rate}, {n_used} of 2000 steps with drafts");
        }
    }

    #[test]
    fn it_turns_on_where_guesses_become_right_and_off_where_they_become_wrong() {
        let cost = |n: usize| 1.0 + 0.2 * (n - 1) as f64;
        let (mut c, mut a) = (Controller::new(9, false), Acceptance::new());
        for _ in 0..3 {
            let wrong = session(&mut c, &mut a, 200, 0.05, cost);
            assert!(wrong[60..].iter().filter(|s| s.0 > 0).count() < 10);
            let right = session(&mut c, &mut a, 200, 1.0, cost);
            assert!(right[40..].iter().filter(|s| s.0 == 8).count() > 140, "{right:?}");
        }
    }

    #[test]
    fn one_interrupted_step_does_not_stand_for_ever() {
        let cost = |n: usize| 1.0 + 0.1 * (n - 1) as f64;
        let (mut c, mut a) = (Controller::new(9, false), Acceptance::new());
        session(&mut c, &mut a, 20, 0.0, cost);
        // The first step of every larger size was interrupted.
        (2..=9).for_each(|n| c.observe(n, 50.0));
        let steps = session(&mut c, &mut a, 2000, 1.0, cost);
        assert!(rate(&steps[1000..], cost) > 3.0, "{:?}", c);
    }

    #[test]
    fn guesses_that_take_long_are_worth_less() {
        let acceptance = Acceptance::new();
        let n_draft = |seconds: f64, is_typical: bool| {
            let mut c = Controller::new(9, false);
            c.begin_step(1, 1);
            (1..=9).for_each(|n| c.observe(n, 1.0 + 0.01 * n as f64));
            c.add_draft(&acceptance, 8, seconds, is_typical);
            c.begin_step(1, 1);
            c.n_draft(&acceptance, 8, 1)
        };
        assert!(n_draft(0.0, true) > n_draft(1.0, true) && n_draft(1.0, true) > 0);
        assert_eq!(n_draft(8.0, true), 0);
        assert!(n_draft(8.0, false) > 0, "the first time it computes the prompt");
    }

    #[test]
    fn unknown_sizes_lie_between_known_ones() {
        let mut c = Controller::new(9, false);
        c.begin_step(1, 1);
        assert_eq!(c.seconds(3), None);
        c.observe(1, 1.0);
        c.observe(5, 3.0);
        let mut interrupted = Controller::new(9, false);
        interrupted.begin_step(2, 2);
        interrupted.observe(2, 1.0);
        interrupted.observe(4, 50.0);
        assert_eq!(interrupted.seconds(4), Some(2.0));
        assert_eq!((c.seconds(1), c.seconds(2), c.seconds(4)), (Some(1.0), Some(1.5), Some(2.5)));
        assert_eq!(c.seconds(7), Some(3.0 + 2.0 * SLOPE));
        c.observe(100, 1.0); // larger than any that is kept
    }
}
