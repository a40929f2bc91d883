//! A sequence: what is asked of it, what it is made of, how it ends.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use device::OutputRef;
use model::Picture;

use text::{Asides, ShowSpecial, Stops};

use crate::constraint::Constraint;
use crate::output::TextStream;
use crate::sampling::{Sampler, SamplingParams};
use crate::speculate::Acceptance;
use crate::vision::Images;

/// Names a sequence for as long as its engine lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub u64);

/// What happens when prompt and answer fill the context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// Stop with [`FinishReason::ContextFull`]; a prompt that is too long is an error.
    #[default]
    Stop,
    /// Keep the first `keep` tokens (at most half the context), drop the older half of the rest, go on.
    ///
    /// The model then sees exactly the text that remains: what is kept of the rest stands at new positions and is
    /// computed again as a prompt would be (about `n_ctx / 2` tokens every `n_ctx / 2` tokens, so one prompt token for
    /// each generated one). A prompt that is too long is cut by the same rule.
    Slide {
        /// Tokens of the start that always stay.
        keep: usize,
    },
}

/// How prompt tokens are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prefill {
    /// As many rows as a step holds.
    #[default]
    Batched,
    /// One row a step; for checking.
    PerToken,
}

/// Says from another thread that nobody wants the rest. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct CancelFlag(Arc<AtomicBool>);

impl CancelFlag {
    /// End the sequence before its next step.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// For [`device::Step::stop`].
    pub(crate) fn as_atomic(&self) -> &AtomicBool {
        &self.0
    }

    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What is asked of the engine: continue these tokens.
#[derive(Clone, Debug)]
pub struct Request {
    /// The prompt, at least one token.
    pub tokens: Vec<u32>,
    /// Images, in the order of their placeholders in `tokens`, one for each row ([`crate::Model::expand_images`]).
    pub images: Vec<Arc<Picture>>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Most tokens to generate; `None`: until the model ends or the context is full. 0 computes the prompt only.
    pub max_tokens: Option<usize>,
    /// The answer ends before any of these texts.
    pub stop: Stops,
    /// Parts of the answer in which they are not looked for.
    pub stop_outside: Option<Asides>,
    /// Tokens that end the answer, as those do with which the model ends its turn; `ignore_end` does not concern them.
    pub stop_tokens: Arc<[u32]>,
    /// Before the answer has so many tokens, no token that ends it is chosen. A stop string or a constraint that is over still
    /// ends it.
    pub min_tokens: usize,
    /// Go on when the model says that it has ended. With a constraint, which says itself where the text may end, it has no effect.
    pub ignore_end: bool,
    /// Which marks, such as `<|im_end|>`, are written out.
    pub show_special: ShowSpecial,
    /// Tell the log-probability of each token of the prompt but the first, and of so many likeliest ones in its place (at most
    /// [`device::MAX_BEST`]), in an [`crate::Event::PromptToken`] each. The whole prompt is then computed, cached or not, as many
    /// rows a step as there is room for logits ([`crate::LoadOptions::n_outputs`]).
    pub prompt_logprobs: Option<usize>,
    /// Tell how far the prompt is, in [`crate::Event::Progress`].
    pub progress: bool,
    /// What the answer must be.
    pub constraint: Option<Box<dyn Constraint>>,
    /// What happens when the context is full.
    pub overflow: Overflow,
    /// How the prompt is computed.
    pub prefill: Prefill,
    /// Use and feed the prefix cache.
    pub reuse: bool,
    /// Only requests with the same salt share what is cached. Whose prompts others must not be able to find out, by how long
    /// an answer takes to begin, has a salt of their own; so has a prompt that is computed with other weights.
    pub salt: u64,
    /// Which of the model's adapters it is computed with ([`crate::Model::adapters`]); `None`: the model alone.
    pub adapter: Option<Arc<str>>,
    /// Who asks. Tenants that wait get about as many tokens each, within a priority.
    pub tenant: u64,
    /// Higher goes first, and takes the slot of a running sequence of a lower one, which goes on later.
    pub priority: i32,
    /// When the answer is of no use any more: it ends with [`FinishReason::DeadlineExceeded`], waiting or running.
    pub deadline: Option<Instant>,
    /// Most time between two tokens while other requests' prompts are computed; `None`: [`crate::LoadOptions::token_latency`].
    pub token_latency: Option<Duration>,
    /// Its tokens may be guessed, if the engine guesses ([`crate::LoadOptions::speculate`]).
    pub speculate: bool,
    /// Set from elsewhere to end it early.
    pub cancel: CancelFlag,
}

impl Request {
    /// Continue `tokens` with everything else at its default.
    pub fn new(tokens: Vec<u32>) -> Request {
        Request {
            tokens,
            images: Vec::new(),
            sampling: SamplingParams::default(),
            max_tokens: None,
            stop: Stops::default(),
            stop_outside: None,
            stop_tokens: Arc::default(),
            min_tokens: 0,
            ignore_end: false,
            show_special: ShowSpecial::Nothing,
            prompt_logprobs: None,
            progress: false,
            constraint: None,
            overflow: Overflow::Stop,
            prefill: Prefill::Batched,
            reuse: true,
            salt: 0,
            adapter: None,
            tenant: 0,
            priority: 0,
            deadline: None,
            token_latency: None,
            speculate: true,
            cancel: CancelFlag::default(),
        }
    }
}

/// Why a sequence ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model chose a token that ends its turn.
    EndToken(u32),
    /// One of the request's stop tokens was chosen.
    StopToken(u32),
    /// Its constraint lets nothing follow but the end.
    ConstraintMet,
    /// No token that the vocabulary has, and that may be chosen, goes on as its constraint asks.
    ConstraintUnmet,
    /// This stop string was about to appear.
    StopString(String),
    /// As many tokens as were asked for.
    MaxTokens,
    /// Prompt and answer fill the context.
    ContextFull,
    /// Somebody said that the rest is not wanted.
    Cancelled,
    /// The request's deadline is over.
    DeadlineExceeded,
    /// Its constraint failed, for example because the text takes more work than allowed; the reason, for the client.
    ConstraintFailed(String),
    /// It could not go on; the reason in words. Other sequences are not concerned.
    Failed(String),
}

