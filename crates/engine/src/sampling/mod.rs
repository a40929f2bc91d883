//! How the tokens of a sequence are chosen: its parameters and its random numbers. Devices choose
//! ([`device::Want`]; `device_lower::sampling` is the definition), with the numbers that a [`Sampler`] gives them.
//!
//! A token of the answer takes one random number, whether steps run ahead, guess, or neither; so a seed gives the same answer.
//! A temperature of 0 or `top_k = 1` takes the best token without random numbers.

mod params;
mod rng;

pub use params::{ParamError, SamplingParams};
pub use rng::Rng;

use device::{Choose, Penalties, Sampling, Want};

/// The parameters and the random state of one sequence.
#[derive(Clone, Debug)]
pub struct Sampler {
    params: SamplingParams,
    rng: Rng,
    seed: u64,
}

impl Sampler {
    /// Of checked parameters, for a vocabulary of `n_vocab` tokens.
    ///
    /// # Errors
    /// A parameter is outside its limits.
    pub fn new(params: &SamplingParams, n_vocab: usize) -> std::result::Result<Sampler, ParamError> {
        params.check(n_vocab)?;
        let seed = params.seed.unwrap_or_else(rng::fresh_seed);
        Ok(Sampler { params: params.clone(), rng: Rng::new(seed), seed })
    }

    /// The seed in use: the one asked for, or the one that was drawn.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Whether it always takes the best token.
    pub fn is_greedy(&self) -> bool {
        self.params.temperature == 0.0 || self.params.top_k == 1
    }

    /// Whether it gives the log-probability of each token.
    pub fn wants_logprobs(&self) -> bool {
        self.params.logprobs
    }

    /// How many of the last tokens penalties count (0: all); `None`: there are none.
    pub fn penalty_window(&self) -> Option<usize> {
        let p = &self.params;
        let is_on = p.repeat_penalty != 1.0 || p.presence_penalty != 0.0 || p.frequency_penalty != 0.0;
        is_on.then_some(p.penalty_window)
    }

    /// Tokens and what is added to their logits.
    pub fn biases(&self) -> &[(u32, f32)] {
        &self.params.logit_bias
    }

    /// What is wanted of an output, but for what its penalties and biases point to, with the random number that comes
    /// `n_ahead` after the next one. Draws nothing; allocates nothing.
    pub fn want(&self, n_ahead: usize) -> Want {
        let p = &self.params;
        let choose = match self.is_greedy() {
            true => Choose::Best,
            false => Choose::Sample(Sampling {
                temperature: p.temperature,
                top_k: p.top_k,
                top_p: p.top_p,
                min_p: p.min_p,
                random: self.random(n_ahead),
            }),
        };
        let penalties = self.penalty_window().map(|_| Penalties {
            repeat: p.repeat_penalty,
            presence: p.presence_penalty,
            frequency: p.frequency_penalty,
        });
        Want { choose, penalties, logprob: p.logprobs, n_best: p.n_best_logprobs as u32, ..Want::default() }
    }

    fn random(&self, n_ahead: usize) -> f64 {
        let mut rng = self.rng.clone();
        for _ in 0..n_ahead {
            rng.next_u64();
        }
        rng.uniform()
    }

    /// A token was chosen with the random number that was next.
    pub fn took_one(&mut self) {
        if !self.is_greedy() {
            self.rng.next_u64();
        }
    }
}

#[cfg(test)]
mod tests;
