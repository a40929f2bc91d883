//! How many rows of prompts a step may have, so that the answers in it come in time.
//!
//! What a row costs beside answers is measured where it stands in its prompt: the time of a step beyond that of its answers alone,
//! shared out among its rows, in a table of positions (a later row looks at more of them). From step to step little changes, so the
//! rows that fit next are the time that is left over that cost. Where a chunk has a cost of its own, however few its rows are, this
//! still converges: rows that cost more than expected make the next chunk smaller, and the reverse. No formula for a device's time is
//! fitted, for steps beside the same answers are alike for minutes and cannot tell its terms apart.
//!
//! Steps vary around what is expected. So that nearly all of them end in time, less time is planned for than is allowed, by a factor
//! that rises when a step takes longer than it allows for, and falls a little with each that does not, so that it tends to the
//! quantile `1 - LATE` of their times over those expected (Robbins and Monro, "A Stochastic Approximation Method", 1951).

/// How much one step moves the cost of a row where it was cheaper than expected.
const WEIGHT: f64 = 0.2;

/// The same where it was dearer: answers wait for it.
const WEIGHT_OF_LATE: f64 = 0.5;

/// A step that takes longer than this many times what was expected was interrupted by something else.
const OUTLIER: f64 = 2.0;

/// The least part of a step's time that its rows of prompts are taken to cost.
const LEAST_PART: f64 = 0.02;

/// How much more rows a step may have than the one before: what many cost is known only where many were seen.
const GROWTH: usize = 2;

/// Rows of the first chunk, of which nothing is known.
const FIRST: usize = 8;

/// The share of steps that may take longer than planned.
const LATE: f64 = 0.01;

/// How far one late step moves the factor.
const LATE_GAIN: f64 = 0.02;

/// The most that the factor becomes, whatever disturbs the machine.
const MOST_MARGIN: f64 = 1.5;

/// Steps until costs have settled and a late step says something.
const SETTLED: u32 = 16;

/// Where the first of the intervals of positions ends that double.
const FIRST_POSITIONS: f64 = 256.0;

/// Intervals of a doubling.
const PER_DOUBLING: f64 = 4.0;

/// Enough for 2^32 positions.
const N_INTERVALS: usize = 100;

/// Rows of prompts beside answers.
#[derive(Clone, Debug)]
pub(crate) struct ChunkModel {
    /// By interval of positions: seconds of a row; `None`: none was seen there.
    rows: [Option<f64>; N_INTERVALS],
    /// By how much nearly no step exceeded what was expected: 1 and more.
    margin: f64,
    n_seen: u32,
    /// Rows of prompts in the last step.
    n_last: usize,
}

/// Which interval a position is in.
fn interval(position: usize) -> usize {
    let doublings = (position as f64 / FIRST_POSITIONS + 1.0).log2();
    ((PER_DOUBLING * doublings) as usize).min(N_INTERVALS - 1)
}

impl ChunkModel {
    /// Nothing is known.
    pub(crate) fn new() -> ChunkModel {
        ChunkModel { rows: [None; N_INTERVALS], margin: 1.0, n_seen: 0, n_last: FIRST.div_ceil(GROWTH) }
    }

    /// Seconds of a row at a position: as was seen there, or as far as the nearest that was seen tells. `None`: none was.
    fn row(&self, position: usize) -> Option<f64> {
        let at = interval(position);
        let before = self.rows[..=at].iter().rposition(Option::is_some);
        let after = || self.rows[at..].iter().flatten().next().copied();
        match before {
            // At twice the position it costs twice as much at most. From one interval to the next a prompt goes on where it was.
            Some(before) => {
                let doublings = (at - before).saturating_sub(1) as f64 / PER_DOUBLING;
                self.rows[before].map(|seconds| seconds * doublings.exp2())
            }
            None => after(),
        }
    }

    /// Seconds that `n_rows` rows from `position` on are expected to add to a step; `None`: nothing is known.
    pub(crate) fn seconds(&self, n_rows: usize, position: usize) -> Option<f64> {
        self.row(position).map(|row| row * n_rows as f64)
    }

    /// Rows from `position` on with which nearly every step ends in `allowed` seconds that is expected to take `planned` without
    /// them; `None`: nothing is known.
    pub(crate) fn fitting(&self, allowed: f64, planned: f64, position: usize) -> Option<usize> {
        self.row(position).map(|row| ((allowed / self.margin - planned).max(0.0) / row) as usize)
    }

    /// The same for the next step, which has `n_before` rows of prompts: at most `most`, and not many more than the last step had.
    pub(crate) fn rows_within(
        &self,
        allowed: f64,
        planned: f64,
        n_before: usize,
        position: usize,
        most: usize,
    ) -> usize {
        let room = (GROWTH * self.n_last).saturating_sub(n_before);
        self.fitting(allowed, planned, position).unwrap_or(FIRST).min(room).min(most)
    }