impl fmt::Display for FinishReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FinishReason::EndToken(_) => f.write_str("end"),
            FinishReason::StopToken(id) => write!(f, "stop token {id}"),
            FinishReason::ConstraintMet => f.write_str("constraint met"),
            FinishReason::ConstraintUnmet => f.write_str("no token goes on as the constraint asks"),
            FinishReason::StopString(s) => write!(f, "stop string {s:?}"),
            FinishReason::MaxTokens => f.write_str("max tokens"),
            FinishReason::ContextFull => f.write_str("context full"),
            FinishReason::Cancelled => f.write_str("cancelled"),
            FinishReason::DeadlineExceeded => f.write_str("deadline exceeded"),
            FinishReason::ConstraintFailed(reason) => write!(f, "the constraint cannot go on: {reason}"),
            FinishReason::Failed(reason) => write!(f, "failed: {reason}"),
        }
    }
}

/// How long a sequence took, and for how many tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Timings {
    /// Tokens of the prompt (after cutting, if it was too long for the context).
    pub prompt_tokens: usize,
    /// Of these, found in the prefix cache and not computed.
    pub reused_tokens: usize,
    /// Tokens chosen, an end token included.
    pub generated_tokens: usize,
    /// Guessed tokens that were verified.
    pub drafted_tokens: usize,
    /// Of these, those that were right.
    pub accepted_tokens: usize,
    /// Seconds from the first step to the first token.
    pub prefill_seconds: f64,
    /// Seconds from the first token to the last: `generated_tokens - 1` steps, fewer with guesses that were right.
    pub decode_seconds: f64,
    /// Seconds from [`crate::Engine::add`] to the first token, waiting included.
    pub first_token_seconds: f64,
}

impl Timings {
    /// Prompt tokens computed a second; 0 if none was.
    pub fn prefill_rate(&self) -> f64 {
        rate(self.prompt_tokens - self.reused_tokens, self.prefill_seconds)
    }

    /// Tokens decoded a second; 0 if at most one token was generated.
    pub fn decode_rate(&self) -> f64 {
        rate(self.generated_tokens.saturating_sub(1), self.decode_seconds)
    }
}

fn rate(n: usize, seconds: f64) -> f64 {
    if n == 0 || seconds <= 0.0 { 0.0 } else { n as f64 / seconds }
}

