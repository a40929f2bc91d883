//! Options of an answer: sampling, limits, and what is reported.

use std::time::Duration;

use engine::{Dry, Mirostat, SamplerName};
use runner::GenerateOptions;
pub use text::Grammar;

/// Options of generation, for chats and completions. Sampling parameters that are not set are those
/// that the model's makers recommend, or else temperature 0.8, top-k 40, top-p 0.95, min-p 0.05.
///
/// ```
/// let generation = ingle::Generation::new().max_tokens(200).temperature(0.2).stop("\n\n");
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Generation {
    pub(crate) options: GenerateOptions,
    pub(crate) grammar: Option<Grammar>,
    /// Name of an adapter; empty for the model alone.
    pub(crate) adapter: String,
}

impl Generation {
    /// No limit but the context, and the model's own sampling parameters.
    pub fn new() -> Generation {
        Generation::default()
    }

    /// Chooses the likeliest token always.
    pub fn greedy() -> Generation {
        Generation::new().temperature(0.0)
    }

    /// Maximum number of tokens of an answer; without it, an answer ends by itself or at the end of
    /// the context.
    pub fn max_tokens(mut self, n: usize) -> Generation {
        self.options.max_tokens = Some(n);
        self
    }

    /// Least number of tokens of an answer.
    pub fn min_tokens(mut self, n: usize) -> Generation {
        self.options.min_tokens = n;
        self
    }

    /// Divisor of the logits; 0 chooses the likeliest token.
    pub fn temperature(mut self, temperature: f32) -> Generation {
        self.options.sampling.temperature = temperature;
        self.options.given.temperature = Some(temperature);
        self
    }

    /// Keeps the best `n` tokens; 0 keeps all.
    pub fn top_k(mut self, n: usize) -> Generation {
        self.options.sampling.top_k = n;
        self.options.given.top_k = Some(n);
        self
    }

    /// Keeps the fewest best tokens whose probabilities reach this sum; 1 keeps all.
    pub fn top_p(mut self, p: f32) -> Generation {
        self.options.sampling.top_p = p;
        self.options.given.top_p = Some(p);
        self
    }

    /// Drops tokens less likely than this fraction of the likeliest; 0 keeps all.
    pub fn min_p(mut self, p: f32) -> Generation {
        self.options.sampling.min_p = p;
        self.options.given.min_p = Some(p);
        self
    }

    /// Divides positive logits of recent tokens and multiplies negative ones; 1 is off.
    pub fn repeat_penalty(mut self, penalty: f32) -> Generation {
        self.options.sampling.repeat_penalty = penalty;
        self.options.given.repeat_penalty = Some(penalty);
        self
    }

    /// Subtracted from the logits of recent tokens; 0 is off.
    pub fn presence_penalty(mut self, penalty: f32) -> Generation {
        self.options.sampling.presence_penalty = penalty;
        self.options.given.presence_penalty = Some(penalty);
        self
    }

    /// Subtracted from the logits of recent tokens for each time they occurred; 0 is off.
    pub fn frequency_penalty(mut self, penalty: f32) -> Generation {
        self.options.sampling.frequency_penalty = penalty;
        self.options.given.frequency_penalty = Some(penalty);
        self
    }

    /// Number of last tokens that penalties count, prompt included; 0 counts all.
    pub fn penalty_window(mut self, n: usize) -> Generation {
        self.options.sampling.penalty_window = n;
        self.options.given.penalty_window = Some(n);
        self
    }

    /// Keeps the fewest tokens whose probabilities reach this sum, those nearest to the entropy
    /// first; 1 keeps all.
    pub fn typical_p(mut self, p: f32) -> Generation {
        self.options.sampling.typical_p = p;
        self
    }

    /// Keeps tokens whose logit is at most this many standard deviations below the best; 0 keeps
    /// all.
    pub fn top_n_sigma(mut self, n: f32) -> Generation {
        self.options.sampling.top_n_sigma = n;
        self
    }

