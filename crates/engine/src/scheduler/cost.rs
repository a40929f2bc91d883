//! What a step costs, learnt from steps: for predictions of when prompts will have been computed.
//!
//! A step with rows of prompts is bound by arithmetic, so its time is close to a sum: something for the step, something for
//! each row, and something for each position that a row looks at. The three are the state of a Kalman filter that drifts slowly
//! (Kalman, "A New Approach to Linear Filtering and Prediction Problems", 1960), and are never negative. Recursive least squares with
//! forgetting would diverge here: a long prompt beside the same answers has steps that are all alike for minutes, which say nothing
//! about two of the three, and what is forgotten of these grows without bound.

/// The part of a weight by which it may drift from one step to the next.
const DRIFT: f64 = 0.03;

/// The part of a step's time that is noise.
const NOISE: f64 = 0.1;

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
    /// How uncertain they are: their covariance.
    covariance: [[f64; 3]; 3],
    /// Seconds of the first step, which say how large the weights may be.
    scale: f64,
    n_seen: u32,
}

impl CostModel {
    /// Nothing is known.
    pub(crate) fn new() -> CostModel {
        CostModel { weights: [0.0; 3], covariance: [[0.0; 3]; 3], scale: 0.0, n_seen: 0 }
    }

    /// A step with rows of prompts took so long.
    pub(crate) fn observe(&mut self, load: Load, seconds: f64) {
        let x = load.features();
        let seconds = self.seconds(load).map_or(seconds, |expected| seconds.min(OUTLIER * expected));
        if self.n_seen == 0 {
            self.scale = seconds;
            for (i, row) in self.covariance.iter_mut().enumerate() {
                row[i] = seconds * seconds;
            }
        }
        self.n_seen = self.n_seen.saturating_add(1);
        let px: [f64; 3] = std::array::from_fn(|i| dot(&self.covariance[i], &x));
        let noise = NOISE * seconds;
        let variance = noise * noise + dot(&px, &x);
        if variance <= 0.0 {
            return;
        }
        let gain = px.map(|p| p / variance);
        let error = seconds - dot(&self.weights, &x);
        for (weight, gain) in self.weights.iter_mut().zip(gain) {
            *weight = (*weight + gain * error).max(0.0);
        }
        for (i, (row, gain)) in self.covariance.iter_mut().zip(gain).enumerate() {
            for (entry, p) in row.iter_mut().zip(px) {
                *entry -= gain * p;
            }
            let drift = DRIFT * self.weights[i].max(0.02 * self.scale);
            row[i] = (row[i] + drift * drift).min(self.scale * self.scale);
        }
    }

    /// What such a step takes; `None` if too few were seen.
    pub(crate) fn seconds(&self, load: Load) -> Option<f64> {
        let seconds = dot(&self.weights, &load.features());
        (self.n_seen >= LEAST_SEEN && seconds > 0.0).then_some(seconds)
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

    fn load(n: usize, position: usize) -> Load {
        Load::default().and(n, position)
    }

    #[test]
    fn steps_alike_for_long_do_not_undo_what_others_have_told() {
        let mut model = CostModel::new();
        assert_eq!(model.seconds(load(8, 0)), None);
        (1..60).for_each(|n| model.observe(load(n * 8, n * 50), device(load(n * 8, n * 50))));
        let mut rng = crate::sampling::Rng::new(3);
        for step in 0..5000 {
            let of = load(30, 8000 + step);
            model.observe(of, device(of) * (0.9 + 0.2 * rng.uniform()));
        }
        for of in [load(30, 12_000), load(60, 6000), load(200, 1000)] {
            let ratio = model.seconds(of).unwrap_or_default() / device(of);
            assert!((0.4..2.5).contains(&ratio), "{of:?}: {ratio} of what it takes");
        }
    }

    #[test]
    fn an_interruption_is_not_believed_for_long() {
        let mut model = CostModel::new();
        (1..60).for_each(|n| model.observe(load(n * 8, 100), device(load(n * 8, 100))));
        let before = model.seconds(load(256, 100)).unwrap_or_default();
        model.observe(load(256, 100), 50.0);
        let after = model.seconds(load(256, 100)).unwrap_or_default();
        assert!(after < 2.0 * before, "{before} became {after}");
        (1..60).for_each(|n| model.observe(load(n * 8, 100), device(load(n * 8, 100))));
        let later = model.seconds(load(256, 100)).unwrap_or_default();
        assert!((later / before - 1.0).abs() < 0.1, "{before} became {later}");
    }
}