    /// A step whose answers alone were expected to take `alone` seconds took `seconds`, with these chunks of prompts: rows and the
    /// position of the first.
    pub(crate) fn observe(
        &mut self,
        chunks: impl Iterator<Item = (usize, usize)> + Clone,
        alone: f64,
        seconds: f64,
    ) {
        let n_rows: usize = chunks.clone().map(|(n, _)| n).sum();
        if n_rows == 0 || seconds <= 0.0 {
            return;
        }
        self.n_last = n_rows;
        self.n_seen = self.n_seen.saturating_add(1);
        let added: Option<f64> = chunks.clone().map(|(n, position)| self.seconds(n, position)).sum();
        let mut seconds = seconds;
        if let Some(added) = added {
            let expected = alone + added;
            if self.n_seen > SETTLED {
                let is_late = seconds > expected * self.margin;
                self.margin += LATE_GAIN * if is_late { 1.0 - LATE } else { -LATE };
                self.margin = self.margin.clamp(1.0, MOST_MARGIN);
            }
            seconds = seconds.min(OUTLIER * expected);
        }
        let extra = (seconds - alone).max(LEAST_PART * seconds);
        for (_, position) in chunks {
            // Each chunk's share is what was expected of it.
            let row = match (self.row(position), added) {
                (Some(row), Some(added)) => {
                    let weight = if extra > added { WEIGHT_OF_LATE } else { WEIGHT };
                    row + weight * (row * extra / added - row)
                }
                _ => extra / n_rows as f64,
            };
            self.rows[interval(position)] = Some(row);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::Rng;

    /// Seconds of a step of answers alone.
    const ALONE: f64 = 0.013;

    /// Compute prompts of `end` tokens beside answers; `device` says what rows at a position add to a step, which varies by `noise`
    /// in each direction. Returns seconds and rows of each step.
    fn run(
        device: impl Fn(usize, usize) -> f64,
        n_prompts: usize,
        end: usize,
        noise: f64,
    ) -> Vec<(f64, usize)> {
        let (mut model, mut rng) = (ChunkModel::new(), Rng::new(3));
        let mut steps = Vec::new();
        for _ in 0..n_prompts {
            let mut position = 0;
            while position < end {
                let n = model.rows_within(2.0 * ALONE, ALONE, 0, position, 512).max(1).min(end - position);
                let seconds = (ALONE + device(n, position)) * (1.0 + noise * (2.0 * rng.uniform() - 1.0));
                model.observe(std::iter::once((n, position)), ALONE, seconds);
                steps.push((seconds, n));
                position += n;
            }
        }
        steps
    }

    #[test]
    fn nearly_every_step_ends_in_time_however_long_the_prompt_is() {
        // Rows and the positions that they look at; and the same with something for each chunk.
        let plain = |n: usize, position: usize| n as f64 * (4e-4 + 1.5e-7 * position as f64);
        let walking = |n: usize, position: usize| plain(n, position) + 3e-7 * position as f64;
        type Added<'a> = &'a dyn Fn(usize, usize) -> f64;
        for (device, name) in [(&plain as Added, "plain"), (&walking as Added, "walking")] {
            for noise in [0.0, 0.05, 0.1] {
                let steps = run(device, 2, 16_000, noise);
                let late = steps.iter().skip(50).filter(|(seconds, _)| *seconds > 2.0 * ALONE).count();
                assert!(late * 50 < steps.len(), "{name}, {noise}: {late} of {} late", steps.len());
                let busy = steps.iter().map(|(seconds, _)| seconds).sum::<f64>() / steps.len() as f64;
                assert!(busy > 0.7 * 2.0 * ALONE, "{name}, {noise}: steps of {busy} s");
            }
        }
    }

    #[test]
    fn chunks_grow_where_rows_cost_nothing_up_to_what_does() {
        // Free up to 64 rows, as where weights have to be read anyway.
        let steps = run(|n, _| 1e-4 * n.saturating_sub(64) as f64, 1, 30_000, 0.02);
        let (_, typical) = steps[steps.len() / 2];
        assert!((64..=194).contains(&typical), "{typical} rows, expected up to 194");
        assert!(steps.windows(2).all(|pair| pair[1].1 <= GROWTH * pair[0].1), "{steps:?}");
    }

    #[test]
    fn two_chunks_share_what_a_step_took() {
        let mut model = ChunkModel::new();
        let chunks = [(10, 0), (10, 6000)];
        for _ in 0..100 {
            // The later one costs four times as much; each was seen alone, too.
            for chunk in chunks {
                let seconds = if chunk.1 == 0 { 0.001 } else { 0.004 };
                model.observe(std::iter::once(chunk), ALONE, ALONE + 10.0 * seconds);
            }
            model.observe(chunks.into_iter(), ALONE, ALONE + 0.05);
        }
        let found = chunks.map(|(n, position)| model.seconds(n, position).unwrap());
        assert!((found[0] - 0.01).abs() < 1e-3 && (found[1] - 0.04).abs() < 1e-3, "{found:?}");
    }
}
