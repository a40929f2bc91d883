//! How tokens are chosen where a request does not say: what the operator said, or else what its API says.

use engine::SamplingParams;

use crate::error::{ApiError, Result};

/// Values of sampling that somebody chose; those that are `None` were left to others. Units and limits are those of
/// [`SamplingParams`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SamplingChoice {
    /// See [`SamplingParams::temperature`].
    pub temperature: Option<f32>,
    /// See [`SamplingParams::top_k`].
    pub top_k: Option<usize>,
    /// See [`SamplingParams::top_p`].
    pub top_p: Option<f32>,
    /// See [`SamplingParams::min_p`].
    pub min_p: Option<f32>,
    /// See [`SamplingParams::repeat_penalty`].
    pub repeat_penalty: Option<f32>,
    /// See [`SamplingParams::presence_penalty`].
    pub presence_penalty: Option<f32>,
    /// See [`SamplingParams::frequency_penalty`].
    pub frequency_penalty: Option<f32>,
    /// See [`SamplingParams::penalty_window`].
    pub penalty_window: Option<usize>,
    /// See [`SamplingParams::seed`]; `Some(None)`: a random one was asked for.
    pub seed: Option<Option<u64>>,
}

impl SamplingChoice {
    /// Set what is chosen here and not in `before`, which goes first.
    pub fn fill(&self, before: &SamplingChoice, sampling: &mut SamplingParams) {
        fn set<T: Copy>(target: &mut T, before: Option<T>, chosen: Option<T>) {
            if let (None, Some(value)) = (before, chosen) {
                *target = value;
            }
        }
        set(&mut sampling.temperature, before.temperature, self.temperature);
        set(&mut sampling.top_k, before.top_k, self.top_k);
        set(&mut sampling.top_p, before.top_p, self.top_p);
        set(&mut sampling.min_p, before.min_p, self.min_p);
        set(&mut sampling.repeat_penalty, before.repeat_penalty, self.repeat_penalty);
        set(&mut sampling.presence_penalty, before.presence_penalty, self.presence_penalty);
        set(&mut sampling.frequency_penalty, before.frequency_penalty, self.frequency_penalty);
        set(&mut sampling.penalty_window, before.penalty_window, self.penalty_window);
        set(&mut sampling.seed, before.seed, self.seed);
    }

    /// # Errors
    /// A value is outside its limits.
    pub fn check(&self) -> Result<()> {
        let mut sampling = SamplingParams::default();
        self.fill(&SamplingChoice::default(), &mut sampling);
        sampling.check(1).map_err(|wrong| ApiError::invalid(wrong.name, wrong.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_request_says_goes_first() {
        let operator = SamplingChoice {
            temperature: Some(0.5),
            top_k: Some(7),
            seed: Some(Some(3)),
            ..SamplingChoice::default()
        };
        let request =
            SamplingChoice { temperature: Some(0.0), seed: Some(None), ..SamplingChoice::default() };
        let mut sampling = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
        operator.fill(&request, &mut sampling);
        assert_eq!((sampling.temperature, sampling.top_k, sampling.seed), (0.0, 7, None));
        assert_eq!(sampling.top_p, SamplingParams::default().top_p);
    }

    #[test]
    fn values_outside_their_limits_are_named() {
        assert!(SamplingChoice::default().check().is_ok());
        let wrong = SamplingChoice { min_p: Some(1.5), ..SamplingChoice::default() };
        assert_eq!(wrong.check().unwrap_err().param.as_deref(), Some("min_p"));
    }
}
