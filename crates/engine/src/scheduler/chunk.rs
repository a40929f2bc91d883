//! Number of prompt rows that fit into a step beside answers.
//!
//! The cost of a chunk is measured: the time of a step beyond that of its answers alone. A table
//! holds it by position (later rows attend to more) and by number of rows. A chunk has a fixed
//! cost, since it reads all keys before it. So the cost of a number of rows is the measured one, or
//! an interpolation between two that were measured. Fewer rows than any that were measured count as
//! a share of them, which is too little; trying them corrects it. The next chunk has the most rows
//! that were fast enough. No formula is fitted: steps beside the same answers are alike for minutes
//! and cannot tell its terms apart.
//!
//! With eight rows in each step instead, eight clients with chats got 0.91 of the tokens a second,
//! and their first token after 2.2 times as long. With a mean time of a row instead of the table,
//! the 99th percentile between tokens was 1.26 times as long beside a prompt of 6,000 words.
//! (135M parameters, three threads of a Xeon, two runs each.)
//!
//! Times of steps vary. So that nearly all of them end in time, less time is planned than is
//! allowed ([`Margin`]).

use super::margin::Margin;

/// Weight of a step that was cheaper than expected, in the cost of its number of rows.
const WEIGHT: f64 = 0.2;

/// Weight of a step that was dearer than expected. It is larger, since answers wait.
const WEIGHT_OF_LATE: f64 = 0.3;

/// Largest relative rise of a cost by one step: an interruption is no reason for smaller chunks,
/// several late steps are.
const MOST_RISE: f64 = 0.05;

/// A step that takes more than this multiple of the expected time was interrupted.
const OUTLIER: f64 = 2.0;

/// Least share of a step's time that is attributed to its prompt rows.
const LEAST_PART: f64 = 0.02;

/// Largest growth of the number of prompt rows from one step to the next, since the cost of many
/// rows is known only near measured ones.
const GROWTH: usize = 2;

/// Number of rows of the first chunk, before anything is measured.
const FIRST: usize = 8;

/// Relative decrease, in each step, of the cost of more rows than it had. So rows that were once
/// too dear are tried again, but less often than steps may be late.
const DOUBT: f64 = 5e-4;

/// Number of steps after which a late step counts for the margin.
const SETTLED: u32 = 16;

/// End of the first interval of positions; the later ones grow with the position.
const FIRST_POSITIONS: f64 = 256.0;

/// Number of intervals of positions, and of rows, for each doubling.
const PER_DOUBLING: f64 = 4.0;

/// Number of intervals, enough for 2^32 positions.
const N_INTERVALS: usize = 100;

/// Number of sizes, enough for 2^16 rows.
const N_SIZES: usize = 64;

/// A measured chunk.
#[derive(Clone, Copy, Debug)]
struct Seen {
    n_rows: usize,
    /// Seconds that the chunk adds to a step.
    seconds: f64,
    /// Share of `seconds` that is believed.
    belief: f64,
}

/// Measured chunks at one interval of positions, by approximate number of rows.
type Sizes = [Option<Seen>; N_SIZES];

/// Sizes of an interval without measurements.
const UNSEEN: Sizes = [None; N_SIZES];

/// Measured costs of prompt rows beside answers.
#[derive(Clone, Debug)]
pub(crate) struct ChunkModel {
    /// Costs by interval of positions; `None`: nothing was measured there.
    seen: Vec<Option<Sizes>>,
    /// Margin on the times of steps.
    margin: Margin,
    n_seen: u32,
    /// Number of prompt rows of the last step.
    n_last: usize,
}

/// Index of the interval of a position.
fn interval(position: usize) -> usize {
    let doublings = (position as f64 / FIRST_POSITIONS + 1.0).log2();
    ((PER_DOUBLING * doublings) as usize).min(N_INTERVALS - 1)
}

/// Index of the size of a number of rows; up to four rows each number has its own.
fn size(n_rows: usize) -> usize {
    ((PER_DOUBLING * (n_rows.max(1) as f64).log2()) as usize).min(N_SIZES - 1)
}

