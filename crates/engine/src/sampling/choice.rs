//! Default sampling parameters: those that the model's makers recommend, or else values that suit
//! most models.

use model::SamplingAdvice;

use super::{ParamError, SamplingParams};

/// Sampling parameters that are set at one level (request, operator or model); `None` leaves a
/// parameter to the next level. Units and limits are those of [`SamplingParams`].
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
    /// See [`SamplingParams::seed`]; `Some(None)`: the request wants a random one.
    pub seed: Option<Option<u64>>,
}

/// Values that apply if no level sets a parameter.
const USUAL: SamplingChoice = SamplingChoice {
    temperature: Some(0.8),
    top_k: Some(40),
    top_p: Some(0.95),
    min_p: Some(0.05),
    repeat_penalty: None,
    presence_penalty: None,
    frequency_penalty: None,
    penalty_window: None,
    seed: None,
};

impl SamplingChoice {
    /// The best values for a model: each is the makers' recommendation, or else the usual value.
    pub fn for_model(advice: &SamplingAdvice) -> SamplingChoice {
        let own = SamplingChoice {
            temperature: advice.temperature,
            top_k: advice.top_k,
            top_p: advice.top_p,
            min_p: advice.min_p,
            repeat_penalty: advice.repeat_penalty,
            penalty_window: advice.penalty_window,
            ..SamplingChoice::default()
        };
        own.or(USUAL)
    }

    /// The parameters set here, and for the others those of `other`.
    #[must_use]
    fn or(self, other: SamplingChoice) -> SamplingChoice {
        SamplingChoice {
            temperature: self.temperature.or(other.temperature),
            top_k: self.top_k.or(other.top_k),
            top_p: self.top_p.or(other.top_p),
            min_p: self.min_p.or(other.min_p),
            repeat_penalty: self.repeat_penalty.or(other.repeat_penalty),
            presence_penalty: self.presence_penalty.or(other.presence_penalty),
            frequency_penalty: self.frequency_penalty.or(other.frequency_penalty),
            penalty_window: self.penalty_window.or(other.penalty_window),
            seed: self.seed.or(other.seed),
        }
    }

    /// Set in `sampling` each parameter that is not set here: to the operator's value, or else to
    /// the best for the model. `sampling` has the values that are set here already.
    pub fn complete(
        self,
        operator: SamplingChoice,
        mut model: SamplingChoice,
        sampling: &mut SamplingParams,
    ) {
        let said = self.or(operator);
        // The model's penalty window applies only to the model's penalty.
        if said.repeat_penalty.or(said.presence_penalty).or(said.frequency_penalty).is_some() {
            model.penalty_window = None;
        }
        operator.fill(&self, sampling);
        model.fill(&said, sampling);
    }

    /// Set the parameters that are set here and not in `before`, which has priority.
    fn fill(&self, before: &SamplingChoice, sampling: &mut SamplingParams) {
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

    /// Check all parameters.
    ///
    /// # Errors
    /// A value is outside its limits.
    pub fn check(&self) -> Result<(), ParamError> {
        let mut sampling = SamplingParams::default();
        self.fill(&SamplingChoice::default(), &mut sampling);
        sampling.check(1)
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
        let model =
            SamplingChoice::for_model(&SamplingAdvice { top_p: Some(0.9), ..SamplingAdvice::default() });
        request.complete(operator, model, &mut sampling);
        assert_eq!((sampling.temperature, sampling.top_k, sampling.seed), (0.0, 7, None));
        assert_eq!((sampling.top_p, sampling.min_p), (0.9, 0.05));
    }

    #[test]
    fn a_model_s_own_numbers_come_before_the_usual_ones() {
        let usual = SamplingChoice::for_model(&SamplingAdvice::default());
        assert_eq!((usual.temperature, usual.top_k), (Some(0.8), Some(40)));
        assert_eq!((usual.top_p, usual.min_p, usual.repeat_penalty), (Some(0.95), Some(0.05), None));
        let advice = SamplingAdvice {
            temperature: Some(0.6),
            repeat_penalty: Some(1.1),
            penalty_window: Some(256),
            ..SamplingAdvice::default()
        };
        let own = SamplingChoice::for_model(&advice);
        assert_eq!((own.temperature, own.top_k, own.penalty_window), (Some(0.6), Some(40), Some(256)));
        // A penalty in the request does not use the model's window.
        let asked = SamplingChoice { presence_penalty: Some(1.0), ..SamplingChoice::default() };
        let mut sampling = SamplingParams { penalty_window: 0, ..SamplingParams::default() };
        asked.complete(SamplingChoice::default(), own, &mut sampling);
        assert_eq!((sampling.repeat_penalty, sampling.penalty_window), (1.1, 0));
    }

    #[test]
    fn values_outside_their_limits_are_named() {
        assert!(SamplingChoice::default().check().is_ok());
        let wrong = SamplingChoice { min_p: Some(1.5), ..SamplingChoice::default() };
        assert_eq!(wrong.check().unwrap_err().name, "min_p");
    }
}