    /// Drops all top choices but the least likely, with this probability; those have at least the
    /// probability `threshold`.
    pub fn xtc(mut self, probability: f32, threshold: f32) -> Generation {
        self.options.sampling.xtc_probability = probability;
        self.options.sampling.xtc_threshold = threshold;
        self
    }

    /// Samples with Mirostat.
    pub fn mirostat(mut self, mirostat: Mirostat) -> Generation {
        self.options.sampling.mirostat = Some(mirostat);
        self
    }

    /// Samples with DRY, which penalises repeated sequences.
    pub fn dry(mut self, dry: Dry) -> Generation {
        self.options.sampling.dry = Some(dry);
        self
    }

    /// The samplers that run, in this order.
    pub fn samplers(mut self, order: Vec<SamplerName>) -> Generation {
        self.options.sampling.order = Some(order);
        self
    }

    /// Adds to the logits of tokens: pairs of a token's id and a bias; minus infinity forbids it.
    pub fn logit_bias(mut self, biases: Vec<(u32, f32)>) -> Generation {
        self.options.sampling.logit_bias = biases.into();
        self
    }

    /// Seed of the random numbers; without it, a random one.
    pub fn seed(mut self, seed: u64) -> Generation {
        self.options.sampling.seed = Some(seed);
        self.options.given.seed = Some(Some(seed));
        self
    }

    /// Ends the answer before this text; repeat it for more.
    pub fn stop(mut self, text: impl Into<String>) -> Generation {
        self.options.stop.push(text.into());
        self
    }

    /// Ends the answer at this token; repeat it for more.
    pub fn stop_token(mut self, token: u32) -> Generation {
        self.options.stop_tokens.push(token);
        self
    }

    /// Continues after the model's end token.
    pub fn ignore_end(mut self, ignore: bool) -> Generation {
        self.options.ignore_end = ignore;
        self
    }

    /// Number of answers to the prompt, which is computed once.
    pub fn n(mut self, n: usize) -> Generation {
        self.options.n = n;
        self
    }

    /// Holds the answer to a grammar: a JSON Schema, any JSON, a regular expression, a choice, Lark
    /// or GBNF.
    pub fn grammar(mut self, grammar: Grammar) -> Generation {
        self.grammar = Some(grammar);
        self
    }

    /// Reports each token with its log-probability, and `n_best` likeliest tokens beside it, at
    /// most [`MAX_BEST_LOGPROBS`](crate::MAX_BEST_LOGPROBS).
    pub fn logprobs(mut self, n_best: usize) -> Generation {
        self.options.logprobs = Some(n_best);
        self
    }

    /// Like [`Self::logprobs`], for the tokens of the prompt except the first.
    pub fn prompt_logprobs(mut self, n_best: usize) -> Generation {
        self.options.prompt_logprobs = Some(n_best);
        self
    }

    /// Reports each token's id and bytes beside the text.
    pub fn with_tokens(mut self, with: bool) -> Generation {
        self.options.with_tokens = with;
        self
    }

    /// Reports the progress of prefill.
    pub fn with_progress(mut self, with: bool) -> Generation {
        self.options.progress = with;
        self
    }

    /// False to compute the whole prompt, even if the cache has its beginning.
    pub fn cache_prompt(mut self, cache: bool) -> Generation {
        self.options.cache_prompt = cache;
        self
    }

    /// Priority: requests with higher values go first; 0 is usual.
    pub fn priority(mut self, priority: i32) -> Generation {
        self.options.priority = priority;
        self
    }

    /// Time after which the answer ends with [`StopReason::Timeout`](crate::StopReason::Timeout).
    pub fn timeout(mut self, time: Duration) -> Generation {
        self.options.timeout = Some(time);
        self
    }

    /// Computes with this adapter of [`LoadOptions::adapters`](crate::LoadOptions::adapters).
    pub fn adapter(mut self, name: impl Into<String>) -> Generation {
        self.adapter = name.into();
        self
    }
}
