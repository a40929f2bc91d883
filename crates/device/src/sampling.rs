//! How a device chooses the tokens of a chain by itself.

/// The stages in their order: penalties, temperature, top-k, top-p, min-p, pick. Tokens are ranked best first: the larger
/// logit, the lower id of equals; NaN and minus infinity are never chosen. Each stage keeps the best of what the one before
/// left. Softmax is over `l / temperature`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling<'a> {
    /// Divides the logits; above 0.
    pub temperature: f32,
    /// Keep so many; 0: all.
    pub top_k: usize,
    /// Keep the fewest whose probabilities sum to this; from 1 on: all.
    pub top_p: f32,
    /// Keep those with at least this part of the probability of the best; 0: all.
    pub min_p: f32,
    /// What recent tokens lose; `None`: nothing.
    pub penalties: Option<Penalties<'a>>,
    /// One for each token of the chain, uniform in `[0, 1)`: the first token is chosen at which the sum of the weights of
    /// what is left, best first, exceeds this part of the sum of all.
    pub randoms: &'a [f64],
}

/// For a token that occurred `c > 0` times in the window: `l = l / repeat` if `l > 0`, else `l * repeat`; then
/// `l -= presence + frequency * c`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Penalties<'a> {
    /// 1 is off; above 0.
    pub repeat: f32,
    /// 0 is off.
    pub presence: f32,
    /// 0 is off.
    pub frequency: f32,
    /// The last tokens that count, those that the chain chooses included; 0: all of them.
    pub window: usize,
    /// The last tokens of the sequence before the chain's first choice, as many as the window has if there are so many.
    pub recent: &'a [u32],
}

impl Sampling<'_> {
    /// Whether `n` tokens of a vocabulary of `n_vocab` can be chosen so. Allocates nothing.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn check(&self, n: usize, n_vocab: usize) -> Result<(), String> {
        if !(self.temperature > 0.0 && self.temperature.is_finite()) {
            return Err(format!("a temperature of {}, expected a finite number above 0", self.temperature));
        }
        for (what, part) in [("top-p", self.top_p), ("min-p", self.min_p)] {
            if !(0.0..=1.0).contains(&part) {
                return Err(format!("{what} of {part}, expected a number from 0 to 1"));
            }
        }
        if self.randoms.len() < n {
            return Err(format!("{} random numbers for {n} tokens", self.randoms.len()));
        }
        if let Some(u) = self.randoms.iter().find(|u| !(0.0..1.0).contains(*u)) {
            return Err(format!("the random number {u}, expected one from 0 to below 1"));
        }
        let Some(penalties) = &self.penalties else { return Ok(()) };
        let finite = penalties.presence.is_finite() && penalties.frequency.is_finite();
        if !(penalties.repeat > 0.0 && penalties.repeat.is_finite() && finite) {
            return Err(format!(
                "penalties {}, {}, {}, expected finite numbers, the first above 0",
                penalties.repeat, penalties.presence, penalties.frequency
            ));
        }
        match penalties.recent.iter().find(|token| **token as usize >= n_vocab) {
            Some(token) => Err(format!("the recent token {token}, expected one below {n_vocab}")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_is_named() {
        let penalties = Penalties { repeat: 1.1, presence: 0.0, frequency: 0.0, window: 0, recent: &[3] };
        let good = Sampling {
            temperature: 0.8,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            penalties: Some(penalties),
            randoms: &[0.0, 0.999],
        };
        assert_eq!(good.check(2, 4), Ok(()));
        assert_eq!(Sampling { penalties: None, ..good }.check(1, 1), Ok(()));
        let bad = |sampling: Sampling<'_>| sampling.check(2, 4).unwrap_err();
        assert!(bad(Sampling { temperature: 0.0, ..good }).contains("temperature of 0"));
        assert!(bad(Sampling { temperature: f32::INFINITY, ..good }).contains("inf"));
        assert!(bad(Sampling { top_p: 1.5, ..good }).contains("top-p of 1.5"));
        assert!(bad(Sampling { min_p: f32::NAN, ..good }).contains("min-p of NaN"));
        assert!(bad(Sampling { randoms: &[0.5], ..good }).contains("1 random numbers for 2"));
        assert!(bad(Sampling { randoms: &[0.5, 1.0], ..good }).contains("number 1,"));
        let with = |penalties| bad(Sampling { penalties: Some(penalties), ..good });
        assert!(with(Penalties { repeat: 0.0, ..penalties }).contains("penalties 0"));
        assert!(with(Penalties { frequency: f32::NAN, ..penalties }).contains("NaN"));
        assert!(with(Penalties { recent: &[1, 4], ..penalties }).contains("token 4, expected one below 4"));
    }
}
