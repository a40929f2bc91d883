//! Sampling of a token, as data. `device_lower::sampling` is the definition in code.

use crate::step::Slice;

/// The usual stages of sampling, after biases, mask and [`Penalties`], in this order: temperature,
/// top-k, top-p, min-p, pick. Tokens are ranked by logit, best first, ties to the lower id; NaN and
/// minus infinity are never chosen. Each stage keeps the best of the tokens that the stage before
/// left. The softmax is over `l / temperature`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divisor of the logits; above 0.
    pub temperature: f32,
    /// Number of tokens to keep; 0 keeps all.
    pub top_k: usize,
    /// Keep the fewest tokens whose probabilities sum to this; 1 or more keeps all.
    pub top_p: f32,
    /// Keep tokens with at least this part of the best token's probability; 0 keeps all.
    pub min_p: f32,
    /// Uniform in `[0, 1)`. The pick adds the weights of the remaining tokens, best first, and
    /// chooses the first token at which the sum exceeds this part of the total.
    pub random: f64,
}

/// Stages in the caller's order, then a pick, after biases, mask and [`Penalties`]. Each stage sees
/// the tokens that the stage before left, with probabilities that sum to 1. Every stage leaves at
/// least one token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chain {
    /// Slice of [`crate::Step::stages`].
    pub stages: Slice,
    /// Same as [`Sampling::random`].
    pub random: f64,
}

/// A stage of a [`Chain`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stage {
    /// Divides the logits by a temperature; 0 keeps only the best token.
    Temperature(f32),
    /// Divides the logits by a temperature between `low` and `high`, higher for flatter
    /// distributions: `low + (high - low) * (H / ln n)^exponent`, where `H` is the entropy of `n`
    /// tokens.
    Dynamic {
        /// At least 0.
        low: f32,
        /// Upper bound, at least `low`.
        high: f32,
        /// Above 0.
        exponent: f32,
    },
    /// Keeps this number of tokens; 0 keeps all.
    TopK(usize),
    /// Same as [`Sampling::top_p`].
    TopP(f32),
    /// Same as [`Sampling::min_p`].
    MinP(f32),
    /// Keeps the tokens whose surprise is nearest to the entropy, the fewest whose probabilities
    /// sum to this (Meister et al. 2022, arXiv:2202.00666); 1 or more keeps all.
    Typical(f32),
    /// Keeps tokens whose logit is at most this many standard deviations of all logits below the
    /// best (Tang et al. 2024, arXiv:2411.07641); 0 keeps all.
    TopNSigma(f32),
    /// Drops all but the least likely of the tokens with a probability of at least `threshold`, if
    /// there are two or more and `random` is below `probability`.
    Xtc {
        /// Probability that the stage drops tokens.
        probability: f32,
        /// Smallest probability of a top choice.
        threshold: f32,
        /// Uniform in `[0, 1)`.
        random: f64,
    },
    /// Keeps the best tokens. Their number is the one for which Zipf's law, with the exponent of
    /// the 100 likeliest tokens, predicts a surprise of `mu` bits (Basu et al. 2021,
    /// arXiv:2007.14966, algorithm 1).
    MirostatTopK {
        /// Target surprise in bits.
        mu: f32,
    },
    /// Drops tokens with a higher surprise.
    MostSurprise {
        /// Limit in bits.
        mu: f32,
    },
}

/// Penalties of a token that occurred `c > 0` times among the counted tokens: `l = l / repeat` if
/// `l > 0`, else `l * repeat`; then `l -= presence + frequency * c`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Penalties {
    /// Repeat penalty, above 0; 1 is off.
    pub repeat: f32,
    /// Presence penalty; 0 is off.
    pub presence: f32,
    /// Frequency penalty; 0 is off.
    pub frequency: f32,
}

impl Sampling {
    /// Checks that the parameters are valid. Allocates nothing unless it fails.
    ///
    /// # Errors
    /// The invalid parameter.
    pub fn check(&self) -> Result<(), String> {
        if !(self.temperature > 0.0 && self.temperature.is_finite()) {
            return Err(format!("a temperature of {}, expected a finite number above 0", self.temperature));
        }
        for (what, part) in [("top-p", self.top_p), ("min-p", self.min_p)] {
            if !(0.0..=1.0).contains(&part) {
                return Err(format!("{what} of {part}, expected a number from 0 to 1"));
            }
        }
        if !(0.0..1.0).contains(&self.random) {
            return Err(format!("the random number {}, expected one from 0 to below 1", self.random));
        }
        Ok(())
    }
}

impl Stage {
    /// Checks that the stage is valid. Allocates nothing unless it fails.
    ///
    /// # Errors
    /// The invalid parameter.
    pub fn check(&self) -> Result<(), String> {
        let is_fine = match *self {
            Stage::Temperature(t) => t >= 0.0 && t.is_finite(),
            Stage::Dynamic { low, high, exponent } => {
                low >= 0.0 && high >= low && high.is_finite() && exponent > 0.0 && exponent.is_finite()
            }
            Stage::TopK(_) => true,
            Stage::TopP(p) | Stage::MinP(p) | Stage::Typical(p) => (0.0..=1.0).contains(&p),
            Stage::TopNSigma(n) => n >= 0.0 && n.is_finite(),
            Stage::Xtc { probability, threshold, random } => {
                (0.0..=1.0).contains(&probability) && threshold >= 0.0 && (0.0..1.0).contains(&random)
            }
            Stage::MirostatTopK { mu } | Stage::MostSurprise { mu } => mu.is_finite(),
        };
        if is_fine { Ok(()) } else { Err(format!("a stage of sampling outside its limits: {self:?}")) }
    }
}

impl Penalties {
    /// Checks that the penalties are valid. Allocates nothing unless it fails.
    ///
    /// # Errors
    /// The invalid penalty.
    pub fn check(&self) -> Result<(), String> {
        let Penalties { repeat, presence, frequency } = *self;
        if repeat > 0.0 && repeat.is_finite() && presence.is_finite() && frequency.is_finite() {
            return Ok(());
        }
        Err(format!(
            "penalties {repeat}, {presence}, {frequency}, expected finite numbers, the first above 0"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_parameters_are_named() {
        let good = Sampling { temperature: 0.8, top_k: 0, top_p: 1.0, min_p: 0.0, random: 0.999 };
        assert_eq!(good.check(), Ok(()));
        let bad = |sampling: Sampling| sampling.check().unwrap_err();
        assert!(bad(Sampling { temperature: 0.0, ..good }).contains("temperature of 0"));
        assert!(bad(Sampling { temperature: f32::INFINITY, ..good }).contains("inf"));
        assert!(bad(Sampling { top_p: 1.5, ..good }).contains("top-p of 1.5"));
        assert!(bad(Sampling { min_p: f32::NAN, ..good }).contains("min-p of NaN"));
        assert!(bad(Sampling { random: 1.0, ..good }).contains("number 1,"));
        let penalties = Penalties { repeat: 1.1, presence: 0.0, frequency: 0.0 };
        assert_eq!(penalties.check(), Ok(()));
        assert!(Penalties { repeat: 0.0, ..penalties }.check().unwrap_err().contains("penalties 0"));
        assert!(Penalties { frequency: f32::NAN, ..penalties }.check().unwrap_err().contains("NaN"));
    }
}
