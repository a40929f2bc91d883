//! What a step costs, learnt from steps: how many rows of a prompt fit into the time that the answers beside it allow.
//!
//! A step with rows of prompts is bound by arithmetic, so its time is close to a sum: something for the step, something for
//! each row, and something for each position that a row looks at. The three are fitted by recursive least squares, in which
//! older steps count for less and less (Haykin, "Adaptive Filter Theory", chapter 10).

/// How much less a step counts for each step after it.
const FORGET: f64 = 0.98;

/// A step that takes longer than this many times what was expected was interrupted by something else.
const OUTLIER: f64 = 2.0;

/// Steps that must have been seen before they are believed.
const LEAST_SEEN: u32 = 3;

/// What is asked of a step: numbers that its cost depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Load {
    pub(crate) n_rows: usize,
    /// Positions that the rows look at, together. Windows are not counted: their groups look like full ones.
    pub(crate) n_attended: u64,
}

impl Load {
    /// With `n_rows` more, the first of them at `position`.
    pub(crate) fn and(self, n_rows: usize, position: usize) -> Load {
        let (n, first) = (n_rows as u64, position as u64);
        Load {
            n_rows: self.n_rows + n_rows,
            n_attended: self.n_attended + n * (first + 1) + n * n.saturating_sub(1) / 2,
        }
    }

    /// As the model sees it: numbers of about the same size, so that the fit is well conditioned.
    fn features(self) -> [f64; 3] {
        [1.0, self.n_rows as f64 / 64.0, self.n_attended as f64 / 65_536.0]
    }
}

/// The model.
#[derive(Clone, Debug)]
pub(crate) struct CostModel {
    /// Seconds of each feature.
    weights: [f64; 3],
    /// Inverse of the features' correlations.
    inverse: [[f64; 3]; 3],
    n_seen: u32,
}

impl CostModel {
    /// Nothing is known.
    pub(crate) fn new() -> CostModel {
        let inverse = [[1e4, 0.0, 0.0], [0.0, 1e4, 0.0], [0.0, 0.0, 1e4]];
        CostModel { weights: [0.0; 3], inverse, n_seen: 0 }
    }

    /// A step with rows of prompts took so long.
    pub(crate) fn observe(&mut self, load: Load, seconds: f64) {
        let x = load.features();
        let expected = self.seconds(load);
        let seconds = expected.map_or(seconds, |expected| seconds.min(OUTLIER * expected));
        self.n_seen = self.n_seen.saturating_add(1);
        let px: [f64; 3] = std::array::from_fn(|i| dot(&self.inverse[i], &x));
        let gain = px.map(|p| p / (FORGET + dot(&px, &x)));
        let error = seconds - dot(&self.weights, &x);
        for (weight, gain) in self.weights.iter_mut().zip(gain) {
            *weight += gain * error;
        }
        for (row, gain) in self.inverse.iter_mut().zip(gain) {
            for (entry, p) in row.iter_mut().zip(px) {
                // Bounded, or what no step tells apart would be believed less and less without end.
                *entry = ((*entry - gain * p) / FORGET).clamp(-1e6, 1e6);
            }
        }
    }

    /// What such a step takes; `None` if too few were seen.
    pub(crate) fn seconds(&self, load: Load) -> Option<f64> {
        let weights = self.weights.map(|w| w.max(0.0));
        let seconds = dot(&weights, &load.features());
        (self.n_seen >= LEAST_SEEN && seconds > 0.0).then_some(seconds)
    }

    /// Most rows from `position` on that a step with `load` takes in `seconds`, at most `most`; at least one if there is any
    /// time left, `None` if nothing is known.
    pub(crate) fn rows_within(
        &self,
        seconds: f64,
        load: Load,
        position: usize,
        most: usize,
    ) -> Option<usize> {
        let fits = |n: usize| self.seconds(load.and(n, position)).map(|s| s <= seconds);
        fits(1)?;
        let (mut low, mut high) = (0, most);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if fits(middle)? { low = middle } else { high = middle - 1 }
        }
        Some(low)
    }
}

fn dot(a: &[f64; 3], b: &[f64; 3]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds of a device: weights are read, or rows multiplied; and attention.
    fn device(load: Load) -> f64 {
        (0.01_f64).max(0.0004 * load.n_rows as f64) + 3e-8 * load.n_attended as f64
    }

    #[test]
    fn rows_fill_the_time_that_is_allowed() {
        let mut model = CostModel::new();
        assert_eq!(model.rows_within(0.1, Load::default(), 0, 512), None);
        // Prompts beside 8 answers of 1,000 positions each; the first steps are small.
        let answers = (0..8).fold(Load::default(), |load, _| load.and(1, 1000));
        let mut rng = crate::sampling::Rng::new(3);
        let mut position = 0;
        for step in 0..400 {
            let n = model.rows_within(0.1, answers, position, 512).unwrap_or(32).max(16);
            let load = answers.and(n, position);
            let seconds = device(load);
            model.observe(load, seconds * (0.97 + 0.06 * rng.uniform()));
            if step > 20 {
                assert!(seconds < 0.12, "step {step}: {n} rows at {position} took {seconds}");
                assert!(n > 60 || seconds > 0.08, "step {step}: {n} rows at {position} took {seconds} only");
            }
            position = if position > 8000 { 0 } else { position + n };
        }
    }

    #[test]
    fn an_interruption_is_not_believed_for_long() {
        let mut model = CostModel::new();
        let load = |n: usize| Load::default().and(n, 100);
        (1..60).for_each(|n| model.observe(load(n * 8), device(load(n * 8))));
        let before = model.seconds(load(256)).unwrap_or_default();
        model.observe(load(256), 50.0);
        let after = model.seconds(load(256)).unwrap_or_default();
        assert!(after < 1.5 * before, "{before} became {after}");
        (1..60).for_each(|n| model.observe(load(n * 8), device(load(n * 8))));
        let later = model.seconds(load(256)).unwrap_or_default();
        assert!((later / before - 1.0).abs() < 0.1, "{before} became {later}");
    }
}
