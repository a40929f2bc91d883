//! Stages in the caller's order, as [`Stage`] defines each.

use device::Stage;

use super::{Allowed, Candidate, TopK, best_first};

/// Number of likeliest tokens to which Mirostat fits Zipf's law.
const N_ZIPF: usize = 100;

/// Tokens that the stages so far have left.
pub struct Chain<'a> {
    /// Remaining tokens; empty only if no token was allowed.
    candidates: &'a mut Vec<Candidate>,
    /// Size of the vocabulary.
    n_vocab: usize,
    /// True if the candidates are sorted, best first.
    is_sorted: bool,
}

impl<'a> Chain<'a> {
    /// Runs `stages` on the allowed tokens of `logits`; `candidates` has capacity for all of them.
    pub fn run(stages: &[Stage], logits: Allowed<'_>, candidates: &'a mut Vec<Candidate>) -> Chain<'a> {
        // A heap of the best is faster than sorting all.
        let (n_best, stages) = match stages {
            [Stage::TopK(n), rest @ ..] => (*n, rest),
            stages => (0, stages),
        };
        let is_sorted = TopK(n_best).gather(logits, candidates);
        let mut chain = Chain { candidates, n_vocab: logits.n_vocab(), is_sorted };
        for stage in stages {
            if chain.candidates.len() < 2 {
                break;
            }
            chain.apply(*stage);
        }
        chain
    }

    /// Picks a token with its probability. It is the first at which the cumulative sum of
    /// probabilities, best first, exceeds `random`, uniform in `[0, 1)`. Returns the token and
    /// `-log2` of its probability; `None` if no token was allowed.
    pub fn pick(mut self, random: f64) -> Option<(u32, f32)> {
        self.sort();
        let normalizer = self.normalizer();
        let mut sum = 0.0;
        let exceeds = |candidate: &&Candidate| {
            sum += probability(candidate, normalizer);
            sum > random
        };
        // Rounding may leave a little over, so the last candidate is the fallback.
        let chosen = self.candidates.iter().find(exceeds).or_else(|| {
            self.candidates.iter().rev().find(|candidate| probability(candidate, normalizer) > 0.0)
        })?;
        let surprise = -probability(chosen, normalizer).log2();
        Some((chosen.id, surprise as f32))
    }

    /// Appends the `n` best remaining tokens, and the logarithms of their probabilities.
    pub fn likeliest(&mut self, n: usize, left: &mut Vec<(u32, f32)>) {
        if n == 0 {
            return;
        }
        self.sort();
        let normalizer = self.normalizer();
        let best = self.candidates.iter().take(n);
        left.extend(best.map(|c| (c.id, (f64::from(c.logit) - normalizer) as f32)));
    }

    fn apply(&mut self, stage: Stage) {
        match stage {
            Stage::Temperature(temperature) => self.divide(temperature),
            Stage::Dynamic { low, high, exponent } => {
                let flatness = self.entropy() / (self.candidates.len() as f64).ln();
                let part = (flatness.clamp(0.0, 1.0) as f32).powf(exponent);
                self.divide(low + (high - low) * part);
            }
            Stage::TopK(0) => {}
            Stage::TopK(n) => {
                self.sort();
                self.candidates.truncate(n);
            }
            Stage::TopP(p) => {
                if p < 1.0 {
                    self.sort();
                    self.keep_first(f64::from(p));
                }
            }
            Stage::MinP(p) => {
                if p > 0.0 {
                    let floor = self.best() + p.ln();
                    self.candidates.retain(|candidate| candidate.logit >= floor);
                }
            }
            Stage::Typical(p) => {
                if p < 1.0 {
                    self.keep_typical(f64::from(p));
                }
            }
            Stage::TopNSigma(n) => {
                if n > 0.0 {
                    let floor = self.best() - n * self.deviation();
                    self.candidates.retain(|candidate| candidate.logit >= floor);
                }
            }
            Stage::Xtc { probability, threshold, random } => {
                if random < f64::from(probability) {
                    self.exclude_top_choices(f64::from(threshold));
                }
            }
            Stage::MirostatTopK { mu } => {
                self.sort();
                let n = self.mirostat_n(f64::from(mu));
                self.candidates.truncate(n);
            }
            Stage::MostSurprise { mu } => {
                self.sort();
                let normalizer = self.normalizer();
                let is_fine =
                    |candidate: &Candidate| -probability(candidate, normalizer).log2() <= f64::from(mu);
                let n = self.candidates.iter().take_while(|candidate| is_fine(candidate)).count();
                self.candidates.truncate(n.max(1));
            }
        }
    }

    fn sort(&mut self) {
        if !self.is_sorted {
            self.candidates.sort_unstable_by(best_first);
            self.is_sorted = true;
        }
    }

    fn best(&self) -> f32 {
        self.candidates.iter().map(|candidate| candidate.logit).fold(f32::NEG_INFINITY, f32::max)
    }

    /// `ln sum exp`.
    fn normalizer(&self) -> f64 {
        let best = f64::from(self.best());
        let sum: f64 = self.candidates.iter().map(|c| (f64::from(c.logit) - best).exp()).sum();
        best + sum.ln()
    }

    /// `-sum p ln p`
    fn entropy(&self) -> f64 {
        let normalizer = self.normalizer();
        let of = |candidate: &Candidate| match probability(candidate, normalizer) {
            p if p > 0.0 => -p * p.ln(),
            _ => 0.0,
        };
        self.candidates.iter().map(of).sum()
    }

    /// Standard deviation of the logits.
    fn deviation(&self) -> f32 {
        let n = self.candidates.len() as f64;
        let mean = self.candidates.iter().map(|c| f64::from(c.logit)).sum::<f64>() / n;
        let squares: f64 = self.candidates.iter().map(|c| (f64::from(c.logit) - mean).powi(2)).sum();
        (squares / n).sqrt() as f32
    }

    /// Divides distances to the best logit, not the logits, so that a tiny temperature makes no two
    /// tokens infinite.
    fn divide(&mut self, temperature: f32) {
        let best = self.best();
        if temperature == 0.0 {
            self.sort();
            self.candidates.truncate(1);
            return;
        }
        for candidate in self.candidates.iter_mut() {
            candidate.logit = (candidate.logit - best) / temperature;
        }
    }

    /// Keeps the fewest first tokens whose probabilities sum to `goal`.
    fn keep_first(&mut self, goal: f64) {
        let normalizer = self.normalizer();
        let mut sum = 0.0;
        let reaches = |candidate: &Candidate| {
            sum += probability(candidate, normalizer);
            sum >= goal
        };
        if let Some(last) = self.candidates.iter().position(reaches) {
            self.candidates.truncate(last + 1);
        }
    }

    fn keep_typical(&mut self, p: f64) {
        let (normalizer, entropy) = (self.normalizer(), self.entropy());
        let distance = |candidate: &Candidate| {
            let surprise = normalizer - f64::from(candidate.logit);
            (surprise - entropy).abs()
        };
        self.candidates
            .sort_unstable_by(|a, b| distance(a).total_cmp(&distance(b)).then_with(|| best_first(a, b)));
        self.is_sorted = false;
        // The probabilities are over all tokens, in this order.
        self.keep_first(p);
    }

    fn exclude_top_choices(&mut self, threshold: f64) {
        self.sort();
        let normalizer = self.normalizer();
        let n = self.candidates.iter().take_while(|c| probability(c, normalizer) >= threshold).count();
        self.candidates.drain(..n.saturating_sub(1));
    }

    /// Number of tokens that Mirostat's first algorithm keeps.
    fn mirostat_n(&self, mu: f64) -> usize {
        let (mut above, mut below) = (0.0, 0.0);
        for (i, pair) in self.candidates.windows(2).take(N_ZIPF - 1).enumerate() {
            let t = ((i + 2) as f64 / (i + 1) as f64).ln();
            above += t * f64::from(pair[0].logit - pair[1].logit);
            below += t * t;
        }
        let exponent = above / below;
        let epsilon = exponent - 1.0;
        let n = (epsilon * mu.exp2() / (1.0 - (self.n_vocab as f64).powf(-epsilon))).powf(1.0 / exponent);
        // An exponent of 0 or exactly 1 makes `n` NaN: keep all.
        if n.is_nan() { usize::MAX } else { (n as usize).max(1) }
    }
}

fn probability(candidate: &Candidate, normalizer: f64) -> f64 {
    (f64::from(candidate.logit) - normalizer).exp()
}
