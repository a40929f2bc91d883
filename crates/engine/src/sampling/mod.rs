//! Sampling parameters and random numbers of a sequence. Devices choose tokens ([`device::Want`];
//! `device_lower::sampling` defines how), with the numbers that a [`Sampler`] supplies.
//!
//! Each token of the answer uses one random number, with or without steps ahead and draft tokens;
//! so a seed always gives the same answer. A temperature of 0 or `top_k = 1` chooses the best token
//! without random numbers.

mod choice;
mod dry;
mod order;
mod params;
mod rng;

pub use choice::SamplingChoice;
pub use dry::{DryBreakers, MAX_DRY_BREAKER, MAX_DRY_BREAKERS};
pub(crate) use dry::{DryBuffers, DryPenalty};
pub use order::SamplerName;
pub use params::{Dry, Mirostat, ParamError, SamplingParams};
pub use rng::Rng;

use device::{Chain, Choose, Penalties, Sampling, Slice, Stage, Want};
use text::Tokenizer;

/// The parameters and the random state of one sequence.
#[derive(Clone, Debug)]
pub struct Sampler {
    params: SamplingParams,
    rng: Rng,
    seed: u64,
    /// Stages of a [`Chain`]; empty if the device's fixed order suffices.
    stages: Vec<Stage>,
    dry: Option<DryPenalty>,
    /// Mirostat's bound of surprise, in bits.
    mu: f32,
}

impl Sampler {
    /// A sampler with checked parameters for a vocabulary of `n_vocab` tokens. Without a tokenizer,
    /// DRY has no breakers.
    ///
    /// # Errors
    /// A parameter is outside its limits.
    pub fn new(
        params: &SamplingParams,
        n_vocab: usize,
        tokenizer: Option<&Tokenizer>,
    ) -> std::result::Result<Sampler, ParamError> {
        params.check(n_vocab)?;
        let seed = params.seed.unwrap_or_else(rng::fresh_seed);
        let dry = params.dry.as_ref().filter(|dry| dry.multiplier > 0.0 && params.runs(SamplerName::Dry));
        Ok(Sampler {
            rng: Rng::new(seed),
            seed,
            stages: params.stages(),
            dry: dry.map(|dry| DryPenalty::new(dry, tokenizer)),
            mu: params.mirostat.map_or(0.0, |mirostat| 2.0 * mirostat.tau),
            params: params.clone(),
        })
    }

    /// The seed in use: the request's, or a random one.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns true if the sampler always chooses the best token.
    pub fn is_greedy(&self) -> bool {
        !self.params.uses_chain() && (self.params.temperature == 0.0 || self.params.top_k == 1)
    }

    /// Returns true if the next choice depends on the tokens before it.
    pub(crate) fn sees_tokens(&self) -> bool {
        self.dry.is_some() || self.adapts()
    }

    /// Returns true if each choice changes how the next one is made, even if the draft token was
    /// right.
    pub(crate) fn adapts(&self) -> bool {
        self.params.mirostat.is_some() && self.params.uses_chain()
    }

    /// DRY, if it is on.
    pub(crate) fn dry(&self) -> Option<&DryPenalty> {
        self.dry.as_ref()
    }

    /// Number of stages that [`Self::stages`] returns.
    pub(crate) fn n_stages(&self) -> usize {
        self.stages.len()
    }

    /// The stages of a chain, with the random number that is `n_ahead` after the next one.
    pub(crate) fn stages(&self, n_ahead: usize) -> impl Iterator<Item = Stage> + '_ {
        let random = rng::another(self.bits(n_ahead));
        self.stages.iter().map(move |stage| match *stage {
            Stage::Xtc { probability, threshold, .. } => Stage::Xtc { probability, threshold, random },
            Stage::MirostatTopK { .. } => Stage::MirostatTopK { mu: self.mu },
            Stage::MostSurprise { .. } => Stage::MostSurprise { mu: self.mu },
            Stage::Temperature(_)
            | Stage::Dynamic { .. }
            | Stage::TopK(_)
            | Stage::TopP(_)
            | Stage::MinP(_)
            | Stage::Typical(_)
            | Stage::TopNSigma(_) => *stage,
        })
    }

    /// Returns true if the log-probability of each token is reported.
    pub fn wants_logprobs(&self) -> bool {
        self.params.logprobs
    }

    /// Number of last tokens that penalties count (0: all); `None`: no penalty is on.
    pub fn penalty_window(&self) -> Option<usize> {
        let p = &self.params;
        let is_on = p.repeat_penalty != 1.0 || p.presence_penalty != 0.0 || p.frequency_penalty != 0.0;
        (is_on && p.runs(SamplerName::Penalties)).then_some(p.penalty_window)
    }

    /// Logit biases: tokens and the values added to their logits.
    pub fn biases(&self) -> &[(u32, f32)] {
        &self.params.logit_bias
    }

    /// Parameters of an output, with the random number that is `n_ahead` after the next one. Its
    /// stages, penalties and biases are filled in by the caller. Draws and allocates nothing.
    pub fn want(&self, n_ahead: usize) -> Want {
        let p = &self.params;
        let choose = match (self.is_greedy(), p.uses_chain()) {
            (true, _) => Choose::Best,
            (_, true) => Choose::Chain(Chain { stages: Slice::default(), random: self.random(n_ahead) }),
            (_, false) => Choose::Sample(Sampling {
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
        Want {
            choose,
            penalties,
            logprob: p.logprobs,
            n_best: p.n_best_logprobs as u32,
            drawn: p.drawn_logprobs,
            ..Want::default()
        }
    }

    fn random(&self, n_ahead: usize) -> f64 {
        rng::uniform(self.bits(n_ahead))
    }

    fn bits(&self, n_ahead: usize) -> u64 {
        let mut rng = self.rng.clone();
        for _ in 0..n_ahead {
            rng.next_u64();
        }
        rng.next_u64()
    }

    /// Advance after a token was chosen with the next random number. `surprise` is the token's, in
    /// bits, if a chain chose it.
    pub fn took_one(&mut self, surprise: f32) {
        if !self.is_greedy() {
            self.rng.next_u64();
        }
        if let Some(mirostat) = self.params.mirostat.filter(|_| surprise.is_finite()) {
            self.mu -= mirostat.eta * (surprise - mirostat.tau);
        }
    }
}

#[cfg(test)]
mod tests;