/// A sequence in the engine, waiting or in a slot.
#[derive(Clone)]
pub(crate) struct Sequence {
    pub(crate) id: SequenceId,
    /// Prompt and answer as the model sees them; in a slot with a capacity of `n_ctx`.
    pub(crate) tokens: Vec<u32>,
    /// Rows of images among them, if there are any.
    pub(crate) images: Option<Arc<Images>>,
    /// Of these, positions whose keys and values are in the cache. A step computes what is missing.
    pub(crate) n_computed: usize,
    /// Positions that were submitted, those in flight included.
    pub(crate) n_submitted: usize,
    /// Outputs of steps in flight that choose its next tokens, in order; capacity for as many as may be in flight.
    pub(crate) pending: Vec<OutputRef>,
    /// How often it began anew (was parked, or slid): rows of before that are still in flight are nobody's.
    pub(crate) n_restarts: u32,
    /// Whether the prompt (or what a slide made the prompt) is not computed yet.
    pub(crate) in_prompt: bool,
    pub(crate) n_prompt: usize,
    pub(crate) n_reused: usize,
    pub(crate) n_generated: usize,
    pub(crate) sampler: Sampler,
    pub(crate) text: TextStream,
    pub(crate) max_tokens: usize,
    /// Tokens that end the answer, ascending: the model's, unless they are ignored, and the request's.
    pub(crate) ends: Arc<[u32]>,
    /// The request's among them, ascending.
    pub(crate) stop_tokens: Arc<[u32]>,
    pub(crate) min_tokens: usize,
    pub(crate) prompt_logprobs: Option<usize>,
    /// Rows of the prompt whose log-probabilities were told.
    pub(crate) n_scored: usize,
    /// The least progress of the prompt that is worth telling; `None`: nobody asked.
    pub(crate) told: Option<usize>,
    /// Absent while its masks are computed.
    pub(crate) constraint: Option<Box<dyn Constraint>>,
    /// How it ends, as its constraint cannot go on.
    pub(crate) failed: Option<FinishReason>,
    pub(crate) overflow: Overflow,
    pub(crate) prefill: Prefill,
    pub(crate) reuse: bool,
    pub(crate) salt: u64,
    /// As [`device::Step::adapters`].
    pub(crate) adapter: u32,
    pub(crate) tenant: u64,
    pub(crate) priority: i32,
    pub(crate) deadline: Option<Instant>,
    pub(crate) token_latency: Option<Duration>,
    pub(crate) speculate: bool,
    pub(crate) cancel: CancelFlag,
    /// Guessed tokens in the step, behind `tokens`; capacity for the most that a step takes.
    pub(crate) draft: Vec<u32>,
    /// How good guesses were.
    pub(crate) acceptance: Acceptance,
    /// Its prompt goes before those that are due later: rows of prompts that the scheduler has computed by then.
    pub(crate) due: u64,
    pub(crate) added: Instant,
    pub(crate) started: Option<Instant>,
    pub(crate) first_token: Option<Instant>,
    pub(crate) last_token: Option<Instant>,
}

impl Sequence {
    /// Of a checked request, nothing of it computed. `n_pending` outputs in flight may choose its next tokens, and a step takes
    /// `n_draft` guesses.
    pub(crate) fn new(
        id: SequenceId,
        request: Request,
        sampler: Sampler,
        text: TextStream,
        ends: Arc<[u32]>,
        n_pending: usize,
        n_draft: usize,
    ) -> Sequence {
        Sequence {
            id,
            n_prompt: request.tokens.len(),
            tokens: request.tokens,
            images: None,
            n_computed: 0,
            n_submitted: 0,
            pending: Vec::with_capacity(n_pending),
            n_restarts: 0,
            in_prompt: true,
            n_reused: 0,
            n_generated: 0,
            speculate: request.speculate && !sampler.adapts(),
            sampler,
            text,
            max_tokens: request.max_tokens.unwrap_or(usize::MAX),
            ends,
            stop_tokens: request.stop_tokens,
            min_tokens: request.min_tokens,
            prompt_logprobs: request.prompt_logprobs,
            n_scored: 0,
            told: request.progress.then_some(0),
            constraint: request.constraint,
            failed: None,
            overflow: request.overflow,
            prefill: request.prefill,
            reuse: request.reuse,
            salt: request.salt,
            adapter: 0,
            tenant: request.tenant,
            priority: request.priority,
            deadline: request.deadline,
            token_latency: request.token_latency,
            cancel: request.cancel,
            draft: Vec::with_capacity(n_draft),
            acceptance: Acceptance::new(),
            due: 0,
            added: Instant::now(),
            started: None,
            first_token: None,
            last_token: None,
        }
    }

    /// Another sequence from here on, which has what this one has so far for its prompt.
    pub(crate) fn become_fork(&mut self, id: SequenceId, sampler: Sampler, n_pending: usize, n_draft: usize) {
        self.begin_anew();
        self.speculate &= !sampler.adapts();
        (self.id, self.sampler, self.cancel) = (id, sampler, CancelFlag::default());
        (self.n_prompt, self.n_restarts, self.n_reused) = (self.tokens.len(), 0, 0);
        (self.prompt_logprobs, self.told) = (None, None);
        self.acceptance = Acceptance::new();
        self.added = Instant::now();
        (self.started, self.first_token, self.last_token) = (None, None, None);
        (self.pending, self.draft) = (Vec::with_capacity(n_pending), Vec::with_capacity(n_draft));
    }

