//! Sequences: the request, the state of its prompt and answer, and the reason for which it ended.

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

/// Id of a sequence, unique for as long as its engine lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub u64);

/// Policy for a prompt and answer that fill the context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// Stop with [`FinishReason::ContextFull`]; a prompt that is too long is an error.
    #[default]
    Stop,
    /// Keep the first `keep` tokens (at most half the context), drop the older half of the rest, go
    /// on.
    ///
    /// The model then sees exactly the text that remains. The kept tokens move to new positions and
    /// are prefilled again: about `n_ctx / 2` tokens every `n_ctx / 2` tokens, so one prompt token
    /// for each generated one. A prompt that is too long is cut by the same rule.
    Slide {
        /// Tokens of the start that always stay.
        keep: usize,
    },
}

/// Number of prompt tokens that a step computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prefill {
    /// Rows up to the size of a step.
    #[default]
    Batched,
    /// One row a step; for checking.
    PerToken,
}

/// Flag that cancels a sequence from another thread. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct CancelFlag(Arc<AtomicBool>);

impl CancelFlag {
    /// End the sequence before its next step.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// The flag, for [`device::Step::stop`].
    pub(crate) fn as_atomic(&self) -> &AtomicBool {
        &self.0
    }

    /// Returns true if the sequence was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A request to the engine: continue these tokens.
#[derive(Clone, Debug)]
pub struct Request {
    /// The prompt, at least one token.
    pub tokens: Vec<u32>,
    /// Images, in the order of their placeholders in `tokens`, one for each row
    /// ([`crate::Model::expand_images`]).
    pub images: Vec<Arc<Picture>>,
    /// Sampling parameters.
    pub sampling: SamplingParams,
    /// Maximum number of tokens to generate; `None`: until the model ends its turn or the context
    /// is full. 0 computes the prompt only.
    pub max_tokens: Option<usize>,
    /// Stop strings: the answer ends before any of them.
    pub stop: Stops,
    /// Parts of the answer in which stop strings are not searched.
    pub stop_outside: Option<Asides>,
    /// Tokens that end the answer, in addition to the model's end tokens. `ignore_end` does not
    /// affect them.
    pub stop_tokens: Arc<[u32]>,
    /// No token that ends the answer is chosen before the answer has this many tokens. A stop
    /// string or a constraint that is over still ends it.
    pub min_tokens: usize,
    /// Go on when the model chooses an end token. No effect with a constraint, which itself decides
    /// where the text may end.
    pub ignore_end: bool,
    /// Special tokens, such as `<|im_end|>`, that appear in the text.
    pub show_special: ShowSpecial,
    /// Number of likeliest tokens to report for each position of the prompt (at most
    /// [`device::MAX_BEST`]); `None`: no report. Each prompt token but the first then gets an
    /// [`crate::Event::PromptToken`] with its log-probability. The whole prompt is computed, cached
    /// or not, with as many rows a step as there is room for logits
    /// ([`crate::LoadOptions::n_outputs`]).
    pub prompt_logprobs: Option<usize>,
    /// Report the progress of the prompt by [`crate::Event::Progress`].
    pub progress: bool,
    /// Constraint that the answer must meet, such as a grammar.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Policy for a full context.
    pub overflow: Overflow,
    /// Number of prompt tokens that a step computes.
    pub prefill: Prefill,
    /// Read and fill the prefix cache.
    pub reuse: bool,
    /// Only requests with the same salt share cached prefixes. Clients that must not learn each
    /// other's prompts from the time to first token need different salts. Prompts computed with
    /// different weights do too.
    pub salt: u64,
    /// Name of the adapter ([`crate::Model::adapters`]); `None`: the model alone.
    pub adapter: Option<Arc<str>>,
    /// The client. Waiting tenants get about equal numbers of tokens, within a priority.
    pub tenant: u64,
    /// Higher priorities go first, and preempt a running sequence of a lower priority, which
    /// resumes later.
    pub priority: i32,
    /// Time at which the sequence ends with [`FinishReason::DeadlineExceeded`], waiting or running.
    pub deadline: Option<Instant>,
    /// Longest time between two tokens while other requests are prefilled; `None`:
    /// [`crate::LoadOptions::token_latency`].
    pub token_latency: Option<Duration>,
    /// Allow draft tokens, if the engine speculates ([`crate::LoadOptions::speculate`]).
    pub speculate: bool,
    /// Flag that ends the sequence early.
    pub cancel: CancelFlag,
}

impl Request {
    /// A request for `tokens`, with every other field at its default.
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

/// Reason for which a sequence ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model chose a token that ends its turn.
    EndToken(u32),
    /// One of the request's stop tokens was chosen.
    StopToken(u32),
    /// The constraint allows nothing but the end.
    ConstraintMet,
    /// No token that may be chosen satisfies the constraint.
    ConstraintUnmet,
    /// This stop string would have appeared next.
    StopString(String),
    /// The answer has the requested number of tokens.
    MaxTokens,
    /// Prompt and answer fill the context.
    ContextFull,
    /// The request was cancelled.
    Cancelled,
    /// The request's deadline has passed.
    DeadlineExceeded,
    /// The constraint failed, for example because the text exceeds its limit of work. The reason is
    /// for the client.
    ConstraintFailed(String),
    /// The sequence could not go on; the reason in words. Other sequences are not affected.
    Failed(String),
}

impl fmt::Display for FinishReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FinishReason::EndToken(_) => f.write_str("end"),
            FinishReason::StopToken(id) => write!(f, "stop token {id}"),
            FinishReason::ConstraintMet => f.write_str("constraint met"),
            FinishReason::ConstraintUnmet => f.write_str("no token satisfies the constraint"),
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

/// Times and token counts of a sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Timings {
    /// Tokens of the prompt, after it was cut to fit the context.
    pub prompt_tokens: usize,
    /// Prompt tokens found in the prefix cache and not computed.
    pub reused_tokens: usize,
    /// Tokens chosen, including an end token.
    pub generated_tokens: usize,
    /// Draft tokens that were verified.
    pub drafted_tokens: usize,
    /// Draft tokens that were accepted.
    pub accepted_tokens: usize,
    /// Seconds from the first step to the first token.
    pub prefill_seconds: f64,
    /// Seconds from the first token to the last: `generated_tokens - 1` steps, fewer if draft
    /// tokens were accepted.
    pub decode_seconds: f64,
    /// Seconds from [`crate::Engine::add`] to the first token, including time in the queue.
    pub first_token_seconds: f64,
}

