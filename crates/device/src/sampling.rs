//! How a token is sampled, as data. `device_lower::sampling` is the definition in code.

use crate::step::Slice;

/// The stages after biases, mask and [`Penalties`], in their order: temperature, top-k, top-p, min-p, pick. Tokens are
/// ranked best first: the larger logit, the lower id of equals; NaN and minus infinity are never chosen. Each stage keeps the
/// best of what the one before left. Softmax is over `l / temperature`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; above 0.
    pub temperature: f32,
    /// Keep so many; 0: all.
    pub top_k: usize,
    /// Keep the fewest whose probabilities sum to this; from 1 on: all.
    pub top_p: f32,
    /// Keep those with at least this part of the probability of the best; 0: all.
    pub min_p: f32,
    /// Uniform in `[0, 1)`: the first token is chosen at which the sum of the weights of what is left, best first, exceeds
    /// this part of the sum of all.
    pub random: f64,
}

/// Stages in an order that the caller chooses, and then a pick, after biases, mask and [`Penalties`]. Each stage sees the
/// tokens that the one before left, with probabilities that sum to 1 over them. No stage leaves nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chain {
    /// Of [`crate::Step::stages`].
    pub stages: Slice,
    /// As [`Sampling::random`].
    pub random: f64,
}

/// A stage of a [`Chain`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stage {
    /// Divide the logits by a temperature; 0 keeps the best token.
    Temperature(f32),
    /// Divide the logits by a temperature between two, the nearer to the higher the flatter the distribution is:
    /// `low + (high - low) * (H / ln n)^exponent`, `H` the entropy of `n` tokens.
    Dynamic {
        /// At least 0.
        low: f32,
        /// At least `low`.
        high: f32,
        /// Above 0.
        exponent: f32,
    },
    /// Keep so many; 0: all.
    TopK(usize),
    /// As [`Sampling::top_p`].
    TopP(f32),
    /// As [`Sampling::min_p`].
    MinP(f32),
    /// Keep the tokens whose surprise is nearest to the entropy, the fewest whose probabilities sum to this (Meister et al. 2022,
    /// arXiv:2202.00666); from 1 on: all.
    Typical(f32),
    /// Keep tokens with a logit of at least the best one's less so many standard deviations of all logits (Tang et al. 2024,
    /// arXiv:2411.07641); 0: all.
    TopNSigma(f32),
    /// Where at least two tokens have a probability of `threshold` or more, drop all of them but the least likely, if `random`
    /// is below `probability`.
    Xtc {
        /// How often.
        probability: f32,
        /// From which probability on a token is one of the top choices.
        threshold: f32,
        /// Uniform in `[0, 1)`.
        random: f64,
    },
    /// Keep the best tokens, as many as Zipf's law with the exponent of the 100 likeliest says give surprises of `mu` bits (Basu et
    /// al. 2021, arXiv:2007.14966, algorithm 1).
    MirostatTopK {
        /// Bits.
        mu: f32,
    },
    /// Drop tokens whose surprise is above this many bits.
    MostSurprise {
        /// Bits.
        mu: f32,
    },
}

/// For a token that occurred `c > 0` times among those that count: `l = l / repeat` if `l > 0`, else `l * repeat`; then
/// `l -= presence + frequency * c`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Penalties {
    /// 1 is off; above 0.
    pub repeat: f32,
    /// 0 is off.
    pub presence: f32,
    /// 0 is off.
    pub frequency: f32,
}

impl Sampling {
    /// Whether a token can be chosen so. Allocates nothing unless it fails.
    ///
    /// # Errors
    /// What is wrong.
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
    /// Whether the stage can be run. Allocates nothing unless it fails.
    ///
    /// # Errors
    /// What is wrong.
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
    /// Whether logits can be changed so. Allocates nothing unless it fails.
    ///
    /// # Errors
    /// What is wrong.
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
    fn what_cannot_be_is_named() {
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