/// Expected cost of `n_rows` rows by these chunks; with `doubts`, as far as it is believed.
fn cost(sizes: &Sizes, n_rows: usize, doubts: bool) -> Option<f64> {
    let (mut below, mut above) = (None::<Seen>, None::<Seen>);
    for seen in sizes.iter().flatten() {
        match seen.n_rows <= n_rows {
            true => below = Some(*seen),
            false => above = above.or(Some(*seen)),
        }
    }
    let seconds = |seen: Seen| if doubts { seen.seconds * seen.belief } else { seen.seconds };
    let share = |seen: Seen| seconds(seen) * n_rows as f64 / seen.n_rows as f64;
    Some(match (below, above) {
        (Some(below), Some(above)) => {
            let part = (n_rows - below.n_rows) as f64 / (above.n_rows - below.n_rows) as f64;
            seconds(below) + part * (seconds(above) - seconds(below)).max(0.0)
        }
        // More rows than were measured: at most that much. Fewer: at least that much.
        (Some(one), None) | (None, Some(one)) => share(one),
        (None, None) => return None,
    })
}

impl ChunkModel {
    /// A model without measurements.
    pub(crate) fn new() -> ChunkModel {
        let margin = Margin::new();
        ChunkModel { seen: vec![None; N_INTERVALS], margin, n_seen: 0, n_last: FIRST.div_ceil(GROWTH) }
    }

    /// Measured sizes at a position, or at the nearest interval before it, or after it, and a
    /// factor for the distance.
    fn near(&self, position: usize) -> Option<(&Sizes, f64)> {
        let at = interval(position);
        match self.seen[..=at].iter().rposition(Option::is_some) {
            // At twice the position a chunk costs at most twice as much. A prompt continues from
            // one interval to the next at the same cost.
            Some(before) => {
                let doublings = (at - before).saturating_sub(1) as f64 / PER_DOUBLING;
                self.seen[before].as_ref().map(|sizes| (sizes, doublings.exp2()))
            }
            None => self.seen[at..].iter().flatten().next().map(|sizes| (sizes, 1.0)),
        }
    }

    /// Expected seconds that `n_rows` rows from `position` on add to a step; `None`: nothing was
    /// measured.
    pub(crate) fn seconds(&self, n_rows: usize, position: usize) -> Option<f64> {
        let (sizes, factor) = self.near(position)?;
        cost(sizes, n_rows, false).map(|seconds| seconds * factor)
    }

    /// The most rows from `position` on, up to `most`, with which nearly every step ends in
    /// `allowed` seconds, if it takes `planned` without them; 0: none fits. `None`: nothing was
    /// measured.
    pub(crate) fn fitting(&self, allowed: f64, planned: f64, position: usize, most: usize) -> Option<usize> {
        let (sizes, factor) = self.near(position)?;
        let room = allowed / self.margin.factor() - planned;
        let fits = |n: &usize| cost(sizes, *n, true).is_some_and(|seconds| seconds * factor <= room);
        // If a chunk was fast enough, so are smaller ones, even if an interruption made them look
        // slow.
        Some((1..=most).rev().find(fits).unwrap_or(0))
    }

    /// Rows from `position` on for the next step, which has `n_before` prompt rows: as by
    /// [`Self::fitting`], and not many more than the last step had.
    pub(crate) fn rows_within(
        &self,
        allowed: f64,
        planned: f64,
        n_before: usize,
        position: usize,
        most: usize,
    ) -> usize {
        let most = (GROWTH * self.n_last).saturating_sub(n_before).min(most);
        self.fitting(allowed, planned, position, most).unwrap_or(FIRST.min(most))
    }