impl Timings {
    /// Prompt tokens computed a second; 0 if none was computed.
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
    /// Tokens of prompt and answer as the model sees them. In a slot its capacity is `n_ctx`.
    pub(crate) tokens: Vec<u32>,
    /// Image rows among the tokens, if there are any.
    pub(crate) images: Option<Arc<Images>>,
    /// Number of positions whose keys and values are in the cache. A step computes the others.
    pub(crate) n_computed: usize,
    /// Number of positions that were submitted, including those in flight.
    pub(crate) n_submitted: usize,
    /// Outputs of steps in flight that choose the next tokens, in order. Its capacity is the
    /// largest number in flight.
    pub(crate) pending: Vec<OutputRef>,
    /// Number of restarts (parked, or the context slid). Rows in flight from before a restart are
    /// discarded.
    pub(crate) n_restarts: u32,
    /// True until the prompt is computed. After a slide the remaining text is a prompt again.
    pub(crate) in_prompt: bool,
    pub(crate) n_prompt: usize,
    pub(crate) n_reused: usize,
    pub(crate) n_generated: usize,
    pub(crate) sampler: Sampler,
    pub(crate) text: TextStream,
    pub(crate) max_tokens: usize,
    /// Tokens that end the answer, ascending: the request's stop tokens, and the model's end tokens
    /// unless they are ignored.
    pub(crate) ends: Arc<[u32]>,
    /// Stop tokens of the request, ascending; a subset of `ends`.
    pub(crate) stop_tokens: Arc<[u32]>,
    pub(crate) min_tokens: usize,
    pub(crate) prompt_logprobs: Option<usize>,
    /// Number of prompt rows whose log-probabilities were reported.
    pub(crate) n_scored: usize,
    /// Least prompt progress that is reported next; `None`: the request does not want progress.
    pub(crate) told: Option<usize>,
    /// The constraint; `None` while the mask worker has it.
    pub(crate) constraint: Option<Box<dyn Constraint>>,
    /// Reason for which the sequence must end, because its constraint failed.
    pub(crate) failed: Option<FinishReason>,
    pub(crate) overflow: Overflow,
    pub(crate) prefill: Prefill,
    pub(crate) reuse: bool,
    pub(crate) salt: u64,
    /// Number of the adapter, as in [`device::Step::adapters`].
    pub(crate) adapter: u32,
    pub(crate) tenant: u64,
    pub(crate) priority: i32,
    pub(crate) deadline: Option<Instant>,
    pub(crate) token_latency: Option<Duration>,
    pub(crate) speculate: bool,
    pub(crate) cancel: CancelFlag,
    /// Draft tokens of the step, which follow `tokens`. Its capacity is the most that a step may
    /// have.
    pub(crate) draft: Vec<u32>,
    /// Acceptance rate of the sequence's draft tokens.
    pub(crate) acceptance: Acceptance,
    /// Rank among prompts: the total of prompt rows computed by the engine at which this prompt is
    /// due. Smaller goes first.
    pub(crate) due: u64,
    pub(crate) added: Instant,
    pub(crate) started: Option<Instant>,
    pub(crate) first_token: Option<Instant>,
    pub(crate) last_token: Option<Instant>,
}

