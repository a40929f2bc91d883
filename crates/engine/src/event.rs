//! What an engine tells of its sequences.

use crate::{FinishReason, SequenceId, Timings};

/// What happens to a sequence. Texts are borrowed for the time of the call.
#[derive(Clone, Debug, PartialEq)]
pub enum Event<'a> {
    /// A token was chosen (not the one that ends the answer).
    Token {
        /// Whose.
        sequence: SequenceId,
        /// Token id.
        id: u32,
        /// Text that is certain now; empty while a character or a stop string may still be incomplete.
        text: &'a str,
        /// Log-probability by the model itself, if asked for.
        logprob: Option<f32>,
        /// The likeliest tokens and their log-probabilities by the model itself, best first: as many as
        /// [`crate::SamplingParams::n_best_logprobs`].
        best: &'a [(u32, f32)],
        /// Tokens of the prompt that were found in the prefix cache.
        n_reused: usize,
        /// How long it took so far.
        timings: Timings,
    },
    /// A part of the prompt was computed, if [`crate::Request::progress`] asks: once before the first part counts, and after each step
    /// with rows of it; before the answer.
    Progress {
        /// Whose.
        sequence: SequenceId,
        /// How far its prompt is.
        progress: Progress,
    },
    /// A token of the prompt, if [`crate::Request::prompt_logprobs`] asks for them: each but the first, in order, before the answer.
    PromptToken {
        /// Whose.
        sequence: SequenceId,
        /// Where in the prompt, from 1 on.
        position: usize,
        /// Token id.
        id: u32,
        /// Log-probability by the model itself, after the tokens before it.
        logprob: f32,
        /// The likeliest tokens in its place and their log-probabilities, best first.
        best: &'a [(u32, f32)],
    },
    /// It ended; nothing follows.
    Done {
        /// Whose.
        sequence: SequenceId,
        /// Text that was held back and belongs to the answer after all.
        text: &'a str,
        /// Why.
        reason: &'a FinishReason,
        /// How long it took.
        timings: Timings,
        /// The seed that was used: with it, the same request gives the same answer.
        seed: u64,
    },
}

/// How far a prompt is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Progress {
    /// Tokens of the prompt.
    pub n_prompt: usize,
    /// Of these, found in the prefix cache.
    pub n_reused: usize,
    /// Of the prompt, what is there: found or computed.
    pub n_done: usize,
    /// Seconds since its first step began.
    pub seconds: f64,
}

impl<'a> Event<'a> {
    /// The sequence that it concerns.
    pub fn sequence(&self) -> SequenceId {
        match self {
            Event::Token { sequence, .. }
            | Event::PromptToken { sequence, .. }
            | Event::Progress { sequence, .. }
            | Event::Done { sequence, .. } => *sequence,
        }
    }

    /// The text that it adds to the answer.
    pub fn text(&self) -> &'a str {
        match self {
            Event::Token { text, .. } | Event::Done { text, .. } => text,
            Event::PromptToken { .. } | Event::Progress { .. } => "",
        }
    }
}