    /// Most tokens that it can become in a context of `n_ctx`.
    pub(crate) fn most_tokens(&self, n_ctx: usize) -> usize {
        match self.overflow {
            Overflow::Slide { .. } => n_ctx,
            Overflow::Stop => {
                let left = self.max_tokens.saturating_sub(self.n_generated);
                self.tokens.len().saturating_add(left).min(n_ctx)
            }
        }
    }

    /// Most guesses that can be of use: what a context of `n_ctx` and the request leave behind the token that is due.
    pub(crate) fn most_draft(&self, n_ctx: usize) -> usize {
        let in_context = n_ctx.saturating_sub(self.tokens.len());
        in_context.min(self.max_tokens.saturating_sub(self.n_generated)).saturating_sub(1)
    }

    /// Rows of the prompt whose log-probabilities are to be told: all that another token of the prompt follows, but for those
    /// that were.
    pub(crate) fn rows_to_score(&self) -> std::ops::Range<usize> {
        let end = if self.prompt_logprobs.is_some() { self.n_prompt.saturating_sub(1) } else { 0 };
        self.n_scored.min(end)..end
    }

    /// Tokens that the one must not be that comes `n_ahead` after the next.
    pub(crate) fn forbidden(&self, n_ahead: usize) -> &[u32] {
        if self.n_generated + n_ahead < self.min_tokens { &self.ends } else { &[] }
    }

    /// Whether a token ends the answer, and how.
    pub(crate) fn end_by(&self, id: u32) -> Option<FinishReason> {
        if self.stop_tokens.binary_search(&id).is_ok() {
            return Some(FinishReason::StopToken(id));
        }
        self.ends.binary_search(&id).is_ok().then_some(FinishReason::EndToken(id))
    }

    /// Known tokens that are not submitted.
    pub(crate) fn n_missing(&self) -> usize {
        self.tokens.len().saturating_sub(self.n_submitted)
    }

    /// Whether steps in flight may already give its last token, so that none is to be computed after it.
    pub(crate) fn may_be_over(&self, n_ctx: usize) -> bool {
        let n = self.pending.len();
        self.n_generated + n >= self.max_tokens || self.tokens.len() + n >= n_ctx
    }

    /// What was in flight is not: it will be submitted again.
    pub(crate) fn forget_in_flight(&mut self) {
        self.pending.clear();
        self.n_submitted = self.n_computed;
    }

    /// Nothing of it is in the cache: what it has is a prompt again.
    pub(crate) fn begin_anew(&mut self) {
        self.n_computed = 0;
        self.forget_in_flight();
        self.in_prompt = true;
        self.n_restarts += 1;
    }

    pub(crate) fn timings(&self) -> Timings {
        let between = |a: Option<Instant>, b: Option<Instant>| match (a, b) {
            (Some(a), Some(b)) => b.saturating_duration_since(a).as_secs_f64(),
            _ => 0.0,
        };
        Timings {
            prompt_tokens: self.n_prompt,
            reused_tokens: self.n_reused,
            generated_tokens: self.n_generated,
            drafted_tokens: self.acceptance.n_drafted,
            accepted_tokens: self.acceptance.n_accepted,
            prefill_seconds: between(self.started, self.first_token),
            decode_seconds: between(self.first_token, self.last_token),
            first_token_seconds: between(Some(self.added), self.first_token),
        }
    }
}

/// Cut `tokens` as [`Overflow::Slide`] says: the first `keep`, and the newer half of what else fits in `n_ctx`.
pub(crate) fn slide(tokens: &mut Vec<u32>, keep: usize, n_ctx: usize) {
    let n_tail = (n_ctx - keep).div_ceil(2);
    let end_of_dropped = tokens.len() - n_tail;
    tokens.drain(keep..end_of_dropped);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slide_keeps_the_start_and_the_newer_half() {
        let mut tokens: Vec<u32> = (0..100).collect();
        slide(&mut tokens, 10, 100);
        let want: Vec<u32> = (0..10).chain(55..100).collect();
        assert_eq!(tokens, want);
        // A prompt longer than the context ends at the same length.
        let mut long: Vec<u32> = (0..1000).collect();
        slide(&mut long, 11, 100);
        assert_eq!((long.len(), long[10], long[11], long[55]), (56, 10, 955, 999));
    }
}