impl Sequence {
    /// A sequence for a checked request, with nothing computed. Up to `n_pending` outputs in flight
    /// may choose its tokens, and a step may have `n_draft` draft tokens of it.
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

    /// Turn a clone into a fork: a new sequence whose prompt is everything that the original has so
    /// far.
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

    /// Maximum number of tokens that the sequence can have in a context of `n_ctx`.
    pub(crate) fn most_tokens(&self, n_ctx: usize) -> usize {
        match self.overflow {
            Overflow::Slide { .. } => n_ctx,
            Overflow::Stop => {
                let left = self.max_tokens.saturating_sub(self.n_generated);
                self.tokens.len().saturating_add(left).min(n_ctx)
            }
        }
    }

    /// Maximum number of draft tokens of use: the tokens that the context of `n_ctx` and the
    /// request leave after the next one.
    pub(crate) fn most_draft(&self, n_ctx: usize) -> usize {
        let in_context = n_ctx.saturating_sub(self.tokens.len());
        in_context.min(self.max_tokens.saturating_sub(self.n_generated)).saturating_sub(1)
    }

    /// Prompt rows whose log-probabilities are still to be reported: every row that is followed by
    /// a prompt token.
    pub(crate) fn rows_to_score(&self) -> std::ops::Range<usize> {
        let end = if self.prompt_logprobs.is_some() { self.n_prompt.saturating_sub(1) } else { 0 };
        self.n_scored.min(end)..end
    }

    /// Tokens that must not be chosen for the token that comes `n_ahead` after the next one.
    pub(crate) fn forbidden(&self, n_ahead: usize) -> &[u32] {
        if self.n_generated + n_ahead < self.min_tokens { &self.ends } else { &[] }
    }

    /// Reason for which token `id` ends the answer; `None` if it does not.
    pub(crate) fn end_by(&self, id: u32) -> Option<FinishReason> {
        if self.stop_tokens.binary_search(&id).is_ok() {
            return Some(FinishReason::StopToken(id));
        }
        self.ends.binary_search(&id).is_ok().then_some(FinishReason::EndToken(id))
    }

    /// Number of known tokens that are not submitted.
    pub(crate) fn n_missing(&self) -> usize {
        self.tokens.len().saturating_sub(self.n_submitted)
    }

    /// Returns true if steps in flight may choose the last token. Then no further row is submitted.
    pub(crate) fn may_be_over(&self, n_ctx: usize) -> bool {
        let n = self.pending.len();
        self.n_generated + n >= self.max_tokens || self.tokens.len() + n >= n_ctx
    }

    /// Forget rows in flight; they will be submitted again.
    pub(crate) fn forget_in_flight(&mut self) {
        self.pending.clear();
        self.n_submitted = self.n_computed;
    }

    /// Forget all computed rows: the tokens so far are a prompt again.
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

/// Cut `tokens` by the rule of [`Overflow::Slide`]: keep the first `keep` tokens and the newer half
/// of the others that fit in `n_ctx`.
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
        // A prompt longer than the context is cut to the same length.
        let mut long: Vec<u32> = (0..1000).collect();
        slide(&mut long, 11, 100);
        assert_eq!((long.len(), long[10], long[11], long[55]), (56, 10, 955, 999));
    }
}