    /// Record that a step whose answers alone were expected to take `alone` seconds took `seconds`
    /// with these chunks: rows and position of the first.
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
                self.margin.note(seconds > expected * self.margin.factor());
            }
            seconds = seconds.min(OUTLIER * expected);
        }
        let extra = (seconds - alone).max(LEAST_PART * seconds);
        for (n, position) in chunks {
            // Divide the time among the chunks in proportion to their expected costs.
            let seconds = match (self.seconds(n, position), added) {
                (Some(expected), Some(added)) if self.has_seen(n, position) => {
                    let weight = if extra > added { WEIGHT_OF_LATE } else { WEIGHT };
                    expected * (1.0 + (weight * (extra / added - 1.0)).min(MOST_RISE))
                }
                (Some(expected), Some(added)) => expected * extra / added,
                _ => extra * n as f64 / n_rows as f64,
            };
            self.note(n, position, seconds);
        }
    }

    /// Lower the belief in the costs at a position, which kept rows out of `n_steps` steps, so that
    /// they are tried again if conditions have changed. These steps count as in time.
    pub(crate) fn doubt(&mut self, position: usize, n_steps: usize) {
        let n_steps = n_steps as f64;
        self.margin.note_in_time(n_steps);
        let seen = self.seen[interval(position)].iter_mut().flatten().flatten();
        seen.for_each(|seen| seen.belief *= (1.0 - DOUBT).powf(n_steps));
    }

    /// Returns true if chunks of about this many rows were measured.
    fn has_seen(&self, n_rows: usize, position: usize) -> bool {
        self.near(position).is_some_and(|(sizes, _)| sizes[size(n_rows)].is_some())
    }

    /// Record the cost of a chunk of `n_rows` rows.
    fn note(&mut self, n_rows: usize, position: usize, seconds: f64) {
        let at = interval(position);
        if self.seen[at].is_none() {
            // Costs of the interval before apply until this one has its own.
            let near = self.near(position).map(|(sizes, factor)| {
                let scaled = |seen: Seen| Seen { seconds: seen.seconds * factor, ..seen };
                sizes.map(|seen| seen.map(scaled))
            });
            self.seen[at] = Some(near.unwrap_or(UNSEEN));
        }
        let Some(sizes) = &mut self.seen[at] else { return };
        sizes[size(n_rows)] = Some(Seen { n_rows, seconds, belief: 1.0 });
        let more = sizes.iter_mut().flatten().filter(|seen| seen.n_rows > n_rows);
        more.for_each(|more| more.belief *= 1.0 - DOUBT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::Rng;

    /// Seconds of a step of answers alone.
    const ALONE: f64 = 0.013;

    /// Compute prompts of `end` tokens beside answers. `device` is the time that rows at a position
    /// add to a step, which varies by `noise` in each direction. Returns seconds and rows of each
    /// step.
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
        // Costs by rows and the positions that they attend to, without and with a fixed cost of
        // each chunk.
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

    /// A step with little time has all the rows that fit, though the first of them costs as much as
    /// several more. After interruptions that made it have fewer, it has them again.
    #[test]
    fn as_many_rows_as_there_is_time_for_however_much_the_first_costs() {
        let far = |n: usize, _: usize| 0.006 + 0.0016 * n as f64;
        let expected = 4; // 0.006 + 4 * 0.0016 is below 0.013
        let mut model = ChunkModel::new();
        let (mut rows, mut late) = (Vec::new(), 0);
        for step in 0..4000 {
            let position = 12_000 + step;
            let n = model.rows_within(2.0 * ALONE, ALONE, 0, position, 512).max(1);
            let interrupted = if step % 700 == 699 { 0.01 } else { 0.0 };
            let seconds = ALONE + far(n, position) + interrupted;
            late += usize::from(seconds > 2.0 * ALONE);
            model.observe(std::iter::once((n, position)), ALONE, seconds);
            rows.push(n);
        }
        let mean = rows[100..].iter().sum::<usize>() as f64 / (rows.len() - 100) as f64;
        assert!(mean > 0.85 * f64::from(expected), "{mean} rows on average");
        assert!(late * 50 < rows.len(), "{late} late");
    }

    #[test]
    fn chunks_grow_where_rows_cost_nothing_up_to_what_does() {
        // Rows up to 64 are free, as if the weights had to be read anyway.
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
            // The later chunk costs four times as much; each is measured alone, too.
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
