//! How many rows of prompts a step may have, so that the answers in it come in time.
//!
//! What a chunk costs beside answers is measured: the time of a step beyond that of its answers alone, in a table of positions (a
//! later row looks at more of them) and of rows. A chunk has a cost of its own, however few its rows are, since it reads all keys
//! before it; so the cost of a number of rows is what that number cost when it was seen, or lies on a line between two that were.
//! Fewer rows than any that were seen are taken to cost their share, which is too little, and is put right when they are tried. From
//! step to step little changes, so the rows of the next chunk are the most that were fast enough. No formula for a device's time is
//! fitted, for steps beside the same answers are alike for minutes and cannot tell its terms apart.
//!
//! Steps vary around what is expected. So that nearly all of them end in time, less time is planned for than is allowed ([`Margin`]).

use super::margin::Margin;

/// How much one step moves the cost of a number of rows where it was cheaper than expected.
const WEIGHT: f64 = 0.2;

/// The same where it was dearer: answers wait for it.
const WEIGHT_OF_LATE: f64 = 0.3;

/// The most that one step raises it, as a part of it: an interruption is no reason for smaller chunks, several late steps are.
const MOST_RISE: f64 = 0.05;

/// A step that takes longer than this many times what was expected was interrupted by something else.
const OUTLIER: f64 = 2.0;

/// The least part of a step's time that its rows of prompts are taken to cost.
const LEAST_PART: f64 = 0.02;

/// How much more rows a step may have than the one before: what many cost is known only where many were seen.
const GROWTH: usize = 2;

/// Rows of the first chunk, of which nothing is known.
const FIRST: usize = 8;

/// With each step, the cost of more rows than it had is believed so much less, so that what was too dear once is tried again; less
/// often than steps may be late.
const DOUBT: f64 = 5e-4;

/// Steps until costs have settled and a late step says something.
const SETTLED: u32 = 16;

/// Where the first of the intervals of positions ends that double.
const FIRST_POSITIONS: f64 = 256.0;

/// Intervals of positions, and of rows, of a doubling.
const PER_DOUBLING: f64 = 4.0;

/// Enough for 2^32 positions.
const N_INTERVALS: usize = 100;

/// Enough for 2^16 rows.
const N_SIZES: usize = 64;

/// A chunk that was seen.
#[derive(Clone, Copy, Debug)]
struct Seen {
    n_rows: usize,
    /// What it adds to a step.
    seconds: f64,
    /// Which part of that is believed.
    belief: f64,
}

/// Chunks that were seen at some positions, by about how many rows they have.
type Sizes = [Option<Seen>; N_SIZES];

/// None.
const UNSEEN: Sizes = [None; N_SIZES];

/// Rows of prompts beside answers.
#[derive(Clone, Debug)]
pub(crate) struct ChunkModel {
    /// By interval of positions; `None`: none was seen there.
    seen: Vec<Option<Sizes>>,
    /// Of the times of steps.
    margin: Margin,
    n_seen: u32,
    /// Rows of prompts in the last step.
    n_last: usize,
}

/// Which interval a position is in.
fn interval(position: usize) -> usize {
    let doublings = (position as f64 / FIRST_POSITIONS + 1.0).log2();
    ((PER_DOUBLING * doublings) as usize).min(N_INTERVALS - 1)
}

/// Which of the sizes a number of rows is; up to four rows each has its own.
fn size(n_rows: usize) -> usize {
    ((PER_DOUBLING * (n_rows.max(1) as f64).log2()) as usize).min(N_SIZES - 1)
}

/// What `n_rows` rows cost, as far as these chunks tell; `doubts`: as far as that is believed.
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
        // More than were seen: too much, if anything. Fewer: too little.
        (Some(one), None) | (None, Some(one)) => share(one),
        (None, None) => return None,
    })
}

impl ChunkModel {
    /// Nothing is known.
    pub(crate) fn new() -> ChunkModel {
        let margin = Margin::new();
        ChunkModel { seen: vec![None; N_INTERVALS], margin, n_seen: 0, n_last: FIRST.div_ceil(GROWTH) }
    }

    /// What was seen at a position, or before it, or after it, whichever is known first; and a factor on what it says of here.
    fn near(&self, position: usize) -> Option<(&Sizes, f64)> {
        let at = interval(position);
        match self.seen[..=at].iter().rposition(Option::is_some) {
            // At twice the position it costs twice as much at most. From one interval to the next a prompt goes on where it was.
            Some(before) => {
                let doublings = (at - before).saturating_sub(1) as f64 / PER_DOUBLING;
                self.seen[before].as_ref().map(|sizes| (sizes, doublings.exp2()))
            }
            None => self.seen[at..].iter().flatten().next().map(|sizes| (sizes, 1.0)),
        }
    }

    /// Seconds that `n_rows` rows from `position` on are expected to add to a step; `None`: nothing is known.
    pub(crate) fn seconds(&self, n_rows: usize, position: usize) -> Option<f64> {
        let (sizes, factor) = self.near(position)?;
        cost(sizes, n_rows, false).map(|seconds| seconds * factor)
    }

    /// The most rows from `position` on, up to `most`, with which nearly every step ends in `allowed` seconds that is expected to take
    /// `planned` without them; 0: not even one. `None`: nothing is known.
    pub(crate) fn fitting(&self, allowed: f64, planned: f64, position: usize, most: usize) -> Option<usize> {
        let (sizes, factor) = self.near(position)?;
        let room = allowed / self.margin.factor() - planned;
        let fits = |n: &usize| cost(sizes, *n, true).is_some_and(|seconds| seconds * factor <= room);
        // A chunk that was fast enough says that smaller ones are, whatever an interruption made of them.
        Some((1..=most).rev().find(fits).unwrap_or(0))
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
        let most = (GROWTH * self.n_last).saturating_sub(n_before).min(most);
        self.fitting(allowed, planned, position, most).unwrap_or(FIRST.min(most))
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
                self.margin.note(seconds > expected * self.margin.factor());
            }
            seconds = seconds.min(OUTLIER * expected);
        }
        let extra = (seconds - alone).max(LEAST_PART * seconds);
        for (n, position) in chunks {
            // Each chunk's share is what was expected of it.
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

    /// So many steps had no rows at a position for what they would have cost: that is believed a little less, as if other steps had
    /// ended in time, so that they are tried again where conditions have changed.
    pub(crate) fn doubt(&mut self, position: usize, n_steps: usize) {
        let n_steps = n_steps as f64;
        self.margin.note_in_time(n_steps);
        let seen = self.seen[interval(position)].iter_mut().flatten().flatten();
        seen.for_each(|seen| seen.belief *= (1.0 - DOUBT).powf(n_steps));
    }

    /// Whether the cost of about so many rows is known from such chunks.
    fn has_seen(&self, n_rows: usize, position: usize) -> bool {
        self.near(position).is_some_and(|(sizes, _)| sizes[size(n_rows)].is_some())
    }

    /// A chunk of `n_rows` rows costs so much.
    fn note(&mut self, n_rows: usize, position: usize, seconds: f64) {
        let at = interval(position);
        if self.seen[at].is_none() {
            // What was known of the interval before holds until more is known.
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

    /// A step that has little time finds as many rows as there is time for, though the first of them costs as much as several
    /// more; and finds them again after interruptions that made it have fewer.
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
